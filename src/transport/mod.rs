//! Between nodes: what a communicator needs to reach ranks whose memory cannot be addressed.
//!
//! A kernel writes for a rank of another node into an *outbox* in pinned host memory, laid out as the inbox that the rank reads, and gives a
//! 16-byte command to a proxy thread ([`proxy`], [`ring`]). The proxy carries the change through a link ([`net`]) into the peer's inbox: the chunk
//! first, then its mark. [`network`] owns a communicator's memory and links, [`connect`] makes the connections. No CUDA function is called
//! after init: kernels and proxies meet in memory only.
//!
//! Callers: `comm::init` makes a [`Network`], `executor::launch` tells it of launches, `comm` reads its failure.

mod connect;
mod mailbox;
pub mod net;
mod network;
mod proxy;
mod ring;

pub use connect::Listener;
pub use network::{LinkFailure, Network};
