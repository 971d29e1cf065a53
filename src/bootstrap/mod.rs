//! How ranks meet: a TCP rendezvous from a 128-byte id.
//!
//! `ncclGetUniqueId` starts a root thread in its process ([`root`]) and puts its addresses and a random key into the id ([`create`], [`id`]).
//! Each rank connects ([`connect`]), both sides prove that they know the key ([`door`], [`handshake`]), and from then on exchange frames
//! ([`frame`]) through the root ([`roster`], [`member`]): all-gathers during init and split, notices of failures, and the goodbyes that tell when
//! memory may be used again. Ranks of the root's host connect over loopback; nothing is sent on other interfaces then.

mod comm_id;
mod connect;
mod create;
mod door;
mod epoll;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod guests;
mod handshake;
mod host;
mod id;
mod interface;
mod limits;
mod member;
mod outbox;
mod retry;
mod root;
mod roster;
mod socket;
#[cfg(test)]
mod tests;

pub use connect::prove_to;
pub use create::create_id;
pub use guests::Guests;
pub use host::{host_token, process_token};
pub use id::UniqueId;
pub use interface::{Family, SocketSettings, local_address};
pub use limits::MAX_RANKS;
pub use member::{Bootstrap, Join, join};
pub use socket::listen;
