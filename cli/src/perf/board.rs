//! What the ranks share: one anonymous shared mapping that serves threads and forked processes alike.
//!
//! Any rank writes its own slot and reads the others' after a barrier. The supervisor reads all of them at any time.

use super::nccl::UniqueId;
use super::{Error, Result};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Words that everybody uses.
#[repr(C)]
struct Header {
    id: [AtomicU8; 128],
    /// 1 once `id` is complete. Futex word.
    id_ready: AtomicU32,
    arrived: AtomicU32,
    /// Number of barriers passed. Futex word.
    barriers: AtomicU32,
    /// 1 + the rank that failed first.
    failed: AtomicU32,
    /// Counts what the supervisor wants to hear of: ends and failures. Futex word.
    news: AtomicU32,
    /// Set by rank 0 at the end: 1 if every checked element was right.
    all_right: AtomicU32,
}

/// What one rank tells the others.
#[repr(C)]
pub struct Slot {
    state: AtomicU32,
    at_barrier: AtomicU32,
    steps: AtomicU64,
    microseconds: AtomicU64,
    wrong: AtomicU64,
    progress: Text<192>,
    message: Text<2048>,
}

/// Text that may be read while it is written; a reader may then see a mixture, which a report can bear.
#[repr(C)]
struct Text<const N: usize> {
    length: AtomicU32,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Text<N> {
    fn set(&self, text: &str) {
        let length = text.len().min(N);
        for (slot, byte) in self.bytes.iter().zip(&text.as_bytes()[..length]) {
            slot.store(*byte, Ordering::Relaxed);
        }
        self.length.store(length as u32, Ordering::Release);
    }

    fn get(&self) -> String {
        let length = (self.length.load(Ordering::Acquire) as usize).min(N);
        let bytes: Vec<u8> = self.bytes[..length].iter().map(|b| b.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    Running = 0,
    Done = 1,
    Failed = 2,
    /// Gave up because another rank failed.
    Stopped = 3,
}

/// The shared mapping. It lives as long as the process, so copies of this are free.
#[derive(Clone, Copy)]
pub struct Board {
    header: &'static Header,
    slots: &'static [Slot],
}

impl Board {
    pub fn new(ranks: usize) -> Result<Self> {
        let slots_at = size_of::<Header>().next_multiple_of(align_of::<Slot>());
        let bytes = slots_at + ranks * size_of::<Slot>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: asks for a fresh mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::failed(format!("cannot map {bytes} bytes of shared memory: {}", std::io::Error::last_os_error())));
        }
        // SAFETY: the mapping is zeroed, which is a valid value of the atomics that both types consist of; it is aligned to a page, large enough, and
        // never unmapped.
        unsafe {
            let slots = base.byte_add(slots_at).cast::<Slot>();
            Ok(Self { header: &*base.cast::<Header>(), slots: std::slice::from_raw_parts(slots, ranks) })
        }
    }

    pub fn ranks(&self) -> usize {
        self.slots.len()
    }

    /// Rank 0 hands the communicator's id to the others.
    pub fn publish_id(&self, id: &UniqueId) {
        for (slot, byte) in self.header.id.iter().zip(id.0) {
            slot.store(byte, Ordering::Relaxed);
        }
        self.header.id_ready.store(1, Ordering::Release);
        wake(&self.header.id_ready);
    }

    pub fn await_id(&self) -> Result<UniqueId> {
        self.wait_until(&self.header.id_ready, 0)?;
        let mut id = UniqueId([0; 128]);
        for (byte, slot) in id.0.iter_mut().zip(&self.header.id) {
            *byte = slot.load(Ordering::Relaxed);
        }
        Ok(id)
    }

    /// Waits for all ranks. Every rank sees what the others wrote before.
    pub fn barrier(&self, rank: usize) -> Result<()> {
        let header = self.header;
        let before = header.barriers.load(Ordering::Acquire);
        self.slots[rank].at_barrier.store(1, Ordering::Relaxed);
        let result = if header.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks() as u32 {
            header.arrived.store(0, Ordering::Relaxed);
            header.barriers.fetch_add(1, Ordering::Release);
            wake(&header.barriers);
            Ok(())
        } else {
            self.wait_until(&header.barriers, before)
        };
        self.slots[rank].at_barrier.store(0, Ordering::Relaxed);
        result
    }

    /// Waits until a futex word differs from `old`, or a rank has failed.
    fn wait_until(&self, word: &AtomicU32, old: u32) -> Result<()> {
        while word.load(Ordering::Acquire) == old {
            self.check()?;
            sleep_on(word, old, Duration::from_millis(100));
        }
        Ok(())
    }

    /// Fails if a rank has failed.
    pub fn check(&self) -> Result<()> {
        self.first_failure().map_or(Ok(()), |rank| Err(Error::Stopped(rank)))
    }

    pub fn first_failure(&self) -> Option<usize> {
        (self.header.failed.load(Ordering::Acquire) as usize).checked_sub(1)
    }

    /// Records what a rank is about to do; also the sign of life that the time limit looks for.
    pub fn progress(&self, rank: usize, text: &str) {
        self.slots[rank].progress.set(text);
        self.step(rank);
    }

    /// A sign of life inside what `progress` has announced.
    pub fn step(&self, rank: usize) {
        self.slots[rank].steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a rank has ended. The first failure stops the others.
    pub fn finish(&self, rank: usize, result: &Result<()>) {
        let slot = &self.slots[rank];
        let state = match result {
            Ok(()) => State::Done,
            Err(Error::Stopped(_)) => State::Stopped,
            Err(Error::Failed(message)) => {
                slot.message.set(message);
                let _ = self.header.failed.compare_exchange(0, rank as u32 + 1, Ordering::AcqRel, Ordering::Acquire);
                State::Failed
            }
        };
        slot.state.store(state as u32, Ordering::Release);
        self.header.news.fetch_add(1, Ordering::Release);
        wake(&self.header.news);
    }

    /// Leaves a rank's figures for `figures` to collect.
    pub fn report(&self, rank: usize, microseconds: f64, wrong: u64) {
        self.slots[rank].microseconds.store(microseconds.to_bits(), Ordering::Relaxed);
        self.slots[rank].wrong.store(wrong, Ordering::Relaxed);
    }

    /// The slowest rank's time and the sum of wrong elements; valid between two barriers after all ranks' `report`.
    pub fn figures(&self) -> (f64, u64) {
        let slowest = self.slots.iter().map(|slot| f64::from_bits(slot.microseconds.load(Ordering::Relaxed))).fold(0.0, f64::max);
        (slowest, self.slots.iter().map(|slot| slot.wrong.load(Ordering::Relaxed)).sum())
    }

    pub fn set_all_right(&self) {
        self.header.all_right.store(1, Ordering::Release);
    }

    pub fn all_right(&self) -> bool {
        self.header.all_right.load(Ordering::Acquire) == 1
    }

    pub fn state(&self, rank: usize) -> State {
        match self.slots[rank].state.load(Ordering::Acquire) {
            1 => State::Done,
            2 => State::Failed,
            3 => State::Stopped,
            _ => State::Running,
        }
    }

    pub fn message(&self, rank: usize) -> String {
        self.slots[rank].message.get()
    }

    /// What a rank last said it was about to do, and whether it now waits for the others.
    pub fn last_progress(&self, rank: usize) -> (String, bool) {
        (self.slots[rank].progress.get(), self.slots[rank].at_barrier.load(Ordering::Relaxed) == 1)
    }

    /// Grows whenever any rank makes progress.
    pub fn steps(&self) -> u64 {
        let steps: u64 = self.slots.iter().map(|slot| slot.steps.load(Ordering::Relaxed)).sum();
        steps + u64::from(self.header.news.load(Ordering::Relaxed))
    }

    /// Sleeps until a rank ends, or for a short time at most.
    pub fn await_news(&self, seen: u32) {
        if self.news() == seen {
            sleep_on(&self.header.news, seen, Duration::from_millis(50));
        }
    }

    pub fn news(&self) -> u32 {
        self.header.news.load(Ordering::Acquire)
    }
}

/// Wakes everybody who sleeps on the word, in this process or another.
fn wake(word: &AtomicU32) {
    // SAFETY: the word is live; FUTEX_WAKE only uses its address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Sleeps while the word is `old`, for at most the given time. May return early.
fn sleep_on(word: &AtomicU32, old: u32, limit: Duration) {
    let limit = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // SAFETY: the word and the limit are live for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, old, &raw const limit) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_pass_through_a_barrier() {
        let board = Board::new(4).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..4 {
                scope.spawn(move || {
                    for round in 0..200u64 {
                        board.report(rank, (round + rank as u64) as f64, round);
                        board.barrier(rank).unwrap();
                        assert_eq!(board.figures(), ((round + 3) as f64, 4 * round));
                        board.barrier(rank).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_failure_releases_those_who_wait() {
        let board = Board::new(2).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || board.barrier(0));
            board.finish(1, &Err(Error::failed("out of paper")));
            assert_eq!(waiting.join().unwrap(), Err(Error::Stopped(1)));
        });
        assert_eq!((board.state(0), board.state(1)), (State::Running, State::Failed));
        assert_eq!((board.first_failure(), board.message(1).as_str()), (Some(1), "out of paper"));
    }

    #[test]
    fn long_texts_are_cut() {
        let board = Board::new(1).unwrap();
        board.progress(0, &"x".repeat(1000));
        assert_eq!(board.last_progress(0), ("x".repeat(192), false));
    }
}
