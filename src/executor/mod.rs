//! (Skeleton.)

pub mod handshake;
pub mod policy;
