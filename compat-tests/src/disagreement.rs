//! Part `badinput`, second half: ranks that disagree about an operation, a rank that does not come, strangers at the bootstrap's door.

use crate::badinput::PART;
use crate::check::{Check, both, processes};
use crate::communicator::{Comm, MAX, SUM};
use crate::driver::Stream;
use crate::element::Type;
use crate::exercise::{Words, works};
use crate::library::{SUCCESS, code_name};
use crate::outcome::{Outcome, Stop, ensure, fail};
use crate::ranks::Rank;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a disagreement may take to be found.
const FOUND_WITHIN: Duration = Duration::from_secs(10);

pub fn checks() -> Vec<Check> {
    let disagreement = |name, cases: &'static [Pair]| Check::new(PART, name, both(&[2]), move |rank| disagree(rank, cases));
    vec![
        disagreement("ranks call different operations", &DIFFERENT_OPERATIONS),
        disagreement("ranks pass different counts", &DIFFERENT_COUNTS),
        disagreement("ranks pass different types", &DIFFERENT_TYPES),
        disagreement("ranks pass different roots", &DIFFERENT_ROOTS),
        disagreement("ranks pass different operators", &DIFFERENT_OPERATORS),
        disagreement("a receive of another size than the send", &DIFFERENT_MESSAGES),
        Check::new(PART, "one of three ranks disagrees", both(&[3]), one_of_three),
        Check::new(PART, "a rank that never comes is named after MKERNEL_WARN_S", both(&[3]), never_comes).with("MKERNEL_WARN_S", "1"),
        Check::new(PART, "garbage connections to the bootstrap port", both(&[2]), garbage),
        Check::new(PART, "strangers connect and say nothing", processes(2), silent_strangers),
    ]
}

/// A call that one rank makes.
#[derive(Debug, Clone, Copy)]
enum Call {
    AllReduce(usize, Type, i32),
    Reduce(usize, Type, i32, usize),
    Broadcast(usize, Type, usize),
    AllGather(usize, Type),
    ReduceScatter(usize, Type, i32),
    Send(usize, Type),
    Recv(usize, Type),
}

/// What rank 0 and the others call, and the words for the two sides that every rank's message must hold.
type Pair = (Call, Call, [&'static str; 2]);

const DIFFERENT_OPERATIONS: [Pair; 3] = [
    (Call::AllReduce(100, Type::Float32, SUM), Call::Broadcast(100, Type::Float32, 0), ["allreduce", "broadcast"]),
    (Call::AllGather(50_000, Type::Int32), Call::ReduceScatter(50_000, Type::Int32, SUM), ["allgather", "reducescatter"]),
    (Call::AllReduce(10, Type::Float32, SUM), Call::AllReduce(500_000, Type::Float32, SUM), ["count10", "count500000"]),
];
const DIFFERENT_COUNTS: [Pair; 3] = [
    (Call::AllReduce(1000, Type::Float32, SUM), Call::AllReduce(1001, Type::Float32, SUM), ["1000", "1001"]),
    (Call::AllGather(200_000, Type::Int8), Call::AllGather(300_000, Type::Int8), ["200000", "300000"]),
    (Call::Broadcast(4, Type::Int64, 1), Call::Broadcast(5, Type::Int64, 1), ["count4", "count5"]),
];
const DIFFERENT_TYPES: [Pair; 2] = [
    (Call::AllReduce(1000, Type::Float32, SUM), Call::AllReduce(1000, Type::Int32, SUM), ["float32", "int32"]),
    (Call::Broadcast(100_000, Type::Bfloat16, 0), Call::Broadcast(100_000, Type::Float16, 0), ["bfloat16", "float16"]),
];
const DIFFERENT_ROOTS: [Pair; 2] = [
    (Call::Broadcast(1000, Type::Float32, 0), Call::Broadcast(1000, Type::Float32, 1), ["root0", "root1"]),
    (Call::Reduce(100_000, Type::Float32, SUM, 1), Call::Reduce(100_000, Type::Float32, SUM, 0), ["root1", "root0"]),
];
const DIFFERENT_OPERATORS: [Pair; 2] = [
    (Call::AllReduce(1000, Type::Float32, SUM), Call::AllReduce(1000, Type::Float32, MAX), ["sum", "max"]),
    (Call::ReduceScatter(100_000, Type::Float32, SUM), Call::ReduceScatter(100_000, Type::Float32, MAX), ["sum", "max"]),
];
const DIFFERENT_MESSAGES: [Pair; 2] = [
    (Call::Send(1000, Type::Float32), Call::Recv(2000, Type::Float32), ["4000bytes", "8000bytes"]),
    (Call::Send(300_000, Type::Float32), Call::Recv(100_000, Type::Float32), ["1200000bytes", "400000bytes"]),
];

impl Call {
    fn make(self, comm: &Comm, send: &Words, recv: &Words, stream: &Stream) -> Outcome {
        let (send, recv) = (send.span(), recv.span());
        match self {
            Self::AllReduce(count, dtype, operator) => comm.all_reduce(send, recv, count, dtype, operator, stream),
            Self::Reduce(count, dtype, operator, root) => comm.reduce(send, recv, count, dtype, operator, root, stream),
            Self::Broadcast(count, dtype, root) => comm.broadcast(send, recv, count, dtype, root, stream),
            Self::AllGather(count, dtype) => comm.all_gather(send, recv, count, dtype, stream),
            Self::ReduceScatter(count, dtype, operator) => comm.reduce_scatter(send, recv, count, dtype, operator, stream),
            Self::Send(count, dtype) => comm.send(send, count, dtype, 1, stream),
            Self::Recv(count, dtype) => comm.recv(recv, count, dtype, 0, stream),
        }
    }
}

/// Polls until the communicator has an asynchronous error, and returns it.
fn async_error_of(comm: &Comm) -> Outcome<i32> {
    let begin = Instant::now();
    loop {
        match comm.settles_within(FOUND_WITHIN)? {
            SUCCESS if begin.elapsed() > FOUND_WITHIN => fail!("no asynchronous error {} s after the disagreement", FOUND_WITHIN.as_secs()),
            SUCCESS => std::thread::sleep(Duration::from_millis(1)),
            code => return Ok(code),
        }
    }
}

/// Small letters and digits only, so that no check hangs on blanks, brackets or capitals.
fn squeezed(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

fn disagree(rank: &Rank, pairs: &[Pair]) -> Outcome {
    let stream = Stream::new()?;
    let (send, recv) = (Words::new(2_000_000)?, Words::new(2_000_000)?);
    for (zero, others, words) in pairs {
        let comm = rank.communicator()?;
        works(&comm, 0)?;
        let own = if rank.rank == 0 { zero } else { others };
        let what = format!("rank 0 calls {zero:?}, the others {others:?}");
        rank.doing(&what);
        own.make(&comm, &send, &recv, &stream)?;
        ensure!(stream.finishes_within(FOUND_WITHIN)?, "{what}: the stream still waits after {} s", FOUND_WITHIN.as_secs());
        let code = async_error_of(&comm)?;
        // SAFETY: the communicator is live.
        let text = unsafe { rank.nccl.last_error(comm.raw) };
        let found = squeezed(&text);
        for word in words.iter().chain(&["rank0", "rank1"]) {
            ensure!(found.contains(word), "{what}: {} comes with a message that does not say \"{word}\": {text}", code_name(code));
        }
        rank.barrier()?;
        rank.doing("aborting after a disagreement");
        comm.abort()?;
        rank.barrier()?;
    }
    let comm = rank.communicator()?;
    works(&comm, 1)?;
    rank.barrier()?;
    comm.destroy()
}

/// The ranks that agree must not hang either, nor take data for good that are not.
fn one_of_three(rank: &Rank) -> Outcome {
    let stream = Stream::new()?;
    let (send, recv) = (Words::new(200_000)?, Words::new(200_000)?);
    for counts in [[100, 100, 99], [200_000, 100_000, 200_000]] {
        let comm = rank.communicator()?;
        rank.doing(&format!("all-reduce of {} words where the ranks pass {counts:?}", counts[rank.rank]));
        comm.all_reduce(send.span(), recv.span(), counts[rank.rank], Type::Uint32, SUM, &stream)?;
        ensure!(stream.finishes_within(FOUND_WITHIN)?, "counts {counts:?}: the stream still waits after {} s", FOUND_WITHIN.as_secs());
        async_error_of(&comm)?;
        rank.barrier()?;
        comm.abort()?;
        rank.barrier()?;
    }
    Ok(())
}

/// What this process has written to stderr so far; it is a file in memory that the harness gave it.
fn written_so_far() -> String {
    let mut bytes = vec![0u8; 1 << 20];
    // SAFETY: the buffer has the size given. Reading at an offset moves nobody's position.
    let length = unsafe { libc::pread(2, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes.truncate(usize::try_from(length).unwrap_or(0));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn never_comes(rank: &Rank) -> Outcome {
    let missing = rank.ranks - 1;
    let comm = rank.communicator()?;
    works(&comm, 0)?;
    let stream = Stream::new()?;
    let words = Words::new(1000)?;
    let mut told = true;
    if rank.rank != missing {
        comm.all_reduce(words.span(), words.span(), 1000, Type::Uint32, SUM, &stream)?;
        rank.doing("waiting for a message about the rank that does not come");
        let begin = Instant::now();
        let named = |text: &str| text.lines().any(|line| line.contains(&format!("rank {missing}")) && squeezed(line).contains("allreduce"));
        told = loop {
            if named(&written_so_far()) {
                break true;
            }
            if begin.elapsed() > Duration::from_secs(15) {
                break false;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        ensure!(!stream.finishes_within(Duration::ZERO)?, "the operation ended although rank {missing} never came");
    }
    rank.barrier()?;
    rank.doing("aborting an operation whose peer never came");
    comm.abort()?;
    ensure!(stream.finishes_within(FOUND_WITHIN)?, "the stream still waits {} s after the abort", FOUND_WITHIN.as_secs());
    ensure!(told, "15 s after an all-reduce without rank {missing}, no line of output names it (MKERNEL_WARN_S is 1)");
    rank.barrier()
}

/// The TCP ports on which this process listens.
fn listening_ports() -> Vec<(bool, u16)> {
    let own: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            std::fs::read_link(entry.ok()?.path()).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned)
        })
        .collect();
    let mut ports = Vec::new();
    for (file, v6) in [("/proc/self/net/tcp", false), ("/proc/self/net/tcp6", true)] {
        for line in std::fs::read_to_string(file).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else { continue };
            let port = local.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
            if let (Some(port), true, true) = (port, *state == "0A", own.iter().any(|own| own == inode)) {
                ports.push((v6, port));
            }
        }
    }
    ports
}

/// Waits until this process listens somewhere, and connects to each port once.
fn connect_to_all() -> Outcome<Vec<TcpStream>> {
    let begin = Instant::now();
    let ports = loop {
        let ports = listening_ports();
        if !ports.is_empty() {
            break ports;
        }
        if begin.elapsed() > Duration::from_secs(5) {
            return Err(Stop::Skipped("this process listens on no TCP port during initialisation".into()));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut connections = Vec::new();
    for (v6, port) in ports {
        let loopback =
            if v6 { SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port)) } else { SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        match TcpStream::connect_timeout(&loopback, Duration::from_secs(2)) {
            Ok(connection) => connections.push(connection),
            // Bound to another address than loopback.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => fail!("cannot connect to port {port}: {error}"),
        }
    }
    Ok(connections)
}

/// Strangers disturb rank 0 before the others have joined; `disturb` gets fresh connections. Returns what keeps connections open.
fn disturbed_init(rank: &Rank, disturb: impl Fn() -> Outcome<Vec<TcpStream>> + Sync) -> Outcome {
    const DISTURBED: usize = 0;
    let id = rank.id_from(0)?;
    let board = *rank.board();
    let comm = if rank.rank == 0 {
        rank.doing("creating a communicator while strangers connect");
        std::thread::scope(|scope| {
            let stranger = scope.spawn(|| {
                let kept = disturb();
                board.word(DISTURBED).store(1, std::sync::atomic::Ordering::Release);
                kept
            });
            // Joined only after the init, so that connections that stay open do stay open.
            let comm = Comm::init(rank.nccl, id, 0, rank.ranks, None);
            stranger.join().unwrap_or_else(|_| fail!("the stranger panicked"))?;
            comm
        })?
    } else {
        board.await_word(DISTURBED, 1)?;
        Comm::init(rank.nccl, id, rank.rank, rank.ranks, None)?
    };
    works(&comm, 0)?;
    rank.barrier()?;
    comm.destroy()
}

fn garbage(rank: &Rank) -> Outcome {
    let texts: [&[u8]; 5] = [b"", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64], &[0; 4096], &[0x7f; 3]];
    disturbed_init(rank, || {
        for text in texts {
            for mut connection in connect_to_all()? {
                // The other side may hang up as early as it likes.
                let _ = connection.write_all(text);
            }
        }
        Ok(Vec::new())
    })
}

/// Several connections that stay open and silent while the ranks join.
fn silent_strangers(rank: &Rank) -> Outcome {
    disturbed_init(rank, || {
        let mut kept = Vec::new();
        for _ in 0..4 {
            kept.extend(connect_to_all()?);
        }
        Ok(kept)
    })
}
