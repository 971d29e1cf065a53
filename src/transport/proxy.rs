//! The threads that carry changes between kernels and links: one for each stripe of the connections, shared by all communicators of the process.
//! They call no CUDA function, so that nothing a user does with the GPU can hold them up, and no lock that a user's thread holds for long.
//!
//! A thread turns between the rings and the links while something moves, rests for tens of microseconds at a time while an operation is under way,
//! and sleeps in the kernel when none is, until a launch or a peer wakes it.
//!
//! Falling asleep: the thread says `asleep`, fences, then looks once more whether anybody is busy; a launch makes its endpoint busy, fences, then
//! looks at `asleep`. One of the two sees the other (`rest` has the loom model's counterpart).

use super::net::{Broken, Change, Link};
use super::network::Shared;
use super::ring::{Command, Reader, What};
use crate::error::{Error, Result};
use crate::executor::gpu::lock;
use crate::executor::layout::{PHASES, SLOTS};
use polling::{Event, Events, PollMode, Poller};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a thread turns after something has moved before it rests between two looks, where there are cores to spare.
const TURN_FOR: Duration = Duration::from_micros(100);
/// The rest, while an operation is under way.
const REST: Duration = Duration::from_micros(20);
/// Links are asked whether their peers are alive this often.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Commands taken from one ring before others have their turn.
const BURST: usize = 64;

/// A communicator's share of one thread.
pub struct Endpoint {
    shared: Arc<Shared>,
    ring: Reader,
    /// By rank; `None` for ranks of this node, and for links that are over.
    links: Vec<Option<Box<dyn Link>>>,
    /// Goodbyes have been given to the links.
    said_goodbye: bool,
}

enum Request {
    Serve(Endpoint),
    /// The communicator is over.
    Drop(Arc<Shared>),
}

/// The process exits.
static STOPPING: AtomicBool = AtomicBool::new(false);
/// What has been given to the threads is carried to its end for at most this long then.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// One thread, which ends when nobody holds its handle any more.
pub struct Proxy(Arc<Thread>);

struct Thread {
    stripe: usize,
    poller: Poller,
    requests: Mutex<Vec<Request>>,
    /// In the kernel, or about to be, until something wakes it.
    asleep: AtomicBool,
    /// Nobody needs it any more.
    retired: AtomicBool,
}

/// The handles of the process whose number stands before them.
static PROXIES: Mutex<(u32, Vec<Weak<Proxy>>)> = Mutex::new((0, Vec::new()));
/// Threads of this process that may touch a communicator's memory.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The process's threads for stripes 0 to `count` - 1. After a fork the child has its own.
pub fn proxies(count: usize) -> Result<Vec<Arc<Proxy>>> {
    let mut proxies = lock(&PROXIES);
    if proxies.0 != std::process::id() {
        if proxies.0 == 0 {
            // After the driver's own handler was registered, so that pinned memory is still there when ours runs.
            crate::os::at_exit(stop_at_exit);
        }
        *proxies = (std::process::id(), Vec::new());
        RUNNING.store(0, Ordering::Relaxed);
    }
    if proxies.1.len() < count {
        proxies.1.resize_with(count, Weak::new);
    }
    let start = |(stripe, handle): (usize, &mut Weak<Proxy>)| match handle.upgrade() {
        Some(running) => Ok(running),
        None => {
            let started = Arc::new(Proxy::start(stripe)?);
            *handle = Arc::downgrade(&started);
            Ok(started)
        }
    };
    proxies.1[..count].iter_mut().enumerate().map(start).collect()
}

/// Peers may still need what this process's kernels have handed over: carries it to its end, then stops the threads.
extern "C" fn stop_at_exit() {
    let proxies = lock(&PROXIES);
    if proxies.0 != std::process::id() {
        return;
    }
    STOPPING.store(true, Ordering::Release);
    let started = Instant::now();
    proxies.1.iter().filter_map(Weak::upgrade).for_each(|p| p.wake_up());
    while RUNNING.load(Ordering::Acquire) != 0 && started.elapsed() < 2 * STOP_WITHIN {
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Proxy {
    fn start(stripe: usize) -> Result<Self> {
        let failed = |e: std::io::Error| Error::system(format!("cannot start a network thread: {e}"));
        let poller = Poller::new().map_err(failed)?;
        let asleep = AtomicBool::new(false);
        let thread = Arc::new(Thread { stripe, poller, requests: Mutex::default(), asleep, retired: AtomicBool::new(false) });
        let body = thread.clone();
        RUNNING.fetch_add(1, Ordering::Relaxed);
        let spawned = crate::os::quiet_thread(&format!("mkernel-net{stripe}"), move || {
            body.run();
            RUNNING.fetch_sub(1, Ordering::Release);
        });
        spawned.map(|()| Self(thread)).map_err(|e| {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
            failed(e)
        })
    }

    pub fn serve(&self, endpoint: Endpoint) {
        self.ask(Request::Serve(endpoint));
    }

    pub fn drop_links(&self, shared: Arc<Shared>) {
        self.ask(Request::Drop(shared));
    }

    fn ask(&self, request: Request) {
        lock(&self.0.requests).push(request);
        self.wake_up();
    }

    /// Whether it sleeps or rests.
    pub fn wake_up(&self) {
        let _ = self.0.poller.notify();
    }

    /// After an endpoint has become busy.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.0.asleep.load(Ordering::Relaxed) {
            self.wake_up();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.retired.store(true, Ordering::Release);
        self.wake_up();
    }
}

impl Thread {
    fn run(&self) {
        crate::os::precise_timers();
        let spare_cores = std::thread::available_parallelism().is_ok_and(|n| n.get() >= 8);
        let turn_for = if spare_cores { TURN_FOR } else { Duration::ZERO };
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let mut events = Events::new();
        let (mut moved_at, mut checked_at) = (Instant::now(), Instant::now());
        let mut stopping_since = None;
        loop {
            // Read before the requests: what was asked for last must be done.
            let retired = self.retired.load(Ordering::Acquire);
            self.take_requests(&mut endpoints);
            if retired && endpoints.is_empty() {
                return;
            }
            let mut moved = false;
            for endpoint in &mut endpoints {
                moved |= endpoint.turn(&self.poller);
            }
            let now = Instant::now();
            if now - checked_at > CHECK_EVERY {
                checked_at = now;
                endpoints.iter_mut().for_each(|e| e.keep_alive(&self.poller));
            }
            if moved {
                moved_at = now;
                continue;
            }
            if STOPPING.load(Ordering::Acquire) {
                let since = *stopping_since.get_or_insert(now);
                endpoints.iter_mut().filter(|e| !e.shared.is_busy()).for_each(|e| {
                    e.leave(self.stripe);
                });
                if endpoints.iter().all(Endpoint::has_delivered) || now - since > STOP_WITHIN {
                    // The process's end closes the descriptors.
                    return std::mem::forget(endpoints);
                }
                std::thread::sleep(REST);
                continue;
            }
            let mut busy = endpoints.iter().any(Endpoint::is_busy);
            for endpoint in endpoints.iter_mut().filter(|e| e.shared.is_leaving()) {
                busy |= endpoint.leave(self.stripe);
            }
            if busy && now - moved_at < turn_for {
                continue;
            }
            let limit = if busy {
                Some(REST)
            } else {
                self.asleep.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if endpoints.iter().any(Endpoint::is_busy) {
                    self.asleep.store(false, Ordering::Relaxed);
                    continue;
                }
                None
            };
            events.clear();
            let _ = self.poller.wait(&mut events, limit);
            self.asleep.store(false, Ordering::Relaxed);
        }
    }

    fn take_requests(&self, endpoints: &mut Vec<Endpoint>) {
        for request in std::mem::take(&mut *lock(&self.requests)) {
            match request {
                Request::Serve(endpoint) => {
                    for (rank, link) in endpoint.links.iter().enumerate() {
                        let Some(link) = link else { continue };
                        // SAFETY: the link owns the descriptor, and is deleted from the poller before it is dropped.
                        let added = unsafe { self.poller.add_with_mode(link.descriptor(), Event::readable(rank), PollMode::Level) };
                        if let Err(e) = added {
                            endpoint.shared.link_failed(rank, &format!("its connection cannot be watched: {e}"));
                        }
                    }
                    endpoints.push(endpoint);
                }
                Request::Drop(shared) => {
                    if let Some(at) = endpoints.iter().position(|e| Arc::ptr_eq(&e.shared, &shared)) {
                        endpoints.swap_remove(at).links.iter().flatten().for_each(|link| forget(&self.poller, link.as_ref()));
                    }
                }
            }
        }
    }
}

impl Endpoint {
    pub fn new(shared: Arc<Shared>, ring: Reader, links: Vec<Option<Box<dyn Link>>>) -> Self {
        Self { shared, ring, links, said_goodbye: false }
    }

    fn is_busy(&self) -> bool {
        self.shared.is_busy() || self.links.iter().flatten().any(|link| link.wants_room())
    }

    /// When there is nothing to carry: the goodbyes of a communicator that is being destroyed. True: they are still on their way.
    fn leave(&mut self, stripe: usize) -> bool {
        if !self.said_goodbye {
            self.said_goodbye = true;
            self.links.iter_mut().flatten().for_each(|link| link.say_goodbye());
        }
        let arrived = self.has_delivered();
        if arrived {
            self.shared.has_left(stripe);
        }
        !arrived
    }

    /// All that was given to the links has reached the peers' hosts.
    fn has_delivered(&self) -> bool {
        self.links.iter().flatten().all(|link| link.has_delivered())
    }

    /// Takes commands and moves the links on. True: something moved.
    fn turn(&mut self, poller: &Poller) -> bool {
        let mut moved = false;
        for _ in 0..BURST {
            let Some(command) = self.ring.next() else { break };
            moved = true;
            match command {
                Ok(command) => self.obey(command),
                Err(word) => {
                    self.shared.link_failed(self.shared.rank, &format!("a kernel gave the command {word:#x}, which means nothing"))
                }
            }
        }
        for rank in 0..self.links.len() {
            let Some(link) = &mut self.links[rank] else { continue };
            let waited = link.wants_room();
            match link.progress() {
                Ok(went) => {
                    moved |= went;
                    if waited != link.wants_room() {
                        watch(poller, rank, link.as_ref());
                    }
                }
                Err(broken) => self.lose(poller, rank, &broken),
            }
        }
        moved
    }

    fn obey(&mut self, command: Command) {
        let channels = self.shared.geometry.channels as usize;
        let change = match command.what {
            What::Mark { slot, bytes }
                if slot.phase < PHASES
                    && slot.channel < channels
                    && slot.index < SLOTS
                    && bytes <= self.shared.geometry.slot_bytes as usize =>
            {
                Change::Chunk { slot, bytes }
            }
            What::Credit { phase, channel } if phase < PHASES && channel < channels => Change::Credit { phase, channel },
            What::Announcement => Change::Announcement,
            What::Failure => Change::Failure,
            _ => {
                return self
                    .shared
                    .link_failed(self.shared.rank, &format!("a kernel gave a command for a pipe that does not exist: {command:?}"));
            }
        };
        if let Some(link) = self.links.get_mut(command.peer).and_then(Option::as_mut) {
            link.carry(change);
        }
    }

    fn keep_alive(&mut self, poller: &Poller) {
        let busy = self.shared.is_busy();
        for rank in 0..self.links.len() {
            let Some(link) = &mut self.links[rank] else { continue };
            if let Err(broken) = link.keep_alive(busy) {
                self.lose(poller, rank, &broken);
            }
        }
    }

    fn lose(&mut self, poller: &Poller, rank: usize, broken: &Broken) {
        if let Broken::Failed(why) = broken {
            self.shared.link_failed(rank, why);
        }
        if let Some(link) = self.links[rank].take() {
            forget(poller, link.as_ref());
        }
    }
}

/// Watches for room to write only while something waits for it: there nearly always is.
fn watch(poller: &Poller, rank: usize, link: &dyn Link) {
    // SAFETY: the link is alive, and its descriptor with it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(link.descriptor()) };
    let _ = poller.modify_with_mode(descriptor, Event::new(rank, true, link.wants_room()), PollMode::Level);
}

fn forget(poller: &Poller, link: &dyn Link) {
    // SAFETY: as above.
    let descriptor = unsafe { BorrowedFd::borrow_raw(link.descriptor()) };
    let _ = poller.delete(descriptor);
}
