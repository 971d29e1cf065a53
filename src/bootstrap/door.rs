//! Lets connections in at the root and keeps them apart until they have proved the key. A stranger costs a fixed buffer and one of a fixed
//! number of places; when all are taken, whoever waits outside gets the place of the one who has been there longest, so strangers who say
//! nothing cannot keep members out. The root's loop calls [`Door::accept`], [`Door::hear`] and [`Door::expire`].

use super::epoll::{Epoll, Interest};
use super::handshake::{self, CLAIM};
use super::socket;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Unproved connections at a time; more wait in the kernel's queue.
pub const MAX_STRANGERS: usize = 256;
/// A connection must have proved itself by then, however it drips.
const PROOF_WITHIN: Duration = Duration::from_secs(10);
/// A stranger keeps its place for so long even when others wait: a member on a busy host needs a moment for its answer.
pub const GRACE: Duration = Duration::from_millis(250);
/// Connections accepted in one turn, so that those who have answered are heard in between.
const AT_ONCE: usize = 64;
/// Pause when the process has no descriptors left.
const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(100);

/// Tokens of listeners and strangers: the upper half says which they are. Members have small tokens.
const LISTENER: u64 = 1 << 32;
const STRANGER: u64 = 2 << 32;

pub struct Door {
    key: [u8; 32],
    listeners: Vec<TcpListener>,
    /// Oldest first.
    strangers: VecDeque<Stranger>,
    next_serial: u32,
    /// The listeners are not looked at before then.
    closed_until: Option<Instant>,
}

struct Stranger {
    serial: u32,
    stream: TcpStream,
    nonce: [u8; 16],
    claim: [u8; CLAIM],
    filled: usize,
    since: Instant,
}

/// A connection that knows the key, what it claims, and the answer that proves us.
pub struct Proven {
    pub stream: TcpStream,
    pub rank: u32,
    pub nranks: u32,
    pub welcome: [u8; handshake::WELCOME],
}

/// Whose token it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Member(u32),
    Listener,
    Stranger(u32),
}

pub fn whose(token: u64) -> Whose {
    match token & !0xffff_ffff {
        LISTENER => Whose::Listener,
        STRANGER => Whose::Stranger(token as u32),
        _ => Whose::Member(token as u32),
    }
}

impl Door {
    pub fn open(listeners: Vec<TcpListener>, key: [u8; 32], epoll: &Epoll) -> io::Result<Self> {
        for listener in &listeners {
            epoll.add(listener, LISTENER, Interest::Read)?;
        }
        Ok(Self { key, listeners, strangers: VecDeque::new(), next_serial: 0, closed_until: None })
    }

    /// Everybody is here: nobody else gets in, and the ports are free for other communicators.
    pub fn shut(&mut self, epoll: &Epoll) {
        self.listeners.drain(..).for_each(|l| epoll.remove(&l));
        self.strangers.drain(..).for_each(|s| epoll.remove(&s.stream));
    }

    /// Lets in who waits outside, a listener at a time in turn: a crowd at one does not block the other.
    pub fn accept(&mut self, epoll: &Epoll) {
        if self.closed_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        // That somebody waits is certain only until one was let in, and only for a certain one does another give way.
        let mut let_in = false;
        for _ in 0..AT_ONCE {
            let mut nobody = true;
            for i in 0..self.listeners.len() {
                if self.strangers.len() >= MAX_STRANGERS && (let_in || !self.make_room(epoll)) {
                    return;
                }
                match self.listeners[i].accept() {
                    Ok((stream, peer)) => {
                        (nobody, let_in) = (false, true);
                        if let Err(e) = self.greet(stream, epoll) {
                            tracing::info!(target: "BOOTSTRAP", "dropping a connection from {peer}: {e}");
                        }
                    }
                    Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                        self.give_up_descriptor(&e, epoll);
                        return;
                    }
                    // Nobody there, or somebody who left before we came.
                    Err(_) => {}
                }
            }
            if nobody {
                return;
            }
        }
    }

    /// Drops the oldest stranger if it has had its time; else closes the door until then.
    fn make_room(&mut self, epoll: &Epoll) -> bool {
        let Some(oldest) = self.strangers.front() else { return true };
        let until = oldest.since + GRACE;
        if Instant::now() < until {
            self.close(until, epoll);
            return false;
        }
        self.drop_oldest("others wait for its place", epoll);
        true
    }

    fn give_up_descriptor(&mut self, e: &io::Error, epoll: &Epoll) {
        if !self.strangers.is_empty() {
            return self.drop_oldest("the process has no file descriptors left", epoll);
        }
        tracing::warn!(target: "BOOTSTRAP", "no rank can join: {e}. Raise the limit of open files (ulimit -n) in the process that made the unique id.");
        self.close(Instant::now() + NO_DESCRIPTORS_PAUSE, epoll);
    }

    fn drop_oldest(&mut self, why: &str, epoll: &Epoll) {
        if let Some(oldest) = self.strangers.pop_front() {
            tracing::info!(target: "BOOTSTRAP", "dropping a connection that has proved nothing: {why}");
            epoll.remove(&oldest.stream);
        }
    }

    /// Keeps those outside from waking the loop.
    fn close(&mut self, until: Instant, epoll: &Epoll) {
        if self.closed_until.is_none() {
            self.watch_listeners(Interest::Nothing, epoll);
        }
        self.closed_until = Some(until);
    }

    fn watch_listeners(&self, interest: Interest, epoll: &Epoll) {
        for listener in &self.listeners {
            // It was added once, so changing it cannot fail.
            let _ = epoll.change(listener, LISTENER, interest);
        }
    }

    fn greet(&mut self, mut stream: TcpStream, epoll: &Epoll) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        socket::tune(&stream)?;
        let nonce = handshake::nonce()?;
        // A new socket has room for so few bytes.
        stream.write_all(&handshake::hello(&nonce))?;
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        epoll.add(&stream, STRANGER | u64::from(serial), Interest::Read)?;
        self.strangers.push_back(Stranger { serial, stream, nonce, claim: [0; CLAIM], filled: 0, since: Instant::now() });
        Ok(())
    }

    /// Reads from a stranger. It leaves the door when it has proved itself, or when it cannot any more.
    pub fn hear(&mut self, serial: u32, epoll: &Epoll) -> Option<Proven> {
        let at = self.strangers.iter().position(|s| s.serial == serial)?;
        let why = match self.strangers[at].read() {
            Ok(false) => return None,
            Ok(true) => {
                let stranger = self.strangers.remove(at)?;
                if let Some(proven) = stranger.prove(&self.key, epoll) {
                    return Some(proven);
                }
                "it does not know the communicator's key".into()
            }
            Err(e) => {
                self.strangers.remove(at).iter().for_each(|s| epoll.remove(&s.stream));
                e.to_string()
            }
        };
        tracing::info!(target: "BOOTSTRAP", "dropping a connection: {why}");
        None
    }

    /// Sends away those whose time is over, and opens the door again.
    pub fn expire(&mut self, epoll: &Epoll) {
        while self.strangers.front().is_some_and(|s| s.since.elapsed() > PROOF_WITHIN) {
            self.drop_oldest("its time is over", epoll);
        }
        if self.closed_until.is_some_and(|until| Instant::now() >= until) {
            self.closed_until = None;
            self.watch_listeners(Interest::Read, epoll);
        }
    }

    /// When [`Self::expire`] has something to do again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.strangers.front().map(|s| s.since + PROOF_WITHIN);
        [oldest, self.closed_until].into_iter().flatten().min()
    }
}

impl Stranger {
    /// True: the claim is complete. No byte behind it is read.
    fn read(&mut self) -> io::Result<bool> {
        while self.filled < CLAIM {
            match self.stream.read(&mut self.claim[self.filled..]) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it left before it proved itself")),
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn prove(self, key: &[u8; 32], epoll: &Epoll) -> Option<Proven> {
        epoll.remove(&self.stream);
        let (nonce, rank, nranks) = handshake::read_claim(key, &self.nonce, &self.claim)?;
        Some(Proven { stream: self.stream, rank, nranks, welcome: handshake::welcome(key, &self.nonce, &nonce) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::HELLO;
    use super::*;
    use std::net::SocketAddr;

    struct World {
        door: Door,
        epoll: Epoll,
        address: SocketAddr,
    }

    const KEY: [u8; 32] = [7; 32];

    impl World {
        fn new() -> Self {
            let listener = socket::listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            let epoll = Epoll::new().unwrap();
            let door = Door::open(vec![listener], KEY, &epoll).unwrap();
            Self { door, epoll, address }
        }

        fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).unwrap()
        }

        /// A turn of the root's loop.
        fn turn(&mut self) -> Vec<Proven> {
            let mut proven = Vec::new();
            for event in self.epoll.wait(Duration::from_millis(20)) {
                match whose(event.token) {
                    Whose::Stranger(serial) => proven.extend(self.door.hear(serial, &self.epoll)),
                    _ => self.door.accept(&self.epoll),
                }
            }
            self.door.expire(&self.epoll);
            proven
        }
    }

    fn claim_of(stream: &mut TcpStream, rank: u32) -> [u8; CLAIM] {
        let mut hello = [0; HELLO];
        stream.read_exact(&mut hello).unwrap();
        let nonce = handshake::read_hello(&hello).unwrap();
        handshake::claim(&KEY, &nonce, &[1; 16], rank, 4)
    }

    #[test]
    fn a_claim_counts_however_it_is_cut() {
        let mut world = World::new();
        let mut member = world.connect();
        world.turn();
        let claim = claim_of(&mut member, 3);
        for byte in &claim[..CLAIM - 1] {
            member.write_all(&[*byte]).unwrap();
            assert!(world.turn().is_empty());
        }
        member.write_all(&claim[CLAIM - 1..]).unwrap();
        let proven = std::iter::repeat_with(|| world.turn()).flatten().next().unwrap();
        assert_eq!((proven.rank, proven.nranks), (3, 4));
        assert!(world.door.strangers.is_empty());
    }

    #[test]
    fn the_oldest_stranger_gives_way() {
        let mut world = World::new();
        let crowd: Vec<_> = (0..MAX_STRANGERS).map(|_| world.connect()).collect();
        while world.door.strangers.len() < MAX_STRANGERS {
            world.turn();
        }
        let first = world.door.strangers[0].serial;
        let mut member = world.connect();
        // Nobody is sent away in the grace period, and then exactly one.
        while world.door.strangers[0].serial == first {
            assert!(world.door.strangers.len() <= MAX_STRANGERS);
            world.turn();
            if world.door.strangers[0].since.elapsed() < GRACE / 2 {
                assert_eq!(world.door.strangers[0].serial, first);
            }
        }
        while world.door.strangers.len() < MAX_STRANGERS {
            world.turn();
        }
        let claim = claim_of(&mut member, 1);
        member.write_all(&claim).unwrap();
        assert_eq!(std::iter::repeat_with(|| world.turn()).flatten().next().unwrap().rank, 1);
        drop(crowd);
    }

    #[test]
    fn tokens_tell_whose_they_are() {
        assert_eq!(whose(LISTENER), Whose::Listener);
        assert_eq!(whose(STRANGER | 0xffff_ffff), Whose::Stranger(u32::MAX));
        assert_eq!(whose(65_535), Whose::Member(65_535));
    }
}
