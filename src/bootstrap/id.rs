//! What is inside an `ncclUniqueId`: where the root listens, and the key that members prove to hold.

use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const MAGIC: [u8; 8] = *b"mkernel\x02";
const KEY: usize = 8;
const HOST: usize = KEY + 32;
const MAKER: usize = HOST + 8;
const LOOPBACK: usize = MAKER + 8;
const ROUTABLE: usize = LOOPBACK + ADDRESS;
const WELL_KNOWN: usize = ROUTABLE + ADDRESS;
/// An address: family (4, 6 or 0 for none), octets, port, scope.
const ADDRESS: usize = 1 + 16 + 2 + 4;
const _: () = assert!(WELL_KNOWN < 128);

/// Contents of `ncclUniqueId`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({:#x})", self.hash()) // never the key
    }
}

/// The id taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    pub key: [u8; 32],
    /// The root's host, as `host_token` tells it.
    pub host: u64,
    /// The process that made the id and runs the root, as `process_token` tells it; 0: nobody in particular.
    pub maker: u64,
    /// Where ranks of the root's host connect.
    pub loopback: Option<SocketAddr>,
    /// Where ranks of other hosts connect.
    pub routable: Option<SocketAddr>,
    /// `NCCL_COMM_ID`: rank 0 listens at the routable address when it joins.
    pub well_known: bool,
}

impl UniqueId {
    /// Checks that an id was made by this library.
    pub fn from_bytes(bytes: [u8; 128]) -> Result<Self> {
        if bytes[..8] != MAGIC {
            return Err(Error::argument(
                "this ncclUniqueId was not made by this library: all ranks must load the same libmkernel.so, and the id must be passed on unchanged",
            ));
        }
        Ok(Self(bytes))
    }

    pub(super) fn new(c: &Contents) -> Self {
        let mut b = [0u8; 128];
        b[..8].copy_from_slice(&MAGIC);
        b[KEY..HOST].copy_from_slice(&c.key);
        b[HOST..MAKER].copy_from_slice(&c.host.to_le_bytes());
        b[MAKER..LOOPBACK].copy_from_slice(&c.maker.to_le_bytes());
        b[LOOPBACK..ROUTABLE].copy_from_slice(&pack(c.loopback));
        b[ROUTABLE..WELL_KNOWN].copy_from_slice(&pack(c.routable));
        b[WELL_KNOWN] = u8::from(c.well_known);
        Self(b)
    }

    pub(super) fn contents(&self) -> Contents {
        Contents {
            key: self.at(KEY),
            host: u64::from_le_bytes(self.at(HOST)),
            maker: u64::from_le_bytes(self.at(MAKER)),
            loopback: unpack(&self.at(LOOPBACK)),
            routable: unpack(&self.at(ROUTABLE)),
            well_known: self.0[WELL_KNOWN] != 0,
        }
    }

    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }

    /// A key of its own for another purpose of the same communicator.
    pub fn derived_key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.contents().key)
    }

    /// A number for logs and for ordering communicators; tells nothing of the key.
    pub fn hash(&self) -> u64 {
        let digest = blake3::hash(&self.0);
        let mut first = [0u8; 8];
        first.copy_from_slice(&digest.as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

fn pack(address: Option<SocketAddr>) -> [u8; ADDRESS] {
    let mut b = [0; ADDRESS];
    let Some(address) = address else { return b };
    let (family, octets, scope) = match address {
        SocketAddr::V4(a) => (4, a.ip().to_ipv6_mapped().octets(), 0),
        SocketAddr::V6(a) => (6, a.ip().octets(), a.scope_id()),
    };
    b[0] = family;
    b[1..17].copy_from_slice(&octets);
    b[17..19].copy_from_slice(&address.port().to_le_bytes());
    b[19..].copy_from_slice(&scope.to_le_bytes());
    b
}

fn unpack(b: &[u8; ADDRESS]) -> Option<SocketAddr> {
    let mut octets = [0; 16];
    octets.copy_from_slice(&b[1..17]);
    let v6 = Ipv6Addr::from(octets);
    let port = u16::from_le_bytes([b[17], b[18]]);
    match b[0] {
        4 => Some(SocketAddr::new(IpAddr::V4(v6.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)), port)),
        6 => Some(SocketAddr::V6(SocketAddrV6::new(v6, port, 0, u32::from_le_bytes([b[19], b[20], b[21], b[22]])))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_survive() {
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 3));
        for routable in [None, Some("10.1.2.3:4567".parse().unwrap()), Some("[2001:db8::1]:9".parse().unwrap()), Some(scoped)] {
            for loopback in [None, Some("127.0.0.1:1234".parse().unwrap()), Some("[::1]:1234".parse().unwrap())] {
                let c = Contents { key: [7; 32], host: 99, maker: 5, loopback, routable, well_known: routable.is_some() };
                let id = UniqueId::new(&c);
                assert_eq!(UniqueId::from_bytes(id.0).unwrap().contents(), c);
            }
        }
    }

    #[test]
    fn foreign_ids_are_refused() {
        assert!(UniqueId::from_bytes([0x11; 128]).unwrap_err().message.contains("not made by this library"));
    }
}
