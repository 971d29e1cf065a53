//! In which order things run: within a stream, between streams, and by events.

mod common;

use common::*;
use cuda::exports::{device, event, memory, stream};
use std::sync::mpsc::channel;

#[test]
fn a_stream_runs_its_items_in_order() {
    on_device(0);
    let (s, kernel, words) = (new_stream(NON_BLOCKING), selftest(), allocate(4000));
    let gate = hold(s);
    fill(words, 7, 1000, s);
    for blocks in [1, 3, 16] {
        add_one(kernel, words, 1000, blocks, s);
    }
    assert_eq!(query(s), NOT_READY);
    drop(gate);
    assert_eq!(read(words, 1000, s), vec![10; 1000]);
    assert_eq!(query(s), 0);
}

#[test]
fn arguments_are_those_of_the_call() {
    on_device(0);
    let (s, kernel, words) = (new_stream(NON_BLOCKING), selftest(), allocate(64));
    let gate = hold(s);
    fill(words, 0, 16, s);
    // `add_one` keeps its arguments in its frame, which this second launch overwrites.
    add_one(kernel, words, 4, 1, s);
    add_one(kernel, words, 8, 1, s);
    drop(gate);
    assert_eq!(read(words, 9, s), [2, 2, 2, 2, 1, 1, 1, 1, 0]);
}

#[test]
fn streams_run_at_the_same_time() {
    on_device(0);
    let (kernel, held) = (selftest(), new_stream(NON_BLOCKING));
    let gate = hold(held);
    let streams: Vec<_> = (0..4).map(|_| (new_stream(NON_BLOCKING), allocate(4096))).collect();
    for (s, words) in &streams {
        fill(*words, 1, 1024, *s);
        add_one(kernel, *words, 1024, 8, *s);
    }
    for (s, words) in &streams {
        assert_eq!(read(*words, 1024, *s), vec![2; 1024]);
    }
    assert_eq!(query(held), NOT_READY);
    drop(gate);
    sync(held);
}

#[test]
fn a_wait_is_for_the_record_before_it() {
    on_device(0);
    let (a, b, e) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), new_event());
    let words = allocate(4);
    fill(words, 1, 1, a);
    let first = hold(a);
    fill(words, 2, 1, a);
    record(e, a);
    ok(wait_event(b, e));
    // The later record does not move the earlier wait.
    let second = hold(a);
    record(e, a);
    assert_eq!(query(b), NOT_READY);
    drop(first);
    assert_eq!(read(words, 1, b), [2]);
    // SAFETY: takes a handle only.
    assert_eq!(unsafe { event::cuEventQuery(e) }, NOT_READY);
    drop(second);
    // SAFETY: takes a handle only.
    ok(unsafe { event::cuEventSynchronize(e) });
}

#[test]
fn an_event_that_was_never_recorded_holds_nobody() {
    on_device(0);
    let (s, e) = (new_stream(NON_BLOCKING), new_event());
    ok(wait_event(s, e));
    sync(s);
    // SAFETY: takes a handle only.
    ok(unsafe { event::cuEventQuery(e) });
}

#[test]
fn elapsed_time_needs_two_finished_records() {
    on_device(0);
    let (s, from, to) = (new_stream(NON_BLOCKING), new_event(), new_event());
    let mut milliseconds = -1.0;
    record(from, s);
    let gate = hold(s);
    record(to, s);
    // SAFETY: the output is valid.
    assert_eq!(unsafe { event::cuEventElapsedTime(&mut milliseconds, from, to) }, NOT_READY);
    drop(gate);
    sync(s);
    // SAFETY: the output is valid.
    ok(unsafe { event::cuEventElapsedTime(&mut milliseconds, from, to) });
    assert!(milliseconds >= 0.0);
}

// On the second device, where no other test's default stream is in the way.
#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    on_device(1);
    let (blocking, free) = (new_stream(0), new_stream(NON_BLOCKING));
    let gate = hold(blocking);
    let (ran, runs) = channel();
    let sender = ran.clone();
    ok(host(0, move || sender.send("legacy").unwrap()));
    let sender = ran.clone();
    ok(host(free, move || sender.send("free").unwrap()));
    assert_eq!(comes(&runs), "free");
    // SAFETY: takes a handle only.
    assert_eq!(unsafe { stream::cuStreamQuery(1) }, NOT_READY);
    assert!(runs.try_recv().is_err(), "the legacy stream ran before a blocking one");
    drop(gate);
    assert_eq!(comes(&runs), "legacy");

    let gate = hold(1);
    ok(host(blocking, move || ran.send("blocking").unwrap()));
    sync(free);
    assert_eq!(query(blocking), NOT_READY);
    assert!(runs.try_recv().is_err(), "a blocking stream ran before the legacy one");
    drop(gate);
    assert_eq!(comes(&runs), "blocking");
    sync(blocking);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    on_device(0);
    let s = new_stream(NON_BLOCKING);
    let gate = hold(s);
    let (ran, runs) = channel();
    ok(host(s, move || ran.send(()).unwrap()));
    // SAFETY: takes a handle only.
    ok(unsafe { stream::cuStreamDestroy_v2(s) });
    drop(gate);
    comes(&runs);
    assert_eq!(query(s), 400);
}

#[test]
fn a_word_in_memory_holds_a_stream() {
    on_device(0);
    let (a, b, words) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), allocate(8));
    fill(words, 0, 2, a);
    sync(a);
    // SAFETY: a word that is not known is refused.
    unsafe {
        ok(stream::cuStreamWaitValue32_v2(b, words, 5, 0));
        ok(stream::cuStreamWriteValue32_v2(b, words + 4, 9, 0));
    }
    assert_eq!(read(words, 2, a), [0, 0]);
    // SAFETY: as above.
    ok(unsafe { stream::cuStreamWriteValue32_v2(a, words, 6, 0) });
    sync(b);
    assert_eq!(read(words, 2, a), [6, 9]);
    // SAFETY: an odd address is refused.
    assert_eq!(unsafe { stream::cuStreamWriteValue32_v2(a, words + 2, 0, 0) }, 1);
}

#[test]
fn handles_of_another_kind_or_device_are_refused() {
    let other = on_device(1);
    let theirs = new_stream(NON_BLOCKING);
    on_device(0);
    let (s, e) = (new_stream(NON_BLOCKING), new_event());
    assert_eq!(wait_event(s, s), 400);
    assert_eq!(query(e), 400);
    assert_eq!(query(0x1234_5678), 400);
    // SAFETY: takes handles only.
    unsafe {
        assert_eq!(event::cuEventRecord(e, theirs), 400);
        assert_eq!(device::cuCtxSetCurrent(other + 8), 201);
        assert_eq!(memory::cuMemsetD8Async(16, 0, 1, s), 1);
    }
}
