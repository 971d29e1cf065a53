//! What a failure on the device means, in words for the caller.

use super::Ready;
use crate::error::{Code, Error};
use crate::executor::lane::Failure;
use crate::executor::layout::{Announce, failure};
use crate::types::{DataType, OpKind};

/// The error that a recorded failure becomes.
pub fn explain(ready: &Ready, f: &Failure) -> Error {
    let me = ready.rank;
    let mine = describe(&f.mine);
    match f.code {
        failure::MISMATCH => Error::usage(format!(
            "ranks disagree about collective {} of communicator {:#x}: rank {me} called {mine}, but rank {} {}. All ranks must issue the same \
             operations with the same arguments in the same order.",
            f.mine.seq,
            ready.id,
            f.rank,
            theirs(&f.theirs)
        )),
        failure::DEADLINE => Error::new(
            Code::Timeout,
            format!(
                "rank {me} waited for rank {} in {mine} (collective {} of communicator {:#x}) for longer than MKERNEL_TIMEOUT_S: that rank has not \
                 called it, has died, or is stuck in earlier work",
                f.rank, f.mine.seq, ready.id
            ),
        ),
        _ => Error::remote(format!("rank {} of communicator {:#x} gave up while rank {me} was in {mine}: see that rank's own message", f.rank, ready.id)),
    }
}

fn theirs(a: &Announce) -> String {
    match OpKind::from_raw(a.kind) {
        Some(OpKind::Send) if a.seq == 0 => format!("sent {} bytes (modulo 2 GiB) here", a.count),
        Some(_) => format!("called {}", describe(a)),
        None => "sent a chunk of another collective".to_owned(),
    }
}

/// An operation as its rank stated it.
pub fn describe(a: &Announce) -> String {
    let Some(kind) = OpKind::from_raw(a.kind) else { return "an unknown operation".to_owned() };
    let dtype = DataType::ALL.get(usize::from(a.dtype)).map_or("?", |t| t.name());
    let redop = ["sum", "prod", "max", "min", "avg", "premul-sum"].get(usize::from(a.redop)).copied().unwrap_or("?");
    let mut text = format!("{}(count {}, {dtype}", kind.name(), a.count);
    if matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter) {
        text += &format!(", {redop}");
    }
    match kind {
        OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter => text += &format!(", root {}", a.root),
        OpKind::Send | OpKind::Recv => text += &format!(", peer {}", a.root),
        _ => {}
    }
    text + ")"
}
