//! Finds out whether there is a GPU, and if there is none starts this program again on the emulated one.

use super::{Error, Result, device};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// Set in the environment of a run on the emulated GPU that this program started itself.
const STARTED: &str = "MKERNEL_PERF_EMULATED";
/// Names the folder of the emulator, if it is not `emulator/` beside this program.
const FOLDER: &str = "MKERNEL_EMULATOR";

/// The GPUs that a run will use.
#[derive(Debug, Clone)]
pub struct Devices {
    pub count: usize,
    pub name: String,
    pub emulated: bool,
}

impl Devices {
    /// The first line of a run.
    pub fn headline(&self) -> String {
        if self.emulated {
            "on the emulated GPU (no CUDA device here; times mean nothing)".into()
        } else {
            format!("on GPU {} ({} of them)", self.name, self.count)
        }
    }
}

/// The GPUs to run on. Does not return if the program has to start again on the emulated one.
///
/// This process stays free of CUDA, so that it can fork ranks. Call it while there is only one thread.
pub fn find(force: bool) -> Result<Devices> {
    let started = std::env::var_os(STARTED).is_some();
    if started || !force {
        match probe()? {
            Some((count, name)) => {
                let emulated = started || name.to_lowercase().contains("emulat");
                return Ok(Devices { count, name, emulated });
            }
            None if started => {
                return Err(Error::failed("the emulated GPU does not answer: the emulator's libcuda.so.1 loads, but reports no device"));
            }
            None => {}
        }
    }
    start_again()
}

/// Asks a child process for the GPUs.
fn probe() -> Result<Option<(usize, String)>> {
    let (mut ours, mut theirs) = UnixStream::pair().map_err(|e| Error::failed(format!("cannot make a socket pair: {e}")))?;
    // SAFETY: this process has one thread, so the child may do anything that the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(Error::failed(format!("cannot fork: {}", std::io::Error::last_os_error()))),
        0 => {
            drop(ours);
            // A driver that lacks a function makes cudarc panic; that counts as no driver.
            let found = std::panic::catch_unwind(device::present).ok().flatten();
            if let Some((count, name)) = found {
                let _ = write!(theirs, "{count} {name}");
            }
            // SAFETY: ends the child without running exit handlers that belong to the parent.
            unsafe { libc::_exit(0) }
        }
        child => {
            drop(theirs);
            let mut text = String::new();
            let read = ours.read_to_string(&mut text);
            let mut status = 0;
            // SAFETY: the child is ours and not yet reaped.
            unsafe { libc::waitpid(child, &mut status, 0) };
            read.map_err(|e| Error::failed(format!("cannot read the list of GPUs: {e}")))?;
            Ok(text.split_once(' ').and_then(|(count, name)| Some((count.parse().ok()?, name.to_owned()))))
        }
    }
}

/// Replaces this process by the same command line with the emulator's libcuda first in the loader's path.
fn start_again() -> Result<Devices> {
    let program = std::env::current_exe().map_err(|e| Error::failed(format!("cannot tell where this program lies: {e}")))?;
    let folder = match std::env::var_os(FOLDER) {
        Some(folder) => PathBuf::from(folder),
        None => program.with_file_name("emulator"),
    };
    complete(&folder)?;
    let mut path = folder.into_os_string();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    let mut command = std::process::Command::new(&program);
    command.args(std::env::args_os().skip(1)).env("LD_LIBRARY_PATH", path).env(STARTED, "1");
    let error = command.exec();
    Err(Error::failed(format!("cannot start {} again: {error}", program.display())))
}

/// Sees to it that the folder answers to both names of the driver library: programs ask for either first.
fn complete(folder: &Path) -> Result<()> {
    if !folder.join("libcuda.so.1").exists() {
        return Err(Error::failed(format!(
            "there is no CUDA device here, and no emulated GPU at {}: build it with make, or name its folder in {FOLDER}",
            folder.join("libcuda.so.1").display()
        )));
    }
    let plain = folder.join("libcuda.so");
    if !plain.exists()
        && let Err(error) = std::os::unix::fs::symlink("libcuda.so.1", &plain)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(Error::failed(format!("{} must also exist, as a link to libcuda.so.1, and cannot be made: {error}", plain.display())));
    }
    Ok(())
}
