//! Lets in the ranks that connect to each other directly, for `transport::connect`: a [`Door`] with a loop of its own, no roster.

use super::door::{Door, Proven, Whose, whose};
use super::epoll::Epoll;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

pub struct Guests {
    epoll: Epoll,
    door: Door,
}

/// Somebody who holds the key, and the two numbers it claims.
pub struct Guest(Proven);

impl Guest {
    pub fn rank(&self) -> usize {
        self.0.rank as usize
    }

    /// What `prove_to` was given.
    pub fn number(&self) -> usize {
        self.0.nranks as usize
    }

    /// Proves our side. The stream does not block.
    pub fn welcome(mut self) -> io::Result<TcpStream> {
        // It fits the socket's buffer, which is empty.
        self.0.stream.write_all(&self.0.welcome)?;
        Ok(self.0.stream)
    }
}

impl Guests {
    pub fn new(listener: TcpListener, key: [u8; 32]) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let door = Door::open(vec![listener], key, &epoll)?;
        Ok(Self { epoll, door })
    }

    /// Who has proved itself, after waiting for something to happen for at most `limit`.
    pub fn wait(&mut self, limit: Duration) -> Vec<Guest> {
        let mut guests = Vec::new();
        for event in self.epoll.wait(limit) {
            if let Whose::Stranger(serial) = whose(event.token) {
                guests.extend(self.door.hear(serial, &self.epoll).map(Guest));
            }
        }
        self.door.accept(&self.epoll);
        self.door.expire(&self.epoll);
        guests
    }
}
