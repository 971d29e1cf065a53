//! The atomics of the parts that are model-checked: the standard ones, or loom's under `--cfg loom`.
//!
//! Only code whose interleavings loom explores (`executor::handshake`) takes its atomics from here; everything else uses `std::sync`.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Says that the caller waits for another thread. loom needs it to see that a loop is a wait.
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
