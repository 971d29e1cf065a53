//! What users see of the library's work: the log, and who waits for whom.

pub mod log;
pub mod mismatch;
pub mod watchdog;
