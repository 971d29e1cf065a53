//! What an operation must leave in memory, worked out on the host to the bit.

use crate::cases::{Case, Operation, Redop, mix};
use crate::element::{Accumulator, Element, with_element};
use std::ops::Range;

/// Elements that are worked out at a time: the inputs of all ranks stay in the cache.
const CHUNK: usize = 4096;

/// Where a stretch of elements comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Input of one rank, from this element on.
    Input { rank: usize, from: usize },
    /// The reduction of all ranks' inputs from this element on.
    Reduced { from: usize },
}

/// A stretch of a buffer's elements with a known source. Elements without one must still hold the poison.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    at: Range<usize>,
    source: Source,
}

/// One of a rank's two buffers. A case in place uses only the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    First,
    Second,
}

/// Where a rank's input and output lie: (buffer, element offset) each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    pub input: (Which, usize),
    pub output: (Which, usize),
    /// Elements of the two buffers.
    pub elements: [usize; 2],
}

/// Where a rank's data lie, by section "In place" of NCCL's guide.
pub fn places(case: &Case, rank: usize) -> Places {
    let block = |index: usize| index * case.count;
    let (input, output) = match case.operation {
        _ if !case.in_place => ((Which::First, 0), (Which::Second, 0)),
        Operation::AllGather => ((Which::First, block(rank)), (Which::First, 0)),
        Operation::ReduceScatter => ((Which::First, 0), (Which::First, block(rank))),
        Operation::Gather if rank == case.root => ((Which::First, block(rank)), (Which::First, 0)),
        Operation::Scatter if rank == case.root => ((Which::First, 0), (Which::First, block(rank))),
        // The other ranks of a gather or scatter have one buffer each, of another size.
        Operation::Gather | Operation::Scatter => ((Which::First, 0), (Which::Second, 0)),
        _ => ((Which::First, 0), (Which::First, 0)),
    };
    let elements = if input.0 == output.0 { [case.send_count().max(case.recv_count()), 0] } else { [case.send_count(), case.recv_count()] };
    Places { input, output, elements }
}

/// What the operation puts into a rank's output, relative to the output's start.
fn results(case: &Case, rank: usize) -> Vec<Stretch> {
    let count = case.count;
    let block = |index: usize| index * count..(index + 1) * count;
    let from_each = |from: &dyn Fn(usize) -> usize| {
        (0..case.ranks).map(|peer| Stretch { at: block(peer), source: Source::Input { rank: peer, from: from(peer) } }).collect()
    };
    let one = |source| vec![Stretch { at: block(0), source }];
    match case.operation {
        Operation::AllReduce => one(Source::Reduced { from: 0 }),
        Operation::Reduce if rank == case.root => one(Source::Reduced { from: 0 }),
        Operation::ReduceScatter => one(Source::Reduced { from: rank * count }),
        Operation::Broadcast | Operation::Bcast => one(Source::Input { rank: case.root, from: 0 }),
        Operation::AllGather => from_each(&|_| 0),
        Operation::Gather if rank == case.root => from_each(&|_| 0),
        Operation::AllToAll | Operation::Pairs => from_each(&|_| rank * count),
        Operation::Scatter => one(Source::Input { rank: case.root, from: rank * count }),
        Operation::Ring => one(Source::Input { rank: (rank + case.ranks - 1) % case.ranks, from: 0 }),
        Operation::Reduce | Operation::Gather => Vec::new(),
    }
}

/// What a rank's buffer must hold after a run, worked out piece by piece.
pub struct Expected<'a> {
    case: &'a Case,
    run: u32,
    poison: u8,
    /// In order of precedence: later ones lie over earlier ones.
    stretches: Vec<Stretch>,
}

impl<'a> Expected<'a> {
    /// After the operation.
    pub fn after(case: &'a Case, rank: usize, run: u32, which: Which, poison: u8) -> Self {
        let places = places(case, rank);
        let mut expected = Self::before(case, rank, run, which, poison);
        if places.output.0 == which {
            let shift = places.output.1;
            let moved = |stretch: Stretch| Stretch { at: stretch.at.start + shift..stretch.at.end + shift, ..stretch };
            expected.stretches.extend(results(case, rank).into_iter().map(moved));
        }
        expected
    }

    /// Before it: the input, and poison elsewhere.
    pub fn before(case: &'a Case, rank: usize, run: u32, which: Which, poison: u8) -> Self {
        let places = places(case, rank);
        let mut stretches = Vec::new();
        if places.input.0 == which {
            let at = places.input.1..places.input.1 + case.send_count();
            stretches.push(Stretch { at, source: Source::Input { rank, from: 0 } });
        }
        Self { case, run, poison, stretches }
    }

    /// Writes what the buffer holds from element `from` on.
    pub fn write(&self, from: usize, bytes: &mut [u8]) {
        with_element!(self.case.dtype, write_elements(self, from, bytes));
    }

    /// Compares a buffer's content; says where it first differs, and in how many elements.
    pub fn compare(&self, content: &[u8]) -> Result<(), Difference> {
        let size = self.case.dtype.size();
        let mut piece = vec![0; CHUNK * size];
        let mut first: Option<Difference> = None;
        for (index, actual) in content.chunks(CHUNK * size).enumerate() {
            let piece = &mut piece[..actual.len()];
            self.write(index * CHUNK, piece);
            if piece == actual {
                continue;
            }
            for (at, (want, got)) in piece.chunks(size).zip(actual.chunks(size)).enumerate().filter(|(_, (want, got))| want != got) {
                let element = index * CHUNK + at;
                first.get_or_insert_with(|| Difference { element, want: want.to_vec(), got: got.to_vec(), wrong: 0 }).wrong += 1;
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// How a buffer differs from what it should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The first element that differs.
    pub element: usize,
    pub want: Vec<u8>,
    pub got: Vec<u8>,
    /// Elements that differ.
    pub wrong: usize,
}

/// A number for each case, run and rank, from which inputs follow element by element.
fn input_base(case: &Case, run: u32, rank: usize) -> u64 {
    mix(case.seed ^ mix(u64::from(run) << 32 | rank as u64))
}

fn input<E: Element>(case: &Case, base: u64, element: usize) -> E {
    E::random(mix(base ^ element as u64), case.spread)
}

/// The scalar by which a rank multiplies, as it lies in memory.
pub fn scalar(case: &Case, rank: usize) -> Vec<u8> {
    fn write<E: Element>(case: &Case, rank: usize) -> Vec<u8> {
        let mut bytes = vec![0; case.dtype.size()];
        scalar_of::<E>(case, rank).write(&mut bytes);
        bytes
    }
    with_element!(case.dtype, write(case, rank))
}

fn scalar_of<E: Element>(case: &Case, rank: usize) -> E {
    E::random(mix(case.seed.rotate_left(17) ^ rank as u64), case.spread)
}

fn write_elements<E: Element>(expected: &Expected, from: usize, bytes: &mut [u8]) {
    let size = size_of::<E>();
    let window = from..from + bytes.len() / size;
    bytes.fill(expected.poison);
    for stretch in &expected.stretches {
        let part = window.start.max(stretch.at.start)..window.end.min(stretch.at.end);
        if part.is_empty() {
            continue;
        }
        let skipped = part.start - stretch.at.start;
        let target = &mut bytes[(part.start - window.start) * size..(part.end - window.start) * size];
        match stretch.source {
            Source::Input { rank, from } => {
                let base = input_base(expected.case, expected.run, rank);
                for (at, target) in target.chunks_exact_mut(size).enumerate() {
                    input::<E>(expected.case, base, from + skipped + at).write(target);
                }
            }
            Source::Reduced { from } => reduce::<E>(expected.case, expected.run, from + skipped, target),
        }
    }
}

/// The reduction over all ranks, in rank order, of inputs from element `from` on.
fn reduce<E: Element>(case: &Case, run: u32, from: usize, target: &mut [u8]) {
    let ranks: Vec<(u64, E::Accumulator)> =
        (0..case.ranks).map(|rank| (input_base(case, run, rank), scalar_of::<E>(case, rank).widen())).collect();
    for (at, target) in target.chunks_exact_mut(size_of::<E>()).enumerate() {
        let term = |(base, scalar): &(u64, E::Accumulator)| {
            let value = input::<E>(case, *base, from + at).widen();
            if case.redop.multiplies_first() { value.multiply(*scalar) } else { value }
        };
        let mut accumulator = term(&ranks[0]);
        for rank in &ranks[1..] {
            let value = term(rank);
            accumulator = match case.redop {
                Redop::Prod => accumulator.multiply(value),
                Redop::Max => accumulator.larger(value),
                Redop::Min => accumulator.smaller(value),
                Redop::Sum | Redop::Avg | Redop::PreMulHost | Redop::PreMulDevice => accumulator.add(value),
            };
        }
        let result = if case.redop == Redop::Avg { E::average(accumulator, case.ranks) } else { E::round(accumulator) };
        result.write(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{Cover, Limits};
    use crate::element::Type;

    /// Any case, with some settings changed.
    fn case(change: impl FnOnce(&mut Case)) -> Case {
        let mut case = Cover::new(1, Limits::default()).next().unwrap();
        case.operation = Operation::AllReduce;
        (case.redop, case.dtype, case.ranks, case.count, case.in_place, case.root) = (Redop::Sum, Type::Int32, 3, 10, false, 0);
        change(&mut case);
        case
    }

    fn content(case: &Case, rank: usize, which: Which) -> Vec<i32> {
        let elements = places(case, rank).elements[which as usize];
        let mut bytes = vec![0; elements * 4];
        Expected::after(case, rank, 0, which, 0xee).write(0, &mut bytes);
        bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    fn inputs(case: &Case, rank: usize) -> Vec<i32> {
        (0..case.send_count()).map(|element| input(case, input_base(case, 0, rank), element)).collect()
    }

    const POISON: i32 = i32::from_ne_bytes([0xee; 4]);

    #[test]
    fn reductions_fold_all_ranks() {
        let case = case(|_| {});
        let all: Vec<_> = (0..3).map(|rank| inputs(&case, rank)).collect();
        let sum: Vec<_> = (0..10).map(|i| all[0][i].wrapping_add(all[1][i]).wrapping_add(all[2][i])).collect();
        assert_eq!(content(&case, 1, Which::Second), sum);
        assert_eq!(content(&case, 1, Which::First), all[1]);
    }

    #[test]
    fn a_reduce_scatter_in_place_leaves_the_other_blocks() {
        let case = case(|case| (case.operation, case.in_place, case.count) = (Operation::ReduceScatter, true, 2));
        let own = inputs(&case, 1);
        let after = content(&case, 1, Which::First);
        assert_eq!((after[..2].to_vec(), after[4..].to_vec()), (own[..2].to_vec(), own[4..].to_vec()));
        let third = (0..3).fold(0i32, |sum, rank| sum.wrapping_add(inputs(&case, rank)[3]));
        assert_eq!(after[3], third);
    }

    #[test]
    fn blocks_go_where_they_belong() {
        let case = case(|case| (case.operation, case.count) = (Operation::AllToAll, 1));
        assert_eq!(content(&case, 2, Which::Second), (0..3).map(|peer| inputs(&case, peer)[2]).collect::<Vec<_>>());
        let case = self::case(|case| (case.operation, case.count) = (Operation::Ring, 1));
        assert_eq!(content(&case, 0, Which::Second), inputs(&case, 2));
        let case = self::case(|case| (case.operation, case.count, case.root) = (Operation::Gather, 1, 1));
        assert_eq!(content(&case, 0, Which::Second), [POISON; 3]);
        assert_eq!(content(&case, 1, Which::Second), (0..3).map(|peer| inputs(&case, peer)[0]).collect::<Vec<_>>());
    }

    #[test]
    fn a_premultiplied_sum_uses_every_ranks_own_scalar() {
        let case = case(|case| case.redop = Redop::PreMulHost);
        let scalars: Vec<_> = (0..3).map(|rank| i32::from_le_bytes(scalar(&case, rank).try_into().unwrap())).collect();
        let sum = (0..3).fold(0i32, |sum, rank| sum.wrapping_add(inputs(&case, rank)[4].wrapping_mul(scalars[rank])));
        assert_eq!(content(&case, 0, Which::Second)[4], sum);
        assert_ne!(scalars[0], scalars[1]);
    }

    #[test]
    fn pieces_join_without_a_seam() {
        let case = case(|case| (case.count, case.dtype, case.redop) = (CHUNK * 2 + 77, Type::Float16, Redop::Prod));
        let expected = Expected::after(&case, 0, 1, Which::Second, 0);
        let mut whole = vec![0; case.count * 2];
        expected.write(0, &mut whole);
        let mut part = vec![0; 200];
        expected.write(CHUNK - 30, &mut part);
        assert_eq!(part, whole[(CHUNK - 30) * 2..(CHUNK + 70) * 2]);
        assert_eq!(expected.compare(&whole), Ok(()));
        whole[CHUNK * 4 + 5] ^= 0x10;
        whole[CHUNK * 4 + 15] ^= 0x10;
        let difference = expected.compare(&whole).unwrap_err();
        assert_eq!((difference.element, difference.wrong), (CHUNK * 2 + 2, 2));
    }

    #[test]
    fn half_precision_sums_round_once() {
        // Rounding at every hop gives another answer for some element of a long enough sum.
        let case = case(|case| (case.count, case.dtype, case.ranks) = (500, Type::Bfloat16, 8));
        let expected = Expected::after(&case, 0, 0, Which::Second, 0);
        let mut bytes = vec![0; 1000];
        expected.write(0, &mut bytes);
        let hop_by_hop = |element: usize| {
            (0..8)
                .map(|rank| input::<half::bf16>(&case, input_base(&case, 0, rank), element))
                .reduce(|a, b| half::bf16::from_f32(a.to_f32() + b.to_f32()))
        };
        assert!((0..500).any(|at| hop_by_hop(at).unwrap().to_bits().to_le_bytes() != bytes[at * 2..at * 2 + 2]));
    }
}
