//! `mkernel`: the command-line tool beside libmkernel.so. Each subcommand has a folder of its own.

mod perf;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "mkernel", version, about = "Tools for GPU collectives: measure and check an NCCL library")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Perf(Box<perf::options::Options>),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Perf(options) => perf::main(*options),
    }
}
