//! The NCCL library under test: opened by path, a table of the functions that a run needs, and one rank's communicator.

use super::element::ElementType;
use super::operation::{Operation, RedOp};
use super::{Error, Result};
use cudarc::driver::sys::CUstream;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// `ncclUniqueId`: passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

type RawComm = *mut c_void;
type Code = c_int;
const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;

macro_rules! table {
    (required { $($field:ident $symbol:literal fn($($argument:ty),*) -> $result:ty;)* }
     optional { $($maybe:ident $maybe_symbol:literal fn($($maybe_argument:ty),*) -> $maybe_result:ty;)* }) => {
        /// Functions of the library, by their names without the prefix. Newer ones may be missing.
        struct Table {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $($maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> $maybe_result>,)*
        }

        impl Table {
            fn load(library: &Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the types are those of nccl.h, which has kept them since the functions appeared.
                    $($field: unsafe { *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)? },)*
                    // SAFETY: as above.
                    $($maybe: unsafe { library.get(concat!($maybe_symbol, "\0").as_bytes()).ok().map(|symbol| *symbol) },)*
                })
            }
        }
    };
}

table! {
    required {
        get_version "ncclGetVersion" fn(*mut c_int) -> Code;
        get_unique_id "ncclGetUniqueId" fn(*mut UniqueId) -> Code;
        get_error_string "ncclGetErrorString" fn(Code) -> *const c_char;
        comm_init_rank "ncclCommInitRank" fn(*mut RawComm, c_int, UniqueId, c_int) -> Code;
        comm_destroy "ncclCommDestroy" fn(RawComm) -> Code;
        comm_abort "ncclCommAbort" fn(RawComm) -> Code;
        comm_get_async_error "ncclCommGetAsyncError" fn(RawComm, *mut Code) -> Code;
        group_start "ncclGroupStart" fn() -> Code;
        group_end "ncclGroupEnd" fn() -> Code;
        all_reduce "ncclAllReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
        all_gather "ncclAllGather" fn(*const c_void, *mut c_void, usize, c_int, RawComm, CUstream) -> Code;
        reduce_scatter "ncclReduceScatter" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
        broadcast "ncclBroadcast" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
        reduce "ncclReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, CUstream) -> Code;
        send "ncclSend" fn(*const c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
        recv "ncclRecv" fn(*mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
    }
    optional {
        get_last_error "ncclGetLastError" fn(RawComm) -> *const c_char;
        create_premul "ncclRedOpCreatePreMulSum" fn(*mut c_int, *mut c_void, c_int, c_int, RawComm) -> Code;
        destroy_op "ncclRedOpDestroy" fn(c_int, RawComm) -> Code;
        mem_alloc "ncclMemAlloc" fn(*mut *mut c_void, usize) -> Code;
        mem_free "ncclMemFree" fn(*mut c_void) -> Code;
        comm_register "ncclCommRegister" fn(RawComm, *mut c_void, usize, *mut *mut c_void) -> Code;
        comm_deregister "ncclCommDeregister" fn(RawComm, *mut c_void) -> Code;
        all_to_all "ncclAlltoAll" fn(*const c_void, *mut c_void, usize, c_int, RawComm, CUstream) -> Code;
        gather "ncclGather" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
        scatter "ncclScatter" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Code;
    }
}

/// A loaded NCCL. It is never unloaded: NCCL keeps threads of its own.
pub struct Nccl {
    table: Table,
    pub path: PathBuf,
}

impl Nccl {
    pub fn open(path: &Path) -> Result<Self> {
        // SAFETY: running an NCCL's initialisers is what the user asked for by naming it.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            Error::failed(format!(
                "cannot open the NCCL library {}: {error}; name another one with --library or MKERNEL_LIBRARY",
                path.display()
            ))
        })?;
        let table = Table::load(&library)
            .map_err(|symbol| Error::failed(format!("{} has no function {symbol}, so it is no NCCL 2.7 or later", path.display())))?;
        std::mem::forget(library);
        Ok(Self { table, path: path.to_path_buf() })
    }

    /// Turns a result code into an error that names the call and gives the library's own explanation.
    fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both functions take any argument (the communicator is ignored) and return NULL or a C string that lives until the next error.
        let texts = unsafe { [Some((self.table.get_error_string)(code)), self.table.get_last_error.map(|f| f(std::ptr::null_mut()))] };
        let mut message = format!("{call} failed with code {code}");
        for text in texts.into_iter().flatten().filter(|text| !text.is_null()) {
            // SAFETY: not NULL, and a C string as said above.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            if !text.trim().is_empty() {
                message.push_str(": ");
                message.push_str(text.trim());
            }
        }
        Err(Error::Failed(message))
    }

    fn missing(&self, symbol: &str) -> Error {
        Error::failed(format!("{} has no {symbol}: it is too old for this option", self.path.display()))
    }

    /// The version code, such as 23007 for 2.30.7.
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        self.check("ncclGetVersion", unsafe { (self.table.get_version)(&mut version) })?;
        Ok(version)
    }

    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is valid for the call.
        self.check("ncclGetUniqueId", unsafe { (self.table.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Joins the communicator; the calling thread's current CUDA device becomes the rank's.
    pub fn join(&self, ranks: usize, id: UniqueId, rank: usize) -> Result<Communicator<'_>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call; the counts are checked by the library.
        let code = unsafe { (self.table.comm_init_rank)(&mut raw, ranks as c_int, id, rank as c_int) };
        self.check("ncclCommInitRank", code)?;
        Ok(Communicator { nccl: self, raw, rank, ranks })
    }

    pub fn allocate(&self, bytes: usize) -> Result<u64> {
        let allocate = self.table.mem_alloc.ok_or_else(|| self.missing("ncclMemAlloc"))?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        self.check("ncclMemAlloc", unsafe { allocate(&mut pointer, bytes) })?;
        Ok(pointer as u64)
    }

    /// # Safety
    /// `address` came from `allocate`, and nothing uses it any more.
    pub unsafe fn free(&self, address: u64) -> Result<()> {
        let free = self.table.mem_free.ok_or_else(|| self.missing("ncclMemFree"))?;
        // SAFETY: the caller's promise.
        self.check("ncclMemFree", unsafe { free(address as *mut c_void) })
    }
}

/// The device addresses and counts of one call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub operation: Operation,
    pub send: u64,
    pub recv: u64,
    pub count: usize,
    pub dtype: ElementType,
    /// `ncclRedOp_t`; operations that do not reduce ignore it.
    pub redop: i32,
    pub root: usize,
}

/// One rank's communicator. Dropping it aborts it; `destroy` is the orderly end.
pub struct Communicator<'a> {
    nccl: &'a Nccl,
    raw: RawComm,
    pub rank: usize,
    pub ranks: usize,
}

impl Communicator<'_> {
    pub fn destroy(self) -> Result<()> {
        let (nccl, raw) = (self.nccl, self.raw);
        std::mem::forget(self);
        // SAFETY: the handle is live, and forgetting `self` leaves no other owner.
        nccl.check("ncclCommDestroy", unsafe { (nccl.table.comm_destroy)(raw) })
    }

    /// Fails if the library has noticed an error since the last call.
    pub fn check_async(&self) -> Result<()> {
        let mut state = SUCCESS;
        // SAFETY: the handle is live and the pointer valid for the call.
        self.nccl.check("ncclCommGetAsyncError", unsafe { (self.nccl.table.comm_get_async_error)(self.raw, &mut state) })?;
        if state == IN_PROGRESS { Ok(()) } else { self.nccl.check("the communicator (by ncclCommGetAsyncError)", state) }
    }

    /// The `ncclRedOp_t` for an operator; `factor` holds the premultiplier's bytes.
    pub fn operator(&self, op: RedOp, dtype: ElementType, mut factor: [u8; 8]) -> Result<i32> {
        if op != RedOp::MulSum {
            return Ok(op as i32);
        }
        const HOST_IMMEDIATE: c_int = 1;
        let create = self.nccl.table.create_premul.ok_or_else(|| self.nccl.missing("ncclRedOpCreatePreMulSum"))?;
        let mut handle = 0;
        // SAFETY: the factor has room for every element type and is read before the call returns (host immediate).
        let code = unsafe { create(&mut handle, factor.as_mut_ptr().cast(), dtype.nccl_code(), HOST_IMMEDIATE, self.raw) };
        self.nccl.check("ncclRedOpCreatePreMulSum", code)?;
        Ok(handle)
    }

    /// Gives back what `operator` returned.
    pub fn release_operator(&self, op: RedOp, handle: i32) -> Result<()> {
        match self.nccl.table.destroy_op {
            // SAFETY: the handle came from `operator` on this live communicator.
            Some(destroy) if op == RedOp::MulSum => self.nccl.check("ncclRedOpDestroy", unsafe { destroy(handle, self.raw) }),
            _ => Ok(()),
        }
    }

    pub fn register(&self, address: u64, bytes: usize) -> Result<Registration> {
        let register = self.nccl.table.comm_register.ok_or_else(|| self.nccl.missing("ncclCommRegister"))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the range is one allocation of the caller's; the library only looks it up.
        self.nccl.check("ncclCommRegister", unsafe { register(self.raw, address as *mut c_void, bytes, &mut handle) })?;
        Ok(Registration(handle))
    }

    pub fn deregister(&self, registration: Registration) -> Result<()> {
        let deregister = self.nccl.table.comm_deregister.ok_or_else(|| self.nccl.missing("ncclCommDeregister"))?;
        // SAFETY: the handle came from `register` and is consumed here; NCCL allows NULL.
        self.nccl.check("ncclCommDeregister", unsafe { deregister(self.raw, registration.0) })
    }

    /// Runs `calls` between group start and end.
    pub fn group(&self, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        // SAFETY: takes no argument.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.table.group_start)() })?;
        let queued = calls();
        // SAFETY: takes no argument. It must follow even after a failure, or the thread would stay inside the group.
        let ended = self.nccl.check("ncclGroupEnd", unsafe { (self.nccl.table.group_end)() });
        queued.and(ended)
    }

    /// Enqueues one operation on a stream.
    ///
    /// # Safety
    /// The addresses are device memory with room for the operation's layout, and stay so until the stream has passed it.
    pub unsafe fn enqueue(&self, call: &Call, stream: CUstream) -> Result<()> {
        let table = &self.nccl.table;
        let (send, recv, count) = (call.send as *const c_void, call.recv as *mut c_void, call.count);
        let (dtype, redop, root, comm) = (call.dtype.nccl_code(), call.redop, call.root as c_int, self.raw);
        let name = match call.operation {
            Operation::AllReduce => "ncclAllReduce",
            Operation::AllGather => "ncclAllGather",
            Operation::ReduceScatter => "ncclReduceScatter",
            Operation::Broadcast => "ncclBroadcast",
            Operation::Reduce => "ncclReduce",
            Operation::AllToAll => "ncclAlltoAll",
            Operation::Gather => "ncclGather",
            Operation::Scatter => "ncclScatter",
            Operation::SendRecv => "ncclSend",
        };
        // SAFETY: the caller's promise about the addresses; the communicator is live; everything else the library checks.
        let code = unsafe {
            match call.operation {
                Operation::AllReduce => (table.all_reduce)(send, recv, count, dtype, redop, comm, stream),
                Operation::AllGather => (table.all_gather)(send, recv, count, dtype, comm, stream),
                Operation::ReduceScatter => (table.reduce_scatter)(send, recv, count, dtype, redop, comm, stream),
                Operation::Broadcast => (table.broadcast)(send, recv, count, dtype, root, comm, stream),
                Operation::Reduce => (table.reduce)(send, recv, count, dtype, redop, root, comm, stream),
                Operation::AllToAll if let Some(all_to_all) = table.all_to_all => all_to_all(send, recv, count, dtype, comm, stream),
                Operation::Gather if let Some(gather) = table.gather => gather(send, recv, count, dtype, root, comm, stream),
                Operation::Scatter if let Some(scatter) = table.scatter => scatter(send, recv, count, dtype, root, comm, stream),
                _ => return self.exchange(call, stream),
            }
        };
        self.nccl.check(name, code)
    }

    /// An operation made of sends and receives: the ring exchange, and what libraries before NCCL 2.28 have no function for.
    ///
    /// # Safety
    /// As for `enqueue`.
    unsafe fn exchange(&self, call: &Call, stream: CUstream) -> Result<()> {
        let bytes = (call.count * call.dtype.size()) as u64;
        let part = |base: u64, peer: usize| base + peer as u64 * bytes;
        let (rank, ranks, root) = (self.rank, self.ranks, call.root);
        let mut sends = Vec::new();
        let mut recvs = Vec::new();
        match call.operation {
            Operation::SendRecv => {
                sends.push(((rank + 1) % ranks, call.send));
                recvs.push(((rank + ranks - 1) % ranks, call.recv));
            }
            Operation::Gather => {
                sends.push((root, call.send));
                if rank == root {
                    recvs.extend((0..ranks).map(|peer| (peer, part(call.recv, peer))));
                }
            }
            Operation::Scatter => {
                if rank == root {
                    sends.extend((0..ranks).map(|peer| (peer, part(call.send, peer))));
                }
                recvs.push((root, call.recv));
            }
            _ => {
                sends.extend((0..ranks).map(|peer| (peer, part(call.send, peer))));
                recvs.extend((0..ranks).map(|peer| (peer, part(call.recv, peer))));
            }
        }
        let (table, dtype) = (&self.nccl.table, call.dtype.nccl_code());
        self.group(|| {
            for (peer, address) in sends {
                // SAFETY: the part lies inside the buffer that the caller vouches for.
                let code = unsafe { (table.send)(address as *const c_void, call.count, dtype, peer as c_int, self.raw, stream) };
                self.nccl.check("ncclSend", code)?;
            }
            for (peer, address) in recvs {
                // SAFETY: as above.
                let code = unsafe { (table.recv)(address as *mut c_void, call.count, dtype, peer as c_int, self.raw, stream) };
                self.nccl.check("ncclRecv", code)?;
            }
            Ok(())
        })
    }
}

impl Drop for Communicator<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live (`destroy` forgets `self`); the result does not matter, for the rank has failed already.
        unsafe { (self.nccl.table.comm_abort)(self.raw) };
    }
}

/// What `ncclCommRegister` returned; it may be NULL.
pub struct Registration(*mut c_void);
