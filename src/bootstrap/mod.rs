//! How ranks meet: a TCP rendezvous from a 128-byte id.
//!
//! `ncclGetUniqueId` starts a root thread in its process ([`root`]) and puts its addresses and a random key into the id ([`id`]). Each rank
//! connects ([`member`]), both sides prove that they know the key ([`handshake`]), and from then on exchange frames ([`frame`]) through the
//! root: all-gathers during init and split, notices of failures, and the goodbyes that tell when memory may be used again. Ranks of the root's
//! host connect over loopback; nothing is sent on other interfaces then.

mod door;
mod frame;
mod handshake;
mod id;
mod interface;
mod member;
mod root;
#[cfg(test)]
mod tests;

pub use door::Door;
pub use id::UniqueId;
pub use interface::{Family, SocketSettings, local_address};
pub use member::{Bootstrap, Join, host_token, join, prove_to};
pub use root::create_id;
