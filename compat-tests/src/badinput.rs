//! Part `badinput`: wrong calls are refused with a clear code and change nothing; wrong programs get a message instead of a hang.
//!
//! Calls that one rank can see to be wrong are in this file; ranks that disagree, or do not come, are in `disagreement.rs`.

use crate::check::{Check, LineUp, both};
use crate::communicator::{Comm, MAX, SUM};
use crate::driver::Stream;
use crate::element::Type;
use crate::exercise::{Words, works};
use crate::library::{Config, INVALID_ARGUMENT, INVALID_USAGE, RawComm, SUCCESS};
use crate::outcome::{Outcome, Stop, ensure, fail};
use crate::ranks::{How, Rank};
use std::ffi::{c_int, c_void};

pub const PART: &str = "badinput";

/// One process with one rank.
pub fn alone() -> Vec<LineUp> {
    vec![LineUp { ranks: 1, how: How::Processes }]
}

pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::new(PART, "NULL communicator", alone(), null_communicator),
        Check::new(PART, "foreign pointer as communicator", alone(), foreign_pointer),
        Check::new(PART, "destroyed communicator", alone(), destroyed),
        Check::new(PART, "type out of range", both(&[2]), bad_type),
        Check::new(PART, "operator out of range, of another type, of another communicator", both(&[2]), bad_operator),
        Check::new(PART, "root and peer out of range", both(&[2]), bad_root),
        Check::new(PART, "count that overflows", both(&[2]), bad_count),
        Check::new(PART, "NULL buffers", both(&[2]), null_buffers),
        Check::new(PART, "send to itself without a receive", both(&[2]), self_send),
        Check::new(PART, "arguments of initialisation", alone(), bad_init),
        Check::new(PART, "unreadable NCCL_CONF_FILE", alone(), unreadable_config).with("NCCL_CONF_FILE", MISSING_FILE),
        Check::new(PART, "texts of result codes", alone(), error_strings),
    ];
    checks.extend(crate::disagreement::checks());
    checks
}

/// A valid call with these arguments, as far as they are valid: each operation as (name, code).
struct Calls<'a> {
    rank: &'a Rank,
    comm: RawComm,
    stream: Stream,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    operator: c_int,
    root: c_int,
    _memory: [Words; 2],
}

impl<'a> Calls<'a> {
    fn new(rank: &'a Rank, comm: RawComm) -> Outcome<Self> {
        // Room for one element of any type from every rank.
        let memory = [Words::new(256)?, Words::new(256)?];
        let (send, recv) = (memory[0].span().as_ptr(), memory[1].span().as_mut_ptr());
        let stream = Stream::new()?;
        Ok(Self { rank, comm, stream, send, recv, count: 4, dtype: Type::Uint32.code(), operator: SUM, root: 0, _memory: memory })
    }

    fn reductions(&self) -> [(&'static str, c_int); 3] {
        let (n, stream) = (self.rank.nccl, self.stream.raw());
        // SAFETY: the memory holds the elements; what is not valid here must be refused before it is used.
        unsafe {
            [
                ("ncclAllReduce", (n.all_reduce)(self.send, self.recv, self.count, self.dtype, self.operator, self.comm, stream)),
                ("ncclReduce", (n.reduce)(self.send, self.recv, self.count, self.dtype, self.operator, self.root, self.comm, stream)),
                ("ncclReduceScatter", (n.reduce_scatter)(self.send, self.recv, self.count, self.dtype, self.operator, self.comm, stream)),
            ]
        }
    }

    fn rooted(&self) -> [(&'static str, c_int); 5] {
        let (n, stream) = (self.rank.nccl, self.stream.raw());
        // SAFETY: as above.
        let bcast = unsafe { (n.bcast)(self.recv, self.count, self.dtype, self.root, self.comm, stream) };
        let [broadcast, reduce, gather, scatter] = self.rooted_with_input();
        [broadcast, ("ncclBcast", bcast), reduce, gather, scatter]
    }

    /// Without ncclBcast, which has one buffer only.
    fn rooted_with_input(&self) -> [(&'static str, c_int); 4] {
        let (n, stream) = (self.rank.nccl, self.stream.raw());
        // SAFETY: as above.
        unsafe {
            [
                ("ncclBroadcast", (n.broadcast)(self.send, self.recv, self.count, self.dtype, self.root, self.comm, stream)),
                ("ncclReduce", (n.reduce)(self.send, self.recv, self.count, self.dtype, self.operator, self.root, self.comm, stream)),
                ("ncclGather", (n.gather)(self.send, self.recv, self.count, self.dtype, self.root, self.comm, stream)),
                ("ncclScatter", (n.scatter)(self.send, self.recv, self.count, self.dtype, self.root, self.comm, stream)),
            ]
        }
    }

    fn point_to_point(&self) -> [(&'static str, c_int); 2] {
        let (n, stream) = (self.rank.nccl, self.stream.raw());
        // SAFETY: as above.
        unsafe {
            [
                ("ncclSend", (n.send)(self.send, self.count, self.dtype, self.root, self.comm, stream)),
                ("ncclRecv", (n.recv)(self.recv, self.count, self.dtype, self.root, self.comm, stream)),
            ]
        }
    }

    fn all_to_all(&self) -> [(&'static str, c_int); 2] {
        let (n, stream) = (self.rank.nccl, self.stream.raw());
        // SAFETY: as above.
        unsafe {
            [
                ("ncclAllGather", (n.all_gather)(self.send, self.recv, self.count, self.dtype, self.comm, stream)),
                ("ncclAlltoAll", (n.all_to_all)(self.send, self.recv, self.count, self.dtype, self.comm, stream)),
            ]
        }
    }

    fn all(&self) -> Vec<(&'static str, c_int)> {
        let mut codes = self.reductions().to_vec();
        codes.extend(self.rooted());
        codes.extend(self.all_to_all());
        codes.extend(self.point_to_point());
        codes
    }
}

/// Every one of these calls must have been refused as an invalid argument.
fn all_refused(rank: &Rank, with: &str, codes: impl IntoIterator<Item = (&'static str, c_int)>) -> Outcome {
    codes.into_iter().try_for_each(|(call, code)| rank.nccl.refused(&format!("{call} with {with}"), code, INVALID_ARGUMENT))
}

/// The library has words for what it refused last.
fn has_words(rank: &Rank) -> Outcome {
    // SAFETY: NULL is allowed.
    let words = unsafe { rank.nccl.last_error(std::ptr::null_mut()) };
    ensure!(words.len() > 10, "ncclGetLastError says only \"{words}\"");
    Ok(())
}

/// The communicator still works, and so it ends.
fn still_works(rank: &Rank, comm: Comm) -> Outcome {
    rank.doing("using the communicator after refused calls");
    works(&comm, 1)?;
    rank.barrier()?;
    comm.destroy()
}

/// Queries and operations with a handle that is none.
fn handle_refused(rank: &Rank, with: &str, comm: RawComm) -> Outcome {
    all_refused(rank, with, Calls::new(rank, comm)?.all())?;
    let n = rank.nccl;
    let mut value = 0;
    let mut child = std::ptr::null_mut();
    // SAFETY: the pointers are valid for the calls; the handle must be refused before it is used.
    let codes = unsafe {
        [
            ("ncclCommCount", (n.comm_count)(comm, &mut value)),
            ("ncclCommUserRank", (n.comm_user_rank)(comm, &mut value)),
            ("ncclCommCuDevice", (n.comm_cu_device)(comm, &mut value)),
            ("ncclCommGetAsyncError", (n.comm_get_async_error)(comm, &mut value)),
            ("ncclCommSplit", (n.comm_split)(comm, 0, 0, &mut child, std::ptr::null_mut())),
        ]
    };
    all_refused(rank, with, codes)?;
    has_words(rank)
}

fn null_communicator(rank: &Rank) -> Outcome {
    handle_refused(rank, "a NULL communicator", std::ptr::null_mut())?;
    let n = rank.nccl;
    // SAFETY: NULL is allowed here: nothing to do.
    let codes = unsafe {
        let none = std::ptr::null_mut();
        [
            ("ncclCommFinalize", (n.comm_finalize)(none)),
            ("ncclCommDestroy", (n.comm_destroy)(none)),
            ("ncclCommAbort", (n.comm_abort)(none)),
        ]
    };
    codes.into_iter().try_for_each(|(call, code)| n.refused(&format!("{call}(NULL)"), code, SUCCESS))
}

fn foreign_pointer(rank: &Rank) -> Outcome {
    let zeros = vec![0u64; 1024];
    handle_refused(rank, "a pointer to zeros as communicator", zeros.as_ptr().cast_mut().cast())?;
    let ones = vec![u64::MAX; 1024];
    handle_refused(rank, "a pointer to ones as communicator", ones.as_ptr().cast_mut().cast())?;
    let n = rank.nccl;
    // SAFETY: memory of our own, which must be refused and not written.
    let codes = unsafe {
        let foreign: RawComm = zeros.as_ptr().cast_mut().cast();
        [
            ("ncclCommFinalize", (n.comm_finalize)(foreign)),
            ("ncclCommDestroy", (n.comm_destroy)(foreign)),
            ("ncclCommAbort", (n.comm_abort)(foreign)),
        ]
    };
    all_refused(rank, "a foreign pointer", codes)?;
    ensure!(zeros.iter().all(|word| *word == 0), "foreign memory was written");
    Ok(())
}

fn destroyed(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let raw = comm.raw;
    works(&comm, 0)?;
    comm.destroy()?;
    handle_refused(rank, "a destroyed communicator", raw)?;
    // SAFETY: must be refused before it is used.
    rank.nccl.refused("a second ncclCommDestroy", unsafe { (rank.nccl.comm_destroy)(raw) }, INVALID_ARGUMENT)
}

fn bad_type(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let mut calls = Calls::new(rank, comm.raw)?;
    for dtype in [-1, 12, 99, c_int::MAX, c_int::MIN] {
        calls.dtype = dtype;
        all_refused(rank, &format!("type {dtype}"), calls.all())?;
    }
    has_words(rank)?;
    still_works(rank, comm)
}

fn bad_operator(rank: &Rank) -> Outcome {
    let (comm, other) = (rank.communicator()?, rank.communicator()?);
    let mut calls = Calls::new(rank, comm.raw)?;
    for operator in [-1, 5, 1000, c_int::MAX, c_int::MIN] {
        calls.operator = operator;
        all_refused(rank, &format!("operator {operator}"), calls.reductions())?;
    }
    has_words(rank)?;
    let scalar = 3u32.to_le_bytes();
    let own = comm.pre_mul_sum(scalar.as_ptr(), false, Type::Uint32)?;
    let foreign = other.pre_mul_sum(scalar.as_ptr(), false, Type::Uint32)?;
    calls.operator = foreign;
    // Two communicators may give the same number to their first operators; then the number is this communicator's own.
    if foreign != own {
        all_refused(rank, "another communicator's operator", calls.reductions())?;
    }
    calls.operator = own;
    calls.dtype = Type::Float32.code();
    all_refused(rank, "an operator made for another type", calls.reductions())?;
    // SAFETY: numbers that must be refused.
    let codes = unsafe { [SUM, MAX, 4, -1, c_int::MAX].map(|operator| (operator, (rank.nccl.red_op_destroy)(operator, comm.raw))) };
    for (operator, code) in codes {
        rank.nccl.refused(&format!("ncclRedOpDestroy of {operator}"), code, INVALID_ARGUMENT)?;
    }
    comm.destroy_operator(own)?;
    calls.dtype = Type::Uint32.code();
    all_refused(rank, "a destroyed operator", calls.reductions())?;
    rank.barrier()?;
    other.destroy()?;
    still_works(rank, comm)
}

fn bad_root(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let mut calls = Calls::new(rank, comm.raw)?;
    for root in [-1, rank.ranks as c_int, c_int::MAX, c_int::MIN] {
        calls.root = root;
        all_refused(rank, &format!("root {root}"), calls.rooted())?;
        all_refused(rank, &format!("peer {root}"), calls.point_to_point())?;
    }
    has_words(rank)?;
    still_works(rank, comm)
}

fn bad_count(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let mut calls = Calls::new(rank, comm.raw)?;
    calls.dtype = Type::Float64.code();
    // The bytes do not fit 64 bits.
    for count in [usize::MAX, usize::MAX / 8 + 1] {
        calls.count = count;
        all_refused(rank, &format!("{count} elements of 8 bytes"), calls.all())?;
    }
    // The bytes of one block would fit, those of all ranks do not.
    calls.count = usize::MAX / 16 + 1;
    all_refused(rank, "blocks that together overflow", calls.all_to_all())?;
    has_words(rank)?;
    still_works(rank, comm)
}

/// A NULL buffer is refused where it would be used; where it is not, it is none of the library's business.
fn null_buffers(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let mut calls = Calls::new(rank, comm.raw)?;
    let (send, recv) = (calls.send, calls.recv);
    calls.root = rank.rank as c_int;
    (calls.send, calls.recv) = (std::ptr::null(), recv);
    // ncclBcast has its only buffer, so it would run, with another root on each rank.
    let with_input = calls.reductions().into_iter().chain(calls.rooted_with_input()).chain(calls.all_to_all());
    all_refused(rank, "a NULL send buffer", with_input)?;
    (calls.send, calls.recv) = (send, std::ptr::null_mut());
    all_refused(rank, "a NULL receive buffer", calls.reductions().into_iter().chain(calls.rooted()).chain(calls.all_to_all()))?;
    // Ungrouped sends and receives with a valid buffer would wait for a peer.
    let n = rank.nccl;
    let peer = (1 - rank.rank) as c_int;
    // SAFETY: NULL must be refused before it is used.
    let codes = unsafe {
        [
            ("ncclSend", (n.send)(std::ptr::null(), 4, calls.dtype, peer, comm.raw, calls.stream.raw())),
            ("ncclRecv", (n.recv)(std::ptr::null_mut(), 4, calls.dtype, peer, comm.raw, calls.stream.raw())),
        ]
    };
    all_refused(rank, "a NULL buffer", codes)?;
    has_words(rank)?;
    // Nothing is read or written when there is nothing.
    (calls.send, calls.recv, calls.count) = (std::ptr::null(), std::ptr::null_mut(), 0);
    calls.root = 0;
    for (call, code) in calls.reductions().into_iter().chain(calls.rooted()).chain(calls.all_to_all()) {
        rank.nccl.refused(&format!("{call} with NULL buffers and count 0"), code, SUCCESS)?;
    }
    calls.stream.synchronize()?;
    still_works(rank, comm)
}

fn self_send(rank: &Rank) -> Outcome {
    let comm = rank.communicator()?;
    let stream = Stream::new()?;
    let words = Words::new(10)?;
    rank.nccl.group_start()?;
    comm.send(words.span(), 10, Type::Uint32, rank.rank, &stream)?;
    // SAFETY: takes nothing; what the group holds is valid.
    let code = unsafe { (rank.nccl.group_end)() };
    rank.nccl.refused("ncclGroupEnd after a send to itself without a receive", code, INVALID_USAGE)?;
    has_words(rank)?;
    still_works(rank, comm)
}

fn bad_init(rank: &Rank) -> Outcome {
    let n = rank.nccl;
    let id = n.unique_id()?;
    let mut comm = std::ptr::null_mut();
    for (ranks, me) in [(0, 0), (-1, 0), (2, 2), (2, -1), (1, 1)] {
        // SAFETY: the pointer is valid for the call; the numbers must be refused.
        let code = unsafe { (n.comm_init_rank)(&mut comm, ranks, id, me) };
        n.refused(&format!("ncclCommInitRank as rank {me} of {ranks}"), code, INVALID_ARGUMENT)?;
    }
    // SAFETY: NULL must be refused.
    n.refused("ncclCommInitRank into NULL", unsafe { (n.comm_init_rank)(std::ptr::null_mut(), 1, id, 0) }, INVALID_ARGUMENT)?;
    // SAFETY: as above.
    n.refused("ncclGetUniqueId into NULL", unsafe { (n.get_unique_id)(std::ptr::null_mut()) }, INVALID_ARGUMENT)?;
    let (mut uninitialised, mut odd) = (Config::new(), Config::new());
    uninitialised.spoil_magic();
    odd.blocking = 17;
    for (with, config) in [("an uninitialised config", &mut uninitialised), ("blocking = 17", &mut odd)] {
        // SAFETY: the pointers are valid for the call; the config must be refused.
        let code = unsafe { (n.comm_init_rank_config)(&mut comm, 1, id, 0, config) };
        n.refused(&format!("ncclCommInitRankConfig with {with}"), code, INVALID_ARGUMENT)?;
    }
    has_words(rank)?;
    let mut comms = [std::ptr::null_mut(); 2];
    // SAFETY: both arrays have two elements; the devices must be refused.
    n.refused("ncclCommInitAll on device 99", unsafe { (n.comm_init_all)(comms.as_mut_ptr(), 2, [0, 99].as_ptr()) }, INVALID_ARGUMENT)?;
    // SAFETY: no element is read or written.
    n.refused("ncclCommInitAll of -1 devices", unsafe { (n.comm_init_all)(comms.as_mut_ptr(), -1, std::ptr::null()) }, INVALID_ARGUMENT)?;
    still_works(rank, rank.communicator()?)
}

const MISSING_FILE: &str = "/nonexistent/conformance.conf";

fn unreadable_config(rank: &Rank) -> Outcome {
    match rank.communicator() {
        Err(Stop::Failed(text)) if text.contains(MISSING_FILE) => Ok(()),
        Err(Stop::Failed(text)) => fail!("the message does not name {MISSING_FILE}: {text}"),
        Err(other) => Err(other),
        Ok(_) => fail!("a communicator was made although NCCL_CONF_FILE names {MISSING_FILE}, which does not exist"),
    }
}

fn error_strings(rank: &Rank) -> Outcome {
    // What people search for in logs.
    let wanted = [
        (0, "no error"),
        (1, "unhandled cuda error"),
        (2, "unhandled system error"),
        (3, "internal error"),
        (4, "invalid argument"),
        (5, "invalid usage"),
        (6, "remote process exited or there was a network error"),
        (7, "NCCL operation in progress"),
        (8, "timeout"),
        (99, "unknown result code"),
        (-1, "unknown result code"),
    ];
    for (code, words) in wanted {
        let text = rank.nccl.error_string(code);
        ensure!(text.contains(words), "ncclGetErrorString({code}) is \"{text}\", expected it to contain \"{words}\"");
    }
    Ok(())
}
