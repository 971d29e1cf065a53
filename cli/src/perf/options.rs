//! The command line of `mkernel perf`. Names and letters are those of nccl-tests where it has the option.

use super::element::ElementType;
use super::inputs::Values;
use super::operation::{Operation, RedOp};
use super::sizes::{Sizes, Step, parse_bytes};
use super::{Error, Result};
use std::path::PathBuf;
use std::str::FromStr;

/// Time collectives and check every result, with nccl-tests' options and columns.
///
/// Ranks are threads of this process, or forked processes with --procs. Where there are fewer GPUs than ranks, ranks share them, round robin. Without a
/// GPU everything runs on the emulated one, and times mean nothing.
///
/// Every check round puts fresh random values in, poisons the output, runs the operation (up to 64 KiB: eight different ones back to back), and compares
/// each element, a guard zone behind the output and the unchanged input with the host's own result: folded in rank order in a float32 accumulator (float64
/// for double, wrapping for integers) and rounded once. With an NCCL that adds in another order use --values exact.
///
/// The exit status is 0 if all ranks finished and nothing was wrong, 1 if not, 2 for a bad command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv; several with commas; all
    #[arg(value_name = "OPERATION", default_value = "all_reduce")]
    pub operations: Selection<Operation>,

    /// Number of ranks [default: the number of GPUs, at least 2]
    #[arg(short = 'g', long = "ngpus", value_name = "RANKS")]
    pub ranks: Option<usize>,

    /// Multiplies the number of ranks, as nccl-tests' threads do
    #[arg(short = 't', long = "nthreads", value_name = "N", default_value_t = 1)]
    pub multiply: usize,

    /// Run each rank in a forked process, not in a thread
    #[arg(long)]
    pub procs: bool,

    /// Let the ranks play this many hosts, by NCCL_HOSTID, so that what crosses them takes the network; the first ranks are on the first host
    #[arg(long, value_name = "N", default_value_t = 1, requires = "procs", value_parser = clap::value_parser!(u32).range(1..))]
    pub hosts: u32,

    /// Smallest message, in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long = "minbytes", value_name = "BYTES", value_parser = parse_bytes, default_value = "8")]
    pub min_bytes: u64,

    /// Largest message [default: 32M, or -b if that is larger]
    #[arg(short = 'e', long = "maxbytes", value_name = "BYTES", value_parser = parse_bytes)]
    pub max_bytes: Option<u64>,

    /// Multiply the size by this from one row to the next [default: 4]
    #[arg(short = 'f', long = "stepfactor", value_name = "N", conflicts_with = "step_bytes")]
    pub step_factor: Option<u64>,

    /// Add this many bytes from one row to the next
    #[arg(short = 'i', long = "stepbytes", value_name = "BYTES", value_parser = parse_bytes)]
    pub step_bytes: Option<u64>,

    /// Timed iterations
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20)]
    pub iterations: u32,

    /// Untimed iterations before them
    #[arg(short = 'w', long = "warmup_iters", value_name = "N", default_value_t = 1)]
    pub warmup: u32,

    /// Operations per iteration, in one group call
    #[arg(short = 'm', long = "agg_iters", value_name = "N", default_value_t = 1)]
    pub aggregate: u32,

    /// Repeat the timed iterations this often and report the median
    #[arg(short = 'N', long = "run_cycles", value_name = "N", default_value_t = 1)]
    pub cycles: u32,

    /// Check rounds per row; 0 checks nothing. Outputs above 16 MiB are sampled: the first and the last MiB and 16 random stripes of 64 KiB
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1)]
    pub check: u32,

    /// Check every element, however large the message
    #[arg(long)]
    pub check_all: bool,

    /// Which values the ranks put in
    #[arg(long, value_enum, default_value_t = Values::Random)]
    pub values: Values,

    /// Seed of the random values
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// sum, prod, max, min, avg, mulsum; several with commas; all
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    pub redops: Selection<RedOp>,

    /// int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2; several with commas; all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float")]
    pub dtypes: Selection<ElementType>,

    /// Root of broadcast, reduce, gather and scatter: a rank, or all
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0")]
    pub root: Root,

    /// Capture the iterations into a CUDA graph and launch it this often (checks use graphs too); 0: no graph
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value_t = 0)]
    pub graph_launches: u32,

    /// 1: take the buffers from ncclMemAlloc and register them with the communicator
    #[arg(short = 'R', long = "local_register", value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub register: u8,

    /// End the run when no rank has made progress for this many seconds; 0: never
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,

    /// The NCCL to measure [default: $MKERNEL_LIBRARY, else libmkernel.so beside this program, else libnccl.so.2]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// Use the emulated GPU even if there is a real one
    #[arg(long)]
    pub emulated: bool,

    /// Also write the results to this file
    #[arg(short = 'J', long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Options {
    /// The message sizes, or what is wrong with them.
    pub fn sizes(&self) -> Result<Sizes> {
        let last = self.max_bytes.unwrap_or((32 << 20).max(self.min_bytes));
        if last < self.min_bytes {
            return Err(Error::failed(format!("-e {last} is below -b {}: the largest size must not be the smaller one", self.min_bytes)));
        }
        let step = match (self.step_factor, self.step_bytes) {
            (Some(factor), _) => Step::Times(factor),
            (None, Some(bytes)) => Step::Plus(bytes),
            (None, None) => Step::Times(4),
        };
        Ok(Sizes { first: self.min_bytes, last, step })
    }

    /// The number of ranks on a machine with so many GPUs.
    pub fn rank_count(&self, devices: usize) -> Result<usize> {
        let ranks = self.ranks.unwrap_or(devices.max(2)).saturating_mul(self.multiply);
        if ranks == 0 || ranks > 1024 {
            return Err(Error::failed(format!("{ranks} ranks: -g times -t must be between 1 and 1024")));
        }
        if let Root::Rank(root) = self.root
            && root >= ranks
        {
            return Err(Error::failed(format!("-r {root}: there is no such rank among {ranks} (they count from 0)")));
        }
        Ok(ranks)
    }
}

/// The root of rooted operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Rank(usize),
    All,
}

impl FromStr for Root {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.parse().map(Self::Rank).map_err(|_| "neither a rank nor 'all'".into())
    }
}

/// Things that are chosen by name.
pub trait Named: Copy + 'static {
    const CHOICES: &'static [Self];
    fn name(self) -> &'static str;
}

macro_rules! named {
    ($($type:ty),*) => {$(
        impl Named for $type {
            const CHOICES: &'static [Self] = &<$type>::ALL;
            fn name(self) -> &'static str {
                self.name()
            }
        }
    )*};
}
named!(Operation, RedOp, ElementType);

/// One or more of the choices, written with commas, or all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection<T>(pub Vec<T>);

impl<T: Named> FromStr for Selection<T> {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "all" {
            return Ok(Self(T::CHOICES.to_vec()));
        }
        let one = |name: &str| {
            T::CHOICES.iter().copied().find(|choice| choice.name() == name).ok_or_else(|| {
                let names: Vec<_> = T::CHOICES.iter().map(|choice| choice.name()).collect();
                format!("'{name}' is none of {}, all", names.join(", "))
            })
        };
        text.split(',').map(one).collect::<std::result::Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> std::result::Result<Options, String> {
        Line::try_parse_from(line.split_whitespace()).map(|line| line.options).map_err(|e| e.to_string())
    }

    #[test]
    fn a_command_line_of_nccl_tests() {
        let options = parse("perf all_gather -b 8 -e 256M -f 2 -n 50 -w 5 -c 2 -o all -d bfloat16,half -g 4 -r 3 -G 10 -m 2 -R 1").unwrap();
        assert_eq!(options.operations, Selection(vec![Operation::AllGather]));
        assert_eq!(options.sizes().unwrap(), Sizes { first: 8, last: 256 << 20, step: Step::Times(2) });
        assert_eq!((options.iterations, options.warmup, options.check, options.graph_launches), (50, 5, 2, 10));
        assert_eq!((options.aggregate, options.register), (2, 1));
        assert_eq!(options.redops.0.len(), 6);
        assert_eq!(options.dtypes, Selection(vec![ElementType::Bfloat16, ElementType::Float16]));
        assert_eq!(options.root, Root::Rank(3));
        assert_eq!(options.rank_count(1).unwrap(), 4);
    }

    #[test]
    fn defaults() {
        let options = parse("perf").unwrap();
        assert_eq!(options.operations, Selection(vec![Operation::AllReduce]));
        assert_eq!(options.sizes().unwrap(), Sizes { first: 8, last: 32 << 20, step: Step::Times(4) });
        assert_eq!((options.rank_count(1).unwrap(), options.rank_count(8).unwrap()), (2, 8));
        assert_eq!(parse("perf -b 64M").unwrap().sizes().unwrap().last, 64 << 20);
        assert_eq!(parse("perf -g 2 -t 3").unwrap().rank_count(1).unwrap(), 6);
    }

    #[test]
    fn mistakes_are_told() {
        for (line, message) in [
            ("perf all_redcue", "'all_redcue' is none of all_reduce, all_gather"),
            ("perf -d float,quad", "'quad' is none of int8"),
            ("perf -b 1Q", "not a byte count"),
            ("perf -f 2 -i 8", "cannot be used with"),
            ("perf -r x", "neither a rank nor 'all'"),
            ("perf -R 2", "2 is not in 0..=1"),
        ] {
            let text = parse(line).unwrap_err();
            assert!(text.contains(message), "{line}: {text}");
        }
        assert!(parse("perf -b 16 -e 8").unwrap().sizes().is_err());
        assert!(parse("perf -g 0").unwrap().rank_count(1).is_err());
        assert!(parse("perf -g 2 -r 2").unwrap().rank_count(1).is_err());
    }
}
