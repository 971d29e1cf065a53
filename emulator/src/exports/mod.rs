//! The driver's C interface. Each function checks its arguments and hands over to the module that does the work.
//!
//! Enumerations are plain integers here: a caller may pass any value. Handles are looked up, never dereferenced.
// Every function here has the contract of its namesake in cuda.h: outputs are NULL or valid for a write, inputs are readable.
#![allow(clippy::missing_safety_doc)]

pub mod device;
pub mod event;
pub mod graph;
pub mod memory;
pub mod module;
pub mod stream;

use crate::result::{Code, describe, put, put_if, raw};
use std::ffi::{CStr, c_char, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: u32) -> i32 {
    raw(|| if flags == 0 { crate::state::initialise() } else { Err(Code::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    raw(|| unsafe { put(version, 13000) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: i32, text: *mut *const c_char) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    raw(|| unsafe { put_text(text, describe(error).map(|(name, _)| name)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: i32, text: *mut *const c_char) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    raw(|| unsafe { put_text(text, describe(error).map(|(_, words)| words)) })
}

/// # Safety
/// `to` is NULL or valid for a write.
unsafe fn put_text(to: *mut *const c_char, text: Option<&'static CStr>) -> crate::result::Result {
    // SAFETY: by this function's contract.
    unsafe { put(to, text.map_or(std::ptr::null(), CStr::as_ptr))? };
    text.map(|_| ()).ok_or(Code::INVALID_VALUE)
}

/// Finds a function by the name that cuda.h's users write: without a version, which the caller's CUDA version decides.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    _flags: u64,
    status: *mut i32,
) -> i32 {
    raw(|| {
        if name.is_null() || function.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        // The only functions of ours whose newest form came after CUDA 12.0, and one whose second form cuda.h does not rename to.
        let suffixes: &[&str] = match name {
            b"cuStreamGetCaptureInfo" | b"cuStreamUpdateCaptureDependencies" if version < 12030 => &["_v2", ""],
            b"cuGraphInstantiate" if version >= 12000 => &["WithFlags"],
            _ => &["_v3", "_v2", ""],
        };
        let suffixes = if name == b"cuStreamUpdateCaptureDependencies" && version < 12030 { &[""] } else { suffixes };
        let wanted = |entry: &str| suffixes.iter().position(|suffix| entry.as_bytes().strip_prefix(name) == Some(suffix.as_bytes()));
        let found = FUNCTIONS.iter().filter_map(|f| Some((wanted(f.name)?, f.address))).min_by_key(|(order, _)| *order);
        // SAFETY: both outputs are as cuda.h asks. 1: the symbol was not found.
        unsafe {
            put_if(status, i32::from(found.is_none()));
            put(function, found.map_or(std::ptr::null_mut(), |(_, address)| address.cast_mut()))?;
        }
        found.map(|_| ()).ok_or(Code::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: i32, flags: u64) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuGetProcAddress_v2(name, function, version, flags, std::ptr::null_mut()) }
}

/// An exported function.
pub struct Function {
    pub name: &'static str,
    address: *const c_void,
}

// SAFETY: the addresses are those of functions.
unsafe impl Sync for Function {}

macro_rules! functions {
    ($($module:ident { $($name:ident)* })*) => {
        &[$($(Function { name: stringify!($name), address: $module::$name as *const c_void }),*),*]
    };
}

use self as root;

/// All functions that this driver has.
pub static FUNCTIONS: &[Function] = functions! {
    root { cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString cuGetProcAddress cuGetProcAddress_v2 }
    device {
        cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceGetAttribute cuDeviceTotalMem_v2
        cuDeviceGetPCIBusId cuDeviceGetByPCIBusId cuDeviceCanAccessPeer cuDeviceGetP2PAttribute
        cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxGetState
        cuCtxGetCurrent cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxGetDevice cuCtxSynchronize cuCtxGetApiVersion
        cuCtxGetStreamPriorityRange cuCtxEnablePeerAccess cuCtxDisablePeerAccess
    }
    memory {
        cuMemAlloc_v2 cuMemFree_v2 cuMemHostAlloc cuMemAllocHost_v2 cuMemFreeHost cuMemHostGetDevicePointer_v2 cuMemHostRegister_v2
        cuMemHostUnregister cuMemGetInfo_v2 cuMemGetAddressRange_v2 cuPointerGetAttribute
        cuIpcGetMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle
        cuMemcpy cuMemcpyAsync cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2
        cuMemsetD8_v2 cuMemsetD16_v2 cuMemsetD32_v2 cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async
    }
    stream {
        cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamGetId cuStreamGetFlags cuStreamGetPriority cuStreamGetCtx
        cuStreamGetDevice cuStreamQuery cuStreamSynchronize cuStreamWaitEvent cuLaunchHostFunc
        cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2 cuStreamWriteValue64_v2
        cuStreamBeginCapture_v2 cuStreamEndCapture cuStreamIsCapturing cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v3
        cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2 cuThreadExchangeStreamCaptureMode
    }
    event {
        cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventRecordWithFlags cuEventQuery cuEventSynchronize cuEventElapsedTime
        cuEventElapsedTime_v2
    }
    module {
        cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction cuFuncLoad cuFuncIsLoaded cuFuncGetAttribute cuFuncSetAttribute
        cuLaunchKernel cuLaunchCooperativeKernel cuLaunchKernelEx cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    }
    graph {
        cuGraphCreate cuGraphDestroy cuGraphClone cuGraphGetNodes cuGraphNodeGetType cuGraphInstantiate cuGraphInstantiate_v2
        cuGraphInstantiateWithFlags cuGraphLaunch cuGraphExecDestroy cuGraphRetainUserObject cuGraphReleaseUserObject
        cuUserObjectCreate cuUserObjectRetain cuUserObjectRelease
    }
};
