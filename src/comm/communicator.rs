//! The communicator object: its states, and the checks that every operation passes before it is planned.

use super::failure::Known;
use super::redop::Redops;
use super::{CommConfig, Operation, Status, failure, reclaim, split};
use crate::bootstrap::Bootstrap;
use crate::cuda;
use crate::error::{Error, Result};
use crate::executor::gpu::lock;
use crate::executor::lane::LaneMemory;
use crate::executor::launch::Launcher;
use crate::group;
use crate::observe::watchdog::{self, Identity, Watch};
use crate::planner::{self, Redop, Shape};
use crate::types::{DataType, OpKind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long destroying a communicator waits for its last words to reach the hosts of its peers.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Where a communicator is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Life {
    Starting,
    Ready,
    /// Init failed; only abort and destroy are left.
    Broken,
    Revoked,
    Finalized,
    /// Destroyed or aborted.
    Gone,
}

impl Life {
    fn from_raw(raw: u8) -> Self {
        match raw {
            0 => Self::Starting,
            1 => Self::Ready,
            2 => Self::Broken,
            3 => Self::Revoked,
            4 => Self::Finalized,
            _ => Self::Gone,
        }
    }
}

/// A rank's handle on a communicator. The ABI layer wraps the `Arc` into an `ncclComm_t`.
pub struct Communicator {
    pub(super) device: i32,
    pub(super) config: CommConfig,
    life: AtomicU8,
    /// Ends a bootstrap that is under way.
    pub(super) stop: AtomicBool,
    ready: OnceLock<Arc<Ready>>,
    /// The first error, kept for `ncclCommGetAsyncError`.
    error: Mutex<Option<Error>>,
    /// There is such an error.
    told: AtomicBool,
    /// When a peer's failure was first seen here.
    failed_at: OnceLock<Instant>,
    redops: Mutex<Redops>,
    /// Here and not in `Ready`: the watchdog may be the last to let go of that.
    watch: Mutex<Option<Watch>>,
}

/// What exists once init has succeeded.
pub struct Ready {
    pub rank: usize,
    pub nranks: usize,
    /// The same on all ranks, different for each communicator.
    pub id: u64,
    pub shape: Shape,
    pub lane: LaneMemory,
    pub launcher: Launcher,
    pub bootstrap: Bootstrap,
    /// Another rank has revoked the communicator.
    pub peer_revoked: AtomicBool,
}

impl Ready {
    /// The communicator as messages name it.
    pub fn name(&self) -> String {
        format!("{:#x}", self.id)
    }

    /// The other rank that has revoked the communicator, if one has; this rank's operations are ended then.
    pub(super) fn heed_revocation(&self) -> Option<usize> {
        let by = self.bootstrap.revoked_by()?;
        self.lane.end_operations();
        self.peer_revoked.store(true, Ordering::Release);
        Some(by)
    }
}

impl Communicator {
    pub(super) fn starting(device: i32, config: CommConfig) -> Arc<Self> {
        Arc::new(Self {
            device,
            config,
            life: AtomicU8::new(Life::Starting as u8),
            stop: AtomicBool::new(false),
            ready: OnceLock::new(),
            error: Mutex::default(),
            told: AtomicBool::new(false),
            failed_at: OnceLock::new(),
            redops: Mutex::default(),
            watch: Mutex::default(),
        })
    }

    fn life(&self) -> Life {
        Life::from_raw(self.life.load(Ordering::Acquire))
    }

    fn init_error(&self) -> Error {
        lock(&self.error).clone().unwrap_or_else(|| Error::internal("communicator failed to initialise"))
    }

    pub fn is_blocking(&self) -> bool {
        // The environment overrides the configuration.
        crate::env::settings().comm_blocking.or(self.config.blocking).unwrap_or(true)
    }

    /// The end of init, on whatever thread ran it.
    pub(crate) fn finish_init(&self, result: Result<Ready>) -> Result<()> {
        match result {
            Ok(ready) => {
                let ready = Arc::new(ready);
                let who = Identity { communicator: ready.name(), rank: ready.rank as u32, nranks: ready.nranks as u32 };
                let page = failure::Page { ready: Arc::downgrade(&ready), told: AtomicBool::new(false) };
                *lock(&self.watch) = Some(watchdog::watch(who, Box::new(page), Duration::from_secs(crate::env::settings().warn_s)));
                let _ = self.ready.set(ready);
                // An abort may have come first.
                let _ = self.life.compare_exchange(Life::Starting as u8, Life::Ready as u8, Ordering::AcqRel, Ordering::Acquire);
                Ok(())
            }
            Err(e) => {
                *lock(&self.error) = Some(e.clone());
                let _ = self.life.compare_exchange(Life::Starting as u8, Life::Broken as u8, Ordering::AcqRel, Ordering::Acquire);
                Err(e)
            }
        }
    }

    /// The parts of a communicator that operations can be enqueued on, or why there is none.
    pub fn ready(&self) -> Result<&Arc<Ready>> {
        if self.life() == Life::Revoked {
            return Err(Error::usage("the communicator has been revoked: only split, shrink, abort and destroy are left"));
        }
        self.parts()
    }

    /// The parts of a communicator that can be asked, split and shrunk: also of one that has been revoked.
    pub(super) fn parts(&self) -> Result<&Arc<Ready>> {
        match self.life() {
            Life::Ready | Life::Revoked => self.ready.get().ok_or_else(|| Error::internal("communicator marked ready without its parts")),
            Life::Starting => Err(Error::argument(
                "the communicator is still being initialised: poll ncclCommGetAsyncError until it no longer says ncclInProgress",
            )),
            Life::Broken => Err(self.init_error()),
            Life::Finalized => Err(Error::argument("the communicator has been finalized: only destroy and abort are left")),
            Life::Gone => Err(Error::argument("the communicator has been destroyed or aborted")),
        }
    }

    /// What came up behind the caller's back, as far as it is known without asking anybody.
    pub(crate) fn failure(&self) -> Option<Error> {
        let ready = self.ready.get()?;
        let quiet = ready.lane.failure().is_none() && !self.told.load(Ordering::Acquire) && !ready.peer_revoked.load(Ordering::Acquire);
        if quiet {
            return None;
        }
        self.listen()
    }

    /// The same, after hearing what other ranks have to say: a rank that only sends does not notice a disagreement by itself. A peer's failure is
    /// reported in that peer's words, which come a moment after the fact.
    fn listen(&self) -> Option<Error> {
        const WORDS_WITHIN: Duration = Duration::from_secs(3);
        let ready = self.ready.get()?;
        let mut kept = lock(&self.error);
        if kept.is_some() {
            return kept.clone();
        }
        let own = failure::current(ready);
        if let Some(Known { error, .. }) = own.as_ref().filter(|known| !known.second_hand) {
            *kept = Some(error.clone());
        } else if let Some(rank) = ready.heed_revocation() {
            *kept = Some(Error::usage(failure::revoked(ready, rank)));
        } else if let Some((rank, words)) = ready.bootstrap.poll_notice() {
            *kept = Some(Error::remote(format!("rank {rank} reported: {}", String::from_utf8_lossy(&words))));
        } else if own.is_some() && self.failed_at.get_or_init(Instant::now).elapsed() > WORDS_WITHIN {
            *kept = own.map(|known| known.error);
        }
        if kept.is_some() {
            self.told.store(true, Ordering::Release);
        }
        kept.clone()
    }

    /// The state that `ncclCommGetAsyncError` reports.
    pub fn async_state(&self) -> Result<Status> {
        match self.life() {
            Life::Starting => Ok(Status::InProgress),
            Life::Broken => Err(self.init_error()),
            // What other ranks say of a revoked communicator is no news.
            Life::Revoked => lock(&self.error).clone().map_or(Ok(Status::Done), Err),
            _ => self.listen().map_or(Ok(Status::Done), Err),
        }
    }

    pub fn count(&self) -> Result<i32> {
        Ok(self.parts()?.nranks as i32)
    }
    pub fn rank(&self) -> Result<i32> {
        Ok(self.parts()?.rank as i32)
    }
    pub fn device(&self) -> Result<i32> {
        self.parts()?;
        Ok(self.device)
    }

    /// Enqueues one operation, or adds it to the open group of this thread.
    pub fn enqueue(self: &Arc<Self>, op: Operation) -> Result<Status> {
        group::enqueue(self, op)
    }

    /// Checks an operation, whose form the ABI layer has checked, against the communicator. Returns the operator it reduces with.
    pub(crate) fn check(&self, op: &Operation) -> Result<Redop> {
        let ready = self.ready()?;
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let reduces = matches!(op.kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter);
        let redop = if reduces { lock(&self.redops).find(ready.id, op.redop, op.dtype)? } else { Redop::Builtin(0) };
        // The ABI layer passes on only the buffers that this rank uses.
        for (pointer, which) in [(op.send, "send"), (op.recv, "receive")] {
            let name = op.kind.name();
            if pointer % op.dtype.size() as u64 != 0 {
                return Err(Error::argument(format!(
                    "{name} on rank {}: the {which} buffer {pointer:#x} is not aligned to its element type {}",
                    ready.rank,
                    op.dtype.name()
                )));
            }
            if pointer != 0 && op.count > 0 && crate::env::settings().check_pointers && cuda::pointer_device(pointer) != Some(self.device) {
                return Err(Error::argument(format!(
                    "{name} on rank {}: the {which} buffer {pointer:#x} is not memory of the communicator's device {}",
                    ready.rank, self.device
                )));
            }
        }
        Ok(redop)
    }

    /// `ncclRedOpCreatePreMulSum`. `scalar` points to one element of `dtype`: read now when `immediate`, else a device address read when
    /// an operation runs.
    ///
    /// # Safety
    /// With `immediate`, `scalar` must be readable for `dtype.size()` bytes.
    pub unsafe fn create_premul(&self, scalar: *const u8, dtype: DataType, immediate: bool) -> Result<i32> {
        let ready = self.ready()?;
        let op = if immediate {
            let mut bits = [0u8; 8];
            // SAFETY: readable by this function's contract, and no element is longer than 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(scalar, bits.as_mut_ptr(), dtype.size()) };
            Redop::PreMulHost(u64::from_le_bytes(bits))
        } else {
            Redop::PreMulDevice(scalar as u64)
        };
        lock(&self.redops).create(ready.id, dtype, op)
    }

    pub fn destroy_redop(&self, op: i32) -> Result<()> {
        let ready = self.ready()?;
        lock(&self.redops).destroy(ready.id, op)
    }

    /// `ncclCommSplit`: a negative colour gets no communicator but takes part.
    pub fn split(self: &Arc<Self>, color: i32, key: i32, config: Option<CommConfig>) -> Result<(Option<Arc<Communicator>>, Status)> {
        split::split(self, color, key, config)
    }

    /// Waits until what has been enqueued is done. Operations are over for this communicator then.
    pub fn finalize(self: &Arc<Self>) -> Result<Status> {
        let ready = self.ready()?.clone();
        self.life.store(Life::Finalized as u8, Ordering::Release);
        let _guard = ready.lane.gpu.context.enter()?;
        ready.launcher.drain(&ready.lane, None)?;
        Ok(Status::Done)
    }

    /// Releases the communicator; the handle is dead afterwards whatever the result.
    pub fn destroy(self: &Arc<Self>) -> Result<Status> {
        if self.life() == Life::Starting {
            self.stop.store(true, Ordering::Release);
        }
        if Life::from_raw(self.life.swap(Life::Gone as u8, Ordering::AcqRel)) == Life::Gone {
            return Err(Error::argument("the communicator has already been destroyed or aborted"));
        }
        if let Some(ready) = self.ready.get() {
            let _guard = ready.lane.gpu.context.enter()?;
            let drained = ready.launcher.drain(&ready.lane, None);
            if let Some(network) = &ready.lane.network {
                network.leave(LEAVE_WITHIN);
            }
            self.release(ready);
            drained?;
        }
        Ok(Status::Done)
    }

    fn release(&self, ready: &Arc<Ready>) {
        *lock(&self.watch) = None;
        reclaim::bury(ready.clone());
    }

    /// Ends all work of this rank at once, then releases. Never waits for peers.
    pub fn abort(self: &Arc<Self>) -> Result<Status> {
        self.stop.store(true, Ordering::Release);
        if Life::from_raw(self.life.swap(Life::Gone as u8, Ordering::AcqRel)) == Life::Gone {
            return Err(Error::argument("the communicator has already been destroyed or aborted"));
        }
        if let Some(ready) = self.ready.get() {
            ready.lane.abort();
            self.release(ready);
        }
        Ok(Status::Done)
    }

    /// Ends all operations of this rank and, as soon as their watchdogs hear of it, of the others; the communicator can still be split, shrunk,
    /// aborted or destroyed. Never waits: what is enqueued behind other work ends when its turn comes.
    pub fn revoke(self: &Arc<Self>) -> Result<Status> {
        let ready = self.parts()?;
        let (from, to) = (Life::Ready as u8, Life::Revoked as u8);
        if self.life.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::argument("the communicator has already been revoked"));
        }
        ready.lane.end_operations();
        ready.bootstrap.post_revocation();
        // Nothing waits any more, and that others revoke as well is no news.
        *lock(&self.watch) = None;
        Ok(Status::Done)
    }

    /// The plan of an operation that has passed `check`.
    pub(crate) fn plan(&self, op: &Operation, redop: Redop) -> Result<crate::executor::layout::OpDesc> {
        Ok(planner::describe(op, redop, &self.ready()?.shape))
    }
}
