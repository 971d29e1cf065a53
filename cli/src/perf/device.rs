//! The CUDA driver calls of a run, each checked, with an owner for what must be given back.

use super::{Error, Result};
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use std::ffi::{CStr, c_void};

/// Turns a driver result into an error that names the call.
fn check(call: &str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: the pointer is valid for the call.
    let known = unsafe { sys::cuGetErrorName(code, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    // SAFETY: the driver returned a static C string.
    let name = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { format!("{code:?}") };
    Err(Error::Failed(format!("{call} failed: {name}")))
}

/// The GPUs that this process may use: how many, and the first one's name. `None` if there is no driver or no GPU.
///
/// Initialises CUDA, so a process that means to fork asks through a child of its own (`emulated::probe`).
pub fn present() -> Option<(usize, String)> {
    // SAFETY: only tries to open the driver library. It must be asked first: cudarc panics when the library is missing.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let mut count = 0;
    let mut device = 0;
    let mut name = [0 as std::ffi::c_char; 128];
    // SAFETY: the driver is there; every pointer is valid for its call, and the name is given with its length.
    unsafe {
        check("cuInit", sys::cuInit(0)).ok()?;
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count)).ok()?;
        if count < 1 {
            return None;
        }
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, 0)).ok()?;
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device)).ok()?;
    }
    // SAFETY: the last byte was never written and is 0.
    Some((count as usize, unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()))
}

/// Makes the primary context of a device current on the calling thread. It is kept for the process's life.
pub fn bind(ordinal: usize) -> Result<()> {
    let mut device = 0;
    let mut context = std::ptr::null_mut();
    // SAFETY: every pointer is valid for its call, and the context is the one just retained.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
        check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))
    }
}

/// A stream that does not synchronise with the legacy default stream.
pub struct Stream(sys::CUstream);

impl Stream {
    pub fn new() -> Result<Self> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) })?;
        Ok(Self(stream))
    }

    pub fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Whether everything enqueued so far has finished.
    pub fn finished(&self) -> Result<bool> {
        // SAFETY: the stream is live.
        match unsafe { sys::cuStreamQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Fills device memory with one byte value.
    ///
    /// # Safety
    /// `address` is device memory of at least `bytes` bytes until the stream has passed this.
    pub unsafe fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, value, bytes, self.0) })
    }

    /// # Safety
    /// `address` is device memory with room for `bytes`, and `bytes` stays unchanged until the stream has passed this.
    pub unsafe fn upload(&self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), self.0) })
    }

    /// # Safety
    /// `address` is device memory of `bytes`' length, and nobody touches `bytes` until the stream has passed this.
    pub unsafe fn download(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast::<c_void>(), address, bytes.len(), self.0) })
    }

    /// Records what `work` enqueues into a graph; nothing runs yet.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live and not capturing.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) })?;
        let recorded = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture was begun above by this thread; it must end even if the work failed.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.0, &mut graph) });
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
        // SAFETY: the stream is live; the driver lets pending work finish.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A captured graph, ready to launch.
pub struct Graph(sys::CUgraphExec);

impl Graph {
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is live; the driver keeps what running launches need.
        unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// A point in a stream whose time the GPU records.
pub struct Event(sys::CUevent);

impl Event {
    pub fn new() -> Result<Self> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Self(event))
    }

    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.0) })
    }

    /// Microseconds from `earlier` to this; both must have passed.
    pub fn microseconds_since(&self, earlier: &Self) -> Result<f64> {
        // cudarc knows only the second version here, which drivers before CUDA 12.8 lack; the first one is in all of them.
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        let mut milliseconds = 0f32;
        // SAFETY: the type is that of cuda.h; both events are live and the pointer is valid for the call.
        let code = unsafe {
            let elapsed = sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0");
            let elapsed = elapsed.map_err(|error| Error::failed(format!("the CUDA driver has no cuEventElapsedTime: {error}")))?;
            elapsed(&mut milliseconds, earlier.0, self.0)
        };
        check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is live.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

pub fn allocate(bytes: usize) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the pointer is valid for the call.
    check(&format!("cuMemAlloc of {bytes} bytes"), unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
    Ok(address)
}

/// # Safety
/// `address` came from `allocate`, and nothing uses it any more.
pub unsafe fn free(address: u64) -> Result<()> {
    // SAFETY: the caller's promise.
    check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
}
