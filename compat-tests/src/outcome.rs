//! How a check ends.

use std::fmt;

/// Why a check did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The library (or the driver) did something wrong: who, what, and what was expected.
    Failed(String),
    /// The check cannot be made here, and why.
    Skipped(String),
    /// Another rank has failed; its message is the one that counts.
    PeerFailed,
}

pub type Outcome<T = ()> = Result<T, Stop>;

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) => f.write_str(text),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
            Self::PeerFailed => f.write_str("stopped because another rank failed"),
        }
    }
}

/// Puts words before a failure.
pub trait Context<T> {
    fn context(self, words: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T> Context<T> for Outcome<T> {
    fn context(self, words: impl FnOnce() -> String) -> Self {
        self.map_err(|stop| match stop {
            Stop::Failed(text) => Stop::Failed(format!("{}: {text}", words())),
            other => other,
        })
    }
}

/// Returns a failure with the formatted text.
macro_rules! fail {
    ($($text:tt)*) => { return Err($crate::outcome::Stop::Failed(format!($($text)*))) };
}

/// Fails with the formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::outcome::Stop::Failed(format!($($text)*)));
        }
    };
}
pub(crate) use {ensure, fail};
