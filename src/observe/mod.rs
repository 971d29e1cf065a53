//! (Skeleton.)

pub mod mismatch;
pub mod watchdog;
