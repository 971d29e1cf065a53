//! Puts exactly one kernel on the user's stream for an operation or a group, and keeps a communicator's launches in issue order whatever
//! streams they come on.

use super::gpu::lock;
use super::lane::LaneMemory;
use super::layout::{Command, GATE_THREADS, INLINE_OPS, MAX_LANES, MAX_OPS, OpDesc, THREADS};
use crate::cuda::{Capture, Event, LaunchStyle, OwnedStream, PinnedMemory, RelaxedCapture, Stream};
use crate::error::Result;
use std::ffi::c_void;
use std::mem::size_of;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a communicator remembers of its launches. One lock: launches of a communicator are one after the other anyway.
#[derive(Default)]
pub struct Launcher {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Uncaptured launches so far; the lane counts the finished ones.
    launches: u64,
    /// Id of the stream of the latest uncaptured launch.
    last_stream: Option<u64>,
    /// Where the latest captured launch stands in its capture.
    last_capture: Option<Capture>,
    /// A graph may hold launches of this communicator, so its memory must stay.
    captured: bool,
    buffers: Vec<Buffer>,
    /// Our own stream, on which an order kernel waits for the launches.
    drain: Option<OwnedStream>,
    /// Launches that the latest order kernel there waits for.
    drained: u64,
}

/// Descriptors of a launch that has more than fit the kernel's parameters.
struct Buffer {
    memory: PinnedMemory,
    /// Set when the launch that reads it is done; `None`: a graph may read it at any time.
    free: Option<Event>,
}

impl Launcher {
    /// Launches `ops` (at most `MAX_OPS`) as one kernel on `stream`. The caller has made the lane's context current.
    pub fn launch(&self, lane: &LaneMemory, stream: Stream, ops: &[OpDesc]) -> Result<()> {
        debug_assert!(!ops.is_empty() && ops.len() <= MAX_OPS);
        let mut state = lock(&self.state);
        let capturing = stream.is_capturing()?;
        if capturing {
            state.order_in_capture(stream)?;
        } else {
            state.order_across_streams(lane, stream)?;
        }
        let channels = ops.iter().map(|op| u32::from(op.channels)).max().unwrap_or(1);
        let mut command = Command {
            more_ops: 0,
            nops: ops.len() as u32,
            channels,
            eager: u32::from(!capturing),
            reserved: 0,
            ops: [OpDesc::default(); INLINE_OPS],
        };
        let mut used_buffer = None;
        if ops.len() <= INLINE_OPS {
            command.ops[..ops.len()].copy_from_slice(ops);
        } else {
            let index = state.buffer(capturing)?;
            let to = state.buffers[index].memory.address();
            // SAFETY: the buffer has room for MAX_OPS descriptors, and no kernel reads it now.
            unsafe { to.cast::<OpDesc>().copy_from_nonoverlapping(ops.as_ptr(), ops.len()) };
            command.more_ops = to as u64;
            used_buffer = Some(index);
        }
        let mut lane_address = lane.address();
        let mut params = [(&raw mut lane_address).cast::<c_void>(), (&raw mut command).cast::<c_void>()];
        // In graphs the programmatic edge costs more than it saves (measured.md).
        let style = if capturing { LaunchStyle::Plain } else { LaunchStyle::Overlapped };
        let gpu = &lane.gpu;
        let can_be_resident =
            !capturing && ops.len() <= INLINE_OPS && channels <= gpu.resident.blocks && lane.slot.index < MAX_LANES && lane.nranks > 1;
        let bytes = ops.iter().map(|op| op.count * u64::from(op.elem_size)).sum();
        let resident = can_be_resident && gpu.resident.place(&gpu.kernels, &gpu.executor, bytes)?;
        if let Some(network) = &lane.network {
            network.expect(capturing);
        }
        let launched = if resident {
            // SAFETY: the parameters are those of mk_gate; the lane outlives its launches.
            unsafe { gpu.kernels.gate.launch(1, GATE_THREADS, stream, style, &mut params) }
        } else {
            // SAFETY: the parameters are those of mk_inline; the lane outlives its launches, and the buffer is kept until its event.
            unsafe { gpu.kernels.inline.launch(channels, THREADS, stream, style, &mut params) }
        };
        launched.inspect_err(|_| {
            if resident {
                gpu.resident.withdraw();
            }
            if let Some(network) = &lane.network {
                network.take_back(capturing);
            }
        })?;
        if capturing {
            state.captured = true;
            state.last_capture = Some(stream.capture()?);
        } else {
            state.launches += 1;
            if let Some(Buffer { free: Some(event), .. }) = used_buffer.map(|i| &state.buffers[i]) {
                event.record(stream)?;
            }
        }
        Ok(())
    }

    /// Uncaptured launches so far.
    pub fn count(&self) -> u64 {
        lock(&self.state).launches
    }

    /// True when a graph may hold launches of this communicator.
    pub fn was_captured(&self) -> bool {
        lock(&self.state).captured
    }

    /// Waits on the host until all uncaptured launches are done, for at most `limit`. False: they are not.
    pub fn drain(&self, lane: &LaneMemory, limit: Option<Duration>) -> Result<bool> {
        let stream = {
            let mut state = lock(&self.state);
            if state.launches == 0 {
                return Ok(true);
            }
            let _relaxed = RelaxedCapture::enter()?;
            let stream = match &state.drain {
                Some(drain) => drain.stream(),
                None => state.drain.insert(OwnedStream::new(0)?).stream(),
            };
            // Whoever asks again without a launch in between asks for the same kernel.
            if state.drained != state.launches {
                state.launch_order(lane, stream)?;
                state.drained = state.launches;
            }
            stream
        };
        let start = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            let done = {
                let _relaxed = RelaxedCapture::enter()?;
                stream.is_done()?
            };
            if done {
                return Ok(true);
            }
            if limit.is_some_and(|limit| start.elapsed() >= limit) {
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}

impl State {
    /// A launch on another stream than the last one waits, on the device, until the lane has finished what was launched before.
    fn order_across_streams(&mut self, lane: &LaneMemory, stream: Stream) -> Result<()> {
        let id = stream.id()?;
        if self.last_stream != Some(id) {
            if self.last_stream.is_some() {
                self.launch_order(lane, stream)?;
            }
            self.last_stream = Some(id);
        }
        Ok(())
    }

    /// A kernel that ends when all launches so far are done. Not an event on the other stream: the caller may have destroyed that, and must
    /// not wait for what it put there since.
    fn launch_order(&self, lane: &LaneMemory, stream: Stream) -> Result<()> {
        let (mut lane_address, mut launches) = (lane.address(), self.launches);
        let mut params = [(&raw mut lane_address).cast::<c_void>(), (&raw mut launches).cast::<c_void>()];
        // SAFETY: the parameters are those of mk_order; the lane outlives its launches.
        unsafe { lane.gpu.kernels.order.launch(1, 32, stream, LaunchStyle::Plain, &mut params) }
    }

    /// Operations of one communicator that are captured on several streams of one capture stay in issue order.
    fn order_in_capture(&self, stream: Stream) -> Result<()> {
        let Some(last) = self.last_capture else { return Ok(()) };
        let now = stream.capture()?;
        match last.node {
            Some(node) if now.id == last.id && now.node != Some(node) => stream.depend_on(node),
            _ => Ok(()),
        }
    }

    /// A buffer that no launch reads.
    fn buffer(&mut self, forever: bool) -> Result<usize> {
        let _relaxed = RelaxedCapture::enter()?;
        if !forever {
            for (i, buffer) in self.buffers.iter().enumerate() {
                if let Some(event) = &buffer.free
                    && event.is_done()?
                {
                    return Ok(i);
                }
            }
        }
        let memory = PinnedMemory::new(MAX_OPS * size_of::<OpDesc>())?;
        let free = if forever { None } else { Some(Event::new()?) };
        self.buffers.push(Buffer { memory, free });
        Ok(self.buffers.len() - 1)
    }
}
