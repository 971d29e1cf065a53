//! Lets in connections that prove that they hold a key, for `transport::connect`. Whoever has not proved anything costs a hundred bytes, is one of a
//! bounded number, and has to leave after a while.

use super::handshake::{self, CLAIM};
use crate::error::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// A connection must have proved itself by then.
const PROOF_WITHIN: Duration = Duration::from_secs(10);
/// Unproved connections at a time; the oldest leaves for a new one.
const MAX_STRANGERS: usize = 256;

pub struct Door {
    listeners: Vec<TcpListener>,
    key: [u8; 32],
    strangers: Vec<Stranger>,
}

struct Stranger {
    stream: TcpStream,
    nonce: [u8; 16],
    bytes: [u8; CLAIM],
    got: usize,
    since: Instant,
}

/// Somebody who holds the key, and the two numbers it claims.
pub struct Guest {
    pub rank: u32,
    pub number: u32,
    stream: TcpStream,
    welcome: [u8; handshake::WELCOME],
}

impl Guest {
    /// Proves our side. The stream does not block.
    pub fn welcome(mut self) -> std::io::Result<TcpStream> {
        // It fits the socket's buffer, which is empty.
        self.stream.write_all(&self.welcome)?;
        Ok(self.stream)
    }
}

impl Door {
    pub fn new(listeners: Vec<TcpListener>, key: [u8; 32]) -> Result<Self> {
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(|e| Error::system(format!("a listening socket: {e}")))?;
        }
        Ok(Self { listeners, key, strangers: Vec::new() })
    }

    /// Who has proved itself, after waiting for something to happen for at most `limit`.
    pub fn wait(&mut self, limit: Duration) -> Vec<Guest> {
        let sources = self.listeners.iter().map(AsRawFd::as_raw_fd).chain(self.strangers.iter().map(|s| s.stream.as_raw_fd()));
        let mut fds: Vec<_> = sources.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: an array of valid entries and its length; the descriptors live as long as `self`.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit.as_millis() as i32) };
        self.let_in();
        self.hear()
    }

    fn let_in(&mut self) {
        for listener in &self.listeners {
            while let Ok((mut stream, from)) = listener.accept() {
                let greeted = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).and_then(|()| {
                    let nonce = handshake::nonce()?;
                    stream.write_all(&handshake::hello(&nonce))?;
                    Ok(nonce)
                });
                match greeted {
                    Ok(nonce) => {
                        if self.strangers.len() == MAX_STRANGERS {
                            self.strangers.remove(0);
                        }
                        self.strangers.push(Stranger { stream, nonce, bytes: [0; CLAIM], got: 0, since: Instant::now() });
                    }
                    Err(e) => tracing::info!(target: "BOOTSTRAP", "dropping a connection from {from}: {e}"),
                }
            }
        }
    }

    fn hear(&mut self) -> Vec<Guest> {
        let mut guests = Vec::new();
        let key = &self.key;
        let mut at = 0;
        while at < self.strangers.len() {
            let s = &mut self.strangers[at];
            let why = match s.stream.read(&mut s.bytes[s.got..]) {
                Ok(0) => "it closed the connection before it proved itself",
                Ok(n) => {
                    s.got += n;
                    if s.got < CLAIM {
                        at += 1;
                        continue;
                    }
                    let s = self.strangers.remove(at);
                    match handshake::read_claim(key, &s.nonce, &s.bytes) {
                        Some((nonce, rank, number)) => {
                            guests.push(Guest { rank, number, stream: s.stream, welcome: handshake::welcome(key, &s.nonce, &nonce) });
                        }
                        None => tracing::info!(target: "BOOTSTRAP", "dropping a connection that does not know the communicator's key"),
                    }
                    continue;
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) && s.since.elapsed() < PROOF_WITHIN => {
                    at += 1;
                    continue;
                }
                Err(_) => "it broke or said nothing",
            };
            tracing::info!(target: "BOOTSTRAP", "dropping a connection: {why}");
            self.strangers.remove(at);
        }
        guests
    }
}
