//! The host's side of the executor: opens generations, registers operations with them. When and for how long is `policy`'s to say; who is
//! served when one leaves is `handshake`'s.

use super::gpu::{Kernels, lock};
use super::handshake::{GenerationWords, Registration, Times};
use super::layout::{EXECUTOR_BLOCKS, Executor, THREADS};
use crate::cuda::{Context, DeviceMemory, LaunchStyle, OwnedStream, PinnedMemory, RelaxedCapture};
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Generations whose words may be in use at once: the open one and those that other threads still ask.
const WORDS: usize = 16;
/// The device answers a registration within a round trip over PCIe; longer than this, the GPU is lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub struct Resident {
    state: Mutex<State>,
    words: PinnedMemory,
    /// Blocks of the executor's grid: most channels an operation may have to be handed to it.
    pub blocks: u32,
}

struct State {
    stream: OwnedStream,
    /// The latest generation; 0 before the first.
    number: u32,
}

impl Resident {
    pub fn new(context: &Context) -> Result<Self> {
        let (_, greatest) = context.stream_priorities()?;
        let state = State { stream: OwnedStream::new(greatest)?, number: 0 };
        // A small part of the GPU: the executor is there while others compute.
        let blocks = (context.device.multiprocessors / 8).clamp(1, EXECUTOR_BLOCKS);
        Ok(Self { state: Mutex::new(state), words: PinnedMemory::new(WORDS * size_of::<GenerationWords>())?, blocks })
    }

    fn words(&self, number: u32) -> &GenerationWords {
        let slot = self.words.address().cast::<GenerationWords>().wrapping_add(number as usize % WORDS);
        // SAFETY: the slab has WORDS entries, zeroed memory is a valid value, all fields are atomics, and the slab is never freed.
        unsafe { &*slot }
    }

    /// Registers one operation with a generation, opening one if `open`. False: go inline.
    pub fn register(&self, kernels: &Kernels, executor: &DeviceMemory, open: bool, linger: Duration) -> Result<bool> {
        let mut state = lock(&self.state);
        for _ in 0..2 {
            if state.number != 0 {
                let asked = Instant::now();
                match self.words(state.number).register(|| asked.elapsed() > ANSWER_WITHIN) {
                    Registration::Registered => return Ok(true),
                    Registration::Closed => {}
                    Registration::Unanswered => {
                        return Err(Error::cuda(format!(
                            "the resident kernel has not answered for {} s: the GPU is lost or hung (nvidia-smi and dmesg may tell)",
                            ANSWER_WITHIN.as_secs()
                        )));
                    }
                }
            }
            if !open {
                return Ok(false);
            }
            self.open(&mut state, kernels, executor, linger)?;
        }
        Ok(false)
    }

    /// Takes back a registration whose gate could not be launched.
    pub fn withdraw(&self) {
        let state = lock(&self.state);
        self.words(state.number).withdraw();
    }

    /// How the latest generation has spent its time.
    pub fn times(&self) -> Times {
        let state = lock(&self.state);
        self.words(state.number).times()
    }

    fn open(&self, state: &mut State, kernels: &Kernels, executor: &DeviceMemory, linger: Duration) -> Result<()> {
        let _relaxed = RelaxedCapture::enter()?;
        state.number = state.number.checked_add(1).unwrap_or(1);
        let words = self.words(state.number);
        words.prepare(state.number);
        let stream = state.stream.stream();
        let own = offset_of!(Executor, finished);
        executor.clear(own, offset_of!(Executor, lane_count) - own, stream)?;
        let (mut executor_address, mut words_address) = (executor.address, std::ptr::from_ref(words) as u64);
        let mut linger_ns = u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX);
        let mut params =
            [(&raw mut executor_address).cast::<c_void>(), (&raw mut words_address).cast::<c_void>(), (&raw mut linger_ns).cast::<c_void>()];
        // SAFETY: the parameters are those of mk_executor; the executor and the words live as long as the process.
        let launched = unsafe { kernels.executor.launch(self.blocks, THREADS, stream, LaunchStyle::Cooperative, &mut params) };
        launched.inspect_err(|_| state.number = 0)
    }
}
