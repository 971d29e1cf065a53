//! One rank at work: its communicator, stream and buffers, the operations it enqueues, and their times.

use super::board::Board;
use super::device::{self, Event, Graph, Stream};
use super::expected;
use super::nccl::{Call, Communicator, Nccl, Registration};
use super::operation::{Layout, RedOp};
use super::options::Options;
use super::run::{Case, Plan};
use super::{Error, Result};
use std::time::Duration;

/// Bytes behind each slice that no operation may touch.
pub const GUARD: usize = 64;
/// Up to this many bytes a check round runs `BURST` operations back to back, each on a slice of its own.
const BURST_BYTES: usize = 64 << 10;
const BURST: usize = 8;

/// Slices that a message of so many bytes is repeated on.
pub fn slices(bytes: usize) -> usize {
    if bytes <= BURST_BYTES { BURST } else { 1 }
}

/// Bytes from one slice to the next.
pub fn stride(bytes: usize) -> usize {
    (bytes + GUARD).next_multiple_of(256)
}

/// One rank at work. On failure it is simply dropped: the communicator aborts, and the memory goes with the process.
pub struct Worker<'a> {
    plan: &'a Plan,
    pub(super) board: Board,
    nccl: &'a Nccl,
    communicator: Communicator<'a>,
    pub(super) stream: Stream,
    start: Event,
    stop: Event,
    send: u64,
    recv: u64,
    registrations: Vec<Registration>,
    /// Wrong elements that have been told in detail.
    pub(super) told: u32,
}

impl<'a> Worker<'a> {
    /// A worker whose buffers hold messages of up to `largest` bytes.
    pub fn new(plan: &'a Plan, board: Board, nccl: &'a Nccl, communicator: Communicator<'a>, largest: usize) -> Result<Self> {
        let bytes = stride(largest).max(BURST * stride(largest.min(BURST_BYTES)));
        let register = plan.options.register == 1;
        let allocate = || if register { nccl.allocate(bytes) } else { device::allocate(bytes) };
        let (send, recv) = (allocate()?, allocate()?);
        let mut registrations = Vec::new();
        if register {
            registrations.push(communicator.register(send, bytes)?);
            registrations.push(communicator.register(recv, bytes)?);
        }
        let (stream, start, stop) = (Stream::new()?, Event::new()?, Event::new()?);
        let worker = Self { plan, board, nccl, communicator, stream, start, stop, send, recv, registrations, told: 0 };
        // SAFETY: both are allocations of this size.
        unsafe {
            worker.stream.fill(send, 0, bytes)?;
            worker.stream.fill(recv, 0, bytes)?;
        }
        worker.wait()?;
        Ok(worker)
    }

    /// Gives everything back.
    pub fn close(self) -> Result<()> {
        self.wait()?;
        for registration in self.registrations {
            self.communicator.deregister(registration)?;
        }
        self.communicator.destroy()?;
        for address in [self.send, self.recv] {
            // SAFETY: `new` allocated it in the same way, and with the communicator gone nobody else can reach it.
            unsafe { if self.plan.options.register == 1 { self.nccl.free(address) } else { device::free(address) } }?;
        }
        Ok(())
    }

    pub fn options(&self) -> &'a Options {
        &self.plan.options
    }

    pub fn rank(&self) -> usize {
        self.communicator.rank
    }

    pub fn ranks(&self) -> usize {
        self.communicator.ranks
    }

    pub fn layout(&self, case: &Case) -> Layout {
        case.operation.layout(case.elements, self.rank(), self.ranks())
    }

    pub fn progress(&self, case: &Case, in_place: bool, phase: &str) {
        let place = if in_place { "in place" } else { "out of place" };
        self.board.progress(self.rank(), &format!("{}, {place}, {phase}", case.describe()));
    }

    /// The operator of a row, to be given back with `release_operator`.
    pub fn operator(&self, case: &Case) -> Result<i32> {
        let redop = if case.operation.reduces() { case.redop } else { RedOp::Sum };
        self.communicator.operator(redop, case.dtype, expected::premultiplier(case.dtype, &case.inputs, self.rank()))
    }

    pub fn release_operator(&self, case: &Case, operator: i32) -> Result<()> {
        if case.operation.reduces() { self.communicator.release_operator(case.redop, operator) } else { Ok(()) }
    }

    /// Device addresses of the send part, the receive part, and the whole output slice.
    pub fn addresses(&self, case: &Case, in_place: bool, slice: usize) -> (u64, u64, u64) {
        let layout = self.layout(case);
        let element = case.dtype.size();
        let offset = (slice * stride(layout.span() * element)) as u64;
        let (send, recv) = (self.send + offset, self.recv + offset);
        if in_place {
            (recv + (layout.send_offset * element) as u64, recv + (layout.recv_offset * element) as u64, recv)
        } else {
            (send, recv, recv)
        }
    }

    /// Enqueues the operation on one slice.
    pub fn enqueue(&self, case: &Case, operator: i32, in_place: bool, slice: usize) -> Result<()> {
        let (send, recv, _) = self.addresses(case, in_place, slice);
        let (operation, dtype, root, count) = (case.operation, case.dtype, case.root, self.layout(case).count);
        let call = Call { operation, send, recv, count, dtype, redop: operator, root };
        // SAFETY: `new` made the buffers large enough for every slice of every row, and they outlive the stream's work.
        unsafe { self.communicator.enqueue(&call, self.stream.raw()) }
    }

    /// Waits for the stream, with an eye on the library's own errors and on the other ranks.
    pub fn wait(&self) -> Result<()> {
        let mut polls = 0u32;
        while !self.stream.finished()? {
            polls += 1;
            if polls < 200 {
                std::thread::yield_now();
            } else {
                self.board.check()?;
                self.communicator.check_async()?;
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        self.communicator.check_async()?;
        self.board.step(self.rank());
        Ok(())
    }

    /// Runs the timed iterations once; microseconds per operation on this rank, by the GPU's clock.
    pub fn time(&self, case: &Case, operator: i32, in_place: bool) -> Result<f64> {
        self.progress(case, in_place, "timed iterations");
        let options = self.options();
        let slices = slices(self.layout(case).span() * case.dtype.size());
        let iterations = options.iterations.max(1);
        let iterate = |count: u32| -> Result<()> {
            for i in 0..count as usize {
                let one = || self.enqueue(case, operator, in_place, i % slices);
                if options.aggregate > 1 {
                    self.communicator.group(|| (0..options.aggregate).try_for_each(|_| one()))?;
                } else {
                    one()?;
                }
            }
            Ok(())
        };
        let graph = if options.graph_launches > 0 { Some(self.stream.capture(|| iterate(iterations))?) } else { None };
        self.board.barrier(self.rank())?;
        // The last warm-up also aligns the ranks: the clock starts when this rank's part of it has ended.
        match &graph {
            Some(graph) if options.warmup > 0 => graph.launch(&self.stream)?,
            Some(_) => {}
            None => iterate(options.warmup)?,
        }
        self.start.record(&self.stream)?;
        match &graph {
            Some(graph) => (0..options.graph_launches).try_for_each(|_| graph.launch(&self.stream))?,
            None => iterate(iterations)?,
        }
        self.stop.record(&self.stream)?;
        self.wait()?;
        let operations = f64::from(iterations) * f64::from(options.aggregate.max(1)) * f64::from(options.graph_launches.max(1));
        Ok(self.stop.microseconds_since(&self.start)? / operations)
    }

    /// A graph of one operation on each slice, for check rounds in graph mode.
    pub fn capture_burst(&self, case: &Case, operator: i32, in_place: bool, slices: usize) -> Result<Graph> {
        self.stream.capture(|| (0..slices).try_for_each(|slice| self.enqueue(case, operator, in_place, slice)))
    }

    /// Brings the ranks' figures together: the median over the cycles of the slowest rank's time, and all wrong elements.
    pub fn gather(&self, cycles: &[f64], wrong: u64) -> Result<(f64, u64)> {
        let mut slowest = Vec::with_capacity(cycles.len());
        let mut all_wrong = 0;
        for time in cycles {
            self.board.report(self.rank(), *time, wrong);
            self.board.barrier(self.rank())?;
            let (time, wrong) = self.board.figures();
            self.board.barrier(self.rank())?;
            slowest.push(time);
            all_wrong = wrong;
        }
        slowest.sort_by(f64::total_cmp);
        let middle = slowest.len() / 2;
        let median = match slowest.get(middle) {
            Some(upper) if slowest.len().is_multiple_of(2) => (slowest[middle - 1] + upper) / 2.0,
            Some(middle) => *middle,
            None => return Err(Error::failed("no cycle was timed")),
        };
        Ok((median, all_wrong))
    }
}
