//! A rank's way to the root: tries the id's addresses, and proves the key both ways.

use super::handshake::{self, HELLO, WELCOME};
use super::host::host_token;
use super::id::Contents;
use super::member::Join;
use super::retry::{LOOK_EVERY, Retry};
use super::socket;
use crate::error::{Error, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The root may have a thousand others to answer first.
const PROVE_WITHIN: Duration = Duration::from_secs(20);
/// A root listens from before its id exists until all ranks have come, so a refused connection is not too early but too late. A few more
/// attempts, in case something between us and it refuses while it starts.
const REFUSALS: u32 = 3;

/// A connection to the root of an id, by which both sides have proved the key.
pub fn connect(contents: &Contents, j: &Join) -> Result<TcpStream> {
    let started = Instant::now();
    let addresses = addresses(contents);
    if addresses.is_empty() {
        return Err(Error::remote(format!(
            "rank {} cannot reach the process that made the unique id: it is on another host, and that host had no interface but loopback",
            j.rank
        )));
    }
    let mut retry = Retry::new(&j.settings);
    let mut refusals = 0;
    loop {
        let mut last = String::new();
        let mut refused = true;
        for address in &addresses {
            match prove(*address, &contents.key, j.rank as u32, j.nranks as u32, j.abort) {
                Ok(stream) => return Ok(stream),
                Err(e) => {
                    refused &= e.kind() == ErrorKind::ConnectionRefused;
                    last = format!("{address}: {e}");
                }
            }
        }
        refusals = if refused { refusals + 1 } else { 0 };
        if refusals > REFUSALS && !contents.well_known {
            return Err(Error::remote(format!(
                "rank {} cannot join: the process that made the unique id has ended, or all ranks of that id have met already ({last}). That \
                 process, usually rank 0's, must live until all ranks have joined, and an id serves one communicator.",
                j.rank
            )));
        }
        let late = !j.timeout.is_zero() && started.elapsed() >= j.timeout;
        if late || !retry.pause(j.abort)? {
            let advice = if contents.well_known {
                "Has rank 0 started, and is NCCL_COMM_ID an address of its host that is reachable from here?"
            } else {
                "Is that process alive, and is the address reachable from here? NCCL_SOCKET_IFNAME chooses its interface."
            };
            let whom = if contents.well_known { "rank 0" } else { "the process that made the unique id" };
            return Err(Error::remote(format!("rank {} cannot reach {whom} ({last}). {advice}", j.rank)));
        }
    }
}

fn addresses(contents: &Contents) -> Vec<SocketAddr> {
    // A container with a network of its own shares the host's boot, but not its loopback: hence the other address too.
    let loopback = contents.loopback.filter(|_| contents.host == host_token(None));
    loopback.into_iter().chain(contents.routable).collect()
}

/// Connects to [`Guests`](super::Guests) and proves the key both ways, with a few attempts. `number`: for their owner. The stream does not block.
pub fn prove_to(address: SocketAddr, key: &[u8; 32], rank: u32, number: u32, abort: &AtomicBool) -> io::Result<TcpStream> {
    const ATTEMPTS: u32 = 5;
    let mut last = io::Error::from(ErrorKind::TimedOut);
    for attempt in 0..ATTEMPTS {
        match prove(address, key, rank, number, abort) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
        if abort.load(Ordering::Acquire) {
            break;
        }
        std::thread::sleep(LOOK_EVERY * (1 << attempt));
    }
    Err(last)
}

/// One attempt. `number`: of ranks, where the root listens.
fn prove(address: SocketAddr, key: &[u8; 32], rank: u32, number: u32, abort: &AtomicBool) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
    socket::tune(&stream)?;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    let mut hello = [0; HELLO];
    read_within(&mut stream, &mut hello, CONNECT_WITHIN, abort)?;
    let invalid = |text| io::Error::new(ErrorKind::InvalidData, text);
    let root_nonce = handshake::read_hello(&hello).ok_or_else(|| invalid("whoever listens there is no bootstrap root of this version"))?;
    let nonce = handshake::nonce()?;
    stream.write_all(&handshake::claim(key, &root_nonce, &nonce, rank, number))?;
    let mut welcome = [0; WELCOME];
    read_within(&mut stream, &mut welcome, PROVE_WITHIN, abort)?;
    if !handshake::is_welcome(key, &root_nonce, &nonce, &welcome) {
        return Err(invalid("whoever listens there serves another communicator"));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// `read_exact` on a stream with a short timeout of its own, for as long as nobody gives up.
fn read_within(stream: &mut TcpStream, mut rest: &mut [u8], within: Duration, abort: &AtomicBool) -> io::Result<()> {
    let started = Instant::now();
    while !rest.is_empty() {
        match stream.read(rest) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(n) => rest = &mut rest[n..],
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if abort.load(Ordering::Acquire) || started.elapsed() > within {
                    return Err(io::Error::new(ErrorKind::TimedOut, "it does not answer"));
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
