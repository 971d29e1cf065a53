//! mkernel: a drop-in replacement for NCCL whose collectives run in one persistent kernel per GPU.
//!
//! A call enters at [`abi`], which checks its arguments and translates them; [`group`] collects operations; [`planner`] decides how each
//! one moves; [`executor`] places it (resident or inline) and launches exactly one kernel on the user's stream. [`comm`] holds
//! communicators and their life; [`bootstrap`] is how ranks meet; [`transport`] reaches the ranks of other nodes; [`cuda`] is the only module
//! that names the driver.
//! `docs/architecture.md` tells the whole story.

pub mod abi;
pub mod bootstrap;
pub mod comm;
pub mod cuda;
pub mod env;
pub mod error;
pub mod executor;
pub mod group;
pub mod observe;
mod os;
pub mod planner;
mod sync;
pub mod transport;
pub mod types;
