//! The members of one communicator as the root sees them: who has come, what each has brought to the all-gather, who has said goodbye, and what
//! each is still to be told. Memory follows the members that came, never the number that one claims. Called by the root's loop.

use super::door::Proven;
use super::epoll::{Epoll, Event, Interest};
use super::frame::{Frame, FrameReader, Sender};
use super::limits::{MAX_RANKS, MAX_WAITING};
use super::outbox::Outbox;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

#[derive(Default)]
pub struct Roster {
    /// What the first member said.
    nranks: Option<u32>,
    members: BTreeMap<u32, Member>,
    /// Why ranks can no longer meet, and since when.
    failed: Option<(String, Instant)>,
    /// A member vanished without a goodbye.
    broken: bool,
    /// `AllGoodbye` has been sent.
    told: bool,
}

struct Member {
    /// `None`: it has left.
    stream: Option<TcpStream>,
    reader: FrameReader,
    outbox: Outbox,
    /// The stream took no more; the loop tells when it does again.
    blocked: bool,
    /// What the loop has been asked to tell.
    waits_to_write: bool,
    piece: Option<Vec<u8>>,
    goodbye: bool,
}

/// What a member said, as far as others must know.
#[derive(Default)]
struct Heard {
    notices: Vec<Vec<u8>>,
    revoked: bool,
    vanished: bool,
}

impl Roster {
    pub fn complete(&self) -> bool {
        self.nranks.is_some_and(|n| self.members.len() == n as usize)
    }

    /// Nobody is connected: all have left, or nobody has come.
    pub fn empty(&self) -> bool {
        self.members.values().all(|m| m.stream.is_none())
    }

    pub fn failed_since(&self) -> Option<Instant> {
        self.failed.as_ref().map(|f| f.1)
    }

    /// Takes in a connection that has proved the key, or tells it why not. Ranks that contradict each other are told so all together: one of
    /// them is wrong, and the others wait for it in vain.
    pub fn admit(&mut self, proven: Proven, epoll: &Epoll) {
        let Proven { mut stream, rank, nranks, welcome } = proven;
        let mut greeting = welcome.to_vec();
        if let Err(refusal) = self.check(rank, nranks) {
            greeting.extend(Frame::Failed(refusal.clone()).encode());
            // So few bytes fit the socket's buffer; a member that is gone already does not need them.
            let _ = stream.write_all(&greeting);
            return self.fail(refusal);
        }
        if let Err(e) = epoll.add(&stream, u64::from(rank), Interest::Read) {
            return self.fail(format!("the process that made the unique id cannot watch rank {rank}'s connection: {e}"));
        }
        self.nranks = Some(nranks);
        if let Some((text, _)) = &self.failed {
            greeting.extend(Frame::Failed(text.clone()).encode());
        }
        let mut outbox = Outbox::default();
        outbox.push(greeting.into());
        let reader = FrameReader::new(Sender::Member { nranks: nranks as usize });
        let member = Member { stream: Some(stream), reader, outbox, blocked: false, waits_to_write: false, piece: None, goodbye: false };
        self.members.insert(rank, member);
    }

    fn check(&self, rank: u32, nranks: u32) -> Result<(), String> {
        if nranks as usize > MAX_RANKS {
            return Err(format!("rank {rank} joined with nranks {nranks}; a communicator has at most {MAX_RANKS} ranks"));
        }
        if let Some(agreed) = self.nranks.filter(|n| *n != nranks) {
            let first = self.members.keys().next().copied().unwrap_or(0);
            return Err(format!(
                "rank {rank} joined with nranks {nranks}, but rank {first} said {agreed}: all ranks must pass the same nranks"
            ));
        }
        if rank >= nranks {
            return Err(format!("rank {rank} joined a communicator of {nranks} ranks"));
        }
        if self.members.contains_key(&rank) {
            return Err(format!("two processes or threads joined as rank {rank}: each rank must be given once"));
        }
        Ok(())
    }

    /// Something happened on a member's connection.
    pub fn hear(&mut self, rank: u32, event: Event, epoll: &Epoll) {
        let Some(member) = self.members.get_mut(&rank) else { return };
        if event.writable {
            member.blocked = false;
        }
        if !event.readable {
            return;
        }
        let heard = member.hear(epoll);
        for bytes in heard.notices {
            self.pass_on(rank, &Frame::Notice(rank, bytes));
        }
        if heard.revoked {
            self.pass_on(rank, &Frame::Revoked(rank));
        }
        if heard.vanished {
            self.broken = true;
            self.fail(format!("rank {rank} has left: its process ended, or its communicator was aborted"));
        }
    }

    /// Notices are best effort: whoever does not fetch them does not get more.
    fn pass_on(&mut self, from: u32, notice: &Frame) {
        let frame: Arc<[u8]> = notice.encode().into();
        for (_, member) in self.members.iter_mut().filter(|(rank, m)| **rank != from && m.outbox.waiting() < MAX_WAITING) {
            member.outbox.push(frame.clone());
        }
    }

    fn fail(&mut self, text: String) {
        if self.failed.is_none() {
            self.tell_all(&Frame::Failed(text.clone()));
            self.failed = Some((text, Instant::now()));
        }
    }

    fn tell_all(&mut self, frame: &Frame) {
        let frame: Arc<[u8]> = frame.encode().into();
        self.members.values_mut().for_each(|m| m.outbox.push(frame.clone()));
    }

    /// Answers what can be answered now: a full all-gather, the last goodbye.
    pub fn settle(&mut self) {
        if !self.complete() {
            return;
        }
        if self.members.values().all(|m| m.piece.is_some()) {
            let pieces = self.members.values_mut().filter_map(|m| m.piece.take()).collect();
            self.tell_all(&Frame::Pieces(pieces));
        }
        if !self.told && self.members.values().all(|m| m.goodbye || m.stream.is_none()) {
            self.told = true;
            self.tell_all(&Frame::AllGoodbye(!self.broken));
        }
    }

    /// Sends what can be sent now.
    pub fn flush(&mut self, epoll: &Epoll) {
        for (rank, member) in &mut self.members {
            member.flush(u64::from(*rank), epoll);
        }
    }
}

impl Member {
    /// Reads a few times; what remains wakes the loop again, so that one who sends without end does not keep the others waiting.
    fn hear(&mut self, epoll: &Epoll) -> Heard {
        const READS: usize = 8;
        let mut heard = Heard::default();
        let mut part = [0u8; 16 * 1024];
        for _ in 0..READS {
            let Some(stream) = &mut self.stream else { break };
            let sane = match stream.read(&mut part) {
                Ok(0) => false,
                Ok(n) => {
                    self.reader.feed(&part[..n]);
                    self.take_frames(&mut heard)
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => false,
            };
            if !sane {
                self.leave(epoll);
                heard.vanished = !self.goodbye;
            }
        }
        heard
    }

    /// False: it sent what no member sends.
    fn take_frames(&mut self, heard: &mut Heard) -> bool {
        loop {
            match self.reader.take() {
                Ok(Some(Frame::Piece(piece))) => self.piece = Some(piece),
                Ok(Some(Frame::Goodbye)) => self.goodbye = true,
                Ok(Some(Frame::Notice(_, bytes))) => heard.notices.push(bytes),
                Ok(Some(Frame::Revoked(_))) => heard.revoked = true,
                Ok(None) => return true,
                Ok(Some(_)) | Err(_) => return false,
            }
        }
    }

    fn leave(&mut self, epoll: &Epoll) {
        if let Some(stream) = self.stream.take() {
            epoll.remove(&stream);
        }
        self.outbox.clear();
    }

    fn flush(&mut self, token: u64, epoll: &Epoll) {
        let Some(stream) = &mut self.stream else { return self.outbox.clear() };
        if self.outbox.is_empty() || self.blocked {
            return;
        }
        if self.outbox.flush(stream).is_err() {
            return self.outbox.clear(); // the next read finds out
        }
        self.blocked = !self.outbox.is_empty();
        if self.blocked != self.waits_to_write {
            self.waits_to_write = self.blocked;
            // It was added when the member came, so changing it cannot fail.
            let _ = epoll.change(stream, token, if self.blocked { Interest::ReadWrite } else { Interest::Read });
        }
    }
}
