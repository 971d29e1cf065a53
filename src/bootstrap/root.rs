//! The root: one thread, one loop, one communicator. It lets members in ([`Door`]), serves them ([`Roster`]), and ends when the last one has
//! left, or when nobody has come for a long time.
//!
//! A star serves: 1,024 ranks meet in a second or so on two cores, most of which is the kernel copying what everybody must get anyway. A tree
//! would divide that copying among processes, but every rank between two others would be one more whose end breaks the rest.

use super::door::{Door, Whose, whose};
use super::epoll::Epoll;
use super::roster::Roster;
use crate::error::{Error, Result};
use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// A root that nobody needs any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Ranks that come after the meeting has failed are told so for this long.
const FAILURE_TOLD_FOR: Duration = Duration::from_secs(10);

/// Starts the thread at which ranks meet. It ends by itself.
pub fn start(listeners: Vec<TcpListener>, key: [u8; 32]) -> Result<()> {
    let failed = |e: io::Error| Error::system(format!("cannot start the thread at which ranks meet: {e}"));
    let root = Root::new(listeners, key).map_err(failed)?;
    std::thread::Builder::new().name("mkernel-root".into()).spawn(move || root.run()).map(drop).map_err(failed)
}

struct Root {
    epoll: Epoll,
    door: Door,
    roster: Roster,
    /// When a member came or went last.
    last_seen: Instant,
}

impl Root {
    fn new(listeners: Vec<TcpListener>, key: [u8; 32]) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let door = Door::open(listeners, key, &epoll)?;
        Ok(Self { epoll, door, roster: Roster::default(), last_seen: Instant::now() })
    }

    fn run(mut self) {
        while !self.is_over() {
            let mut knocked = false;
            for event in self.epoll.wait(self.patience()) {
                match whose(event.token) {
                    Whose::Member(rank) => {
                        self.last_seen = Instant::now();
                        self.roster.hear(rank, event, &self.epoll);
                    }
                    Whose::Stranger(serial) => {
                        if let Some(proven) = self.door.hear(serial, &self.epoll) {
                            self.last_seen = Instant::now();
                            self.roster.admit(proven, &self.epoll);
                        }
                    }
                    Whose::Listener => knocked = true,
                }
            }
            if self.roster.complete() {
                self.door.shut(&self.epoll);
            } else if knocked {
                // After the strangers inside were heard: who has answered already needs no place any more.
                self.door.accept(&self.epoll);
            }
            self.door.expire(&self.epoll);
            self.roster.settle();
            self.roster.flush(&self.epoll);
        }
    }

    fn is_over(&self) -> bool {
        if !self.roster.empty() {
            return false;
        }
        self.roster.complete()
            || self.roster.failed_since().is_some_and(|since| since.elapsed() > FAILURE_TOLD_FOR)
            || self.last_seen.elapsed() > ABANDONED_AFTER
    }

    /// How long nothing but a socket can change anything.
    fn patience(&self) -> Duration {
        let failure = self.roster.failed_since().map(|since| since + FAILURE_TOLD_FOR);
        let abandoned = Some(self.last_seen + ABANDONED_AFTER);
        let leaving = if self.roster.empty() { [failure, abandoned] } else { [None, None] };
        let first = leaving.into_iter().chain([self.door.next_deadline()]).flatten().min();
        // A moment more, since the deadline must have passed when the loop looks at the clock.
        first.map_or(ABANDONED_AFTER, |at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }
}
