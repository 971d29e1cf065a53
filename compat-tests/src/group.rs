//! Part `group`: what `ncclGroupStart` and `ncclGroupEnd` promise.

use crate::check::{Check, LineUp, both};
use crate::communicator::{Comm, SUM};
use crate::driver::Stream;
use crate::element::Type;
use crate::exercise::{Exchange, Words, sum, word, works};
use crate::library::{INVALID_ARGUMENT, INVALID_USAGE};
use crate::outcome::{Outcome, ensure};
use crate::ranks::{How, Rank};

const PART: &str = "group";

/// One process with one thread, which drives all ranks of a communicator.
fn alone() -> Vec<LineUp> {
    vec![LineUp { ranks: 1, how: How::Processes }]
}

pub fn checks() -> Vec<Check> {
    vec![
        Check::new(PART, "empty and nested groups", both(&[2]), nested),
        Check::new(PART, "group end without start is refused", alone(), end_without_start),
        Check::new(PART, "several communicators and streams in one group", both(&[2, 3]), several_communicators),
        Check::new(PART, "one communicator, several streams in one group", both(&[2]), several_streams),
        Check::new(PART, "a hundred operations in one group", both(&[2, 4]), hundred),
        Check::new(PART, "collectives, sends and receives in one group", both(&[3]), mixed),
        Check::new(PART, "many messages to one peer keep their order", both(&[2]), many_messages),
        Check::new(PART, "grouped against ungrouped send and receive", both(&[2]), asymmetric),
        Check::new(PART, "all-to-all of different sizes by send and receive", both(&[4]), all_to_all_v),
        Check::new(PART, "broadcasts with different roots and counts (all-gather-v)", both(&[2, 4]), all_gather_v),
        Check::new(PART, "an error inside a group drops the group", both(&[2]), error_drops_all),
        Check::new(PART, "one thread drives all ranks by ncclCommInitAll", alone(), |rank| {
            [1, 2, 4].iter().try_for_each(|ranks| one_thread(&Comm::init_all(rank.nccl, &vec![0; *ranks])?))
        }),
        Check::new(PART, "one thread drives all ranks by grouped ncclCommInitRank", alone(), grouped_init),
    ]
}

fn finish(rank: &Rank, comm: Comm) -> Outcome {
    comm.healthy()?;
    rank.barrier()?;
    comm.destroy()
}

fn nested(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    rank.nccl.group_start()?;
    rank.nccl.group_end()?;
    let mut data = [Exchange::new(&comm, 1000)?, Exchange::new(&comm, 20_000)?, Exchange::new(&comm, 3)?];
    for round in 0..5 {
        rank.doing(&format!("round {round}"));
        for data in &mut data {
            data.prepare(round);
            data.upload(&stream)?;
        }
        rank.nccl.group_start()?;
        rank.nccl.group_start()?;
        data[0].all_reduce(&comm, &stream)?;
        rank.nccl.group_start()?;
        rank.nccl.group_end()?;
        rank.nccl.group_end()?;
        data[1].all_reduce(&comm, &stream)?;
        rank.nccl.group_start()?;
        data[2].all_reduce(&comm, &stream)?;
        rank.nccl.group_end()?;
        rank.nccl.group_end()?;
        for data in &mut data {
            data.download(&stream)?;
            stream.synchronize()?;
            data.check("all-reduce in a nested group", round)?;
        }
    }
    finish(rank, comm)
}

fn end_without_start(rank: &Rank) -> Outcome {
    // SAFETY: takes nothing; no group is open.
    rank.nccl.refused("ncclGroupEnd without a start", unsafe { (rank.nccl.group_end)() }, INVALID_USAGE)?;
    rank.nccl.group_start()?;
    rank.nccl.group_end()
}

fn several_communicators(rank: &Rank) -> Outcome {
    let comms = [rank.communicator()?, rank.communicator()?, rank.communicator()?];
    let streams = [Stream::new()?, Stream::new()?];
    let mut data = comms.iter().map(|comm| Exchange::new(comm, 7000)).collect::<Outcome<Vec<_>>>()?;
    for round in 0..5 {
        rank.doing(&format!("round {round}"));
        for (index, data) in data.iter_mut().enumerate() {
            data.prepare(round);
            data.upload(&streams[index % 2])?;
        }
        rank.nccl.group_start()?;
        for step in 0..comms.len() {
            // Another order on every rank.
            let index = (rank.rank + step) % comms.len();
            data[index].all_reduce(&comms[index], &streams[index % 2])?;
        }
        rank.nccl.group_end()?;
        for (index, data) in data.iter_mut().enumerate() {
            data.download(&streams[index % 2])?;
            streams[index % 2].synchronize()?;
            data.check(&format!("communicator {index}"), round)?;
        }
    }
    rank.barrier()?;
    comms.into_iter().try_for_each(Comm::destroy)
}

/// All streams of a group are joined before its operations and released after them.
fn several_streams(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let streams = [Stream::new()?, Stream::new()?, Stream::new()?];
    let mut data = streams.iter().map(|_| Exchange::new(&comm, 9000)).collect::<Outcome<Vec<_>>>()?;
    for round in 0..5 {
        rank.doing(&format!("round {round}"));
        for (data, stream) in data.iter_mut().zip(&streams) {
            data.prepare(round);
            data.upload(stream)?;
        }
        rank.nccl.group_start()?;
        for (data, stream) in data.iter().zip(&streams) {
            data.all_reduce(&comm, stream)?;
        }
        rank.nccl.group_end()?;
        for (data, stream) in data.iter_mut().zip(&streams) {
            data.download(stream)?;
            stream.synchronize()?;
            data.check("all-reduce", round)?;
        }
    }
    finish(rank, comm)
}

fn hundred(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let data = (0..100).map(|index| Ok((Words::new(index * 17 + 1)?, Words::new(index * 17 + 1)?))).collect::<Outcome<Vec<_>>>()?;
    for (index, (send, _)) in data.iter().enumerate() {
        send.set(&stream, |at| word(rank.rank, index, at))?;
    }
    rank.doing("a group of a hundred all-reduces");
    rank.nccl.group_start()?;
    for (send, recv) in &data {
        comm.all_reduce(send.span(), recv.span(), send.count(), Type::Uint32, SUM, &stream)?;
    }
    rank.nccl.group_end()?;
    for (index, (_, recv)) in data.iter().enumerate() {
        recv.check(&stream, &format!("operation {index}"), |at| sum(rank.ranks, index, at))?;
    }
    finish(rank, comm)
}

fn mixed(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let (next, previous) = ((rank.rank + 1) % rank.ranks, (rank.rank + rank.ranks - 1) % rank.ranks);
    let mut data = Exchange::new(&comm, 4000)?;
    let (from, to) = (Words::new(2500)?, Words::new(2500)?);
    let gathered = Words::new(2500 * rank.ranks)?;
    for round in 0..5 {
        rank.doing(&format!("round {round}"));
        from.set(&stream, |at| word(rank.rank, 1000 + round, at))?;
        data.prepare(round);
        data.upload(&stream)?;
        rank.nccl.group_start()?;
        comm.send(from.span(), 2500, Type::Uint32, next, &stream)?;
        data.all_reduce(&comm, &stream)?;
        comm.recv(to.span(), 2500, Type::Uint32, previous, &stream)?;
        comm.all_gather(from.span(), gathered.span(), 2500, Type::Uint32, &stream)?;
        rank.nccl.group_end()?;
        data.download(&stream)?;
        to.check(&stream, "receive", |at| word(previous, 1000 + round, at))?;
        gathered.check(&stream, "all-gather", |at| word(at / 2500, 1000 + round, at % 2500))?;
        data.check("all-reduce", round)?;
    }
    finish(rank, comm)
}

/// Messages of different sizes, zero among them: one taken for another gives wrong words or a wrong length.
fn many_messages(rank: &Rank) -> Outcome {
    const MESSAGES: usize = 32;
    let length = |index: usize| if index == 5 { 0 } else { 1 + index * 211 % 3000 };
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let peer = 1 - rank.rank;
    let sent = (0..MESSAGES).map(|index| Words::new(length(index))).collect::<Outcome<Vec<_>>>()?;
    let received = (0..MESSAGES).map(|index| Words::new(length(index))).collect::<Outcome<Vec<_>>>()?;
    for (index, words) in sent.iter().enumerate() {
        words.set(&stream, |at| word(rank.rank, index, at))?;
    }
    rank.doing("a group of many sends and receives");
    rank.nccl.group_start()?;
    // One rank posts all sends first, the other all receives.
    for receiving in [rank.rank == 0, rank.rank == 1] {
        for index in 0..MESSAGES {
            if receiving {
                comm.recv(received[index].span(), length(index), Type::Uint32, peer, &stream)?;
            } else {
                comm.send(sent[index].span(), length(index), Type::Uint32, peer, &stream)?;
            }
        }
    }
    rank.nccl.group_end()?;
    for (index, words) in received.iter().enumerate() {
        words.check(&stream, &format!("message {index}"), |at| word(peer, index, at))?;
    }
    finish(rank, comm)
}

/// Rank 0 groups its send and receive; rank 1 sends, then receives, without a group.
fn asymmetric(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let peer = 1 - rank.rank;
    for (round, count) in [10, 3000, 300_000].into_iter().enumerate() {
        rank.doing(&format!("{count} words"));
        let (from, to) = (Words::new(count)?, Words::new(count)?);
        from.set(&stream, |at| word(rank.rank, round, at))?;
        if rank.rank == 0 {
            rank.nccl.group_start()?;
            comm.send(from.span(), count, Type::Uint32, peer, &stream)?;
            comm.recv(to.span(), count, Type::Uint32, peer, &stream)?;
            rank.nccl.group_end()?;
        } else {
            comm.send(from.span(), count, Type::Uint32, peer, &stream)?;
            comm.recv(to.span(), count, Type::Uint32, peer, &stream)?;
        }
        to.check(&stream, "receive", |at| word(peer, round, at))?;
    }
    finish(rank, comm)
}

/// Rank s sends s * 1000 + d * 37 words to rank d, itself included.
fn all_to_all_v(rank: &Rank) -> Outcome {
    let length = |from: usize, to: usize| from * 1000 + to * 37;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let sent = (0..rank.ranks).map(|peer| Words::new(length(rank.rank, peer))).collect::<Outcome<Vec<_>>>()?;
    let received = (0..rank.ranks).map(|peer| Words::new(length(peer, rank.rank))).collect::<Outcome<Vec<_>>>()?;
    for (peer, words) in sent.iter().enumerate() {
        words.set(&stream, |at| word(rank.rank, peer, at))?;
    }
    rank.doing("a group of sends and receives of different sizes");
    rank.nccl.group_start()?;
    for (peer, words) in sent.iter().enumerate() {
        comm.send(words.span(), words.count(), Type::Uint32, peer, &stream)?;
    }
    for (peer, words) in received.iter().enumerate().rev() {
        comm.recv(words.span(), words.count(), Type::Uint32, peer, &stream)?;
    }
    rank.nccl.group_end()?;
    for (peer, words) in received.iter().enumerate() {
        words.check(&stream, &format!("from rank {peer}"), |at| word(peer, rank.rank, at))?;
    }
    finish(rank, comm)
}

fn all_gather_v(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let length = |root: usize| 100 + root * 4321;
    let own = Words::new(length(rank.rank))?;
    let received = (0..rank.ranks).map(|root| Words::new(length(root))).collect::<Outcome<Vec<_>>>()?;
    for round in 0..3 {
        rank.doing(&format!("round {round}"));
        own.set(&stream, |at| word(rank.rank, round, at))?;
        rank.nccl.group_start()?;
        for (root, words) in received.iter().enumerate() {
            let from = if root == rank.rank { own.span() } else { words.span() };
            comm.broadcast(from, words.span(), length(root), Type::Uint32, root, &stream)?;
        }
        rank.nccl.group_end()?;
        for (root, words) in received.iter().enumerate() {
            words.check(&stream, &format!("from root {root}"), |at| word(root, round, at))?;
        }
    }
    finish(rank, comm)
}

/// A wrong call is refused at once, the end of the group tells it again, nothing of the group runs, and the communicator still works.
fn error_drops_all(rank: &Rank) -> Outcome {
    const UNTOUCHED: u32 = 0xabab_abab;
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let (send, recv) = (Words::new(1000)?, Words::new(1000)?);
    send.set(&stream, |at| word(rank.rank, 0, at))?;
    recv.set(&stream, |_| UNTOUCHED)?;
    rank.nccl.group_start()?;
    comm.all_reduce(send.span(), recv.span(), 1000, Type::Uint32, SUM, &stream)?;
    // SAFETY: the type is out of range, which must be refused before anything is used.
    let code = unsafe { (rank.nccl.all_reduce)(send.span().as_ptr(), recv.span().as_mut_ptr(), 1000, 99, SUM, comm.raw, stream.raw()) };
    rank.nccl.refused("ncclAllReduce with type 99 in a group", code, INVALID_ARGUMENT)?;
    // SAFETY: takes nothing.
    rank.nccl.refused("ncclGroupEnd after a refused call", unsafe { (rank.nccl.group_end)() }, INVALID_ARGUMENT)?;
    recv.check(&stream, "the receive buffer of a dropped operation", |_| UNTOUCHED)?;
    works(&comm, 1)?;
    finish(rank, comm)
}

/// Operations of all ranks in groups of one thread.
fn one_thread(comms: &[Comm]) -> Outcome {
    let ranks = comms.len();
    let nccl = comms[0].nccl;
    let streams = comms.iter().map(|_| Stream::new()).collect::<Outcome<Vec<_>>>()?;
    let mut data = comms.iter().map(|comm| Exchange::new(comm, 12_345)).collect::<Outcome<Vec<_>>>()?;
    for (rank, comm) in comms.iter().enumerate() {
        let (count, user_rank, device) = (comm.count()?, comm.user_rank()?, comm.device()?);
        ensure!((count, user_rank, device) == (ranks, rank, 0), "communicator {rank} says rank {user_rank} of {count} on device {device}");
    }
    for round in 0..3 {
        for (data, stream) in data.iter_mut().zip(&streams) {
            data.prepare(round);
            data.upload(stream)?;
        }
        nccl.group_start()?;
        for ((comm, data), stream) in comms.iter().zip(&data).zip(&streams) {
            data.all_reduce(comm, stream)?;
        }
        nccl.group_end()?;
        for (rank, (data, stream)) in data.iter_mut().zip(&streams).enumerate() {
            data.download(stream)?;
            stream.synchronize()?;
            data.check(&format!("rank {rank} of {ranks}"), round)?;
        }
    }
    comms.iter().try_for_each(|comm| comm.destroy())
}

fn grouped_init(rank: &Rank) -> Outcome {
    for ranks in [2, 3] {
        let id = rank.nccl.unique_id()?;
        let mut handles = vec![std::ptr::null_mut(); ranks];
        rank.nccl.group_start()?;
        for (index, handle) in handles.iter_mut().enumerate() {
            // SAFETY: the pointer stays valid until the end of the group, which fills it.
            let code = unsafe { (rank.nccl.comm_init_rank)(handle, ranks as i32, id, index as i32) };
            rank.nccl.check("ncclCommInitRank in a group", code)?;
        }
        rank.doing("ending a group of ncclCommInitRank");
        rank.nccl.group_end()?;
        let comms: Vec<_> = handles.into_iter().enumerate().map(|(index, raw)| Comm { nccl: rank.nccl, raw, rank: index, ranks }).collect();
        ensure!(comms.iter().all(|comm| !comm.raw.is_null()), "ncclGroupEnd left a communicator NULL");
        one_thread(&comms)?;
    }
    Ok(())
}
