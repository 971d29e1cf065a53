//! Checks any NCCL library that it is pointed at, on whatever CUDA driver it finds: results to the bit, order, groups, graphs, lifecycle, bad input.
//!
//! The program needs no CUDA to build or start; driver and library are opened by the ranks, which are forked. It ends with the count of checks
//! that passed and failed, and its exit status is 1 if any failed, 2 if it could not run.

mod badinput;
mod board;
mod cases;
mod check;
mod communicator;
mod disagreement;
mod driver;
mod element;
mod exercise;
mod faults;
mod graph;
mod group;
mod hosts;
mod library;
mod lifecycle;
mod matrix;
mod options;
mod order;
mod outcome;
mod ranks;
mod reference;
mod report;
mod revoke;

use check::Check;
use clap::Parser;
use hosts::Hosts;
use options::Options;
use ranks::Place;
use report::Tally;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(tally)) => {
            println!("{}", tally.words());
            if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs what is asked for. `None`: nothing was to be run.
fn run(options: &Options) -> Result<Option<Tally>, String> {
    if let Some(folder) = &options.emulator {
        start_again(folder)?;
    }
    if options.nodes > 1 && options.how != Some(ranks::How::Processes) {
        return Err("--nodes needs --how processes: threads of one process are on one host".into());
    }
    let checks: Vec<Check> =
        [order::checks(), group::checks(), graph::checks(), lifecycle::checks(), revoke::checks(), badinput::checks(), faults::checks()]
            .into_iter()
            .flatten()
            .collect();
    let chosen: Vec<&Check> = checks.iter().filter(|check| options.wants(check.part, check.name)).collect();
    if !options.wants_part("matrix") && chosen.is_empty() {
        return Err(format!("no check is called {}; --list names them all", options.only.join(" or ")));
    }
    if options.list {
        println!("matrix");
        checks.iter().for_each(|check| println!("{}/{}", check.part, check.name));
        return Ok(None);
    }
    let place = Place {
        library: library(options)?,
        gpus: options.gpus.max(1),
        hosts: Hosts { count: options.nodes.max(1), uneven: options.uneven, netns: options.netns.clone() },
        patience: options.patience,
    };
    let found = ranks::probe(&place)?;
    println!(
        "{}: NCCL version {} on {} ({} GPU(s)), seed {}",
        place.library.display(),
        found.version,
        found.device,
        found.devices,
        options.seed
    );
    if place.gpus > found.devices {
        return Err(format!("--gpus {} but the driver has {}", place.gpus, found.devices));
    }
    let mut tally = Tally::default();
    if options.wants_part("matrix") {
        tally.add(&matrix::check(&place, options));
    }
    for check in chosen {
        tally.add(&check.run(&place, options));
    }
    Ok(Some(tally))
}

/// The library to check, as a path that does not depend on the working directory.
fn library(options: &Options) -> Result<PathBuf, String> {
    let path = match &options.library {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(|error| format!("cannot tell where this program lies: {error}"))?
            .with_file_name("libmkernel.so"),
    };
    path.canonicalize().map_err(|error| format!("cannot find the library {}: {error} (name it with --library)", path.display()))
}

/// Replaces this process by itself with the folder first in the loader's path, unless it is already.
fn start_again(folder: &Path) -> Result<(), String> {
    let folder = folder.canonicalize().map_err(|error| format!("cannot find the emulator's folder {}: {error}", folder.display()))?;
    let driver = folder.join("libcuda.so.1");
    if !driver.exists() {
        return Err(format!("there is no {}", driver.display()));
    }
    let old = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    if std::env::split_paths(&old).next().as_deref() == Some(&*folder) {
        return Ok(());
    }
    let paths = std::iter::once(folder).chain(std::env::split_paths(&old).filter(|path| !path.as_os_str().is_empty()));
    let path = std::env::join_paths(paths).map_err(|error| format!("cannot add to LD_LIBRARY_PATH: {error}"))?;
    let program = std::env::current_exe().map_err(|error| format!("cannot tell where this program lies: {error}"))?;
    let error = std::process::Command::new(program).args(std::env::args_os().skip(1)).env("LD_LIBRARY_PATH", path).exec();
    Err(format!("cannot start again: {error}"))
}
