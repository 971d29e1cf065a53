//! `mkernel perf`: runs the operations of any NCCL library on several ranks, times them and compares every result, bit for bit, with one computed here.
//!
//! Life of a run: `options` reads the command line, `device` looks for a GPU (`emulated` switches to the emulated one), `ranks` starts one thread or
//! process a rank and watches over them, each rank (`worker`) checks (`check`) and times every row, and rank 0 prints it with `report`.

mod board;
mod check;
mod device;
mod element;
mod emulated;
mod expected;
mod float8;
mod inputs;
mod nccl;
mod operation;
pub mod options;
mod ranks;
mod report;
mod run;
mod sizes;
mod worker;

use options::Options;
use std::process::ExitCode;

/// Why a rank, or the whole run, stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something failed here; the text says what and, where known, what to do.
    #[error("{0}")]
    Failed(String),
    /// Another rank failed first; there is nothing of our own to report.
    #[error("stopped because rank {0} failed")]
    Stopped(usize),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }
}

/// Runs the subcommand. The exit status is 0 only if every rank finished and every checked element was right.
pub fn main(options: Options) -> ExitCode {
    match run::start(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mkernel perf: {error}");
            ExitCode::FAILURE
        }
    }
}
