//! What each operation takes and gives: buffer layout, which input every output element comes from, and the bandwidth it is credited with.

use super::expected::{Segment, Source};

/// A collective operation, or the ring exchange by send and receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
}

/// A reduction operator, in the order of `nccl.h`; `MulSum` is a sum of inputs premultiplied by a factor of each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedOp {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    MulSum,
}

impl RedOp {
    pub const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }
}

/// Elements that one rank sends and receives, and where they lie when both share one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// What the call's count argument is, and the "count" column.
    pub count: usize,
    pub send: usize,
    pub recv: usize,
    /// Element offsets of this rank's send and receive parts in the common buffer of an in-place call.
    pub send_offset: usize,
    pub recv_offset: usize,
}

impl Layout {
    /// Elements of a buffer that holds either side, or both in place.
    pub fn span(&self) -> usize {
        self.send.max(self.recv)
    }
}

impl Operation {
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::SendRecv,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "alltoall",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "sendrecv",
        }
    }

    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    pub fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// NCCL defines no in-place all-to-all, and a ring exchange in one buffer would overwrite what is still to be sent.
    pub fn has_in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::SendRecv)
    }

    /// The layout for a message of `elements`; where a buffer is divided among the ranks, each part is the integral share.
    pub fn layout(self, elements: usize, rank: usize, ranks: usize) -> Layout {
        let part = elements / ranks;
        let whole = part * ranks;
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => {
                Layout { count: elements, send: elements, recv: elements, send_offset: 0, recv_offset: 0 }
            }
            Self::AllGather | Self::Gather => Layout { count: part, send: part, recv: whole, send_offset: rank * part, recv_offset: 0 },
            Self::ReduceScatter | Self::Scatter => {
                Layout { count: part, send: whole, recv: part, send_offset: 0, recv_offset: rank * part }
            }
            Self::AllToAll => Layout { count: part, send: whole, recv: whole, send_offset: 0, recv_offset: 0 },
        }
    }

    /// Where the elements of this rank's receive buffer come from, in order and without gaps.
    pub fn sources(self, layout: &Layout, rank: usize, ranks: usize, root: usize) -> Vec<Segment> {
        let count = layout.count;
        let whole = |source| vec![Segment { start: 0, length: layout.recv, source }];
        let part_of_each = |from: usize| -> Vec<Segment> {
            (0..ranks).map(|peer| Segment { start: peer * count, length: count, source: Source::Copy { rank: peer, from } }).collect()
        };
        match self {
            Self::AllReduce => whole(Source::Reduced { from: 0 }),
            Self::ReduceScatter => whole(Source::Reduced { from: rank * count }),
            Self::Broadcast => whole(Source::Copy { rank: root, from: 0 }),
            Self::Scatter => whole(Source::Copy { rank: root, from: rank * count }),
            Self::SendRecv => whole(Source::Copy { rank: (rank + ranks - 1) % ranks, from: 0 }),
            Self::AllGather => part_of_each(0),
            Self::AllToAll => part_of_each(rank * count),
            Self::Reduce if rank == root => whole(Source::Reduced { from: 0 }),
            Self::Gather if rank == root => part_of_each(0),
            Self::Reduce | Self::Gather => whole(Source::Untouched),
        }
    }

    /// The bytes that count for the size column and the algorithm bandwidth: the larger of the two sides of a rank.
    pub fn bytes(self, layout: &Layout, element: usize) -> u64 {
        layout.span() as u64 * element as u64
    }

    /// Bus bandwidth as a multiple of algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md: the share of the data that crosses a rank's link).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Gather | Self::Scatter => (n - 1.0) / n,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_follow_the_in_place_rules_of_nccl() {
        let layout = |op: Operation| op.layout(10, 2, 3);
        assert_eq!(layout(Operation::AllReduce), Layout { count: 10, send: 10, recv: 10, send_offset: 0, recv_offset: 0 });
        assert_eq!(layout(Operation::AllGather), Layout { count: 3, send: 3, recv: 9, send_offset: 6, recv_offset: 0 });
        assert_eq!(layout(Operation::ReduceScatter), Layout { count: 3, send: 9, recv: 3, send_offset: 0, recv_offset: 6 });
        assert_eq!(layout(Operation::AllToAll), Layout { count: 3, send: 9, recv: 9, send_offset: 0, recv_offset: 0 });
    }

    #[test]
    fn sources_cover_the_receive_buffer_without_gaps() {
        for op in Operation::ALL {
            for rank in 0..3 {
                let layout = op.layout(11, rank, 3);
                let mut next = 0;
                for segment in op.sources(&layout, rank, 3, 1) {
                    assert_eq!(segment.start, next, "{op:?}");
                    next += segment.length;
                }
                assert_eq!(next, layout.recv, "{op:?}");
            }
        }
    }

    #[test]
    fn rooted_operations_leave_the_other_ranks_alone() {
        let sources = |op: Operation, rank| op.sources(&op.layout(8, rank, 2), rank, 2, 1);
        assert_eq!(sources(Operation::Reduce, 0)[0].source, Source::Untouched);
        assert_eq!(sources(Operation::Gather, 0)[0].source, Source::Untouched);
        assert_eq!(sources(Operation::Reduce, 1)[0].source, Source::Reduced { from: 0 });
        assert_eq!(sources(Operation::Gather, 1)[1].source, Source::Copy { rank: 1, from: 0 });
        assert_eq!(sources(Operation::Scatter, 0)[0].source, Source::Copy { rank: 1, from: 0 });
        assert_eq!(sources(Operation::AllToAll, 1)[0].source, Source::Copy { rank: 0, from: 4 });
        assert_eq!(sources(Operation::SendRecv, 0)[0].source, Source::Copy { rank: 1, from: 0 });
    }

    #[test]
    fn bus_bandwidth_factors_of_nccl_tests() {
        let factors: Vec<f64> = Operation::ALL.iter().map(|op| op.bus_factor(4)).collect();
        assert_eq!(factors, [1.5, 0.75, 0.75, 1.0, 1.0, 0.75, 0.75, 0.75, 1.0]);
        assert_eq!(Operation::AllReduce.bus_factor(1), 0.0);
        assert_eq!(Operation::AllGather.bytes(&Operation::AllGather.layout(10, 0, 3), 4), 36);
    }
}
