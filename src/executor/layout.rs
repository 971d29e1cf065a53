//! What the host and the device agree on: the twin of `kernels/layout.h`, which explains each field. Both sides assert sizes and offsets;
//! a test compares the constants.

use crate::observe::mismatch::Announce;
use std::mem::{offset_of, size_of};

pub const MAX_RANKS: usize = 64;
pub const MAX_CHANNELS: usize = 32;
pub const SLOTS: usize = 4;
pub const SLOT_TAIL: usize = 128;
pub const PHASES: usize = 2;
pub const INLINE_OPS: usize = 4;
pub const MAX_OPS: usize = 256;
pub const MAX_LANES: usize = 64;
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
}

/// Host-visible page of a lane, in pinned memory. The device writes all but `abort`.
#[repr(C)]
pub struct HostPage {
    pub abort: u32,
    pub reserved0: [u32; 15],
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
    pub reserved1: [u32; 14],
}
const _: () = assert!(offset_of!(HostPage, waiting_op) == 96 && offset_of!(HostPage, failure_rank) == 288 && size_of::<HostPage>() == 352);

pub const REGION_HEADER_BYTES: u64 = 128;

/// Where things lie in a region; the same on every rank of a communicator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    pub nranks: u32,
    pub channels: u32,
    pub slot_bytes: u32,
    pub packet_lines: u32,
    pub announce: u64,
    pub credits: u64,
    pub marks: u64,
    pub packets: u64,
    pub slots: u64,
    pub bytes: u64,
}
const _: () = assert!(size_of::<Geometry>() == 64);

impl Geometry {
    /// Lays out a region. `packet_lines` is per sender, channel and parity, the header line included.
    pub fn new(nranks: usize, channels: usize, slot_bytes: usize, packet_lines: usize) -> Self {
        let (n, c, s, l) = (nranks as u64, channels as u64, slot_bytes as u64, packet_lines as u64);
        let (phases, slots) = (PHASES as u64, SLOTS as u64);
        let aligned = |at: u64| at.next_multiple_of(128);
        let announce = REGION_HEADER_BYTES;
        let credits = aligned(announce + 64 * n);
        let marks = aligned(credits + 8 * phases * c * n);
        let packets = aligned(marks + 16 * phases * c * n * slots);
        let slots_at = aligned(packets + 16 * 2 * c * n * l);
        Self {
            nranks: nranks as u32,
            channels: channels as u32,
            slot_bytes: slot_bytes as u32,
            packet_lines: packet_lines as u32,
            announce,
            credits,
            marks,
            packets,
            slots: slots_at,
            bytes: slots_at + phases * c * (n - 1) * slots * (s + SLOT_TAIL as u64),
        }
    }
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
    pub regions: [u64; MAX_RANKS],
    pub geometry: Geometry,
    pub host_page: u64,
    pub executor: u64,
    pub rank: u32,
    pub index: u32,
    pub reserved2: u64,
    pub deadline_ns: u64,
    pub one_gpu: u32,
    pub reserved0: [u32; 3],
    pub op_seq: u64,
    pub eager_done: u64,
    pub arrived: u32,
    pub failed: u32,
    pub reserved1: [u64; 6],
    pub command: Command,
    pub channel: [Channel; MAX_CHANNELS],
}
const _: () = assert!(offset_of!(Lane, rank) == 592 && offset_of!(Lane, deadline_ns) == 608 && offset_of!(Lane, op_seq) == 632);
const _: () = assert!(offset_of!(Lane, command) == 704 && offset_of!(Lane, channel) == 984 && size_of::<Lane>() == 68568);

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
            ("kSlotTail", SLOT_TAIL as u64),
            ("kPhases", PHASES as u64),
            ("kInlineOps", INLINE_OPS as u64),
            ("kMaxOps", MAX_OPS as u64),
            ("kMaxLanes", MAX_LANES as u64),
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
        fn geometry_areas_do_not_overlap(n in 1usize..=MAX_RANKS, c in 1usize..=MAX_CHANNELS, slot in 1usize..64, lines in 1usize..2000) {
            let g = Geometry::new(n, c, slot * 1024, lines);
            let areas = [
                (0, REGION_HEADER_BYTES),
                (g.announce, 64 * n as u64),
                (g.credits, (8 * PHASES * c * n) as u64),
                (g.marks, (16 * PHASES * c * n * SLOTS) as u64),
                (g.packets, (32 * c * n * lines) as u64),
                (g.slots, (PHASES * c * (n - 1) * SLOTS * (slot * 1024 + SLOT_TAIL)) as u64),
            ];
            for pair in areas.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                prop_assert_eq!(pair[1].0 % 128, 0);
            }
            prop_assert_eq!(areas[5].0 + areas[5].1, g.bytes);
        }
    }
}
