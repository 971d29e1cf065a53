//! How the host and a generation of the executor agree on who leaves and who is served.
//!
//! A *generation* is one launch of the executor. It leaves by itself when nothing came for its linger time, and at that moment the host may
//! be about to rely on it. Promise: an operation for which [`GenerationWords::register`] said [`Registration::Registered`] is served by that
//! generation, and `register` never waits longer than the device needs to answer (one round trip over PCIe) or than the caller's deadline.
//! Called by the executor's host side, once per operation, before the gate is launched.
//!
//! # The protocol
//!
//! The words lie in pinned host memory. Each has one writing side:
//!
//! | host writes | device writes |
//! | --- | --- |
//! | `posted`: operations registered | `closing`: the generation means to leave, if nothing is posted |
//! | `number`: which generation this is | `closed`: it has left; the last word that it writes |
//! | `leave`: do not linger | how the time was spent (before `closed`) |
//!
//! `finished`, the count of served operations, stays in device memory: only the device compares it with `posted`.
//!
//! Host, `register`:                       Device, one thread, idle for its linger time:
//!
//! ```text
//! H1  posted += 1                         D1  closing = number
//! H2  fence                               D2  fence
//! H3  read closing                        D3  read posted
//!     not set: registered                     posted != finished: closing = 0, serve on
//!     set: wait until it is                   else: write the times, fence, closed = number, never touch
//!       taken back: registered                      the words again
//!       or closed is set: closed
//! ```
//!
//! # Why it is right
//!
//! Both sides write, fence, then read what the other writes (Dekker's pattern), so of any H1-H3 and D1-D3 at least one reads the other's
//! write. If H3 reads `closing` unset, or reads that an attempt was taken back, then every *later* attempt's D3 reads this `posted`, and the
//! device stays until it has counted that operation as finished. If H3 reads `closing` set, the device's answer is on its way and the host
//! waits for it. An answer "closed" means that the device read `posted == finished`, so all operations registered before were served, and
//! that this one was not and never will be: its posting is void, because nobody reads the count of a dead generation.
//!
//! The fences order a write before a later read, which release and acquire do not; they must be sequentially consistent, on the device at
//! system scope (`__threadfence_system` is both). Tried on the model below: without H2, without D2, without the fence before `closed`, or
//! without the second look at `leaving`, its tests fail. Several host threads may register at once: H1 is a `fetch_add` and the argument
//! holds for each thread alone, so no lock is needed; the tests run two.
//!
//! # What the kernel must do
//!
//! ```text
//! // block 0, thread 0; `finished` and `leaving` are in device memory; volatile, system-scope accesses to the words
//! number = ld.volatile(words->number)                 // at the start of the launch
//! bool try_leave():                                   // idle for linger_ns, or for 2 us when ld.volatile(words->leave) != 0
//!   st.volatile(words->closing, number)
//!   __threadfence_system()
//!   if ld.volatile(words->posted) != ld.acquire(finished):
//!     st.volatile(words->closing, 0)
//!     return false                                    // serve on; the linger time begins anew
//!   st.volatile(leaving, 1)                           // the other blocks leave
//!   words->{serving,waiting,idle}_ns, served = ...
//!   __threadfence_system()                            // the times and `leaving` before `closed`
//!   st.volatile(words->closed, number)
//!   return true
//!
//! // every other block, when it has seen a new command of a lane and before it takes it:
//!   __threadfence()
//!   if ld.volatile(leaving): leave without taking it  // the command is the next generation's
//! ```
//!
//! The second look matters: as soon as `closed` is out, the host opens the next generation and a gate may post a command for it, while
//! blocks of the old one still poll. `leaving` was written before `closed`, so whoever sees such a command also sees `leaving`; a block that
//! took it would do the channel's work twice. `finished` and `leaving` are reset between generations in the order of the executor's stream
//! (the next launch does not start before all blocks of this one are gone), never by the host directly.
//!
//! `closing` and `closed` carry the generation's number. Words may be used again for another generation after `closed` was read, by which
//! time the old one writes no more; should it, by a mistake of ours, its number is not taken for the new one's.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// The words of one generation, in pinned memory that the device can address. The twin of `mk::Generation` in `kernels/layout.h`.
/// Zeroed memory is a valid value, on which [`GenerationWords::prepare`] must be called before the launch.
#[derive(Default)]
#[repr(C)]
pub struct GenerationWords {
    /// Host: operations registered with this generation.
    posted: AtomicU64,
    /// Host, before the launch: which generation this is; never 0.
    number: AtomicU32,
    _reserved0: [u32; 13],
    /// Device: `number` while it means to leave, else 0.
    closing: AtomicU32,
    /// Device: `number` once it has left.
    closed: AtomicU32,
    _reserved1: [u32; 14],
    /// Host: 1 asks the generation to leave as soon as nothing is posted, without lingering.
    leave: AtomicU32,
    _reserved2: [u32; 15],
    /// Device, before `closed`: how the generation's time was spent, and how many operations it served. It may also write them while it runs.
    serving_ns: AtomicU64,
    waiting_ns: AtomicU64,
    idle_ns: AtomicU64,
    served: AtomicU64,
    _reserved3: [u64; 4],
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(GenerationWords, posted) == 0 && offset_of!(GenerationWords, number) == 8);
    assert!(offset_of!(GenerationWords, closing) == 64 && offset_of!(GenerationWords, closed) == 68);
    assert!(offset_of!(GenerationWords, leave) == 128 && offset_of!(GenerationWords, serving_ns) == 192);
    assert!(size_of::<GenerationWords>() == 256);
};

/// What became of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Registration {
    /// This generation will serve the operation: launch its gate, or call [`GenerationWords::withdraw`].
    Registered,
    /// The generation has left: open the next one, or go inline.
    Closed,
    /// The device did not answer before the deadline. Whether the generation is there is unknown, so the operation must fail; in practice the
    /// GPU is lost or hung.
    Unanswered,
}

/// How a generation has spent its time, in nanoseconds of the device's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    pub serving_ns: u64,
    pub waiting_ns: u64,
    pub idle_ns: u64,
    pub served: u64,
}

impl GenerationWords {
    /// Makes the words ready for generation `number`, before its launch. The words must be new, or their last generation closed.
    /// `number` must not be 0 nor the last one's.
    pub fn prepare(&self, number: u32) {
        debug_assert_ne!(number, 0, "0 stands for \"not closing\"");
        for word in [&self.serving_ns, &self.waiting_ns, &self.idle_ns, &self.served, &self.posted] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.closing, &self.closed, &self.leave] {
            word.store(0, Ordering::Relaxed);
        }
        // The launch orders all of these before the kernel's first read.
        self.number.store(number, Ordering::Release);
    }

    /// Registers one operation. Any thread. `past_deadline` is asked only while the device is making up its mind.
    pub fn register(&self, mut past_deadline: impl FnMut() -> bool) -> Registration {
        let number = self.number.load(Ordering::Relaxed);
        self.posted.fetch_add(1, Ordering::Relaxed);
        // The posting before the reads below: without it the host could read an old `closing` while the device reads an old `posted`.
        fence(Ordering::SeqCst);
        loop {
            if self.closing.load(Ordering::Relaxed) != number {
                return Registration::Registered;
            }
            if self.closed.load(Ordering::Acquire) == number {
                return Registration::Closed;
            }
            if past_deadline() {
                return Registration::Unanswered;
            }
            spin_loop();
        }
    }

    /// Takes a registration back whose gate could not be launched, so that the generation does not wait for it for ever.
    pub fn withdraw(&self) {
        self.posted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Asks the generation to leave as soon as it has nothing to do. Operations registered later are served all the same.
    pub fn ask_to_leave(&self) {
        self.leave.store(1, Ordering::Relaxed);
    }

    /// Whether the generation has left; then the words may be prepared for another one.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) == self.number.load(Ordering::Relaxed)
    }

    /// How the time was spent; final once [`Self::is_closed`], else what the device last wrote.
    pub fn times(&self) -> Times {
        Times {
            serving_ns: self.serving_ns.load(Ordering::Relaxed),
            waiting_ns: self.waiting_ns.load(Ordering::Relaxed),
            idle_ns: self.idle_ns.load(Ordering::Relaxed),
            served: self.served.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn prepared(number: u32) -> GenerationWords {
        let words = GenerationWords::default();
        words.prepare(number);
        words
    }

    #[test]
    fn registers_with_an_open_generation_without_asking_the_clock() {
        let words = prepared(1);
        assert_eq!(words.register(|| unreachable!("nothing to wait for")), Registration::Registered);
        assert_eq!(words.posted.load(Ordering::Relaxed), 1);
        words.withdraw();
        assert_eq!(words.posted.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_closing_generation_decides_or_the_deadline_does() {
        let words = prepared(7);
        words.closing.store(7, Ordering::Relaxed);
        let mut asked = 0;
        let third = || {
            asked += 1;
            asked == 3
        };
        assert_eq!(words.register(third), Registration::Unanswered);
        let take_back = || {
            words.closing.store(0, Ordering::Relaxed);
            false
        };
        assert_eq!(words.register(take_back), Registration::Registered);
        words.closing.store(7, Ordering::Relaxed);
        let close = || {
            words.closed.store(7, Ordering::Release);
            false
        };
        assert_eq!(words.register(close), Registration::Closed);
        assert!(words.is_closed());
    }

    #[test]
    fn words_used_again_ignore_what_the_last_generation_wrote() {
        let words = prepared(7);
        words.closing.store(7, Ordering::Relaxed);
        words.closed.store(7, Ordering::Relaxed);
        words.served.store(3, Ordering::Relaxed);
        assert_eq!(words.times().served, 3);
        words.prepare(8);
        assert_eq!(words.times(), Times::default());
        words.closing.store(7, Ordering::Relaxed);
        words.closed.store(7, Ordering::Relaxed);
        assert!(!words.is_closed());
        assert_eq!(words.register(|| true), Registration::Registered);
    }
}

/// The model: the device's side written with the same words, explored together with the host's by loom. Run by
/// `RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom cargo test -p mkernel --lib loom_`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const GENERATION: u32 = 5;
    /// Attempts to leave that block 0 makes; each multiplies the interleavings.
    const ATTEMPTS: u32 = 2;

    #[derive(Default)]
    struct World {
        words: GenerationWords,
        /// Device memory: gates that have run, the stand-in of the command ring.
        gates: AtomicU32,
        /// Device memory: block 0 tells the other blocks to leave.
        leaving: AtomicU32,
    }

    fn world() -> Arc<World> {
        let world = World::default();
        world.words.prepare(GENERATION);
        Arc::new(world)
    }

    /// D1 to D3. True: left, and wrote `closed`.
    fn try_leave(world: &World, finished: u64) -> bool {
        let words = &world.words;
        words.closing.store(GENERATION, Ordering::Relaxed);
        fence(Ordering::SeqCst); // D2
        if words.posted.load(Ordering::Relaxed) != finished {
            words.closing.store(0, Ordering::Relaxed);
            return false;
        }
        world.leaving.store(1, Ordering::Relaxed);
        words.served.store(finished, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        words.closed.store(GENERATION, Ordering::Relaxed);
        true
    }

    /// Block 0 with a linger time of 0: tries to leave whenever it has served all gates that it has seen, so a registered operation whose
    /// gate is on its way always meets an attempt. Returns how many operations it had served when it left; `None` if it is still there,
    /// and would go on serving.
    fn block0(world: &World) -> Option<u64> {
        for _ in 0..ATTEMPTS {
            let finished = u64::from(world.gates.load(Ordering::Acquire));
            if try_leave(world, finished) {
                return Some(finished);
            }
            spin_loop();
        }
        None
    }

    /// What must hold when all threads have ended: whoever left had served exactly what was registered; whoever stayed turned nobody away.
    fn check(world: &World, device: Option<u64>, answers: &[Registration]) {
        let count = |which| answers.iter().filter(|a| **a == which).count() as u64;
        assert_eq!(world.words.is_closed(), device.is_some());
        match device {
            Some(served) => assert_eq!(served, count(Registration::Registered), "left with a registered operation unserved"),
            None => assert_eq!(count(Registration::Closed), 0, "turned an operation away and stayed"),
        }
    }

    /// A host thread with one operation; if it is registered, its gate runs at some time later. `patience` bounds the polls for an answer.
    fn host(world: &World, patience: u32) -> Registration {
        let mut polls = 0;
        let answer = world.words.register(|| {
            polls += 1;
            polls > patience
        });
        if answer == Registration::Registered {
            world.gates.fetch_add(1, Ordering::Release);
        }
        answer
    }

    /// A host that waits for ever exceeds loom's limit of steps, which fails the test.
    const FOR_EVER: u32 = u32::MAX;

    fn explore(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(run);
    }

    fn spawn<T: 'static>(world: &Arc<World>, run: impl FnOnce(&World) -> T + 'static) -> thread::JoinHandle<T> {
        let world = world.clone();
        thread::spawn(move || run(&world))
    }

    /// One operation, all interleavings: it is served if and only if it was registered, and the host always gets an answer.
    #[test]
    fn loom_registered_is_served() {
        explore(None, || {
            let world = world();
            let device = spawn(&world, block0);
            let answer = host(&world, FOR_EVER);
            check(&world, device.join().expect("device"), &[answer]);
        });
    }

    /// Two operations of one thread: the second may meet an attempt to leave that the first one has already met.
    #[test]
    fn loom_registers_again_after_an_attempt() {
        explore(Some(3), || {
            let world = world();
            let device = spawn(&world, block0);
            let answers = [host(&world, FOR_EVER), host(&world, FOR_EVER)];
            check(&world, device.join().expect("device"), &answers);
        });
    }

    /// Two host threads register without a lock: an answer that one of them caused must be right for the other, too.
    /// (With patience: two waiting hosts may take turns for ever in loom's schedules, which starves the device as no real host can.)
    #[test]
    fn loom_two_threads_register_at_once() {
        explore(Some(3), || {
            let world = world();
            let device = spawn(&world, block0);
            let other = spawn(&world, |world| host(world, 2));
            let answers = [host(&world, 2), other.join().expect("host")];
            check(&world, device.join().expect("device"), &answers);
        });
    }

    /// A registration whose gate was never launched does not keep the generation for ever.
    #[test]
    fn loom_withdrawn_does_not_hold_the_generation() {
        explore(None, || {
            let world = world();
            let host = spawn(&world, |world| {
                if world.words.register(|| false) == Registration::Registered {
                    world.words.withdraw();
                }
            });
            let left = try_leave(&world, 0);
            host.join().expect("host");
            assert!(left || try_leave(&world, 0));
        });
    }

    /// A block that still polls when its generation has closed leaves the next generation's command alone.
    #[test]
    fn loom_late_block_leaves_the_next_generations_command() {
        explore(None, || {
            let world = world();
            let block0 = spawn(&world, |world| try_leave(world, 0));
            let block1 = spawn(&world, |world| {
                let seen = world.gates.load(Ordering::Relaxed) != 0;
                fence(Ordering::SeqCst);
                seen && world.leaving.load(Ordering::Relaxed) == 0
            });
            // If closed, this is the gate of an operation that was registered with the next generation.
            let registration = world.words.register(|| false);
            world.gates.fetch_add(1, Ordering::Release);
            let taken = block1.join().expect("block 1");
            assert!(!(taken && registration == Registration::Closed), "the command would be run twice");
            assert_eq!(block0.join().expect("block 0"), registration == Registration::Closed);
        });
    }
}
