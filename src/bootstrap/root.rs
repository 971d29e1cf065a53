//! The root: one thread, one poll loop, one communicator. It lets members in, gathers, passes notices on and counts goodbyes; it ends when the
//! last member has left, or when nobody has come for a long time.

use super::frame::Frame;
use super::handshake::{self, CLAIM};
use super::id::{Contents, UniqueId};
use super::interface::{self, SocketSettings};
use crate::error::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A connection must have proved itself by then.
const PROOF_WITHIN: Duration = Duration::from_secs(10);
/// Unproved connections at a time; more wait in the kernel's queue.
const MAX_STRANGERS: usize = 256;
/// A root that nobody needs any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Makes an id and starts the thread in this process at which ranks meet. With `NCCL_COMM_ID` the id only names that address, and rank 0 of the
/// communicator listens there when it joins.
pub fn create_id(settings: &SocketSettings) -> Result<UniqueId> {
    if let Some(name) = &settings.comm_id {
        return well_known_id(name);
    }
    let key = handshake::random().map_err(|e| Error::system(format!("no random bytes for a unique id: {e}")))?;
    let loopback = listen(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?;
    let loopback_port = port_of(&loopback)?;
    let mut listeners = vec![loopback];
    let mut routable = None;
    if let Some(address) = interface::choose(&interface::list(), settings) {
        // Not being able to listen there matters only to ranks of other hosts, which will say so.
        if let Ok(listener) = listen(SocketAddr::new(address, 0)) {
            routable = Some(SocketAddr::new(address, port_of(&listener)?));
            listeners.push(listener);
        }
    }
    start(listeners, key)?;
    Ok(UniqueId::new(&Contents { key, host: super::member::host_token(None), loopback_port, routable, well_known: false }))
}

fn well_known_id(name: &str) -> Result<UniqueId> {
    let address = name
        .to_socket_addrs()
        .ok()
        .and_then(|mut a| a.next())
        .ok_or_else(|| Error::argument(format!("NCCL_COMM_ID is \"{name}\"; it must be host:port, and the host must be known here")))?;
    // Every process makes the same id, so the key can only be the name: it keeps strangers out, not enemies.
    let key = *blake3::hash(name.as_bytes()).as_bytes();
    Ok(UniqueId::new(&Contents { key, host: 0, loopback_port: 0, routable: Some(address), well_known: true }))
}

/// Rank 0 of a communicator with a well-known id.
pub fn serve_well_known(contents: &Contents) -> Result<()> {
    let Some(address) = contents.routable else { return Err(Error::internal("a well-known id without an address")) };
    start(vec![listen(address)?], contents.key)
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let failed = |e: std::io::Error| Error::system(format!("cannot listen on {address} for the ranks of a communicator: {e}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

fn port_of(listener: &TcpListener) -> Result<u16> {
    Ok(listener.local_addr().map_err(|e| Error::system(format!("a listening socket has no address: {e}")))?.port())
}

fn start(listeners: Vec<TcpListener>, key: [u8; 32]) -> Result<()> {
    std::thread::Builder::new()
        .name("mkernel-root".into())
        .spawn(move || {
            Root { listeners, key, strangers: Vec::new(), members: Vec::new(), nranks: 0, failed: None, broken: false, told: false }.run()
        })
        .map(|_| ())
        .map_err(|e| Error::system(format!("cannot start the bootstrap's root thread: {e}")))
}

struct Root {
    listeners: Vec<TcpListener>,
    key: [u8; 32],
    strangers: Vec<Stranger>,
    /// By rank.
    members: Vec<Option<Member>>,
    /// What the first member said; 0 before.
    nranks: u32,
    /// Why ranks can no longer meet.
    failed: Option<String>,
    /// A member vanished without a goodbye.
    broken: bool,
    /// `AllGoodbye` has been sent.
    told: bool,
}

/// A connection that has not proved anything.
struct Stranger {
    stream: TcpStream,
    nonce: [u8; 16],
    bytes: Vec<u8>,
    since: Instant,
}

struct Member {
    stream: Option<TcpStream>,
    input: Vec<u8>,
    output: Vec<u8>,
    piece: Option<Vec<u8>>,
    goodbye: bool,
}

impl Root {
    fn run(mut self) {
        let started = Instant::now();
        let mut last_event = Instant::now();
        loop {
            if self.poll() {
                last_event = Instant::now();
            }
            self.accept();
            self.hear_strangers();
            self.hear_members();
            self.gather();
            self.count_goodbyes();
            self.flush();
            let all_left = self.nranks != 0 && self.members.iter().all(|m| m.as_ref().is_some_and(|m| m.stream.is_none()));
            let none_left = self.members.iter().flatten().all(|m| m.stream.is_none());
            if all_left || (self.failed.is_some() && none_left && started.elapsed() > PROOF_WITHIN) {
                return;
            }
            if none_left && last_event.elapsed() > ABANDONED_AFTER {
                return;
            }
        }
    }

    /// Waits until something can be done. False: nothing came for a while.
    fn poll(&self) -> bool {
        let complete = self.nranks != 0 && self.members.iter().all(Option::is_some);
        let mut fds = Vec::new();
        let mut add = |fd, events| fds.push(libc::pollfd { fd, events, revents: 0 });
        if !complete && self.strangers.len() < MAX_STRANGERS {
            self.listeners.iter().for_each(|l| add(l.as_raw_fd(), libc::POLLIN));
        }
        self.strangers.iter().for_each(|s| add(s.stream.as_raw_fd(), libc::POLLIN));
        for m in self.members.iter().flatten() {
            if let Some(stream) = &m.stream {
                add(stream.as_raw_fd(), if m.output.is_empty() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT });
            }
        }
        // Strangers' deadlines are looked at once a second; a complete communicator needs no clock.
        let timeout = if complete { 60_000 } else { 1_000 };
        // SAFETY: an array of valid entries and its length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) > 0 }
    }

    fn accept(&mut self) {
        if self.nranks != 0 && self.members.iter().all(Option::is_some) {
            return; // everybody is here; whoever else comes stays outside
        }
        for listener in &self.listeners {
            while self.strangers.len() < MAX_STRANGERS {
                let Ok((mut stream, peer)) = listener.accept() else { break };
                let greeted =
                    stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).and_then(|()| handshake::nonce()).and_then(
                        |nonce| {
                            stream.write_all(&handshake::hello(&nonce))?;
                            Ok(nonce)
                        },
                    );
                match greeted {
                    Ok(nonce) => self.strangers.push(Stranger { stream, nonce, bytes: Vec::with_capacity(CLAIM), since: Instant::now() }),
                    Err(e) => tracing::info!(target: "BOOTSTRAP", "dropping a connection from {peer}: {e}"),
                }
            }
        }
    }

    fn hear_strangers(&mut self) {
        let mut i = 0;
        while i < self.strangers.len() {
            let stranger = &mut self.strangers[i];
            let mut rest = [0u8; CLAIM];
            let wanted = CLAIM - stranger.bytes.len();
            let verdict = match stranger.stream.read(&mut rest[..wanted]) {
                Ok(0) => Some("it closed the connection before it proved itself"),
                Ok(n) => {
                    stranger.bytes.extend(&rest[..n]);
                    None
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    (stranger.since.elapsed() > PROOF_WITHIN).then_some("it said nothing for 10 s")
                }
                Err(_) => Some("the connection broke"),
            };
            if let Some(why) = verdict {
                tracing::info!(target: "BOOTSTRAP", "dropping a connection: {why}");
                self.strangers.swap_remove(i);
                continue;
            }
            let Some(bytes) = stranger.bytes.first_chunk::<CLAIM>().copied() else {
                i += 1;
                continue;
            };
            let stranger = self.strangers.swap_remove(i);
            match handshake::read_claim(&self.key, &stranger.nonce, &bytes) {
                Some((nonce, rank, nranks)) => self.admit(stranger, &nonce, rank, nranks),
                None => tracing::info!(target: "BOOTSTRAP", "dropping a connection that does not know the communicator's key"),
            }
        }
    }

    fn admit(&mut self, stranger: Stranger, nonce: &[u8; 16], rank: u32, nranks: u32) {
        let mut output = handshake::welcome(&self.key, &stranger.nonce, nonce).to_vec();
        if self.nranks == 0 {
            self.nranks = nranks.clamp(1, 1 << 20);
            self.members = (0..self.nranks).map(|_| None).collect();
        }
        let first = self.members.iter().position(Option::is_some).unwrap_or(0);
        let refusal = if nranks != self.nranks {
            Some(format!(
                "rank {rank} joined with nranks {nranks}, but rank {first} said {}: all ranks must pass the same nranks",
                self.nranks
            ))
        } else if rank >= self.nranks {
            Some(format!("rank {rank} joined a communicator of {} ranks", self.nranks))
        } else if self.members[rank as usize].is_some() {
            Some(format!("two processes or threads joined as rank {rank}: each rank must be given once"))
        } else {
            None
        };
        if let Some(text) = refusal {
            output.extend(Frame::Failed(text.clone()).encode());
            let mut stream = stranger.stream;
            // A hundred bytes fit the socket's buffer; a member that is gone already does not need them.
            let _ = stream.write_all(&output);
            return self.fail(text);
        }
        if let Some(text) = &self.failed {
            output.extend(Frame::Failed(text.clone()).encode());
        }
        self.members[rank as usize] =
            Some(Member { stream: Some(stranger.stream), input: Vec::new(), output, piece: None, goodbye: false });
    }

    fn fail(&mut self, text: String) {
        if self.failed.is_none() {
            for m in self.members.iter_mut().flatten() {
                m.output.extend(Frame::Failed(text.clone()).encode());
            }
            self.failed = Some(text);
        }
    }

    fn hear_members(&mut self) {
        let mut notices = Vec::new(); // for all but who sent it
        let mut vanished = Vec::new();
        for (rank, m) in self.members.iter_mut().enumerate() {
            let Some(m) = m else { continue };
            let Some(stream) = &mut m.stream else { continue };
            let mut open = true;
            let mut part = [0u8; 64 * 1024];
            loop {
                match stream.read(&mut part) {
                    Ok(0) => open = false,
                    Ok(n) => {
                        m.input.extend(&part[..n]);
                        continue;
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => open = false,
                }
                break;
            }
            loop {
                match Frame::take(&mut m.input) {
                    Ok(Some(Frame::Piece(piece))) => m.piece = Some(piece),
                    Ok(Some(Frame::Goodbye)) => m.goodbye = true,
                    Ok(Some(Frame::Notice(_, bytes))) => notices.push((rank, Frame::Notice(rank as u32, bytes))),
                    Ok(Some(Frame::Revoked(_))) => notices.push((rank, Frame::Revoked(rank as u32))),
                    Ok(None) => break,
                    Ok(Some(_)) | Err(_) => {
                        open = false;
                        break;
                    }
                }
            }
            if !open {
                m.stream = None;
                if !m.goodbye {
                    vanished.push(rank);
                }
            }
        }
        for (from, notice) in notices {
            let frame = notice.encode();
            for (_, m) in self.members.iter_mut().enumerate().filter(|(rank, _)| *rank != from) {
                m.iter_mut().for_each(|m| m.output.extend(&frame));
            }
        }
        for rank in vanished {
            self.broken = true;
            self.fail(format!("rank {rank} has left: its process ended, or its communicator was aborted"));
        }
    }

    fn gather(&mut self) {
        if self.nranks == 0 || !self.members.iter().all(|m| m.as_ref().is_some_and(|m| m.piece.is_some())) {
            return;
        }
        let pieces = self.members.iter_mut().flatten().filter_map(|m| m.piece.take()).collect();
        let frame = Frame::Pieces(pieces).encode();
        self.members.iter_mut().flatten().for_each(|m| m.output.extend(&frame));
    }

    fn count_goodbyes(&mut self) {
        let over = self.nranks != 0 && self.members.iter().all(|m| m.as_ref().is_some_and(|m| m.goodbye || m.stream.is_none()));
        if over && !self.told {
            self.told = true;
            let frame = Frame::AllGoodbye(!self.broken).encode();
            self.members.iter_mut().flatten().for_each(|m| m.output.extend(&frame));
        }
    }

    fn flush(&mut self) {
        for m in self.members.iter_mut().flatten() {
            let Some(stream) = &mut m.stream else {
                m.output.clear();
                continue;
            };
            while !m.output.is_empty() {
                match stream.write(&m.output) {
                    Ok(n) if n > 0 => {
                        m.output.drain(..n);
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    _ => {
                        m.output.clear(); // the next read finds out
                    }
                }
            }
        }
    }
}
