//! A CUDA driver with one GPU in host memory whose streams run at once: just what the tool calls, so that ../perf.rs needs neither a GPU nor the
//! emulator. It cannot capture. Device addresses are host addresses.

use std::ffi::{c_char, c_int, c_uint, c_void};

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 801;
/// Any non-null handle: nothing is behind it.
const HANDLE: *mut c_void = 8 as *mut c_void;

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        /// # Safety
        /// As the driver function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller keeps the contract of the driver function of this name: pointers are valid for the call, and device memory came
            // from cuMemAlloc here.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}

calls! {
    cuInit(_flags: c_uint) { SUCCESS }
    cuDeviceGetCount(count: *mut c_int) { *count = 1; SUCCESS }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) { *device = ordinal; SUCCESS }
    cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) {
        let text = b"Fake GPU\0";
        assert!(length as usize >= text.len());
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len());
        SUCCESS
    }
    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) { *context = HANDLE; SUCCESS }
    cuCtxSetCurrent(_context: *mut c_void) { SUCCESS }
    cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) { *stream = HANDLE; SUCCESS }
    cuStreamQuery(_stream: *mut c_void) { SUCCESS }
    cuStreamDestroy_v2(_stream: *mut c_void) { SUCCESS }
    cuStreamBeginCapture_v2(_stream: *mut c_void, _mode: c_int) { NOT_SUPPORTED }
    cuEventCreate(event: *mut *mut c_void, _flags: c_uint) { *event = HANDLE; SUCCESS }
    cuEventRecord(_event: *mut c_void, _stream: *mut c_void) { SUCCESS }
    cuEventElapsedTime(milliseconds: *mut f32, _start: *mut c_void, _end: *mut c_void) { *milliseconds = 1.0; SUCCESS }
    cuEventDestroy_v2(_event: *mut c_void) { SUCCESS }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        *address = libc::malloc(bytes) as u64;
        SUCCESS
    }
    cuMemFree_v2(address: u64) { libc::free(address as *mut c_void); SUCCESS }
    cuMemsetD8Async(address: u64, value: u8, bytes: usize, _stream: *mut c_void) {
        std::ptr::write_bytes(address as *mut u8, value, bytes);
        SUCCESS
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _stream: *mut c_void) {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes);
        SUCCESS
    }
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _stream: *mut c_void) {
        std::ptr::copy_nonoverlapping(from as *const u8, to.cast::<u8>(), bytes);
        SUCCESS
    }
    cuGetErrorName(_code: c_int, name: *mut *const c_char) { *name = c"CUDA_ERROR_NOT_SUPPORTED".as_ptr(); SUCCESS }
}
