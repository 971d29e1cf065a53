//! Memory: what is known about addresses, and what is refused.

mod common;

use common::*;
use cuda::exports::memory;
use std::sync::mpsc::channel;

fn attribute(which: i32, address: usize) -> Result<i32, i32> {
    let mut value = 0i32;
    // SAFETY: the attributes asked for here are ints.
    match unsafe { memory::cuPointerGetAttribute((&raw mut value).cast(), which, address) } {
        0 => Ok(value),
        code => Err(code),
    }
}

#[test]
fn addresses_know_their_device_and_type() {
    on_device(1);
    let (words, mut pinned) = (allocate(100), 0);
    // SAFETY: the output is valid.
    ok(unsafe { memory::cuMemHostAlloc(&mut pinned, 100, 0) });
    assert_eq!((attribute(9, words + 99), attribute(2, words)), (Ok(1), Ok(2)));
    assert_eq!(attribute(2, pinned), Ok(1));
    assert_eq!(attribute(9, words + 100), Err(1));
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the outputs are valid.
    ok(unsafe { memory::cuMemGetAddressRange_v2(&mut base, &mut bytes, words + 50) });
    assert_eq!((base, bytes), (words, 100));
    assert_eq!(free(pinned), 1);
    // SAFETY: nothing uses the pages.
    ok(unsafe { memory::cuMemFreeHost(pinned) });
    ok(free(words));
    assert_eq!(free(words), 1);
    assert_eq!(attribute(9, words), Err(1));
}

#[test]
fn fresh_memory_is_not_zero() {
    on_device(0);
    let words = allocate(16);
    assert_eq!(read(words, 4, 0), [0xA5A5_A5A5; 4]);
}

#[test]
fn pageable_sources_are_read_at_the_call() {
    on_device(0);
    let (s, words) = (new_stream(NON_BLOCKING), allocate(8));
    let gate = hold(s);
    let mut source = [1u32, 2];
    // SAFETY: the array has eight bytes.
    ok(unsafe { memory::cuMemcpyHtoDAsync_v2(words, source.as_ptr() as usize, 8, s) });
    source.fill(9);
    drop(gate);
    assert_eq!(read(words, 2, s), [1, 2]);
    assert_eq!(source, [9, 9]);
}

#[test]
fn ranges_that_do_not_exist_are_refused() {
    on_device(0);
    let words = allocate(8);
    let mut none = 0;
    // SAFETY: what is not known is refused.
    unsafe {
        assert_eq!(memory::cuMemsetD8_v2(words, 0, 9), 1);
        assert_eq!(memory::cuMemcpyDtoD_v2(words, words + 4, 8), 1);
        assert_eq!(memory::cuMemAlloc_v2(&mut none, 0), 1);
        assert_eq!(memory::cuMemAlloc_v2(&mut none, 1 << 50), 2);
        assert_eq!(memory::cuMemAlloc_v2(std::ptr::null_mut(), 8), 1);
    }
}

#[test]
fn freeing_waits_for_the_device() {
    on_device(1);
    let (s, words) = (new_stream(NON_BLOCKING), allocate(8));
    let gate = hold(s);
    fill(words, 3, 2, s);
    let (freed, frees) = channel();
    let thread = std::thread::spawn(move || {
        on_device(0);
        let code = free(words);
        // SAFETY: takes a handle only.
        let after = unsafe { cuda::exports::stream::cuStreamQuery(s) };
        freed.send((code, after)).unwrap();
    });
    assert!(frees.try_recv().is_err());
    drop(gate);
    assert_eq!(comes(&frees), (0, 0));
    thread.join().unwrap();
}
