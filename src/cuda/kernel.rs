//! Modules and kernel launches.

use super::{Stream, check};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};

/// A loaded image; never unloaded.
#[derive(Debug)]
pub struct Module(sys::CUmodule);

/// A kernel of a module, loaded eagerly.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    function: sys::CUfunction,
    /// Of its launches, whatever the stream's.
    priority: i32,
}

// SAFETY: module and function handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// How a launch relates to what comes before it in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchStyle {
    Plain,
    /// May be set up while the work before it still runs; the kernel waits for that by itself (programmatic stream serialization).
    Overlapped,
    /// All blocks become resident together.
    Cooperative,
}

impl Module {
    pub fn load(image: &[u8]) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a complete fatbin, which carries its own length; or the short text of a library without kernels, which a real
        // driver refuses.
        let loaded =
            check(unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) }, "cuModuleLoadData (is this GPU older than sm_80?)");
        loaded.map_err(|e| match image.starts_with(b"no kernels") {
            true => Error::internal(
                "this libmkernel.so was built with MKERNEL_NO_NVCC=1, for the emulated GPU only: run `make toolchain build`",
            ),
            false => e,
        })?;
        Ok(Self(raw))
    }

    /// Finds a kernel and makes sure that it is on the device now: a lazy load would wait for the GPU to become idle. Its blocks are placed before
    /// those of kernels with a lower `priority`; without that, a launch waits until every block of a larger grid that came before has started.
    pub fn kernel(&self, name: &str, priority: i32) -> Result<Kernel> {
        let c_name = CString::new(name).map_err(|_| Error::internal("kernel name with a NUL"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a loaded module and a NUL-terminated name.
        check(unsafe { sys::cuModuleGetFunction(&mut raw, self.0, c_name.as_ptr()) }, &format!("cuModuleGetFunction({name})"))?;
        // SAFETY: a valid function.
        check(unsafe { sys::cuFuncLoad(raw) }, "cuFuncLoad")?;
        Ok(Kernel { function: raw, priority })
    }
}

impl Kernel {
    /// Launches `blocks` blocks of `threads`.
    ///
    /// # Safety
    /// `params[i]` must point to a value of the type of the kernel's i-th parameter, and what the kernel dereferences must stay valid until
    /// it ends.
    pub unsafe fn launch(&self, blocks: u32, threads: u32, stream: Stream, style: LaunchStyle, params: &mut [*mut c_void]) -> Result<()> {
        // SAFETY: the attribute is plain data; zero is a valid bit pattern for it.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        attributes[0].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
        attributes[0].value.priority = self.priority;
        match style {
            LaunchStyle::Plain => {}
            LaunchStyle::Overlapped => {
                attributes[1].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
                attributes[1].value.programmaticStreamSerializationAllowed = 1;
            }
            LaunchStyle::Cooperative => {
                attributes[1].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
                attributes[1].value.cooperative = 1;
            }
        }
        let config = sys::CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: if style == LaunchStyle::Plain { 1 } else { 2 },
        };
        // SAFETY: by this function's contract; the driver copies configuration and parameters before it returns.
        check(unsafe { sys::cuLaunchKernelEx(&config, self.function, params.as_mut_ptr(), std::ptr::null_mut()) }, "cuLaunchKernelEx")
    }
}
