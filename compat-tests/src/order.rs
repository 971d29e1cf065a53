//! Part `order`: communicators do not wait for each other, and streams order what they should.

use crate::cases::Random;
use crate::check::{Check, both, processes};
use crate::communicator::{Comm, SUM};
use crate::driver::{Event, Gate, Stream};
use crate::element::Type;
use crate::exercise::{Exchange, Words, sum, word};
use crate::outcome::{Context, Outcome};
use crate::ranks::Rank;
use std::time::Duration;

const PART: &str = "order";

pub fn checks() -> Vec<Check> {
    vec![
        Check::new(PART, "two communicators in opposite order", both(&[2]), |rank| rotated(rank, 2)),
        Check::new(PART, "three communicators in rotated order", both(&[3]), |rank| rotated(rank, 3)),
        // Streams that share one of the driver's hardware queues wait for each other whenever something is pending behind a kernel, so what is to
        // be independent needs a queue of its own. There are 8 for a process, fewer under MPS; these checks have up to 24 streams.
        Check::new(PART, "six communicators busy at once in random order", both(&[2, 4]), busy).with("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        Check::new(PART, "ranks run ahead of a late one", both(&[3, 4]), run_ahead),
        Check::new(PART, "one communicator on alternating streams", both(&[2, 3]), alternating).with("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        Check::new(PART, "an event after the call covers it", both(&[2, 3]), event_covers),
        Check::new(PART, "input and output ordered by the stream alone", both(&[2, 4]), stream_ordered),
        Check::new(PART, "buffers reused after the event", both(&[2]), reuse),
        // One process's ranks share the legacy stream, where the first rank's operation would hold back the second's.
        Check::new(PART, "legacy default stream (0)", processes(2), |rank| special_stream(rank, 0)),
        Check::new(PART, "legacy default stream (1)", processes(2), |rank| special_stream(rank, 1)),
        Check::new(PART, "per-thread default stream (2)", both(&[2]), |rank| special_stream(rank, 2)),
    ]
}

/// A communicator with its own stream and buffers.
struct Lane {
    comm: Comm,
    stream: Stream,
    data: Exchange,
}

fn lanes(rank: &Rank, how_many: usize, count: impl Fn(usize) -> usize) -> Outcome<Vec<Lane>> {
    (0..how_many)
        .map(|index| {
            let comm = rank.communicator()?;
            Ok(Lane { comm, stream: Stream::new()?, data: Exchange::new(&comm, count(index))? })
        })
        .collect()
}

/// In rooted operations ranks may be several operations apart, for as long as they like.
fn run_ahead(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let late = rank.ranks - 1;
    let counts = [20_000, 7, 3_000];
    let sends: Vec<Words> = counts.iter().map(|count| Words::new(*count)).collect::<Outcome<_>>()?;
    let recvs: Vec<Words> = counts.iter().map(|count| Words::new(rank.ranks * count)).collect::<Outcome<_>>()?;
    for (round, words) in sends.iter().enumerate() {
        words.set(&stream, |at| word(rank.rank, round, at))?;
    }
    rank.barrier()?;
    if rank.rank == late {
        rank.doing("being late");
        std::thread::sleep(Duration::from_millis(600));
    }
    for ((send, recv), count) in sends.iter().zip(&recvs).zip(counts) {
        comm.gather(send.span(), recv.span(), count, Type::Uint32, 0, &stream)?;
    }
    stream.synchronize()?;
    if rank.rank == 0 {
        for ((round, recv), count) in recvs.iter().enumerate().zip(counts) {
            recv.check(&stream, &format!("gather {round}"), |at| word(at / count, round, at % count))?;
        }
    }
    destroy(rank, [comm])
}

fn destroy(rank: &Rank, comms: impl IntoIterator<Item = Comm>) -> Outcome {
    rank.barrier()?;
    rank.doing("destroying communicators");
    for comm in comms {
        comm.healthy()?;
        comm.destroy()?;
    }
    Ok(())
}

/// Rank r begins with communicator r, so that with blocking operations each would wait for the next for ever.
fn rotated(rank: &Rank, how_many: usize) -> Outcome {
    let mut lanes = lanes(rank, how_many, |index| [100, 50_000, 3000][index])?;
    for round in 0..20 {
        rank.doing(&format!("round {round}"));
        for lane in &mut lanes {
            lane.data.prepare(round);
            lane.data.upload(&lane.stream)?;
        }
        for step in 0..how_many {
            let lane = &lanes[(rank.rank + step) % how_many];
            lane.data.all_reduce(&lane.comm, &lane.stream)?;
        }
        for (index, lane) in lanes.iter_mut().enumerate() {
            lane.data.download(&lane.stream)?;
            lane.stream.synchronize()?;
            lane.data.check(&format!("communicator {index}"), round)?;
        }
    }
    destroy(rank, lanes.iter().map(|lane| lane.comm))
}

/// Each rank issues ten rounds on each communicator without waiting, in an order of its own.
fn busy(rank: &Rank) -> Outcome {
    const LANES: usize = 6;
    const ROUNDS: usize = 10;
    let mut lanes = lanes(rank, LANES, |index| [10, 700, 5000, 20_000, 65_536, 150_000][index])?;
    let results: Vec<Vec<Words>> =
        lanes.iter().map(|lane| (0..ROUNDS).map(|_| Words::new(lane.data.recv.count())).collect()).collect::<Outcome<_>>()?;
    for lane in &mut lanes {
        lane.data.prepare(0);
        lane.data.upload(&lane.stream)?;
    }
    let mut order: Vec<usize> = (0..LANES * ROUNDS).map(|at| at % LANES).collect();
    Random::new(rank.rank as u64 + 77).shuffle(&mut order);
    let mut rounds = [0; LANES];
    for index in order {
        let lane = &lanes[index];
        let target = &results[index][rounds[index]];
        rank.doing(&format!("round {} on communicator {index}", rounds[index]));
        lane.comm.all_reduce(lane.data.send.span(), target.span(), target.count(), Type::Uint32, SUM, &lane.stream)?;
        rounds[index] += 1;
    }
    for (lane, results) in lanes.iter().zip(&results) {
        for result in results {
            result.check(&lane.stream, "all-reduce", |at| sum(rank.ranks, 0, at))?;
        }
    }
    destroy(rank, lanes.iter().map(|lane| lane.comm))
}

/// Each operation reads what the one before, on another stream, has written; nothing but the communicator orders them.
fn alternating(rank: &Rank) -> Outcome {
    const STEPS: usize = 12;
    let comm = rank.communicator()?;
    let streams = [Stream::new()?, Stream::new()?, Stream::new()?];
    for count in [64, 40_000] {
        let chain = (0..=STEPS).map(|_| Words::new(count)).collect::<Outcome<Vec<_>>>()?;
        chain[0].set(&streams[0], |at| word(rank.rank, 0, at))?;
        for words in &chain[1..] {
            words.set(&streams[0], |_| 0)?;
        }
        let gate = Gate::default();
        // Without order, the operations on the other streams would now run ahead.
        streams[0].hold(&gate)?;
        for step in 0..STEPS {
            rank.doing(&format!("step {step} of {count} words"));
            comm.all_reduce(chain[step].span(), chain[step + 1].span(), count, Type::Uint32, SUM, &streams[step % 3])?;
        }
        gate.open();
        for stream in &streams {
            stream.synchronize()?;
        }
        // The first step sums over ranks, each later one multiplies by their number.
        let factor = |step: usize| (rank.ranks as u32).wrapping_pow(step as u32);
        for step in 0..STEPS {
            chain[step + 1].check(&streams[0], &format!("step {step}"), |at| sum(rank.ranks, 0, at).wrapping_mul(factor(step)))?;
        }
    }
    destroy(rank, [comm])
}

/// Work on another stream that waits for an event recorded right after the call sees the operation's result.
fn event_covers(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let (stream, other) = (Stream::new()?, Stream::new()?);
    let mut data = Exchange::new(&comm, 30_000)?;
    for round in 0..10 {
        rank.doing(&format!("round {round}"));
        data.prepare(round);
        // In turn, one rank is late.
        let gate = Gate::default();
        if round % rank.ranks == rank.rank {
            stream.hold(&gate)?;
        }
        data.upload(&stream)?;
        data.all_reduce(&comm, &stream)?;
        let event = Event::new()?;
        event.record(&stream)?;
        other.wait(&event)?;
        data.download(&other)?;
        gate.open();
        other.synchronize()?;
        data.check("what the event covers", round)?;
        // The next round's upload must not overtake this round on a slower rank's stream; it cannot, since the streams are in order here.
        stream.synchronize()?;
    }
    destroy(rank, [comm])
}

/// Twenty rounds in which copies before and after the operation, without any wait of the host, bring its input and take its output.
fn stream_ordered(rank: &Rank) -> Outcome {
    const ROUNDS: usize = 20;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    for count in [200, 60_000] {
        let data = (0..ROUNDS)
            .map(|round| {
                let mut data = Exchange::new(&comm, count)?;
                data.prepare(round);
                Ok(data)
            })
            .collect::<Outcome<Vec<_>>>()?;
        // All rounds go through the same two buffers.
        let (send, recv) = (Words::new(count)?, Words::new(count)?);
        rank.doing(&format!("{ROUNDS} rounds of {count} words"));
        for data in &data {
            data.upload(&stream)?;
            stream.copy(send.span(), data.send.span())?;
            comm.all_reduce(send.span(), recv.span(), count, Type::Uint32, SUM, &stream)?;
            stream.fill(send.span(), 0xdd)?;
            stream.copy(data.recv.span(), recv.span())?;
            stream.fill(recv.span(), 0xcc)?;
            data.download(&stream)?;
        }
        stream.synchronize()?;
        for (round, mut data) in data.into_iter().enumerate() {
            data.check("all-reduce", round)?;
        }
    }
    destroy(rank, [comm])
}

/// Once a rank's event has passed, its buffers are its own again, whatever the peers still do.
fn reuse(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let (stream, other) = (Stream::new()?, Stream::new()?);
    let (send, recv, kept) = (Words::new(50_000)?, Words::new(50_000)?, Words::new(50_000)?);
    for round in 0..20 {
        rank.doing(&format!("round {round}"));
        send.set(&other, |at| word(rank.rank, round, at))?;
        comm.all_reduce(send.span(), recv.span(), send.count(), Type::Uint32, SUM, &stream)?;
        let event = Event::new()?;
        event.record(&stream)?;
        event.synchronize()?;
        other.fill(send.span(), 0xdd)?;
        other.copy(kept.span(), recv.span())?;
        other.fill(recv.span(), 0xcc)?;
        kept.check(&other, "all-reduce", |at| sum(rank.ranks, round, at)).context(|| format!("round {round}"))?;
    }
    destroy(rank, [comm])
}

fn special_stream(rank: &Rank, handle: usize) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::special(handle);
    let mut data = Exchange::new(&comm, 5000)?;
    for round in 0..5 {
        rank.doing(&format!("round {round}"));
        data.once(&comm, &stream, round)?;
    }
    destroy(rank, [comm])
}
