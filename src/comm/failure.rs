//! What a failure on the device means, in words for the caller; and what the watchdog reads of a rank.

use super::Ready;
use crate::error::{Code, Error};
use crate::executor::lane::Failure;
use crate::executor::layout::failure;
use crate::observe::mismatch::{self, Announce, CallView};
use crate::observe::watchdog::{Sample, Waiting, Watched};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is wrong with this rank's communicator, as far as it knows by itself.
pub struct Known {
    pub error: Error,
    /// Another rank knows more and will say so, if it can.
    pub second_hand: bool,
}

/// Looks for it. `None`: nothing is wrong, or this rank was aborted, which is its own doing.
pub fn current(ready: &Ready) -> Option<Known> {
    if let Some(f) = ready.lane.failure() {
        let (cause, _) = cause_of(&f);
        let whole_story = [failure::LINK_FAILED, failure::DEADLINE].contains(&cause);
        return explain(ready, &f).map(|error| Known { error, second_hand: f.code == failure::PEER_FAILED && !whole_story });
    }
    let (peer, mine, theirs) = ready.lane.network.as_ref()?.disagreement()?;
    let error = Error::usage(mismatch::explain(&ready.name(), ready.rank as u32, &mine, peer as u32, &theirs));
    Some(Known { error, second_hand: false })
}

/// Why the peer in a `PEER_FAILED` gave up, and because of which rank.
fn cause_of(f: &Failure) -> (u32, u64) {
    (f.theirs.reserved[0] as u32, f.theirs.reserved[0] >> 32)
}

fn explain(ready: &Ready, f: &Failure) -> Option<Error> {
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
        failure::LINK_FAILED => {
            let why = ready.lane.network.as_ref().and_then(|n| n.failure()).map_or_else(String::new, |lost| format!(": {}", lost.why));
            Error::remote(format!(
                "rank {me} was in {call}, and rank {} of communicator {communicator} cannot be reached any more{why}",
                f.rank
            ))
        }
        _ => {
            let (cause, because_of) = cause_of(f);
            let why = match cause {
                failure::LINK_FAILED => format!("it cannot reach rank {because_of} any more"),
                failure::DEADLINE => format!("it has waited too long for rank {because_of}"),
                failure::MISMATCH => format!("it disagrees with rank {because_of} about the operation"),
                _ => "see its own message".to_owned(),
            };
            Error::remote(format!("rank {} of communicator {communicator} gave up while rank {me} was in {call}: {why}", f.rank))
        }
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
        let failure = current(&ready);
        if let Some(Known { error, second_hand: false }) = &failure
            && !self.told.swap(true, Ordering::Relaxed)
        {
            ready.bootstrap.post_notice(error.message.as_bytes());
        }
        // Whoever waits for the rank that has revoked gets nothing more from it.
        let failure = failure.map(|known| known.error.message).or_else(|| ready.heed_revocation().map(|by| revoked(&ready, by)));
        Sample { activity: ready.launcher.count(), waiting, failure }
    }
}
