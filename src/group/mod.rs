//! Groups: everything between `ncclGroupStart` and the outermost `ncclGroupEnd` of one thread. An operation outside a group is a group of
//! one. The outermost end first runs communicator jobs (init, split), then plans and launches the operations, communicator by communicator:
//! collectives in issue order, then all sends and receives at once.

mod jobs;
mod order;

pub use jobs::{run_bystander, run_job};

use crate::comm::{Communicator, Operation, Ready, Status};
use crate::cuda::{Event, Stream};
use crate::error::{Error, Result};
use crate::executor::layout::{MAX_OPS, OpDesc};
use crate::planner::{self, Redop};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// What a thread has collected since its outermost start.
#[derive(Default)]
struct Group {
    depth: u32,
    operations: Vec<Pending>,
    jobs: Vec<jobs::Job>,
    first_error: Option<Error>,
}

struct Pending {
    comm: Arc<Communicator>,
    op: Operation,
    redop: Redop,
}

pub fn start() -> Result<()> {
    GROUP.with_borrow_mut(|g| g.depth += 1);
    Ok(())
}

/// Ends the innermost group; the outermost end does the work. Returns the first error of the group, and then nothing was enqueued.
pub fn end() -> Result<Status> {
    let Some(group) = close("ncclGroupEnd")? else { return Ok(Status::Done) };
    if let Some(error) = group.first_error {
        jobs::cancel(group.jobs, &error);
        return Err(error);
    }
    let status = jobs::run_all(group.jobs)?;
    launch_all(group.operations)?;
    Ok(status)
}

/// `ncclGroupSimulateEnd`: closes the group without running it and returns the estimated time in microseconds.
pub fn simulate_end() -> Result<f32> {
    let Some(group) = close("ncclGroupSimulateEnd")? else { return Ok(0.0) };
    if let Some(error) = group.first_error {
        jobs::cancel(group.jobs, &error);
        return Err(error);
    }
    jobs::cancel(group.jobs, &Error::usage("the group was simulated, not run"));
    let mut total = 0.0;
    for pending in &group.operations {
        let nranks = pending.comm.ready()?.nranks as u32;
        total += planner::estimate_us(&pending.comm.plan(&pending.op, pending.redop)?, nranks);
    }
    Ok(total)
}

/// Leaves one level. The collected group when it was the outermost.
fn close(what: &str) -> Result<Option<Group>> {
    GROUP.with_borrow_mut(|g| match g.depth {
        0 => Err(Error::usage(format!("{what}: not in a group: there was no matching ncclGroupStart on this thread"))),
        1 => Ok(Some(std::mem::take(g))),
        _ => {
            g.depth -= 1;
            Ok(None)
        }
    })
}

/// Remembers an error for the end of this thread's group, if one is open: then nothing of the group runs.
pub fn note_error(error: &Error) {
    GROUP.with_borrow_mut(|g| {
        if g.depth > 0 {
            g.first_error.get_or_insert_with(|| error.clone());
        }
    });
}

/// One operation: launched at once outside a group, kept for the end inside one.
pub fn enqueue(comm: &Arc<Communicator>, op: Operation) -> Result<Status> {
    GROUP.with_borrow_mut(|g| {
        let checked = comm.check(&op);
        if g.depth == 0 {
            return launch_one(comm, &op, checked?);
        }
        // The ABI layer notes the error for the group.
        g.operations.push(Pending { comm: comm.clone(), op, redop: checked? });
        Ok(Status::Done)
    })
}

/// Collectives of nothing need no kernel; a send or receive of nothing is matched all the same.
fn vanishes(op: &Operation) -> bool {
    use crate::types::OpKind::{Recv, Send};
    op.count == 0 && !matches!(op.kind, Send | Recv)
}

fn launch_one(comm: &Arc<Communicator>, op: &Operation, redop: Redop) -> Result<Status> {
    if vanishes(op) {
        return Ok(Status::Done);
    }
    let ready = comm.ready()?;
    let desc = comm.plan(op, redop)?;
    if order::is_point_to_point(&desc) && op.root as usize == ready.rank {
        return Err(order::unpaired(ready.rank as i32, 1, 0));
    }
    let _guard = ready.lane.gpu.context.enter()?;
    ready.launcher.launch(&ready.lane, Stream(op.stream), &[desc])?;
    Ok(Status::Done)
}

/// What one communicator runs at the end of a group.
struct Batch {
    ready: Arc<Ready>,
    descs: Vec<OpDesc>,
    /// In the order of first use; the last one carries the kernel.
    streams: Vec<Stream>,
}

fn launch_all(operations: Vec<Pending>) -> Result<()> {
    let mut batches: Vec<(Arc<Communicator>, Batch)> = Vec::new();
    for pending in operations {
        if vanishes(&pending.op) {
            continue;
        }
        let index = match batches.iter().position(|(comm, _)| Arc::ptr_eq(comm, &pending.comm)) {
            Some(found) => found,
            None => {
                let ready = pending.comm.ready()?.clone();
                batches.push((pending.comm.clone(), Batch { ready, descs: Vec::new(), streams: Vec::new() }));
                batches.len() - 1
            }
        };
        let batch = &mut batches[index].1;
        batch.descs.push(pending.comm.plan(&pending.op, pending.redop)?);
        let stream = Stream(pending.op.stream);
        if !batch.streams.contains(&stream) {
            batch.streams.push(stream);
        }
    }
    for (_, batch) in &mut batches {
        order::arrange(&mut batch.descs, batch.ready.rank as i32, batch.ready.nranks as i32)?;
    }
    // The same order on every rank, so that communicators that share a stream cannot wait for each other crosswise.
    batches.sort_by_key(|(_, batch)| batch.ready.id);
    // When launches return only after their kernel, the kernels of several ranks must be launched side by side.
    if batches.len() > 1 && std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|v| v == "1") {
        return std::thread::scope(|scope| {
            let running: Vec<_> = batches.iter().map(|(_, batch)| scope.spawn(|| launch_batch(batch))).collect();
            running.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::internal("a launching thread panicked"))))
        });
    }
    batches.iter().try_for_each(|(_, batch)| launch_batch(batch))
}

fn launch_batch(batch: &Batch) -> Result<()> {
    let Some((&stream, others)) = batch.streams.split_last() else { return Ok(()) };
    let ready = &batch.ready;
    let _guard = ready.lane.gpu.context.enter()?;
    for other in others {
        let event = Event::new()?;
        event.record(*other)?;
        stream.wait_event(&event)?;
    }
    for descs in batch.descs.chunks(MAX_OPS) {
        ready.launcher.launch(&ready.lane, stream, descs)?;
    }
    if !others.is_empty() {
        let event = Event::new()?;
        event.record(stream)?;
        for other in others {
            other.wait_event(&event)?;
        }
    }
    Ok(())
}
