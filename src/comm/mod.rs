//! Communicators: what a rank knows of its peers, and the life from init to destroy.
//! The ABI layer calls the functions here; none of them panics on bad input, each says what was wrong.

mod api;

pub use api::*;
