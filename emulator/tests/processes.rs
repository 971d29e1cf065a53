//! Processes: memory handles between forked ones, and what a fork does to an initialised driver. One test, because forks come first.

mod common;

use common::*;
use cuda::exports::{cuInit, device, memory};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Runs `child` in a forked process; gives its end of a socket pair and its pid.
fn fork(child: impl FnOnce(UnixStream)) -> (UnixStream, libc::pid_t) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // SAFETY: the child runs only `child` and leaves by _exit; the test harness's other thread only waits.
    match unsafe { libc::fork() } {
        0 => {
            drop(ours);
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child(theirs))).is_ok();
            // SAFETY: ends the child without the harness's exit handlers.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        pid => (ours, pid),
    }
}

fn join(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our child, not yet reaped.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn open(handle: [u8; 64]) -> Result<usize, i32> {
    let mut address = 0;
    // SAFETY: the output is valid.
    match unsafe { memory::cuIpcOpenMemHandle_v2(&mut address, memory::IpcMemHandle(handle), 1) } {
        0 => Ok(address),
        code => Err(code),
    }
}

#[test]
fn forked_processes_share_memory() {
    let mut count = 0;
    // SAFETY: the output is valid.
    assert_eq!(unsafe { device::cuDeviceGetCount(&mut count) }, 3);

    let (mut channel, child) = fork(|mut channel| {
        on_device(1);
        let (mut handle, s) = ([0; 64], new_stream(NON_BLOCKING));
        channel.read_exact(&mut handle).unwrap();
        let address = open(handle).unwrap();
        assert_eq!(open(handle), Ok(address));
        assert_eq!(read(address, 4, s), [5, 5, 5, 5]);
        add_one(selftest(), address, 3, 2, s);
        sync(s);
        let close = || {
            // SAFETY: nothing uses the mapping.
            unsafe { memory::cuIpcCloseMemHandle(address) }
        };
        ok(close());
        assert_eq!(read(address, 1, s), [6]);
        ok(close());
        assert_eq!(close(), 1);
        channel.write_all(b"d").unwrap();
        // The memory is freed meanwhile.
        channel.read_exact(&mut [0]).unwrap();
        assert_eq!(open(handle), Err(1));
        handle[0] ^= 1;
        assert_eq!(open(handle), Err(1));
    });

    on_device(0);
    let (words, other, mut handle, mut second) = (allocate(16), allocate(16), [0; 64], [0; 64]);
    fill(words, 5, 4, 0);
    sync(0);
    // SAFETY: the outputs are valid.
    unsafe {
        ok(memory::cuIpcGetMemHandle(&mut handle, words));
        ok(memory::cuIpcGetMemHandle(&mut second, other));
    }
    assert_ne!(handle, second);
    assert_eq!(open(handle), Err(201));
    channel.write_all(&handle).unwrap();
    channel.read_exact(&mut [0]).unwrap();
    assert_eq!(read(words, 4, 0), [6, 6, 6, 5]);
    ok(free(words));
    // Likely takes over the file descriptor's number.
    allocate(16);
    channel.write_all(b"f").unwrap();
    assert_eq!(join(child), 0);

    let (_channel, child) = fork(|_channel| {
        let mut count = 0;
        // SAFETY: the output is valid.
        unsafe {
            assert_eq!(cuInit(0), 3);
            assert_eq!(device::cuDeviceGetCount(&mut count), 3);
        }
    });
    assert_eq!(join(child), 0);
}
