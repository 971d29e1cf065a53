//! An NCCL on host memory for detects.rs: ranks, threads or processes, meet in a mapped file whose path is the unique id. It knows what the matrix
//! calls; everything else answers "internal error". It misbehaves on request: FAKE_NCCL=FAULT:RANK:COUNT makes one rank's collectives
//! of COUNT elements go wrong; FAULT is wrong, stale, overrun, spoil, fail, die or hang.

#[path = "../element.rs"]
#[allow(dead_code)]
mod element;

use element::{Accumulator, Element, Type, with_element};
use std::cell::RefCell;
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const SUCCESS: c_int = 0;
const INTERNAL_ERROR: c_int = 3;
const INVALID_ARGUMENT: c_int = 4;
/// Bytes that one rank may show the others.
const SLOT: usize = 8 << 20;

#[repr(C)]
pub struct UniqueId([u8; 128]);

/// The head of the mapped file.
struct Meeting {
    arrived: AtomicU32,
    generation: AtomicU32,
}

pub struct Comm {
    rank: usize,
    ranks: usize,
    meeting: *mut Meeting,
    /// Scalars of the premultiplying operators, whose handles count from 5: address, and whether it was on the host.
    scalars: Vec<Scalar>,
}

enum Scalar {
    Host(Vec<u8>),
    Device(*const u8),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    AllReduce,
    Reduce(usize),
    ReduceScatter,
    Broadcast(usize),
    AllGather,
    AllToAll,
    Gather(usize),
    Scatter(usize),
    Send(usize),
    Recv(usize),
}

#[derive(Clone, Copy)]
struct Call {
    kind: Kind,
    send: *const u8,
    recv: *mut u8,
    count: usize,
    dtype: Type,
    operator: c_int,
}

impl Comm {
    fn barrier(&self) {
        // SAFETY: the mapping lives as long as the process.
        let meeting = unsafe { &*self.meeting };
        let before = meeting.generation.load(Ordering::Acquire);
        if meeting.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks as u32 {
            meeting.arrived.store(0, Ordering::Relaxed);
            meeting.generation.fetch_add(1, Ordering::Release);
        }
        while meeting.generation.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
    }

    /// What `rank` shows. Valid between the two barriers of an operation.
    fn shown(&self, rank: usize) -> &[u8] {
        // SAFETY: the file has a page for the head and a slot for each rank; nobody writes between the barriers.
        unsafe { std::slice::from_raw_parts(self.meeting.cast::<u8>().add(4096 + rank * SLOT), SLOT) }
    }

    fn show(&self, bytes: &[u8]) {
        assert!(bytes.len() <= SLOT);
        // SAFETY: this rank's slot, which nobody reads before the barrier that follows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.meeting.cast::<u8>().add(4096 + self.rank * SLOT), bytes.len()) };
    }

    /// The fault asked for, if it is for this rank and count.
    fn fault(&self, count: usize) -> String {
        let asked = std::env::var("FAKE_NCCL").unwrap_or_default();
        asked.strip_suffix(&format!(":{}:{count}", self.rank)).unwrap_or_default().to_owned()
    }

    fn scalar<E: Element>(&self, operator: c_int, size: usize, decode: impl Fn(&[u8]) -> E) -> E {
        match &self.scalars[operator as usize - 5] {
            Scalar::Host(bytes) => decode(bytes),
            // SAFETY: the address was given as device memory, which is host memory here, and holds one element.
            Scalar::Device(address) => decode(unsafe { std::slice::from_raw_parts(*address, size) }),
        }
    }
}

/// Elements are bit patterns: read through memory, as the matrix wrote them.
fn read<E: Element>(bytes: &[u8]) -> E {
    assert_eq!(bytes.len(), size_of::<E>());
    // SAFETY: every element type is plain bits of this size.
    unsafe { bytes.as_ptr().cast::<E>().read_unaligned() }
}

/// Inputs of an operation with a scalar are shown in the accumulator's width times scalar by the reducer, so all ranks need all scalars: each
/// rank shows its scalar behind its data.
fn reduce<E: Element>(comm: &Comm, call: &Call, from: usize) -> Vec<u8> {
    let size = size_of::<E>();
    let blocks = if call.kind == Kind::ReduceScatter { comm.ranks } else { 1 };
    let tail = call.count * blocks * size;
    let term = |rank: usize, at: usize| {
        let value = read::<E>(&comm.shown(rank)[(from + at) * size..(from + at + 1) * size]).widen();
        if call.operator >= 5 { value.multiply(read::<E>(&comm.shown(rank)[tail..tail + size]).widen()) } else { value }
    };
    let mut result = vec![0; call.count * size];
    for (at, target) in result.chunks_exact_mut(size).enumerate() {
        let folded = (1..comm.ranks).fold(term(0, at), |sum, rank| match call.operator {
            1 => sum.multiply(term(rank, at)),
            2 => sum.larger(term(rank, at)),
            3 => sum.smaller(term(rank, at)),
            _ => sum.add(term(rank, at)),
        });
        if call.operator == 4 { E::average(folded, comm.ranks) } else { E::round(folded) }.write(target);
    }
    result
}

/// Runs one collective on all ranks.
fn collective(comm: &Comm, call: &Call) -> c_int {
    let fault = comm.fault(call.count);
    match fault.as_str() {
        "fail" => return INTERNAL_ERROR,
        "die" => std::process::abort(),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
    let (bytes, ranks) = (call.count * call.dtype.size(), comm.ranks);
    let sends = match call.kind {
        Kind::ReduceScatter | Kind::AllToAll => bytes * ranks,
        Kind::Scatter(root) if root == comm.rank => bytes * ranks,
        Kind::Scatter(_) => 0,
        Kind::Broadcast(root) if root != comm.rank => 0,
        _ => bytes,
    };
    // SAFETY: the caller's send buffer.
    let mut data = if sends == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(call.send, sends) }.to_vec() };
    if call.operator >= 5 {
        let size = call.dtype.size();
        fn own<E: Element>(comm: &Comm, operator: c_int, size: usize) -> Vec<u8> {
            let mut bytes = vec![0; size];
            comm.scalar(operator, size, read::<E>).write(&mut bytes);
            bytes
        }
        data.extend(with_element!(call.dtype, own(comm, call.operator, size)));
    }
    comm.show(&data);
    comm.barrier();
    let block = |rank: usize, index: usize| &comm.shown(rank)[index * bytes..(index + 1) * bytes];
    let mut result = match call.kind {
        Kind::AllReduce => with_element!(call.dtype, reduce(comm, call, 0)),
        Kind::Reduce(root) if root == comm.rank => with_element!(call.dtype, reduce(comm, call, 0)),
        Kind::ReduceScatter => with_element!(call.dtype, reduce(comm, call, comm.rank * call.count)),
        Kind::Broadcast(root) => block(root, 0).to_vec(),
        Kind::AllGather => (0..ranks).flat_map(|rank| block(rank, 0).to_vec()).collect(),
        Kind::AllToAll => (0..ranks).flat_map(|rank| block(rank, comm.rank).to_vec()).collect(),
        Kind::Gather(root) if root == comm.rank => (0..ranks).flat_map(|rank| block(rank, 0).to_vec()).collect(),
        Kind::Scatter(root) => block(root, comm.rank).to_vec(),
        Kind::Reduce(_) | Kind::Gather(_) | Kind::Send(_) | Kind::Recv(_) => Vec::new(),
    };
    comm.barrier();
    match fault.as_str() {
        "wrong" => result.iter_mut().for_each(|byte| *byte ^= 1),
        "stale" => return SUCCESS,
        "overrun" => result.push(0),
        // SAFETY: the send buffer is the matrix's own writable memory, with a guard zone before it; writing there is the fault asked for.
        "spoil" => unsafe { *call.send.cast_mut().sub(1) ^= 1 },
        _ => {}
    }
    // SAFETY: the caller's receive buffer; an overrun hits the guard zone behind it.
    unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), call.recv, result.len()) };
    SUCCESS
}

/// Runs the sends and receives of a group: each rank shows its messages, each as receiver, length and data.
fn exchange(comm: &Comm, calls: &[Call]) -> c_int {
    let mut shown = Vec::new();
    for call in calls {
        if let Kind::Send(peer) = call.kind {
            let bytes = call.count * call.dtype.size();
            shown.extend((peer as u64).to_le_bytes());
            shown.extend((bytes as u64).to_le_bytes());
            // SAFETY: the caller's send buffer.
            shown.extend(unsafe { std::slice::from_raw_parts(call.send, bytes) });
        }
    }
    shown.extend(u64::MAX.to_le_bytes());
    comm.show(&shown);
    comm.barrier();
    let mut taken = vec![0; comm.ranks];
    for call in calls {
        let Kind::Recv(peer) = call.kind else { continue };
        let mut rest = comm.shown(peer);
        let number = |bytes: &mut &[u8]| {
            let (head, tail) = bytes.split_at(8);
            *bytes = tail;
            u64::from_le_bytes(head.try_into().unwrap_or_default()) as usize
        };
        let mut nth = 0;
        loop {
            let to = number(&mut rest);
            assert_ne!(to, u64::MAX as usize, "nobody sends what rank {} receives from {peer}", comm.rank);
            let bytes = number(&mut rest);
            if to == comm.rank {
                if nth == taken[peer] {
                    // SAFETY: the caller's receive buffer.
                    unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), call.recv, bytes) };
                    taken[peer] += 1;
                    break;
                }
                nth += 1;
            }
            rest = &rest[bytes..];
        }
    }
    comm.barrier();
    SUCCESS
}

/// Runs a group, or hands it to the fake driver if the calling thread is capturing.
fn run_or_record(comm: *mut Comm, calls: Vec<Call>) -> c_int {
    type Work = Box<dyn Fn() -> c_int>;
    type Record = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
    /// # Safety
    /// `work` is a leaked `Work`.
    unsafe extern "C" fn run(work: *mut c_void) -> c_int {
        // SAFETY: the contract above.
        unsafe { (*work.cast::<Work>())() }
    }
    let work = move || {
        // SAFETY: a communicator outlives its operations.
        let comm = unsafe { &*comm };
        let (messages, collectives): (Vec<Call>, Vec<Call>) =
            calls.iter().partition(|call| matches!(call.kind, Kind::Send(_) | Kind::Recv(_)));
        let code = collectives.iter().map(|call| collective(comm, call)).max().unwrap_or(SUCCESS);
        if code == SUCCESS && !messages.is_empty() { exchange(comm, &messages) } else { code }
    };
    let work: *mut Work = Box::into_raw(Box::new(Box::new(work)));
    // SAFETY: the fake driver is loaded already, and the type is that of its function. The work is leaked, so it lives as long as any graph.
    let recorded = unsafe {
        let driver = libloading::os::unix::Library::new("libcuda.so.1");
        driver.is_ok_and(|driver| driver.get::<Record>(b"fakeCudaRecord\0").is_ok_and(|record| record(run, work.cast()) == 1))
    };
    // SAFETY: as above.
    if recorded { SUCCESS } else { unsafe { run(work.cast()) } }
}

thread_local! {
    static GROUP: RefCell<(u32, Vec<(*mut Comm, Call)>)> = const { RefCell::new((0, Vec::new())) };
}

fn enqueue(kind: Kind, send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, operator: c_int, comm: *mut Comm) -> c_int {
    let Some(dtype) = usize::try_from(dtype).ok().and_then(|code| Type::ALL.get(code)) else { return INVALID_ARGUMENT };
    let call = Call { kind, send: send.cast(), recv: recv.cast(), count, dtype: *dtype, operator };
    let grouped = GROUP.with_borrow_mut(|group| {
        if group.0 > 0 {
            group.1.push((comm, call));
        }
        group.0 > 0
    });
    if grouped { SUCCESS } else { run_or_record(comm, vec![call]) }
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        /// # Safety
        /// As the NCCL function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller keeps the contract of the NCCL function of this name.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}

/// Functions that are there to be found.
macro_rules! unknown {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            INTERNAL_ERROR
        }
    )*};
}

unknown! {
    ncclCommInitRankConfig ncclCommInitRankScalable ncclCommInitAll ncclCommSplit ncclCommFinalize ncclCommAbort ncclCommCount ncclCommUserRank
    ncclCommCuDevice ncclCommRegister ncclCommDeregister ncclCommWindowRegister ncclCommWindowDeregister ncclMemAlloc ncclMemFree
}

type Stream = *mut c_void;

calls! {
    ncclGetVersion(version: *mut c_int) -> c_int { *version = 23007; SUCCESS }
    ncclGetErrorString(_code: c_int) -> *const c_char { c"fake error".as_ptr() }
    ncclGetLastError(_comm: *mut Comm) -> *const c_char { c"paper jam".as_ptr() }

    ncclGetUniqueId(id: *mut UniqueId) -> c_int {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("conformance-fake-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let text = path.as_os_str().as_bytes();
        (*id).0 = [0; 128];
        (&mut (*id).0)[..text.len()].copy_from_slice(text);
        let created = OpenOptions::new().create(true).truncate(true).write(true).open(&path);
        if created.is_ok() { SUCCESS } else { INTERNAL_ERROR }
    }

    ncclCommInitRank(comm: *mut *mut Comm, ranks: c_int, id: UniqueId, rank: c_int) -> c_int {
        let path = OsStr::from_bytes(id.0.split(|byte| *byte == 0).next().unwrap_or(&[]));
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else { return INTERNAL_ERROR };
        let bytes = 4096 + ranks as usize * SLOT;
        if file.set_len(bytes as u64).is_err() {
            return INTERNAL_ERROR;
        }
        let base = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if base == libc::MAP_FAILED {
            return INTERNAL_ERROR;
        }
        let (rank, ranks) = (rank as usize, ranks as usize);
        let made = Comm { rank, ranks, meeting: base.cast(), scalars: Vec::new() };
        made.barrier();
        if rank == 0 {
            let _ = std::fs::remove_file(path);
        }
        *comm = Box::into_raw(Box::new(made));
        SUCCESS
    }

    ncclCommDestroy(comm: *mut Comm) -> c_int { drop(Box::from_raw(comm)); SUCCESS }
    ncclCommGetAsyncError(_comm: *mut Comm, state: *mut c_int) -> c_int { *state = SUCCESS; SUCCESS }

    ncclRedOpCreatePreMulSum(operator: *mut c_int, scalar: *mut c_void, dtype: c_int, residence: c_int, comm: *mut Comm) -> c_int {
        let scalars = &mut (*comm).scalars;
        scalars.push(match residence {
            0 => Scalar::Device(scalar.cast()),
            _ => Scalar::Host(std::slice::from_raw_parts(scalar.cast::<u8>(), Type::ALL[dtype as usize].size()).to_vec()),
        });
        *operator = 4 + scalars.len() as c_int;
        SUCCESS
    }
    // Numbers are not used again, so that a captured operation keeps its scalar.
    ncclRedOpDestroy(_operator: c_int, _comm: *mut Comm) -> c_int { SUCCESS }

    ncclAllReduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, operator: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::AllReduce, send, recv, count, dtype, operator, comm)
    }
    ncclReduceScatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, operator: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::ReduceScatter, send, recv, count, dtype, operator, comm)
    }
    ncclReduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, operator: c_int, root: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Reduce(root as usize), send, recv, count, dtype, operator, comm)
    }
    ncclBroadcast(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Broadcast(root as usize), send, recv, count, dtype, 0, comm)
    }
    ncclBcast(buffer: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Broadcast(root as usize), buffer, buffer, count, dtype, 0, comm)
    }
    ncclAllGather(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::AllGather, send, recv, count, dtype, 0, comm)
    }
    ncclAlltoAll(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::AllToAll, send, recv, count, dtype, 0, comm)
    }
    ncclGather(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Gather(root as usize), send, recv, count, dtype, 0, comm)
    }
    ncclScatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Scatter(root as usize), send, recv, count, dtype, 0, comm)
    }
    ncclSend(send: *const c_void, count: usize, dtype: c_int, peer: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Send(peer as usize), send, std::ptr::null_mut(), count, dtype, 0, comm)
    }
    ncclRecv(recv: *mut c_void, count: usize, dtype: c_int, peer: c_int, comm: *mut Comm, _stream: Stream) -> c_int {
        enqueue(Kind::Recv(peer as usize), std::ptr::null(), recv, count, dtype, 0, comm)
    }

    ncclGroupStart() -> c_int { GROUP.with_borrow_mut(|group| group.0 += 1); SUCCESS }
    ncclGroupEnd() -> c_int {
        let calls = GROUP.with_borrow_mut(|group| {
            group.0 -= 1;
            if group.0 == 0 { std::mem::take(&mut group.1) } else { Vec::new() }
        });
        match calls.first() {
            None => SUCCESS,
            Some((comm, _)) => run_or_record(*comm, calls.iter().map(|(_, call)| *call).collect()),
        }
    }
}
