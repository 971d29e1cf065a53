//! Random and mutated bytes at every door where bytes of others enter the bootstrap: nothing panics, nothing is believed that was not proved, and nobody
//! who has proved nothing makes the library allocate much.

use mkernel::bootstrap::fuzzing;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the largest single allocation.
struct Counting;
static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOTHING_LARGER: usize = 1 << 20;

/// Runs `body` and returns its result and the largest allocation meanwhile. The tests of this file are one, so nobody else allocates.
fn watched<T>(body: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.store(0, Ordering::Relaxed);
    let result = body();
    (result, LARGEST.load(Ordering::Relaxed))
}

/// Mostly headers of frames that could be, with any length.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let header = (any::<u32>(), prop_oneof![1u8..=7, any::<u8>()], proptest::collection::vec(any::<u8>(), 0..64));
    let frame = header.prop_map(|(length, kind, payload)| [&length.to_le_bytes()[..], &[kind], &payload].concat());
    let honest = (1u8..=7, proptest::collection::vec(any::<u8>(), 0..64))
        .prop_map(|(kind, payload)| [&(payload.len() as u32).to_le_bytes()[..], &[kind], &payload].concat());
    proptest::collection::vec(prop_oneof![frame, honest], 0..8).prop_map(|frames| frames.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn bytes_of_others(
        bytes in frames(),
        step in 1usize..200,
        nranks in 1usize..2000,
        claim in any::<[u8; 56]>(),
        hello in any::<[u8; 24]>(),
        id in any::<[u8; 128]>(),
        text in ".{0,80}",
    ) {
        for from_member in [true, false] {
            let (_, largest) = watched(|| fuzzing::frames(&bytes, step, from_member, nranks));
            prop_assert!(largest < NOTHING_LARGER, "{largest} bytes for {} of input", bytes.len());
        }
        let (believed, largest) = watched(|| fuzzing::claim(&claim) || fuzzing::hello(&hello));
        prop_assert!(!believed && largest < NOTHING_LARGER);
        let mut ours = id;
        ours[..8].copy_from_slice(b"mkernel\x01");
        for id in [id, ours] {
            let (_, largest) = watched(|| fuzzing::id(id));
            prop_assert!(largest < NOTHING_LARGER);
        }
        let (_, largest) = watched(|| fuzzing::settings(&text));
        prop_assert!(largest < NOTHING_LARGER);
    }
}
