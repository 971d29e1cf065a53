//! One rank's handle of a communicator, with the operations as checked calls on device memory.

use crate::driver::{Span, Stream};
use crate::element::Type;
use crate::library::{Config, IN_PROGRESS, Nccl, RawComm, SUCCESS, UniqueId, code_name};
use crate::outcome::{Outcome, fail};
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// Built-in operators of `nccl.h`.
pub const SUM: c_int = 0;
pub const MAX: c_int = 2;

/// A communicator. It is destroyed by name only: a check that failed midway must not wait for its peers in a destructor.
#[derive(Clone, Copy)]
pub struct Comm {
    pub nccl: &'static Nccl,
    pub raw: RawComm,
    pub rank: usize,
    pub ranks: usize,
}

impl Comm {
    pub fn init(nccl: &'static Nccl, id: UniqueId, rank: usize, ranks: usize, config: Option<&mut Config>) -> Outcome<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointers are valid for the call.
        unsafe {
            match config {
                None => nccl.check("ncclCommInitRank", (nccl.comm_init_rank)(&mut raw, ranks as c_int, id, rank as c_int))?,
                Some(config) => {
                    let code = (nccl.comm_init_rank_config)(&mut raw, ranks as c_int, id, rank as c_int, config);
                    if code != IN_PROGRESS {
                        nccl.check("ncclCommInitRankConfig", code)?;
                    }
                }
            }
        }
        Ok(Self { nccl, raw, rank, ranks })
    }

    /// All ranks of a communicator on this thread, on the devices given (`ncclCommInitAll`).
    pub fn init_all(nccl: &'static Nccl, devices: &[c_int]) -> Outcome<Vec<Self>> {
        let mut handles = vec![std::ptr::null_mut(); devices.len()];
        // SAFETY: both arrays have as many elements as is said.
        let code = unsafe { (nccl.comm_init_all)(handles.as_mut_ptr(), devices.len() as c_int, devices.as_ptr()) };
        nccl.check("ncclCommInitAll", code)?;
        Ok(handles.into_iter().enumerate().map(|(rank, raw)| Self { nccl, raw, rank, ranks: devices.len() }).collect())
    }

    /// A part of this communicator; `None` for the ranks that gave no colour.
    pub fn split(&self, color: c_int, key: c_int) -> Outcome<Option<Self>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the communicator is live and the pointer valid for the call; NULL stands for the parent's config.
        self.check("ncclCommSplit", unsafe { (self.nccl.comm_split)(self.raw, color, key, &mut raw, std::ptr::null_mut()) })?;
        if raw.is_null() {
            return Ok(None);
        }
        let mut made = Self { nccl: self.nccl, raw, rank: 0, ranks: 0 };
        (made.rank, made.ranks) = (made.user_rank()?, made.count()?);
        Ok(Some(made))
    }

    fn check(&self, call: &str, code: c_int) -> Outcome {
        self.nccl.check(call, code)
    }

    fn query(&self, call: &str, function: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int) -> Outcome<c_int> {
        let mut value = -1;
        // SAFETY: the communicator is live and the pointer valid for the call.
        self.check(call, unsafe { function(self.raw, &mut value) })?;
        Ok(value)
    }

    pub fn count(&self) -> Outcome<usize> {
        Ok(self.query("ncclCommCount", self.nccl.comm_count)? as usize)
    }

    pub fn user_rank(&self) -> Outcome<usize> {
        Ok(self.query("ncclCommUserRank", self.nccl.comm_user_rank)? as usize)
    }

    pub fn device(&self) -> Outcome<c_int> {
        self.query("ncclCommCuDevice", self.nccl.comm_cu_device)
    }

    pub fn async_error(&self) -> Outcome<c_int> {
        self.query("ncclCommGetAsyncError", self.nccl.comm_get_async_error)
    }

    /// Polls until the communicator is no longer in progress; says with which code.
    pub fn settles_within(&self, limit: Duration) -> Outcome<c_int> {
        let begin = Instant::now();
        loop {
            match self.async_error()? {
                IN_PROGRESS if begin.elapsed() > limit => fail!("still in progress after {:.1} s", limit.as_secs_f64()),
                IN_PROGRESS => std::thread::sleep(Duration::from_micros(200)),
                code => return Ok(code),
            }
        }
    }

    /// Fails if something has gone wrong behind the host's back.
    pub fn healthy(&self) -> Outcome {
        match self.async_error()? {
            SUCCESS => Ok(()),
            // SAFETY: the communicator is live.
            code => fail!("the communicator's asynchronous error is {} ({})", code_name(code), unsafe { self.nccl.last_error(self.raw) }),
        }
    }

    pub fn finalize(&self) -> Outcome {
        // SAFETY: the communicator is live.
        self.check("ncclCommFinalize", unsafe { (self.nccl.comm_finalize)(self.raw) })
    }

    pub fn destroy(self) -> Outcome {
        // SAFETY: the communicator is live, and this is the last use of the handle.
        self.check("ncclCommDestroy", unsafe { (self.nccl.comm_destroy)(self.raw) })
    }

    pub fn abort(self) -> Outcome {
        // SAFETY: the communicator is live, and this is the last use of the handle.
        self.check("ncclCommAbort", unsafe { (self.nccl.comm_abort)(self.raw) })
    }

    /// Ends the operations of this communicator, here and at the peers.
    pub fn revoke(&self) -> Outcome {
        // SAFETY: the communicator is live.
        self.check("ncclCommRevoke", unsafe { (self.nccl.comm_revoke()?)(self.raw, 0) })
    }

    /// An operator that multiplies by a scalar first. `on_device`: the address is device memory, read when an operation runs.
    pub fn pre_mul_sum(&self, scalar: *const u8, on_device: bool, dtype: Type) -> Outcome<c_int> {
        let mut operator = -1;
        let residence = c_int::from(!on_device);
        // SAFETY: the scalar has the type given and is readable where it is said to be; the communicator is live.
        self.check("ncclRedOpCreatePreMulSum", unsafe {
            (self.nccl.red_op_create_pre_mul_sum)(&mut operator, scalar.cast_mut().cast(), dtype.code(), residence, self.raw)
        })?;
        Ok(operator)
    }

    pub fn destroy_operator(&self, operator: c_int) -> Outcome {
        // SAFETY: the communicator is live; the operator is a number.
        self.check("ncclRedOpDestroy", unsafe { (self.nccl.red_op_destroy)(operator, self.raw) })
    }
}

// In all of these: the communicator is live, the stream is live, and the spans are device memory that their owners keep until the stream has
// passed the operation.
macro_rules! operations {
    ($($name:ident = $symbol:literal($($argument:ident: $type:ty = $given:expr),*);)*) => {
        impl Comm {
            // These are the arguments of nccl.h.
            $(#[allow(clippy::too_many_arguments)]
            pub fn $name(&self, $($argument: $type,)* stream: &Stream) -> Outcome {
                // SAFETY: the note above this macro.
                self.check($symbol, unsafe { (self.nccl.$name)($($given,)* self.raw, stream.raw()) })
            })*
        }
    };
}

operations! {
    all_reduce = "ncclAllReduce"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), operator: c_int = operator);
    broadcast = "ncclBroadcast"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), root: usize = root as c_int);
    bcast = "ncclBcast"(buffer: Span = buffer.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), root: usize = root as c_int);
    reduce = "ncclReduce"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), operator: c_int = operator, root: usize = root as c_int);
    all_gather = "ncclAllGather"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code());
    reduce_scatter = "ncclReduceScatter"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), operator: c_int = operator);
    all_to_all = "ncclAlltoAll"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code());
    gather = "ncclGather"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), root: usize = root as c_int);
    scatter = "ncclScatter"(send: Span = send.as_ptr(), recv: Span = recv.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), root: usize = root as c_int);
    send = "ncclSend"(from: Span = from.as_ptr(), count: usize = count, dtype: Type = dtype.code(), peer: usize = peer as c_int);
    recv = "ncclRecv"(to: Span = to.as_mut_ptr(), count: usize = count, dtype: Type = dtype.code(), peer: usize = peer as c_int);
}
