//! What to say when two ranks disagree about an operation.
//!
//! Each rank announces the operation that it is in to its peers, as 64 bytes that the device writes ([`Announce`]). When a rank finds that a
//! peer announced something else in the same place, the device hands both records to the host, and the host's error text is made here.
//! Called by whoever turns a lane's failure record into an [`crate::error::Error`].

use crate::types::{DataType, OpKind};
use std::fmt;

/// What a rank says it is doing. The twin of `mk::Announce` in `kernels/layout.h`, written by the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Announce {
    /// Operation number on the communicator, from 1; 0: nothing announced.
    pub seq: u64,
    pub count: u64,
    pub kind: u8,
    pub dtype: u8,
    pub redop: u8,
    pub protocol: u8,
    pub root: i32,
    /// Hash of what all ranks must agree on.
    pub signature: u32,
    pub channels: u32,
    /// Device addresses on the announcing rank.
    pub send: u64,
    pub recv: u64,
    pub reserved: [u64; 2],
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Announce>() == 64 && offset_of!(Announce, kind) == 16 && offset_of!(Announce, root) == 20);
    assert!(offset_of!(Announce, signature) == 24 && offset_of!(Announce, send) == 32);
};

impl Announce {
    /// The record as the device lays it out (little-endian).
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &self.seq.to_le_bytes());
        put(8, &self.count.to_le_bytes());
        put(16, &[self.kind, self.dtype, self.redop, self.protocol]);
        put(20, &self.root.to_le_bytes());
        put(24, &self.signature.to_le_bytes());
        put(28, &self.channels.to_le_bytes());
        put(32, &self.send.to_le_bytes());
        put(40, &self.recv.to_le_bytes());
        put(48, &self.reserved[0].to_le_bytes());
        put(56, &self.reserved[1].to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Self {
            seq: word(0),
            count: word(8),
            kind: bytes[16],
            dtype: bytes[17],
            redop: bytes[18],
            protocol: bytes[19],
            root: half(20).cast_signed(),
            signature: half(24),
            channels: half(28),
            send: word(32),
            recv: word(40),
            reserved: [word(48), word(56)],
        }
    }
}

/// A rank's view of an operation, in terms of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallView {
    pub rank: u32,
    /// Operation number on the communicator, from 1.
    pub sequence: u64,
    pub kind: OpKind,
    pub dtype: DataType,
    /// As the device encodes it: NCCL's built-in values, or `PRE_MUL_SUM`.
    pub redop: u8,
    /// Root, or peer of a send or receive.
    pub root: i32,
    /// Elements, in the unit of the NCCL call.
    pub count: u64,
    /// What the planner made of it: must be the same on every rank, too.
    pub protocol: u8,
    pub channels: u32,
}

/// `CallView::redop` of operators made by `ncclRedOpCreatePreMulSum`.
pub const PRE_MUL_SUM: u8 = 5;

fn redop_name(redop: u8) -> &'static str {
    match redop {
        0 => "sum",
        1 => "prod",
        2 => "max",
        3 => "min",
        4 => "avg",
        PRE_MUL_SUM => "premulsum",
        _ => "an unknown operator",
    }
}

impl CallView {
    /// What `rank` announced; `None` when the record makes no sense.
    pub fn decode(rank: u32, a: &Announce) -> Option<Self> {
        Some(Self {
            rank,
            sequence: a.seq,
            kind: OpKind::from_raw(a.kind)?,
            dtype: DataType::from_raw(i32::from(a.dtype))?,
            redop: a.redop,
            root: a.root,
            count: a.count,
            protocol: a.protocol,
            channels: a.channels,
        })
    }

    fn reduces(&self) -> bool {
        matches!(self.kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter)
    }

    fn has_root(&self) -> bool {
        matches!(self.kind, OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter)
    }

    fn is_point_to_point(&self) -> bool {
        matches!(self.kind, OpKind::Send | OpKind::Recv)
    }

    fn bytes(&self) -> u128 {
        u128::from(self.count) * self.dtype.size() as u128
    }
}

/// The call as a person would write it: `Reduce(count 1024, float32, sum, root 3)`.
impl fmt::Display for CallView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(count {}, {}", self.kind.name(), self.count, self.dtype.name())?;
        if self.reduces() {
            write!(f, ", {}", redop_name(self.redop))?;
        }
        if self.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        if self.is_point_to_point() {
            write!(f, ", {} rank {}", if self.kind == OpKind::Send { "to" } else { "from" }, self.root)?;
        }
        f.write_str(")")
    }
}

/// The first thing that differs, in the order in which a person would look, and what to do about it.
fn difference(mine: &CallView, theirs: &CallView) -> String {
    const SAME_ORDER: &str = "every rank must issue the same operations in the same order on a communicator";
    if mine.kind != theirs.kind {
        return format!("these are different operations; {SAME_ORDER}");
    }
    if mine.sequence != theirs.sequence {
        return format!(
            "rank {} is at operation {} and rank {} at operation {}; {SAME_ORDER}",
            mine.rank, mine.sequence, theirs.rank, theirs.sequence
        );
    }
    let same = "every rank must pass the same";
    if mine.has_root() && mine.root != theirs.root {
        return format!("the roots differ ({} and {}); {same} root", mine.root, theirs.root);
    }
    if mine.dtype != theirs.dtype {
        return format!("the data types differ ({} and {}); {same} data type", mine.dtype.name(), theirs.dtype.name());
    }
    if mine.reduces() && mine.redop != theirs.redop {
        return format!("the reduction operators differ ({} and {}); {same} operator", redop_name(mine.redop), redop_name(theirs.redop));
    }
    if mine.count != theirs.count {
        return format!("the counts differ ({} and {}); {same} count", mine.count, theirs.count);
    }
    if (mine.protocol, mine.channels) != (theirs.protocol, theirs.channels) {
        return format!(
            "the calls agree, but the ranks carry them out differently (protocol {} on {} channels, and protocol {} on {}); run the same \
             version of the library with the same NCCL_* and MKERNEL_* variables on every rank",
            mine.protocol, mine.channels, theirs.protocol, theirs.channels
        );
    }
    format!("the calls agree, but not in everything that is compared; {SAME_ORDER}, with the same arguments and the same library version")
}

/// The sentence for two ranks that are in different collectives in the same place. `communicator` as the log names it.
pub fn message(communicator: &str, mine: &CallView, theirs: &CallView) -> String {
    format!(
        "rank {} called {mine} as operation {} of communicator {communicator}, but rank {} called {theirs}: {}",
        mine.rank,
        mine.sequence,
        theirs.rank,
        difference(mine, theirs)
    )
}

/// The sentence for a send and a receive that meet with different sizes.
pub fn message_point_to_point(communicator: &str, mine: &CallView, theirs: &CallView) -> String {
    let verb = |c: &CallView| if c.kind == OpKind::Send { "sends" } else { "expects" };
    format!(
        "rank {} {} {} bytes in {mine} on communicator {communicator}, but rank {} {} {} bytes in {theirs}: a Recv must ask for as many bytes \
         as the matching Send brings, and between two ranks they match in the order of the calls",
        mine.rank,
        verb(mine),
        mine.bytes(),
        theirs.rank,
        verb(theirs),
        theirs.bytes()
    )
}

/// The sentence when data of another operation came from a peer that did not say which.
pub fn message_unexplained(communicator: &str, mine: &CallView, peer: u32) -> String {
    format!(
        "rank {} is in {mine}, operation {} of communicator {communicator}, and got data of another operation from rank {peer}: every rank must \
         issue the same operations in the same order, with the same arguments and the same library version",
        mine.rank, mine.sequence
    )
}

/// The sentence for the two records of a failure, whatever is in them.
pub fn explain(communicator: &str, rank: u32, mine: &Announce, peer: u32, theirs: &Announce) -> String {
    let Some(mine) = CallView::decode(rank, mine) else {
        return format!(
            "rank {rank} and rank {peer} disagree about an operation of communicator {communicator}; the record of it is unreadable"
        );
    };
    if theirs.seq == 0 {
        return message_unexplained(communicator, &mine, peer);
    }
    match CallView::decode(peer, theirs) {
        Some(theirs) if mine.is_point_to_point() && theirs.is_point_to_point() => message_point_to_point(communicator, &mine, &theirs),
        Some(theirs) => message(communicator, &mine, &theirs),
        None => format!(
            "rank {rank} is in {mine}, operation {} of communicator {communicator}, and rank {peer} announced something that this version cannot \
             read (kind {}, type {}): run the same version of the library on every rank",
            mine.sequence, theirs.kind, theirs.dtype
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: CallView = CallView {
        rank: 2,
        sequence: 17,
        kind: OpKind::AllReduce,
        dtype: DataType::Float32,
        redop: 0,
        root: 0,
        count: 1024,
        protocol: 0,
        channels: 4,
    };

    #[test]
    fn the_whole_sentence() {
        let theirs = CallView { rank: 0, kind: OpKind::Broadcast, dtype: DataType::Bfloat16, count: 10, root: 1, ..BASE };
        assert_eq!(
            message("0x7f10", &BASE, &theirs),
            "rank 2 called AllReduce(count 1024, float32, sum) as operation 17 of communicator 0x7f10, but rank 0 called \
             Broadcast(count 10, bfloat16, root 1): these are different operations; every rank must issue the same operations in the same order \
             on a communicator"
        );
    }

    #[test]
    fn the_first_difference_is_named() {
        let rooted = CallView { kind: OpKind::Reduce, root: 3, ..BASE };
        let rows = [
            (BASE, CallView { sequence: 18, count: 1, ..BASE }, "rank 2 is at operation 17 and rank 0 at operation 18"),
            (rooted, CallView { root: 5, dtype: DataType::Int8, ..rooted }, "the roots differ (3 and 5)"),
            (BASE, CallView { root: 9, dtype: DataType::Float64, count: 1, ..BASE }, "the data types differ (float32 and float64)"),
            (BASE, CallView { redop: PRE_MUL_SUM, count: 1, ..BASE }, "the reduction operators differ (sum and premulsum)"),
            (BASE, CallView { redop: 77, ..BASE }, "(sum and an unknown operator)"),
            (BASE, CallView { count: 1025, channels: 8, ..BASE }, "the counts differ (1024 and 1025)"),
            (BASE, CallView { channels: 8, ..BASE }, "protocol 0 on 4 channels, and protocol 0 on 8"),
            (BASE, BASE, "not in everything that is compared"),
        ];
        for (mine, theirs, wanted) in rows {
            let text = message("0x1", &mine, &CallView { rank: 0, ..theirs });
            assert!(text.contains(wanted), "wanted \"{wanted}\" in: {text}");
        }
        // A broadcast does not reduce: leftovers in the operator are no difference.
        let broadcast = CallView { kind: OpKind::Broadcast, ..BASE };
        assert!(!message("0x1", &broadcast, &CallView { redop: 2, ..broadcast }).contains("operators"));
    }

    #[test]
    fn calls_print_what_their_kind_takes() {
        let rows = [
            (OpKind::AllReduce, "AllReduce(count 1024, float32, sum)"),
            (OpKind::Broadcast, "Broadcast(count 1024, float32, root 0)"),
            (OpKind::Reduce, "Reduce(count 1024, float32, sum, root 0)"),
            (OpKind::AllGather, "AllGather(count 1024, float32)"),
            (OpKind::ReduceScatter, "ReduceScatter(count 1024, float32, sum)"),
            (OpKind::AllToAll, "AlltoAll(count 1024, float32)"),
            (OpKind::Gather, "Gather(count 1024, float32, root 0)"),
            (OpKind::Scatter, "Scatter(count 1024, float32, root 0)"),
            (OpKind::Send, "Send(count 1024, float32, to rank 0)"),
            (OpKind::Recv, "Recv(count 1024, float32, from rank 0)"),
        ];
        assert_eq!(rows.map(|(kind, _)| kind), OpKind::ALL);
        for (kind, wanted) in rows {
            assert_eq!(CallView { kind, ..BASE }.to_string(), wanted);
        }
    }

    #[test]
    fn failure_records_are_explained_whatever_they_hold() {
        let allreduce = Announce { seq: 17, count: 8, dtype: 7, ..Announce::default() };
        let send = Announce { kind: OpKind::Send as u8, root: 1, count: 8, ..allreduce };
        let recv = Announce { kind: OpKind::Recv as u8, root: 0, count: 4, dtype: 8, seq: 3, ..allreduce };
        let rows = [
            (allreduce, Announce { count: 9, ..allreduce }, "the counts differ (8 and 9)"),
            (
                recv,
                Announce { count: 9, ..send },
                "rank 1 expects 32 bytes in Recv(count 4, float64, from rank 0) on communicator 0x1, but rank 0 sends 36 bytes",
            ),
            (allreduce, Announce { seq: 0, ..send }, "got data of another operation from rank 0"),
            (allreduce, Announce { kind: 77, ..allreduce }, "cannot read (kind 77, type 7)"),
            (Announce { dtype: 12, ..allreduce }, allreduce, "unreadable"),
        ];
        for (mine, theirs, wanted) in rows {
            let text = explain("0x1", 1, &mine, 0, &theirs);
            assert!(text.contains(wanted), "wanted \"{wanted}\" in: {text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_what_memory_holds(bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform32(any::<u8>())) {
            let mut record = [0; 64];
            record[..32].copy_from_slice(&bytes);
            record[32..].copy_from_slice(&more);
            let a = Announce::from_bytes(&record);
            prop_assert_eq!(a.to_bytes(), record);
            // SAFETY: Announce is 64 bytes of plain integers without padding (asserted above), like the array.
            let in_memory: [u8; 64] = unsafe { std::mem::transmute(a) };
            prop_assert_eq!(in_memory, record);
            // Nothing that a peer may have written makes the explanation fail.
            explain("0x1", 0, &a, 1, &a);
        }
    }
}
