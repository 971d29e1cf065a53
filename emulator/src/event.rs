//! Events: a point in a stream, or in a capture.

use crate::launch::Work;
use crate::result::{Code, Result};
use crate::state::State;
use crate::stream::Completion;
use std::sync::{Arc, Mutex};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// What an event stands for since it was last recorded.
#[derive(Clone, Default)]
pub enum Point {
    #[default]
    Never,
    Item(Completion),
    Captured {
        capture: u64,
        nodes: Vec<usize>,
    },
}

/// The point of an event; graph nodes that record the event share it.
pub type Recorded = Arc<Mutex<Point>>;

pub struct Event {
    pub device: usize,
    pub flags: u32,
    pub recorded: Recorded,
}

impl State {
    pub fn event(&self, handle: usize) -> Result<&Event> {
        self.events.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    fn point(&self, handle: usize) -> Result<Point> {
        Ok(crate::state::lock(&self.event(handle)?.recorded).clone())
    }

    /// `external` makes the record a node of its own where the stream is capturing.
    pub fn record_event(&mut self, handle: usize, stream: usize, external: bool) -> Result {
        let key = self.stream_key(stream)?;
        let event = self.event(handle)?;
        if event.device != self.streams[&key].device {
            return Err(Code::INVALID_HANDLE);
        }
        let recorded = event.recorded.clone();
        let point = match self.capture_of(key)? {
            Some(_) if external => return self.capture_node(key, Work::Record(recorded)),
            Some(capture) => Point::Captured { capture, nodes: self.capture_nodes(key) },
            None => Point::Item(self.enqueue(key, Vec::new(), Work::Nothing)?),
        };
        *crate::state::lock(&recorded) = point;
        Ok(())
    }

    pub fn wait_event(&mut self, stream: usize, handle: usize, external: bool) -> Result {
        let key = self.stream_key(stream)?;
        let point = self.point(handle)?;
        // A stream whose capture has failed says so first.
        let capturing = self.capture_of(key)?;
        match (point, capturing) {
            (_, Some(_)) if external => {
                let recorded = self.event(handle)?.recorded.clone();
                self.capture_node(key, Work::WaitFor(recorded))
            }
            (Point::Never, _) => Ok(()),
            (Point::Captured { capture, nodes }, _) => self.join_capture(key, capture, &nodes),
            (Point::Item(_), Some(capture)) => {
                self.invalidate_capture(capture);
                Err(Code::CAPTURE_ISOLATION)
            }
            (Point::Item(done), None) => self.enqueue(key, vec![done], Work::Nothing).map(|_| ()),
        }
    }

    /// What a query or a wait on the host looks at.
    pub fn event_completion(&self, handle: usize) -> Result<Completion> {
        match self.point(handle)? {
            Point::Never => Ok(Completion::finished()),
            Point::Item(done) => Ok(done),
            Point::Captured { .. } => Err(Code::CAPTURED_EVENT),
        }
    }

    /// Milliseconds between two recorded events.
    pub fn elapsed(&self, from: usize, to: usize) -> Result<f32> {
        let time = |handle| -> Result<_> {
            let timed = self.event(handle)?.flags & DISABLE_TIMING == 0;
            match self.point(handle)? {
                Point::Item(done) if timed => done.time().ok_or(Code::NOT_READY),
                Point::Captured { .. } => Err(Code::CAPTURED_EVENT),
                _ => Err(Code::INVALID_HANDLE),
            }
        };
        let (from, to) = (time(from)?, time(to)?);
        let seconds = to.saturating_duration_since(from).as_secs_f64() - from.saturating_duration_since(to).as_secs_f64();
        Ok((seconds * 1e3) as f32)
    }
}
