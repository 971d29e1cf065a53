//! What the host and the device agree on: the twin of `kernels/layout.h`, which explains each field. Both sides assert sizes and offsets;
//! a test compares the constants.

use crate::observe::mismatch::Announce;
use std::mem::{offset_of, size_of};
use std::sync::atomic::AtomicU64;

pub const MAX_RANKS: usize = 64;
pub const MAX_CHANNELS: usize = 32;
pub const SLOTS: usize = 4;
pub const SLOT_HEAD: usize = 128;
pub const PHASES: usize = 2;
pub const INLINE_OPS: usize = 4;
pub const MAX_OPS: usize = 256;
pub const MAX_LANES: usize = 64;
pub const MAX_RINGS: usize = 8;
pub const THREADS: u32 = 512;
pub const GATE_THREADS: u32 = 64;
pub const EXECUTOR_BLOCKS: u32 = 16;

/// How bytes move (`mk::Protocol`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Protocol {
    Packet = 0,
    Pipe = 1,
    Direct = 2,
}

/// `OpDesc::flags`: the scalar is an address.
pub const SCALAR_ON_DEVICE: u16 = 1;
/// `OpDesc::flags`: an all-reduce in one exchange.
pub const ONE_SHOT: u16 = 2;
/// `OpDesc::flags`: between nodes, data travel along rails only.
pub const RAILS: u16 = 4;
/// `OpDesc::redop` of a pre-multiplied sum; the smaller values are NCCL's.
pub const PRE_MUL_SUM: u8 = 5;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OpDesc {
    pub send: u64,
    pub recv: u64,
    pub count: u64,
    pub scalar: u64,
    pub signature: u32,
    pub root: i32,
    pub kind: u8,
    pub dtype: u8,
    pub redop: u8,
    pub protocol: u8,
    pub channels: u16,
    pub flags: u16,
    pub elem_size: u32,
    pub reserved: [u32; 3],
}
const _: () = assert!(size_of::<OpDesc>() == 64 && offset_of!(OpDesc, kind) == 40 && offset_of!(OpDesc, elem_size) == 48);

/// Why an operation ended early (`mk::FailureCode`).
pub mod failure {
    pub const NONE: u32 = 0;
    pub const MISMATCH: u32 = 1;
    pub const DEADLINE: u32 = 2;
    pub const PEER_FAILED: u32 = 3;
    pub const ABORTED: u32 = 4;
    pub const LINK_FAILED: u32 = 5;
}

/// Host-visible page of a lane, in pinned memory. The device writes all but the first two words.
#[repr(C)]
pub struct HostPage {
    pub abort: u32,
    pub link_failed: u32,
    pub reserved0: [u32; 14],
    pub waiting_ns: u64,
    pub waiting_seq: u64,
    pub waiting_for: u64,
    pub waiting_channel: u32,
    pub reserved2: u32,
    pub waiting_op: Announce,
    pub failure_mine: Announce,
    pub failure_theirs: Announce,
    pub failure_rank: u32,
    pub failure: u32,
    pub launches_done: u64,
    pub reserved1: [u32; 12],
}
const _: () = assert!(offset_of!(HostPage, waiting_op) == 96 && offset_of!(HostPage, failure_rank) == 288 && size_of::<HostPage>() == 352);

/// The first part of an inbox (`mk::InboxHeader`).
#[repr(C)]
pub struct InboxHeader {
    pub failed: u64,
    pub reserved: [u64; 7],
    pub announce: Announce,
}
const _: () = assert!(size_of::<InboxHeader>() == 128);

/// Sizes and offsets of a communicator's shared memory; the same on every rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    pub nranks: u32,
    pub channels: u32,
    pub slot_bytes: u32,
    pub packet_lines: u32,
    pub credits: u64,
    pub marks: u64,
    pub inbox_bytes: u64,
    pub slots_bytes: u64,
    pub packets_bytes: u64,
    pub ranks_per_node: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<Geometry>() == 64);

impl Geometry {
    /// `packet_lines` is per sender, channel and parity, the header line included.
    pub fn new(nranks: usize, channels: usize, slot_bytes: usize, packet_lines: usize) -> Self {
        let pipes = (PHASES * channels) as u64;
        let aligned = |at: u64| at.next_multiple_of(128);
        let credits = size_of::<InboxHeader>() as u64;
        let marks = aligned(credits + 8 * pipes);
        Self {
            nranks: nranks as u32,
            channels: channels as u32,
            slot_bytes: slot_bytes as u32,
            packet_lines: packet_lines as u32,
            credits,
            marks,
            inbox_bytes: aligned(marks + pipes * SLOTS as u64 * size_of::<Line>() as u64),
            slots_bytes: pipes * SLOTS as u64 * (SLOT_HEAD + slot_bytes) as u64,
            packets_bytes: aligned((size_of::<Line>() * 2 * channels * nranks * packet_lines) as u64),
            ranks_per_node: 0,
            reserved: 0,
        }
    }

    /// Bytes of a rank's region that must be zero before anyone looks at it, and of the whole. `others`: ranks that write to it.
    pub fn region_bytes(&self, others: usize) -> (u64, u64) {
        let control = self.packets_bytes + others as u64 * self.inbox_bytes;
        (control, control + others as u64 * self.slots_bytes)
    }

    /// Where the inbox for the `k`-th of `others` writers, and its slots, lie in a region.
    pub fn inbox_in_region(&self, others: usize, k: usize) -> (u64, u64) {
        let (slots, _) = self.region_bytes(others);
        (self.packets_bytes + k as u64 * self.inbox_bytes, slots + k as u64 * self.slots_bytes)
    }

    /// Where the chunk of a slot begins in a writer's slots.
    pub fn slot(&self, phase: usize, channel: usize, slot: usize) -> u64 {
        let index = self.pipe(phase, channel) * SLOTS + slot;
        (index * (SLOT_HEAD + self.slot_bytes as usize) + SLOT_HEAD) as u64
    }

    /// Where a pipe's credit lies in an inbox.
    pub fn credit(&self, phase: usize, channel: usize) -> u64 {
        self.credits + (self.pipe(phase, channel) * size_of::<u64>()) as u64
    }

    /// Where the mark of a pipe's slot lies in an inbox.
    pub fn mark(&self, phase: usize, channel: usize, slot: usize) -> u64 {
        self.marks + ((self.pipe(phase, channel) * SLOTS + slot) * size_of::<Line>()) as u64
    }

    fn pipe(&self, phase: usize, channel: usize) -> usize {
        phase * self.channels as usize + channel
    }
}

/// 16 bytes whose flag is written last (`mk::Line`).
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Line {
    pub data: AtomicU64,
    pub flag: AtomicU64,
}

/// A rank as another one reaches it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    pub packets: u64,
    pub inbox: u64,
    pub inbox_slots: u64,
    pub outbox: u64,
    pub outbox_slots: u64,
    pub taken: u64,
    pub reserved: [u64; 2],
}
const _: () = assert!(size_of::<Peer>() == 64);

/// What a command asks of a proxy thread (`mk::CommandKind`).
pub mod command {
    pub const MARK: u64 = 1;
    pub const CREDIT: u64 = 2;
    pub const ANNOUNCE: u64 = 3;
    pub const FAILED: u64 = 4;
}

#[repr(C)]
pub struct Channel {
    pub sent: [[u64; MAX_RANKS]; PHASES],
    pub received: [[u64; MAX_RANKS]; PHASES],
    pub packets: u64,
    pub reserved: [u64; 7],
}
const _: () = assert!(size_of::<Channel>() == 2112);

/// Operations for one launch, or one command of the executor.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Command {
    pub more_ops: u64,
    pub nops: u32,
    pub channels: u32,
    pub eager: u32,
    pub reserved: u32,
    pub ops: [OpDesc; INLINE_OPS],
}
const _: () = assert!(offset_of!(Command, ops) == 24 && size_of::<Command>() == 280);

/// A communicator on one rank, in device memory. The host writes the part before `op_seq` once.
#[repr(C)]
pub struct Lane {
    pub peers: [Peer; MAX_RANKS],
    pub geometry: Geometry,
    pub host_page: u64,
    pub executor: u64,
    pub rank: u32,
    pub index: u32,
    pub deadline_ns: u64,
    pub one_gpu: u32,
    pub rings: u32,
    pub ring_lines: u32,
    pub reserved0: u32,
    pub ring: [u64; MAX_RINGS],
    pub op_seq: u64,
    pub eager_done: u64,
    pub arrived: u32,
    pub failed: u32,
    pub ring_next: [u64; MAX_RINGS],
    pub announced: [u32; MAX_RANKS],
    pub command: Command,
    pub channel: [Channel; MAX_CHANNELS],
}
const _: () = assert!(offset_of!(Lane, geometry) == 4096 && offset_of!(Lane, rank) == 4176 && offset_of!(Lane, deadline_ns) == 4184);
const _: () = assert!(offset_of!(Lane, ring) == 4208 && offset_of!(Lane, op_seq) == 4272 && offset_of!(Lane, ring_next) == 4296);
const _: () = assert!(offset_of!(Lane, command) == 4616 && offset_of!(Lane, channel) == 4896 && size_of::<Lane>() == 72480);

/// The executor of one process and GPU, in device memory.
#[repr(C)]
pub struct Executor {
    pub posted: [u64; MAX_LANES],
    pub done: [u64; MAX_LANES],
    pub lanes: [u64; MAX_LANES],
    pub finished: u64,
    pub leaving: u32,
    pub lane_count: u32,
}
const _: () = assert!(size_of::<Executor>() == 1552);

/// The bytes of a plain shared structure.
pub fn bytes_of<T>(value: &T) -> &[u8] {
    // SAFETY: only used with the repr(C) structures of this file, which have no padding but reserved fields and no invalid bit patterns to
    // read as bytes; the slice borrows the value.
    unsafe { std::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sizes that follow from the constants are asserted on each side by the constants of that side, so the constants themselves are compared
    /// here, by the text of the other half.
    #[test]
    fn both_halves_have_the_same_constants() {
        let header = include_str!("../../kernels/layout.h");
        let theirs = |name: &str| -> u64 {
            let after = header.split(&format!("constexpr uint32_t {name} = ")).nth(1).unwrap_or_else(|| panic!("layout.h has no {name}"));
            after.split(';').next().unwrap().parse().unwrap()
        };
        let ours = [
            ("kMaxRanks", MAX_RANKS as u64),
            ("kMaxChannels", MAX_CHANNELS as u64),
            ("kSlots", SLOTS as u64),
            ("kSlotHead", SLOT_HEAD as u64),
            ("kPhases", PHASES as u64),
            ("kInlineOps", INLINE_OPS as u64),
            ("kMaxOps", MAX_OPS as u64),
            ("kMaxLanes", MAX_LANES as u64),
            ("kMaxRings", MAX_RINGS as u64),
            ("kThreads", u64::from(THREADS)),
            ("kGateThreads", u64::from(GATE_THREADS)),
        ];
        for (name, value) in ours {
            assert_eq!(theirs(name), value, "{name}");
        }
        assert_eq!(header.matches("constexpr uint32_t k").count(), ours.len(), "a constant of layout.h is not compared here");
    }

    proptest! {
        #[test]
        fn areas_do_not_overlap(n in 2usize..=MAX_RANKS, c in 1usize..=MAX_CHANNELS, slot in 1usize..64, lines in 0usize..2000) {
            let g = Geometry::new(n, c, slot * 1024, lines);
            let inbox = [(0, 128), (g.credits, (8 * PHASES * c) as u64), (g.marks, (16 * PHASES * c * SLOTS) as u64), (g.inbox_bytes, 0)];
            for pair in inbox.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                prop_assert_eq!(pair[1].0 % 128, 0);
            }
            prop_assert_eq!(g.mark(PHASES - 1, c - 1, SLOTS - 1) + 16, g.marks + (16 * PHASES * c * SLOTS) as u64);
            prop_assert_eq!(g.credit(PHASES - 1, c - 1) + 8, g.credits + (8 * PHASES * c) as u64);
            prop_assert_eq!(g.slot(PHASES - 1, c - 1, SLOTS - 1) + u64::from(g.slot_bytes), g.slots_bytes);

            let (zeroed, whole) = g.region_bytes(n - 1);
            let mut region = vec![(0, 32 * (c * n * lines) as u64)];
            region.extend((0..n - 1).map(|k| (g.inbox_in_region(n - 1, k).0, g.inbox_bytes)));
            prop_assert!(region.last().unwrap().0 + g.inbox_bytes <= zeroed);
            region.extend((0..n - 1).map(|k| (g.inbox_in_region(n - 1, k).1, g.slots_bytes)));
            for pair in region.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                prop_assert_eq!(pair[1].0 % 128, 0);
            }
            prop_assert_eq!(region.last().unwrap().0 + g.slots_bytes, whole);
        }
    }
}
