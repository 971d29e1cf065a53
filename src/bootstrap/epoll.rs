//! Which of many sockets can be read or written: Linux' epoll, level-triggered. The root's loop uses it; its cost follows the sockets on which
//! something happens, not those that are open.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

pub struct Epoll(OwnedFd);

/// What to wake up for. Errors and hang-ups wake always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Nothing,
    Read,
    ReadWrite,
}

#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub token: u64,
    /// Also set when the connection broke, so that a read finds out.
    pub readable: bool,
    pub writable: bool,
}

const AT_ONCE: usize = 256;

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that the kernel has just made for us; nobody else closes it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn add(&self, socket: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, interest)
    }

    pub fn change(&self, socket: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, interest)
    }

    /// To be called before a socket is closed: a forked child may hold a copy, and the kernel would go on reporting that one.
    pub fn remove(&self, socket: &impl AsRawFd) {
        // Fails only where the socket was never added, which leaves nothing to do.
        let _ = self.control(libc::EPOLL_CTL_DEL, socket, 0, Interest::Nothing);
    }

    fn control(&self, what: i32, socket: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        let events = match interest {
            Interest::Nothing => 0,
            Interest::Read => libc::EPOLLIN,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: one valid event, which the kernel copies; both descriptors are open while their owners are borrowed.
        let status = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, socket.as_raw_fd(), &mut event) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until something happens or the time is over. Nothing for longer than `i32::MAX` milliseconds.
    pub fn wait(&self, within: Duration) -> Vec<Event> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        // Rounded up: a wait of a fraction of a millisecond must not become a busy loop.
        let milliseconds = within.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        // SAFETY: the array has room for as many events as we say.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), AT_ONCE as i32, milliseconds) };
        // A signal ends the wait early; the loop comes back.
        let happened = &events[..n.max(0) as usize];
        let has = |events: u32, any: i32| events & any as u32 != 0;
        happened
            .iter()
            .map(|e| Event {
                token: e.u64,
                readable: has(e.events, libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP),
                writable: has(e.events, libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP),
            })
            .collect()
    }
}
