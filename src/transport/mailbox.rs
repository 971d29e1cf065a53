//! The pinned memory between this rank and one rank of another node: an inbox that the peer fills, an outbox that this rank's kernels fill, both
//! laid out by `Geometry`. Kernels access the same words at the same time, so everything is read and written as atomics or before a mark.

use crate::executor::layout::{Geometry, InboxHeader, Line, PHASES, Peer, SLOTS};
use crate::observe::mismatch::Announce;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A slot of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub phase: usize,
    pub channel: usize,
    pub index: usize,
}

/// Bytes of the word that stands before the chunk.
pub const SCALAR: usize = 8;
const ANNOUNCE_WORDS: usize = size_of::<Announce>() / 8;
/// In front of the boxes: the count of announcements taken, on a line of its own.
const TAKEN_BYTES: usize = 128;

/// Addresses of one peer's boxes. Copies are views of the same memory, which `Network` owns.
#[derive(Debug, Clone, Copy)]
pub struct Mailbox {
    geometry: Geometry,
    base: *mut u8,
}

// SAFETY: plain memory that outlives every mailbox (see `Mailbox::at`); its words are accessed as atomics, its slots by whoever holds them by the
// rules of the pipe.
unsafe impl Send for Mailbox {}
// SAFETY: as above.
unsafe impl Sync for Mailbox {}

impl Mailbox {
    /// Memory that a peer's boxes take.
    pub fn bytes(geometry: &Geometry) -> usize {
        TAKEN_BYTES + 2 * (geometry.inbox_bytes + geometry.slots_bytes) as usize
    }

    /// The boxes at `base`.
    ///
    /// # Safety
    /// `base` is aligned to 128 bytes, zero at first, valid for `bytes(geometry)` for as long as the mailbox or a copy of it is used, and written to by
    /// kernels of one lane and by one proxy thread only.
    pub unsafe fn at(base: *mut u8, geometry: &Geometry) -> Self {
        Self { geometry: *geometry, base }
    }

    fn inbox(&self) -> *mut u8 {
        self.base.wrapping_add(TAKEN_BYTES)
    }
    fn outbox(&self) -> *mut u8 {
        self.inbox().wrapping_add(self.geometry.inbox_bytes as usize)
    }
    fn inbox_slots(&self) -> *mut u8 {
        self.outbox().wrapping_add(self.geometry.inbox_bytes as usize)
    }
    fn outbox_slots(&self) -> *mut u8 {
        self.inbox_slots().wrapping_add(self.geometry.slots_bytes as usize)
    }

    /// What a kernel has to know. Pinned memory has the same address on the device.
    pub fn peer(&self) -> Peer {
        Peer {
            packets: 0,
            inbox: self.inbox() as u64,
            inbox_slots: self.inbox_slots() as u64,
            outbox: self.outbox() as u64,
            outbox_slots: self.outbox_slots() as u64,
            taken: self.base as u64,
            reserved: [0; 2],
        }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// # Safety
    /// `offset` is that of an 8-byte word of the box.
    unsafe fn word(&self, of: *mut u8, offset: u64) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.geometry.inbox_bytes);
        // SAFETY: in bounds and aligned by this function's contract; the memory is valid by that of `at`.
        unsafe { &*of.wrapping_add(offset as usize).cast::<AtomicU64>() }
    }

    /// # Safety
    /// The slot exists.
    unsafe fn line(&self, of: *mut u8, slot: Slot) -> &Line {
        debug_assert!(slot.phase < PHASES && slot.channel < self.geometry.channels as usize && slot.index < SLOTS);
        let offset = self.geometry.mark(slot.phase, slot.channel, slot.index);
        // SAFETY: in bounds by this function's contract, and marks are aligned to their size; the memory is valid by that of `at`.
        unsafe { &*of.wrapping_add(offset as usize).cast::<Line>() }
    }

    /// The mark that a kernel wrote for a chunk: signature and number.
    ///
    /// # Safety
    /// The slot exists.
    pub unsafe fn sent_mark(&self, slot: Slot) -> (u64, u64) {
        // SAFETY: passed on.
        let line = unsafe { self.line(self.outbox(), slot) };
        (line.data.load(Ordering::Relaxed), line.flag.load(Ordering::Relaxed))
    }

    /// Shows the kernel a chunk that has arrived, payload and all.
    ///
    /// # Safety
    /// The slot exists, and nothing writes to it any more.
    pub unsafe fn deliver_mark(&self, slot: Slot, data: u64, flag: u64) {
        // SAFETY: passed on.
        let line = unsafe { self.line(self.inbox(), slot) };
        line.data.store(data, Ordering::Relaxed);
        // On x86 stores are seen in order by a GPU across PCIe; elsewhere release is what the platform gives for it.
        line.flag.store(flag, Ordering::Release);
    }

    /// The chunk in an outbox's slot, with the word before it: `SCALAR` more bytes than the chunk.
    pub fn sent_chunk(&self, slot: Slot) -> *const u8 {
        self.outbox_slots().wrapping_add(self.geometry.slot(slot.phase, slot.channel, slot.index) as usize - SCALAR)
    }
    /// Where such a chunk goes in the inbox.
    pub fn arriving_chunk(&self, slot: Slot) -> *mut u8 {
        self.inbox_slots().wrapping_add(self.geometry.slot(slot.phase, slot.channel, slot.index) as usize - SCALAR)
    }

    /// How many of the peer's chunks this rank has consumed.
    ///
    /// # Safety
    /// The pipe exists.
    pub unsafe fn returned_credit(&self, phase: usize, channel: usize) -> u64 {
        // SAFETY: passed on.
        unsafe { self.word(self.outbox(), self.geometry.credit(phase, channel)) }.load(Ordering::Relaxed)
    }
    /// # Safety
    /// The pipe exists.
    pub unsafe fn deliver_credit(&self, phase: usize, channel: usize, count: u64) {
        // SAFETY: passed on.
        unsafe { self.word(self.inbox(), self.geometry.credit(phase, channel)) }.store(count, Ordering::Release);
    }

    pub fn failure(&self) -> u64 {
        // SAFETY: a word of the header.
        unsafe { self.word(self.outbox(), offset_of!(InboxHeader, failed) as u64) }.load(Ordering::Relaxed)
    }
    pub fn deliver_failure(&self, failure: u64) {
        // SAFETY: a word of the header.
        unsafe { self.word(self.inbox(), offset_of!(InboxHeader, failed) as u64) }.store(failure, Ordering::Release);
    }

    fn announce_word(&self, of: *mut u8, i: usize) -> &AtomicU64 {
        // SAFETY: a word of the header for i below ANNOUNCE_WORDS.
        unsafe { self.word(of, (offset_of!(InboxHeader, announce) + 8 * i) as u64) }
    }

    /// Says that the command for an announcement has been taken; from now on the kernel gives another one for its next. Then reads what is
    /// announced, `None` while a kernel is writing it (another command will come).
    pub fn take_announcement(&self) -> Option<[u8; size_of::<Announce>()]> {
        // SAFETY: the count stands at the start of the memory and is written by this thread only.
        let taken = unsafe { &*self.base.cast::<AtomicU32>() };
        taken.store(taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.announcement(self.outbox())
    }

    /// What this rank and the peer have last announced to each other, as far as it is whole.
    pub fn announcements(&self) -> Option<(Announce, Announce)> {
        // SAFETY: an announcement is plain words, for which any bits will do.
        let decode = |bytes: [u8; size_of::<Announce>()]| unsafe { std::mem::transmute::<[u8; size_of::<Announce>()], Announce>(bytes) };
        Some((decode(self.announcement(self.outbox())?), decode(self.announcement(self.inbox())?)))
    }

    fn announcement(&self, of: *mut u8) -> Option<[u8; size_of::<Announce>()]> {
        let mut words = [0u64; ANNOUNCE_WORDS];
        words[0] = self.announce_word(of, 0).load(Ordering::Acquire);
        for (i, word) in words.iter_mut().enumerate().skip(1) {
            *word = self.announce_word(of, i).load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if words[0] == 0 || self.announce_word(of, 0).load(Ordering::Relaxed) != words[0] {
            return None;
        }
        let mut bytes = [0u8; size_of::<Announce>()];
        for (to, from) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        Some(bytes)
    }

    /// Like the kernel's own announcements: the number is 0 while the rest changes.
    pub fn deliver_announcement(&self, bytes: &[u8; size_of::<Announce>()]) {
        let mut words = bytes.chunks_exact(8).map(|b| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]));
        let Some(number) = words.next() else { return };
        self.announce_word(self.inbox(), 0).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for (i, word) in words.enumerate() {
            self.announce_word(self.inbox(), i + 1).store(word, Ordering::Relaxed);
        }
        self.announce_word(self.inbox(), 0).store(number, Ordering::Release);
    }
}
