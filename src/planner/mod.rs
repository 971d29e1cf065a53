//! Decides how an operation moves: protocol and number of channels. Pure: the same arguments give the same answer on every rank, which is
//! what makes the ranks' kernels meet. Called by `group` for every operation.

use crate::comm::Operation;
use crate::executor::layout::{
    Geometry, MAX_CHANNELS, ONE_SHOT, OpDesc, PHASES, PRE_MUL_SUM, Protocol, RAILS, SCALAR_ON_DEVICE, SLOTS, THREADS,
};
use crate::types::OpKind;

/// What all ranks of a communicator have agreed on at init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub geometry: Geometry,
    /// All ranks are on one node.
    pub one_node: bool,
    /// All ranks can address each other's buffers as they are.
    pub all_direct: bool,
    /// Largest message from one rank to another that travels in packets, in bytes; 0: none does.
    pub packet_limit: u64,
}

/// A reduction operator after look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redop {
    /// 0 to 4: sum, prod, max, min, avg.
    Builtin(u8),
    /// Bits of one element.
    PreMulHost(u64),
    /// Address of one element in device memory.
    PreMulDevice(u64),
}

/// Data bytes of a packet line.
const LINE_DATA: u64 = 8;
/// Lines, header included, that a sender has per channel: 8 KiB of data.
const PACKET_LINES: usize = 1 + 1024;
/// Bytes that make another channel worth its start.
const PIPE_CHANNEL_BYTES: u64 = 64 * 1024;
const DIRECT_CHANNEL_BYTES: u64 = 128 * 1024;
/// Below this an exchange of addresses costs more than it saves.
const DIRECT_FROM_BYTES: u64 = 64 * 1024;
/// Between nodes, an all-reduce of up to this many bytes from all ranks together crosses the network once instead of twice.
const ONE_SHOT_BYTES: u64 = 64 * 1024;

/// What decides the sizes of a communicator's resources; the same on every rank.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    pub nranks: usize,
    /// Most ranks that share one GPU.
    pub on_gpu: usize,
    /// Fewest of any GPU.
    pub multiprocessors: u32,
    /// The callers' bounds on channels.
    pub channels: (u32, u32),
    /// Bytes of staging per rank.
    pub budget: usize,
    /// All ranks are on one node.
    pub one_node: bool,
    /// Ranks of each node, where all nodes have as many, in order of rank; else 0.
    pub per_node: usize,
    /// All ranks can address each other's buffers as they are.
    pub all_direct: bool,
}

/// `Ranks::per_node` of ranks on these hosts.
pub fn per_node<H: PartialEq>(hosts: &[H]) -> usize {
    let per_node = hosts.iter().take_while(|h| **h == hosts[0]).count();
    let in_order = hosts.chunks(per_node.max(1)).all(|node| node.len() == per_node && node.iter().all(|h| *h == node[0]));
    let firsts: Vec<&H> = hosts.iter().step_by(per_node.max(1)).collect();
    let distinct = firsts.iter().enumerate().all(|(i, h)| !firsts[..i].contains(h));
    if in_order && distinct { per_node } else { 0 }
}

/// The sizes.
pub fn shape(ranks: &Ranks) -> Shape {
    let Ranks { nranks, on_gpu: ranks_on_gpu, multiprocessors, channels: limits, budget: region_budget, one_node, per_node, all_direct } =
        *ranks;
    // All ranks of a GPU must fit at once beside whatever else runs there: half of it at most.
    let share = (multiprocessors as usize / 2 / ranks_on_gpu.max(1)).clamp(2, MAX_CHANNELS);
    let channels = share.clamp(limits.0.max(1) as usize, (limits.1.max(limits.0).max(1) as usize).min(MAX_CHANNELS));
    let per_slot = region_budget / ((nranks - 1).max(1) * PHASES * channels * SLOTS);
    let slot_bytes = (per_slot.max(1).ilog2()).clamp(12, 18);
    // Packets are written straight into every rank's memory.
    let packet_lines = if one_node { PACKET_LINES } else { 0 };
    let rails = !one_node && per_node > 1;
    let ranks_per_node = if rails { per_node as u32 } else { 0 };
    let geometry = Geometry { ranks_per_node, ..Geometry::new(nranks, channels, 1 << slot_bytes, packet_lines) };
    // n senders write n copies of it into memory: what is won in latency is lost in bandwidth above some 512 KiB in all.
    let packet_limit = (512 * 1024 / nranks as u64).min(packet_lines.saturating_sub(1) as u64 * LINE_DATA * channels as u64);
    Shape { geometry, one_node, all_direct, packet_limit }
}

/// Bytes that one rank sends to one other.
fn message_bytes(kind: OpKind, bytes: u64, nranks: u64) -> u64 {
    match kind {
        OpKind::AllReduce | OpKind::Reduce => bytes.div_ceil(nranks),
        _ => bytes,
    }
}

/// The protocol, channels and flags of one operation of `bytes` (count × element size).
fn choose(kind: OpKind, bytes: u64, shape: &Shape) -> (Protocol, u16, u16) {
    let g = &shape.geometry;
    let max = u64::from(g.channels);
    let symmetric = matches!(kind, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::AllGather | OpKind::AllToAll);
    if symmetric && shape.packet_limit != 0 && bytes <= shape.packet_limit {
        let lines = bytes.div_ceil(LINE_DATA);
        let channels = lines.div_ceil(u64::from(THREADS)).clamp(1, max);
        // Parts are cut at multiples of 128 bytes, so the largest may be that much more than its share.
        let largest = (bytes.div_ceil(channels) + 127).div_ceil(128) * 128;
        if largest.div_ceil(LINE_DATA) < u64::from(g.packet_lines) {
            return (Protocol::Packet, channels as u16, 0);
        }
    }
    let direct = matches!(kind, OpKind::AllReduce | OpKind::ReduceScatter | OpKind::AllGather | OpKind::Broadcast | OpKind::Reduce);
    if direct && shape.all_direct && bytes >= DIRECT_FROM_BYTES {
        return (Protocol::Direct, bytes.div_ceil(DIRECT_CHANNEL_BYTES).clamp(1, max) as u16, 0);
    }
    if kind == OpKind::AllReduce && !shape.one_node && bytes * u64::from(g.nranks) <= ONE_SHOT_BYTES {
        return (Protocol::Pipe, 1, ONE_SHOT);
    }
    let rails = g.ranks_per_node != 0 && matches!(kind, OpKind::AllReduce | OpKind::AllGather | OpKind::Broadcast);
    let sharers = if rails { g.ranks_per_node } else { g.nranks };
    let message = message_bytes(kind, bytes, u64::from(sharers));
    (Protocol::Pipe, message.div_ceil(PIPE_CHANNEL_BYTES).clamp(1, max) as u16, if rails { RAILS } else { 0 })
}

/// The signature that every rank's descriptor of the same operation carries: odd for collectives. For send and receive, which only have to
/// agree on bytes, it is twice those (so that a mismatch can be put in words), and even.
fn signature(op: &Operation, redop: u8, bytes: u64) -> u32 {
    if matches!(op.kind, OpKind::Send | OpKind::Recv) {
        return (bytes as u32) << 1;
    }
    let fields = [op.kind as u64, op.dtype as u64, u64::from(redop), op.root as u64, op.count as u64];
    // FNV-1a over the words with a final mix: a fixed, documented function, since different processes must agree.
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for f in fields {
        h = (h ^ f).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 32;
    }
    ((h >> 16) as u32) | 1
}

/// The descriptor of an operation that has passed all checks.
pub fn describe(op: &Operation, redop: Redop, shape: &Shape) -> OpDesc {
    let elem_size = op.dtype.size();
    let bytes = (op.count * elem_size) as u64;
    let (protocol, channels, how) = choose(op.kind, bytes, shape);
    let (code, scalar, where_from) = match redop {
        Redop::Builtin(code) => (code, 0, 0),
        Redop::PreMulHost(bits) => (PRE_MUL_SUM, bits, 0),
        Redop::PreMulDevice(address) => (PRE_MUL_SUM, address, SCALAR_ON_DEVICE),
    };
    OpDesc {
        send: op.send,
        recv: op.recv,
        count: op.count as u64,
        scalar,
        signature: signature(op, code, bytes),
        root: op.root,
        kind: op.kind as u8,
        dtype: op.dtype as u8,
        redop: code,
        protocol: protocol as u8,
        channels,
        flags: how | where_from,
        elem_size: elem_size as u32,
        reserved: [0; 3],
    }
}

/// Estimated time of one operation in microseconds, for `ncclGroupSimulateEnd`: a start plus its bytes at the rate measured for large
/// operations on one H200 (measured.md: 4.3 TB/s read plus written).
pub fn estimate_us(desc: &OpDesc, nranks: u32) -> f32 {
    let bytes = desc.count as f32 * desc.elem_size as f32;
    5.0 + 2.0 * bytes * nranks as f32 / 4.3e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DataType;
    use proptest::prelude::*;

    fn op(kind: OpKind, count: usize, dtype: DataType) -> Operation {
        Operation { kind, send: 0x1000, recv: 0x2000, count, dtype, redop: 0, root: 0, stream: 0 }
    }

    fn shaped(nranks: usize, multiprocessors: u32, channels: (u32, u32), all_direct: bool) -> Shape {
        shape(&Ranks { nranks, on_gpu: nranks, multiprocessors, channels, budget: 16 << 20, one_node: true, per_node: nranks, all_direct })
    }

    #[test]
    fn between_nodes_small_sums_cross_once_and_nothing_travels_in_packets() {
        let s = shape(&Ranks {
            nranks: 4,
            on_gpu: 2,
            multiprocessors: 132,
            channels: (1, 32),
            budget: 16 << 20,
            one_node: false,
            per_node: 2,
            all_direct: false,
        });
        let cases = [
            (OpKind::AllReduce, 4096, ONE_SHOT),
            (OpKind::AllReduce, 4097, RAILS),
            (OpKind::AllGather, 1, RAILS),
            (OpKind::AllToAll, 0, 0),
        ];
        for (kind, count, want) in cases {
            let d = describe(&op(kind, count, DataType::Float32), Redop::Builtin(0), &s);
            assert_eq!((d.protocol, d.flags), (Protocol::Pipe as u8, want), "{kind:?} {count}");
        }
    }

    #[test]
    fn rails_need_nodes_of_one_size_in_order() {
        for (hosts, want) in [("aabb", 2), ("aaab", 0), ("abab", 0), ("aabbaa", 0), ("abcd", 1), ("aa", 2), ("abb", 0), ("aabbb", 0)] {
            assert_eq!(per_node(hosts.as_bytes()), want, "{hosts}");
        }
    }

    #[test]
    fn small_symmetric_operations_travel_in_packets() {
        let s = shaped(4, 132, (1, 32), false);
        for (kind, want) in
            [(OpKind::AllReduce, Protocol::Packet), (OpKind::AllToAll, Protocol::Packet), (OpKind::Broadcast, Protocol::Pipe)]
        {
            assert_eq!(describe(&op(kind, 1024, DataType::Float32), Redop::Builtin(0), &s).protocol, want as u8);
        }
    }

    #[test]
    fn large_operations_use_every_channel() {
        let s = shaped(2, 132, (1, 32), true);
        let d = describe(&op(OpKind::AllReduce, 32 << 20, DataType::Float32), Redop::Builtin(0), &s);
        assert_eq!((d.protocol, u32::from(d.channels)), (Protocol::Direct as u8, s.geometry.channels));
    }

    #[test]
    fn the_callers_limits_hold() {
        assert_eq!(shaped(2, 132, (1, 3), false).geometry.channels, 3);
        assert_eq!(shaped(8, 132, (1, 64), false).geometry.channels, 8);
        assert_eq!(shaped(8, 8, (1, 64), false).geometry.channels, 2);
    }

    #[test]
    fn signatures_tell_operations_apart() {
        let s = shaped(4, 132, (1, 32), false);
        let base = op(OpKind::AllReduce, 1024, DataType::Float32);
        let of = |o: &Operation, r| describe(o, Redop::Builtin(r), &s).signature;
        let all = [
            of(&base, 0),
            of(&base, 2),
            of(&Operation { count: 1025, ..base }, 0),
            of(&Operation { dtype: DataType::Int32, ..base }, 0),
            of(&Operation { kind: OpKind::Broadcast, ..base }, 0),
            of(&Operation { kind: OpKind::Broadcast, root: 1, ..base }, 0),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    proptest! {
        #[test]
        fn packets_fit_their_lines(n in 2usize..=64, sm in 1u32..200, kind in 0u8..6, count in 0usize..2_000_000, t in 0usize..12) {
            let s = shaped(n, sm, (1, 32), false);
            let d = describe(&op(OpKind::from_raw(kind).unwrap(), count, DataType::ALL[t]), Redop::Builtin(0), &s);
            prop_assert!(d.channels >= 1 && u32::from(d.channels) <= s.geometry.channels);
            if d.protocol == Protocol::Packet as u8 {
                let bytes = d.count * u64::from(d.elem_size);
                let part = bytes.div_ceil(u64::from(d.channels)).div_ceil(128) * 128;
                prop_assert!(part.min(bytes).div_ceil(LINE_DATA) < u64::from(s.geometry.packet_lines));
            }
        }
    }
}
