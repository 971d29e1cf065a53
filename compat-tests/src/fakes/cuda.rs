//! A CUDA driver with one GPU in host memory whose streams run at once: what the matrix calls, so that detects.rs needs neither a GPU nor the
//! emulator. Device addresses are host addresses. A capture holds what nccl.rs records.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const LAUNCH_FAILED: c_int = 719;
/// Any non-null handle: nothing is behind it.
const HANDLE: *mut c_void = 8 as *mut c_void;

/// A recorded call: a function and its argument.
type Recorded = (unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void);

thread_local! {
    /// What this thread's capture holds: every rank has a thread and captures on one stream at a time.
    static CAPTURE: RefCell<Option<Vec<Recorded>>> = const { RefCell::new(None) };
}

/// Called by nccl.rs with an operation: 1 if a capture has taken it, 0 if it must run now. What is recorded is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaRecord(run: unsafe extern "C" fn(*mut c_void) -> c_int, argument: *mut c_void) -> c_int {
    CAPTURE.with_borrow_mut(|capture| {
        capture.as_mut().map_or(0, |recorded| {
            recorded.push((run, argument));
            1
        })
    })
}

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
    cuStreamSynchronize(_stream: *mut c_void) { SUCCESS }
    cuStreamDestroy_v2(_stream: *mut c_void) { SUCCESS }
    cuStreamBeginCapture_v2(_stream: *mut c_void, _mode: c_int) { CAPTURE.set(Some(Vec::new())); SUCCESS }
    cuStreamEndCapture(_stream: *mut c_void, graph: *mut *mut c_void) {
        let Some(recorded) = CAPTURE.take() else { return INVALID_VALUE };
        *graph = Box::into_raw(Box::new(recorded)).cast();
        SUCCESS
    }
    cuGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, _flags: u64) {
        *executable = Box::into_raw(Box::new((*graph.cast::<Vec<Recorded>>()).clone())).cast();
        SUCCESS
    }
    cuGraphLaunch(executable: *mut c_void, _stream: *mut c_void) {
        for (run, argument) in &*executable.cast::<Vec<Recorded>>() {
            if run(*argument) != 0 {
                return LAUNCH_FAILED;
            }
        }
        SUCCESS
    }
    cuGraphExecDestroy(executable: *mut c_void) { drop(Box::from_raw(executable.cast::<Vec<Recorded>>())); SUCCESS }
    cuGraphDestroy(graph: *mut c_void) { drop(Box::from_raw(graph.cast::<Vec<Recorded>>())); SUCCESS }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        // As the driver aligns: the matrix counts on it for its unaligned cases.
        *address = libc::aligned_alloc(256, bytes.next_multiple_of(256)) as u64;
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
    cuGetErrorName(_code: c_int, name: *mut *const c_char) { *name = c"CUDA_ERROR_FAKE".as_ptr(); SUCCESS }
}
