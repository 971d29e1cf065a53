//! What a failure on the device means, in words for the caller; and what the watchdog reads of a rank.

use super::Ready;
use crate::error::{Code, Error};
use crate::executor::lane::Failure;
use crate::executor::layout::failure;
use crate::observe::mismatch::{self, Announce, CallView};
use crate::observe::watchdog::{Sample, Waiting, Watched};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

/// The error that a recorded failure becomes. `None`: this rank was aborted, which is its own doing.
pub fn explain(ready: &Ready, f: &Failure) -> Option<Error> {
    let (me, communicator) = (ready.rank, ready.name());
    let call = call_of(me, &f.mine);
    Some(match f.code {
        failure::ABORTED => return None,
        failure::MISMATCH => Error::usage(mismatch::explain(&communicator, me as u32, &f.mine, f.rank, &f.theirs)),
        failure::DEADLINE => Error::new(
            Code::Timeout,
            format!(
                "rank {me} waited for rank {} in {call}, operation {} of communicator {communicator}, for longer than MKERNEL_TIMEOUT_S: that rank \
                 has not called it, has died, or is stuck in earlier work",
                f.rank, f.mine.seq
            ),
        ),
        _ => Error::remote(format!(
            "rank {} of communicator {communicator} gave up while rank {me} was in {call}: see that rank's own message",
            f.rank
        )),
    })
}

/// What a rank is told of whose communicator another rank has revoked.
pub fn revoked(ready: &Ready, by: usize) -> String {
    format!(
        "rank {by} has revoked communicator {}, which has ended the operations of rank {}: shrink, split, abort or destroy it",
        ready.name(),
        ready.rank
    )
}

fn call_of(rank: usize, a: &Announce) -> String {
    CallView::decode(rank as u32, a).map_or_else(|| "an operation".to_owned(), |view| view.to_string())
}

/// A rank as the watchdog looks at it. Holds nothing of the communicator.
pub struct Page {
    pub ready: Weak<Ready>,
    /// The other ranks have been told of a failure.
    pub told: AtomicBool,
}

impl Watched for Page {
    fn sample(&self) -> Sample {
        let Some(ready) = self.ready.upgrade() else { return Sample::default() };
        let waiting = ready.lane.long_wait().map(|w| Waiting {
            operation: w.seq,
            call: call_of(ready.rank, &w.op),
            awaited: w.awaited,
            channel: w.channel,
            waited_us: w.ns / 1000,
        });
        let failure = ready.lane.failure().and_then(|f| explain(&ready, &f));
        if let Some(error) = &failure
            && error.code != Code::RemoteError
            && !self.told.swap(true, Ordering::Relaxed)
        {
            ready.bootstrap.post_notice(error.message.as_bytes());
        }
        // Whoever waits for the rank that has revoked gets nothing more from it.
        let failure = failure.map(|e| e.message).or_else(|| ready.heed_revocation().map(|by| revoked(&ready, by)));
        Sample { activity: ready.launcher.count(), waiting, failure }
    }
}
