//! (Skeleton.)

pub mod mismatch;
