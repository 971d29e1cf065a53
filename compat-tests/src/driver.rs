//! The CUDA driver calls that the checks need, each checked, with owners for what must be given back.
//!
//! Memory is not given back when its owner goes, but with the process: freeing waits for all work of the context, and where ranks are threads of
//! one context that includes a peer's operation that waits for this rank. Whoever wants that wait says `Buffer::free`.
//!
//! `open` must have succeeded before anything else here is called: cudarc panics when the driver library is missing.

use crate::outcome::{Outcome, fail};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use cudarc::driver::sys::CUstreamCaptureMode as CaptureMode;

fn check(call: &str, code: CUresult) -> Outcome {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the pointer is valid for the call.
    let known = unsafe { sys::cuGetErrorName(code, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    // SAFETY: the driver returned a static C string.
    let name = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { format!("{code:?}") };
    fail!("{call} failed: {name}")
}

/// Loads and initialises the driver; says how many devices it has.
pub fn open() -> Outcome<usize> {
    // SAFETY: only tries to open the driver library.
    if !unsafe { sys::is_culib_present() } {
        fail!("there is no CUDA driver library here; name the folder of the emulated one with --emulator");
    }
    let mut count = 0;
    // SAFETY: the driver is there, and the pointer is valid for the call.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
    }
    Ok(count as usize)
}

pub fn device_name(ordinal: usize) -> Outcome<String> {
    let mut device = 0;
    let mut name = [0; 128];
    // SAFETY: every pointer is valid for its call, and the name is given with one byte less than it has, so that it ends with 0.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device))?;
        Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// Makes the primary context of a device current on the calling thread. It is kept for the process's life.
pub fn bind(ordinal: usize) -> Outcome {
    let mut device = 0;
    let mut context = std::ptr::null_mut();
    // SAFETY: every pointer is valid for its call, and the context is the one just retained.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
        check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))
    }
}

/// Waits for all work of the current context.
pub fn synchronize_context() -> Outcome {
    // SAFETY: takes nothing.
    check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
}

/// Free bytes of device memory.
pub fn free_memory() -> Outcome<usize> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are valid for the call.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(free)
}

/// Device memory, kept for the process's life unless it is freed by name.
pub struct Buffer {
    address: u64,
    bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Outcome<Self> {
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        check(&format!("cuMemAlloc of {bytes} bytes"), unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) })?;
        Ok(Self { address, bytes })
    }

    /// The whole buffer.
    pub fn all(&self) -> Span {
        Span { address: self.address, bytes: self.bytes }
    }

    /// `bytes` bytes from `offset`.
    pub fn span(&self, offset: usize, bytes: usize) -> Span {
        self.all().part(offset, bytes)
    }
}

impl Buffer {
    /// Gives the memory back; waits for all work of the context.
    pub fn free(self) -> Outcome {
        // SAFETY: the address came from cuMemAlloc, and the driver waits for work that uses it.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) })
    }
}

/// A stretch of device memory. It does not own it: whoever holds the buffer keeps it until the streams have passed its uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub address: u64,
    pub bytes: usize,
}

impl Span {
    pub fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes from {offset} of a stretch of {}", self.bytes);
        Self { address: self.address + offset as u64, bytes }
    }

    pub fn as_ptr(self) -> *const c_void {
        self.address as *const c_void
    }

    pub fn as_mut_ptr(self) -> *mut c_void {
        self.address as *mut c_void
    }
}

/// Page-locked host memory of 32-bit words, kept for the process's life: copies to and from it never make the host wait.
pub struct Pinned {
    base: *mut u32,
    words: usize,
}

impl Pinned {
    pub fn new(words: usize) -> Outcome<Self> {
        let mut base: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut base, words.max(1) * 4, 0) })?;
        // SAFETY: the memory was just allocated with this size. Fresh memory must not be read before it is written.
        unsafe { base.cast::<u32>().write_bytes(0, words) };
        Ok(Self { base: base.cast(), words })
    }

    /// For the host, when no copy is under way.
    pub fn words(&mut self) -> &mut [u32] {
        // SAFETY: the memory has this many words and lives as long as self; the caller's `&mut` keeps other host access away.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.words) }
    }
}

/// A stream, or one of the special handles that are not created.
pub struct Stream {
    raw: sys::CUstream,
    created: bool,
}

impl Stream {
    /// A stream that does not synchronise with the legacy default stream.
    pub fn new() -> Outcome<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) })?;
        Ok(Self { raw, created: true })
    }

    /// The streams 0 and 1 (legacy default) and 2 (per-thread default).
    pub fn special(handle: usize) -> Self {
        Self { raw: handle as sys::CUstream, created: false }
    }

    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    pub fn synchronize(&self) -> Outcome {
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Waits for everything enqueued so far, for a limited time. Says whether it has finished.
    pub fn finishes_within(&self, limit: Duration) -> Outcome<bool> {
        let begin = Instant::now();
        loop {
            // SAFETY: the stream is live.
            match unsafe { sys::cuStreamQuery(self.raw) } {
                CUresult::CUDA_ERROR_NOT_READY if begin.elapsed() > limit => return Ok(false),
                CUresult::CUDA_ERROR_NOT_READY => std::thread::sleep(Duration::from_micros(200)),
                code => return check("cuStreamQuery", code).map(|()| true),
            }
        }
    }

    pub fn fill(&self, to: Span, value: u8) -> Outcome {
        if to.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the span is device memory that its owner keeps.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to.address, value, to.bytes, self.raw) })
    }

    /// Copies host memory to the device. The bytes may be dropped once the stream has passed this.
    pub fn upload(&self, to: Span, from: &[u8]) -> Outcome {
        assert!(from.len() <= to.bytes);
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the span is device memory that its owner keeps, and the slice is readable for the call; pageable memory is staged before the
        // call returns, and callers keep it until they have synchronised.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, from.as_ptr().cast(), from.len(), self.raw) })
    }

    /// Copies device memory to the host and waits for it.
    ///
    /// The stream is waited for first: a copy to pageable memory that waits for a kernel holds the context's lock meanwhile, and where ranks are
    /// threads of one context, a peer that still has to instantiate its graph needs that lock to launch what the kernel waits for.
    pub fn download(&self, from: Span, to: &mut [u8]) -> Outcome {
        assert!(to.len() <= from.bytes);
        self.synchronize()?;
        if !to.is_empty() {
            // SAFETY: the span is device memory that its owner keeps; the slice is exclusively ours until the wait below is over.
            check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.address, to.len(), self.raw) })?;
        }
        self.synchronize()
    }

    /// Copies page-locked words to the device without waiting; they stay untouched until the stream has passed this.
    pub fn upload_pinned(&self, to: Span, from: &Pinned) -> Outcome {
        let bytes = (from.words * 4).min(to.bytes);
        // SAFETY: both stretches are live with at least this many bytes.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, from.base.cast(), bytes, self.raw) })
    }

    /// Copies to page-locked words without waiting; they are valid once the stream has passed this.
    pub fn download_pinned(&self, from: Span, to: &Pinned) -> Outcome {
        let bytes = (to.words * 4).min(from.bytes);
        // SAFETY: both stretches are live with at least this many bytes.
        check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(to.base.cast(), from.address, bytes, self.raw) })
    }

    pub fn copy(&self, to: Span, from: Span) -> Outcome {
        assert_eq!(to.bytes, from.bytes);
        if to.bytes == 0 {
            return Ok(());
        }
        // SAFETY: both spans are device memory that their owners keep.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to.address, from.address, to.bytes, self.raw) })
    }

    pub fn wait(&self, event: &Event) -> Outcome {
        // SAFETY: both are live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.0, 0) })
    }

    /// Holds the stream until the gate is opened (or ten seconds have passed, so that a failed check cannot hold it for ever).
    pub fn hold(&self, gate: &Gate) -> Outcome {
        unsafe extern "C" fn wait(open: *mut c_void) {
            // SAFETY: `hold` leaked one count for this call, which takes it back.
            let open = unsafe { Arc::from_raw(open.cast_const().cast::<AtomicBool>()) };
            let begin = Instant::now();
            while !open.load(Ordering::Acquire) && begin.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let open = Arc::into_raw(gate.0.clone());
        // SAFETY: the stream is live, and the function takes the count that was leaked for it, once.
        check("cuLaunchHostFunc", unsafe { sys::cuLaunchHostFunc(self.raw, Some(wait), open.cast_mut().cast()) })
    }

    /// Records what `work` enqueues into a graph; nothing runs yet.
    pub fn capture(&self, mode: CaptureMode, work: impl FnOnce() -> Outcome) -> Outcome<Graph> {
        // SAFETY: the stream is live and not capturing.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })?;
        let recorded = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture was begun above by this thread; it must end even if the work failed.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) });
        recorded.and(ended)?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is the one just captured; it is not needed once instantiated.
        unsafe {
            let made = check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            check("cuGraphDestroy", sys::cuGraphDestroy(graph))?;
            made?;
        }
        Ok(Graph(executable))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.created {
            // SAFETY: the stream is live; the driver lets pending work finish.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// Holds streams (`Stream::hold`) until it is opened.
#[derive(Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Gate {
    /// A check that fails midway must not leave its streams held.
    fn drop(&mut self) {
        self.open();
    }
}

/// A captured graph, ready to launch.
pub struct Graph(sys::CUgraphExec);

impl Graph {
    pub fn launch(&self, stream: &Stream) -> Outcome {
        // SAFETY: both are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream.raw) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is live; the driver keeps what running launches need.
        unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// A point in a stream.
pub struct Event(sys::CUevent);

impl Event {
    pub fn new() -> Outcome<Self> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) })?;
        Ok(Self(event))
    }

    pub fn record(&self, stream: &Stream) -> Outcome {
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.raw) })
    }

    pub fn synchronize(&self) -> Outcome {
        // SAFETY: the event is live.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is live.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// A kernel of the checks' own that stores one word: the "first launch of a new kernel" that must not wait for a resident one.
pub struct Kernel(sys::CUfunction);

/// Compiled by the driver, so that this program needs no nvcc.
const STORE_WORD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry store_word(.param .u64 to, .param .u32 value)\n{\n\
    .reg .b64 %a; .reg .b32 %v;\nld.param.u64 %a, [to];\nld.param.u32 %v, [value];\ncvta.to.global.u64 %a, %a;\nst.global.u32 [%a], %v;\nret;\n}\n\0";

impl Kernel {
    /// `None` where the driver compiles no PTX (the emulated one).
    pub fn load() -> Outcome<Option<Self>> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call and the text ends with a zero byte.
        if unsafe { sys::cuModuleLoadData(&mut module, STORE_WORD.as_ptr().cast()) } != CUresult::CUDA_SUCCESS {
            return Ok(None);
        }
        let mut function = std::ptr::null_mut();
        // SAFETY: the module was just loaded, and the name is a C string.
        check("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&mut function, module, c"store_word".as_ptr()) })?;
        Ok(Some(Self(function)))
    }

    /// Stores `value` at `to` on the stream.
    pub fn launch(&self, stream: &Stream, to: Span, value: u32) -> Outcome {
        let (mut address, mut value) = (to.address, value);
        let mut parameters: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut value).cast()];
        // SAFETY: the parameters have the kernel's types and are read during the call; the span is device memory that its owner keeps.
        check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(self.0, 1, 1, 1, 1, 1, 1, 0, stream.raw, parameters.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}
