//! Memory: which address ranges exist, what they are, and how they are made and given back.

use crate::launch::{Address, Work};
use crate::result::{Code, Result};
use crate::state::{self, DEVICE_BYTES, State};
use crate::stream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Fresh device memory holds this, so that programs that read before they write are found out.
const POISON: u8 = 0xA5;
/// How much of an allocation is poisoned; touching all of a large one would cost memory that the program may never use.
const POISONED: usize = 1 << 20;

pub enum Kind {
    /// Device memory: a memory file, so that other processes can map it.
    Device { file: OwnedFd, serial: usize },
    /// Another process's device memory, by the handle that it was opened with, and how often.
    Opened { handle: [u8; 64], count: u32 },
    /// Pinned pages of ours.
    Host,
    /// The program's own pages.
    Registered,
}

pub struct Allocation {
    pub bytes: usize,
    pub device: usize,
    pub kind: Kind,
}

impl Allocation {
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host | Kind::Registered)
    }
}

fn round_up(bytes: usize) -> Result<usize> {
    bytes.checked_next_multiple_of(4096).ok_or(Code::OUT_OF_MEMORY)
}

/// Maps `bytes` of a file, or of fresh zeroed pages.
pub fn map(bytes: usize, file: Option<&OwnedFd>) -> Result<usize> {
    let flags = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    let fd = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: a new mapping where the kernel likes; it overlaps nothing.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), round_up(bytes)?, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if address == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(address as usize) }
}

fn unmap(base: usize, bytes: usize) {
    // SAFETY: the range is a mapping of ours that has left the registry, and all work of the device has been waited for.
    unsafe { libc::munmap(base as *mut _, bytes.next_multiple_of(4096)) };
}

/// The name of a memory file, as its link in /proc shows it.
pub fn file_name(serial: usize) -> String {
    format!("mkernel-gpu-{serial}")
}

/// `cuMemAlloc`.
pub fn allocate_device(device: usize, bytes: usize) -> Result<usize> {
    let (serial, used) = {
        let mut state = state::state();
        (state.new_handle(), state.devices[device].allocated)
    };
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if bytes > DEVICE_BYTES.saturating_sub(used) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let name = std::ffi::CString::new(file_name(serial)).map_err(|_| Code::INVALID_VALUE)?;
    // SAFETY: a NUL-terminated name.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Code::OUT_OF_MEMORY);
    }
    // SAFETY: just opened, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(round_up(bytes)?).map_err(|_| Code::OUT_OF_MEMORY)?;
    // SAFETY: a memory file of ours.
    if unsafe { libc::ftruncate(fd, length) } != 0 {
        return Err(Code::OUT_OF_MEMORY);
    }
    let base = map(bytes, Some(&file))?;
    // SAFETY: the mapping is at least that long.
    unsafe { std::ptr::write_bytes(base as *mut u8, POISON, bytes.min(POISONED)) };
    let mut state = state::state();
    state.devices[device].allocated += bytes;
    state.memory.insert(base, Allocation { bytes, device, kind: Kind::Device { file, serial } });
    Ok(base)
}

/// `cuMemHostAlloc`.
pub fn allocate_host(device: usize, bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let base = map(bytes, None)?;
    state::state().memory.insert(base, Allocation { bytes, device, kind: Kind::Host });
    Ok(base)
}

/// Gives back an allocation that begins at `base` and for which `ours` says yes, when its device has nothing left to do.
pub fn free(base: usize, ours: impl Fn(&Kind) -> bool, missing: Code) -> Result {
    let device = {
        let state = state::state();
        let allocation = state.memory.get(&base).filter(|a| ours(&a.kind)).ok_or(missing)?;
        allocation.device
    };
    stream::wait_for_device(Some(device));
    let gone = {
        let mut state = state::state();
        // Another thread may have freed it meanwhile.
        if !state.memory.get(&base).is_some_and(|a| ours(&a.kind)) {
            return Err(missing);
        }
        if let Some(Allocation { kind: Kind::Opened { count, .. }, .. }) = state.memory.get_mut(&base)
            && *count > 1
        {
            *count -= 1;
            return Ok(());
        }
        let gone = state.memory.remove(&base);
        if let Some(Allocation { kind: Kind::Device { .. }, bytes, device }) = &gone {
            state.devices[*device].allocated -= bytes;
        }
        gone
    };
    if let Some(allocation) = gone
        && !matches!(allocation.kind, Kind::Registered)
    {
        unmap(base, allocation.bytes);
    }
    Ok(())
}

/// `cuMemHostRegister`.
pub fn register(device: usize, base: usize, bytes: usize) -> Result {
    if base == 0 || bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = state::state();
    let end = base.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    if state.memory.range(..end).next_back().is_some_and(|(&b, a)| b + a.bytes > base) {
        return Err(Code::HOST_ALREADY_REGISTERED);
    }
    state.memory.insert(base, Allocation { bytes, device, kind: Kind::Registered });
    Ok(())
}

impl State {
    /// The allocation that an address lies in.
    pub fn find_memory(&self, address: usize) -> Option<(usize, &Allocation)> {
        let (&base, allocation) = self.memory.range(..=address).next_back()?;
        (address - base < allocation.bytes).then_some((base, allocation))
    }

    /// True when the whole range is memory that the driver knows.
    pub fn knows(&self, address: usize, bytes: usize) -> bool {
        self.find_memory(address).is_some_and(|(base, allocation)| bytes <= allocation.bytes - (address - base))
    }

    fn need(&self, address: usize, bytes: usize) -> Result {
        if self.knows(address, bytes) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// A set of `count` elements of `width` bytes.
    pub fn set(&mut self, stream: usize, to: usize, value: u32, width: usize, count: usize) -> Result {
        if count == 0 {
            return Ok(());
        }
        self.need(to, count.checked_mul(width).ok_or(Code::INVALID_VALUE)?)?;
        if !to.is_multiple_of(width) {
            return Err(Code::INVALID_VALUE);
        }
        self.submit(stream, Work::Set { to: Address(to), value, width, count }).map(|_| ())
    }
}

/// Which end of a copy the caller says is device memory; the other may be pageable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
    /// The addresses tell.
    Unified,
}

/// A copy in the order of a stream. As on a GPU, a pageable source is read before this returns, and a pageable target is written before it
/// returns.
pub fn copy(stream: usize, to: usize, from: usize, bytes: usize, direction: Direction) -> Result {
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let wait = {
        let mut state = state::state();
        let (to_known, from_known) = (state.knows(to, bytes), state.knows(from, bytes));
        let valid = match direction {
            Direction::ToDevice => to_known,
            Direction::ToHost => from_known,
            Direction::OnDevice => to_known && from_known,
            Direction::Unified => true,
        };
        if !valid {
            return Err(Code::INVALID_VALUE);
        }
        let key = state.stream_key(stream)?;
        let capturing = state.capture_of(key)?.is_some();
        let work = if from_known || capturing {
            Work::Copy { to: Address(to), from: Address(from), bytes }
        } else {
            // SAFETY: the caller promises a readable source of this length.
            let data = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            Work::Write { to: Address(to), data: data.into() }
        };
        let done = state.submit(stream, work)?;
        done.filter(|_| !to_known)
    };
    if let Some(done) = wait {
        done.wait();
    }
    Ok(())
}
