//! Streams and events: the caller's, which are only borrowed, and our own.

use super::check;
use crate::error::{Error, Result};
use cudarc::driver::sys;

/// A stream handle as the caller gave it (`cudaStream_t` and `CUstream` are the same; 0, 1 and 2 are the special streams).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub usize);

/// Where in a capture a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capture {
    /// Unique to the capture sequence.
    pub id: u64,
    /// The last captured node that the stream depends on, if it is exactly one.
    pub node: Option<usize>,
}

impl Stream {
    pub(super) fn raw(self) -> sys::CUstream {
        self.0 as sys::CUstream
    }

    /// Unique among all streams of the process's life; handles are reused, ids are not.
    pub fn id(self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the caller's stream, valid by NCCL's contract.
        check(unsafe { sys::cuStreamGetId(self.raw(), &mut id) }, "cuStreamGetId (is the stream valid?)")?;
        Ok(id)
    }

    pub fn is_capturing(self) -> Result<bool> {
        use sys::CUstreamCaptureStatus as S;
        let mut status = S::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: as above.
        match unsafe { sys::cuStreamIsCapturing(self.raw(), &mut status) } {
            sys::CUresult::CUDA_SUCCESS => {}
            // Another thread captures in global mode and this is the legacy stream: the launch itself will say so.
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => return Ok(false),
            other => check(other, "cuStreamIsCapturing")?,
        }
        match status {
            S::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            S::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            S::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                Err(Error::usage("the stream's capture has been invalidated by an earlier call; end the capture and start again"))
            }
        }
    }

    /// The capture that the stream takes part in. Only for streams that are capturing.
    pub fn capture(self) -> Result<Capture> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut count) = (0, 0usize);
        let mut nodes: *const sys::CUgraphNode = std::ptr::null();
        // SAFETY: the outputs that we do not want may be NULL.
        let r = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.raw(),
                &mut status,
                &mut id,
                std::ptr::null_mut(),
                &mut nodes,
                std::ptr::null_mut(),
                &mut count,
            )
        };
        check(r, "cuStreamGetCaptureInfo")?;
        // SAFETY: the driver keeps the array until the stream's next call; `count` entries are valid.
        let node = (count == 1 && !nodes.is_null()).then(|| unsafe { *nodes } as usize);
        Ok(Capture { id, node })
    }

    /// What the stream captures next comes after `node` too.
    pub fn depend_on(self, node: usize) -> Result<()> {
        let mut nodes = [node as sys::CUgraphNode];
        let flags = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES as u32;
        // SAFETY: the node belongs to the same capture, which the caller has checked by its id.
        let r = unsafe { sys::cuStreamUpdateCaptureDependencies_v2(self.raw(), nodes.as_mut_ptr(), std::ptr::null(), 1, flags) };
        check(r, "cuStreamUpdateCaptureDependencies")
    }

    /// Waits on the host for everything enqueued so far.
    pub fn synchronize(self) -> Result<()> {
        // SAFETY: a valid stream.
        check(unsafe { sys::cuStreamSynchronize(self.raw()) }, "cuStreamSynchronize")
    }

    pub fn wait_event(self, event: &Event) -> Result<()> {
        // SAFETY: both handles are valid.
        check(unsafe { sys::cuStreamWaitEvent(self.raw(), event.0, 0) }, "cuStreamWaitEvent")
    }

    /// True when everything enqueued so far is done.
    pub fn is_done(self) -> Result<bool> {
        // SAFETY: a valid stream.
        match unsafe { sys::cuStreamQuery(self.raw()) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check(other, "cuStreamQuery").map(|()| true),
        }
    }
}

/// A non-blocking stream of ours. Not destroyed: destroying waits in some drivers, and there are few.
#[derive(Debug)]
pub struct OwnedStream(usize);

impl OwnedStream {
    pub fn new(priority: i32) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check(unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) }, "cuStreamCreateWithPriority")?;
        Ok(Self(raw as usize))
    }
    pub fn stream(&self) -> Stream {
        Stream(self.0)
    }
}

/// While it lives, this thread's calls do not disturb the captures of other threads (and may allocate under its own).
#[must_use]
pub struct RelaxedCapture(sys::CUstreamCaptureMode);

impl RelaxedCapture {
    pub fn enter() -> Result<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges a thread-local mode.
        check(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }, "cuThreadExchangeStreamCaptureMode")?;
        Ok(Self(mode))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: puts back what was there.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

/// An event without timing.
#[derive(Debug)]
pub struct Event(sys::CUevent);

// SAFETY: an event handle may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new() -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check(unsafe { sys::cuEventCreate(&mut raw, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) }, "cuEventCreate")?;
        Ok(Self(raw))
    }
    pub fn record(&self, stream: Stream) -> Result<()> {
        // SAFETY: both handles are valid.
        check(unsafe { sys::cuEventRecord(self.0, stream.raw()) }, "cuEventRecord")
    }
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: a valid event.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check(other, "cuEventQuery").map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by us; pending work is no obstacle. A failure means that the driver is gone.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
