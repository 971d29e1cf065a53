//! Part `revoke`: `ncclCommRevoke` ends what runs, here and at the peers, and leaves a communicator that can only be split or released.

use crate::check::{Check, both};
use crate::communicator::{Comm, SUM};
use crate::driver::Stream;
use crate::element::Type;
use crate::exercise::{Words, works};
use crate::library::{INVALID_ARGUMENT, INVALID_USAGE, code_name};
use crate::outcome::{Outcome, Stop, ensure, fail};
use crate::ranks::Rank;
use std::time::{Duration, Instant};

const PART: &str = "revoke";
/// More than any bounded call needs, less than a user's patience.
const BOUND: Duration = Duration::from_secs(10);

pub fn checks() -> Vec<Check> {
    vec![
        Check::new(PART, "what an idle communicator still allows", both(&[1, 2]), idle),
        Check::new(PART, "an operation whose peer never comes ends", both(&[2, 3]), waiting),
        Check::new(PART, "one rank revokes, and the operations of the others end", both(&[2, 3]), told_by_a_peer),
        Check::new(PART, "split of a revoked communicator", both(&[2, 4]), split),
        Check::new(PART, "operations of a group that was open", both(&[2]), open_group),
    ]
}

/// An all-reduce must be refused, with a code and words.
fn refuses_operations(comm: &Comm, words: &Words, stream: &Stream) -> Outcome {
    let (nccl, span) = (comm.nccl, words.span());
    // SAFETY: the buffer holds this many words, and communicator and stream are live.
    let code =
        unsafe { (nccl.all_reduce)(span.as_ptr(), span.as_mut_ptr(), words.count(), Type::Uint32.code(), SUM, comm.raw, stream.raw()) };
    nccl.refused("ncclAllReduce on a revoked communicator", code, INVALID_USAGE)?;
    // SAFETY: the communicator is live.
    let text = unsafe { nccl.last_error(comm.raw) };
    ensure!(text.contains("revoked"), "ncclGetLastError does not say why the operation was refused: {text:?}");
    Ok(())
}

fn idle(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    works(&comm, 0)?;
    let (nccl, revoke) = (rank.nccl, rank.nccl.comm_revoke()?);
    // SAFETY: NULL is allowed; the communicator is live.
    unsafe {
        nccl.check("ncclCommRevoke(NULL)", revoke(std::ptr::null_mut(), 0))?;
        nccl.refused("ncclCommRevoke with unknown flags", revoke(comm.raw, 8), INVALID_ARGUMENT)?;
    }
    works(&comm, 1)?;
    rank.barrier()?;
    rank.doing("revoking an idle communicator");
    comm.revoke()?;
    refuses_operations(&comm, &Words::new(100)?, &Stream::new()?)?;
    // SAFETY: the communicator is live.
    unsafe {
        nccl.refused("a second ncclCommRevoke", revoke(comm.raw, 0), INVALID_ARGUMENT)?;
        nccl.refused("ncclCommFinalize of a revoked communicator", (nccl.comm_finalize)(comm.raw), INVALID_USAGE)?;
    }
    ensure!((comm.count()?, comm.user_rank()?) == (rank.ranks, rank.rank), "a revoked communicator forgot its size and rank");
    comm.healthy()?;
    rank.doing("destroying a revoked communicator");
    comm.destroy()?;
    // The library is not the worse for it.
    let comm = rank.communicator()?;
    works(&comm, 2)?;
    rank.barrier()?;
    comm.destroy()
}

/// The last rank issues nothing; all revoke.
fn waiting(rank: &Rank) -> Outcome {
    for count in [10, 200_000] {
        let comm = rank.communicator()?;
        let (stream, words) = (Stream::new()?, Words::new(count)?);
        if rank.rank + 1 < rank.ranks {
            comm.all_reduce(words.span(), words.span(), count, Type::Uint32, SUM, &stream)?;
            ensure!(!stream.finishes_within(Duration::from_millis(100))?, "an operation ended although a rank is missing");
        }
        rank.barrier()?;
        rank.doing("revoking while an operation waits for a peer");
        comm.revoke()?;
        ensure!(stream.finishes_within(BOUND)?, "the stream still waits {} s after ncclCommRevoke", BOUND.as_secs());
        refuses_operations(&comm, &words, &stream)?;
        rank.doing("ending a revoked communicator");
        if count == 10 {
            comm.destroy()?
        } else {
            comm.abort()?
        }
        rank.barrier()?;
    }
    Ok(())
}

/// Only the last rank revokes, and it has no operation of its own that could tell the others.
fn told_by_a_peer(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let (stream, words) = (Stream::new()?, Words::new(5000)?);
    let revokes = rank.rank + 1 == rank.ranks;
    if !revokes {
        comm.all_reduce(words.span(), words.span(), 5000, Type::Uint32, SUM, &stream)?;
    }
    rank.barrier()?;
    if revokes {
        comm.revoke()?;
    } else {
        rank.doing("waiting for an operation to end that a peer has revoked");
        ensure!(stream.finishes_within(BOUND)?, "the stream still waits {} s after a peer's ncclCommRevoke", BOUND.as_secs());
        let begin = Instant::now();
        loop {
            match comm.async_error()? {
                INVALID_USAGE => break,
                other if begin.elapsed() > BOUND => {
                    fail!("a peer has revoked the communicator, and ncclCommGetAsyncError says {}", code_name(other))
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        refuses_operations(&comm, &words, &stream)?;
        // A rank that was told may still say the same.
        if rank.rank == 0 {
            comm.revoke()?;
        }
    }
    rank.barrier()?;
    rank.doing("destroying a communicator that a rank has revoked");
    comm.destroy()
}

fn split(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let (stream, words) = (Stream::new()?, Words::new(100)?);
    if rank.rank != 0 {
        comm.all_reduce(words.span(), words.span(), 100, Type::Uint32, SUM, &stream)?;
    }
    rank.barrier()?;
    comm.revoke()?;
    rank.doing("splitting a revoked communicator");
    let half = comm.split((rank.rank % 2) as i32, 0)?.ok_or_else(|| Stop::Failed("the half is NULL".into()))?;
    works(&half, 1)?;
    comm.destroy()?;
    works(&half, 2)?;
    rank.barrier()?;
    half.destroy()
}

/// What a group has collected is not enqueued once the communicator is revoked.
fn open_group(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let (stream, words) = (Stream::new()?, Words::new(100)?);
    rank.nccl.group_start()?;
    comm.all_reduce(words.span(), words.span(), 100, Type::Uint32, SUM, &stream)?;
    rank.barrier()?;
    comm.revoke()?;
    // SAFETY: what the group holds is live.
    rank.nccl.refused("ncclGroupEnd after a revocation", unsafe { (rank.nccl.group_end)() }, INVALID_USAGE)?;
    ensure!(stream.finishes_within(BOUND)?, "an operation of a revoked communicator was enqueued all the same");
    rank.barrier()?;
    comm.destroy()
}
