//! Streams: a queue and a thread that runs its items one after the other, and the rules by which streams wait for each other.

use crate::capture::StreamCapture;
use crate::launch::Work;
use crate::result::{Code, Result};
use crate::state::{self, State, lock};
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Becomes done once, when the item that it belongs to has run.
#[derive(Clone, Default)]
pub struct Completion(Arc<(Mutex<Option<Instant>>, Condvar)>);

impl Completion {
    pub fn finished() -> Self {
        let completion = Self::default();
        completion.finish();
        completion
    }

    pub fn finish(&self) {
        *lock(&self.0.0) = Some(Instant::now());
        self.0.1.notify_all();
    }

    /// When it was done, if it is.
    pub fn time(&self) -> Option<Instant> {
        *lock(&self.0.0)
    }

    pub fn is_done(&self) -> bool {
        self.time().is_some()
    }

    pub fn wait(&self) {
        let mut done = lock(&self.0.0);
        while done.is_none() {
            done = self.0.1.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One entry of a queue.
struct Item {
    after: Vec<Completion>,
    work: Work,
    done: Completion,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Created,
    /// The default stream of a device, with which blocking streams synchronise.
    Legacy,
    PerThread,
}

pub struct Stream {
    /// Unique among all streams of the process's life.
    pub id: u64,
    pub device: usize,
    pub kind: Kind,
    pub flags: u32,
    pub priority: i32,
    /// The last item so far.
    pub last: Completion,
    pub capture: Option<StreamCapture>,
    queue: Sender<Item>,
}

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
/// Lowest and highest priority.
pub const PRIORITIES: (i32, i32) = (0, -5);

impl Stream {
    pub fn is_blocking(&self) -> bool {
        self.kind != Kind::Legacy && self.flags & NON_BLOCKING == 0
    }
}

fn run(queue: Receiver<Item>) {
    // The loop ends when the stream has been destroyed and everything in the queue has run.
    for item in queue {
        for earlier in &item.after {
            earlier.wait();
        }
        item.work.run();
        item.done.finish();
    }
}

impl State {
    pub fn new_stream(&mut self, device: usize, kind: Kind, flags: u32, priority: i32) -> Result<usize> {
        let (queue, items) = channel();
        let handle = self.new_handle();
        let spawned = std::thread::Builder::new().name("emulated-stream".into()).spawn(move || run(items));
        spawned.map_err(|_| Code::OUT_OF_MEMORY)?;
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        let stream = Stream { id: handle as u64 / 16, device, kind, flags, priority, last: Completion::finished(), capture: None, queue };
        self.streams.insert(handle, stream);
        Ok(handle)
    }

    /// Pending work still runs.
    pub fn destroy_stream(&mut self, handle: usize) -> Result {
        let stream = self.streams.get(&handle).ok_or(Code::INVALID_HANDLE)?;
        if let Some(capture) = stream.capture.as_ref().map(|capture| capture.id) {
            self.invalidate_capture(capture);
        }
        if let Some(stream) = self.streams.remove(&handle) {
            let leftovers = &mut self.devices[stream.device].leftovers;
            leftovers.retain(|(_, last)| !last.is_done());
            leftovers.push((stream.is_blocking(), stream.last));
        }
        Ok(())
    }

    /// The key of a stream handle as a caller gives it: 0 and 1 are the legacy default stream, 2 is the thread's own.
    pub fn stream_key(&mut self, handle: usize) -> Result<usize> {
        match handle {
            0 | 1 => {
                let device = state::need_device()?;
                if let Some(key) = self.devices[device].legacy {
                    return Ok(key);
                }
                let key = self.new_stream(device, Kind::Legacy, 0, 0)?;
                self.devices[device].legacy = Some(key);
                Ok(key)
            }
            2 => self.per_thread_stream(),
            handle if self.streams.contains_key(&handle) => Ok(handle),
            _ => Err(Code::INVALID_HANDLE),
        }
    }

    fn per_thread_stream(&mut self) -> Result<usize> {
        let device = state::need_device()?;
        PER_THREAD.with_borrow_mut(|own| {
            if let Some(&(_, key)) = own.0.iter().find(|(d, _)| *d == device) {
                return Ok(key);
            }
            let key = self.new_stream(device, Kind::PerThread, 0, 0)?;
            own.0.push((device, key));
            Ok(key)
        })
    }

    /// Enqueues `work` after the stream's earlier items, after `after`, and after what the default stream's rules ask for.
    pub fn enqueue(&mut self, key: usize, mut after: Vec<Completion>, work: Work) -> Result<Completion> {
        let stream = self.streams.get(&key).ok_or(Code::INVALID_HANDLE)?;
        let device = &self.devices[stream.device];
        if stream.kind == Kind::Legacy {
            let others =
                self.streams.values().filter(|other| other.device == stream.device && other.is_blocking()).map(|other| &other.last);
            let gone = device.leftovers.iter().filter(|(blocking, _)| *blocking).map(|(_, last)| last);
            after.extend(others.chain(gone).filter(|last| !last.is_done()).cloned());
        } else if stream.is_blocking()
            && let Some(legacy) = device.legacy.and_then(|key| self.streams.get(&key))
            && !legacy.last.is_done()
        {
            after.push(legacy.last.clone());
        }
        let done = Completion::default();
        let stream = self.streams.get_mut(&key).ok_or(Code::INVALID_HANDLE)?;
        stream.last = done.clone();
        stream.queue.send(Item { after, work, done: done.clone() }).map_err(|_| Code::INVALID_HANDLE)?;
        Ok(done)
    }

    /// Enqueues `work`, or records it where the stream is capturing; then there is nothing to wait for.
    pub fn submit(&mut self, handle: usize, work: Work) -> Result<Option<Completion>> {
        let key = self.stream_key(handle)?;
        if self.capture_of(key)?.is_some() {
            self.capture_node(key, work)?;
            return Ok(None);
        }
        self.enqueue(key, Vec::new(), work).map(Some)
    }

    /// The last items of all streams of a device (of all devices without one).
    pub fn pending(&self, device: Option<usize>) -> Vec<Completion> {
        let wanted = |d: usize| device.is_none_or(|device| device == d);
        let streams = self.streams.values().filter(|stream| wanted(stream.device)).map(|stream| &stream.last);
        let gone = self
            .devices
            .iter()
            .enumerate()
            .filter(|(d, _)| wanted(*d))
            .flat_map(|(_, device)| device.leftovers.iter().map(|(_, last)| last));
        streams.chain(gone).filter(|last| !last.is_done()).cloned().collect()
    }
}

/// Waits for everything enqueued so far on a device. The caller does not hold the state.
pub fn wait_for_device(device: Option<usize>) {
    let pending = state::state().pending(device);
    for last in pending {
        last.wait();
    }
}

/// The thread's per-thread default streams, by device.
struct PerThread(Vec<(usize, usize)>);

impl Drop for PerThread {
    fn drop(&mut self) {
        // In a forked child the state may be locked by a thread that is not there.
        if state::ready().is_ok() && !self.0.is_empty() {
            let mut state = state::state();
            for (_, key) in &self.0 {
                let _ = state.destroy_stream(*key);
            }
        }
    }
}

thread_local! {
    static PER_THREAD: RefCell<PerThread> = const { RefCell::new(PerThread(Vec::new())) };
}
