//! The values that ranks put in: a counter-based hash of (seed, rank, element index), so that every rank can tell the input of every other one.

use super::element::{Element, ElementType};
use super::operation::RedOp;

/// The finaliser of splitmix64: every input bit reaches every output bit.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which values the ranks put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Values {
    /// Random floats with full mantissas: sums must match the exact rule (rank order, float32 accumulator, one rounding) bit for bit
    Random,
    /// Floats whose sums and products are exact in any order: for libraries that round at every hop, as NCCL does (avg: with 2, 4, 8.. ranks)
    Exact,
}

/// How the hash becomes a floating-point value. Integers always take the hash's bits: their arithmetic wraps and is exact in any order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// ±[0.25, 2), full mantissa.
    Wide,
    /// ±[0.75, 1.25), full mantissa, so that products stay in range.
    NearOne,
    /// Integers in [-limit, limit] on the first `ranks` ranks, 0 on the others.
    SmallIntegers { limit: u32, ranks: usize },
    /// ±0.5, ±1, ±2 on the first four ranks, ±1 on the others.
    Powers,
}

/// All inputs of one operation.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// Stays the same over the rounds of a row: a captured graph keeps the operator, and so its factor.
    row_seed: u64,
    seed: u64,
    spread: Spread,
    values: Values,
}

impl Inputs {
    pub fn new(seed: u64, values: Values, dtype: ElementType, op: RedOp, ranks: usize) -> Self {
        let spread = match (values, op) {
            (Values::Random, RedOp::Prod) => Spread::NearOne,
            (Values::Random, _) => Spread::Wide,
            (Values::Exact, RedOp::Prod) => Spread::Powers,
            (Values::Exact, _) => {
                // Half of what the type counts exactly is left to the premultiplier, which is 1 or 2.
                let room = dtype.exact_integers() / 2;
                let limit = (room / ranks.max(1) as u32).clamp(1, 1000);
                Spread::SmallIntegers { limit, ranks: (room / limit) as usize }
            }
        };
        Self { row_seed: seed, seed: mix(seed), spread, values }
    }

    /// The same kind of inputs with other values.
    pub fn fresh(&self, round: u64) -> Self {
        Self { seed: mix(self.row_seed ^ mix(round + 1)), ..*self }
    }

    /// A number that differs from round to round.
    pub fn salt(&self) -> u64 {
        self.seed
    }

    /// The inputs of one rank, as a function of the element index.
    pub fn of_rank<E: Element>(&self, rank: usize) -> impl Fn(u64) -> E + use<E> {
        let key = mix(self.seed.wrapping_add(GOLDEN.wrapping_mul(rank as u64 + 1)));
        let spread = self.spread;
        move |index| E::from_hash(mix(key.wrapping_add(GOLDEN.wrapping_mul(index))), rank, spread)
    }

    /// The factor that a rank's inputs are multiplied by under `mulsum`.
    pub fn premultiplier<E: Element>(&self, rank: usize) -> E {
        let hash = mix(self.row_seed ^ mix(rank as u64 + 1));
        match self.values {
            Values::Random => E::from_hash(hash, rank, Spread::NearOne),
            Values::Exact => E::from_f64(if rank.is_multiple_of(2) { 1.0 } else { 2.0 }),
        }
    }
}

impl Spread {
    /// The floating-point value that `hash` stands for.
    pub fn value(self, hash: u64, rank: usize) -> f64 {
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        // The low 52 bits as a fraction in [0, 1).
        let fraction = f64::from_bits(0x3ff << 52 | hash & ((1 << 52) - 1)) - 1.0;
        match self {
            Self::Wide => {
                let scale = [1.0, 0.5, 0.25, 1.0][(hash >> 60 & 3) as usize];
                sign * (1.0 + fraction) * scale
            }
            Self::NearOne => sign * (0.75 + 0.5 * fraction),
            Self::SmallIntegers { limit, ranks } => {
                if rank < ranks {
                    (hash % (2 * u64::from(limit) + 1)) as f64 - f64::from(limit)
                } else {
                    0.0
                }
            }
            Self::Powers => sign * if rank < 4 { [0.5, 1.0, 2.0][(hash % 3) as usize] } else { 1.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_differ_by_seed_rank_and_index() {
        let value = |seed, rank, index| Inputs::new(seed, Values::Random, ElementType::Uint64, RedOp::Sum, 4).of_rank::<u64>(rank)(index);
        assert_eq!(value(1, 0, 0), value(1, 0, 0));
        assert_ne!(value(1, 0, 0), value(2, 0, 0));
        assert_ne!(value(1, 0, 0), value(1, 1, 0));
        assert_ne!(value(1, 0, 0), value(1, 0, 1));
        // A rank's sequence is no shifted copy of another one's.
        let first: Vec<u64> = (0..1000).map(|i| value(1, 0, i)).collect();
        assert!((0..1000).all(|i| !first.contains(&value(1, 1, i))));
    }

    #[test]
    fn a_fresh_round_changes_the_inputs_but_not_the_premultipliers() {
        let first = Inputs::new(1, Values::Random, ElementType::Uint64, RedOp::MulSum, 4);
        let second = first.fresh(1);
        assert_ne!(first.of_rank::<u64>(2)(0), second.of_rank::<u64>(2)(0));
        assert_eq!(first.premultiplier::<u64>(2), second.premultiplier::<u64>(2));
        assert_ne!(first.premultiplier::<u64>(2), first.premultiplier::<u64>(3));
    }

    #[test]
    fn random_floats_stay_in_their_range() {
        for i in 0..10_000 {
            let wide = Spread::Wide.value(mix(i), 0).abs();
            assert!((0.25..2.0).contains(&wide), "{wide}");
            let near = Spread::NearOne.value(mix(i), 0).abs();
            assert!((0.75..1.25).contains(&near), "{near}");
        }
    }

    #[test]
    fn exact_inputs_sum_exactly_in_the_narrowest_types() {
        for (dtype, ranks) in [(ElementType::Float8e5m2, 2), (ElementType::Float8e5m2, 16), (ElementType::Float8e4m3, 8)] {
            let Spread::SmallIntegers { limit, ranks: active } = Inputs::new(1, Values::Exact, dtype, RedOp::Sum, ranks).spread else {
                panic!("sums use small integers");
            };
            assert!(limit as usize * active.min(ranks) * 2 <= dtype.exact_integers() as usize, "{dtype:?} {ranks}");
        }
    }
}
