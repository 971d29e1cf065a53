//! What carries changes from node to node. One trait, one file a transport.

pub mod socket;
pub mod wire;

use super::mailbox::Slot;
use std::os::fd::RawFd;

/// A change in an outbox that the peer's inbox must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A chunk of `bytes`, then its mark.
    Chunk {
        slot: Slot,
        bytes: usize,
    },
    Credit {
        phase: usize,
        channel: usize,
    },
    Announcement,
    Failure,
}

/// Why a link is over, in words that follow "rank 3 cannot be reached: ".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// The peer has finished with the communicator and said so.
    Goodbye,
    Failed(String),
}

/// One way between this rank and one rank of another node. Changes of one pipe arrive in the order in which they were given. Used by one proxy
/// thread; nothing here waits.
pub trait Link: Send {
    /// Takes a change to carry. An outbox's slot stays as it is until the peer has returned its credit.
    fn carry(&mut self, change: Change);
    /// Moves on what can be moved, both ways. True: something was.
    fn progress(&mut self) -> Result<bool, Broken>;
    /// To be called now and then. `busy`: the rank is in an operation, so a peer that has gone silent must be noticed.
    fn keep_alive(&mut self, busy: bool) -> Result<(), Broken>;
    /// The last words; what is under way goes first, as far as it goes at once.
    fn say_goodbye(&mut self);
    /// Readable when the peer has sent something.
    fn descriptor(&self) -> RawFd;
    /// All that was given has reached the peer's host, so that it arrives even if this process ends.
    fn has_delivered(&self) -> bool;
    /// Something waits for room in the descriptor.
    fn wants_room(&self) -> bool;
}
