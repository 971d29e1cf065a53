//! Part `faults`: ranks on several hosts, and something breaks: who is told what, how soon, and what is left behind. Processes only; each is a host of its own
//! number by `NCCL_HOSTID`.

use crate::check::{Check, LineUp};
use crate::communicator::{Comm, SUM};
use crate::driver::Stream;
use crate::element::Type;
use crate::exercise::{Words, works};
use crate::library::code_name;
use crate::outcome::{Outcome, Stop, ensure, fail};
use crate::ranks::{How, Rank};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PART: &str = "faults";
/// From the break to the error on every other rank.
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// Word of the board: the victim's process.
const VICTIM: usize = 0;
/// Ranks that have noticed that the victim is out of reach.
const NOTICED: usize = 1;

pub fn checks() -> Vec<Check> {
    let pairs = |ranks| vec![LineUp { ranks, how: How::Processes }];
    vec![
        Check::new(PART, "the last of four ranks on two hosts dies", pairs(4), |rank| dies(rank, 3)).nodes(2),
        Check::new(PART, "the first of four ranks on two hosts dies", pairs(4), |rank| dies(rank, 0)).nodes(2),
        Check::new(PART, "one of three hosts dies", pairs(3), |rank| dies(rank, 1)).nodes(3),
        Check::new(PART, "the last of four ranks on two hosts stops", pairs(4), |rank| stops(rank, 3)).nodes(2).limit(60),
        Check::new(PART, "the link of the last of three hosts is cut", pairs(3), cut).nodes(3).limit(60),
        Check::new(PART, "a rank of another host aborts", pairs(2), aborts).nodes(2),
        Check::new(PART, "descriptors and threads after fifty rounds between hosts", pairs(2), leaves_nothing).nodes(2).limit(60),
    ]
}

/// All but the victim are in a large all-reduce that the victim never joins.
fn begin(comm: &Comm, stream: &Stream, words: &Words) -> Outcome {
    let count = words.count();
    comm.all_reduce(words.span(), words.span(), count, Type::Uint32, SUM, stream)
}

/// Every rank but the victim: an error that names it, soon; then the stream completes and the abort returns.
fn survive(rank: &Rank, comm: Comm, stream: &Stream, victim: usize, since: Instant) -> Outcome {
    rank.doing("waiting for the error");
    let result = loop {
        let result = comm.async_error()?;
        if result != 0 || since.elapsed() > 2 * TOLD_WITHIN {
            break result;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let took = since.elapsed();
    // SAFETY: the communicator is live.
    let (result, text) = (code_name(result), unsafe { rank.nccl.last_error(comm.raw) });
    let found = ["ncclRemoteError", "ncclSystemError"].contains(&result.as_str());
    ensure!(found, "the asynchronous error is {result} after {:.1} s ({text})", took.as_secs_f64());
    ensure!(took < TOLD_WITHIN, "the error came after {:.1} s", took.as_secs_f64());
    ensure!(text.contains(&format!("rank {victim}")), "the message does not name rank {victim}: {text}");
    ensure!(stream.finishes_within(Duration::from_secs(1))?, "the stream still waits 1 s after the error");
    rank.doing("aborting");
    let began = Instant::now();
    comm.abort()?;
    ensure!(began.elapsed() < Duration::from_secs(1), "ncclCommAbort took {:.1} s", began.elapsed().as_secs_f64());
    expect_sockets(rank, 0)
}

fn dies(rank: &Rank, victim: usize) -> Outcome {
    let comm = rank.communicator()?;
    works(&comm, 0)?;
    let (stream, words) = (Stream::new()?, Words::new(300_000)?);
    if rank.rank != victim {
        begin(&comm, &stream, &words)?;
    }
    rank.barrier()?;
    if rank.rank == victim {
        rank.vanish();
    }
    survive(rank, comm, &stream, victim, Instant::now())
}

fn stops(rank: &Rank, victim: usize) -> Outcome {
    let pid = rank.board().word(VICTIM);
    if rank.rank == victim {
        pid.store(u64::from(std::process::id()), Ordering::Release);
    }
    let signal = |signal| {
        // SAFETY: a signal to a process of this check.
        unsafe { libc::kill(pid.load(Ordering::Acquire) as libc::pid_t, signal) == 0 }
    };
    let stop = || if rank.rank == 0 && !signal(libc::SIGSTOP) { Err("it cannot be stopped".into()) } else { Ok(()) };
    out_of_reach(rank, victim, stop, || {
        signal(libc::SIGCONT);
        Ok(())
    })
}

fn cut(rank: &Rank) -> Outcome {
    let victim = rank.ranks - 1;
    if rank.hosts.netns.is_none() {
        return Err(Stop::Skipped(
            "hosts without a network of their own have no link to cut (compat-tests/nodes/run.sh gives them one)".into(),
        ));
    }
    let is_victim = rank.rank == victim;
    out_of_reach(
        rank,
        victim,
        || if is_victim { rank.hosts.cut() } else { Ok(()) },
        || if is_victim { rank.hosts.mend(rank.hosts.of(victim, rank.ranks)) } else { Ok(()) },
    )
}

/// The victim is made unreachable while the others wait for it, until all of them have noticed. Every rank calls `lose`; `find` is called by the
/// last one to notice, then by the victim.
fn out_of_reach(rank: &Rank, victim: usize, lose: impl Fn() -> Result<(), String>, find: impl Fn() -> Result<(), String>) -> Outcome {
    let comm = rank.communicator()?;
    works(&comm, 0)?;
    let (stream, words) = (Stream::new()?, Words::new(300_000)?);
    if rank.rank != victim {
        begin(&comm, &stream, &words)?;
    }
    rank.barrier()?;
    lose().map_err(Stop::Failed)?;
    let noticed = rank.board().word(NOTICED);
    let others = rank.ranks as u64 - 1;
    if rank.rank == victim {
        rank.doing("being out of reach");
        while noticed.load(Ordering::Acquire) < others {
            std::thread::sleep(Duration::from_millis(1));
        }
        find().map_err(Stop::Failed)?;
        return comm.abort();
    }
    let survived = survive(rank, comm, &stream, victim, Instant::now());
    if noticed.fetch_add(1, Ordering::AcqRel) + 1 == others {
        find().map_err(Stop::Failed)?;
    }
    survived
}

fn aborts(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    works(&comm, 0)?;
    let (stream, words) = (Stream::new()?, Words::new(1000)?);
    if rank.rank == 0 {
        begin(&comm, &stream, &words)?;
    }
    rank.barrier()?;
    if rank.rank == 1 {
        return comm.abort();
    }
    survive(rank, comm, &stream, 1, Instant::now())
}

/// What this process has open that the network made: sockets, and threads of ours.
fn belongings() -> Outcome<(usize, usize)> {
    let list = |folder: &str| std::fs::read_dir(folder).map(|entries| entries.flatten().map(|e| e.path()).collect::<Vec<_>>());
    let (Ok(descriptors), Ok(tasks)) = (list("/proc/self/fd"), list("/proc/self/task")) else {
        fail!("/proc cannot be read");
    };
    let is_socket = |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
    let is_ours = |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("mkernel-net"));
    Ok((descriptors.iter().filter(|p| is_socket(p)).count(), tasks.iter().filter(|p| is_ours(p)).count()))
}

/// Waits until no more sockets than `sockets`, and no network threads, are left. Sockets of the bootstrap are not the network's.
fn expect_sockets(rank: &Rank, sockets: usize) -> Outcome {
    let began = Instant::now();
    loop {
        let (open, threads) = belongings()?;
        // Until all ranks have said goodbye, each has its connection to the root, and the root one to each.
        let bootstrap = if rank.rank == 0 { 2 * rank.ranks + 3 } else { 1 };
        if open <= sockets + bootstrap && threads == 0 {
            return Ok(());
        }
        if began.elapsed() > Duration::from_secs(2) {
            fail!("{open} sockets and {threads} network threads are left");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn leaves_nothing(rank: &Rank) -> Outcome {
    let mut first = 0;
    for round in 0..50 {
        let comm = rank.communicator()?;
        works(&comm, round)?;
        rank.barrier()?;
        comm.destroy()?;
        rank.barrier()?;
        if round == 4 {
            first = belongings()?.0;
        }
    }
    // The graves of the last communicators are visited when the next one is made.
    let comm = rank.communicator()?;
    works(&comm, 50)?;
    rank.barrier()?;
    comm.destroy()?;
    let open = belongings()?.0;
    ensure!(open <= first + 8, "{open} sockets are open after fifty rounds, {first} after five");
    Ok(())
}
