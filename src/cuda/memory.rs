//! Memory: device allocations, pinned host pages that kernels write, and other processes' allocations.

use super::{Stream, check};
use crate::error::Result;
use cudarc::driver::sys;

/// Device memory of the current context that is never freed: freeing would wait for everything that runs on the device. Owners
/// return it to a pool.
#[derive(Debug)]
pub struct DeviceMemory {
    pub address: u64,
    pub bytes: usize,
}

/// What another process needs to map a device allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpcHandle(pub [u8; 64]);

impl DeviceMemory {
    pub fn new(bytes: usize) -> Result<Self> {
        Ok(Self { address: allocate(bytes)?, bytes })
    }

    /// Zeroes the first `bytes` in the order of `stream`, and waits until they are. Never on the legacy stream, which waits for the caller's.
    pub fn zero(&self, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the allocation is at least that long.
        check(unsafe { sys::cuMemsetD8Async(self.address, 0, bytes.min(self.bytes), stream.raw()) }, "cuMemsetD8Async")?;
        stream.synchronize()
    }

    /// Zeroes a part in the order of `stream`, without waiting.
    pub fn clear(&self, offset: usize, bytes: usize, stream: Stream) -> Result<()> {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: in bounds by the assertion.
        check(unsafe { sys::cuMemsetD8Async(self.address + offset as u64, 0, bytes, stream.raw()) }, "cuMemsetD8Async")
    }

    /// Writes `data` at `offset` in the order of `stream`, and waits until it is there.
    pub fn write(&self, offset: usize, data: &[u8], stream: Stream) -> Result<()> {
        assert!(offset + data.len() <= self.bytes);
        // SAFETY: in bounds by the assertion; `data` is readable for its length and outlives the wait.
        let r = unsafe { sys::cuMemcpyHtoDAsync_v2(self.address + offset as u64, data.as_ptr().cast(), data.len(), stream.raw()) };
        check(r, "cuMemcpyHtoDAsync")?;
        stream.synchronize()
    }

    pub fn ipc_handle(&self) -> Result<IpcHandle> {
        // SAFETY: an all-zero handle is a valid value to overwrite.
        let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
        // SAFETY: `address` is the start of an own allocation.
        check(unsafe { sys::cuIpcGetMemHandle(&mut handle, self.address) }, "cuIpcGetMemHandle (sharing GPU memory with another process)")?;
        Ok(IpcHandle(handle.reserved.map(|b| b as u8)))
    }
}

/// Another process's allocation, mapped here. Never unmapped: the pool that it comes from lives as long as its process.
#[derive(Debug, Clone, Copy)]
pub struct RemoteMemory {
    pub address: u64,
}

impl RemoteMemory {
    pub fn open(handle: &IpcHandle) -> Result<Self> {
        // SAFETY: plain bytes.
        let mut raw: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
        for (to, from) in raw.reserved.iter_mut().zip(handle.0) {
            *to = from as std::ffi::c_char;
        }
        let mut address = 0;
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: a bad handle is reported, not trusted.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, raw, flags) };
        check(opened, "cuIpcOpenMemHandle (mapping another process's GPU memory)")?;
        Ok(Self { address })
    }
}

/// Pinned host memory that kernels read and write at the same address; never freed, for the reason that device memory is not.
#[derive(Debug)]
pub struct PinnedMemory {
    address: *mut u8,
    pub bytes: usize,
}

// SAFETY: plain memory; users agree on who writes what.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub fn new(bytes: usize) -> Result<Self> {
        let mut p = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: writes one pointer.
        check(unsafe { sys::cuMemHostAlloc(&mut p, bytes, flags) }, "cuMemHostAlloc")?;
        // SAFETY: freshly allocated for `bytes`.
        unsafe { std::ptr::write_bytes(p.cast::<u8>(), 0, bytes) };
        Ok(Self { address: p.cast(), bytes })
    }
    pub fn address(&self) -> *mut u8 {
        self.address
    }
}

/// Plain device memory for the caller (`ncclMemAlloc`), in the current context.
pub fn allocate(bytes: usize) -> Result<u64> {
    let mut address = 0;
    // SAFETY: writes one address; a size of 0 is reported as invalid.
    check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }, &format!("cuMemAlloc of {bytes} bytes"))?;
    Ok(address)
}

pub fn free(address: u64) -> Result<()> {
    // SAFETY: an address that is no allocation is reported as invalid.
    check(unsafe { sys::cuMemFree_v2(address) }, "cuMemFree")
}

/// The device that an address belongs to; `None` when it is no memory that CUDA knows.
pub fn pointer_device(address: u64) -> Option<i32> {
    let mut device = 0i32;
    let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: writes one int; unknown addresses are reported.
    let r = unsafe { sys::cuPointerGetAttribute((&raw mut device).cast(), which, address) };
    (r == sys::CUresult::CUDA_SUCCESS).then_some(device)
}
