//! Groups: everything between `ncclGroupStart` and the outermost `ncclGroupEnd` of one thread. An operation outside a group is a group of
//! one. (Skeleton: bodies follow.)

use crate::comm::Status;
use crate::error::{Error, Result};

pub fn start() -> Result<()> {
    Err(Error::internal("not built yet"))
}
/// Ends the innermost group; the outermost end does the work. Returns the first error of the group, and then nothing was enqueued.
pub fn end() -> Result<Status> {
    Err(Error::internal("not built yet"))
}
/// `ncclGroupSimulateEnd`: closes the group without running it and returns the estimated time in microseconds.
pub fn simulate_end() -> Result<f32> {
    Err(Error::internal("not built yet"))
}
