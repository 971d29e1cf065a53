//! Part `graph`: captured operations, replayed.

use crate::check::{Check, both, processes};
use crate::communicator::{Comm, SUM};
use crate::driver::{CaptureMode, Event, Graph, Stream};
use crate::element::Type;
use crate::exercise::{Exchange, Words, sum, word};
use crate::outcome::Outcome;
use crate::ranks::Rank;

const PART: &str = "graph";

pub fn checks() -> Vec<Check> {
    vec![
        Check::new(PART, "thread-local capture, 20 replays with changing inputs", both(&[2, 4]), |rank| {
            replays(rank, CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        }),
        Check::new(PART, "relaxed capture, 20 replays with changing inputs", both(&[2]), |rank| {
            replays(rank, CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        }),
        // Threads would meet each other's ordinary calls, which a global capture forbids.
        Check::new(PART, "global capture, 20 replays with changing inputs", processes(2), |rank| {
            replays(rank, CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
        }),
        Check::new(PART, "the first operation of a communicator inside a capture", both(&[2, 3]), first_operation),
        Check::new(PART, "several operations and copies in one capture", both(&[2, 4]), several_operations),
        Check::new(PART, "a group in a capture", both(&[3]), group),
        Check::new(PART, "replays mixed with eager operations", both(&[2]), mixed),
        Check::new(PART, "two graphs of one communicator in varying order", both(&[2]), two_graphs),
        Check::new(PART, "fork and join over two streams inside a capture", both(&[2]), fork_join),
        Check::new(PART, "graphs of two communicators replayed in opposite order", both(&[2]), opposite_replays),
        Check::new(PART, "replays back to back without a wait", both(&[3]), back_to_back),
        Check::new(PART, "a communicator destroyed after its graph", both(&[2]), destroyed_in_turn),
    ]
}

fn local(stream: &Stream, work: impl FnOnce() -> Outcome) -> Outcome<Graph> {
    stream.capture(CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, work)
}

fn finish(rank: &Rank, comm: Comm) -> Outcome {
    comm.healthy()?;
    rank.barrier()?;
    rank.doing("destroying the communicator");
    comm.destroy()
}

fn replays(rank: &Rank, mode: CaptureMode) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    for count in [1, 1000, 100_000] {
        let mut data = Exchange::new(&comm, count)?;
        data.once(&comm, &stream, 99)?;
        rank.doing(&format!("capturing an all-reduce of {count} words"));
        // No rank's ordinary calls may fall into another's capture: they are separate processes or thread-local captures.
        let graph = stream.capture(mode, || data.all_reduce(&comm, &stream))?;
        for round in 0..20 {
            rank.doing(&format!("replay {round} of {count} words"));
            data.prepare(round);
            data.upload(&stream)?;
            graph.launch(&stream)?;
            data.download(&stream)?;
            stream.synchronize()?;
            data.check(&format!("replay of {count} words"), round)?;
        }
    }
    finish(rank, comm)
}

fn first_operation(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let mut data = Exchange::new(&comm, 50_000)?;
    rank.doing("capturing the first operation");
    let graph = local(&stream, || data.all_reduce(&comm, &stream))?;
    for round in 0..3 {
        data.prepare(round);
        data.upload(&stream)?;
        graph.launch(&stream)?;
        data.download(&stream)?;
        stream.synchronize()?;
        data.check("replay", round)?;
    }
    finish(rank, comm)
}

/// A chain of operations and copies in one graph: the sum, its all-gather, and a ring of what was gathered.
fn several_operations(rank: &Rank) -> Outcome {
    const COUNT: usize = 3000;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let (next, previous) = ((rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks);
    let mut data = Exchange::new(&comm, COUNT)?;
    let (copied, gathered, own, passed) = (Words::new(COUNT)?, Words::new(COUNT * rank.ranks)?, Words::new(COUNT)?, Words::new(COUNT)?);
    own.set(&stream, |at| word(rank.rank, 500, at))?;
    let graph = local(&stream, || {
        data.all_reduce(&comm, &stream)?;
        stream.copy(copied.span(), data.recv.span())?;
        comm.all_gather(own.span(), gathered.span(), COUNT, Type::Uint32, &stream)?;
        comm.nccl.group_start()?;
        comm.send(copied.span(), COUNT, Type::Uint32, next, &stream)?;
        comm.recv(passed.span(), COUNT, Type::Uint32, previous, &stream)?;
        comm.nccl.group_end()?;
        data.download(&stream)
    })?;
    for round in 0..20 {
        rank.doing(&format!("replay {round}"));
        stream.fill(passed.span(), 0xcc)?;
        stream.fill(gathered.span(), 0xcc)?;
        data.prepare(round);
        data.upload(&stream)?;
        graph.launch(&stream)?;
        passed.check(&stream, "the sum passed round the ring", |at| sum(rank.ranks, round, at))?;
        gathered.check(&stream, "all-gather", |at| word(at / COUNT, 500, at % COUNT))?;
        data.check("all-reduce", round)?;
    }
    finish(rank, comm)
}

fn group(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let mut data = [Exchange::new(&comm, 10)?, Exchange::new(&comm, 40_000)?, Exchange::new(&comm, 777)?];
    let graph = local(&stream, || {
        comm.nccl.group_start()?;
        data.iter().try_for_each(|data| data.all_reduce(&comm, &stream))?;
        comm.nccl.group_end()
    })?;
    for round in 0..10 {
        rank.doing(&format!("replay {round}"));
        for data in &mut data {
            data.prepare(round);
            data.upload(&stream)?;
        }
        graph.launch(&stream)?;
        for data in &mut data {
            data.download(&stream)?;
            stream.synchronize()?;
            data.check("all-reduce of a captured group", round)?;
        }
    }
    finish(rank, comm)
}

fn mixed(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    for count in [500, 30_000] {
        let (mut captured, mut eager) = (Exchange::new(&comm, count)?, Exchange::new(&comm, count)?);
        let graph = local(&stream, || captured.all_reduce(&comm, &stream))?;
        for round in 0..12 {
            rank.doing(&format!("round {round} of {count} words"));
            captured.prepare(round);
            eager.prepare(100 + round);
            captured.upload(&stream)?;
            eager.upload(&stream)?;
            // Now the one first, now the other, now the eager one twice.
            if round % 2 == 0 {
                eager.all_reduce(&comm, &stream)?;
            }
            graph.launch(&stream)?;
            if round % 3 != 1 || round % 2 == 1 {
                eager.all_reduce(&comm, &stream)?;
            }
            captured.download(&stream)?;
            eager.download(&stream)?;
            stream.synchronize()?;
            captured.check("replay", round)?;
            eager.check("eager operation", 100 + round)?;
        }
    }
    finish(rank, comm)
}

fn two_graphs(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let mut data = [Exchange::new(&comm, 2000)?, Exchange::new(&comm, 90_000)?];
    let graphs = [
        local(&stream, || data[0].all_reduce(&comm, &stream))?,
        local(&stream, || {
            data[1].all_reduce(&comm, &stream)?;
            data[1].all_reduce(&comm, &stream)
        })?,
    ];
    for (round, order) in [[0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]].into_iter().cycle().take(12).enumerate() {
        rank.doing(&format!("round {round}: graphs {order:?}"));
        for data in &mut data {
            data.prepare(round);
            data.upload(&stream)?;
        }
        for index in order {
            graphs[index].launch(&stream)?;
        }
        for (index, data) in data.iter_mut().enumerate() {
            data.download(&stream)?;
            stream.synchronize()?;
            data.check(&format!("graph {index}"), round)?;
        }
    }
    finish(rank, comm)
}

/// Two branches in one graph: another communicator's operation on the second, then one of the first communicator on both.
fn fork_join(rank: &Rank) -> Outcome {
    let comms = [rank.communicator()?, rank.communicator()?];
    let (stream, branch) = (Stream::new()?, Stream::new()?);
    let (fork, join) = (Event::new()?, Event::new()?);
    for same in [false, true] {
        let second = if same { &comms[0] } else { &comms[1] };
        let (mut a, mut b) = (Exchange::new(&comms[0], 6000)?, Exchange::new(second, 8000)?);
        let graph = local(&stream, || {
            fork.record(&stream)?;
            branch.wait(&fork)?;
            a.all_reduce(&comms[0], &stream)?;
            b.all_reduce(second, &branch)?;
            join.record(&branch)?;
            stream.wait(&join)
        })?;
        for round in 0..10 {
            rank.doing(&format!("replay {round}, {}", if same { "one communicator" } else { "two communicators" }));
            for data in [&mut a, &mut b] {
                data.prepare(round);
                data.upload(&stream)?;
            }
            graph.launch(&stream)?;
            for (name, data) in [("the first branch", &mut a), ("the second branch", &mut b)] {
                data.download(&stream)?;
                stream.synchronize()?;
                data.check(name, round)?;
            }
        }
    }
    rank.barrier()?;
    comms.into_iter().try_for_each(Comm::destroy)
}

fn opposite_replays(rank: &Rank) -> Outcome {
    let comms = [rank.communicator()?, rank.communicator()?];
    let streams = [Stream::new()?, Stream::new()?];
    let mut data = [Exchange::new(&comms[0], 5000)?, Exchange::new(&comms[1], 70_000)?];
    let graphs = [
        local(&streams[0], || data[0].all_reduce(&comms[0], &streams[0]))?,
        local(&streams[1], || data[1].all_reduce(&comms[1], &streams[1]))?,
    ];
    for round in 0..10 {
        rank.doing(&format!("round {round}"));
        for (data, stream) in data.iter_mut().zip(&streams) {
            data.prepare(round);
            data.upload(stream)?;
        }
        for index in [rank.rank, 1 - rank.rank] {
            graphs[index].launch(&streams[index])?;
        }
        for (data, stream) in data.iter_mut().zip(&streams) {
            data.download(stream)?;
            stream.synchronize()?;
            data.check("replay", round)?;
        }
    }
    rank.barrier()?;
    comms.into_iter().try_for_each(Comm::destroy)
}

/// Forty replays of an in-place sum that nobody waits for: each multiplies the words by the number of ranks.
fn back_to_back(rank: &Rank) -> Outcome {
    const REPLAYS: u32 = 40;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    for count in [16, 20_000] {
        let words = Words::new(count)?;
        words.set(&stream, |at| word(rank.rank, 0, at))?;
        let graph = local(&stream, || comm.all_reduce(words.span(), words.span(), count, Type::Uint32, SUM, &stream))?;
        rank.doing(&format!("{REPLAYS} replays of {count} words"));
        for _ in 0..REPLAYS {
            graph.launch(&stream)?;
        }
        let factor = (rank.ranks as u32).wrapping_pow(REPLAYS - 1);
        words.check(&stream, "the words after all replays", |at| sum(rank.ranks, 0, at).wrapping_mul(factor))?;
    }
    finish(rank, comm)
}

/// Graph first, communicator second; then the same with another pair, so that nothing of the first is left in the way.
fn destroyed_in_turn(rank: &Rank) -> Outcome {
    for _ in 0..3 {
        let comm = rank.communicator()?;
        let stream = Stream::new()?;
        let mut data = Exchange::new(&comm, 1000)?;
        let graph = local(&stream, || data.all_reduce(&comm, &stream))?;
        data.prepare(1);
        data.upload(&stream)?;
        graph.launch(&stream)?;
        data.download(&stream)?;
        stream.synchronize()?;
        data.check("replay", 1)?;
        drop(graph);
        rank.doing("destroying a communicator whose graph is gone");
        finish(rank, comm)?;
    }
    Ok(())
}
