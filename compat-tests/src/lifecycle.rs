//! Part `lifecycle`: communicators made in every way, used, split, finished and aborted.

use crate::check::{Check, LineUp, both};
use crate::communicator::{Comm, SUM};
use crate::driver::{Buffer, Kernel, Span, Stream, free_memory, synchronize_context};
use crate::element::Type;
use crate::exercise::{Exchange, Words, sum, word, works};
use crate::library::{Config, IN_PROGRESS, INVALID_ARGUMENT, SPLIT_NOCOLOR, SUCCESS, UniqueId, code_name};
use crate::outcome::{Outcome, Stop, ensure, fail};
use crate::ranks::{How, Rank};
use std::ffi::c_int;
use std::time::Duration;

const PART: &str = "lifecycle";
/// More than any bounded call needs, less than a user's patience.
const BOUND: Duration = Duration::from_secs(10);

fn alone() -> Vec<LineUp> {
    vec![LineUp { ranks: 1, how: How::Processes }]
}

pub fn checks() -> Vec<Check> {
    vec![
        Check::new(PART, "rank, size and device queries", both(&[1, 3]), queries),
        Check::new(PART, "split by colour and key", both(&[4]), split),
        Check::new(PART, "split of a split", both(&[4]), split_of_split),
        Check::new(PART, "finalize, then destroy", both(&[2]), finalize_and_destroy),
        Check::new(PART, "destroy with operations in flight", both(&[2]), destroy_in_flight),
        Check::new(PART, "one thread destroys all ranks", alone(), one_thread_destroys),
        Check::new(PART, "forty rounds leave no more device memory in use than the first ones", both(&[2]), forty_rounds).limit(60),
        Check::new(PART, "non-blocking communicator", both(&[2]), non_blocking),
        Check::new(PART, "ncclCommInitRankScalable with one id and two", both(&[3]), scalable),
        Check::new(PART, "abort of an idle communicator", both(&[2]), abort_idle),
        Check::new(PART, "abort of an operation whose peer never comes", both(&[2, 3]), abort_waiting),
        Check::new(PART, "abort from another thread during cuStreamSynchronize", both(&[2]), |rank| abort_elsewhere(rank, false)),
        Check::new(PART, "abort from another thread during cuCtxSynchronize", both(&[2]), |rank| abort_elsewhere(rank, true)),
        Check::new(PART, "context synchronised and memory freed right after each collective", both(&[2]), synchronise_after_each),
        Check::new(PART, "first launch of a new kernel right after each collective", both(&[2]), launch_after_each),
        Check::new(PART, "memory of ncclMemAlloc, registered", both(&[2]), allocated_and_registered),
    ]
}

fn finish(rank: &Rank, comm: Comm) -> Outcome {
    comm.healthy()?;
    rank.barrier()?;
    rank.doing("destroying the communicator");
    comm.destroy()
}

fn queries(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let (count, user_rank, device) = (comm.count()?, comm.user_rank()?, comm.device()?);
    ensure!((count, user_rank) == (rank.ranks, rank.rank), "the communicator says rank {user_rank} of {count}");
    ensure!(device >= 0, "ncclCommCuDevice says {device}");
    ensure!(rank.nccl.version()? >= 22_000, "ncclGetVersion says {}", rank.nccl.version()?);
    works(&comm, 0)?;
    finish(rank, comm)
}

/// Even ranks reversed by their keys, rank 1 alone, rank 3 in none.
fn split(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let color = [7, 2, 7, SPLIT_NOCOLOR][rank.rank];
    rank.doing("splitting");
    let part = comm.split(color, -(rank.rank as c_int))?;
    match (&part, rank.rank) {
        (None, 3) => {}
        (Some(_), 3) => fail!("ncclCommSplit without a colour gave a communicator"),
        (None, _) => fail!("ncclCommSplit with colour {color} gave NULL"),
        (Some(part), _) => {
            let expected = [(1, 2), (0, 1), (0, 2)][rank.rank];
            ensure!((part.rank, part.ranks) == expected, "the part says rank {} of {}, expected {expected:?}", part.rank, part.ranks);
            works(part, 1)?;
        }
    }
    works(&comm, 2)?;
    // Both live on side by side; the parent goes first.
    finish(rank, comm)?;
    if let Some(part) = part {
        works(&part, 3)?;
        part.destroy()?;
    }
    rank.barrier()
}

fn split_of_split(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let half = comm.split(rank.rank as c_int / 2, 0)?.ok_or_else(|| Stop::Failed("the half is NULL".into()))?;
    works(&half, 1)?;
    let whole =
        comm.split(0, rank.ranks as c_int - rank.rank as c_int)?.ok_or_else(|| Stop::Failed("the reversed whole is NULL".into()))?;
    ensure!(whole.rank == rank.ranks - 1 - rank.rank, "the reversed whole says rank {}", whole.rank);
    let single = half.split(half.rank as c_int, 0)?.ok_or_else(|| Stop::Failed("the single is NULL".into()))?;
    ensure!(single.ranks == 1, "the part of one rank has {}", single.ranks);
    for (round, part) in [&single, &whole, &half, &comm].into_iter().enumerate() {
        works(part, round)?;
    }
    rank.barrier()?;
    rank.doing("destroying four communicators");
    [comm, single, whole, half].into_iter().try_for_each(Comm::destroy)
}

fn finalize_and_destroy(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let mut data = Exchange::new(&comm, 50_000)?;
    data.prepare(1);
    data.upload(&stream)?;
    data.all_reduce(&comm, &stream)?;
    data.download(&stream)?;
    rank.doing("finalizing with an operation in flight");
    comm.finalize()?;
    comm.settles_within(BOUND)?;
    stream.synchronize()?;
    data.check("the operation before finalize", 1)?;
    // SAFETY: the communicator is live.
    rank.nccl.refused("a second ncclCommFinalize", unsafe { (rank.nccl.comm_finalize)(comm.raw) }, INVALID_ARGUMENT)?;
    rank.doing("destroying a finalized communicator");
    comm.destroy()
}

/// No synchronisation of any kind before the destroy: what was issued must still be done.
fn destroy_in_flight(rank: &Rank) -> Outcome {
    for round in 0..3 {
        let comm = rank.communicator()?;
        let stream = Stream::new()?;
        let mut data = Exchange::new(&comm, 100_000)?;
        data.prepare(round);
        data.upload(&stream)?;
        for _ in 0..5 {
            data.all_reduce(&comm, &stream)?;
        }
        data.download(&stream)?;
        rank.doing("destroying with operations in flight");
        comm.destroy()?;
        stream.synchronize()?;
        data.check("the operations before destroy", round)?;
    }
    Ok(())
}

fn one_thread_destroys(rank: &Rank) -> Outcome {
    for reversed in [false, true] {
        let mut comms = Comm::init_all(rank.nccl, &[0, 0, 0])?;
        let streams = comms.iter().map(|_| Stream::new()).collect::<Outcome<Vec<_>>>()?;
        let data = comms.iter().map(|comm| Exchange::new(comm, 20_000)).collect::<Outcome<Vec<_>>>()?;
        rank.nccl.group_start()?;
        for ((comm, data), stream) in comms.iter().zip(&data).zip(&streams) {
            data.all_reduce(comm, stream)?;
        }
        rank.nccl.group_end()?;
        if reversed {
            comms.reverse();
        }
        rank.doing("destroying all ranks one after the other");
        comms.into_iter().try_for_each(Comm::destroy)?;
        streams.iter().try_for_each(Stream::synchronize)?;
    }
    Ok(())
}

/// A library may keep a pool of what its former communicators used. The pool must have stopped to grow: the most memory in use in the last ten
/// rounds is compared with the most in use in the first twenty.
fn forty_rounds(rank: &Rank) -> Outcome {
    /// How many former communicators still wait for their peers' goodbye is a matter of chance, and so is the pool's size by a few of them; a leak
    /// of three megabytes a round is beyond it.
    const SLACK: usize = 64 << 20;
    let mut free = Vec::new();
    let mut data = None;
    let stream = Stream::new()?;
    for round in 0..40 {
        rank.doing(&format!("round {round}"));
        let comm = rank.communicator()?;
        if data.is_none() {
            data = Some(Exchange::new(&comm, 1000)?);
        }
        if let Some(data) = &mut data {
            data.once(&comm, &stream, round)?;
        }
        comm.destroy()?;
        // Device memory is one figure for all ranks of a GPU.
        rank.barrier()?;
        free.push(free_memory()?);
        rank.barrier()?;
    }
    let highest = free.iter().copied().max().unwrap_or_default();
    let used: Vec<usize> = free.iter().map(|bytes| highest - bytes).collect();
    let most = |rounds: &[usize]| rounds.iter().copied().max().unwrap_or_default();
    let kib: Vec<usize> = used.iter().map(|bytes| bytes >> 10).collect();
    ensure!(most(&used[30..]) <= most(&used[..20]) + SLACK, "device memory in use after each round, in KiB above the least: {kib:?}");
    Ok(())
}

/// Accepts "in progress" where a non-blocking communicator may say so.
fn enqueued(rank: &Rank, call: &str, code: c_int) -> Outcome {
    if code == IN_PROGRESS { Ok(()) } else { rank.nccl.check(call, code) }
}

fn settled(comm: &Comm, what: &str) -> Outcome {
    match comm.settles_within(BOUND)? {
        SUCCESS => Ok(()),
        code => fail!("{what} ended with {}", code_name(code)),
    }
}

fn non_blocking(rank: &Rank) -> Outcome {
    let mut config = Config::new();
    config.blocking = 0;
    let comm = rank.communicator_with(&mut config)?;
    rank.doing("polling a non-blocking communicator");
    settled(&comm, "the creation")?;
    let stream = Stream::new()?;
    let mut data = Exchange::new(&comm, 30_000)?;
    for round in 0..3 {
        data.prepare(round);
        data.upload(&stream)?;
        let (send, recv) = (data.send.span(), data.recv.span());
        // SAFETY: the buffers hold this many words, and communicator and stream are live.
        let code =
            unsafe { (rank.nccl.all_reduce)(send.as_ptr(), recv.as_mut_ptr(), 30_000, Type::Uint32.code(), SUM, comm.raw, stream.raw()) };
        enqueued(rank, "ncclAllReduce", code)?;
        settled(&comm, "the operation")?;
        data.download(&stream)?;
        stream.synchronize()?;
        data.check("all-reduce", round)?;
    }
    rank.doing("finalizing a non-blocking communicator");
    // SAFETY: the communicator is live.
    enqueued(rank, "ncclCommFinalize", unsafe { (rank.nccl.comm_finalize)(comm.raw) })?;
    settled(&comm, "the finalization")?;
    comm.destroy()
}

fn scalable(rank: &Rank) -> Outcome {
    for ids in [1, 2] {
        let mut ids: Vec<UniqueId> = (0..ids).map(|maker| rank.id_from(maker)).collect::<Outcome<_>>()?;
        let mut raw = std::ptr::null_mut();
        rank.doing(&format!("creating a communicator from {} ids", ids.len()));
        // SAFETY: there are as many ids as is said; the pointers are valid for the call; NULL stands for the default config.
        let code = unsafe {
            let (ranks, me) = (rank.ranks as c_int, rank.rank as c_int);
            (rank.nccl.comm_init_rank_scalable)(&mut raw, ranks, me, ids.len() as c_int, ids.as_mut_ptr(), std::ptr::null_mut())
        };
        rank.nccl.check("ncclCommInitRankScalable", code)?;
        let comm = Comm { nccl: rank.nccl, raw, rank: rank.rank, ranks: rank.ranks };
        works(&comm, ids.len())?;
        finish(rank, comm)?;
    }
    Ok(())
}

fn abort_idle(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    works(&comm, 0)?;
    rank.barrier()?;
    rank.doing("aborting an idle communicator");
    comm.abort()?;
    // The library is not the worse for it.
    let comm = rank.communicator()?;
    works(&comm, 1)?;
    finish(rank, comm)
}

/// The last rank issues nothing.
fn abort_waiting(rank: &Rank) -> Outcome {
    for count in [10, 200_000] {
        let comm = rank.communicator()?;
        works(&comm, 0)?;
        let stream = Stream::new()?;
        let words = Words::new(count)?;
        if rank.rank + 1 < rank.ranks {
            comm.all_reduce(words.span(), words.span(), count, Type::Uint32, SUM, &stream)?;
            ensure!(!stream.finishes_within(Duration::from_millis(100))?, "an operation ended although a rank is missing");
        }
        rank.barrier()?;
        rank.doing("aborting an operation that waits for a peer");
        comm.abort()?;
        ensure!(stream.finishes_within(BOUND)?, "the stream still waits {} s after the abort", BOUND.as_secs());
        rank.barrier()?;
    }
    let comm = rank.communicator()?;
    works(&comm, 1)?;
    finish(rank, comm)
}

fn abort_elsewhere(rank: &Rank, whole_context: bool) -> Outcome {
    /// The handle, for the thread that aborts while this one waits.
    struct Handle(Comm);
    // SAFETY: NCCL allows an abort from any thread.
    unsafe impl Send for Handle {}
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let words = Words::new(5000)?;
    // The last rank issues nothing, but aborts like the others.
    if rank.rank + 1 < rank.ranks {
        comm.all_reduce(words.span(), words.span(), 5000, Type::Uint32, SUM, &stream)?;
    }
    rank.barrier()?;
    rank.doing("synchronising while another thread aborts");
    let handle = Handle(comm);
    std::thread::scope(|scope| {
        let aborting = scope.spawn(move || {
            let handle = handle;
            // Most likely the other thread waits by then; the check holds either way.
            std::thread::sleep(Duration::from_millis(200));
            handle.0.abort()
        });
        if whole_context {
            synchronize_context()?
        } else {
            stream.synchronize()?
        }
        aborting.join().unwrap_or_else(|_| fail!("the aborting thread panicked"))
    })
}

/// Calls `after` right after each collective has been issued, in turn with the peer being early and late.
fn after_each(rank: &Rank, mut after: impl FnMut(&Stream, usize) -> Outcome) -> Outcome {
    const COUNT: usize = 3000;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let ranks = rank.ranks;
    let (send, recv) = (Words::new(COUNT * ranks)?, Words::new(COUNT * ranks)?);
    let own = send.part(0, COUNT);
    let one: Span = recv.part(0, COUNT);
    for round in 0..4 {
        for operation in 0..6 {
            rank.doing(&format!("round {round}, operation {operation}"));
            send.set(&stream, |at| word(rank.rank, round, at))?;
            let dtype = Type::Uint32;
            match operation {
                0 => comm.all_reduce(own, one, COUNT, dtype, SUM, &stream)?,
                1 => comm.all_gather(own, recv.span(), COUNT, dtype, &stream)?,
                2 => comm.reduce_scatter(send.span(), one, COUNT, dtype, SUM, &stream)?,
                3 => comm.broadcast(own, one, COUNT, dtype, 0, &stream)?,
                4 => comm.all_to_all(send.span(), recv.span(), COUNT, dtype, &stream)?,
                _ => comm.reduce(own, one, COUNT, dtype, SUM, 0, &stream)?,
            }
            rank.barrier_of_context()?;
            after(&stream, round * 6 + operation)?;
            let got = &recv.get(&stream)?;
            let expected = |at: usize| match operation {
                0 => sum(ranks, round, at),
                1 => word(at / COUNT, round, at % COUNT),
                2 => sum(ranks, round, rank.rank * COUNT + at),
                3 => word(0, round, at),
                4 => word(at / COUNT, round, rank.rank * COUNT + at % COUNT),
                _ => sum(ranks, round, at),
            };
            let checked = match operation {
                1 | 4 => COUNT * ranks,
                5 if rank.rank != 0 => 0,
                _ => COUNT,
            };
            crate::exercise::expect(&format!("operation {operation}"), &got[..checked], expected)?;
            rank.barrier_of_context()?;
        }
    }
    finish(rank, comm)
}

fn synchronise_after_each(rank: &Rank) -> Outcome {
    after_each(rank, |_, step| {
        let buffer = Buffer::new(1 << 16)?;
        if step % 2 == 0 {
            synchronize_context()?;
            buffer.free()?;
        } else {
            // cuMemFree waits for the whole device by itself.
            buffer.free()?;
            synchronize_context()?;
        }
        Ok(())
    })
}

fn launch_after_each(rank: &Rank) -> Outcome {
    let mark = Words::new(1)?;
    if Kernel::load()?.is_none() {
        return Err(Stop::Skipped("this CUDA driver compiles no PTX (the emulated one does not)".into()));
    }
    let own = Stream::new()?;
    after_each(rank, |_, step| {
        // A module of its own, so that this is a first launch every time.
        let kernel = Kernel::load()?.ok_or_else(|| Stop::Failed("the driver compiled the kernel once, but not again".into()))?;
        kernel.launch(&own, mark.span(), step as u32)?;
        mark.check(&own, "what the new kernel stored", |_| step as u32)
    })
}

fn allocated_and_registered(rank: &Rank) -> Outcome {
    const COUNT: usize = 300_000;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let nccl = rank.nccl;
    let mut base = std::ptr::null_mut();
    // SAFETY: the pointer is valid for the call.
    nccl.check("ncclMemAlloc", unsafe { (nccl.mem_alloc)(&mut base, COUNT * 8) })?;
    ensure!(!base.is_null() && (base as usize).is_multiple_of(256), "ncclMemAlloc gave {base:p}");
    let memory = Span { address: base as u64, bytes: COUNT * 8 };
    let (send, recv) = (memory.part(0, COUNT * 4), memory.part(COUNT * 4, COUNT * 4));
    let (mut registered, mut window) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the memory is live and has this size; the pointers are valid for the calls.
    unsafe {
        nccl.check("ncclCommRegister", (nccl.comm_register)(comm.raw, base, COUNT * 8, &mut registered))?;
        rank.doing("registering a window");
        nccl.check("ncclCommWindowRegister", (nccl.comm_window_register)(comm.raw, base, COUNT * 8, &mut window, 0))?;
    }
    for round in 0..3 {
        rank.doing(&format!("round {round}"));
        let bytes: Vec<u8> = (0..COUNT).flat_map(|at| word(rank.rank, round, at).to_le_bytes()).collect();
        stream.upload(send, &bytes)?;
        comm.all_reduce(send, recv, COUNT, Type::Uint32, SUM, &stream)?;
        let mut result = vec![0; COUNT * 4];
        stream.download(recv, &mut result)?;
        let words: Vec<u32> = result.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        crate::exercise::expect("all-reduce", &words, |at| sum(rank.ranks, round, at))?;
    }
    // SAFETY: NULL is what a library without windows gives, and may be handed back; the rest is live. The last use of all three.
    unsafe {
        if !window.is_null() {
            nccl.check("ncclCommWindowDeregister", (nccl.comm_window_deregister)(comm.raw, window))?;
        }
        nccl.check("ncclCommDeregister", (nccl.comm_deregister)(comm.raw, registered))?;
        rank.barrier()?;
        nccl.check("ncclMemFree", (nccl.mem_free)(base))?;
    }
    finish(rank, comm)
}
