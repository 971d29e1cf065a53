//! Communicator handles: what an `ncclComm_t` points to, and how one that comes back is recognised.
//!
//! Handles are addresses of slots in one static arena. A handle is checked by arithmetic on its address alone (inside the arena? at the
//! start of a slot?), so a pointer that is not ours is never followed: small integers, freed memory and the handles of the other
//! libnccl that PyTorch and JAX map beside us are all refused without a fault. Two things beat a registry of boxed objects here: the check takes
//! no lock, and a destroyed handle stays recognisable at no cost, because its slot is handed out again only after every other slot
//! has been, the longest unused first.
//!
//! A slot begins and ends with [`MAGIC`], which is for debuggers and core dumps; no decision needs it.

use super::types::{ncclComm, ncclComm_t};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// "mkernel1" in memory order; NCCL's own communicators begin with [`NCCL_MAGIC`].
const MAGIC: u64 = u64::from_le_bytes(*b"mkernel1");
/// Marks a slot whose communicator was destroyed or aborted.
const RETIRED: u64 = u64::from_le_bytes(*b"mkernel-");
/// First word of a communicator of NVIDIA's NCCL.
const NCCL_MAGIC: u64 = 0x0280_0280_0280_0280;

/// Communicators that can be alive at once in a process; jobs hold dozens. The arena is zero memory, so unused slots cost nothing.
const CAPACITY: usize = 16384;

static COMMUNICATORS: Arena<Communicator, CAPACITY> = Arena::new();

/// Gives `comm` a handle.
pub fn issue(comm: Arc<Communicator>) -> Result<ncclComm_t> {
    COMMUNICATORS.issue(comm).map(|address| address as *mut ncclComm)
}

/// The communicator behind `handle`, or the argument error that says why there is none.
pub fn get(call: &str, handle: ncclComm_t) -> Result<Arc<Communicator>> {
    COMMUNICATORS.get(handle.addr()).map_err(|stranger| refuse(call, handle.addr(), stranger))
}

/// As [`get`], and from now on the handle is a destroyed one.
pub fn retire(call: &str, handle: ncclComm_t) -> Result<Arc<Communicator>> {
    COMMUNICATORS.retire(handle.addr()).map_err(|stranger| refuse(call, handle.addr(), stranger))
}

/// Why an address is not a live handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stranger {
    Null,
    Destroyed,
    /// Inside the arena, but not at a slot that was ever issued.
    Damaged,
    Foreign,
}

fn refuse(call: &str, address: usize, stranger: Stranger) -> Error {
    let why = match stranger {
        Stranger::Null => "is NULL".to_owned(),
        Stranger::Destroyed => format!("({address:#x}) was destroyed or aborted before this call; a handle must not be used after that"),
        Stranger::Damaged => format!("({address:#x}) points into this library's handles but not at one; was its value changed?"),
        Stranger::Foreign if peek(address) == Some(NCCL_MAGIC) => format!(
            "({address:#x}) was made by another NCCL library in this process; check that one library answers all calls \
             (LD_PRELOAD=libmkernel.so, or the same path in every dlopen)"
        ),
        Stranger::Foreign => {
            format!("({address:#x}) is not a communicator of this library; pass what ncclCommInitRank or a sibling stored")
        }
    };
    Error::argument(format!("{call}: comm {why}"))
}

/// The word at `address`, asked of the kernel, which answers with an error instead of a fault where nothing is mapped. For messages only.
fn peek(address: usize) -> Option<u64> {
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: size_of::<u64>() };
    // SAFETY: `local` describes `word`, which is alive and writable for eight bytes; the kernel checks `remote` and fails if it is not readable.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    (read == size_of::<u64>() as isize).then_some(word)
}

#[repr(C, align(64))]
struct Slot<T> {
    begin: AtomicU64,
    object: RwLock<Option<Arc<T>>>,
    end: AtomicU64,
}

impl<T> Slot<T> {
    fn mark(&self, magic: u64) {
        self.begin.store(magic, Ordering::Relaxed);
        self.end.store(magic, Ordering::Relaxed);
    }
}

struct Arena<T: 'static, const N: usize> {
    slots: [Slot<T>; N],
    /// Where the search for a free slot goes on.
    next: Mutex<usize>,
}

// The locks are held for single assignments that cannot panic, so a poisoned one still guards a sound value.
impl<T, const N: usize> Arena<T, N> {
    const fn new() -> Self {
        let slots = [const { Slot { begin: AtomicU64::new(0), object: RwLock::new(None), end: AtomicU64::new(0) } }; N];
        Self { slots, next: Mutex::new(0) }
    }

    fn issue(&'static self, object: Arc<T>) -> Result<usize> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..N {
            let slot = &self.slots[*next];
            *next = (*next + 1) % N;
            let mut place = slot.object.write().unwrap_or_else(PoisonError::into_inner);
            if place.is_none() {
                *place = Some(object);
                slot.mark(MAGIC);
                return Ok(std::ptr::from_ref(slot).addr());
            }
        }
        Err(Error::usage(format!("{N} communicators are alive in this process, which is the most it can hold; destroy some")))
    }

    /// The slot at exactly `address`.
    fn slot(&self, address: usize) -> std::result::Result<&Slot<T>, Stranger> {
        if address == 0 {
            return Err(Stranger::Null);
        }
        let offset = address.wrapping_sub(self.slots.as_ptr().addr());
        match self.slots.get(offset / size_of::<Slot<T>>()) {
            None => Err(Stranger::Foreign),
            Some(slot) if offset.is_multiple_of(size_of::<Slot<T>>()) => Ok(slot),
            Some(_) => Err(Stranger::Damaged),
        }
    }

    fn vacant(slot: &Slot<T>) -> Stranger {
        if slot.begin.load(Ordering::Relaxed) == RETIRED { Stranger::Destroyed } else { Stranger::Damaged }
    }

    fn get(&self, address: usize) -> std::result::Result<Arc<T>, Stranger> {
        let slot = self.slot(address)?;
        slot.object.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(|| Self::vacant(slot))
    }

    fn retire(&self, address: usize) -> std::result::Result<Arc<T>, Stranger> {
        let slot = self.slot(address)?;
        let mut place = slot.object.write().unwrap_or_else(PoisonError::into_inner);
        let object = place.take().ok_or_else(|| Self::vacant(slot))?;
        slot.mark(RETIRED);
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_destroyed_and_reused() {
        static ARENA: Arena<u32, 3> = Arena::new();
        let a = ARENA.issue(Arc::new(1)).unwrap();
        let b = ARENA.issue(Arc::new(2)).unwrap();
        assert_eq!(ARENA.get(a).as_deref(), Ok(&1));
        assert_eq!(ARENA.retire(a).as_deref(), Ok(&1));
        assert_eq!(ARENA.get(a), Err(Stranger::Destroyed));
        assert_eq!(ARENA.retire(a), Err(Stranger::Destroyed));
        assert_eq!(ARENA.get(b).as_deref(), Ok(&2));

        let c = ARENA.issue(Arc::new(3)).unwrap();
        assert_ne!(c, a, "a retired slot is not the next to be handed out");
        assert_eq!(ARENA.issue(Arc::new(4)), Ok(a), "but it is, once every other slot has been");
        assert!(ARENA.issue(Arc::new(5)).is_err(), "all three are alive");
    }

    #[test]
    fn strange_addresses_are_never_followed() {
        static ARENA: Arena<u32, 2> = Arena::new();
        let a = ARENA.issue(Arc::new(1)).unwrap();
        assert_eq!(ARENA.get(0), Err(Stranger::Null));
        assert_eq!(ARENA.get(a + 8), Err(Stranger::Damaged));
        assert_eq!(ARENA.get(a + 64), Err(Stranger::Damaged), "never issued");
        for address in [1, 7, 4096, a + 128, a.wrapping_sub(64), usize::MAX, 0xdead_beef_dead_beef] {
            assert_eq!(ARENA.get(address), Err(Stranger::Foreign), "{address:#x}");
        }
    }

    #[test]
    fn one_of_several_threads_ends_a_communicator_that_others_use() {
        static ARENA: Arena<u32, 4> = Arena::new();
        for round in 0..200 {
            let handle = ARENA.issue(Arc::new(round)).unwrap();
            let outcomes = std::thread::scope(|scope| {
                let enders = [(); 2].map(|()| scope.spawn(|| ARENA.retire(handle)));
                let user = scope.spawn(|| ARENA.get(handle));
                let seen = user.join().unwrap();
                assert!(matches!(seen.as_deref(), Ok(value) if *value == round) || seen == Err(Stranger::Destroyed));
                enders.map(|ender| ender.join().unwrap().is_ok())
            });
            assert_ne!(outcomes[0], outcomes[1], "exactly one of two enders gets it");
        }
    }

    #[test]
    fn the_real_librarys_handle_is_named_as_such() {
        let theirs = Box::new(NCCL_MAGIC);
        let text = get("ncclSend", std::ptr::from_ref(&*theirs).cast_mut().cast()).err().unwrap().message;
        assert!(text.starts_with("ncclSend: comm (0x") && text.contains("another NCCL library"), "{text}");
        let text = get("ncclSend", 0x10 as ncclComm_t).err().unwrap().message;
        assert!(text.contains("is not a communicator of this library"), "{text}");
        let text = get("ncclSend", std::ptr::null_mut()).err().unwrap().message;
        assert_eq!(text, "ncclSend: comm is NULL");
    }
}
