//! The frames of the socket transport: a header of 24 bytes, then a chunk or an announcement. Decoding is pure and checks every field against the
//! communicator's geometry, so that no peer can make us write outside its inbox.

use super::super::mailbox::{SCALAR, Slot};
use crate::executor::layout::{Geometry, PHASES, SLOTS};
use crate::observe::mismatch::Announce;
use std::mem::size_of;

pub const HEADER: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// `bytes` of a chunk follow, after the word that stands before it; then the mark is to be shown.
    Chunk {
        slot: Slot,
        bytes: usize,
        signature: u64,
        number: u64,
    },
    Credit {
        phase: usize,
        channel: usize,
        count: u64,
    },
    /// The announcement follows.
    Announcement,
    Failure(u64),
    /// Are you there?
    Ping,
    /// I am.
    Pong,
    /// Nothing more will come.
    Goodbye,
}

impl Frame {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let mut put = |kind: u8, phase: usize, channel: usize, slot: usize, bytes: usize, first: u64, second: u64| {
            out[..4].copy_from_slice(&[kind, phase as u8, channel as u8, slot as u8]);
            out[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
            out[8..16].copy_from_slice(&first.to_le_bytes());
            out[16..24].copy_from_slice(&second.to_le_bytes());
        };
        match *self {
            Self::Chunk { slot, bytes, signature, number } => put(1, slot.phase, slot.channel, slot.index, bytes, signature, number),
            Self::Credit { phase, channel, count } => put(2, phase, channel, 0, 0, count, 0),
            Self::Announcement => put(3, 0, 0, 0, 0, 0, 0),
            Self::Failure(code) => put(4, 0, 0, 0, 0, code, 0),
            Self::Ping => put(5, 0, 0, 0, 0, 0, 0),
            Self::Pong => put(6, 0, 0, 0, 0, 0, 0),
            Self::Goodbye => put(7, 0, 0, 0, 0, 0, 0),
        }
        out
    }

    /// `None`: no frame of a communicator of this geometry.
    pub fn decode(bytes: &[u8; HEADER], geometry: &Geometry) -> Option<Self> {
        let (phase, channel, index) = (bytes[1] as usize, bytes[2] as usize, bytes[3] as usize);
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let pipe_exists = phase < PHASES && channel < geometry.channels as usize;
        match bytes[0] {
            1 if pipe_exists && index < SLOTS && length <= geometry.slot_bytes => {
                Some(Self::Chunk { slot: Slot { phase, channel, index }, bytes: length as usize, signature: word(8), number: word(16) })
            }
            2 if pipe_exists => Some(Self::Credit { phase, channel, count: word(8) }),
            3 => Some(Self::Announcement),
            4 => Some(Self::Failure(word(8))),
            5 => Some(Self::Ping),
            6 => Some(Self::Pong),
            7 => Some(Self::Goodbye),
            _ => None,
        }
    }

    /// Bytes that follow the header.
    pub fn payload(&self) -> usize {
        match self {
            Self::Chunk { bytes, .. } => SCALAR + bytes,
            Self::Announcement => size_of::<Announce>(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        Geometry::new(4, 7, 4096, 0)
    }

    #[test]
    fn frames_survive_the_wire() {
        let slot = Slot { phase: 1, channel: 6, index: 3 };
        for frame in [
            Frame::Chunk { slot, bytes: 4096, signature: 5, number: u64::MAX },
            Frame::Chunk { slot, bytes: 0, signature: 0, number: 1 },
            Frame::Credit { phase: 0, channel: 2, count: 77 },
            Frame::Announcement,
            Frame::Failure(3),
            Frame::Ping,
            Frame::Pong,
            Frame::Goodbye,
        ] {
            assert_eq!(Frame::decode(&frame.encode(), &geometry()), Some(frame));
        }
    }

    proptest! {
        #[test]
        fn nothing_outside_the_inbox_is_accepted(bytes: [u8; HEADER]) {
            let g = geometry();
            match Frame::decode(&bytes, &g) {
                Some(Frame::Chunk { slot, bytes, .. }) => {
                    prop_assert!(g.slot(slot.phase, slot.channel, slot.index) + bytes as u64 <= g.slots_bytes);
                    prop_assert!(g.mark(slot.phase, slot.channel, slot.index) + 16 <= g.inbox_bytes);
                }
                Some(Frame::Credit { phase, channel, .. }) => prop_assert!(g.credit(phase, channel) + 8 <= g.marks),
                _ => {}
            }
        }
    }
}
