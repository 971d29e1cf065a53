//! A rank's side of the bootstrap.

use super::frame::Frame;
use super::handshake::{self, HELLO, WELCOME};
use super::id::UniqueId;
use super::interface::SocketSettings;
use super::root;
use crate::error::{Code, Error, Result};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting rank looks at its abort flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

pub struct Join<'a> {
    pub id: &'a UniqueId,
    pub rank: usize,
    pub nranks: usize,
    /// Ends the wait when it becomes true.
    pub abort: &'a AtomicBool,
    /// Say who is missing after this; zero: never.
    pub warn_after: Duration,
    /// Give up after this; zero: never.
    pub timeout: Duration,
    pub settings: SocketSettings,
}

/// A rank's connection to the root.
pub struct Bootstrap {
    rank: usize,
    nranks: usize,
    connection: Mutex<Connection>,
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    pieces: VecDeque<Vec<Vec<u8>>>,
    notices: VecDeque<(usize, Vec<u8>)>,
    revoked_by: Option<usize>,
    failed: Option<String>,
    all_goodbye: Option<bool>,
    closed: bool,
}

/// A number that processes of this host (more exactly: of this boot) share, unless `NCCL_HOSTID`, passed in, makes them differ. Where the boot's
/// number cannot be read, in odd containers, every process is taken for the same host; whether memory can be mapped confirms or refutes it.
pub fn host_token(host_id: Option<&str>) -> u64 {
    let own = host_id.map_or_else(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(), str::to_owned);
    let mut first = [0u8; 8];
    first.copy_from_slice(&blake3::hash(own.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// Meets the other ranks; returns when all have come.
pub fn join(j: Join) -> Result<Bootstrap> {
    let started = Instant::now();
    let contents = j.id.contents();
    if contents.well_known && j.rank == 0 {
        root::serve_well_known(&contents)?;
    }
    let mut addresses = Vec::new();
    if contents.host == host_token(None) && contents.loopback_port != 0 {
        addresses.push(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), contents.loopback_port));
    }
    // A container with a network of its own shares the host's boot, but not its loopback.
    addresses.extend(contents.routable);
    let stream = connect(&addresses, &contents.key, &j)?;
    let connection = Connection {
        stream,
        input: Vec::new(),
        pieces: VecDeque::new(),
        notices: VecDeque::new(),
        revoked_by: None,
        failed: None,
        all_goodbye: None,
        closed: false,
    };
    let bootstrap = Bootstrap { rank: j.rank, nranks: j.nranks, connection: Mutex::new(connection) };
    // Everybody is here when an all-gather ends.
    let limits = Limits { started, warn_after: j.warn_after, timeout: j.timeout };
    bootstrap.gather(&[], j.abort, Some(limits))?;
    Ok(bootstrap)
}

/// Connects and proves the key both ways.
fn connect(addresses: &[SocketAddr], key: &[u8; 32], j: &Join) -> Result<TcpStream> {
    let mut last = String::from("the id names no address that can be reached from this host");
    for attempt in 0..=j.settings.retry_count {
        for address in addresses {
            match TcpStream::connect_timeout(address, CONNECT_WITHIN).and_then(|s| prove(s, key, j.rank as u32, j.nranks as u32)) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = format!("{address}: {e}"),
            }
        }
        if j.abort.load(Ordering::Acquire) {
            return Err(Error::usage("the communicator was aborted while its ranks were meeting"));
        }
        if attempt < j.settings.retry_count && !addresses.is_empty() {
            std::thread::sleep(j.settings.retry_sleep);
        }
    }
    Err(Error::remote(format!(
        "rank {} cannot reach the process that made the unique id ({last}). Is that process alive, and is the address reachable from here? \
         NCCL_SOCKET_IFNAME chooses its interface.",
        j.rank
    )))
}

/// Connects to a [`Door`](super::Door) and proves the key both ways, with a few attempts. `number`: for the door's owner. The stream does not block.
pub fn prove_to(address: &SocketAddr, key: &[u8; 32], rank: u32, number: u32, abort: &AtomicBool) -> std::io::Result<TcpStream> {
    const ATTEMPTS: u32 = 5;
    let mut last = std::io::Error::from(ErrorKind::TimedOut);
    for attempt in 0..ATTEMPTS {
        match TcpStream::connect_timeout(address, CONNECT_WITHIN).and_then(|s| prove(s, key, rank, number)) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
        if abort.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(LOOK_EVERY * (1 << attempt));
    }
    Err(last)
}

fn prove(mut stream: TcpStream, key: &[u8; 32], rank: u32, nranks: u32) -> std::io::Result<TcpStream> {
    stream.set_read_timeout(Some(CONNECT_WITHIN))?;
    stream.set_nodelay(true)?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello)?;
    let invalid = |text| std::io::Error::new(ErrorKind::InvalidData, text);
    let root_nonce = handshake::read_hello(&hello).ok_or_else(|| invalid("whoever listens there is no bootstrap root"))?;
    let nonce = handshake::nonce()?;
    stream.write_all(&handshake::claim(key, &root_nonce, &nonce, rank, nranks))?;
    let mut welcome = [0; WELCOME];
    stream.read_exact(&mut welcome)?;
    if !handshake::is_welcome(key, &root_nonce, &nonce, &welcome) {
        return Err(invalid("the root there serves another communicator"));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[derive(Clone, Copy)]
struct Limits {
    started: Instant,
    warn_after: Duration,
    timeout: Duration,
}

impl Bootstrap {
    pub fn rank(&self) -> usize {
        self.rank
    }
    pub fn nranks(&self) -> usize {
        self.nranks
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every rank's piece, by rank. All ranks must call it; pieces may differ in size.
    pub fn all_gather(&self, mine: &[u8], abort: &AtomicBool) -> Result<Vec<Vec<u8>>> {
        self.gather(mine, abort, None)
    }

    fn gather(&self, mine: &[u8], abort: &AtomicBool, limits: Option<Limits>) -> Result<Vec<Vec<u8>>> {
        if mine.len() * self.nranks + 4 * self.nranks > super::frame::MAX_PAYLOAD {
            return Err(Error::internal(format!("a bootstrap all-gather of {} bytes per rank is too large", mine.len())));
        }
        self.connection().send(&Frame::Piece(mine.to_vec()), Some(abort))?;
        let mut warned = false;
        loop {
            {
                let mut c = self.connection();
                c.pump();
                if let Some(pieces) = c.pieces.pop_front() {
                    return Ok(pieces);
                }
                if let Some(text) = &c.failed {
                    return Err(Error::remote(text.clone()));
                }
                if c.closed {
                    return Err(Error::remote(format!(
                        "rank {} lost the connection to the process that made the unique id: it has ended or crashed",
                        self.rank
                    )));
                }
                if abort.load(Ordering::Acquire) {
                    return Err(Error::usage("the communicator was aborted while its ranks were talking"));
                }
            }
            if let Some(l) = limits {
                let waited = l.started.elapsed();
                if !warned && !l.warn_after.is_zero() && waited >= l.warn_after {
                    warned = true;
                    tracing::warn!(target: "WATCHDOG", "rank {} of {} has waited {} s for all ranks to create the communicator: some have not called init yet, \
                        have failed, or cannot reach this host", self.rank, self.nranks, waited.as_secs());
                }
                if !l.timeout.is_zero() && waited >= l.timeout {
                    return Err(Error::new(
                        Code::RemoteError,
                        format!(
                            "rank {} of {}: not all ranks came within {} s (MKERNEL_TIMEOUT_S)",
                            self.rank,
                            self.nranks,
                            waited.as_secs()
                        ),
                    ));
                }
            }
            let fd = self.connection().stream.as_raw_fd();
            let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry. The descriptor lives as long as `self`.
            unsafe { libc::poll(&mut entry, 1, LOOK_EVERY.as_millis() as i32) };
        }
    }

    pub fn barrier(&self, abort: &AtomicBool) -> Result<()> {
        self.all_gather(&[], abort).map(|_| ())
    }

    /// Tells the others that this rank is done with the communicator's memory. Does not wait for them.
    pub fn say_goodbye(&self) -> Result<()> {
        self.connection().send(&Frame::Goodbye, None)
    }

    /// Whether all ranks have said goodbye: `None`: not yet; `Some(false)`: some rank's connection broke instead, so nothing comes from it either.
    pub fn all_goodbye(&self) -> Option<bool> {
        let mut c = self.connection();
        c.pump();
        c.all_goodbye.or(c.closed.then_some(false))
    }

    /// Tells all other ranks something, as far as they can be reached. Does not wait.
    pub fn post_notice(&self, bytes: &[u8]) {
        let cut = bytes.len().min(4096);
        let _ = self.connection().send(&Frame::Notice(self.rank as u32, bytes[..cut].to_vec()), None);
    }

    /// What another rank told all, with its rank. Does not wait.
    pub fn poll_notice(&self) -> Option<(usize, Vec<u8>)> {
        let mut c = self.connection();
        c.pump();
        c.notices.pop_front()
    }

    /// Tells all other ranks that this one has revoked the communicator. Does not wait.
    pub fn post_revocation(&self) {
        let _ = self.connection().send(&Frame::Revoked(self.rank as u32), None);
    }

    /// The first other rank that is known to have revoked the communicator. Does not wait.
    pub fn revoked_by(&self) -> Option<usize> {
        let mut c = self.connection();
        c.pump();
        c.revoked_by
    }
}

impl Connection {
    /// Takes in what has come.
    fn pump(&mut self) {
        let mut part = [0u8; 16 * 1024];
        while !self.closed {
            match self.stream.read(&mut part) {
                Ok(0) => self.closed = true,
                Ok(n) => self.input.extend(&part[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        loop {
            match Frame::take(&mut self.input) {
                Ok(Some(Frame::Pieces(pieces))) => self.pieces.push_back(pieces),
                Ok(Some(Frame::Failed(text))) => self.failed = Some(text),
                Ok(Some(Frame::AllGoodbye(clean))) => self.all_goodbye = Some(clean),
                Ok(Some(Frame::Notice(rank, bytes))) => self.notices.push_back((rank as usize, bytes)),
                Ok(Some(Frame::Revoked(rank))) => self.revoked_by = self.revoked_by.or(Some(rank as usize)),
                Ok(Some(Frame::Piece(_) | Frame::Goodbye)) => {}
                Ok(None) => break,
                Err(e) => {
                    self.failed = Some(e.message);
                    self.closed = true;
                    break;
                }
            }
        }
    }

    /// Sends a frame. The root always reads, so this waits only while the network does.
    fn send(&mut self, frame: &Frame, abort: Option<&AtomicBool>) -> Result<()> {
        let bytes = frame.encode();
        let mut rest = bytes.as_slice();
        let started = Instant::now();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e)
                    if e.kind() == ErrorKind::WouldBlock
                        && started.elapsed() < CONNECT_WITHIN
                        && !abort.is_some_and(|a| a.load(Ordering::Acquire)) =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(Error::remote(format!("the connection to the process that made the unique id broke: {e}"))),
            }
        }
        Ok(())
    }
}
