//! Memory that the ranks of a check share with each other and with the process that started them: a barrier, unique ids, what each rank is doing,
//! and what went wrong. It is an anonymous mapping, made before the ranks are forked, and serves ranks that are threads just as well.

use crate::library::UniqueId;
use crate::outcome::{Outcome, Stop, fail};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Ranks of one check.
pub const MAX_RANKS: usize = 16;
/// Communicators that one check may create.
const IDS: usize = 96;
const WORDS: usize = 64;
const LOG_BYTES: usize = 1 << 16;
/// A barrier that lasts longer is given up: some rank is stuck where it cannot be told so.
const BARRIER_LIMIT: Duration = Duration::from_secs(300);

/// Text with one writer. A reader that comes while it is written may see a mixture, which is good enough for what a stuck rank was doing.
struct Text<const N: usize> {
    length: AtomicUsize,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Text<N> {
    fn set(&self, text: &str) {
        let length = text.len().min(N);
        for (slot, byte) in self.bytes.iter().zip(text.bytes()) {
            slot.store(byte, Ordering::Relaxed);
        }
        self.length.store(length, Ordering::Release);
    }

    fn get(&self) -> String {
        let length = self.length.load(Ordering::Acquire).min(N);
        let bytes: Vec<u8> = self.bytes[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

struct Id {
    ready: AtomicBool,
    bytes: [AtomicU8; 128],
}

struct Slot {
    finished: AtomicBool,
    at_barrier: AtomicBool,
    case: AtomicU32,
    /// Grows with every sign of life.
    steps: AtomicU32,
    doing: Text<256>,
}

struct Shared {
    arrived: AtomicU32,
    barriers: AtomicU32,
    failed: AtomicBool,
    skipped: Text<512>,
    ids: [Id; IDS],
    words: [AtomicU64; WORDS],
    slots: [Slot; MAX_RANKS],
    /// Records "case TAB rank TAB text", each ended by a zero byte, reserved by adding to the length.
    log_length: AtomicUsize,
    log: [AtomicU8; LOG_BYTES],
}

/// A failure that a rank has written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub case: u32,
    pub rank: usize,
    pub text: String,
}

/// The shared mapping. Copies are free; `release` ends its life.
#[derive(Clone, Copy)]
pub struct Board {
    shared: &'static Shared,
    ranks: usize,
}

impl Board {
    pub fn new(ranks: usize) -> Outcome<Self> {
        assert!(ranks <= MAX_RANKS, "at most {MAX_RANKS} ranks");
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: asks for a fresh mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            fail!("cannot map {} bytes of shared memory: {}", size_of::<Shared>(), std::io::Error::last_os_error());
        }
        // SAFETY: the mapping is large enough, page-aligned, and zeroed, which is a valid value of the atomics that the type consists of. It stays
        // until `release`.
        Ok(Self { shared: unsafe { &*base.cast::<Shared>() }, ranks })
    }

    /// Unmaps the memory.
    ///
    /// # Safety
    /// No copy of this board is used any more in this process.
    pub unsafe fn release(self) {
        // SAFETY: the mapping has this size, and by the caller's promise nobody uses it.
        unsafe { libc::munmap(std::ptr::from_ref(self.shared).cast_mut().cast(), size_of::<Shared>()) };
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Waits until `done`, a failure of any rank, or the limit.
    fn wait_until(&self, what: &str, done: impl Fn() -> bool) -> Outcome {
        let begin = Instant::now();
        let mut rounds = 0u32;
        while !done() {
            if self.failed() {
                return Err(Stop::PeerFailed);
            }
            rounds += 1;
            if rounds < 200 {
                std::thread::yield_now();
                continue;
            }
            if begin.elapsed() > BARRIER_LIMIT {
                fail!("waited {} s for {what}", BARRIER_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Waits for all ranks. Every rank sees what the others wrote before.
    pub fn barrier(&self, rank: usize) -> Outcome {
        let shared = self.shared;
        let before = shared.barriers.load(Ordering::Acquire);
        shared.slots[rank].at_barrier.store(true, Ordering::Relaxed);
        let result =
            if self.arrive() { Ok(()) } else { self.wait_until("the other ranks", || shared.barriers.load(Ordering::Acquire) != before) };
        shared.slots[rank].at_barrier.store(false, Ordering::Relaxed);
        result
    }

    /// Is one of those who make up the next barrier, without waiting for it. True: all are there.
    pub fn arrive(&self) -> bool {
        let last = self.shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks as u32;
        if last {
            self.shared.arrived.store(0, Ordering::Relaxed);
            self.shared.barriers.fetch_add(1, Ordering::Release);
        }
        last
    }

    /// Hands a communicator's id to the other ranks.
    pub fn publish_id(&self, index: usize, id: &UniqueId) {
        let slot = &self.shared.ids[index];
        for (byte, value) in slot.bytes.iter().zip(id.0) {
            byte.store(value, Ordering::Relaxed);
        }
        slot.ready.store(true, Ordering::Release);
    }

    pub fn await_id(&self, index: usize) -> Outcome<UniqueId> {
        assert!(index < IDS, "a check may create {IDS} communicators");
        let slot = &self.shared.ids[index];
        self.wait_until("a unique id", || slot.ready.load(Ordering::Acquire))?;
        Ok(UniqueId(std::array::from_fn(|at| slot.bytes[at].load(Ordering::Relaxed))))
    }

    /// A word for the check's own use, 0 at first.
    pub fn word(&self, index: usize) -> &'static AtomicU64 {
        &self.shared.words[index]
    }

    pub fn words(&self) -> Vec<u64> {
        self.shared.words.iter().map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// Waits until a word has at least this value.
    pub fn await_word(&self, index: usize, value: u64) -> Outcome {
        self.wait_until("another rank's word", || self.word(index).load(Ordering::Acquire) >= value)
    }

    /// Says what a rank is about to do, for the report of a hang; also the sign of life that time limits look for.
    pub fn doing(&self, rank: usize, text: &str) {
        self.shared.slots[rank].doing.set(text);
        self.shared.slots[rank].steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Signs of life so far.
    pub fn steps(&self, rank: usize) -> u32 {
        self.shared.slots[rank].steps.load(Ordering::Relaxed)
    }

    pub fn what_it_does(&self, rank: usize) -> String {
        let slot = &self.shared.slots[rank];
        let doing = slot.doing.get();
        if slot.at_barrier.load(Ordering::Relaxed) {
            format!("waits for the other ranks after: {doing}")
        } else {
            format!("has not finished: {doing}")
        }
    }

    pub fn begin_case(&self, rank: usize, case: u32) {
        self.shared.slots[rank].case.store(case, Ordering::Release);
    }

    pub fn case(&self, rank: usize) -> u32 {
        self.shared.slots[rank].case.load(Ordering::Acquire)
    }

    /// Writes down a failure of the rank's present case.
    pub fn record(&self, rank: usize, text: &str) {
        let text = text.replace('\0', " ");
        let cut = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= 2000).last().unwrap_or(0);
        let text = if text.len() <= 2000 { &text } else { &text[..cut] };
        let record = format!("{}\t{rank}\t{text}\0", self.case(rank));
        let at = self.shared.log_length.fetch_add(record.len(), Ordering::AcqRel);
        for (slot, byte) in self.shared.log.iter().skip(at).zip(record.bytes()) {
            slot.store(byte, Ordering::Release);
        }
    }

    /// What was written down. Complete once the ranks have ended.
    pub fn records(&self) -> Vec<Record> {
        let length = self.shared.log_length.load(Ordering::Acquire).min(LOG_BYTES);
        let bytes: Vec<u8> = self.shared.log[..length].iter().map(|byte| byte.load(Ordering::Acquire)).collect();
        let parse = |record: &[u8]| {
            let text = String::from_utf8_lossy(record);
            let mut parts = text.splitn(3, '\t');
            Some(Record { case: parts.next()?.parse().ok()?, rank: parts.next()?.parse().ok()?, text: parts.next()?.to_owned() })
        };
        bytes.split(|byte| *byte == 0).filter_map(parse).collect()
    }

    /// Ends the check for all ranks.
    pub fn set_failed(&self) {
        self.shared.failed.store(true, Ordering::Release);
    }

    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    pub fn skip(&self, reason: &str) {
        self.shared.skipped.set(reason);
    }

    pub fn skipped(&self) -> Option<String> {
        Some(self.shared.skipped.get()).filter(|reason| !reason.is_empty())
    }

    pub fn finish(&self, rank: usize) {
        self.shared.slots[rank].finished.store(true, Ordering::Release);
    }

    pub fn finished(&self, rank: usize) -> bool {
        self.shared.slots[rank].finished.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_shows_what_was_written_before() {
        let board = Board::new(3).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                scope.spawn(move || {
                    for round in 1..=200u64 {
                        board.word(rank).store(round, Ordering::Relaxed);
                        board.barrier(rank).unwrap();
                        assert!((0..3).all(|other| board.word(other).load(Ordering::Relaxed) == round));
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
            board.set_failed();
            assert_eq!(waiting.join().unwrap(), Err(Stop::PeerFailed));
        });
    }

    #[test]
    fn records_keep_case_rank_and_text() {
        let board = Board::new(2).unwrap();
        board.begin_case(1, 7);
        board.record(1, "two\tparts");
        board.record(0, &"ä".repeat(2000));
        let records = board.records();
        assert_eq!(records[0], Record { case: 7, rank: 1, text: "two\tparts".into() });
        assert_eq!((records.len(), records[1].text.chars().count()), (2, 1000));
    }

    #[test]
    fn a_full_log_loses_the_rest_and_nothing_else() {
        let board = Board::new(1).unwrap();
        for _ in 0..100 {
            board.record(0, &"x".repeat(1000));
        }
        assert!(board.records().len() >= 64);
    }
}
