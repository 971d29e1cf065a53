//! Capture into graphs, and their replay.

mod common;

use common::*;
use cuda::exports::{event, graph, stream};
use std::ffi::c_void;
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The capture's id, its graph and the nodes that the stream's next one comes after.
fn info(s: usize) -> (u32, u64, usize, Vec<usize>) {
    let (mut status, mut id, mut graph, mut nodes, mut count) = (9, 0, 0, std::ptr::null(), 0);
    // SAFETY: the outputs are valid.
    ok(unsafe { stream::cuStreamGetCaptureInfo_v3(s, &mut status, &mut id, &mut graph, &mut nodes, std::ptr::null_mut(), &mut count) });
    // SAFETY: the driver says how many there are.
    let nodes = if count == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec() };
    (status, id, graph, nodes)
}

fn nodes(of: usize) -> usize {
    let mut count = 0;
    // SAFETY: the output is valid; no nodes are asked for.
    ok(unsafe { graph::cuGraphGetNodes(of, std::ptr::null_mut(), &mut count) });
    count
}

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    on_device(0);
    let (s, kernel, words) = (new_stream(NON_BLOCKING), selftest(), allocate(40));
    fill(words, 0, 10, s);
    begin(s);
    add_one(kernel, words, 10, 2, s);
    add_one(kernel, words, 5, 1, s);
    let captured = end(s).unwrap();
    assert_eq!(nodes(captured), 2);
    assert_eq!(read(words, 10, s), [0; 10]);
    let executable = instantiate(captured);
    // SAFETY: takes a handle only.
    ok(unsafe { graph::cuGraphDestroy(captured) });
    for _ in 0..3 {
        launch_graph(executable, s);
    }
    assert_eq!(read(words, 10, s), [6, 6, 6, 6, 6, 3, 3, 3, 3, 3]);
    launch_graph(executable, s);
    // The launch keeps what it needs.
    // SAFETY: takes a handle only.
    ok(unsafe { graph::cuGraphExecDestroy(executable) });
    assert_eq!(read(words, 1, s), [8]);
}

/// Two parties that must be there together.
#[derive(Default)]
struct Meeting(Mutex<u32>, Condvar);

impl Meeting {
    fn attend(&self) -> bool {
        let mut there = self.0.lock().unwrap();
        *there += 1;
        self.1.notify_all();
        let (there, _) = self.1.wait_timeout_while(there, Duration::from_secs(20), |there| *there < 2).unwrap();
        *there == 2
    }
}

#[test]
fn branches_run_at_the_same_time_and_join() {
    on_device(0);
    let (a, b) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING));
    let (fork, join) = (new_event(), new_event());
    static MEETING: Meeting = Meeting(Mutex::new(0), Condvar::new());
    let (ran, runs) = channel();
    let say = |s: usize, who: &'static str| {
        let ran = ran.clone();
        ok(host(s, move || ran.send((who, true)).unwrap()));
    };
    let meet = |s: usize, who: &'static str| {
        let ran = ran.clone();
        ok(host(s, move || ran.send((who, MEETING.attend())).unwrap()));
    };
    begin(a);
    say(a, "first");
    record(fork, a);
    ok(wait_event(b, fork));
    assert_eq!(info(b).1, info(a).1);
    meet(a, "branch");
    meet(b, "branch");
    record(join, b);
    ok(wait_event(a, join));
    assert_eq!(info(a).3.len(), 2);
    say(a, "last");
    let captured = end(a).unwrap();
    assert_eq!(info(b).0, 0);
    launch_graph(instantiate(captured), a);
    sync(a);
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), [("first", true), ("branch", true), ("branch", true), ("last", true)]);
}

#[test]
fn an_unjoined_branch_is_an_error() {
    on_device(0);
    let (a, b, fork) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), new_event());
    begin(a);
    record(fork, a);
    ok(wait_event(b, fork));
    ok(host(b, || ()));
    assert_eq!(end(a), Err(904));
    // Both are ordinary streams again.
    sync(a);
    sync(b);
}

#[test]
fn the_branch_does_not_end_the_capture() {
    on_device(0);
    let (a, b, fork) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), new_event());
    begin(a);
    record(fork, a);
    ok(wait_event(b, fork));
    assert_eq!(end(b), Err(903));
    assert_eq!(end(a), Err(901));
}

#[test]
fn waiting_on_the_host_invalidates_a_capture() {
    on_device(0);
    let s = new_stream(NON_BLOCKING);
    for wait in [stream::cuStreamSynchronize, stream::cuStreamQuery] {
        begin(s);
        // SAFETY: takes a handle only.
        assert_eq!(unsafe { wait(s) }, 900);
        assert_eq!(info(s).0, 2);
        assert_eq!(host(s, || ()), 901);
        assert_eq!(end(s), Err(901));
        assert_eq!(end(s), Err(401));
        assert_eq!(info(s).0, 0);
    }
}

#[test]
fn uncaptured_work_and_other_captures_stay_apart() {
    on_device(0);
    let (a, b, e) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), new_event());
    record(e, b);
    begin(a);
    assert_eq!(wait_event(a, e), 905);
    assert_eq!(end(a), Err(901));
    begin(a);
    begin(b);
    record(e, a);
    // SAFETY: takes a handle only.
    assert_eq!(unsafe { event::cuEventQuery(e) }, 907);
    assert_eq!(wait_event(b, e), 902);
    assert_eq!((end(a), end(b)), (Err(901), Err(901)));
}

#[test]
fn the_legacy_stream_may_not_wait_for_a_capture() {
    on_device(1);
    let s = new_stream(0);
    begin(s);
    let mut status = 9;
    // SAFETY: the output is valid.
    assert_eq!(unsafe { stream::cuStreamIsCapturing(0, &mut status) }, 906);
    assert_eq!(info(s).0, 1);
    assert_eq!(host(0, || ()), 906);
    assert_eq!(end(s), Err(901));
    ok(host(0, || ()));
}

#[test]
fn dependencies_can_be_added_and_replaced() {
    on_device(0);
    let (a, b, fork) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING), new_event());
    begin(a);
    record(fork, a);
    ok(wait_event(b, fork));
    ok(host(a, || ()));
    ok(host(b, || ()));
    let (theirs, ours) = (info(b).3, info(a).3);
    let update = |nodes: &[usize], flags: u32| {
        // SAFETY: the nodes are as many as said.
        unsafe { stream::cuStreamUpdateCaptureDependencies_v2(a, nodes.as_ptr(), std::ptr::null(), nodes.len(), flags) }
    };
    assert_eq!(update(&[0x77], 0), 1);
    ok(update(&theirs, 0));
    let mut both = [ours[0], theirs[0]];
    both.sort_unstable();
    assert_eq!(info(a).3, both);
    ok(update(&theirs, 1));
    assert_eq!(info(a).3, theirs);
    let (_, _, graph, _) = info(a);
    assert_eq!(end(a), Ok(graph));
}

#[test]
fn a_graph_in_a_graph_is_one_node() {
    on_device(0);
    let (s, kernel, words) = (new_stream(NON_BLOCKING), selftest(), allocate(4));
    fill(words, 0, 1, s);
    begin(s);
    add_one(kernel, words, 1, 1, s);
    let inner = instantiate(end(s).unwrap());
    begin(s);
    launch_graph(inner, s);
    launch_graph(inner, s);
    let outer = end(s).unwrap();
    assert_eq!(nodes(outer), 2);
    launch_graph(instantiate(outer), s);
    assert_eq!(read(words, 1, s), [2]);
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    on_device(0);
    let (a, b) = (new_stream(NON_BLOCKING), new_stream(NON_BLOCKING));
    begin(a);
    ok(host(a, || ()));
    let executable = instantiate(end(a).unwrap());
    let gate = hold(a);
    launch_graph(executable, a);
    launch_graph(executable, b);
    assert_eq!(query(b), NOT_READY);
    drop(gate);
    sync(b);
}

#[test]
fn user_objects_live_as_long_as_the_last_graph() {
    on_device(0);
    let s = new_stream(NON_BLOCKING);
    static GONE: Meeting = Meeting(Mutex::new(0), Condvar::new());
    unsafe extern "C" fn destroy(_: *mut c_void) {
        GONE.attend();
    }
    begin(s);
    ok(host(s, || ()));
    let captured = info(s).2;
    let mut object = 0;
    // SAFETY: the function ignores its argument.
    unsafe {
        ok(graph::cuUserObjectCreate(&mut object, std::ptr::null_mut(), Some(destroy), 1, 1));
        ok(graph::cuGraphRetainUserObject(captured, object, 1, 1));
    }
    assert_eq!(end(s), Ok(captured));
    let executable = instantiate(captured);
    // SAFETY: takes handles only.
    ok(unsafe { graph::cuGraphDestroy(captured) });
    launch_graph(executable, s);
    sync(s);
    assert_eq!(*GONE.0.lock().unwrap(), 0);
    // SAFETY: takes handles only.
    ok(unsafe { graph::cuGraphExecDestroy(executable) });
    assert!(GONE.attend(), "the object was not destroyed");
}
