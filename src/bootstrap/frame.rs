//! The wire format behind the handshake: frames of a length, a kind and a payload. Decoding takes bytes as they come and refuses a length
//! that the sender has no use for as soon as the header is there, so a reader holds one legal frame and one read at most.

use super::limits::{self, MAX_GATHER, MAX_NOTICE, MAX_TEXT};
use crate::error::{Error, Result};

const HEADER: usize = 5;
/// A buffer that has become larger than this is given back when it is empty.
const KEEP: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Member: my piece of the next all-gather.
    Piece(Vec<u8>),
    /// Root: all pieces, by rank.
    Pieces(Vec<Vec<u8>>),
    /// Root: why nothing more will come.
    Failed(String),
    /// Member: I will not touch anybody's memory any more.
    Goodbye,
    /// Root: everybody has said so; false when a rank vanished instead.
    AllGoodbye(bool),
    /// Either way: something all other ranks should know, with the rank that said it.
    Notice(u32, Vec<u8>),
    /// Either way: this rank has revoked the communicator.
    Revoked(u32),
}

const PIECE: u8 = 1;
const PIECES: u8 = 2;
const FAILED: u8 = 3;
const GOODBYE: u8 = 4;
const ALL_GOODBYE: u8 = 5;
const NOTICE: u8 = 6;
const REVOKED: u8 = 7;

/// Who sends what a reader reads, in a communicator of that many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Member { nranks: usize },
    Root { nranks: usize },
}

impl Sender {
    /// The longest payload of this kind from this sender; `None`: it never sends that kind.
    fn longest(self, kind: u8) -> Option<usize> {
        match (self, kind) {
            (Self::Member { nranks }, PIECE) => Some(limits::piece(nranks)),
            (Self::Member { .. }, GOODBYE) => Some(0),
            (Self::Root { .. }, PIECES) => Some(MAX_GATHER),
            (Self::Root { .. }, FAILED) => Some(MAX_TEXT),
            (Self::Root { .. }, ALL_GOODBYE) => Some(1),
            (_, NOTICE) => Some(4 + MAX_NOTICE),
            (_, REVOKED) => Some(4),
            _ => None,
        }
    }
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        let kind = match self {
            Self::Piece(bytes) => {
                out.extend(bytes);
                PIECE
            }
            Self::Pieces(pieces) => {
                out.reserve(pieces.iter().map(|p| 4 + p.len()).sum());
                for piece in pieces {
                    out.extend((piece.len() as u32).to_le_bytes());
                    out.extend(piece);
                }
                PIECES
            }
            Self::Failed(text) => {
                out.extend(&text.as_bytes()[..text.len().min(MAX_TEXT)]);
                FAILED
            }
            Self::Goodbye => GOODBYE,
            Self::AllGoodbye(clean) => {
                out.push(u8::from(*clean));
                ALL_GOODBYE
            }
            Self::Notice(rank, bytes) => {
                out.extend(rank.to_le_bytes());
                out.extend(&bytes[..bytes.len().min(MAX_NOTICE)]);
                NOTICE
            }
            Self::Revoked(rank) => {
                out.extend(rank.to_le_bytes());
                REVOKED
            }
        };
        let payload = (out.len() - HEADER) as u32;
        out[..4].copy_from_slice(&payload.to_le_bytes());
        out[4] = kind;
        out
    }

    fn decode(kind: u8, payload: &[u8], sender: Sender) -> Result<Self> {
        Ok(match (kind, sender) {
            (PIECE, _) => Self::Piece(payload.to_vec()),
            (PIECES, Sender::Root { nranks }) => Self::Pieces(pieces(payload, nranks)?),
            (FAILED, _) => Self::Failed(String::from_utf8_lossy(payload).into_owned()),
            (GOODBYE, _) => Self::Goodbye,
            (ALL_GOODBYE, _) => Self::AllGoodbye(payload == [1]),
            (NOTICE | REVOKED, _) => {
                let (rank, bytes) = payload.split_first_chunk::<4>().ok_or_else(|| cut_short(kind))?;
                let rank = u32::from_le_bytes(*rank);
                if kind == NOTICE { Self::Notice(rank, bytes.to_vec()) } else { Self::Revoked(rank) }
            }
            _ => return Err(unknown(kind, payload.len())),
        })
    }
}

/// One piece per rank, no more and no less: empty pieces take four bytes on the wire and more in memory.
fn pieces(mut rest: &[u8], nranks: usize) -> Result<Vec<Vec<u8>>> {
    let mut pieces = Vec::new();
    while !rest.is_empty() && pieces.len() < nranks {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(|| cut_short(PIECES))?;
        let (piece, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(|| cut_short(PIECES))?;
        pieces.push(piece.to_vec());
        rest = after;
    }
    if pieces.len() != nranks || !rest.is_empty() {
        return Err(Error::remote(format!("the bootstrap's root sent other than {nranks} pieces to a communicator of {nranks} ranks")));
    }
    Ok(pieces)
}

fn cut_short(kind: u8) -> Error {
    Error::remote(format!("a bootstrap frame of kind {kind} is cut short"))
}

fn unknown(kind: u8, length: usize) -> Error {
    Error::remote(format!("a bootstrap connection sent a frame of kind {kind} and {length} bytes, which nobody sends"))
}

/// Bytes of a connection on their way to frames.
#[derive(Debug)]
pub struct FrameReader {
    sender: Sender,
    buffer: Vec<u8>,
}

impl FrameReader {
    pub fn new(sender: Sender) -> Self {
        Self { sender, buffer: Vec::new() }
    }

    /// What has been read. Call [`Self::take`] until it has no more before reading on: that bounds the buffer.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the first whole frame off the buffer. `None`: more bytes are needed.
    pub fn take(&mut self) -> Result<Option<Frame>> {
        let Some((header, rest)) = self.buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = header[4];
        if self.sender.longest(kind).is_none_or(|longest| length > longest) {
            return Err(unknown(kind, length));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, payload, self.sender)?;
        self.buffer.drain(..HEADER + length);
        if self.buffer.is_empty() && self.buffer.capacity() > KEEP {
            self.buffer = Vec::new();
        }
        Ok(Some(frame))
    }

    /// Bytes that wait for the rest of their frame.
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NRANKS: usize = 3;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..50)
    }

    fn from_root() -> impl Strategy<Value = Frame> {
        prop_oneof![
            prop::collection::vec(bytes(), NRANKS).prop_map(Frame::Pieces),
            "[a-z ]{0,20}".prop_map(Frame::Failed),
            any::<bool>().prop_map(Frame::AllGoodbye),
            (any::<u32>(), bytes()).prop_map(|(r, b)| Frame::Notice(r, b)),
        ]
    }

    fn from_member() -> impl Strategy<Value = Frame> {
        prop_oneof![bytes().prop_map(Frame::Piece), Just(Frame::Goodbye), (any::<u32>(), bytes()).prop_map(|(r, b)| Frame::Notice(r, b)),]
    }

    fn survive(sender: Sender, frames: &[Frame], step: usize) {
        let wire: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut reader = FrameReader::new(sender);
        let mut got = Vec::new();
        for part in wire.chunks(step) {
            reader.feed(part);
            while let Some(frame) = reader.take().unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, frames);
        assert_eq!(reader.waiting(), 0);
    }

    proptest! {
        #[test]
        fn frames_of_the_root_survive_any_cut(frames in prop::collection::vec(from_root(), 1..6), step in 1usize..40) {
            survive(Sender::Root { nranks: NRANKS }, &frames, step);
        }

        #[test]
        fn frames_of_members_survive_any_cut(frames in prop::collection::vec(from_member(), 1..6), step in 1usize..40) {
            survive(Sender::Member { nranks: NRANKS }, &frames, step);
        }
    }

    fn header(kind: u8, length: usize) -> Vec<u8> {
        [&(length as u32).to_le_bytes()[..], &[kind]].concat()
    }

    fn verdict(sender: Sender, bytes: &[u8]) -> Result<Option<Frame>> {
        let mut reader = FrameReader::new(sender);
        reader.feed(bytes);
        reader.take()
    }

    #[test]
    fn a_length_is_refused_at_its_header() {
        let (member, root) = (Sender::Member { nranks: 1024 }, Sender::Root { nranks: 1024 });
        for (sender, kind, longest) in [
            (member, PIECE, (16 << 10) - 4),
            (member, GOODBYE, 0),
            (member, NOTICE, 4 + MAX_NOTICE),
            (root, PIECES, MAX_GATHER),
            (root, FAILED, MAX_TEXT),
            (root, ALL_GOODBYE, 1),
        ] {
            assert!(verdict(sender, &header(kind, longest)).is_ok(), "{sender:?} {kind} {longest}");
            assert!(verdict(sender, &header(kind, longest + 1)).is_err(), "{sender:?} {kind} {longest} + 1");
        }
    }

    #[test]
    fn nobody_sends_what_is_not_his() {
        for kind in [PIECES, FAILED, ALL_GOODBYE, 0, 7, 255] {
            assert!(verdict(Sender::Member { nranks: 2 }, &header(kind, 0)).is_err(), "{kind}");
        }
        for kind in [PIECE, GOODBYE, 0, 7, 255] {
            assert!(verdict(Sender::Root { nranks: 2 }, &header(kind, 0)).is_err(), "{kind}");
        }
    }

    #[test]
    fn there_is_one_piece_per_rank() {
        for n in [0, 1, 3] {
            let wire = Frame::Pieces(vec![Vec::new(); n]).encode();
            assert!(verdict(Sender::Root { nranks: 2 }, &wire).is_err(), "{n}");
        }
    }

    #[test]
    fn large_buffers_are_given_back() {
        let mut reader = FrameReader::new(Sender::Root { nranks: 1 });
        reader.feed(&Frame::Pieces(vec![vec![1; 1 << 20]]).encode());
        assert!(reader.take().unwrap().is_some());
        assert_eq!(reader.buffer.capacity(), 0);
    }
}
