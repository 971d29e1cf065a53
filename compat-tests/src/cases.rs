//! The cases of the matrix: what one case is, and a deterministic choice of cases that covers every pair of settings early and goes on at random.

use crate::element::{Spread, Type};
use crate::ranks::How;
use clap::ValueEnum;
use std::collections::HashSet;
use std::fmt;

/// A bijective scrambler of 64 bits (the finaliser of SplitMix64).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stream of random numbers that depends on nothing but its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number from 0 to `limit` - 1.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    AllReduce,
    Broadcast,
    Bcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    /// Every rank sends to the next and receives from the one before.
    Ring,
    /// Every rank sends to and receives from every rank, itself included, in one group.
    Pairs,
}

impl Operation {
    pub const ALL: [Self; 11] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Bcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Ring,
        Self::Pairs,
    ];

    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    pub fn rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Bcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Blocks of `count` elements that a rank sends.
    pub fn send_blocks(self, ranks: usize) -> usize {
        if matches!(self, Self::ReduceScatter | Self::AllToAll | Self::Scatter | Self::Pairs) { ranks } else { 1 }
    }

    /// Blocks of `count` elements that a rank receives.
    pub fn recv_blocks(self, ranks: usize) -> usize {
        if matches!(self, Self::AllGather | Self::AllToAll | Self::Gather | Self::Pairs) { ranks } else { 1 }
    }

    /// Whether there is an in-place form.
    fn in_place(self) -> bool {
        !matches!(self, Self::AllToAll | Self::Ring | Self::Pairs)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redop {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    /// Scalar given by the host when the operator is made; every rank has its own.
    PreMulHost,
    /// Scalar in device memory, read when the operation runs.
    PreMulDevice,
}

impl Redop {
    pub const ALL: [Self; 7] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulHost, Self::PreMulDevice];

    pub fn multiplies_first(self) -> bool {
        matches!(self, Self::PreMulHost | Self::PreMulDevice)
    }
}

/// Kinds of element counts. Sizes are those of a rank's larger buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Count {
    Zero,
    One,
    SmallOdd,
    /// Around multiples of 16 bytes.
    AroundLine,
    /// Around the powers of two from 4 KiB to 256 KiB, where chunks and protocols change.
    AroundChunk,
    /// 100 to 600 KB.
    Middle,
    /// 1 to 5 MB.
    Large,
}

impl Count {
    pub const ALL: [Self; 7] = [Self::Zero, Self::One, Self::SmallOdd, Self::AroundLine, Self::AroundChunk, Self::Middle, Self::Large];

    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn draw(self, blocks: usize, size: usize, random: &mut Random) -> usize {
        // One element less or more, or none.
        let beside = |elements: usize, random: &mut Random| (elements + random.below(3)).saturating_sub(1).max(1);
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::SmallOdd => 3 + 2 * random.below(30),
            Self::AroundLine => beside(16 / size * (1 + random.below(64)), random),
            Self::AroundChunk => {
                let bytes = 4096usize << random.below(7);
                beside((bytes / blocks / size).max(1), random)
            }
            Self::Middle => (100_000 + random.below(500_000)) / blocks / size,
            Self::Large => (1_000_000 + random.below(4_000_000)) / blocks / size,
        }
    }
}

/// How an operation reaches its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launch {
    Eager,
    /// Captured once, replayed for every run.
    Graph,
}

/// One case of the matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub index: u32,
    /// Inputs, offsets and poison follow from it.
    pub seed: u64,
    pub operation: Operation,
    pub redop: Redop,
    pub dtype: Type,
    pub ranks: usize,
    pub count: usize,
    pub kind: Count,
    pub in_place: bool,
    /// Pointers are aligned to the element only, differently on every rank.
    pub unaligned: bool,
    pub root: usize,
    pub how: How,
    pub launch: Launch,
    pub spread: Spread,
}

impl Case {
    pub fn send_count(&self) -> usize {
        self.count * self.operation.send_blocks(self.ranks)
    }

    pub fn recv_count(&self) -> usize {
        self.count * self.operation.recv_blocks(self.ranks)
    }

    /// Bytes of the larger buffer.
    pub fn bytes(&self) -> usize {
        self.send_count().max(self.recv_count()) * self.dtype.size()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.operation)?;
        if self.operation.reduces() {
            write!(f, " {:?}", self.redop)?;
        }
        write!(f, " {:?}, count {}, {} ranks as {}", self.dtype, self.count, self.ranks, self.how.name())?;
        if self.operation.rooted() {
            write!(f, ", root {}", self.root)?;
        }
        let place = if self.in_place { "in place" } else { "out of place" };
        write!(f, ", {place}{}", if self.unaligned { ", unaligned" } else { "" })?;
        write!(f, ", {:?}, {:?} inputs", self.launch, self.spread)
    }
}

/// What the cases may use.
#[derive(Debug, Clone)]
pub struct Limits {
    pub ranks: Vec<usize>,
    pub how: Vec<How>,
    pub counts: Vec<Count>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ranks: vec![1, 2, 3, 4, 5, 8], how: How::ALL.to_vec(), counts: Count::ALL.to_vec() }
    }
}

/// A setting of one dimension, for the count of covered pairs. Dimensions that do not matter to an operation are left out.
type Setting = (u8, u64);

fn settings(case: &Case) -> Vec<Setting> {
    let mut settings = vec![
        (0, case.operation as u64),
        (1, case.dtype as u64),
        (2, case.ranks as u64),
        (3, case.kind as u64),
        (4, u64::from(case.in_place)),
        (5, u64::from(case.unaligned)),
        (6, case.how as u64),
        (7, case.launch as u64),
    ];
    if case.operation.reduces() {
        settings.push((8, case.redop as u64));
        settings.push((9, case.spread as u64));
    }
    if case.operation.rooted() {
        settings.push((10, u64::from(case.root == 0) + 2 * u64::from(case.root + 1 == case.ranks)));
    }
    settings
}

fn pairs(case: &Case) -> Vec<(Setting, Setting)> {
    let settings = settings(case);
    (0..settings.len()).flat_map(|a| settings[a + 1..].iter().map(move |b| (a, *b))).map(|(a, b)| (settings[a], b)).collect()
}

/// Chooses cases one after the other: of some random candidates, the one with the most pairs of settings not seen before. Case k depends on the
/// seed and the limits only, not on how many cases are asked for.
pub struct Cover {
    random: Random,
    limits: Limits,
    seen: HashSet<(Setting, Setting)>,
    next: u32,
}

impl Cover {
    pub fn new(seed: u64, limits: Limits) -> Self {
        Self { random: Random::new(seed), limits, seen: HashSet::new(), next: 0 }
    }

    fn candidate(&mut self) -> Case {
        let random = &mut self.random;
        let operation = random.pick(&Operation::ALL);
        let dtype = random.pick(&Type::ALL);
        let ranks = random.pick(&self.limits.ranks);
        let kind = random.pick(&self.limits.counts);
        let blocks = operation.send_blocks(ranks).max(operation.recv_blocks(ranks));
        let redop = random.pick(&Redop::ALL);
        let spread = if random.below(4) == 0 { Spread::Wide } else { Spread::Near };
        Case {
            index: self.next,
            seed: random.next(),
            operation,
            redop: if operation.reduces() { redop } else { Redop::Sum },
            dtype,
            ranks,
            count: kind.draw(blocks, dtype.size(), random),
            kind,
            in_place: operation == Operation::Bcast || (random.below(2) == 0 && operation.in_place()),
            unaligned: random.below(2) == 0,
            root: if operation.rooted() { random.below(ranks) } else { 0 },
            how: random.pick(&self.limits.how),
            launch: random.pick(&[Launch::Eager, Launch::Graph]),
            // A scaled input may overflow to an infinity, and two of them may meet as a NaN, whose bits nobody promises.
            spread: if redop.multiplies_first() { Spread::Near } else { spread },
        }
    }
}

impl Iterator for Cover {
    type Item = Case;

    fn next(&mut self) -> Option<Case> {
        /// More candidates find rare pairs sooner and cost time.
        const CANDIDATES: usize = 60;
        let mut best: Option<(usize, Case)> = None;
        for _ in 0..CANDIDATES {
            let case = self.candidate();
            let fresh = pairs(&case).iter().filter(|pair| !self.seen.contains(*pair)).count();
            if best.as_ref().is_none_or(|(most, _)| fresh > *most) {
                best = Some((fresh, case));
            }
        }
        let (_, case) = best?;
        self.seen.extend(pairs(&case));
        self.next += 1;
        Some(case)
    }
}

/// Every combination of operation, operator, type, ranks, kind of count, placement, start and launch; the rest is drawn from the seed.
pub fn full(seed: u64, limits: &Limits) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut random = Random::new(seed);
    for operation in Operation::ALL {
        let redops: &[Redop] = if operation.reduces() { &Redop::ALL } else { &[Redop::Sum] };
        let places: &[bool] = match operation {
            Operation::Bcast => &[true],
            _ if operation.in_place() => &[false, true],
            _ => &[false],
        };
        for (redop, dtype) in redops.iter().flat_map(|redop| Type::ALL.map(|dtype| (*redop, dtype))) {
            for (ranks, kind) in limits.ranks.iter().flat_map(|ranks| limits.counts.iter().map(move |kind| (*ranks, *kind))) {
                for (in_place, how) in places.iter().flat_map(|place| limits.how.iter().map(move |how| (*place, *how))) {
                    for launch in [Launch::Eager, Launch::Graph] {
                        let blocks = operation.send_blocks(ranks).max(operation.recv_blocks(ranks));
                        let wide = !redop.multiplies_first() && random.below(4) == 0;
                        cases.push(Case {
                            index: cases.len() as u32,
                            seed: random.next(),
                            operation,
                            redop,
                            dtype,
                            ranks,
                            count: kind.draw(blocks, dtype.size(), &mut random),
                            kind,
                            in_place,
                            unaligned: random.below(2) == 0,
                            root: if operation.rooted() { random.below(ranks) } else { 0 },
                            how,
                            launch,
                            spread: if wide { Spread::Wide } else { Spread::Near },
                        });
                    }
                }
            }
        }
    }
    cases
}

/// Operations on more than 2^31 bytes, for a GPU with room: up to 20 GB a case for both ranks.
pub fn huge(seed: u64) -> Vec<Case> {
    let over = (1usize << 31) + 12_345;
    let chosen = [
        (Operation::AllReduce, Redop::Sum, Type::Uint8, over),
        (Operation::AllReduce, Redop::Sum, Type::Bfloat16, over / 2 + 7),
        (Operation::ReduceScatter, Redop::Max, Type::Int8, over / 2 + 7),
        (Operation::AllGather, Redop::Sum, Type::Float16, over / 2),
        (Operation::Broadcast, Redop::Sum, Type::Float32, over / 4 + 1),
        (Operation::AllToAll, Redop::Sum, Type::Uint8, over / 2 + 1),
        (Operation::Ring, Redop::Sum, Type::Uint8, over),
    ];
    let case = |(index, (operation, redop, dtype, count)): (usize, (Operation, Redop, Type, usize))| Case {
        index: index as u32,
        seed: mix(seed ^ index as u64),
        operation,
        redop,
        dtype,
        ranks: 2,
        count,
        kind: Count::Large,
        in_place: false,
        unaligned: index % 2 == 1,
        root: 0,
        how: How::Threads,
        launch: Launch::Eager,
        spread: Spread::Near,
    };
    chosen.into_iter().enumerate().map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_depends_on_seed_and_index_only() {
        let few: Vec<_> = Cover::new(5, Limits::default()).take(20).collect();
        let more: Vec<_> = Cover::new(5, Limits::default()).take(50).collect();
        assert_eq!(few, more[..20]);
        assert_ne!(few, Cover::new(6, Limits::default()).take(20).collect::<Vec<_>>());
    }

    #[test]
    fn the_default_number_of_cases_covers_every_single_setting_and_nearly_all_pairs() {
        let cases: Vec<_> = Cover::new(1, Limits::default()).take(crate::options::DEFAULT_CASES).collect();
        let seen: HashSet<_> = cases.iter().flat_map(settings).collect();
        for (dimension, values) in [(0, 11), (1, 12), (2, 6), (3, 7), (4, 2), (5, 2), (6, 2), (7, 2), (8, 7), (9, 2), (10, 4)] {
            assert_eq!(seen.iter().filter(|(d, _)| *d == dimension).count(), values, "dimension {dimension}");
        }
        let possible: HashSet<_> = Cover::new(2, Limits::default()).take(3000).flat_map(|case| pairs(&case)).collect();
        let covered: HashSet<_> = cases.iter().flat_map(pairs).collect();
        let missing = possible.difference(&covered).count();
        assert!(missing * 20 < possible.len(), "{missing} of {} pairs are missing", possible.len());
    }

    #[test]
    fn impossible_cases_are_not_made() {
        for case in Cover::new(3, Limits::default()).take(500).chain(full(3, &Limits::default()).into_iter().step_by(97)) {
            assert!(case.root < case.ranks);
            assert!(!case.in_place || case.operation.in_place());
            assert!(case.operation != Operation::Bcast || case.in_place);
            assert!(!(case.redop.multiplies_first() && case.spread == Spread::Wide));
            assert!(case.bytes() <= 5_100_000, "{case}");
        }
    }
}
