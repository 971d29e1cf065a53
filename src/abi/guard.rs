//! The line between C and Rust: a panic becomes `ncclInternalError`, an error becomes its code and the text of `ncclGetLastError`.

use super::last_error::set_last_error;
use super::types::{RawResult, ncclTeam};
use crate::comm::Status;
use crate::error::{Error, Result};
use std::any::Any;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// What a private function of this layer may return, and how C sees it.
pub trait Answer {
    type C;
    fn into_c(self) -> Self::C;
    /// The answer after a panic.
    fn panicked() -> Self::C;
}

impl Answer for Result<Status> {
    type C = RawResult;
    fn into_c(self) -> RawResult {
        match self {
            Ok(Status::Done) => RawResult::SUCCESS,
            Ok(Status::InProgress) => RawResult::IN_PROGRESS,
            Err(error) => report(&error),
        }
    }
    fn panicked() -> RawResult {
        RawResult::INTERNAL_ERROR
    }
}

impl Answer for Result<()> {
    type C = RawResult;
    fn into_c(self) -> RawResult {
        self.map(|()| Status::Done).into_c()
    }
    fn panicked() -> RawResult {
        RawResult::INTERNAL_ERROR
    }
}

impl Answer for *const c_char {
    type C = Self;
    fn into_c(self) -> Self {
        self
    }
    fn panicked() -> Self {
        c"internal error".as_ptr()
    }
}

impl Answer for Result<c_int> {
    type C = c_int;
    fn into_c(self) -> c_int {
        self.unwrap_or_else(|error| {
            report(&error);
            -1
        })
    }
    fn panicked() -> c_int {
        -1
    }
}

impl Answer for Result<ncclTeam> {
    type C = ncclTeam;
    /// These calls have no way to fail, so the text is all there is beside a team without members.
    fn into_c(self) -> ncclTeam {
        self.unwrap_or_else(|error| {
            report(&error);
            Self::panicked()
        })
    }
    fn panicked() -> ncclTeam {
        ncclTeam { nRanks: 0, rank: 0, stride: 0 }
    }
}

impl Answer for () {
    type C = ();
    fn into_c(self) {}
    fn panicked() {}
}

/// Runs the body of the exported function `call`.
pub fn enter<A: Answer>(call: &str, body: impl FnOnce() -> A) -> A::C {
    crate::observe::log::start();
    // The state that a body can leave half changed belongs to the core, whose locks notice a panic by themselves.
    catch_unwind(AssertUnwindSafe(|| body().into_c())).unwrap_or_else(|panic| {
        let what = panic_text(&*panic);
        report(&Error::internal(format!("{call}: internal error: {what}. This is a bug in mkernel; please report it with this text")));
        A::panicked()
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

/// Keeps the text for `ncclGetLastError` and returns the code.
///
/// An error inside an open group is also what the outermost `ncclGroupEnd` returns.
pub fn report(error: &Error) -> RawResult {
    set_last_error(&error.message);
    crate::group::note_error(error);
    tracing::warn!(target: "CALL", "{error}");
    RawResult(error.code as c_int)
}

/// An out-pointer that must be there.
pub fn required<T>(call: &str, name: &str, pointer: *mut T) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| Error::argument(format!("{call}: {name} is NULL; it must point to where the result is stored")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::last_error::last_error;

    #[test]
    fn panics_stop_at_the_boundary() {
        let _serial = crate::abi::test_lock();
        assert_eq!(enter("ncclSend", || -> Result<()> { panic!("index {} out of range", 7) }), RawResult(3));
        assert!(last_error().starts_with("ncclSend: internal error: index 7 out of range."), "{}", last_error());
        assert_eq!(enter("ncclTeamWorld", || -> Result<ncclTeam> { panic!("plain") }).nRanks, 0);
        assert!(last_error().contains("plain"));
        assert_eq!(enter("ncclTeamRankToWorld", || -> Result<c_int> { std::panic::panic_any(3u8) }), -1);
        assert!(last_error().contains("a panic without a message"));
    }

    #[test]
    fn answers_become_codes_and_text() {
        let _serial = crate::abi::test_lock();
        set_last_error("older");
        assert_eq!(enter("a", || Ok(Status::Done)), RawResult(0));
        assert_eq!(enter("a", || Ok(Status::InProgress)), RawResult(7));
        assert_eq!(last_error(), "older", "success leaves the text alone");
        assert_eq!(enter("a", || Result::<()>::Err(Error::usage("a: no"))), RawResult(5));
        assert_eq!(last_error(), "a: no");
    }
}
