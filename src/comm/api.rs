//! What the ABI layer calls, and the words it speaks.

use super::communicator::Communicator;
use super::init;
use crate::bootstrap::UniqueId;
use crate::cuda;
use crate::error::{Error, Result};
use crate::executor::layout::MAX_RANKS;
use crate::group;
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

/// Creates this rank's communicator with the current device (`ncclCommInitRank*`). `ids` holds one id, or several for the scalable form.
/// Inside a group the work is done by the outermost `group::end`; the handle is returned at once either way.
pub fn init_rank(nranks: i32, ids: Vec<UniqueId>, rank: i32, config: CommConfig) -> Result<(Arc<Communicator>, Status)> {
    let device = cuda::current_device()?;
    init_on(device, nranks, ids, rank, config)
}

fn init_on(device: i32, nranks: i32, ids: Vec<UniqueId>, rank: i32, config: CommConfig) -> Result<(Arc<Communicator>, Status)> {
    if nranks < 1 || rank < 0 || rank >= nranks {
        return Err(Error::argument(format!("rank {rank} of {nranks}: ranks count from 0 to nranks - 1, and there is at least one")));
    }
    if nranks as usize > MAX_RANKS {
        return Err(Error::argument(format!("{nranks} ranks: this version joins at most {MAX_RANKS} ranks in one communicator")));
    }
    // All ranks that were given several ids were given the same ones, so the first can serve all.
    let Some(id) = ids.into_iter().next() else {
        return Err(Error::argument("no unique id was given"));
    };
    let comm = Communicator::starting(device, config);
    let status = group::run_job(&comm, None, move |comm| init::connect(comm, &id, rank as usize, nranks as usize))?;
    Ok((comm, status))
}

/// One communicator per entry of `devices`, all ranks driven by this process (`ncclCommInitAll`). Blocking.
pub fn init_all(devices: &[i32]) -> Result<Vec<Arc<Communicator>>> {
    let available = device_count()?;
    if let Some(bad) = devices.iter().find(|d| **d < 0 || **d >= available) {
        return Err(Error::argument(format!("device {bad} does not exist: this process sees {available} CUDA device(s)")));
    }
    let id = crate::bootstrap::create_id(&crate::bootstrap::SocketSettings { comm_id: None, ..crate::env::socket_settings() })?;
    let config = CommConfig { blocking: Some(true), ..CommConfig::default() };
    group::start()?;
    let made: Result<Vec<_>> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| init_on(*device, devices.len() as i32, vec![id], rank as i32, config.clone()).map(|(comm, _)| comm))
        .collect();
    let ended = group::end();
    let comms = made?;
    ended?;
    Ok(comms)
}

/// Number of devices this process can see; for `ncclCommInitAll` argument checks.
pub fn device_count() -> Result<i32> {
    cuda::device_count()
}

/// `ncclMemAlloc` on the current device.
pub fn mem_alloc(bytes: usize) -> Result<u64> {
    let gpu = crate::executor::gpu::gpu(cuda::current_device()?)?;
    let _guard = gpu.context.enter()?;
    let _relaxed = cuda::RelaxedCapture::enter()?;
    cuda::allocate(bytes.max(1))
}

/// `ncclMemFree`, whatever device the memory is on.
pub fn mem_free(ptr: u64) -> Result<()> {
    if ptr == 0 {
        return Ok(());
    }
    cuda::ensure_driver()?;
    let Some(device) = cuda::pointer_device(ptr) else {
        return Err(Error::argument(format!("{ptr:#x} is not device memory")));
    };
    let gpu = crate::executor::gpu::gpu(device)?;
    let _guard = gpu.context.enter()?;
    cuda::free(ptr)
}
