//! An NCCL on host memory for ../perf.rs: ranks, threads or processes, meet in a mapped file whose path is the unique id. It knows float and int32,
//! has no all-to-all, gather and scatter functions (so the tool must build them from sends and receives), and misbehaves on request:
//! FAKE_NCCL=wrong:R|overrun:R|spoil:R|fail:R|die:R|hang:R, where R is a rank.

use std::cell::RefCell;
use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, Ordering};

const SUCCESS: c_int = 0;
const INTERNAL_ERROR: c_int = 3;
const INVALID_ARGUMENT: c_int = 4;
/// Bytes that one rank may send.
const SLOT: usize = 1 << 20;
const FLOAT: c_int = 7;
const INT32: c_int = 2;

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
    /// Factors of the premultiplying operators, whose handles count from 5.
    factors: Vec<f32>,
    /// Buffers registered and not yet given back.
    registered: usize,
}

enum Queued {
    Send { peer: usize, from: *const u8, bytes: usize },
    Recv { peer: usize, to: *mut u8, bytes: usize },
}

/// Runs an operation, or hands it to the fake driver if the calling thread is capturing.
fn run_or_record(work: impl Fn() -> c_int + 'static) -> c_int {
    type Work = Box<dyn Fn() -> c_int>;
    type Record = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
    /// # Safety
    /// `work` is a leaked `Work`.
    unsafe extern "C" fn run(work: *mut c_void) -> c_int {
        // SAFETY: the contract above.
        unsafe { (*work.cast::<Work>())() }
    }
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
    static GROUP: RefCell<(u32, Vec<Queued>, *mut Comm)> = const { RefCell::new((0, Vec::new(), std::ptr::null_mut())) };
}

fn bytes_of(dtype: c_int) -> usize {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1][dtype as usize]
}

impl Comm {
    fn misbehaves(&self, how: &str) -> bool {
        std::env::var("FAKE_NCCL").is_ok_and(|text| text == format!("{how}:{}", self.rank))
    }

    fn barrier(&self) {
        // SAFETY: the mapping lives as long as the communicator.
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

    /// Where `rank`'s data for the others lies.
    fn slot(&self, rank: usize) -> *mut u8 {
        // SAFETY: the file has a page for the head and a slot for each rank.
        unsafe { self.meeting.cast::<u8>().add(4096 + rank * SLOT) }
    }

    fn sent_by(&self, rank: usize, from: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: inside the rank's slot, which nobody writes between the two barriers of an operation.
        unsafe { std::slice::from_raw_parts(self.slot(rank).add(from), bytes).to_vec() }
    }

    /// Every rank shows `data`, then takes what `result` makes of all of it. Returns the code of the call.
    fn operate(&self, data: &[u8], recv: *mut c_void, result: impl FnOnce(&Self) -> Option<Vec<u8>>) -> c_int {
        if self.misbehaves("fail") {
            return INTERNAL_ERROR;
        }
        if self.misbehaves("die") {
            std::process::abort();
        }
        while self.misbehaves("hang") {
            std::thread::park();
        }
        assert!(data.len() <= SLOT, "the fake NCCL takes up to {SLOT} bytes a rank");
        // SAFETY: inside this rank's slot, which the others read only after the barrier.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.slot(self.rank), data.len()) };
        self.barrier();
        let result = result(self);
        self.barrier();
        if let Some(mut result) = result {
            if self.misbehaves("wrong") && !result.is_empty() {
                result[0] ^= 1;
            }
            if self.misbehaves("overrun") {
                result.push(0);
            }
            // SAFETY: the caller's receive buffer (an overrun hits the guard zone that the tool keeps behind it).
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), recv.cast(), result.len()) };
        }
        SUCCESS
    }

    /// Reduces `bytes` bytes from offset `from` of all slots, in rank order. Inputs of premultiplying operators were multiplied by their senders.
    fn reduce(&self, from: usize, bytes: usize, dtype: c_int, op: c_int) -> Vec<u8> {
        let all: Vec<Vec<u8>> = (0..self.ranks).map(|rank| self.sent_by(rank, from, bytes)).collect();
        let mut result = Vec::with_capacity(bytes);
        for at in (0..bytes).step_by(4) {
            let words = all.iter().map(|data| [data[at], data[at + 1], data[at + 2], data[at + 3]]);
            if dtype == FLOAT {
                let fold = |a: f32, b: f32| match op {
                    1 => a * b,
                    2 => a.max(b),
                    3 => a.min(b),
                    _ => a + b,
                };
                let sum = words.map(f32::from_le_bytes).reduce(fold).unwrap_or_default();
                result.extend(if op == 4 { sum / self.ranks as f32 } else { sum }.to_le_bytes());
            } else {
                let fold = |a: i32, b: i32| match op {
                    1 => a.wrapping_mul(b),
                    2 => a.max(b),
                    3 => a.min(b),
                    _ => a.wrapping_add(b),
                };
                let sum = words.map(i32::from_le_bytes).reduce(fold).unwrap_or_default();
                result.extend(if op == 4 { sum / self.ranks as i32 } else { sum }.to_le_bytes());
            }
        }
        result
    }

    /// This rank's data for a reduction.
    fn contribution(&self, send: *const c_void, bytes: usize, op: c_int) -> Vec<u8> {
        // SAFETY: the caller's send buffer.
        let mut data = unsafe { std::slice::from_raw_parts(send.cast::<u8>(), bytes) }.to_vec();
        if self.misbehaves("spoil") && bytes > 0 {
            // SAFETY: the tool's send buffer is writable memory; writing there is the fault asked for.
            unsafe { *send.cast_mut().cast::<u8>() ^= 1 };
        }
        if op >= 5 {
            for word in data.chunks_exact_mut(4) {
                let x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                word.copy_from_slice(&(x * self.factors[op as usize - 5]).to_le_bytes());
            }
        }
        data
    }
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

fn reducible(dtype: c_int, op: c_int) -> bool {
    dtype == FLOAT || (dtype == INT32 && op < 5)
}

calls! {
    ncclGetVersion(version: *mut c_int) -> c_int { *version = 23007; SUCCESS }
    ncclGetErrorString(_code: c_int) -> *const c_char { c"fake error".as_ptr() }
    ncclGetLastError(_comm: *mut Comm) -> *const c_char { c"paper jam".as_ptr() }

    ncclGetUniqueId(id: *mut UniqueId) -> c_int {
        let path = std::env::temp_dir().join(format!("fake-nccl-{}", std::process::id()));
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
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let base = libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if base == libc::MAP_FAILED {
            return INTERNAL_ERROR;
        }
        let made = Comm { rank: rank as usize, ranks: ranks as usize, meeting: base.cast(), factors: Vec::new(), registered: 0 };
        made.barrier();
        if rank == 0 {
            let path = CString::new(path.as_bytes()).unwrap_or_default();
            libc::unlink(path.as_ptr());
        }
        *comm = Box::into_raw(Box::new(made));
        SUCCESS
    }

    ncclCommDestroy(comm: *mut Comm) -> c_int {
        if Box::from_raw(comm).registered == 0 { SUCCESS } else { INVALID_ARGUMENT }
    }
    ncclMemAlloc(address: *mut *mut c_void, bytes: usize) -> c_int { *address = libc::malloc(bytes); SUCCESS }
    ncclMemFree(address: *mut c_void) -> c_int { libc::free(address); SUCCESS }
    ncclCommRegister(comm: *mut Comm, address: *mut c_void, _bytes: usize, handle: *mut *mut c_void) -> c_int {
        (*comm).registered += 1;
        *handle = address;
        SUCCESS
    }
    ncclCommDeregister(comm: *mut Comm, _handle: *mut c_void) -> c_int { (*comm).registered -= 1; SUCCESS }
    ncclCommAbort(_comm: *mut Comm) -> c_int { SUCCESS }
    ncclCommGetAsyncError(_comm: *mut Comm, state: *mut c_int) -> c_int { *state = SUCCESS; SUCCESS }

    ncclRedOpCreatePreMulSum(op: *mut c_int, factor: *mut c_void, dtype: c_int, _residence: c_int, comm: *mut Comm) -> c_int {
        if dtype != FLOAT {
            return INVALID_ARGUMENT;
        }
        let factors = &mut (*comm).factors;
        factors.push(*factor.cast::<f32>());
        *op = 4 + factors.len() as c_int;
        SUCCESS
    }
    ncclRedOpDestroy(_op: c_int, _comm: *mut Comm) -> c_int { SUCCESS }

    ncclAllReduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        if !reducible(dtype, op) {
            return INVALID_ARGUMENT;
        }
        let bytes = count * 4;
        run_or_record(move || {
            let data = (*comm).contribution(send, bytes, op);
            (*comm).operate(&data, recv, |comm| Some(comm.reduce(0, bytes, dtype, op)))
        })
    }

    ncclReduceScatter(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        if !reducible(dtype, op) {
            return INVALID_ARGUMENT;
        }
        let bytes = count * 4;
        run_or_record(move || {
            let data = (*comm).contribution(send, bytes * (*comm).ranks, op);
            (*comm).operate(&data, recv, |comm| Some(comm.reduce(comm.rank * bytes, bytes, dtype, op)))
        })
    }

    ncclReduce(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        if !reducible(dtype, op) {
            return INVALID_ARGUMENT;
        }
        let bytes = count * 4;
        run_or_record(move || {
            let data = (*comm).contribution(send, bytes, op);
            (*comm).operate(&data, recv, |comm| (comm.rank == root as usize).then(|| comm.reduce(0, bytes, dtype, op)))
        })
    }

    ncclAllGather(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        let bytes = count * bytes_of(dtype);
        run_or_record(move || {
            let data = (*comm).contribution(send, bytes, 0);
            (*comm).operate(&data, recv, |comm| Some((0..comm.ranks).flat_map(|rank| comm.sent_by(rank, 0, bytes)).collect()))
        })
    }

    ncclBroadcast(send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        let bytes = count * bytes_of(dtype);
        run_or_record(move || {
            let data = (*comm).contribution(send, bytes, 0);
            (*comm).operate(&data, recv, |comm| Some(comm.sent_by(root as usize, 0, bytes)))
        })
    }

    ncclSend(send: *const c_void, count: usize, dtype: c_int, peer: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        enqueue(Queued::Send { peer: peer as usize, from: send.cast(), bytes: count * bytes_of(dtype) }, comm)
    }

    ncclRecv(recv: *mut c_void, count: usize, dtype: c_int, peer: c_int, comm: *mut Comm, _stream: *mut c_void) -> c_int {
        enqueue(Queued::Recv { peer: peer as usize, to: recv.cast(), bytes: count * bytes_of(dtype) }, comm)
    }

    ncclGroupStart() -> c_int { GROUP.with_borrow_mut(|group| group.0 += 1); SUCCESS }

    ncclGroupEnd() -> c_int {
        let (depth, queue, comm) = GROUP.with_borrow_mut(|group| {
            group.0 -= 1;
            (group.0, if group.0 == 0 { std::mem::take(&mut group.1) } else { Vec::new() }, group.2)
        });
        if depth > 0 || queue.is_empty() {
            return SUCCESS;
        }
        run_or_record(move || exchange(&*comm, &queue))
    }
}

fn enqueue(call: Queued, comm: *mut Comm) -> c_int {
    GROUP.with_borrow_mut(|group| {
        assert!(group.0 > 0, "the fake NCCL sends and receives in groups only");
        group.1.push(call);
        group.2 = comm;
    });
    SUCCESS
}

/// Runs a group of sends and receives: each slot has a part for every peer.
fn exchange(comm: &Comm, queue: &[Queued]) -> c_int {
    let part = SLOT / comm.ranks;
    let mut shown = vec![0; SLOT];
    for call in queue {
        if let Queued::Send { peer, from, bytes } = call {
            assert!(*bytes <= part, "the fake NCCL sends up to {part} bytes");
            // SAFETY: the caller's send buffer.
            let data = unsafe { std::slice::from_raw_parts(*from, *bytes) };
            shown[peer * part..peer * part + bytes].copy_from_slice(data);
        }
    }
    comm.operate(&shown, std::ptr::null_mut(), |comm| {
        for call in queue {
            if let Queued::Recv { peer, to, bytes } = call {
                let data = comm.sent_by(*peer, comm.rank * part, *bytes);
                // SAFETY: the caller's receive buffer.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), *to, *bytes) };
            }
        }
        None
    })
}
