//! What a process keeps per GPU, shared by all its communicators: the context, the kernels, pools of device memory and host pages, and the
//! mappings of other processes' memory. Everything is made at the first communicator's init and lives as long as the process: freeing device
//! memory waits for all work on the GPU, so nothing is freed while a job runs.

use super::layout::{Command, Executor, HostPage, Lane, MAX_LANES, THREADS};
use super::resident::Resident;
use crate::cuda::{
    self, Context, DeviceMemory, IpcHandle, Kernel, LaunchStyle, Module, OwnedStream, PinnedMemory, RelaxedCapture, RemoteMemory, Stream,
};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/mkernel.fatbin"));

/// Device allocations are rounded up to this, the granularity of the driver's physical memory.
const GRANULE: usize = 2 << 20;

/// The kernels, loaded once.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    pub inline: Kernel,
    pub gate: Kernel,
    pub order: Kernel,
    pub executor: Kernel,
}

pub struct Gpu {
    pub context: Context,
    pub kernels: Kernels,
    /// Our own stream for set-up copies.
    setup: Mutex<OwnedStream>,
    /// The executor's structure in device memory.
    pub executor: DeviceMemory,
    pub resident: Resident,
    idle_memory: Mutex<Vec<DeviceMemory>>,
    idle_pinned: Mutex<Vec<PinnedMemory>>,
    lanes: Mutex<Lanes>,
    imported: Mutex<HashMap<(u64, IpcHandle), RemoteMemory>>,
}

/// Lane numbers and the host pages that belong to them.
struct Lanes {
    pages: PinnedMemory,
    used: Vec<bool>,
}

/// A lane's number and its page.
#[derive(Debug, Clone, Copy)]
pub struct LaneSlot {
    pub index: usize,
    page: *mut HostPage,
}

// SAFETY: the page is pinned memory that lives as long as the process; its fields are accessed as volatile or atomic words.
unsafe impl Send for LaneSlot {}
// SAFETY: as above.
unsafe impl Sync for LaneSlot {}

impl LaneSlot {
    pub fn page(&self) -> *mut HostPage {
        self.page
    }

    /// Uncaptured launches that are done, of a communicator that spans nodes.
    pub fn launches_done(&self) -> u64 {
        // SAFETY: the page lives as long as the process; the device writes this word.
        unsafe { (&raw const (*self.page).launches_done).read_volatile() }
    }

    /// Tells waiting kernels that a rank cannot be reached any more.
    pub fn set_link_failed(&self, rank: usize) {
        // SAFETY: the page lives as long as the process; the device only reads this word.
        unsafe { (&raw mut (*self.page).link_failed).write_volatile(rank as u32 + 1) };
    }
}

/// Locks, also when another thread panicked while it held the lock: every structure here is valid between statements.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process's record of a GPU, made at the first call for it.
pub fn gpu(ordinal: i32) -> Result<Arc<Gpu>> {
    static GPUS: Mutex<Option<HashMap<i32, Arc<Gpu>>>> = Mutex::new(None);
    cuda::ensure_driver()?;
    let mut gpus = lock(&GPUS);
    let gpus = gpus.get_or_insert_default();
    if let Some(found) = gpus.get(&ordinal) {
        return Ok(found.clone());
    }
    let made = Arc::new(Gpu::new(ordinal)?);
    gpus.insert(ordinal, made.clone());
    Ok(made)
}

/// Runs the large kernels once with nothing to do. The first launch of a kernel may have to enlarge the context's local memory, and waits for
/// the GPU to become idle then: later that could be for ever, when a peer's kernel in this process waits for the very launch.
fn warm_up(kernels: &Kernels, executor: &DeviceMemory, resident: &Resident, stream: Stream) -> Result<()> {
    let lane = DeviceMemory::new(size_of::<Lane>())?;
    lane.zero(lane.bytes, stream)?;
    let mut command = Command { more_ops: 0, nops: 0, channels: 1, eager: 0, reserved: 0, ops: Default::default() };
    let mut address = lane.address;
    let mut params = [(&raw mut address).cast::<c_void>(), (&raw mut command).cast::<c_void>()];
    // SAFETY: the parameters are those of mk_inline; it ends before the lane is let go, whose memory is never freed anyway.
    unsafe { kernels.inline.launch(1, THREADS, stream, LaunchStyle::Plain, &mut params)? };
    stream.synchronize()?;
    resident.warm_up(kernels, executor)
}

impl Gpu {
    fn new(ordinal: i32) -> Result<Self> {
        let context = Context::primary(ordinal)?;
        let guard = context.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        let (_, greatest) = context.stream_priorities()?;
        let setup = OwnedStream::new(greatest)?;
        let module = Module::load(FATBIN)?;
        let kernels = Kernels {
            inline: module.kernel("mk_inline", greatest)?,
            gate: module.kernel("mk_gate", greatest)?,
            order: module.kernel("mk_order", greatest)?,
            executor: module.kernel("mk_executor", greatest)?,
        };
        let executor = DeviceMemory::new(size_of::<Executor>())?;
        executor.zero(executor.bytes, setup.stream())?;
        let pages = PinnedMemory::new(MAX_LANES * 2 * size_of::<HostPage>())?;
        let lanes = Lanes { used: vec![false; MAX_LANES * 2], pages };
        let resident = Resident::new(&context)?;
        warm_up(&kernels, &executor, &resident, setup.stream())?;
        drop(guard);
        Ok(Self {
            context,
            kernels,
            setup: Mutex::new(setup),
            executor,
            resident,
            idle_memory: Mutex::default(),
            idle_pinned: Mutex::default(),
            lanes: Mutex::new(lanes),
            imported: Mutex::default(),
        })
    }

    /// Zeroed device memory of at least `bytes`, its first `zeroed` bytes set to zero. Return it with `give_memory`.
    pub fn take_memory(&self, bytes: usize, zeroed: usize) -> Result<DeviceMemory> {
        let _guard = self.context.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        let wanted = bytes.max(1).next_multiple_of(GRANULE);
        let reused = {
            let mut idle = lock(&self.idle_memory);
            let best = (0..idle.len()).filter(|&i| idle[i].bytes >= wanted && idle[i].bytes <= 2 * wanted).min_by_key(|&i| idle[i].bytes);
            best.map(|i| idle.swap_remove(i))
        };
        let memory = match reused {
            Some(m) => m,
            None => DeviceMemory::new(wanted)?,
        };
        memory.zero(zeroed, lock(&self.setup).stream())?;
        Ok(memory)
    }

    /// Takes memory back for the next communicator. Nothing on the device, here or elsewhere, may touch it any more.
    pub fn give_memory(&self, memory: DeviceMemory) {
        lock(&self.idle_memory).push(memory);
    }

    /// Zeroed pinned memory of at least `bytes`. Return it with `give_pinned`.
    pub fn take_pinned(&self, bytes: usize) -> Result<PinnedMemory> {
        let reused = {
            let mut idle = lock(&self.idle_pinned);
            let best = (0..idle.len()).filter(|&i| (bytes..=2 * bytes).contains(&idle[i].bytes)).min_by_key(|&i| idle[i].bytes);
            best.map(|i| idle.swap_remove(i))
        };
        if let Some(memory) = reused {
            // SAFETY: nobody uses memory of the pool.
            unsafe { memory.address().write_bytes(0, memory.bytes) };
            return Ok(memory);
        }
        let _guard = self.context.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        PinnedMemory::new(bytes)
    }

    /// Takes pinned memory back. Nothing on the device or in a proxy may touch it any more.
    pub fn give_pinned(&self, memory: PinnedMemory) {
        lock(&self.idle_pinned).push(memory);
    }

    /// Copies a structure into device memory before anything uses it.
    pub fn write(&self, memory: &DeviceMemory, offset: usize, data: &[u8]) -> Result<()> {
        let _guard = self.context.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        memory.write(offset, data, lock(&self.setup).stream())
    }

    /// Another process's allocation as it is addressed from here; mapped once.
    pub fn import(&self, process: u64, handle: &IpcHandle) -> Result<RemoteMemory> {
        let mut imported = lock(&self.imported);
        if let Some(found) = imported.get(&(process, *handle)) {
            return Ok(*found);
        }
        let _guard = self.context.enter()?;
        let _relaxed = RelaxedCapture::enter()?;
        let opened = RemoteMemory::open(handle)?;
        imported.insert((process, *handle), opened);
        Ok(opened)
    }

    /// A lane number with a cleared page. Numbers below `MAX_LANES` can be served by the executor and are given out first.
    pub fn take_lane(&self) -> Result<LaneSlot> {
        let mut lanes = lock(&self.lanes);
        let index = match lanes.used.iter().position(|used| !used) {
            Some(free) => free,
            None => {
                return Err(Error::system(format!(
                    "this process already has {} communicators on GPU {}; destroy some before making more",
                    lanes.used.len(),
                    self.context.device.ordinal
                )));
            }
        };
        lanes.used[index] = true;
        let page = lanes.pages.address().cast::<HostPage>().wrapping_add(index);
        // SAFETY: the slab has room for every index, and nobody else uses this page now.
        unsafe { page.write_bytes(0, 1) };
        Ok(LaneSlot { index, page })
    }

    pub fn give_lane(&self, slot: &LaneSlot) {
        lock(&self.lanes).used[slot.index] = false;
    }

    /// Lets the executor serve a lane, if its number is among those it serves.
    pub fn serve_lane(&self, index: usize, address: u64) -> Result<()> {
        if index >= MAX_LANES {
            return Ok(());
        }
        // The lock keeps two inits from writing the count in the wrong order.
        let lanes = lock(&self.lanes);
        let at = offset_of!(Executor, lanes) + 8 * index;
        self.write(&self.executor, at, &address.to_ne_bytes())?;
        let count = lanes.used.iter().take(MAX_LANES).rposition(|used| *used).map_or(0, |last| last + 1) as u32;
        self.write(&self.executor, offset_of!(Executor, lane_count), &count.to_ne_bytes())
    }

    pub fn multiprocessors(&self) -> u32 {
        self.context.device.multiprocessors
    }
}
