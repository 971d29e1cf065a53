//! The doors at which bytes of others enter, for `tests/wire_bytes.rs`. No part of the library's interface.

use super::comm_id;
use super::frame::{FrameReader, Sender};
use super::handshake::{self, CLAIM, HELLO};
use super::id::UniqueId;
use super::interface::{self, SocketSettings};

/// Frames in pieces of `step` bytes, as from a member (`true`) or the root of a communicator of `nranks`. Returns how many were legal. Panics
/// when the reader holds more than a legal frame and what was fed last.
pub fn frames(bytes: &[u8], step: usize, from_member: bool, nranks: usize) -> usize {
    let sender = if from_member { Sender::Member { nranks } } else { Sender::Root { nranks } };
    let mut reader = FrameReader::new(sender);
    let mut legal = 0;
    for part in bytes.chunks(step.max(1)) {
        reader.feed(part);
        loop {
            match reader.take() {
                Ok(Some(_)) => legal += 1,
                Ok(None) => break,
                Err(_) => return legal,
            }
        }
        assert!(reader.waiting() <= super::limits::MAX_GATHER + 5 + step);
    }
    legal
}

/// What a stranger sends to the root, under a key that it does not know. True: it was believed.
pub fn claim(bytes: &[u8; CLAIM]) -> bool {
    handshake::read_claim(&[0x5a; 32], &[0xa5; 16], bytes).is_some()
}

/// What somebody who is no root sends to a member.
pub fn hello(bytes: &[u8; HELLO]) -> bool {
    handshake::read_hello(bytes).is_some()
}

/// An id from anywhere. True: it is one of ours, and says the same when it is written again.
pub fn id(bytes: [u8; 128]) -> bool {
    let Ok(id) = UniqueId::from_bytes(bytes) else { return false };
    let contents = id.contents();
    UniqueId::new(&contents).contents() == contents
}

/// `NCCL_COMM_ID` and `NCCL_SOCKET_IFNAME`.
pub fn settings(text: &str) {
    let _ = comm_id::parse(text);
    let all = [interface::Interface { name: "eth0".into(), address: std::net::Ipv4Addr::new(10, 0, 0, 1).into() }];
    let _ = interface::choose(&all, &SocketSettings { ifname: Some(text.into()), ..SocketSettings::default() });
}
