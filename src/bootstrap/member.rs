//! A rank's side of the bootstrap.

use super::connect::connect;
use super::create;
use super::frame::{Frame, FrameReader, Sender};
use super::host::process_token;
use super::id::UniqueId;
use super::interface::SocketSettings;
use super::limits::{self, MAX_NOTICE, MAX_NOTICES, MAX_RANKS};
use super::retry::LOOK_EVERY;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The root always reads, so a send that takes longer says that it does not any more.
const SEND_WITHIN: Duration = Duration::from_secs(5);

pub struct Join<'a> {
    pub id: &'a UniqueId,
    pub rank: usize,
    pub nranks: usize,
    /// Ends the wait when it becomes true.
    pub abort: &'a AtomicBool,
    /// Warn about missing ranks after this, at the meeting and at every later all-gather; zero: never.
    pub warn_after: Duration,
    /// Give up after this, likewise; zero: never.
    pub timeout: Duration,
    pub settings: SocketSettings,
}

/// A rank's connection to the root.
pub struct Bootstrap {
    rank: usize,
    nranks: usize,
    warn_after: Duration,
    timeout: Duration,
    /// The rank whose process runs the root, once all have met and said so.
    host: Option<usize>,
    connection: Mutex<Connection>,
}

struct Connection {
    stream: TcpStream,
    reader: FrameReader,
    pieces: VecDeque<Vec<Vec<u8>>>,
    notices: VecDeque<(usize, Vec<u8>)>,
    revoked_by: Option<usize>,
    failed: Option<String>,
    all_goodbye: Option<bool>,
    closed: bool,
}

/// What a rank waits for, in the words of warnings and errors.
#[derive(Clone, Copy)]
enum Stage {
    Meeting,
    Talking,
}

/// Meets the other ranks; returns when all have come.
pub fn join(j: Join) -> Result<Bootstrap> {
    if j.nranks == 0 || j.nranks > MAX_RANKS {
        return Err(Error::argument(format!("nranks is {}; a communicator has 1 to {MAX_RANKS} ranks", j.nranks)));
    }
    if j.rank >= j.nranks {
        return Err(Error::argument(format!("rank is {}, but nranks is {}: ranks count from 0", j.rank, j.nranks)));
    }
    let contents = j.id.contents();
    if contents.well_known && j.rank == 0 {
        create::serve_well_known(&contents, &j.settings, j.abort)?;
    }
    let started = Instant::now();
    let stream = connect(&contents, &j)?;
    let connection = Connection {
        stream,
        reader: FrameReader::new(Sender::Root { nranks: j.nranks }),
        pieces: VecDeque::new(),
        notices: VecDeque::new(),
        revoked_by: None,
        failed: None,
        all_goodbye: None,
        closed: false,
    };
    let mut bootstrap = Bootstrap {
        rank: j.rank,
        nranks: j.nranks,
        warn_after: j.warn_after,
        timeout: j.timeout,
        host: None,
        connection: Mutex::new(connection),
    };
    // Everybody is here when an all-gather ends. Whoever lives in the root's process says so, for the words of later errors.
    let is_host = contents.maker == process_token() || (contents.well_known && j.rank == 0);
    let all = bootstrap.gather(&[u8::from(is_host)], j.abort, Stage::Meeting, started)?;
    bootstrap.host = all.iter().position(|said| said == &[1]);
    Ok(bootstrap)
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
        self.gather(mine, abort, Stage::Talking, Instant::now())
    }

    fn gather(&self, mine: &[u8], abort: &AtomicBool, stage: Stage, started: Instant) -> Result<Vec<Vec<u8>>> {
        let longest = limits::piece(self.nranks);
        if mine.len() > longest {
            return Err(Error::internal(format!(
                "a bootstrap all-gather of {} bytes per rank is too large: {longest} fit with {} ranks",
                mine.len(),
                self.nranks
            )));
        }
        self.send(&Frame::Piece(mine.to_vec()), Some(abort))?;
        let mut warned = false;
        loop {
            let fd = {
                let mut c = self.connection();
                c.pump();
                if let Some(pieces) = c.pieces.pop_front() {
                    return Ok(pieces);
                }
                if let Some(error) = self.end_of(&c) {
                    return Err(error);
                }
                c.stream.as_raw_fd()
            };
            if abort.load(Ordering::Acquire) {
                return Err(Error::usage(format!("the communicator was aborted while its ranks were {}", stage.doing())));
            }
            let waited = started.elapsed();
            if !warned && !self.warn_after.is_zero() && waited >= self.warn_after {
                warned = true;
                tracing::warn!(target: "WATCHDOG", "rank {} of {} has waited {} s for {}: some have not called it yet, have failed, or cannot \
                    reach this host", self.rank, self.nranks, waited.as_secs(), stage.awaited());
            }
            if !self.timeout.is_zero() && waited >= self.timeout {
                return Err(Error::remote(format!(
                    "rank {} of {}: not all ranks came within {} s (MKERNEL_TIMEOUT_S) to {}",
                    self.rank,
                    self.nranks,
                    waited.as_secs(),
                    stage.awaited()
                )));
            }
            let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid entry. The descriptor lives as long as `self`.
            unsafe { libc::poll(&mut entry, 1, LOOK_EVERY.as_millis() as i32) };
        }
    }

    /// Why nothing more will come, if that is so. The root's own words come first: they name the cause.
    fn end_of(&self, c: &Connection) -> Option<Error> {
        if let Some(text) = &c.failed {
            return Some(Error::remote(text.clone()));
        }
        let whose = self.host.map_or_else(|| "usually rank 0's".to_owned(), |rank| format!("that of rank {rank}"));
        c.closed.then(|| {
            Error::remote(format!(
                "rank {} lost the connection to the process that made the unique id, {whose}: it has ended or crashed. All ranks meet and split \
                 through it, so it must live as long as they do; look there for the cause.",
                self.rank
            ))
        })
    }

    fn send(&self, frame: &Frame, abort: Option<&AtomicBool>) -> Result<()> {
        let mut c = self.connection();
        c.send(frame, abort).map_err(|e| {
            // The cause may be among what has come before the connection broke.
            c.pump();
            self.end_of(&c)
                .unwrap_or_else(|| Error::remote(format!("rank {} cannot send to the process that made the unique id: {e}", self.rank)))
        })
    }

    pub fn barrier(&self, abort: &AtomicBool) -> Result<()> {
        self.all_gather(&[], abort).map(|_| ())
    }

    /// Tells the others that this rank is done with the communicator's memory. Does not wait for them.
    pub fn say_goodbye(&self) -> Result<()> {
        self.send(&Frame::Goodbye, None)
    }

    /// Whether all ranks have said goodbye. `None`: not yet; `Some(false)`: a connection broke instead, a rank's or
    /// the root's.
    pub fn all_goodbye(&self) -> Option<bool> {
        let mut c = self.connection();
        c.pump();
        c.all_goodbye.or(c.closed.then_some(false))
    }

    /// Tells all other ranks something, as far as they can be reached. Does not wait.
    pub fn post_notice(&self, bytes: &[u8]) {
        let cut = bytes.len().min(MAX_NOTICE);
        let _ = self.send(&Frame::Notice(self.rank as u32, bytes[..cut].to_vec()), None);
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

impl Stage {
    fn doing(self) -> &'static str {
        match self {
            Self::Meeting => "meeting",
            Self::Talking => "talking",
        }
    }

    fn awaited(self) -> &'static str {
        match self {
            Self::Meeting => "the creation of the communicator",
            Self::Talking => "a step of init or split that all ranks must take",
        }
    }
}

impl Connection {
    /// Takes in what has come.
    fn pump(&mut self) {
        let mut part = [0u8; 64 * 1024];
        while !self.closed {
            match self.stream.read(&mut part) {
                Ok(0) => self.closed = true,
                Ok(n) => {
                    self.reader.feed(&part[..n]);
                    self.take_frames();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
    }

    fn take_frames(&mut self) {
        loop {
            match self.reader.take() {
                Ok(Some(Frame::Pieces(pieces))) => self.pieces.push_back(pieces),
                Ok(Some(Frame::Failed(text))) => self.failed = Some(text),
                Ok(Some(Frame::AllGoodbye(clean))) => self.all_goodbye = Some(clean),
                Ok(Some(Frame::Notice(rank, bytes))) if self.notices.len() < MAX_NOTICES => {
                    self.notices.push_back((rank as usize, bytes));
                }
                Ok(Some(Frame::Revoked(rank))) => self.revoked_by = self.revoked_by.or(Some(rank as usize)),
                // The reader lets through only what a root sends.
                Ok(Some(Frame::Notice(..) | Frame::Piece(_) | Frame::Goodbye)) => {}
                Ok(None) => return,
                Err(e) => {
                    self.failed = Some(e.message);
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// Sends a frame. The root always reads, so this waits only while the network does.
    fn send(&mut self, frame: &Frame, abort: Option<&AtomicBool>) -> std::io::Result<()> {
        let bytes = frame.encode();
        let mut rest = bytes.as_slice();
        let started = Instant::now();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e)
                    if e.kind() == ErrorKind::WouldBlock
                        && started.elapsed() < SEND_WITHIN
                        && !abort.is_some_and(|a| a.load(Ordering::Acquire)) =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
