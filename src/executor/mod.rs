//! Places operations and launches them: on the user's stream as a kernel that does the work (inline), or handed to the resident executor.
//!
//! [`gpu`] holds what a process keeps per GPU (kernels, memory pools, the executor); [`lane`] is one communicator's part on the device;
//! [`launch`] puts exactly one kernel on the user's stream for each operation or group. [`policy`] says when the executor is worth having,
//! [`resident`] opens its generations and registers operations with them by the [`handshake`].

pub mod gpu;
pub mod handshake;
pub mod lane;
pub mod launch;
pub mod layout;
pub mod policy;
pub mod resident;
