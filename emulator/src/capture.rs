//! Stream capture: what streams that take part in a capture enqueue becomes nodes of a graph.

use crate::graph::Graph;
use crate::launch::Work;
use crate::result::{Code, Result};
use crate::state::State;
use crate::stream::Kind;
use std::cell::Cell;
use std::thread::ThreadId;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// `CUstreamCaptureStatus`.
pub const STATUS_NONE: u32 = 0;
pub const STATUS_ACTIVE: u32 = 1;
pub const STATUS_INVALIDATED: u32 = 2;

pub struct Capture {
    pub graph: usize,
    /// The stream that began it.
    origin: usize,
    mode: u32,
    thread: ThreadId,
    invalidated: bool,
}

/// A stream's part in a capture.
pub struct StreamCapture {
    pub id: u64,
    /// What the stream captures next comes after these. Callers get a pointer to them: replaced, never changed in place.
    pub nodes: Vec<usize>,
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// Exchanges the thread's mode. It is only kept: the emulator forbids nothing to other threads.
pub fn exchange_mode(mode: u32) -> Result<u32> {
    if mode > RELAXED { Err(Code::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
}

impl State {
    /// The capture that a stream takes part in; an error where it has been invalidated, or where this is the legacy stream and a stream that
    /// it would wait for is capturing.
    pub fn capture_of(&mut self, key: usize) -> Result<Option<u64>> {
        let stream = &self.streams[&key];
        if stream.kind == Kind::Legacy {
            return match self.implicit(key) {
                Some(capture) => {
                    self.invalidate_capture(capture);
                    Err(Code::CAPTURE_IMPLICIT)
                }
                None => Ok(None),
            };
        }
        match &stream.capture {
            None => Ok(None),
            Some(capture) if self.captures.get(&capture.id).is_some_and(|c| !c.invalidated) => Ok(Some(capture.id)),
            Some(_) => Err(Code::CAPTURE_INVALIDATED),
        }
    }

    /// The capture that the legacy stream would have to wait for.
    fn implicit(&self, legacy: usize) -> Option<u64> {
        let device = self.streams[&legacy].device;
        let blocking = self.streams.values().filter(|stream| stream.device == device && stream.is_blocking());
        blocking.filter_map(|stream| stream.capture.as_ref()).map(|capture| capture.id).find(|id| self.captures[id].mode != RELAXED)
    }

    /// The status without side effects.
    pub fn capture_status(&self, key: usize) -> Result<u32> {
        let stream = &self.streams[&key];
        if stream.kind == Kind::Legacy {
            return if self.implicit(key).is_some() { Err(Code::CAPTURE_IMPLICIT) } else { Ok(STATUS_NONE) };
        }
        Ok(match &stream.capture {
            None => STATUS_NONE,
            Some(capture) if self.captures.get(&capture.id).is_some_and(|c| !c.invalidated) => STATUS_ACTIVE,
            Some(_) => STATUS_INVALIDATED,
        })
    }

    /// For calls that may not be made on a capturing stream.
    pub fn refuse_capture(&mut self, key: usize) -> Result {
        match self.capture_of(key)? {
            Some(capture) => {
                self.invalidate_capture(capture);
                Err(Code::CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    pub fn invalidate_capture(&mut self, id: u64) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.invalidated = true;
        }
    }

    pub fn begin_capture(&mut self, stream: usize, mode: u32) -> Result {
        let key = self.stream_key(stream)?;
        if mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        match &self.streams[&key] {
            stream if stream.kind == Kind::Legacy => return Err(Code::CAPTURE_UNSUPPORTED),
            stream if stream.capture.is_some() => return Err(Code::ILLEGAL_STATE),
            _ => {}
        }
        let graph = self.new_handle();
        self.graphs.insert(graph, Graph::default());
        let id = self.new_handle() as u64 / 16;
        self.captures.insert(id, Capture { graph, origin: key, mode, thread: std::thread::current().id(), invalidated: false });
        self.set_capture(key, Some(StreamCapture { id, nodes: Vec::new() }));
        Ok(())
    }

    fn set_capture(&mut self, key: usize, capture: Option<StreamCapture>) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.capture = capture;
        }
    }

    /// Ends the capture that began in this stream; the graph is then the caller's.
    pub fn end_capture(&mut self, stream: usize) -> Result<usize> {
        let key = self.stream_key(stream)?;
        let Some(id) = self.streams[&key].capture.as_ref().map(|capture| capture.id) else { return Err(Code::ILLEGAL_STATE) };
        // A stream that joined a capture whose origin was destroyed can only leave it.
        let Some(capture) = self.captures.get(&id) else {
            self.set_capture(key, None);
            return Err(Code::CAPTURE_INVALIDATED);
        };
        if capture.origin != key {
            self.invalidate_capture(id);
            return Err(Code::CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(Code::CAPTURE_WRONG_THREAD);
        }
        let (graph, invalidated) = (capture.graph, capture.invalidated);
        let joined = self.all_joined(graph, key, id);
        self.captures.remove(&id);
        for stream in self.streams.values_mut() {
            if stream.capture.as_ref().is_some_and(|capture| capture.id == id) {
                stream.capture = None;
            }
        }
        if invalidated || !joined {
            self.graphs.remove(&graph);
            return Err(if invalidated { Code::CAPTURE_INVALIDATED } else { Code::CAPTURE_UNJOINED });
        }
        Ok(graph)
    }

    /// True when the origin comes after everything that the other streams have captured.
    fn all_joined(&self, graph: usize, origin: usize, id: u64) -> bool {
        let Some(graph) = self.graphs.get(&graph) else { return true };
        let before = graph.ancestors(&self.capture_nodes(origin));
        let others = self.streams.iter().filter(|(key, stream)| **key != origin && stream.capture.as_ref().is_some_and(|c| c.id == id));
        others.flat_map(|(key, _)| self.capture_nodes(*key)).all(|node| before.contains(&node))
    }

    /// The nodes that the stream's next one comes after.
    pub fn capture_nodes(&self, key: usize) -> Vec<usize> {
        self.streams.get(&key).and_then(|stream| stream.capture.as_ref()).map_or(Vec::new(), |capture| capture.nodes.clone())
    }

    /// Records work of a capturing stream.
    pub fn capture_node(&mut self, key: usize, work: Work) -> Result {
        let Some(id) = self.capture_of(key)? else { return Err(Code::ILLEGAL_STATE) };
        let handle = self.new_handle();
        let after = self.capture_nodes(key);
        let graph = self.captures[&id].graph;
        self.graphs.get_mut(&graph).ok_or(Code::CAPTURE_INVALIDATED)?.add(handle, work, after);
        self.set_capture(key, Some(StreamCapture { id, nodes: vec![handle] }));
        Ok(())
    }

    /// Makes a stream take part in a capture (if it does not yet) and come after `nodes` too.
    pub fn join_capture(&mut self, key: usize, id: u64, nodes: &[usize]) -> Result {
        match self.captures.get(&id) {
            None => return Err(Code::CAPTURED_EVENT),
            Some(capture) if capture.invalidated => return Err(Code::CAPTURE_INVALIDATED),
            Some(_) => {}
        }
        if self.streams[&key].kind == Kind::Legacy {
            self.invalidate_capture(id);
            return Err(Code::CAPTURE_IMPLICIT);
        }
        match self.capture_of(key)? {
            Some(own) if own != id => {
                self.invalidate_capture(id);
                self.invalidate_capture(own);
                return Err(Code::CAPTURE_MERGE);
            }
            _ => {}
        }
        let mut all = self.capture_nodes(key);
        all.extend(nodes);
        all.sort_unstable();
        all.dedup();
        self.set_capture(key, Some(StreamCapture { id, nodes: all }));
        Ok(())
    }

    /// `cuStreamUpdateCaptureDependencies`.
    pub fn update_capture(&mut self, stream: usize, nodes: &[usize], replace: bool) -> Result {
        let key = self.stream_key(stream)?;
        let Some(id) = self.capture_of(key)? else { return Err(Code::ILLEGAL_STATE) };
        let graph = self.graphs.get(&self.captures[&id].graph).ok_or(Code::CAPTURE_INVALIDATED)?;
        if !nodes.iter().all(|node| graph.has(*node)) {
            return Err(Code::INVALID_VALUE);
        }
        if replace {
            self.set_capture(key, Some(StreamCapture { id, nodes: Vec::new() }));
        }
        self.join_capture(key, id, nodes)
    }
}
