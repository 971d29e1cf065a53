//! The CUDA driver as the rest of the library sees it: the only module that names `cudarc`. Each call returns our error type, with the name
//! of the call, the driver's own words and what they usually mean. Nothing here is linked: the driver is found when first asked for.

mod context;
mod kernel;
mod memory;
mod stream;

pub use context::{Context, Device, Guard, current_device, device_count};
pub use kernel::{Kernel, LaunchStyle, Module};
pub use memory::{DeviceMemory, IpcHandle, PinnedMemory, RemoteMemory, allocate, free, pointer_device};
pub use stream::{Capture, Event, OwnedStream, RelaxedCapture, Stream};

use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ffi::CStr;
use std::sync::OnceLock;

/// Loads and initialises the driver. Everything else in this module may be called only after this has succeeded once in this process.
pub fn ensure_driver() -> Result<()> {
    static DRIVER: OnceLock<std::result::Result<(), Error>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            // SAFETY: only asks the loader for the library.
            if !unsafe { sys::is_culib_present() } {
                return Err(Error::system(
                    "no CUDA driver: libcuda.so.1 cannot be loaded on this host. Install the NVIDIA driver, or start the container with GPU access.",
                ));
            }
            // SAFETY: cuInit has no preconditions.
            check(unsafe { sys::cuInit(0) }, "cuInit")
        })
        .clone()
}

/// Turns a driver result into ours.
fn check(result: sys::CUresult, what: &str) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::cuda(format!("{what} failed: {}", describe(result))))
}

fn describe(result: sys::CUresult) -> String {
    let text = |f: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut p = std::ptr::null();
        // SAFETY: both functions write a pointer to a static string, or leave NULL.
        let ok = unsafe { f(result, &mut p) } == sys::CUresult::CUDA_SUCCESS && !p.is_null();
        // SAFETY: the driver's strings are static and NUL-terminated.
        ok.then(|| unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(words)) => format!("{name} ({words})"),
        (Some(name), None) => name,
        _ => format!("CUDA driver error {}", result as i32),
    }
}
