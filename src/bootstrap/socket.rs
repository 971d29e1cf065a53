//! Socket options that both ends of the bootstrap use.

use crate::error::{Error, Result};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

/// Connections that the kernel completes for us before we accept them. std asks for 128, and a thousand ranks that start at once then lose
/// their first packet and try again seconds later.
const BACKLOG: i32 = 4096;

/// Keepalive: a host that has lost power or its network says nothing. Found out after about a minute.
const IDLE_SECONDS: i32 = 30;
const PROBE_SECONDS: i32 = 10;
const PROBES: i32 = 3;

pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // SAFETY: an open socket that listens already; a second call only changes the length of its queue.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener)
}

pub fn address_of(listener: &TcpListener) -> Result<SocketAddr> {
    listener.local_addr().map_err(|e| Error::system(format!("a listening socket has no address: {e}")))
}

/// Small frames leave at once, and a dead peer is noticed.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let fd = stream.as_raw_fd();
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, IDLE_SECONDS)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, PROBE_SECONDS)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES)
}

fn set(fd: RawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: an open socket, and an option whose value is an int.
    let status = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of::<i32>() as libc::socklen_t) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
