//! Modules, kernels and their launch.

use crate::launch::{KernelCall, Module, Work, kernels};
use crate::result::{Code, Result, call, put};
use crate::state::{need_device, state};
use std::ffi::{CStr, c_char, c_void};

/// Whatever binary is loaded, its kernels are the library's. PTX and C source are refused: nothing here can compile them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> i32 {
    call(|| {
        if module.is_null() || image.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: an image has at least one byte.
        match unsafe { image.cast::<u8>().read() } {
            0 => return Err(Code::INVALID_IMAGE),
            b'.' | b'/' | b'\n' | b' ' => return Err(Code::NO_BINARY),
            _ => {}
        }
        let device = need_device()?;
        let mut state = state();
        let handle = state.new_handle();
        state.modules.insert(handle, Module { device });
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(module, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut usize,
    image: *const c_void,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's contract is the same; the options are the compiler's, which there is none of.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: usize) -> i32 {
    call(|| {
        let mut state = state();
        state.modules.remove(&module).ok_or(Code::INVALID_HANDLE)?;
        state.functions.retain(|_, (of, _)| *of != module);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> i32 {
    call(|| {
        if function.is_null() || name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let mut state = state();
        if !state.modules.contains_key(&module) {
            return Err(Code::INVALID_HANDLE);
        }
        let kernel = kernels().iter().position(|kernel| kernel.name() == name).ok_or(Code::NOT_FOUND)?;
        let known = state.functions.iter().find(|(_, f)| **f == (module, kernel)).map(|(&handle, _)| handle);
        let handle = known.unwrap_or_else(|| state.new_handle());
        state.functions.insert(handle, (module, kernel));
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(function, handle) }
    })
}

fn need_function(function: usize) -> Result {
    state().functions.get(&function).map(|_| ()).ok_or(Code::INVALID_HANDLE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncLoad(function: usize) -> i32 {
    call(|| need_function(function))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncIsLoaded(loaded: *mut i32, function: usize) -> i32 {
    call(|| {
        need_function(function)?;
        // SAFETY: the output is as cuda.h asks. CU_FUNCTION_LOADING_STATE_LOADED.
        unsafe { put(loaded, 1) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut i32, which: i32, function: usize) -> i32 {
    call(|| {
        need_function(function)?;
        let attribute = match which {
            0 => 1024,   // threads per block
            4 => 64,     // registers
            5 | 6 => 90, // PTX and binary version
            _ => 0,
        };
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(value, attribute) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(function: usize, _which: i32, _value: i32) -> i32 {
    call(|| need_function(function))
}

/// # Safety
/// `params` points to the kernel's arguments.
unsafe fn launch(
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    stream: usize,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Result {
    let blocks = grid.iter().try_fold(1u32, |product, &n| product.checked_mul(n)).ok_or(Code::INVALID_VALUE)?;
    let threads = block.iter().try_fold(1u32, |product, &n| product.checked_mul(n)).ok_or(Code::INVALID_VALUE)?;
    if blocks == 0 || threads == 0 || threads > 1024 {
        return Err(Code::INVALID_VALUE);
    }
    if !extra.is_null() {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut state = state();
    let &(module, kernel) = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?;
    let key = state.stream_key(stream)?;
    // A kernel runs in the context that its module was loaded in.
    if state.modules[&module].device != state.streams[&key].device {
        return Err(Code::INVALID_HANDLE);
    }
    // SAFETY: by this function's contract.
    let kernel = unsafe { KernelCall::new(kernel, blocks, params)? };
    state.submit(key, Work::Kernel(kernel)).map(|_| ())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared_bytes: u32,
    stream: usize,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> i32 {
    // SAFETY: the caller's contract is the same.
    call(|| unsafe { launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream, params, extra) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared_bytes: u32,
    stream: usize,
    params: *const *const c_void,
) -> i32 {
    // All blocks of any launch run together here.
    // SAFETY: the caller's contract is the same.
    call(|| unsafe { launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream, params, std::ptr::null()) })
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: usize,
    /// Ignored: they only loosen the order of launches, or ask for what is always so here.
    pub attributes: *const c_void,
    pub attribute_count: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: usize,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> i32 {
    call(|| {
        if config.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a configuration, and arguments as the kernel has them.
        unsafe { launch(function, (*config).grid, (*config).block, (*config).stream, params, extra) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut i32,
    function: usize,
    threads: i32,
    _shared_bytes: usize,
) -> i32 {
    call(|| {
        need_function(function)?;
        if threads <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the output is as cuda.h asks. A GPU's answer, by threads alone.
        unsafe { put(blocks, if threads > 1024 { 0 } else { (2048 / threads).min(32) }) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    function: usize,
    threads: i32,
    shared_bytes: usize,
    _flags: u32,
) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes) }
}
