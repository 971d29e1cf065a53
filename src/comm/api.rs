//! The calls that the ABI layer makes on communicators. (Skeleton: bodies follow.)

use crate::bootstrap::UniqueId;
use crate::error::{Error, Result};
use crate::types::{DataType, OpKind};
use std::sync::Arc;

/// How a successful call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Finished (for operations: enqueued).
    Done,
    /// A non-blocking communicator goes on in the background; poll the asynchronous error.
    InProgress,
}

/// What a caller may set for a communicator: `ncclConfig_t` after checks, defaults and environment.
/// `None` means "not set by the caller".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommConfig {
    pub blocking: Option<bool>,
    pub min_ctas: Option<u32>,
    pub max_ctas: Option<u32>,
    pub split_share: Option<bool>,
    pub shrink_share: Option<bool>,
    pub comm_name: Option<String>,
    pub net_name: Option<String>,
    pub traffic_class: Option<i32>,
}

/// One operation as the caller stated it, arguments checked for form (known type, known kind) but not against the communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    pub kind: OpKind,
    /// Device address of the input; 0 where the operation has none on this rank.
    pub send: u64,
    /// Device address of the output; 0 where the operation has none on this rank.
    pub recv: u64,
    /// Elements, in the unit of the NCCL call (`sendcount`, `recvcount` or `count`).
    pub count: usize,
    pub dtype: DataType,
    /// `ncclRedOp_t` as given: 0 to 4 built in, larger ones made by `create_premul`. 0 for operations that do not reduce.
    pub redop: i32,
    /// Root of rooted operations, peer of send and receive, else 0.
    pub root: i32,
    /// `cudaStream_t` as an integer; 0, 1 and 2 are the special streams.
    pub stream: usize,
}

/// A rank's handle on a communicator. The ABI layer wraps the `Arc` into an `ncclComm_t`.
pub struct Communicator {
    _private: (),
}

/// Creates this rank's communicator with the current device (`ncclCommInitRank*`). `ids` holds one id, or several for the scalable form.
/// Inside a group the work is done by the outermost `group::end`; the handle is returned at once either way.
pub fn init_rank(nranks: i32, ids: Vec<UniqueId>, rank: i32, config: CommConfig) -> Result<(Arc<Communicator>, Status)> {
    let _ = (nranks, ids, rank, config);
    Err(Error::internal("not built yet"))
}

/// One communicator per entry of `devices`, all ranks driven by this process (`ncclCommInitAll`).
pub fn init_all(devices: &[i32]) -> Result<Vec<Arc<Communicator>>> {
    let _ = devices;
    Err(Error::internal("not built yet"))
}

/// Number of devices this process can see; for `ncclCommInitAll` argument checks.
pub fn device_count() -> Result<i32> {
    Err(Error::internal("not built yet"))
}

impl Communicator {
    /// `ncclCommSplit`: a negative colour gets no communicator but takes part.
    pub fn split(self: &Arc<Self>, color: i32, key: i32, config: Option<CommConfig>) -> Result<(Option<Arc<Communicator>>, Status)> {
        let _ = (color, key, config);
        Err(Error::internal("not built yet"))
    }
    pub fn finalize(self: &Arc<Self>) -> Result<Status> {
        Err(Error::internal("not built yet"))
    }
    /// Releases the communicator; the handle is dead afterwards whatever the result.
    pub fn destroy(self: &Arc<Self>) -> Result<Status> {
        Err(Error::internal("not built yet"))
    }
    /// Ends all work of this rank at once, then releases. Never waits for peers.
    pub fn abort(self: &Arc<Self>) -> Result<Status> {
        Err(Error::internal("not built yet"))
    }
    pub fn revoke(self: &Arc<Self>) -> Result<Status> {
        Err(Error::internal("not built yet"))
    }
    /// These three fail with the communicator's state while it is not ready.
    pub fn count(&self) -> Result<i32> {
        Err(Error::internal("not built yet"))
    }
    pub fn rank(&self) -> Result<i32> {
        Err(Error::internal("not built yet"))
    }
    pub fn device(&self) -> Result<i32> {
        Err(Error::internal("not built yet"))
    }
    /// The state that `ncclCommGetAsyncError` reports.
    pub fn async_state(&self) -> Result<Status> {
        Err(Error::internal("not built yet"))
    }
    /// Enqueues one operation, or adds it to the open group of this thread.
    pub fn enqueue(self: &Arc<Self>, op: Operation) -> Result<Status> {
        let _ = op;
        Err(Error::internal("not built yet"))
    }
    /// `ncclRedOpCreatePreMulSum`. `scalar` points to one element of `dtype`: read now when `immediate`, else a device address read when
    /// an operation runs.
    ///
    /// # Safety
    /// With `immediate`, `scalar` must be readable for `dtype.size()` bytes.
    pub unsafe fn create_premul(&self, scalar: *const u8, dtype: DataType, immediate: bool) -> Result<i32> {
        let _ = (scalar, dtype, immediate);
        Err(Error::internal("not built yet"))
    }
    pub fn destroy_redop(&self, op: i32) -> Result<()> {
        let _ = op;
        Err(Error::internal("not built yet"))
    }
}

/// `ncclMemAlloc` / `ncclMemFree` on the current device.
pub fn mem_alloc(bytes: usize) -> Result<u64> {
    let _ = bytes;
    Err(Error::internal("not built yet"))
}
pub fn mem_free(ptr: u64) -> Result<()> {
    let _ = ptr;
    Err(Error::internal("not built yet"))
}
