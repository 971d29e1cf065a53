//! Communicators that are over but whose memory may still be in use: by kernels of ours that have not ended, or by peers that still return
//! credits into our region. Their memory goes back to the pools when all ranks have said goodbye; a graph that holds launches keeps it for
//! good. Nothing here waits: the graves are visited whenever a communicator is made or released.

use super::Ready;
use crate::executor::gpu::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Grave {
    ready: Arc<Ready>,
    /// Our own launches are done, and peers have been told.
    quiet: bool,
}

static GRAVES: Mutex<Vec<Grave>> = Mutex::new(Vec::new());

/// Takes over a communicator that nobody will use any more.
pub fn bury(ready: Arc<Ready>) {
    lock(&GRAVES).push(Grave { ready, quiet: false });
    sweep();
}

/// Recycles what can be.
pub fn sweep() {
    let mut graves = lock(&GRAVES);
    let mut kept = Vec::new();
    for mut grave in graves.drain(..) {
        if !grave.quiet && is_drained(&grave.ready) {
            grave.quiet = true;
            if let Err(e) = grave.ready.bootstrap.say_goodbye() {
                tracing::info!(target: "INIT", "saying goodbye to the peers of a released communicator: {e}");
            }
        }
        let over = grave.quiet && grave.ready.bootstrap.all_goodbye().is_some() && !grave.ready.launcher.was_captured();
        match Arc::try_unwrap(grave.ready) {
            // SAFETY: our launches are done and every rank has said that it will not touch the region again (or is gone with its GPU work).
            Ok(ready) if over => unsafe { ready.lane.recycle() },
            Ok(ready) => kept.push(Grave { ready: Arc::new(ready), quiet: grave.quiet }),
            Err(ready) => kept.push(Grave { ready, quiet: grave.quiet }),
        }
    }
    *graves = kept;
}

fn is_drained(ready: &Ready) -> bool {
    let Ok(_guard) = ready.lane.gpu.context.enter() else { return false };
    ready.launcher.drain(&ready.lane, Some(Duration::ZERO)).unwrap_or(false)
}
