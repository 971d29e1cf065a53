//! Allocations, copies, fills, and memory of other processes.

use crate::ipc::{self, Handle};
use crate::memory::{self, Direction, Kind};
use crate::result::{Code, Result, call, put, put_if};
use crate::state::{DEVICE_BYTES, context_handle, need_device, state};
use std::ffi::c_void;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut usize, bytes: usize) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    call(|| unsafe { put(address, memory::allocate_device(need_device()?, bytes)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: usize) -> i32 {
    call(|| if address == 0 { Ok(()) } else { memory::free(address, |kind| matches!(kind, Kind::Device { .. }), Code::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut usize, bytes: usize, _flags: u32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    call(|| unsafe { put(address, memory::allocate_host(need_device()?, bytes)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(address: *mut usize, bytes: usize) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuMemHostAlloc(address, bytes, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(address: usize) -> i32 {
    call(|| if address == 0 { Ok(()) } else { memory::free(address, |kind| matches!(kind, Kind::Host), Code::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(to: *mut usize, address: usize, _flags: u32) -> i32 {
    call(|| {
        if !state().find_memory(address).is_some_and(|(_, allocation)| allocation.is_host()) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(to, address) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(address: usize, bytes: usize, _flags: u32) -> i32 {
    call(|| memory::register(need_device()?, address, bytes))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostUnregister(address: usize) -> i32 {
    call(|| memory::free(address, |kind| matches!(kind, Kind::Registered), Code::HOST_NOT_REGISTERED))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    call(|| {
        let used = state().devices[need_device()?].allocated;
        // SAFETY: the outputs are as cuda.h asks.
        unsafe {
            put(free, DEVICE_BYTES.saturating_sub(used))?;
            put(total, DEVICE_BYTES)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut usize, bytes: *mut usize, address: usize) -> i32 {
    call(|| {
        let state = state();
        // As the driver answers for an address that it does not know.
        let (start, allocation) = state.find_memory(address).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the outputs are as cuda.h asks, which lets them be NULL.
        unsafe {
            put_if(base, start);
            put_if(bytes, allocation.bytes);
        }
        Ok(())
    })
}

/// The attributes by `CUpointer_attribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, which: i32, address: usize) -> i32 {
    call(|| {
        let state = state();
        let (start, allocation) = state.find_memory(address).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller gives room for the attribute's type.
        unsafe {
            match which {
                1 => put(data.cast(), context_handle(allocation.device)),
                2 => put(data.cast(), if allocation.is_host() { 1u32 } else { 2 }),
                3 | 4 => put(data.cast(), address),
                6 | 8 => put(data.cast(), 0u32),
                7 => put(data.cast(), start as u64),
                9 => put(data.cast(), allocation.device as i32),
                10 => put(data.cast(), i32::from(matches!(allocation.kind, Kind::Device { .. }))),
                11 => put(data.cast(), start),
                12 => put(data.cast(), allocation.bytes),
                13 => put(data.cast(), 1i32),
                _ => Err(Code::NOT_SUPPORTED),
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut Handle, address: usize) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    call(|| unsafe { put(handle, ipc::export(address)?) })
}

/// `CUipcMemHandle` as C passes it by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcMemHandle(pub Handle);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(address: *mut usize, handle: IpcMemHandle, flags: u32) -> i32 {
    call(|| {
        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the only flag, and must be given.
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(address, ipc::open(need_device()?, &handle.0)?) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(address: usize) -> i32 {
    call(|| memory::free(address, |kind| matches!(kind, Kind::Opened { .. }), Code::INVALID_VALUE))
}

/// A call that is in the order of the legacy default stream and returns when it is over.
fn blocking(enqueue: impl FnOnce() -> Result) -> Result {
    enqueue()?;
    let last = {
        let mut state = state();
        let key = state.stream_key(0)?;
        state.streams[&key].last.clone()
    };
    last.wait();
    Ok(())
}

macro_rules! copies {
    ($($sync:ident $asynchronous:ident $direction:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync(to: usize, from: usize, bytes: usize) -> i32 {
            call(|| blocking(|| memory::copy(0, to, from, bytes, Direction::$direction)))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $asynchronous(to: usize, from: usize, bytes: usize, stream: usize) -> i32 {
            call(|| memory::copy(stream, to, from, bytes, Direction::$direction))
        }
    )*};
}

copies! {
    cuMemcpy cuMemcpyAsync Unified;
    cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 ToDevice;
    cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2 ToHost;
    cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2 OnDevice;
}

macro_rules! sets {
    ($($sync:ident $asynchronous:ident $element:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $sync(to: usize, value: $element, count: usize) -> i32 {
            call(|| blocking(|| state().set(0, to, u32::from(value), size_of::<$element>(), count)))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $asynchronous(to: usize, value: $element, count: usize, stream: usize) -> i32 {
            call(|| state().set(stream, to, u32::from(value), size_of::<$element>(), count))
        }
    )*};
}

sets! {
    cuMemsetD8_v2 cuMemsetD8Async u8;
    cuMemsetD16_v2 cuMemsetD16Async u16;
    cuMemsetD32_v2 cuMemsetD32Async u32;
}
