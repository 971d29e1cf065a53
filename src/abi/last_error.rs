//! The text behind `ncclGetLastError`: one per process, kept until the next failure replaces it.
//!
//! NCCL promises a C string that stays readable, with no word on how long, while any thread may fail at any moment. So texts go round
//! in a ring of fixed buffers: a pointer handed out stays valid for ever, and its text stays the same for the next 63 failures.
//!
//! (For the lead: to be joined with `observe::log`, which is to hold functions of these two names.)

use std::ffi::{CStr, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// NCCL's buffer holds 1023 characters and the terminator; callers may rely on no more than that.
const CAPACITY: usize = 1024;
const SLOTS: usize = 64;

static RING: [[AtomicU8; CAPACITY]; SLOTS] = [const { [const { AtomicU8::new(0) }; CAPACITY] }; SLOTS];
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static WRITER: Mutex<()> = Mutex::new(());

/// Makes `message` what `ncclGetLastError` answers, cut at a character boundary if it is too long.
pub fn set_last_error(message: &str) {
    // A panic while the lock was held left at worst a short text; the next one replaces it.
    let _writer = WRITER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A client that polls a failed communicator brings the same text each time.
    if last_error() == message {
        return;
    }
    let next = (CURRENT.load(Ordering::Relaxed) + 1) % SLOTS;
    let slot = &RING[next];
    let mut end = message.len().min(CAPACITY - 1);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    // The last byte is never written, so a reader of a very old pointer still finds an end.
    for (cell, byte) in slot.iter().zip(message.as_bytes()[..end].iter().map(|b| if *b == 0 { b' ' } else { *b }).chain([0])) {
        cell.store(byte, Ordering::Relaxed);
    }
    CURRENT.store(next, Ordering::Release);
}

/// The latest text as a C string, empty before the first failure.
pub fn last_error_cstr() -> *const c_char {
    RING[CURRENT.load(Ordering::Acquire)].as_ptr().cast()
}

/// The latest text for Rust callers.
pub fn last_error() -> String {
    // SAFETY: `last_error_cstr` points into `RING`, which is static, and whose slots always hold a zero byte: their last one is never written.
    unsafe { CStr::from_ptr(last_error_cstr()) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kept_cut_and_terminated() {
        let _serial = crate::abi::test_lock();
        set_last_error("rank 3 is late");
        let held = last_error_cstr();
        assert_eq!(last_error(), "rank 3 is late");
        set_last_error(&"é".repeat(CAPACITY));
        assert_eq!(last_error().len(), 1022, "cut before the character that does not fit");
        set_last_error("zero\0inside");
        assert_eq!(last_error(), "zero inside");
        // SAFETY: pointers into the ring never dangle.
        assert_eq!(unsafe { CStr::from_ptr(held) }.to_str(), Ok("rank 3 is late"));
    }
}
