//! One communicator's part on its GPU: the lane structure, this rank's region, and the page through which the device speaks to the host.

use super::gpu::{Gpu, LaneSlot};
use super::layout::{Geometry, HostPage, Lane, MAX_RANKS, MAX_RINGS, Peer, bytes_of};
use crate::cuda::DeviceMemory;
use crate::error::Result;
use crate::observe::mismatch::Announce;
use crate::transport::Network;
use std::mem::{ManuallyDrop, offset_of, size_of};
use std::sync::Arc;

/// How the other ranks are reached from here.
#[derive(Debug, Default)]
pub struct Reach {
    /// By rank.
    pub peers: Vec<Peer>,
    pub one_gpu: bool,
    /// Device addresses of the queues to the proxy threads, and the lines of each; empty on a single node.
    pub rings: Vec<u64>,
    pub ring_lines: u32,
}

/// A lane that kernels may run on.
pub struct LaneMemory {
    pub gpu: Arc<Gpu>,
    pub slot: LaneSlot,
    pub nranks: usize,
    memory: ManuallyDrop<DeviceMemory>,
    region: ManuallyDrop<DeviceMemory>,
    /// What reaches the ranks of other nodes, if there are any.
    pub network: Option<Network>,
}

/// A failure as the device recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub code: u32,
    pub rank: u32,
    pub mine: Announce,
    pub theirs: Announce,
}

/// A wait that has lasted long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongWait {
    pub ns: u64,
    pub seq: u64,
    /// Bit r: rank r is awaited.
    pub awaited: u64,
    pub channel: u32,
    pub op: Announce,
}

impl LaneMemory {
    /// Takes memory for a rank's region, which `others` write to. Its control part is zero when this returns, so they may write as soon as they
    /// know of it.
    pub fn new(gpu: Arc<Gpu>, geometry: &Geometry, others: usize) -> Result<Self> {
        let (zeroed, whole) = geometry.region_bytes(others);
        let region = gpu.take_memory(whole as usize, zeroed as usize)?;
        let memory = gpu.take_memory(size_of::<Lane>(), size_of::<Lane>())?;
        let slot = gpu.take_lane()?;
        Ok(Self {
            gpu,
            slot,
            nranks: geometry.nranks as usize,
            memory: ManuallyDrop::new(memory),
            region: ManuallyDrop::new(region),
            network: None,
        })
    }

    /// Device address of the `Lane`.
    pub fn address(&self) -> u64 {
        self.memory.address
    }

    pub fn region(&self) -> &DeviceMemory {
        &self.region
    }

    /// Fills in the lane's constant part; afterwards kernels may run on it.
    pub fn open(&self, geometry: &Geometry, rank: usize, reach: &Reach, deadline_ns: u64) -> Result<()> {
        const HEAD: usize = offset_of!(Lane, op_seq);
        let mut head = [0u8; HEAD];
        let mut put = |offset: usize, bytes: &[u8]| head[offset..offset + bytes.len()].copy_from_slice(bytes);
        let mut peers = [Peer::default(); MAX_RANKS];
        peers[..reach.peers.len()].copy_from_slice(&reach.peers);
        put(offset_of!(Lane, peers), bytes_of(&peers));
        put(offset_of!(Lane, geometry), bytes_of(geometry));
        // Pinned memory has the same address on the device.
        put(offset_of!(Lane, host_page), &(self.slot.page() as u64).to_ne_bytes());
        put(offset_of!(Lane, executor), &self.gpu.executor.address.to_ne_bytes());
        put(offset_of!(Lane, rank), &(rank as u32).to_ne_bytes());
        put(offset_of!(Lane, index), &(self.slot.index as u32).to_ne_bytes());
        put(offset_of!(Lane, deadline_ns), &deadline_ns.to_ne_bytes());
        put(offset_of!(Lane, one_gpu), &u32::from(reach.one_gpu).to_ne_bytes());
        let mut rings = [0u64; MAX_RINGS];
        rings[..reach.rings.len()].copy_from_slice(&reach.rings);
        put(offset_of!(Lane, ring), bytes_of(&rings));
        put(offset_of!(Lane, rings), &(reach.rings.len() as u32).to_ne_bytes());
        put(offset_of!(Lane, ring_lines), &reach.ring_lines.to_ne_bytes());
        self.gpu.write(&self.memory, 0, &head)?;
        self.gpu.serve_lane(self.slot.index, self.address())
    }

    /// Makes every operation of this lane end as soon as its kernel looks up.
    pub fn end_operations(&self) {
        // SAFETY: the page lives as long as the process; the device only reads this word.
        unsafe { (&raw mut (*self.slot.page()).abort).write_volatile(1) };
    }

    /// The same, and leaves the ranks of other nodes, who are not told why.
    pub fn abort(&self) {
        self.end_operations();
        if let Some(network) = &self.network {
            network.close();
        }
    }

    pub fn failure(&self) -> Option<Failure> {
        let page: *const HostPage = self.slot.page();
        // SAFETY: the page lives as long as the process; the device writes these words, `failure` last.
        let code = unsafe { (&raw const (*page).failure).read_volatile() };
        if code == super::layout::failure::NONE {
            return None;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        // SAFETY: as above; they do not change after `failure` is set.
        let (rank, mine, theirs) = unsafe {
            (
                (&raw const (*page).failure_rank).read_volatile(),
                (&raw const (*page).failure_mine).read_volatile(),
                (&raw const (*page).failure_theirs).read_volatile(),
            )
        };
        Some(Failure { code, rank, mine, theirs })
    }

    /// The present wait, when it has lasted for half a second or more. The fields may be of two different reports.
    pub fn long_wait(&self) -> Option<LongWait> {
        let page: *const HostPage = self.slot.page();
        // SAFETY: the page lives as long as the process; plain words written by the device.
        let wait = unsafe {
            LongWait {
                ns: (&raw const (*page).waiting_ns).read_volatile(),
                seq: (&raw const (*page).waiting_seq).read_volatile(),
                awaited: (&raw const (*page).waiting_for).read_volatile(),
                channel: (&raw const (*page).waiting_channel).read_volatile(),
                op: (&raw const (*page).waiting_op).read_volatile(),
            }
        };
        (wait.ns != 0).then_some(wait)
    }

    /// Returns the memory to the GPU's pools.
    ///
    /// # Safety
    /// No kernel of this lane runs or will run, and no peer writes to the region any more.
    pub unsafe fn recycle(mut self) {
        // SAFETY: `self` is consumed, so neither is used again.
        let (memory, region) = unsafe { (ManuallyDrop::take(&mut self.memory), ManuallyDrop::take(&mut self.region)) };
        if let Some(network) = self.network.take() {
            // SAFETY: passed on.
            unsafe { network.recycle() };
        }
        self.gpu.give_memory(memory);
        self.gpu.give_memory(region);
        self.gpu.give_lane(&self.slot);
    }
}
