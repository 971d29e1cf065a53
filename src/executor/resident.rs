//! The host's side of the executor: asks the policy where an operation runs, opens generations, registers operations with them. When and for how
//! long the executor is there is `policy`'s to say; who is served when it leaves is `handshake`'s.

use super::gpu::{Kernels, lock};
use super::handshake::{GenerationWords, Registration};
use super::layout::{EXECUTOR_BLOCKS, Executor, THREADS};
use super::policy::{Placement, Policy, Report, Request, Settings};
use crate::cuda::{Context, DeviceMemory, LaunchStyle, OwnedStream, PinnedMemory, RelaxedCapture};
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Generations whose words may be in use at once. One would do, since a generation is opened when the last has closed; the rest is distance
/// between a mistake and its harm.
const WORDS: usize = 16;
/// The device answers a registration within a round trip over PCIe; longer than this, the GPU is lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub struct Resident {
    state: Mutex<State>,
    words: PinnedMemory,
    started: Instant,
    /// Blocks of the executor's grid: most channels an operation may have to be handed to it.
    pub blocks: u32,
}

struct State {
    stream: OwnedStream,
    policy: Policy,
    /// The latest generation; 0 before the first.
    number: u32,
    /// The policy has its last report.
    accounted: bool,
}

impl Resident {
    pub fn new(context: &Context) -> Result<Self> {
        let set = crate::env::settings();
        // Kernels that run one at a time cannot wait for each other.
        let serialised = std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|v| v == "1");
        let policy = Policy::new(Settings { mode: set.residency, linger_us: set.linger_us, serialised });
        let (_, greatest) = context.stream_priorities()?;
        let state = State { stream: OwnedStream::new(greatest)?, policy, number: 0, accounted: true };
        // A small part of the GPU: the executor is there while others compute.
        let blocks = (context.device.multiprocessors / 8).clamp(1, EXECUTOR_BLOCKS);
        let words = PinnedMemory::new(WORDS * size_of::<GenerationWords>())?;
        Ok(Self { state: Mutex::new(state), words, started: Instant::now(), blocks })
    }

    fn words(&self, number: u32) -> &GenerationWords {
        let slot = self.words.address().cast::<GenerationWords>().wrapping_add(number as usize % WORDS);
        // SAFETY: the slab has WORDS entries, zeroed memory is a valid value, all fields are atomics, and the slab is never freed.
        unsafe { &*slot }
    }

    /// Decides where an uncaptured operation of `bytes` runs. True: it is registered with a generation, and its gate must be launched, or
    /// `withdraw` be called.
    pub fn place(&self, kernels: &Kernels, executor: &DeviceMemory, bytes: u64) -> Result<bool> {
        let mut state = lock(&self.state);
        let now_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if !state.accounted {
            let words = self.words(state.number);
            let report = Report::new(&words.times(), words.is_closed());
            state.policy.report(now_us, &report);
            state.accounted = report.ended;
        }
        let decision = state.policy.place(&Request { now_us, bytes, captured: false, last_finished_us: None });
        if decision.leave && state.number != 0 {
            self.words(state.number).ask_to_leave();
        }
        let Placement::Resident { open } = decision.placement else { return Ok(false) };
        if state.number != 0 && self.register(state.number)? {
            state.policy.registered(false);
            return Ok(true);
        }
        if !open {
            return Ok(false);
        }
        self.open(&mut state, kernels, executor, Duration::from_micros(decision.linger_us))?;
        let registered = self.register(state.number)?;
        if registered {
            state.policy.registered(true);
        }
        Ok(registered)
    }

    fn register(&self, number: u32) -> Result<bool> {
        let asked = Instant::now();
        match self.words(number).register(|| asked.elapsed() > ANSWER_WITHIN) {
            Registration::Registered => Ok(true),
            Registration::Closed => Ok(false),
            Registration::Unanswered => Err(Error::cuda(format!(
                "the resident kernel has not answered for {} s: the GPU is lost or hung (nvidia-smi and dmesg may tell)",
                ANSWER_WITHIN.as_secs()
            ))),
        }
    }

    /// Takes back a registration whose gate could not be launched.
    pub fn withdraw(&self) {
        let state = lock(&self.state);
        self.words(state.number).withdraw();
    }

    /// Runs a generation that finds nothing to do.
    pub fn warm_up(&self, kernels: &Kernels, executor: &DeviceMemory) -> Result<()> {
        let mut state = lock(&self.state);
        self.open(&mut state, kernels, executor, Duration::ZERO)?;
        state.accounted = true; // nothing that the policy should learn from
        state.stream.stream().synchronize()
    }

    fn open(&self, state: &mut State, kernels: &Kernels, executor: &DeviceMemory, linger: Duration) -> Result<()> {
        let _relaxed = RelaxedCapture::enter()?;
        let number = state.number.checked_add(1).unwrap_or(1);
        let words = self.words(number);
        words.prepare(number);
        let stream = state.stream.stream();
        let own = offset_of!(Executor, finished);
        executor.clear(own, offset_of!(Executor, lane_count) - own, stream)?;
        let (mut executor_address, mut words_address) = (executor.address, std::ptr::from_ref(words) as u64);
        let mut linger_ns = u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX);
        let mut params = [
            (&raw mut executor_address).cast::<c_void>(),
            (&raw mut words_address).cast::<c_void>(),
            (&raw mut linger_ns).cast::<c_void>(),
        ];
        // SAFETY: the parameters are those of mk_executor; the executor and the words live as long as the process.
        unsafe { kernels.executor.launch(self.blocks, THREADS, stream, LaunchStyle::Cooperative, &mut params)? };
        state.number = number;
        state.accounted = false;
        Ok(())
    }
}
