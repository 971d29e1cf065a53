//! Short names for what the tests do with the emulated driver, called as the library calls it.
#![allow(dead_code)]

use cuda::exports::{device, event, graph, memory, module, stream};
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

pub const NON_BLOCKING: u32 = 1;
pub const NOT_READY: i32 = 600;

pub fn ok(code: i32) {
    assert_eq!(code, 0, "{}", error_name(code));
}

pub fn error_name(code: i32) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the output is valid.
    if unsafe { cuda::exports::cuGetErrorName(code, &mut text) } != 0 {
        return format!("code {code}");
    }
    // SAFETY: the names are static C strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Initialises two devices once, and makes one current.
pub fn on_device(ordinal: i32) -> usize {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the other tests wait here, so nobody reads the environment.
        unsafe { std::env::set_var("MKERNEL_EMULATED_GPUS", "2") };
        // SAFETY: has no preconditions.
        ok(unsafe { cuda::exports::cuInit(0) });
    });
    let mut context = 0;
    // SAFETY: the output is valid.
    unsafe {
        ok(device::cuDevicePrimaryCtxRetain(&mut context, ordinal));
        ok(device::cuCtxSetCurrent(context));
    }
    context
}

pub fn new_stream(flags: u32) -> usize {
    let mut handle = 0;
    // SAFETY: the output is valid.
    ok(unsafe { stream::cuStreamCreate(&mut handle, flags) });
    handle
}

pub fn new_event() -> usize {
    let mut handle = 0;
    // SAFETY: the output is valid.
    ok(unsafe { event::cuEventCreate(&mut handle, 0) });
    handle
}

pub fn record(event: usize, stream: usize) {
    // SAFETY: takes handles only.
    ok(unsafe { event::cuEventRecord(event, stream) });
}

pub fn wait_event(stream: usize, event: usize) -> i32 {
    // SAFETY: takes handles only.
    unsafe { stream::cuStreamWaitEvent(stream, event, 0) }
}

pub fn sync(stream: usize) {
    // SAFETY: takes a handle only.
    ok(unsafe { stream::cuStreamSynchronize(stream) });
}

pub fn query(stream: usize) -> i32 {
    // SAFETY: takes a handle only.
    unsafe { stream::cuStreamQuery(stream) }
}

pub fn begin(stream: usize) {
    // SAFETY: takes a handle only.
    ok(unsafe { stream::cuStreamBeginCapture_v2(stream, 1) });
}

pub fn end(stream: usize) -> Result<usize, i32> {
    let mut graph = 0;
    // SAFETY: the output is valid.
    match unsafe { stream::cuStreamEndCapture(stream, &mut graph) } {
        0 => Ok(graph),
        code => Err(code),
    }
}

pub fn instantiate(graph: usize) -> usize {
    let mut executable = 0;
    // SAFETY: the output is valid.
    ok(unsafe { graph::cuGraphInstantiateWithFlags(&mut executable, graph, 0) });
    executable
}

pub fn launch_graph(executable: usize, stream: usize) {
    // SAFETY: takes handles only.
    ok(unsafe { graph::cuGraphLaunch(executable, stream) });
}

pub fn allocate(bytes: usize) -> usize {
    let mut address = 0;
    // SAFETY: the output is valid.
    ok(unsafe { memory::cuMemAlloc_v2(&mut address, bytes) });
    address
}

pub fn free(address: usize) -> i32 {
    // SAFETY: an unknown address is refused.
    unsafe { memory::cuMemFree_v2(address) }
}

pub fn fill(to: usize, word: u32, words: usize, stream: usize) {
    // SAFETY: a range that is not known is refused.
    ok(unsafe { memory::cuMemsetD32Async(to, word, words, stream) });
}

/// Reads words in the order of a stream.
pub fn read(from: usize, words: usize, stream: usize) -> Vec<u32> {
    let mut to = vec![0u32; words];
    // SAFETY: the vector has this length, and pageable memory is written before the call returns.
    ok(unsafe { memory::cuMemcpyDtoHAsync_v2(to.as_mut_ptr() as usize, from, words * 4, stream) });
    to
}

/// The kernel that adds 1 to words.
pub fn selftest() -> usize {
    let (mut loaded, mut function) = (0, 0);
    // SAFETY: the outputs are valid, the image has a byte and the name is a C string.
    unsafe {
        ok(module::cuModuleLoadData(&mut loaded, c"\x7fELF".as_ptr().cast()));
        ok(module::cuModuleGetFunction(&mut function, loaded, c"mk_selftest".as_ptr()));
    }
    function
}

pub fn add_one(function: usize, to: usize, words: u32, blocks: u32, stream: usize) {
    let params: [*const c_void; 2] = [(&raw const to).cast(), (&raw const words).cast()];
    // SAFETY: the kernel takes an address and a count.
    ok(unsafe { module::cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, params.as_ptr(), std::ptr::null()) });
}

/// Enqueues a call of a closure.
pub fn host(stream: usize, call: impl Fn() + Send + Sync + 'static) -> i32 {
    unsafe extern "C" fn trampoline(data: *mut c_void) {
        // SAFETY: `host` leaked the closure, for good: a captured one runs as often as its graph.
        let call = unsafe { &*data.cast::<Box<dyn Fn() + Send + Sync>>() };
        call();
    }
    let call: Box<Box<dyn Fn() + Send + Sync>> = Box::new(Box::new(call));
    // SAFETY: the trampoline takes what is passed with it.
    unsafe { stream::cuLaunchHostFunc(stream, Some(trampoline), Box::into_raw(call).cast()) }
}

/// Holds a stream until the sender sends or is dropped.
pub fn hold(stream: usize) -> Sender<()> {
    let (open, opened) = channel();
    let opened = std::sync::Mutex::new(opened);
    ok(host(stream, move || {
        let _ = opened.lock().unwrap().recv();
    }));
    open
}

/// Waits for something that must come; a test that would hang fails instead.
pub fn comes<T>(from: &Receiver<T>) -> T {
    from.recv_timeout(Duration::from_secs(20)).expect("this must happen, and did not within 20 seconds")
}
