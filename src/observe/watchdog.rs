//! The watchdog: one thread per process that says on whom an operation waits, when it waits long.
//!
//! A communicator's init calls [`watch`] and keeps the returned [`Watch`]; dropping that ends the watching. The thread looks at what the device
//! has written to host memory ([`Watched::sample`]); it calls no CUDA function, holds nothing of a communicator, and cannot end or delay an
//! operation. Messages go to `tracing` with the target `WATCHDOG`.
//!
//! It sleeps while nothing is watched, looks four times a second while there is traffic or a wait, and once a second otherwise (a graph that
//! is replayed runs none of our host code, so silence of the host proves nothing): 0.02 % of a core with eight ranks watched.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_EVERY_WHEN_QUIET: Duration = Duration::from_secs(1);
const QUIET_AFTER_US: u64 = 5_000_000;

/// One rank of a communicator, as the watchdog sees it.
pub trait Watched: Send {
    /// Reads the status page. Must return at once, must not call CUDA, and must not call [`watch`] or drop a [`Watch`].
    fn sample(&self) -> Sample;
}

/// What a status page says now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// Any number that changes when the rank enqueues something.
    pub activity: u64,
    /// A device wait that has lasted.
    pub waiting: Option<Waiting>,
    /// Why an operation ended early, as a sentence.
    pub failure: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Operation number on the communicator.
    pub operation: u64,
    /// The call, as `mismatch::CallView` prints it.
    pub call: String,
    /// Bit r: rank r is awaited.
    pub awaited: u64,
    pub channel: u32,
    /// How long the device says it has waited.
    pub waited_us: u64,
}

/// Who is watched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// As the log names the communicator.
    pub communicator: String,
    pub rank: u32,
    pub nranks: u32,
}

/// What there is to say about one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Waits(Waiting),
    /// A wait that was reported has ended, after this time.
    GoesOn(Waiting),
    Failed(String),
}

/// Decides when to speak about one rank. Pure: the time is passed in.
#[derive(Debug, Clone)]
pub struct Judge {
    /// `None`: never warn of waits.
    warn_after_us: Option<u64>,
    wait: Option<Episode>,
    failed: bool,
}

#[derive(Debug, Clone)]
struct Episode {
    last: Waiting,
    /// When the wait began, on the caller's clock.
    since_us: i128,
    next_warning_us: u64,
    warned: bool,
}

impl Judge {
    /// `warn_after`: `MKERNEL_WARN_S`; zero switches warnings of waits off.
    pub fn new(warn_after: Duration) -> Self {
        let us = u64::try_from(warn_after.as_micros()).unwrap_or(u64::MAX);
        Self { warn_after_us: (us > 0).then_some(us), wait: None, failed: false }
    }

    pub fn judge(&mut self, now_us: u64, sample: &Sample) -> Vec<Notice> {
        let mut notices = vec![];
        if sample.failure.is_some() {
            // The failure ended the wait, and says more than the wait's end would.
            self.wait = None;
        } else {
            let ended = self.wait.take_if(|e| !sample.waiting.as_ref().is_some_and(|w| e.goes_on(w)));
            if let Some(e) = ended.filter(|e| e.warned) {
                notices.push(Notice::GoesOn(Waiting { waited_us: e.waited_us(now_us), ..e.last }));
            }
            if let Some(waiting) = &sample.waiting {
                self.wait(now_us, waiting, &mut notices);
            }
        }
        match &sample.failure {
            Some(text) if !self.failed => notices.push(Notice::Failed(text.clone())),
            _ => {}
        }
        self.failed = sample.failure.is_some();
        notices
    }

    fn wait(&mut self, now_us: u64, waiting: &Waiting, notices: &mut Vec<Notice>) {
        let Some(warn_after_us) = self.warn_after_us else { return };
        let episode = self.wait.get_or_insert_with(|| Episode {
            last: waiting.clone(),
            since_us: i128::from(now_us) - i128::from(waiting.waited_us),
            next_warning_us: warn_after_us,
            warned: false,
        });
        episode.last = waiting.clone();
        // The device's figure stands still when the device does, so the host's clock counts as well.
        let waited_us = episode.waited_us(now_us);
        if waited_us >= episode.next_warning_us {
            episode.warned = true;
            while episode.next_warning_us <= waited_us {
                episode.next_warning_us = episode.next_warning_us.saturating_mul(2);
            }
            notices.push(Notice::Waits(Waiting { waited_us, ..waiting.clone() }));
        }
    }
}

impl Episode {
    /// Whether `waiting` is still this wait. Several channels of one operation report by turns and differ a little; a wait that is much shorter
    /// is another one, of a send or receive with the same number.
    fn goes_on(&self, waiting: &Waiting) -> bool {
        waiting.operation == self.last.operation && waiting.waited_us >= self.last.waited_us / 2
    }

    fn waited_us(&self, now_us: u64) -> u64 {
        u64::try_from(i128::from(now_us) - self.since_us).unwrap_or(0).max(self.last.waited_us)
    }
}

/// `0-2, 5`.
fn ranges(mut ranks: Vec<u32>) -> String {
    ranks.sort_unstable();
    let runs = ranks.chunk_by(|a, b| a + 1 == *b);
    let texts: Vec<String> = runs
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        })
        .collect();
    texts.join(", ")
}

fn plural(ranks: &[u32], one: &'static str, many: &'static str) -> &'static str {
    if ranks.len() > 1 { many } else { one }
}

fn bits(mask: u64) -> Vec<u32> {
    (0..64).filter(|r| mask >> r & 1 == 1).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Info,
    Warning,
}

/// The lines to write for the notices of one look. Ranks of this process that wait for the same in the same operation share a line.
pub fn lines(notices: &[(Identity, Notice)]) -> Vec<(Severity, String)> {
    type Key<'a> = (bool, &'a str, u64, u64);
    let mut waits: BTreeMap<Key, Vec<(&Identity, &Waiting)>> = BTreeMap::new();
    let mut out = vec![];
    for (who, notice) in notices {
        match notice {
            Notice::Waits(w) => waits.entry((true, who.communicator.as_str(), w.operation, w.awaited)).or_default().push((who, w)),
            Notice::GoesOn(w) => waits.entry((false, who.communicator.as_str(), w.operation, w.awaited)).or_default().push((who, w)),
            Notice::Failed(text) => out.push((Severity::Warning, format!("rank {}: {text}", who.rank))),
        }
    }
    for ((still, communicator, operation, awaited), group) in waits {
        let Some((who, w)) = group.first() else { continue };
        let here: Vec<u32> = group.iter().map(|(who, _)| who.rank).collect();
        let absent = bits(awaited);
        let seconds = group.iter().map(|(_, w)| w.waited_us).max().unwrap_or(0) / 1_000_000;
        let operation = format!("operation {operation} {} of communicator {communicator} ({} ranks)", w.call, who.nranks);
        let waiting = format!("{} {}", plural(&here, "rank", "ranks"), ranges(here.clone()));
        let missing = match absent.as_slice() {
            [] => "a rank that the device did not name".to_string(),
            some => format!("{} {}", plural(some, "rank", "ranks"), ranges(absent.clone())),
        };
        out.push(if still {
            let have = plural(&absent, "has not joined, or is stuck in,", "have not joined, or are stuck in,");
            let wait = plural(&here, "waits", "wait");
            let text = format!(
                "{missing} {have} {operation}; {waiting} {wait} since {seconds} s (channel {}). Look at what {missing} {} doing; \
                 MKERNEL_WARN_S sets when this is said",
                w.channel,
                plural(&absent, "is", "are"),
            );
            (Severity::Warning, text)
        } else {
            (Severity::Info, format!("{operation} goes on: {waiting} waited {seconds} s for {missing}"))
        });
    }
    out
}

struct Entry {
    id: u64,
    who: Identity,
    page: Box<dyn Watched>,
    judge: Judge,
    activity: u64,
    active_at_us: u64,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    next_id: u64,
    stopped: bool,
}

/// The watchdog of one process. Never freed: its thread may outlive everything.
struct Watchdog {
    pid: u32,
    started: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

/// Null until the first [`watch`]. After a fork it points to the parent's, whose lock may be held for ever and whose thread is not here: it is
/// told by its `pid`, and neither locked nor used.
static WATCHDOG: AtomicPtr<Watchdog> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps a rank watched. Once its drop has returned, the page is not touched any more.
#[must_use]
pub struct Watch {
    watchdog: &'static Watchdog,
    id: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.watchdog.pid != std::process::id() {
            return;
        }
        let mut state = self.watchdog.lock();
        let at = state.entries.iter().position(|e| e.id == self.id);
        let entry = at.map(|i| state.entries.swap_remove(i));
        drop(state);
        // The page's own drop may do anything, so it runs outside the lock, on this thread.
        drop(entry);
    }
}

/// Watches a rank until the returned value is dropped; starts the thread if need be. `warn_after`: `MKERNEL_WARN_S`, zero for never.
/// If no thread can be started, that is said once and nothing is watched.
///
/// To be called after the driver was initialised: the handler that stops the watchdog at exit must run before the driver's own.
pub fn watch(who: Identity, page: Box<dyn Watched>, warn_after: Duration) -> Watch {
    let watchdog = this_process();
    let mut state = watchdog.lock();
    let id = state.next_id;
    state.next_id += 1;
    let now_us = watchdog.now_us();
    state.entries.push(Entry { id, who, page, judge: Judge::new(warn_after), activity: 0, active_at_us: now_us });
    drop(state);
    watchdog.changed.notify_all();
    Watch { watchdog, id }
}

fn current() -> Option<&'static Watchdog> {
    // SAFETY: the pointer is null or comes from Box::leak in `this_process`, and what it points to is never freed or changed but through its
    // own locks. After a fork the memory is the child's copy of it.
    unsafe { WATCHDOG.load(Ordering::Acquire).as_ref() }
}

fn this_process() -> &'static Watchdog {
    let pid = std::process::id();
    let found = WATCHDOG.load(Ordering::Acquire);
    if let Some(watchdog) = current().filter(|w| w.pid == pid) {
        return watchdog;
    }
    let new: &'static mut Watchdog =
        Box::leak(Box::new(Watchdog { pid, started: Instant::now(), state: Mutex::default(), changed: Condvar::new() }));
    let new: *mut Watchdog = new;
    match WATCHDOG.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: `new` was leaked above.
            let watchdog: &'static Watchdog = unsafe { &*new };
            if let Err(error) = start(watchdog) {
                tracing::warn!(target: "WATCHDOG", "cannot start the watchdog thread ({error}); long waits will not be reported");
            }
            watchdog
        }
        // Another thread was first; ours stays unused.
        Err(theirs) => {
            // SAFETY: the winner put a leaked watchdog there.
            unsafe { &*theirs }
        }
    }
}

fn start(watchdog: &'static Watchdog) -> std::io::Result<()> {
    extern "C" fn stop_at_exit() {
        if let Some(watchdog) = current() {
            watchdog.stop();
        }
    }
    crate::os::at_exit(stop_at_exit);
    crate::os::quiet_thread("mkernel-watch", || {
        if std::panic::catch_unwind(|| watchdog.run()).is_err() {
            tracing::warn!(target: "WATCHDOG", "the watchdog thread panicked; long waits are not reported any more");
        }
    })
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// After it has returned, no page is looked at any more. The thread ends at its leisure.
    fn stop(&self) {
        if self.pid == std::process::id() {
            self.lock().stopped = true;
            self.changed.notify_all();
        }
    }

    fn run(&self) {
        loop {
            let mut state = self.lock();
            while state.entries.is_empty() && !state.stopped {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stopped {
                return;
            }
            let (notices, pause) = look(&mut state.entries, self.now_us());
            drop(state);
            // Outside the lock: a log file may be slow, and a communicator's end must not wait for it.
            for (severity, line) in lines(&notices) {
                match severity {
                    Severity::Warning => tracing::warn!(target: "WATCHDOG", "{line}"),
                    Severity::Info => tracing::info!(target: "WATCHDOG", "{line}"),
                }
            }
            let state = self.lock();
            if !state.stopped {
                drop(self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

/// Samples every page once. Returns what there is to say and how long to sleep.
fn look(entries: &mut [Entry], now_us: u64) -> (Vec<(Identity, Notice)>, Duration) {
    let mut notices = vec![];
    let mut pause = LOOK_EVERY_WHEN_QUIET;
    for entry in entries {
        let sample = entry.page.sample();
        if sample.activity != entry.activity {
            entry.activity = sample.activity;
            entry.active_at_us = now_us;
        }
        if sample.waiting.is_some() || now_us.saturating_sub(entry.active_at_us) < QUIET_AFTER_US {
            pause = LOOK_EVERY;
        }
        notices.extend(entry.judge.judge(now_us, &sample).into_iter().map(|notice| (entry.who.clone(), notice)));
    }
    (notices, pause)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    const S: u64 = 1_000_000;

    fn waiting(operation: u64, waited_us: u64) -> Option<Waiting> {
        Some(Waiting { operation, call: "AllReduce(count 4, int8, sum)".into(), awaited: 0b1000, channel: 2, waited_us })
    }

    /// `W30`: warns after 30 s. `G45`: goes on after 45 s. `F`: failed.
    fn short(notices: &[Notice]) -> String {
        let texts = notices.iter().map(|n| match n {
            Notice::Waits(w) => format!("W{}", w.waited_us / S),
            Notice::GoesOn(w) => format!("G{}", w.waited_us / S),
            Notice::Failed(_) => "F".to_string(),
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn speaks_once_per_doubling_and_when_it_is_over() {
        let wait = |operation, s| Sample { waiting: waiting(operation, s * S), ..Sample::default() };
        let quiet = Sample::default();
        let failed = Sample { failure: Some("rank 1 said so".into()), ..wait(8, 50) };
        type Step<'a> = (u64, Sample, &'a str);
        let table: &[(&str, &[Step])] = &[
            ("short waits are nobody's business", &[(0, wait(1, 1), ""), (28, wait(1, 29), ""), (29, quiet.clone(), "")]),
            (
                "doubling",
                &[
                    (100, wait(1, 29), ""),
                    (101, wait(1, 30), "W30"),
                    (130, wait(1, 59), ""),
                    (131, wait(1, 60), "W60"),
                    (161, wait(1, 90), ""),
                    (191, wait(1, 120), "W120"),
                ],
            ),
            ("a late look does not repeat", &[(0, wait(1, 200), "W200"), (1, wait(1, 201), ""), (40, wait(1, 240), "W240")]),
            ("resolved", &[(0, wait(1, 30), "W30"), (15, quiet.clone(), "G45"), (16, quiet.clone(), "")]),
            ("the next operation waits, too", &[(0, wait(1, 30), "W30"), (31, wait(2, 1), "G61"), (60, wait(2, 30), "W30")]),
            ("a device that stands still", &[(0, wait(1, 1), ""), (28, wait(1, 1), ""), (29, wait(1, 1), "W30")]),
            (
                "failure, once, and no word of going on",
                &[(0, wait(8, 30), "W30"), (20, failed.clone(), "F"), (21, failed, ""), (22, quiet, "")],
            ),
        ];
        for (name, steps) in table {
            let mut judge = Judge::new(Duration::from_secs(30));
            for (at, sample, wanted) in *steps {
                assert_eq!(short(&judge.judge(at * S, sample)), *wanted, "{name}, at {at} s");
            }
        }
        let mut never = Judge::new(Duration::ZERO);
        assert_eq!(short(&never.judge(0, &wait(1, 1_000_000))), "");
    }

    fn who(rank: u32) -> Identity {
        Identity { communicator: "0x7f10".into(), rank, nranks: 5 }
    }

    #[test]
    fn ranks_of_one_process_share_a_line() {
        let w = |s| waiting(812, s * S).expect("a wait");
        let notices: Vec<_> = [0, 2, 1, 4].into_iter().map(|r| (who(r), Notice::Waits(w(30)))).collect();
        let text = "rank 3 has not joined, or is stuck in, operation 812 AllReduce(count 4, int8, sum) of communicator 0x7f10 (5 ranks); ranks \
                    0-2, 4 wait since 30 s (channel 2). Look at what rank 3 is doing; MKERNEL_WARN_S sets when this is said";
        assert_eq!(lines(&notices), vec![(Severity::Warning, text.to_string())]);

        let both = Waiting { awaited: 0b1100, ..w(75) };
        let text = &lines(&[(who(1), Notice::GoesOn(both.clone()))])[0];
        assert_eq!(text.0, Severity::Info);
        assert!(text.1.ends_with("(5 ranks) goes on: rank 1 waited 75 s for ranks 2-3"), "{}", text.1);
        assert_eq!(lines(&[(who(1), Notice::Waits(both)), (who(1), Notice::Failed("x".into())), (who(0), Notice::Waits(w(30)))]).len(), 3);
    }

    /// Tells the test of each look, and of its end.
    struct Page(mpsc::Sender<&'static str>);

    impl Watched for Page {
        fn sample(&self) -> Sample {
            let _ = self.0.send("look");
            Sample::default()
        }
    }

    impl Drop for Page {
        fn drop(&mut self) {
            let _ = self.0.send("end");
        }
    }

    #[test]
    fn a_page_is_looked_at_until_its_watch_is_dropped_and_never_later() {
        let (send, receive) = mpsc::channel();
        let watch = watch(who(0), Box::new(Page(send)), Duration::from_secs(30));
        assert_eq!(receive.recv(), Ok("look"));
        drop(watch);
        let rest: Vec<_> = receive.iter().collect();
        assert_eq!(rest.last(), Some(&"end"), "nothing follows the end");
    }

    #[test]
    fn a_stopped_watchdog_ends_its_thread() {
        let dog = Arc::new(Watchdog { pid: std::process::id(), started: Instant::now(), state: Mutex::default(), changed: Condvar::new() });
        let thread = std::thread::spawn({
            let dog = dog.clone();
            move || dog.run()
        });
        dog.stop();
        thread.join().expect("the thread ends");
        assert!(dog.lock().stopped);
    }

    #[test]
    fn a_forked_child_never_touches_the_parents_lock() {
        let (send, _receive) = mpsc::channel();
        let inherited = watch(who(0), Box::new(Page(send)), Duration::from_secs(30));
        // The lock is held over the fork, as the watchdog's thread might: a child that took it would hang.
        let held = this_process().lock();
        // SAFETY: the child only drops the inherited watch, which must not allocate or lock, and leaves with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs after all is ended by the signal, and the test fails.
            unsafe { libc::alarm(10) };
            drop(inherited);
            if let Some(dog) = current() {
                dog.stop();
            }
            // SAFETY: ends the child at once, without exit handlers.
            unsafe { libc::_exit(7) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: `child` is our child, `status` a local.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 7));
    }
}
