//! Places operations and launches them: on the user's stream as a kernel that does the work (inline), or handed to the resident executor.
//!
//! [`gpu`] holds what a process keeps per GPU (kernels, memory pools, the executor); [`lane`] is one communicator's part on the device;
//! [`launch`] puts exactly one kernel on the user's stream for each operation or group.

pub mod gpu;
pub mod lane;
pub mod launch;
pub mod layout;
