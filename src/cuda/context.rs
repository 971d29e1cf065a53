//! Devices and contexts. The library works in a device's primary context, and leaves the caller's current context as it was.

use super::{check, ensure_driver};
use crate::error::{Error, Result};
use cudarc::driver::sys;

/// What the library asks a device about itself.
#[derive(Debug, Clone)]
pub struct Device {
    pub ordinal: i32,
    pub name: String,
    /// Tells physical GPUs (and MIG slices) apart, across processes and containers.
    pub uuid: [u8; 16],
    pub pci_bus_id: String,
    pub multiprocessors: u32,
    pub compute_capability: (i32, i32),
}

/// Devices this process can see.
pub fn device_count() -> Result<i32> {
    ensure_driver()?;
    let mut n = 0;
    // SAFETY: writes one int.
    check(unsafe { sys::cuDeviceGetCount(&mut n) }, "cuDeviceGetCount")?;
    Ok(n)
}

/// The device of the calling thread's current context. A thread without one is on device 0, as the CUDA runtime has it.
pub fn current_device() -> Result<i32> {
    ensure_driver()?;
    let mut context = std::ptr::null_mut();
    // SAFETY: writes one handle.
    check(unsafe { sys::cuCtxGetCurrent(&mut context) }, "cuCtxGetCurrent")?;
    if context.is_null() {
        return Ok(0);
    }
    let mut device = 0;
    // SAFETY: there is a current context.
    check(unsafe { sys::cuCtxGetDevice(&mut device) }, "cuCtxGetDevice")?;
    Ok(device)
}

/// A device's context that the library works in.
#[derive(Debug)]
pub struct Context {
    raw: sys::CUcontext,
    pub device: Device,
}

// SAFETY: a context handle may be used from any thread; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device for the life of the process.
    pub fn primary(ordinal: i32) -> Result<Self> {
        let count = device_count()?;
        if ordinal < 0 || ordinal >= count {
            return Err(Error::argument(format!("device {ordinal} does not exist: this process sees {count} CUDA device(s)")));
        }
        let mut device = 0;
        // SAFETY: the ordinal is in range.
        check(unsafe { sys::cuDeviceGet(&mut device, ordinal) }, "cuDeviceGet")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a valid device; the context is never released, so it outlives every use.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) }, "cuDevicePrimaryCtxRetain")?;
        Ok(Self { raw, device: query(ordinal, device)? })
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub fn enter(&self) -> Result<Guard> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check(unsafe { sys::cuCtxGetCurrent(&mut current) }, "cuCtxGetCurrent")?;
        if current == self.raw {
            return Ok(Guard { previous: None });
        }
        // SAFETY: the context is retained for ever.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, "cuCtxSetCurrent")?;
        Ok(Guard { previous: Some(current) })
    }

    /// Lets kernels on this device address another device's plain allocations. True when they can.
    pub fn enable_peer(&self, other: &Context) -> Result<bool> {
        let mut can = 0;
        // SAFETY: both ordinals were checked when the contexts were made.
        check(unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.device.ordinal, other.device.ordinal) }, "cuDeviceCanAccessPeer")?;
        if can == 0 {
            return Ok(false);
        }
        let _guard = self.enter()?;
        // SAFETY: both contexts live for ever.
        match unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) } {
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            other => check(other, "cuCtxEnablePeerAccess").map(|()| true),
        }
    }

    /// Lowest and highest stream priority.
    pub fn stream_priorities(&self) -> Result<(i32, i32)> {
        let _guard = self.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes two ints.
        check(unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }, "cuCtxGetStreamPriorityRange")?;
        Ok((least, greatest))
    }
}

/// Restores the thread's earlier current context when dropped.
#[must_use]
pub struct Guard {
    previous: Option<sys::CUcontext>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: it was current before, and NULL is allowed. A failure would mean that the driver is shutting down.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}

fn query(ordinal: i32, device: sys::CUdevice) -> Result<Device> {
    use sys::CUdevice_attribute as A;
    let attribute = |which: A| -> Result<i32> {
        let mut v = 0;
        // SAFETY: a valid device; writes one int.
        check(unsafe { sys::cuDeviceGetAttribute(&mut v, which, device) }, "cuDeviceGetAttribute")?;
        Ok(v)
    };
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: a valid device; writes 16 bytes. The _v2 form tells MIG slices apart.
    check(unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) }, "cuDeviceGetUuid_v2")?;
    let mut name = [0 as std::ffi::c_char; 128];
    // SAFETY: the length leaves room for the terminating NUL.
    check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 127, device) }, "cuDeviceGetName")?;
    let mut bus = [0 as std::ffi::c_char; 32];
    // SAFETY: as above.
    check(unsafe { sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), 31, device) }, "cuDeviceGetPCIBusId")?;
    let text = |chars: &[std::ffi::c_char]| {
        String::from_utf8_lossy(&chars.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect::<Vec<_>>()).into_owned()
    };
    Ok(Device {
        ordinal,
        name: text(&name),
        uuid: uuid.bytes.map(|b| b as u8),
        pci_bus_id: text(&bus),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.try_into().unwrap_or(1),
        compute_capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
    })
}
