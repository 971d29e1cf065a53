//! TCP: a stream per peer and proxy thread. Chunks are sent from the outbox and received into the inbox where they lie; the kernel's TCP buffers are the
//! only copies.

use super::wire::{Frame, HEADER};
use super::{Broken, Change, Link};
use crate::observe::mismatch::Announce;
use crate::transport::mailbox::{Mailbox, SCALAR, Slot};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::size_of;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// How often a busy rank asks a silent peer whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Small frames are read in one go.
const BUFFER: usize = 8 * 1024;
/// Bytes moved by one call of `progress` at most, each way, so that other links have their turn.
const TURN: usize = 4 << 20;
/// Frames given to the kernel in one call.
const BATCH: usize = 16;

pub struct Socket {
    stream: TcpStream,
    mailbox: Mailbox,
    output: VecDeque<Outgoing>,
    /// Bytes of the first outgoing frame that are gone.
    sent: usize,
    buffer: Box<[u8; BUFFER]>,
    /// What of the buffer has been read and not used.
    unused: std::ops::Range<usize>,
    /// The frame whose payload is arriving, and how much of it is here.
    arriving: Option<(Frame, usize)>,
    announce: [u8; size_of::<Announce>()],
    heard: Instant,
    asked: Instant,
    busy_since: Option<Instant>,
    /// Silence of a peer that ends the link; zero: none does.
    patience: Duration,
}

struct Outgoing {
    header: [u8; HEADER],
    payload: Payload,
}

enum Payload {
    Nothing,
    Chunk(Slot, usize),
    Announcement([u8; size_of::<Announce>()]),
}

impl Outgoing {
    fn payload(&self, mailbox: &Mailbox) -> &[u8] {
        match &self.payload {
            Payload::Nothing => &[],
            // SAFETY: the slot was checked when it was queued. Its bytes do not change until the peer has returned the credit for them, and it cannot
            // before they have been sent.
            Payload::Chunk(slot, bytes) => unsafe { std::slice::from_raw_parts(mailbox.sent_chunk(*slot), *bytes) },
            Payload::Announcement(bytes) => bytes,
        }
    }
}

impl Socket {
    /// A link over a connected stream whose ends have proved themselves.
    pub fn new(stream: TcpStream, mailbox: Mailbox, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let now = Instant::now();
        Ok(Self {
            stream,
            mailbox,
            output: VecDeque::new(),
            sent: 0,
            buffer: Box::new([0; BUFFER]),
            unused: 0..0,
            arriving: None,
            announce: [0; size_of::<Announce>()],
            heard: now,
            asked: now,
            busy_since: None,
            patience,
        })
    }

    fn queue(&mut self, frame: Frame, payload: Payload) {
        self.output.push_back(Outgoing { header: frame.encode(), payload });
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut gone = 0;
        while !self.output.is_empty() && gone < TURN {
            let written = {
                let parts = self.output.iter().take(BATCH).flat_map(|out| [&out.header[..], out.payload(&self.mailbox)]);
                let mut slices: Vec<_> = parts.map(IoSlice::new).collect();
                let mut rest = slices.as_mut_slice();
                IoSlice::advance_slices(&mut rest, self.sent);
                (&self.stream).write_vectored(rest)
            };
            match written {
                Ok(n) => {
                    gone += n;
                    self.sent += n;
                    while let Some(first) = self.output.front() {
                        let whole = HEADER + first.payload(&self.mailbox).len();
                        if self.sent < whole {
                            break;
                        }
                        self.sent -= whole;
                        self.output.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(Broken::Failed(e.to_string())),
            }
        }
        Ok(gone != 0)
    }

    fn receive(&mut self) -> Result<bool, Broken> {
        let mut got = 0;
        while got < TURN {
            let n = match self.read() {
                Ok(0) => {
                    return Err(Broken::Failed("it closed the connection: its process has ended, or its communicator was aborted".into()));
                }
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(Broken::Failed(e.to_string())),
            };
            got += n;
            self.take_frames()?;
        }
        if got != 0 {
            self.heard = Instant::now();
        }
        Ok(got != 0)
    }

    /// Reads the rest of an arriving payload straight to its place, and what follows into the buffer, which is empty then; else more into the buffer.
    fn read(&mut self) -> io::Result<usize> {
        let Some((frame, here)) = self.arriving else {
            if self.unused.is_empty() {
                self.unused = 0..0;
            } else if self.unused.start != 0 {
                self.buffer.copy_within(self.unused.clone(), 0);
                self.unused = 0..self.unused.len();
            }
            let n = self.stream.read(&mut self.buffer[self.unused.end..])?;
            self.unused.end += n;
            return Ok(n);
        };
        let missing = frame.payload() - here;
        let n = {
            let place = Self::place(&self.mailbox, &mut self.announce, &frame, here);
            let mut slices = [IoSliceMut::new(place), IoSliceMut::new(self.buffer.as_mut_slice())];
            (&self.stream).read_vectored(&mut slices)?
        };
        let direct = n.min(missing);
        self.arriving = Some((frame, here + direct));
        self.unused = 0..n - direct;
        Ok(n)
    }

    /// Where the payload of a frame goes, from byte `here` on.
    fn place<'a>(mailbox: &'a Mailbox, announce: &'a mut [u8; size_of::<Announce>()], frame: &Frame, here: usize) -> &'a mut [u8] {
        match frame {
            Frame::Chunk { slot, bytes, .. } => {
                // SAFETY: decoding has checked the slot and the length. The kernel does not look at the slot before its mark, which is shown when all
                // has come; the peer sends a slot again only when the kernel is done with it.
                let whole = unsafe { std::slice::from_raw_parts_mut(mailbox.arriving_chunk(*slot), SCALAR + bytes) };
                &mut whole[here..]
            }
            Frame::Announcement => &mut announce[here..],
            _ => &mut [],
        }
    }

    /// Uses up what is in the buffer, as far as it makes frames.
    fn take_frames(&mut self) -> Result<(), Broken> {
        loop {
            if let Some((frame, here)) = self.arriving {
                let missing = frame.payload() - here;
                let n = missing.min(self.unused.len());
                let from = self.unused.start..self.unused.start + n;
                if n != 0 {
                    Self::place(&self.mailbox, &mut self.announce, &frame, here)[..n].copy_from_slice(&self.buffer[from.clone()]);
                    self.unused.start = from.end;
                }
                if n < missing {
                    self.arriving = Some((frame, here + n));
                    return Ok(());
                }
                self.arriving = None;
                self.deliver(&frame)?;
            }
            let Some(header) = self.buffer[self.unused.clone()].first_chunk::<HEADER>() else { return Ok(()) };
            let frame = Frame::decode(header, self.mailbox.geometry())
                .ok_or_else(|| Broken::Failed("it sent something that is no frame: do all ranks load the same libmkernel.so?".into()))?;
            self.unused.start += HEADER;
            self.arriving = Some((frame, 0));
        }
    }

    fn deliver(&mut self, frame: &Frame) -> Result<(), Broken> {
        match *frame {
            // SAFETY: decoding has checked that the slot exists, and all of the chunk has come.
            Frame::Chunk { slot, signature, number, .. } => unsafe { self.mailbox.deliver_mark(slot, signature, number) },
            // SAFETY: decoding has checked that the pipe exists.
            Frame::Credit { phase, channel, count } => unsafe { self.mailbox.deliver_credit(phase, channel, count) },
            Frame::Announcement => self.mailbox.deliver_announcement(&self.announce),
            Frame::Failure(failure) => self.mailbox.deliver_failure(failure),
            Frame::Ping => self.queue(Frame::Pong, Payload::Nothing),
            Frame::Pong => {}
            Frame::Goodbye => return Err(Broken::Goodbye),
        }
        Ok(())
    }
}

impl Link for Socket {
    fn carry(&mut self, change: Change) {
        match change {
            Change::Chunk { slot, bytes } => {
                // SAFETY: the ring's reader has checked the slot.
                let (signature, number) = unsafe { self.mailbox.sent_mark(slot) };
                self.queue(Frame::Chunk { slot, bytes, signature, number }, Payload::Chunk(slot, SCALAR + bytes));
            }
            Change::Credit { phase, channel } => {
                // SAFETY: the ring's reader has checked the pipe.
                let count = unsafe { self.mailbox.returned_credit(phase, channel) };
                self.queue(Frame::Credit { phase, channel, count }, Payload::Nothing);
            }
            Change::Announcement => {
                if let Some(bytes) = self.mailbox.take_announcement() {
                    self.queue(Frame::Announcement, Payload::Announcement(bytes));
                }
            }
            Change::Failure => self.queue(Frame::Failure(self.mailbox.failure()), Payload::Nothing),
        }
    }

    fn progress(&mut self) -> Result<bool, Broken> {
        let sent = self.flush();
        // A peer that has said goodbye may have closed the connection while this rank still had credits for it.
        let received = self.receive();
        if received == Err(Broken::Goodbye) {
            return received;
        }
        let moved = sent? | received?;
        // Answers to what has come.
        Ok(self.flush()? || moved)
    }

    fn keep_alive(&mut self, busy: bool) -> Result<(), Broken> {
        if !busy || self.patience.is_zero() {
            self.busy_since = None;
            return Ok(());
        }
        let busy_for = self.busy_since.get_or_insert_with(Instant::now).elapsed();
        let silent = self.heard.elapsed().min(busy_for);
        if silent > self.patience {
            return Err(Broken::Failed(format!(
                "it has not answered for {:.1} s (MKERNEL_NET_TIMEOUT_S): its host or the network is down, or its process is stopped",
                silent.as_secs_f64()
            )));
        }
        if silent > ASK_EVERY && self.asked.elapsed() > ASK_EVERY {
            self.asked = Instant::now();
            self.queue(Frame::Ping, Payload::Nothing);
        }
        Ok(())
    }

    fn say_goodbye(&mut self) {
        self.queue(Frame::Goodbye, Payload::Nothing);
        let _ = self.flush();
    }

    fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn has_delivered(&self) -> bool {
        let mut unacknowledged: libc::c_int = 0;
        // SAFETY: writes one int; the descriptor is ours.
        let asked = unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &mut unacknowledged) };
        self.output.is_empty() && (asked != 0 || unacknowledged == 0)
    }

    fn wants_room(&self) -> bool {
        !self.output.is_empty()
    }
}
