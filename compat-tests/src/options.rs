//! The command line.

use crate::cases::{Count, Limits};
use crate::ranks::How;
use clap::Parser;
use std::path::PathBuf;

/// Cases of the matrix unless `--cases` says otherwise.
pub const DEFAULT_CASES: usize = 400;

/// Checks an NCCL library, on a GPU or on the emulated one, and says what is wrong with it.
#[derive(Debug, Clone, Parser)]
#[command(name = "conformance")]
pub struct Options {
    /// The library to check [default: libmkernel.so beside this program]
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// Use the CUDA driver in this folder (starts again with LD_LIBRARY_PATH)
    #[arg(long, value_name = "DIR")]
    pub emulator: Option<PathBuf>,
    /// Only these parts (matrix, order, group, graph, lifecycle, badinput, faults) or checks (part/words of the name); may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Seed of the matrix: with the same seed, case k is always the same
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Cases of the matrix, chosen to cover all pairs of settings early
    #[arg(long, default_value_t = DEFAULT_CASES)]
    pub cases: usize,
    /// Only this case of the matrix
    #[arg(long, value_name = "INDEX")]
    pub case: Option<u32>,
    /// The full product of the matrix's settings instead of a choice (hours)
    #[arg(long)]
    pub full: bool,
    /// Also operations on more than 2^31 bytes (needs 20 GB of GPU memory)
    #[arg(long)]
    pub huge: bool,
    /// Ranks of the matrix
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5, 8])]
    pub ranks: Vec<usize>,
    /// Ranks as threads only, or as processes only
    #[arg(long, value_enum)]
    pub how: Option<How>,
    /// Sizes of the matrix
    #[arg(long, value_enum, value_delimiter = ',')]
    pub counts: Vec<Count>,
    /// GPUs to spread ranks over: rank r uses GPU r modulo this
    #[arg(long, default_value_t = 1)]
    pub gpus: usize,
    /// Let the ranks pretend to be on this many hosts (processes only)
    #[arg(long, default_value_t = 1)]
    pub nodes: usize,
    /// Put all ranks but the last on the first of two hosts
    #[arg(long)]
    pub uneven: bool,
    /// Hosts are network namespaces with this name and a number (see compat-tests/nodes/run.sh)
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    /// Multiplies every time limit
    #[arg(long, default_value_t = 1.0)]
    pub patience: f64,
    /// List the checks and end
    #[arg(long)]
    pub list: bool,
    /// Print what the ranks wrote even when they passed
    #[arg(long)]
    pub verbose: bool,
}

impl Options {
    pub fn limits(&self) -> Limits {
        let how = self.how.map_or_else(|| How::ALL.to_vec(), |how| vec![how]);
        let counts = if self.counts.is_empty() { Count::ALL.to_vec() } else { self.counts.clone() };
        Limits { ranks: self.ranks.clone(), how, counts }
    }

    /// Whether a part, or a check of it, is asked for.
    pub fn wants(&self, part: &str, name: &str) -> bool {
        self.only.is_empty()
            || self.only.iter().any(|only| match only.split_once('/') {
                None => only == part,
                Some((wanted, words)) => wanted == part && name.contains(words),
            })
    }

    pub fn wants_part(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only.split('/').next() == Some(part))
    }

    /// The words of the command line that choose the matrix's cases, for a message that tells how to run one again.
    pub fn matrix_words(&self) -> String {
        let mut words = format!("--seed {}", self.seed);
        if self.ranks != [1, 2, 3, 4, 5, 8] {
            words += &format!(" --ranks {}", self.ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
        }
        if let Some(how) = self.how {
            words += &format!(" --how {}", how.name());
        }
        if !self.counts.is_empty() {
            words += &format!(" --counts {}", self.counts.iter().map(|count| count.name()).collect::<Vec<_>>().join(","));
        }
        if self.full {
            words += " --full";
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn only_names_parts_or_checks() {
        let options = Options::parse_from(["conformance", "--only", "order,group/nested"]);
        assert!(options.wants("order", "anything") && options.wants("group", "nested groups"));
        assert!(!options.wants("group", "empty group") && !options.wants("graph", "nested"));
        assert!(options.wants_part("group") && !options.wants_part("matrix"));
    }

    #[test]
    fn the_words_choose_the_same_cases() {
        let options =
            Options::parse_from(["conformance", "--seed", "7", "--ranks", "2,3", "--how", "threads", "--counts", "zero,small-odd"]);
        let words = options.matrix_words();
        let again = Options::parse_from(std::iter::once("conformance").chain(words.split(' ')));
        assert_eq!((again.seed, again.ranks, again.how, again.counts), (options.seed, options.ranks, options.how, options.counts));
    }
}
