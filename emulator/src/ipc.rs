//! Memory handles between processes: where in /proc the memory file of an allocation can be opened.

use crate::memory::{self, Allocation, Kind, file_name};
use crate::result::{Code, Result};
use crate::state;
use std::os::fd::{AsRawFd, OwnedFd};

const MAGIC: u64 = u64::from_le_bytes(*b"mkemuipc");

/// `CUipcMemHandle`: magic, process, file descriptor, length and serial number; the rest is 0.
pub type Handle = [u8; 64];

pub fn export(address: usize) -> Result<Handle> {
    let state = state::state();
    let Some((_, Allocation { kind: Kind::Device { file, serial }, bytes, .. })) = state.find_memory(address) else {
        return Err(Code::INVALID_VALUE);
    };
    let mut handle = [0; 64];
    let words = [MAGIC, u64::from(std::process::id()), file.as_raw_fd() as u64, *bytes as u64, *serial as u64];
    for (to, word) in handle.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Ok(handle)
}

/// Maps the allocation; the same handle again gives the same address. As with a real driver, a process cannot open its own.
pub fn open(device: usize, handle: &Handle) -> Result<usize> {
    let mut words = handle.chunks_exact(8).map(|bytes| bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte)));
    let mut next = || words.next().unwrap_or(0);
    let (magic, pid, fd, bytes, serial) = (next(), next(), next(), next() as usize, next() as usize);
    if magic != MAGIC || bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if pid == u64::from(std::process::id()) {
        return Err(Code::INVALID_CONTEXT);
    }
    let mut state = state::state();
    let opened = state.memory.iter_mut().find_map(|(base, allocation)| match &mut allocation.kind {
        Kind::Opened { handle: earlier, count } if earlier == handle => Some((base, count)),
        _ => None,
    });
    if let Some((base, count)) = opened {
        *count += 1;
        return Ok(*base);
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    // The number may by now belong to another file: the allocation has been freed.
    let link = std::fs::read_link(&path).map_err(|_| Code::INVALID_VALUE)?;
    if link.to_str().and_then(|link| link.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")) != Some(file_name(serial).as_str()) {
        return Err(Code::INVALID_VALUE);
    }
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).map_err(|_| Code::INVALID_VALUE)?;
    let length = file.metadata().map_err(|_| Code::INVALID_VALUE)?.len();
    if length < bytes as u64 {
        return Err(Code::INVALID_VALUE);
    }
    let base = memory::map(bytes, Some(&OwnedFd::from(file)))?;
    state.memory.insert(base, Allocation { bytes, device, kind: Kind::Opened { handle: *handle, count: 1 } });
    Ok(base)
}
