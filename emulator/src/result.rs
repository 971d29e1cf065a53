//! The driver's result codes, and the way from our functions to them.

use std::ffi::CStr;

/// `CUresult`. Anything but 0 is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub i32);

pub type Result<T = ()> = std::result::Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal, $cuda:literal, $words:literal;)*) => {
        impl Code {
            $(pub const $name: Code = Code($value);)*
        }
        const NAMES: &[(i32, &CStr, &CStr)] = &[(0, c"CUDA_SUCCESS", c"no error"), $(($value, $cuda, $words)),*];
    };
}

codes! {
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error (cuInit not called, or called before a fork)";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_IMAGE = 200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    NO_BINARY = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"the emulated GPU runs no kernels but mkernel's own";
    ILLEGAL_STATE = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    PEER_ALREADY_ENABLED = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    PEER_NOT_ENABLED = 705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled";
    HOST_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped";
    HOST_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    CAPTURE_UNSUPPORTED = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"operation would result in a merge of separate capture sequences";
    CAPTURE_UNMATCHED = 903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = 904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream";
    CAPTURE_IMPLICIT = 906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = 908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"attempt to terminate a thread-local capture sequence from another thread";
}

/// Name and words of a result code.
pub fn describe(code: i32) -> Option<(&'static CStr, &'static CStr)> {
    NAMES.iter().find(|entry| entry.0 == code).map(|&(_, name, words)| (name, words))
}

/// Runs the body of a driver function that needs an initialised driver.
pub fn call(body: impl FnOnce() -> Result) -> i32 {
    raw(|| {
        crate::state::ready()?;
        body()
    })
}

/// Runs the body of a driver function.
pub fn raw(body: impl FnOnce() -> Result) -> i32 {
    match body() {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

/// Writes an output that the caller must name.
///
/// # Safety
/// `to` is NULL or valid for a write.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes an output that the caller may leave out.
///
/// # Safety
/// `to` is NULL or valid for a write.
pub unsafe fn put_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: by this function's contract.
        unsafe { to.write(value) };
    }
}
