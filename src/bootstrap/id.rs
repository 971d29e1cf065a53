//! What is inside an `ncclUniqueId`: where the root listens, and the key that members prove to hold.

use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const MAGIC: [u8; 8] = *b"mkernel\x01";
const KEY: usize = 8;
const HOST: usize = KEY + 32;
const LOOPBACK: usize = HOST + 8;
const ROUTABLE: usize = LOOPBACK + 2;
const WELL_KNOWN: usize = ROUTABLE + 19;

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
    /// Port on the root's loopback interface; 0: none.
    pub loopback_port: u16,
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
        b[HOST..LOOPBACK].copy_from_slice(&c.host.to_le_bytes());
        b[LOOPBACK..ROUTABLE].copy_from_slice(&c.loopback_port.to_le_bytes());
        if let Some(address) = c.routable {
            let (family, octets) = match address.ip() {
                IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
                IpAddr::V6(ip) => (6, ip.octets()),
            };
            b[ROUTABLE] = family;
            b[ROUTABLE + 1..ROUTABLE + 17].copy_from_slice(&octets);
            b[ROUTABLE + 17..WELL_KNOWN].copy_from_slice(&address.port().to_le_bytes());
        }
        b[WELL_KNOWN] = u8::from(c.well_known);
        Self(b)
    }

    pub(super) fn contents(&self) -> Contents {
        let b = &self.0;
        let word = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        let mut octets = [0u8; 16];
        octets.copy_from_slice(&b[ROUTABLE + 1..ROUTABLE + 17]);
        let v6 = Ipv6Addr::from(octets);
        let ip = match b[ROUTABLE] {
            4 => Some(IpAddr::V4(v6.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED))),
            6 => Some(IpAddr::V6(v6)),
            _ => None,
        };
        let mut key = [0u8; 32];
        key.copy_from_slice(&b[KEY..HOST]);
        let mut host = [0u8; 8];
        host.copy_from_slice(&b[HOST..LOOPBACK]);
        Contents {
            key,
            host: u64::from_le_bytes(host),
            loopback_port: word(LOOPBACK),
            routable: ip.map(|ip| SocketAddr::new(ip, word(ROUTABLE + 17))),
            well_known: b[WELL_KNOWN] != 0,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_survive() {
        for routable in [None, Some("10.1.2.3:4567".parse().unwrap()), Some("[fe80::1]:9".parse().unwrap())] {
            let c = Contents { key: [7; 32], host: 99, loopback_port: 1234, routable, well_known: routable.is_some() };
            let id = UniqueId::new(&c);
            assert_eq!(UniqueId::from_bytes(id.0).unwrap().contents(), c);
        }
    }

    #[test]
    fn foreign_ids_are_refused() {
        assert!(UniqueId::from_bytes([0x11; 128]).unwrap_err().message.contains("not made by this library"));
    }
}
