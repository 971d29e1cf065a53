//! What an item of a stream or a node of a graph does, and how a kernel's blocks run: each on a thread of its own, all at the same time.

use crate::event::{Point, Recorded};
use crate::graph::Plan;
use crate::result::{Code, Result};
use crate::state::lock;
use crate::stream::Completion;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// A loaded image. Which kernels it has does not depend on what is in it: they are the library's own.
pub struct Module {
    pub device: usize,
}

/// `MkHostKernel` of kernels/host_kernels.h.
#[repr(C)]
pub struct HostKernel {
    name: *const c_char,
    run: unsafe extern "C" fn(*mut *mut c_void, u32, u32),
    param_count: usize,
    param_sizes: *const usize,
}

unsafe extern "C" {
    fn mk_host_kernels(count: *mut usize) -> *const HostKernel;
}

/// The library's kernels.
pub fn kernels() -> &'static [HostKernel] {
    let mut count = 0;
    // SAFETY: writes the length of the table that it returns, which is constant.
    unsafe { std::slice::from_raw_parts(mk_host_kernels(&mut count), count) }
}

impl HostKernel {
    pub fn name(&self) -> &'static CStr {
        // SAFETY: names are string literals.
        unsafe { CStr::from_ptr(self.name) }
    }

    fn sizes(&self) -> &'static [usize] {
        // SAFETY: the table says how many sizes there are; they are constant.
        unsafe { std::slice::from_raw_parts(self.param_sizes, self.param_count) }
    }
}

/// Room for an argument of any alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A launch with its own copy of the arguments.
#[derive(Clone)]
pub struct KernelCall {
    kernel: usize,
    blocks: u32,
    arguments: Vec<Vec<Line>>,
}

impl KernelCall {
    /// # Safety
    /// `params[i]` points to the kernel's i-th argument.
    pub unsafe fn new(kernel: usize, blocks: u32, params: *const *const c_void) -> Result<Self> {
        let sizes = kernels()[kernel].sizes();
        if params.is_null() && !sizes.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        let mut arguments = Vec::with_capacity(sizes.len());
        for (i, &size) in sizes.iter().enumerate() {
            // SAFETY: the caller passes as many pointers as the kernel has parameters.
            let from = unsafe { *params.add(i) };
            if from.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            let mut lines = vec![Line([0; 64]); size.div_ceil(64)];
            // SAFETY: the argument has the parameter's size, and the lines have room for it.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), lines.as_mut_ptr().cast::<u8>(), size) };
            arguments.push(lines);
        }
        Ok(Self { kernel, blocks, arguments })
    }

    /// Runs all blocks and waits for them. The first runs on the calling thread.
    fn run(&self) {
        let left = Arc::new((AtomicU32::new(self.blocks), Completion::default()));
        // Every block gets its own copy of the arguments, as on a GPU.
        for block in 1..self.blocks {
            let (call, left) = (self.clone(), left.clone());
            on_thread(move || {
                call.run_block(block);
                if left.0.fetch_sub(1, Ordering::AcqRel) == 1 {
                    left.1.finish();
                }
            });
        }
        let mut own = self.clone();
        own.run_block_in_place(0);
        if left.0.fetch_sub(1, Ordering::AcqRel) != 1 {
            left.1.wait();
        }
    }

    fn run_block(mut self, block: u32) {
        self.run_block_in_place(block);
    }

    fn run_block_in_place(&mut self, block: u32) {
        let mut params: Vec<*mut c_void> = self.arguments.iter_mut().map(|lines| lines.as_mut_ptr().cast()).collect();
        // SAFETY: the arguments have the sizes that the kernel's table entry names; what they point to is the launching program's to keep.
        unsafe { (kernels()[self.kernel].run)(params.as_mut_ptr(), block, self.blocks) };
    }
}

/// An address of the program's, handed to the thread that will use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub usize);

/// `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// How `WaitValue` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// At least, as a signed difference.
    AtLeast,
    Equal,
    And,
    Nor,
}

/// What an item does. The program keeps the memory that it names until it has run.
#[derive(Clone)]
pub enum Work {
    Nothing,
    Kernel(KernelCall),
    Copy {
        to: Address,
        from: Address,
        bytes: usize,
    },
    /// A copy whose source was read at the call.
    Write {
        to: Address,
        data: Arc<[u8]>,
    },
    /// `count` times an element of `width` bytes.
    Set {
        to: Address,
        value: u32,
        width: usize,
        count: usize,
    },
    Host {
        function: HostFunction,
        data: Address,
    },
    Graph(Arc<Plan>),
    Record(Recorded),
    WaitFor(Recorded),
    StoreWord {
        to: Address,
        value: u64,
        wide: bool,
    },
    AwaitWord {
        at: Address,
        value: u64,
        wide: bool,
        compare: Compare,
    },
}

impl Work {
    pub fn run(&self) {
        match self {
            Self::Nothing => {}
            Self::Kernel(call) => call.run(),
            Self::Graph(plan) => plan.run(),
            // SAFETY: both ranges were in known memory (or the program's own) at the call; the program keeps them until this has run.
            Self::Copy { to, from, bytes } => unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, *bytes) },
            // SAFETY: the range was in known memory at the call; the program keeps it.
            Self::Write { to, data } => unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.0 as *mut u8, data.len()) },
            Self::Set { to, value, width, count } => {
                // SAFETY: the range was in known memory and the address aligned to the width at the call; the program keeps it.
                unsafe {
                    match width {
                        1 => std::ptr::write_bytes(to.0 as *mut u8, *value as u8, *count),
                        2 => std::slice::from_raw_parts_mut(to.0 as *mut u16, *count).fill(*value as u16),
                        _ => std::slice::from_raw_parts_mut(to.0 as *mut u32, *count).fill(*value),
                    }
                }
            }
            // SAFETY: the program gave the function for this call with this argument.
            Self::Host { function, data } => unsafe { function(data.0 as *mut c_void) },
            Self::Record(recorded) => *lock(recorded) = Point::Item(Completion::finished()),
            Self::WaitFor(recorded) => {
                let point = lock(recorded).clone();
                if let Point::Item(done) = point {
                    done.wait();
                }
            }
            // SAFETY: an aligned word of known memory, which the program keeps until this has run.
            Self::StoreWord { to, value, wide } => unsafe {
                if *wide {
                    AtomicU64::from_ptr(to.0 as *mut u64).store(*value, Ordering::SeqCst);
                } else {
                    AtomicU32::from_ptr(to.0 as *mut u32).store(*value as u32, Ordering::SeqCst);
                }
            },
            Self::AwaitWord { at, value, wide, compare } => {
                while !compare.holds(read_word(*at, *wide), *value, *wide) {
                    std::thread::yield_now();
                }
            }
        }
    }
}

fn read_word(at: Address, wide: bool) -> u64 {
    // SAFETY: an aligned word of known memory, which the program keeps until the wait is over.
    unsafe {
        if wide {
            AtomicU64::from_ptr(at.0 as *mut u64).load(Ordering::SeqCst)
        } else {
            u64::from(AtomicU32::from_ptr(at.0 as *mut u32).load(Ordering::SeqCst))
        }
    }
}

impl Compare {
    fn holds(self, word: u64, value: u64, wide: bool) -> bool {
        let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
        match self {
            Self::AtLeast if wide => word.wrapping_sub(value) as i64 >= 0,
            Self::AtLeast => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
            Self::Equal => word == value & mask,
            Self::And => word & value & mask != 0,
            Self::Nor => !(word | value) & mask != 0,
        }
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// Threads that wait for their next task. There are always enough: kernels wait for each other, so none may wait for a free thread.
static IDLE: Mutex<Vec<Sender<Task>>> = Mutex::new(Vec::new());

/// Runs a task on a thread that does nothing else meanwhile.
pub fn on_thread(task: impl FnOnce() + Send + 'static) {
    let mut task: Task = Box::new(task);
    loop {
        let idle = lock(&IDLE).pop();
        let Some(thread) = idle else { break };
        match thread.send(task) {
            Ok(()) => return,
            Err(gone) => task = gone.0,
        }
    }
    let (sender, tasks) = channel::<Task>();
    let spawned = std::thread::Builder::new().name("emulated-block".into()).spawn(move || {
        task();
        lock(&IDLE).push(sender.clone());
        for task in tasks {
            task();
            lock(&IDLE).push(sender.clone());
        }
    });
    if let Err(error) = spawned {
        // The blocks that already run would wait for this one for ever.
        eprintln!(
            "emulated GPU: cannot start a thread for a block ({error}); raise the limits on threads and memory, or emulate fewer GPUs"
        );
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;
    use std::time::Duration;

    #[test]
    fn tasks_that_wait_for_each_other_all_get_a_thread() {
        const TASKS: u32 = 300;
        // Twice, so that the second round finds the threads of the first.
        for _ in 0..2 {
            let meeting = Arc::new((Mutex::new(0), Condvar::new()));
            for _ in 0..TASKS {
                let meeting = meeting.clone();
                on_thread(move || {
                    let mut there = lock(&meeting.0);
                    *there += 1;
                    meeting.1.notify_all();
                    drop(meeting.1.wait_while(there, |there| *there < TASKS));
                });
            }
            let there = lock(&meeting.0);
            let (there, _) = meeting.1.wait_timeout_while(there, Duration::from_secs(20), |there| *there < TASKS).unwrap();
            assert_eq!(*there, TASKS);
        }
    }
}
