//! Communicators: what a rank knows of its peers, and the life from init to destroy.
//! The ABI layer calls the functions of [`api`] and the methods of [`Communicator`]; none of them panics on bad input, each says what was
//! wrong.

mod api;
mod communicator;
mod failure;
mod identity;
mod init;
mod reclaim;
mod redop;
mod split;

pub use api::*;
pub use communicator::{Communicator, Ready};
