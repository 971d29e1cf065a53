//! A communicator's part between nodes: its pinned memory, its links, and what its kernels and the proxies share.

use super::connect::Listener;
use super::mailbox::Mailbox;
use super::net::Link;
use super::net::socket::Socket;
use super::proxy::{Endpoint, Proxy, proxies};
use super::ring::{Reader, lines_for};
use crate::cuda::PinnedMemory;
use crate::error::{Error, Result};
use crate::executor::gpu::{Gpu, LaneSlot, lock};
use crate::executor::lane::Reach;
use crate::executor::layout::{Geometry, Line, MAX_RINGS};
use crate::observe::mismatch::Announce;
use crate::types::OpKind;
use std::mem::size_of;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a kernel, the proxies and the host see of a communicator.
pub struct Shared {
    pub rank: usize,
    pub geometry: Geometry,
    page: LaneSlot,
    /// Uncaptured launches so far; the lane's page counts those that are done.
    launched: AtomicU64,
    /// A graph may launch kernels without telling anybody.
    captured: AtomicBool,
    failure: Mutex<Option<LinkFailure>>,
    /// The communicator is being destroyed: links say goodbye when all has been carried.
    leaving: AtomicBool,
    /// Bit s: stripe s has nothing left to carry, and its goodbyes have arrived.
    gone: AtomicU32,
    gpu: Arc<Gpu>,
    memory: Mutex<Option<PinnedMemory>>,
    /// No kernel uses the memory any more.
    over: AtomicBool,
}

/// A rank that cannot be reached any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFailure {
    pub rank: usize,
    pub why: String,
}

impl Shared {
    /// An operation is under way, or may be.
    pub fn is_busy(&self) -> bool {
        self.captured.load(Ordering::Relaxed) || self.launched.load(Ordering::Relaxed) != self.page.launches_done()
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub fn has_left(&self, stripe: usize) {
        self.gone.fetch_or(1 << stripe, Ordering::Release);
    }

    /// Keeps the first failure, and tells the kernels.
    pub fn link_failed(&self, rank: usize, why: &str) {
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            tracing::warn!(target: "NET", "rank {}: rank {rank} cannot be reached any more: {why}", self.rank);
            *failure = Some(LinkFailure { rank, why: why.to_owned() });
            self.page.set_link_failed(rank);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Otherwise a kernel may still write to it: it stays, for good.
        if self.over.load(Ordering::Acquire)
            && let Some(memory) = lock(&self.memory).take()
        {
            self.gpu.give_pinned(memory);
        }
    }
}

/// Owned by the communicator's lane.
pub struct Network {
    shared: Arc<Shared>,
    /// Empty once the links are closed.
    proxies: Mutex<Vec<Arc<Proxy>>>,
    /// By rank; `None` for ranks of this node.
    mailboxes: Vec<Option<Mailbox>>,
    rings: Vec<*const Line>,
    ring_lines: usize,
}

// SAFETY: the rings are plain memory, used through `Reader` after they have been handed over.
unsafe impl Send for Network {}
// SAFETY: as above.
unsafe impl Sync for Network {}

impl Network {
    /// Memory for `rank`, which reaches the ranks of `remote` through the network with `stripes` proxy threads. `page`: the lane's.
    pub fn new(gpu: &Arc<Gpu>, geometry: &Geometry, rank: usize, remote: &[usize], stripes: usize, page: LaneSlot) -> Result<Self> {
        let stripes = stripes.clamp(1, MAX_RINGS);
        let box_bytes = Mailbox::bytes(geometry).next_multiple_of(128);
        let ring_lines = lines_for(geometry, remote.len(), stripes);
        let ring_bytes = (ring_lines * size_of::<Line>()).next_multiple_of(128);
        let memory = gpu.take_pinned(remote.len() * box_bytes + stripes * ring_bytes)?;
        let base = memory.address();
        let mut mailboxes = vec![None; geometry.nranks as usize];
        for (k, peer) in remote.iter().enumerate() {
            // SAFETY: page-aligned zeroed memory that has room for every box and belongs to `Shared`, which the proxies and the lane keep; only this
            // lane's kernels and the one proxy thread of a pipe use it.
            mailboxes[*peer] = Some(unsafe { Mailbox::at(base.wrapping_add(k * box_bytes), geometry) });
        }
        let rings = base.wrapping_add(remote.len() * box_bytes);
        let rings = (0..stripes).map(|s| rings.wrapping_add(s * ring_bytes).cast_const().cast::<Line>()).collect();
        let shared = Arc::new(Shared {
            rank,
            geometry: *geometry,
            page,
            launched: AtomicU64::new(0),
            captured: AtomicBool::new(false),
            failure: Mutex::default(),
            leaving: AtomicBool::new(false),
            gone: AtomicU32::new(0),
            gpu: gpu.clone(),
            memory: Mutex::new(Some(memory)),
            over: AtomicBool::new(false),
        });
        Ok(Self { shared, proxies: Mutex::new(proxies(stripes)?), mailboxes, rings, ring_lines })
    }

    /// Adds what kernels must know to `reach`, whose other peers are filled in already.
    pub fn describe(&self, reach: &mut Reach) {
        for (peer, mailbox) in reach.peers.iter_mut().zip(&self.mailboxes) {
            if let Some(mailbox) = mailbox {
                *peer = mailbox.peer();
            }
        }
        reach.rings = self.rings.iter().map(|r| *r as u64).collect();
        reach.ring_lines = self.ring_lines as u32;
    }

    /// Connects to all remote ranks, by rank with their listeners' addresses, and starts to serve. To be called once.
    pub fn connect(
        &self,
        listener: Listener,
        others: &[(usize, SocketAddr)],
        key: &[u8; 32],
        patience: Duration,
        abort: &AtomicBool,
    ) -> Result<()> {
        let nranks = self.mailboxes.len();
        let proxies = lock(&self.proxies);
        let stripes = proxies.len();
        let mut links: Vec<Vec<Option<Box<dyn Link>>>> = (0..stripes).map(|_| (0..nranks).map(|_| None).collect()).collect();
        for connected in listener.connect(self.shared.rank, others, stripes, key, abort)? {
            let Some(mailbox) = self.mailboxes[connected.rank] else {
                return Err(Error::internal(format!("a connection to rank {}, which is on this node", connected.rank)));
            };
            let link = Socket::new(connected.stream, mailbox, patience)
                .map_err(|e| Error::system(format!("the connection to rank {}: {e}", connected.rank)))?;
            links[connected.stripe][connected.rank] = Some(Box::new(link));
        }
        for ((proxy, links), ring) in proxies.iter().zip(links).zip(&self.rings) {
            // SAFETY: zeroed lines that belong to `shared`, which the endpoint keeps, and this is their only reader.
            let ring = unsafe { Reader::new(*ring, self.ring_lines) };
            proxy.serve(Endpoint::new(self.shared.clone(), ring, links));
        }
        Ok(())
    }

    /// Before a launch: the proxies must be awake for it.
    pub fn expect(&self, captured: bool) {
        if captured {
            self.shared.captured.store(true, Ordering::Relaxed);
        } else {
            self.shared.launched.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.proxies).iter().for_each(|p| p.wake());
    }

    /// The launch that was expected has failed.
    pub fn take_back(&self, captured: bool) {
        if !captured {
            self.shared.launched.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn failure(&self) -> Option<LinkFailure> {
        lock(&self.shared.failure).clone()
    }

    /// A rank of another node that has announced another collective in the place of the one that this rank announced: its number, our view and its.
    /// A kernel that does not wait for that rank may be over before the news comes.
    pub fn disagreement(&self) -> Option<(usize, Announce, Announce)> {
        let announced = self
            .mailboxes
            .iter()
            .enumerate()
            .filter_map(|(rank, m)| m.as_ref()?.announcements().map(|(mine, theirs)| (rank, mine, theirs)));
        let collective = |a: &Announce| a.kind < OpKind::Send as u8;
        announced.into_iter().find(|(_, mine, theirs)| {
            mine.seq == theirs.seq && mine.signature != theirs.signature && collective(mine) && collective(theirs)
        })
    }

    /// Says goodbye to all peers after what they still have to get, waits until it has reached their hosts, for at most `limit`, and closes the links.
    /// No kernel of this rank is under way. Nothing is lost if the process ends then.
    pub fn leave(&self, limit: Duration) {
        self.shared.leaving.store(true, Ordering::Release);
        let proxies = lock(&self.proxies).clone();
        proxies.iter().for_each(|p| p.wake_up());
        let started = Instant::now();
        while self.shared.gone.load(Ordering::Acquire).count_ones() < proxies.len() as u32 && started.elapsed() < limit {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.close();
    }

    /// Closes the links. Peers to whom nobody has said goodbye take this rank for lost.
    pub fn close(&self) {
        lock(&self.proxies).drain(..).for_each(|p| p.drop_links(self.shared.clone()));
    }

    /// The memory may be used again, once the proxies have let go of it.
    ///
    /// # Safety
    /// No kernel of the lane runs or will run.
    pub unsafe fn recycle(self) {
        self.close();
        self.shared.over.store(true, Ordering::Release);
    }
}
