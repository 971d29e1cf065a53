//! The C ABI of NCCL 2.30.7: every name that its library exports, each a thin shell around one private function.
//!
//! `table.rs` lists the names and nothing else; `exports` makes the shells from it. A shell catches panics, traces the call, and turns the private function's `Result`
//! into a code and the text of `ncclGetLastError` (`guard`). The private functions check what can be checked without the communicator's
//! state, translate, and call the core: `operations` for what moves data, `communicators` for everything else that works, `stubs` for
//! features that are absent. `types` mirrors the C structs, `config` reads the one that grows, `handle` recognises communicators.
//!
//! # Safety
//!
//! The exported functions are `unsafe` because C callers make this promise: a pointer argument is NULL or points to what `nccl.h`
//! declares, readable or writable as its use demands, for the duration of the call. Every call tolerates NULL. Communicator handles carry no
//! promise at all: any value may come, and only live handles are used. Device pointers are not followed here.

mod communicators;
mod config;
mod device_types;
mod exports;
mod guard;
mod handle;
pub mod last_error;
mod operations;
mod stubs;
pub mod types;
mod version;

pub use exports::*;

/// Tests that set or read the process-wide error text take turns.
#[cfg(test)]
pub fn test_lock() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
