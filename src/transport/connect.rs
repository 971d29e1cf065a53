//! Makes the connections between the ranks of different nodes at init. Each rank listens; the higher rank of a pair connects, once for each proxy
//! thread. Both ends prove that they hold a key that follows from the communicator's, as in the bootstrap, before anything else is said.

use crate::bootstrap::{Guests, SocketSettings, listen, local_address, prove_to};
use crate::error::{Error, Result};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the ranks have to connect, all in all.
const WITHIN: Duration = Duration::from_secs(30);

/// Where the other ranks connect.
pub struct Listener {
    guests: Guests,
    address: SocketAddr,
}

/// A stream to a rank, for its `stripe`-th proxy thread.
pub struct Connected {
    pub rank: usize,
    pub stripe: usize,
    pub stream: TcpStream,
}

impl Listener {
    pub fn open(settings: &SocketSettings, key: &[u8; 32]) -> Result<Self> {
        let ip = local_address(settings)?;
        let failed =
            |e| Error::system(format!("cannot listen at {ip} for ranks of other nodes: {e} (NCCL_SOCKET_IFNAME chooses the interface)"));
        let listener = listen(SocketAddr::new(ip, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { guests: Guests::new(listener, *key).map_err(failed)?, address })
    }

    /// For the other ranks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to the lower of the `others`, by rank with their addresses, and waits for the higher ones. `stripes` streams for each.
    pub fn connect(
        self,
        rank: usize,
        others: &[(usize, SocketAddr)],
        stripes: usize,
        key: &[u8; 32],
        abort: &AtomicBool,
    ) -> Result<Vec<Connected>> {
        let higher: Vec<usize> = others.iter().map(|o| o.0).filter(|r| *r > rank).collect();
        let mut guests = self.guests;
        std::thread::scope(|scope| {
            let coming = scope.spawn(|| accept(&mut guests, &higher, stripes, rank, abort));
            let going = others
                .iter()
                .filter(|other| other.0 < rank)
                .flat_map(|other| (0..stripes).map(move |stripe| (other, stripe)))
                .map(|(&(peer, address), stripe)| {
                    let stream = prove_to(address, key, rank as u32, stripe as u32, abort).map_err(|e| {
                        Error::remote(format!(
                            "rank {rank} cannot connect to rank {peer} at {address}: {e}. Can this host reach that address? NCCL_SOCKET_IFNAME, set where \
                             rank {peer} runs, chooses its interface."
                        ))
                    })?;
                    Ok(Connected { rank: peer, stripe, stream })
                })
                .collect::<Result<Vec<_>>>();
            let coming = coming.join().unwrap_or_else(|_| Err(Error::internal("a connecting thread panicked")));
            let mut all = going?;
            all.extend(coming?);
            Ok(all)
        })
    }
}

fn accept(guests: &mut Guests, from: &[usize], stripes: usize, rank: usize, abort: &AtomicBool) -> Result<Vec<Connected>> {
    let started = Instant::now();
    let mut all: Vec<Connected> = Vec::new();
    while all.len() < from.len() * stripes {
        for guest in guests.wait(Duration::from_millis(20)) {
            let (peer, stripe) = (guest.rank(), guest.number());
            let expected = from.contains(&peer) && stripe < stripes && !all.iter().any(|c| (c.rank, c.stripe) == (peer, stripe));
            if !expected {
                return Err(Error::remote(format!("rank {peer} connected to rank {rank} as its stream {stripe}, which is not expected")));
            }
            let stream = guest.welcome().map_err(|e| Error::remote(format!("rank {peer} left while it connected to rank {rank}: {e}")))?;
            all.push(Connected { rank: peer, stripe, stream });
        }
        if abort.load(Ordering::Acquire) {
            return Err(Error::usage("the communicator was aborted while its ranks were connecting"));
        }
        if started.elapsed() > WITHIN {
            let missing: Vec<_> = from.iter().filter(|r| all.iter().filter(|c| c.rank == **r).count() < stripes).collect();
            return Err(Error::remote(format!("rank {rank} has waited {} s for ranks {missing:?} to connect", WITHIN.as_secs())));
        }
    }
    Ok(all)
}
