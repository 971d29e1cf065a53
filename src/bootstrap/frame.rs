//! The wire format behind the handshake: frames of a length, a kind and a payload. Decoding is pure, takes bytes as they come, and never holds
//! more than one frame's worth beyond the cap.

use crate::error::{Error, Result};

/// Longest payload: an all-gather of 1,024 ranks with 16 KiB each, or one piece of 16 MiB.
pub const MAX_PAYLOAD: usize = 16 << 20;
const HEADER: usize = 5;

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

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        let kind = match self {
            Self::Piece(bytes) => {
                out.extend(bytes);
                1
            }
            Self::Pieces(pieces) => {
                for piece in pieces {
                    out.extend((piece.len() as u32).to_le_bytes());
                    out.extend(piece);
                }
                2
            }
            Self::Failed(text) => {
                out.extend(text.as_bytes());
                3
            }
            Self::Goodbye => 4,
            Self::AllGoodbye(clean) => {
                out.push(u8::from(*clean));
                5
            }
            Self::Notice(rank, bytes) => {
                out.extend(rank.to_le_bytes());
                out.extend(bytes);
                6
            }
            Self::Revoked(rank) => {
                out.extend(rank.to_le_bytes());
                7
            }
        };
        let payload = (out.len() - HEADER) as u32;
        out[..4].copy_from_slice(&payload.to_le_bytes());
        out[4] = kind;
        out
    }

    /// Takes the first whole frame off `buffer`. `None`: more bytes are needed.
    pub fn take(buffer: &mut Vec<u8>) -> Result<Option<Self>> {
        let Some(header) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = header[4];
        if length > MAX_PAYLOAD || !(1..=7).contains(&kind) {
            return Err(Error::remote(format!(
                "a bootstrap connection sent a frame of kind {kind} and {length} bytes, which nobody sends"
            )));
        }
        if buffer.len() < HEADER + length {
            return Ok(None);
        }
        let payload: Vec<u8> = buffer.drain(..HEADER + length).skip(HEADER).collect();
        Self::decode(kind, payload).map(Some)
    }

    fn decode(kind: u8, payload: Vec<u8>) -> Result<Self> {
        let short = || Error::remote(format!("a bootstrap frame of kind {kind} is cut short"));
        Ok(match kind {
            1 => Self::Piece(payload),
            2 => {
                let mut pieces = Vec::new();
                let mut rest = payload.as_slice();
                while !rest.is_empty() {
                    let (length, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
                    let length = u32::from_le_bytes(*length) as usize;
                    if after.len() < length {
                        return Err(short());
                    }
                    pieces.push(after[..length].to_vec());
                    rest = &after[length..];
                }
                Self::Pieces(pieces)
            }
            3 => Self::Failed(String::from_utf8_lossy(&payload).into_owned()),
            4 => Self::Goodbye,
            5 => Self::AllGoodbye(payload.first() == Some(&1)),
            _ => {
                let (rank, bytes) = payload.split_first_chunk::<4>().ok_or_else(short)?;
                let rank = u32::from_le_bytes(*rank);
                if kind == 6 { Self::Notice(rank, bytes.to_vec()) } else { Self::Revoked(rank) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..50);
        prop_oneof![
            bytes().prop_map(Frame::Piece),
            prop::collection::vec(bytes(), 0..9).prop_map(Frame::Pieces),
            "[a-z ]{0,20}".prop_map(Frame::Failed),
            Just(Frame::Goodbye),
            any::<bool>().prop_map(Frame::AllGoodbye),
            (any::<u32>(), bytes()).prop_map(|(r, b)| Frame::Notice(r, b)),
            any::<u32>().prop_map(Frame::Revoked),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(frames in prop::collection::vec(any_frame(), 1..6), step in 1usize..40) {
            let wire: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let (mut buffer, mut got) = (Vec::new(), Vec::new());
            for part in wire.chunks(step) {
                buffer.extend(part);
                while let Some(frame) = Frame::take(&mut buffer).unwrap() {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn any_bytes_decode_or_fail(mut bytes: Vec<u8>) {
            while let Ok(Some(_)) = Frame::take(&mut bytes) {}
        }
    }
}
