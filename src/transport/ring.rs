//! The proxy's end of a queue of commands: lines in pinned memory that kernels append to (`kernels/protocol/network.h`).
//!
//! Order: a kernel writes what a command is about, fences, and stores the line in one 16-byte store whose flag is the command's number. The reader
//! sees the flag (acquire), then the command and what it is about. The number grows for ever, so a line's older content never matches. There is
//! no way back: a ring has room for all commands that can be under way ([`lines_for`]).

use super::mailbox::Slot;
use crate::executor::layout::{Geometry, Line, PHASES, SLOTS, command};
use std::sync::atomic::Ordering;

/// What a kernel asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    pub peer: usize,
    pub what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A chunk of `bytes` has been written and marked.
    Mark {
        slot: Slot,
        bytes: usize,
    },
    Credit {
        phase: usize,
        channel: usize,
    },
    Announcement,
    Failure,
}

/// The twin of `mk::command_word`. `None`: no such command.
fn decode(word: u64) -> Option<Command> {
    let field = |at: u32, bits: u32| (word >> at) as usize & ((1 << bits) - 1);
    let (phase, channel) = (field(4, 4), field(16, 8));
    let what = match word & 0xf {
        command::MARK => What::Mark { slot: Slot { phase, channel, index: field(8, 8) }, bytes: field(32, 32) },
        command::CREDIT => What::Credit { phase, channel },
        command::ANNOUNCE => What::Announcement,
        command::FAILED => What::Failure,
        _ => return None,
    };
    Some(Command { peer: field(24, 8), what })
}

/// Lines of a ring that serves every `rings`-th channel towards `peers` ranks: all marks and credits that pipes allow at once, an announcement and a
/// failure for each peer.
pub fn lines_for(geometry: &Geometry, peers: usize, rings: usize) -> usize {
    let pipes = PHASES * (geometry.channels as usize).div_ceil(rings);
    (peers * (2 * SLOTS * pipes + 2)).next_power_of_two()
}

pub struct Reader {
    lines: *const Line,
    mask: u64,
    taken: u64,
}

// SAFETY: the lines are plain memory, valid as long as the reader by the contract of `new`, and read as atomics.
unsafe impl Send for Reader {}

impl Reader {
    /// # Safety
    /// `lines` points to `count` lines, a power of two, that are zero now and valid as long as the reader is used.
    pub unsafe fn new(lines: *const Line, count: usize) -> Self {
        assert!(count.is_power_of_two());
        Self { lines, mask: count as u64 - 1, taken: 0 }
    }

    /// The next command, if there is one. `Err`: one that means nothing, a bug.
    pub fn next(&mut self) -> Option<Result<Command, u64>> {
        // SAFETY: the mask keeps the index inside the ring.
        let line = unsafe { &*self.lines.add((self.taken & self.mask) as usize) };
        if line.flag.load(Ordering::Acquire) != self.taken + 1 {
            return None;
        }
        self.taken += 1;
        let word = line.data.load(Ordering::Relaxed);
        Some(decode(word).ok_or(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As `command_word` in kernels/protocol/network.h.
    fn word(kind: u64, peer: usize, phase: usize, channel: usize, slot: usize, bytes: usize) -> u64 {
        kind | (phase << 4 | slot << 8 | channel << 16 | peer << 24 | bytes << 32) as u64
    }

    proptest! {
        #[test]
        fn commands_are_read_as_written(peer in 0usize..64, phase in 0usize..2, channel in 0usize..32, index in 0usize..4, bytes in 0usize..1 << 20) {
            let slot = Slot { phase, channel, index };
            prop_assert_eq!(decode(word(command::MARK, peer, phase, channel, index, bytes)), Some(Command { peer, what: What::Mark { slot, bytes } }));
            prop_assert_eq!(decode(word(command::CREDIT, peer, phase, channel, 0, 0)), Some(Command { peer, what: What::Credit { phase, channel } }));
            prop_assert_eq!(decode(word(command::FAILED, peer, 0, 0, 0, 0)), Some(Command { peer, what: What::Failure }));
            prop_assert_eq!(decode(word(9, peer, 0, 0, 0, 0)), None);
        }
    }

    #[test]
    fn a_ring_is_read_in_order_lap_after_lap() {
        let lines: Vec<Line> = (0..8).map(|_| Line::default()).collect();
        // SAFETY: eight zero lines that outlive the reader.
        let mut reader = unsafe { Reader::new(lines.as_ptr(), 8) };
        assert_eq!(reader.next(), None);
        let mut written = 0u64;
        for burst in [1, 8, 3, 5, 8, 7] {
            for _ in 0..burst {
                let line = &lines[written as usize % 8];
                written += 1;
                line.data.store(word(command::CREDIT, written as usize % 64, 0, 0, 0, 0), Ordering::Relaxed);
                line.flag.store(written, Ordering::Release);
            }
            for k in written - burst + 1..=written {
                assert_eq!(reader.next().unwrap().unwrap().peer, k as usize % 64);
            }
            assert_eq!(reader.next(), None);
        }
    }
}
