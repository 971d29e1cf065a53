//! Graphs: nodes with dependencies, and the frozen form that runs as one item of a stream.

use crate::launch::{HostFunction, Work, on_thread};
use crate::state::lock;
use crate::stream::Completion;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct Node {
    pub handle: usize,
    pub work: Work,
    /// Handles of earlier nodes.
    after: Vec<usize>,
}

#[derive(Clone, Default)]
pub struct Graph {
    /// In an order in which each comes after the ones it depends on.
    pub nodes: Vec<Node>,
    index: HashMap<usize, usize>,
    pub retained: Vec<Retained>,
}

impl Graph {
    pub fn add(&mut self, handle: usize, work: Work, after: Vec<usize>) {
        self.index.insert(handle, self.nodes.len());
        self.nodes.push(Node { handle, work, after });
    }

    pub fn has(&self, node: usize) -> bool {
        self.index.contains_key(&node)
    }

    pub fn node(&self, handle: usize) -> Option<&Node> {
        self.index.get(&handle).map(|&i| &self.nodes[i])
    }

    /// These nodes and all that come before them.
    pub fn ancestors(&self, nodes: &[usize]) -> HashSet<usize> {
        let mut found = HashSet::new();
        let mut open = nodes.to_vec();
        while let Some(node) = open.pop() {
            if found.insert(node)
                && let Some(node) = self.node(node)
            {
                open.extend(&node.after);
            }
        }
        found
    }

    /// The same graph with nodes of its own.
    pub fn renumbered(&self, mut new_handle: impl FnMut() -> usize) -> Self {
        let handles: HashMap<usize, usize> = self.nodes.iter().map(|node| (node.handle, new_handle())).collect();
        let mut copy = Self { retained: self.retained.clone(), ..Self::default() };
        for node in &self.nodes {
            copy.add(handles[&node.handle], node.work.clone(), node.after.iter().map(|earlier| handles[earlier]).collect());
        }
        copy
    }

    pub fn instantiate(&self) -> Plan {
        let step = |node: &Node| Step { work: node.work.clone(), after: node.after.iter().map(|earlier| self.index[earlier]).collect() };
        Plan { steps: self.nodes.iter().map(step).collect(), last: Mutex::new(Completion::finished()), _retained: self.retained.clone() }
    }
}

struct Step {
    work: Work,
    /// Indices of earlier steps.
    after: Vec<usize>,
}

/// A graph as it runs (`CUgraphExec`). Launches of one plan run one after the other, as the driver has it.
pub struct Plan {
    steps: Vec<Step>,
    last: Mutex<Completion>,
    _retained: Vec<Retained>,
}

impl Plan {
    /// Its latest launch. Read and replaced under the state's lock.
    pub fn last(&self) -> Completion {
        lock(&self.last).clone()
    }

    pub fn set_last(&self, done: Completion) {
        *lock(&self.last) = done;
    }

    /// Runs every step when the ones before it have finished; steps that do not depend on each other run at the same time.
    pub fn run(self: &Arc<Self>) {
        let mut missing: Vec<usize> = self.steps.iter().map(|step| step.after.len()).collect();
        let mut later = vec![Vec::new(); self.steps.len()];
        for (i, step) in self.steps.iter().enumerate() {
            for &earlier in &step.after {
                later[earlier].push(i);
            }
        }
        let mut ready: Vec<usize> = (0..self.steps.len()).filter(|&i| missing[i] == 0).collect();
        let mut running = 0usize;
        let (finished, finishes) = channel();
        loop {
            let done = match ready[..] {
                // A lone step needs no other thread.
                [only] if running == 0 => {
                    ready.clear();
                    self.steps[only].work.run();
                    only
                }
                _ => {
                    for step in ready.drain(..) {
                        let (plan, finished) = (self.clone(), finished.clone());
                        running += 1;
                        on_thread(move || {
                            plan.steps[step].work.run();
                            // The receiver is there until all running steps have reported.
                            let _ = finished.send(step);
                        });
                    }
                    if running == 0 {
                        return;
                    }
                    running -= 1;
                    match finishes.recv() {
                        Ok(step) => step,
                        Err(_) => return,
                    }
                }
            };
            for &next in &later[done] {
                missing[next] -= 1;
                if missing[next] == 0 {
                    ready.push(next);
                }
            }
        }
    }
}

/// An object of the program's that graphs keep alive.
pub struct UserObject {
    data: usize,
    destroy: HostFunction,
    count: AtomicU32,
}

impl UserObject {
    pub fn new(data: *mut c_void, destroy: HostFunction, count: u32) -> Self {
        Self { data: data as usize, destroy, count: AtomicU32::new(count) }
    }

    pub fn retain(&self, count: u32) {
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// The last reference destroys the object, on another thread, as the driver does. True if this was it. False too where there are fewer
    /// than `count`: nothing is released then.
    pub fn release(&self, count: u32) -> bool {
        let left = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |have| have.checked_sub(count));
        let last = left == Ok(count) && count > 0;
        if last {
            let (data, destroy) = (self.data, self.destroy);
            // SAFETY: the program gave the function for this object, and the last reference is gone.
            on_thread(move || unsafe { destroy(data as *mut c_void) });
        }
        last
    }
}

/// References that a graph holds.
pub struct Retained {
    handle: usize,
    object: Arc<UserObject>,
    count: u32,
}

impl Retained {
    /// Takes over references that the caller has counted.
    pub fn adopt(handle: usize, object: Arc<UserObject>, count: u32) -> Self {
        Self { handle, object, count }
    }

    pub fn is_of(&self, handle: usize) -> bool {
        self.handle == handle
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Gives one reference back. True when none is left here.
    pub fn release_one(&mut self) -> bool {
        self.count -= 1;
        self.object.release(1);
        self.is_empty()
    }
}

impl Clone for Retained {
    fn clone(&self) -> Self {
        self.object.retain(self.count);
        Self { handle: self.handle, object: self.object.clone(), count: self.count }
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        if self.count > 0 {
            self.object.release(self.count);
        }
    }
}
