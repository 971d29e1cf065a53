//! What the process knows: devices, and a table for each kind of handle, under one lock. Nobody waits for work while holding it.

use crate::capture::Capture;
use crate::event::Event;
use crate::graph::{Graph, Plan, UserObject};
use crate::launch::Module;
use crate::memory::Allocation;
use crate::result::{Code, Result};
use crate::stream::{Completion, Stream};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Default)]
pub struct Device {
    /// The legacy default stream, once something has used it.
    pub legacy: Option<usize>,
    /// Last items of destroyed streams, and whether those were blocking streams.
    pub leftovers: Vec<(bool, Completion)>,
    pub retained: u32,
    pub allocated: usize,
    /// Devices whose memory kernels here may address.
    pub peers: Vec<usize>,
}

pub struct State {
    pub multiprocessors: i32,
    pub devices: Vec<Device>,
    pub streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    pub captures: HashMap<u64, Capture>,
    pub graphs: HashMap<usize, Graph>,
    pub plans: HashMap<usize, Arc<Plan>>,
    pub objects: HashMap<usize, Arc<UserObject>>,
    pub modules: HashMap<usize, Module>,
    /// Function handles: the module and the index in the kernel table.
    pub functions: HashMap<usize, (usize, usize)>,
    pub memory: BTreeMap<usize, Allocation>,
    last_handle: usize,
}

/// Bytes of device memory that a GPU claims to have.
pub const DEVICE_BYTES: usize = 16 << 30;

/// Handles of contexts: device `d` has the one at `CONTEXTS + 16 * d`.
const CONTEXTS: usize = 0xc0de_0000;

struct Process {
    pid: libc::pid_t,
    state: Mutex<State>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

fn pid() -> libc::pid_t {
    // SAFETY: has no preconditions.
    unsafe { libc::getpid() }
}

fn number(name: &str, default: i32, max: i32) -> i32 {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(default).clamp(0, max)
}

/// `cuInit`.
pub fn initialise() -> Result {
    PROCESS.get_or_init(|| Process {
        pid: pid(),
        state: Mutex::new(State {
            multiprocessors: number("MKERNEL_EMULATED_SMS", 8, 1024).max(1),
            devices: (0..number("MKERNEL_EMULATED_GPUS", 1, 64)).map(|_| Device::default()).collect(),
            streams: HashMap::new(),
            events: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            plans: HashMap::new(),
            objects: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            memory: BTreeMap::new(),
            last_handle: 0x10000,
        }),
    });
    ready()
}

/// Fails before `cuInit`, and in a process that was forked after it: the driver does not survive a fork.
pub fn ready() -> Result {
    match PROCESS.get() {
        Some(process) if process.pid == pid() => Ok(()),
        _ => Err(Code::NOT_INITIALIZED),
    }
}

/// The state. Only after `ready` has succeeded.
pub fn state() -> MutexGuard<'static, State> {
    lock(&PROCESS.get().expect("callers have checked `ready`").state)
}

/// Locks; what a panicked holder left behind is still a valid table.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A handle that no other object of the process ever had or will have.
    pub fn new_handle(&mut self) -> usize {
        self.last_handle += 16;
        self.last_handle
    }

    pub fn device(&mut self, ordinal: i32) -> Result<&mut Device> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get_mut(i)).ok_or(Code::INVALID_DEVICE)
    }

    /// The device of a context handle.
    pub fn context_device(&self, context: usize) -> Result<usize> {
        let device = context.wrapping_sub(CONTEXTS) / 16;
        if context_handle(device) == context && device < self.devices.len() { Ok(device) } else { Err(Code::INVALID_CONTEXT) }
    }
}

pub fn context_handle(device: usize) -> usize {
    CONTEXTS.wrapping_add(device.wrapping_mul(16))
}

thread_local! {
    /// The thread's context stack, as devices; the last is current.
    static CONTEXT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The device of the calling thread's current context.
pub fn current_device() -> Option<usize> {
    CONTEXT.with_borrow(|stack| stack.last().copied())
}

/// The same for a call that needs a context.
pub fn need_device() -> Result<usize> {
    current_device().ok_or(Code::INVALID_CONTEXT)
}

/// `cuCtxSetCurrent`: replaces the top of the stack.
pub fn set_current(device: Option<usize>) {
    CONTEXT.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(device);
    });
}

pub fn push_current(device: usize) {
    CONTEXT.with_borrow_mut(|stack| stack.push(device));
}

pub fn pop_current() -> Option<usize> {
    CONTEXT.with_borrow_mut(Vec::pop)
}
