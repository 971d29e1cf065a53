//! The results that an operation must give, computed on the host from the inputs of all ranks.

use super::element::{Accumulator, Element, ElementType, with_element};
use super::inputs::Inputs;
use super::operation::RedOp;
use std::ops::Range;

/// Where a stretch of output elements comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The reduction over all ranks of input elements `from..`.
    Reduced { from: usize },
    /// Input elements `from..` of one rank.
    Copy { rank: usize, from: usize },
    /// The operation does not write here.
    Untouched,
}

/// A stretch of a receive buffer, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub start: usize,
    pub length: usize,
    pub source: Source,
}

/// Writes one rank's inputs, from element `from` on, over `bytes`.
pub fn fill_inputs(dtype: ElementType, inputs: &Inputs, rank: usize, from: usize, bytes: &mut [u8]) {
    fn fill<E: Element>(inputs: &Inputs, rank: usize, from: usize, bytes: &mut [u8]) {
        let value = inputs.of_rank::<E>(rank);
        for (i, slot) in bytes.chunks_exact_mut(size_of::<E>()).enumerate() {
            value((from + i) as u64).store(slot);
        }
    }
    with_element!(dtype, fill(inputs, rank, from, bytes));
}

/// One rank's premultiplier, as `ncclRedOpCreatePreMulSum` reads it.
pub fn premultiplier(dtype: ElementType, inputs: &Inputs, rank: usize) -> [u8; 8] {
    fn store<E: Element>(inputs: &Inputs, rank: usize) -> [u8; 8] {
        let mut bytes = [0; 8];
        inputs.premultiplier::<E>(rank).store(&mut bytes[..size_of::<E>()]);
        bytes
    }
    with_element!(dtype, store(inputs, rank))
}

/// Writes the expected elements `range` of a receive buffer over `bytes`, which holds what the buffer held before the operation.
pub fn fill_expected(
    dtype: ElementType,
    op: RedOp,
    inputs: &Inputs,
    ranks: usize,
    sources: &[Segment],
    range: Range<usize>,
    bytes: &mut [u8],
) {
    let element = dtype.size();
    for segment in sources {
        let start = segment.start.max(range.start);
        let end = (segment.start + segment.length).min(range.end);
        if start >= end {
            continue;
        }
        let part = &mut bytes[(start - range.start) * element..(end - range.start) * element];
        let skip = start - segment.start;
        match segment.source {
            Source::Untouched => {}
            Source::Copy { rank, from } => fill_inputs(dtype, inputs, rank, from + skip, part),
            Source::Reduced { from } => with_element!(dtype, fill_reduced(op, inputs, ranks, from + skip, part)),
        }
    }
}

fn fill_reduced<E: Element>(op: RedOp, inputs: &Inputs, ranks: usize, from: usize, bytes: &mut [u8]) {
    let values: Vec<_> = (0..ranks).map(|rank| inputs.of_rank::<E>(rank)).collect();
    let factors: Vec<E> = (0..ranks).map(|rank| inputs.premultiplier(rank)).collect();
    for (i, slot) in bytes.chunks_exact_mut(size_of::<E>()).enumerate() {
        reduce(op, &factors, values.iter().map(|value| value((from + i) as u64))).store(slot);
    }
}

/// Folds one element of every rank, in rank order. `factors` are the ranks' premultipliers, which only `mulsum` uses.
fn reduce<E: Element>(op: RedOp, factors: &[E], values: impl Iterator<Item = E>) -> E {
    let mut terms = values.zip(factors).map(|(value, factor)| match op {
        RedOp::MulSum => value.widen().multiply(factor.widen()),
        _ => value.widen(),
    });
    let Some(first) = terms.next() else { return E::from_f64(0.0) };
    let folded = terms.fold(first, |sum, term| match op {
        RedOp::Sum | RedOp::Avg | RedOp::MulSum => sum.add(term),
        RedOp::Prod => sum.multiply(term),
        RedOp::Max => sum.larger(term),
        RedOp::Min => sum.smaller(term),
    });
    E::round(if op == RedOp::Avg { folded.divide_by_ranks(factors.len()) } else { folded })
}

#[cfg(test)]
mod tests {
    use super::super::inputs::Values;
    use super::super::operation::Operation;
    use super::*;
    use half::{bf16, f16};

    fn fold<E: Element>(op: RedOp, values: &[E]) -> E {
        let ones: Vec<E> = values.iter().map(|_| E::from_f64(1.0)).collect();
        reduce(op, &ones, values.iter().copied())
    }

    #[test]
    fn floats_fold_in_rank_order_and_round_once() {
        // In float32, (1e8 + 1) loses the 1; any other order keeps it.
        assert_eq!(fold(RedOp::Sum, &[1e8f32, 1.0, -1e8]), 0.0);
        assert_eq!(fold(RedOp::Sum, &[1e8f32, -1e8, 1.0]), 1.0);
        // 2048 + 1 + 1 in half would stay at 2048 if it rounded at every step.
        assert_eq!(fold(RedOp::Sum, &[2048.0, 1.0, 1.0].map(f16::from_f32)), f16::from_f32(2050.0));
        assert_eq!(fold(RedOp::Sum, &[256.0, 1.0].map(bf16::from_f32)), bf16::from_f32(256.0), "a tie goes to even");
        assert_eq!(fold(RedOp::Sum, &[258.0, 1.0].map(bf16::from_f32)), bf16::from_f32(260.0), "a tie goes to even");
        assert_eq!(fold(RedOp::Avg, &[1.0f32, 1.0, 0.0]), 2.0f32 / 3.0);
        assert_eq!(fold(RedOp::Prod, &[3.0f32, 5.0, -2.0]), -30.0);
        assert_eq!((fold(RedOp::Max, &[3.0f64, 5.0, -2.0]), fold(RedOp::Min, &[3.0f64, 5.0, -2.0])), (5.0, -2.0));
    }

    #[test]
    fn integers_wrap_in_their_type() {
        assert_eq!(fold(RedOp::Sum, &[100i8, 100, 100]), 44);
        assert_eq!(fold(RedOp::Avg, &[-100i8, -100, 1]), 19, "-199 wraps to 57");
        assert_eq!(fold(RedOp::Prod, &[u32::MAX, 2]), u32::MAX - 1);
        assert_eq!((fold(RedOp::Max, &[-1i64, 3]), fold(RedOp::Min, &[-1i64, 3])), (3, -1));
    }

    #[test]
    fn each_input_is_multiplied_by_its_own_factor_and_rounded_before_the_sum() {
        assert_eq!(reduce(RedOp::MulSum, &[2i32, 3], [10, 100].into_iter()), 320);
        let (a, b) = (1.0f32 + f32::EPSILON, 1.0f32 - f32::EPSILON);
        // a * b is 1 - 2^-46, which rounds to 1; a fused multiply-add would keep the rest.
        assert_eq!(reduce(RedOp::MulSum, &[1.0, b], [-1.0, a].into_iter()), 0.0);
    }

    #[test]
    fn parts_of_the_expected_buffer_agree_with_the_whole() {
        let op = Operation::AllToAll;
        let layout = op.layout(30, 1, 3);
        let sources = op.sources(&layout, 1, 3, 0);
        let inputs = Inputs::new(9, Values::Random, ElementType::Float16, RedOp::Sum, 3);
        let mut whole = vec![0; 60];
        fill_expected(ElementType::Float16, RedOp::Sum, &inputs, 3, &sources, 0..30, &mut whole);
        let mut part = vec![0; 26];
        fill_expected(ElementType::Float16, RedOp::Sum, &inputs, 3, &sources, 8..21, &mut part);
        assert_eq!(part, whole[16..42]);
        let mut sent_by_2 = vec![0; 20];
        fill_inputs(ElementType::Float16, &inputs, 2, 10, &mut sent_by_2);
        assert_eq!(sent_by_2, whole[40..60], "the last part is what rank 2 has for rank 1");
    }

    #[test]
    fn untouched_stretches_keep_what_was_there() {
        let inputs = Inputs::new(9, Values::Random, ElementType::Uint8, RedOp::Sum, 2);
        let mut bytes = vec![0xa5; 4];
        let sources = [Segment { start: 0, length: 4, source: Source::Untouched }];
        fill_expected(ElementType::Uint8, RedOp::Sum, &inputs, 2, &sources, 0..4, &mut bytes);
        assert_eq!(bytes, [0xa5; 4]);
    }

    #[test]
    fn exact_values_give_the_same_sum_in_any_order() {
        for dtype in [ElementType::Float8e5m2, ElementType::Float8e4m3, ElementType::Float16] {
            for op in [RedOp::Sum, RedOp::Prod] {
                let inputs = Inputs::new(3, Values::Exact, dtype, op, 8);
                fn both_orders<E: Element>(op: RedOp, inputs: &Inputs) {
                    for index in 0..500 {
                        let values: Vec<E> = (0..8).map(|rank| inputs.of_rank::<E>(rank)(index)).collect();
                        // Rounding to the type after each step, from the last rank to the first: another library's way.
                        let hop = |a: E, b: E| fold(op, &[a, b]);
                        let backwards = values.iter().rev().copied().reduce(hop).unwrap();
                        let (mut left, mut right) = (vec![0; size_of::<E>()], vec![0; size_of::<E>()]);
                        fold(op, &values).store(&mut left);
                        backwards.store(&mut right);
                        assert_eq!(left, right);
                    }
                }
                with_element!(dtype, both_orders(op, &inputs));
            }
        }
    }
}
