//! Trying again with growing pauses: `NCCL_SOCKET_RETRY_CNT` attempts more, and before the n-th of them n times
//! `NCCL_SOCKET_RETRY_SLEEP_MSEC`. With the defaults, 34 and 100 ms, that is about a minute.

use super::interface::SocketSettings;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting rank looks at its abort flag.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

pub struct Retry {
    attempt: u32,
    count: u32,
    step: Duration,
}

impl Retry {
    pub fn new(settings: &SocketSettings) -> Self {
        Self { attempt: 0, count: settings.retry_count, step: settings.retry_sleep }
    }

    /// The pause before the next attempt; `None`: there is none.
    fn next(&mut self) -> Option<Duration> {
        if self.attempt == self.count {
            return None;
        }
        self.attempt += 1;
        Some(self.step.saturating_mul(self.attempt))
    }

    /// Waits before the next attempt; false: there is none. Ends early with an error when the communicator is aborted.
    pub fn pause(&mut self, abort: &AtomicBool) -> Result<bool> {
        let Some(pause) = self.next() else { return Ok(false) };
        let begin = Instant::now();
        loop {
            if abort.load(Ordering::Acquire) {
                return Err(Error::usage("the communicator was aborted while its ranks were meeting"));
            }
            let left = pause.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(true);
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(settings: &SocketSettings) -> Vec<u128> {
        let mut retry = Retry::new(settings);
        std::iter::from_fn(|| retry.next()).map(|p| p.as_millis()).collect()
    }

    #[test]
    fn pauses_grow() {
        let few = SocketSettings { retry_count: 4, retry_sleep: Duration::from_millis(7), ..SocketSettings::default() };
        assert_eq!(pauses(&few), [7, 14, 21, 28]);
        assert_eq!(pauses(&SocketSettings { retry_count: 0, ..few }), [0u128; 0]);
        let default = pauses(&SocketSettings::default());
        assert_eq!((default.len(), default.iter().sum::<u128>()), (34, 59_500));
    }

    #[test]
    fn an_abort_ends_a_pause() {
        let settings = SocketSettings { retry_sleep: Duration::from_secs(3600), ..SocketSettings::default() };
        assert!(Retry::new(&settings).pause(&AtomicBool::new(true)).unwrap_err().message.contains("aborted"));
    }
}
