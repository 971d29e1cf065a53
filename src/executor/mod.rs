//! (Skeleton.)

pub mod handshake;
