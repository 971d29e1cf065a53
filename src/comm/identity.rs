//! What ranks tell each other at init: who they are, and where their memory is. Sent through the bootstrap as bytes; decoding checks lengths
//! only, since the bootstrap has proved that the sender holds the communicator's key.

use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Both sides of a communicator must speak the same device protocol; raise this whenever `kernels/layout.h` or the planner changes what ranks
/// agree on.
pub const PROTOCOL_VERSION: u32 = 2;

/// First round: what decides how the communicator is laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub version: u32,
    /// Same number: same process.
    pub process: u64,
    /// Same number: same host.
    pub host: u64,
    pub gpu: [u8; 16],
    pub multiprocessors: u32,
    pub min_channels: u32,
    pub max_channels: u32,
    pub region_budget: u64,
    /// Proxy threads that this rank would use between nodes; the fewest of all ranks counts.
    pub stripes: u32,
    pub zero_copy: bool,
}

/// Second round: where a rank's region is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionCard {
    pub address: u64,
    /// For ranks of other processes; absent when there are none.
    pub handle: Option<[u8; 64]>,
    /// For ranks of other nodes; absent when there are none.
    pub listener: Option<SocketAddr>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or_else(|| Error::internal("a peer's init message is too short: do all ranks load the same libmkernel.so?"))?;
        self.0 = rest;
        Ok(*head)
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

impl Identity {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(72);
        out.extend(self.version.to_le_bytes());
        out.extend(self.process.to_le_bytes());
        out.extend(self.host.to_le_bytes());
        out.extend(self.gpu);
        out.extend(self.multiprocessors.to_le_bytes());
        out.extend(self.min_channels.to_le_bytes());
        out.extend(self.max_channels.to_le_bytes());
        out.extend(self.region_budget.to_le_bytes());
        out.extend(self.stripes.to_le_bytes());
        out.push(u8::from(self.zero_copy));
        out
    }
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader(bytes);
        Ok(Self {
            version: r.u32()?,
            process: r.u64()?,
            host: r.u64()?,
            gpu: r.take()?,
            multiprocessors: r.u32()?,
            min_channels: r.u32()?,
            max_channels: r.u32()?,
            region_budget: r.u64()?,
            stripes: r.u32()?,
            zero_copy: r.take::<1>()?[0] != 0,
        })
    }
}

impl RegionCard {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.address.to_le_bytes().to_vec();
        out.push(u8::from(self.handle.is_some()));
        out.extend(self.handle.iter().flatten());
        if let Some(listener) = self.listener {
            let ip = match listener.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            out.extend(ip.octets());
            out.extend(listener.port().to_le_bytes());
        }
        out
    }
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader(bytes);
        let address = r.u64()?;
        let handle = if r.take::<1>()?[0] == 0 { None } else { Some(r.take()?) };
        let listener = if r.0.is_empty() {
            None
        } else {
            let ip = Ipv6Addr::from(r.take::<16>()?).to_canonical();
            Some(SocketAddr::new(ip, u16::from_le_bytes(r.take()?)))
        };
        Ok(Self { address, handle, listener })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cards_survive_the_wire() {
        let i = Identity {
            version: 1,
            process: 2,
            host: 3,
            gpu: [4; 16],
            multiprocessors: 5,
            min_channels: 6,
            max_channels: 7,
            region_budget: 8,
            stripes: 9,
            zero_copy: true,
        };
        assert_eq!(Identity::decode(&i.encode()), Ok(i));
        for handle in [None, Some([7; 64])] {
            for listener in [None, Some("10.1.2.3:4567".parse().unwrap()), Some("[fd00::1]:9".parse().unwrap())] {
                let c = RegionCard { address: 1 << 40, handle, listener };
                assert_eq!(RegionCard::decode(&c.encode()), Ok(c));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let _ = Identity::decode(&bytes);
            let _ = RegionCard::decode(&bytes);
        }
    }
}
