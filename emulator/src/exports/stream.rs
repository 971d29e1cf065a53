//! Streams, what is enqueued on them other than kernels and copies, and their capture.

use crate::capture::{STATUS_ACTIVE, exchange_mode};
use crate::launch::{Address, Compare, HostFunction, Work};
use crate::result::{Code, Result, call, put, put_if};
use crate::state::{State, context_handle, need_device, state};
use crate::stream::{Kind, NON_BLOCKING, Stream};
use std::ffi::c_void;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, priority: i32) -> i32 {
    call(|| {
        if flags & !NON_BLOCKING != 0 || stream.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state().new_stream(need_device()?, Kind::Created, flags, priority)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(stream, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: u32) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamCreateWithPriority(stream, flags, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> i32 {
    call(|| {
        let mut state = state();
        if !state.streams.get(&stream).is_some_and(|stream| stream.kind == Kind::Created) {
            return Err(Code::INVALID_HANDLE);
        }
        state.destroy_stream(stream)
    })
}

/// Writes what `get` finds in a stream.
///
/// # Safety
/// `to` is NULL or valid for a write.
unsafe fn read<T>(stream: usize, to: *mut T, get: impl FnOnce(&Stream) -> T) -> i32 {
    call(|| {
        let mut state = state();
        let key = state.stream_key(stream)?;
        // SAFETY: by this function's contract.
        unsafe { put(to, get(&state.streams[&key])) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetId(stream: usize, id: *mut u64) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    unsafe { read(stream, id, |stream| stream.id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetFlags(stream: usize, flags: *mut u32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    unsafe { read(stream, flags, |stream| stream.flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetPriority(stream: usize, priority: *mut i32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    unsafe { read(stream, priority, |stream| stream.priority) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: usize, context: *mut usize) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    unsafe { read(stream, context, |stream| context_handle(stream.device)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetDevice(stream: usize, device: *mut i32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    unsafe { read(stream, device, |stream| stream.device as i32) }
}

/// The last item of a stream that a query or a wait on the host looks at. The legacy stream stands for all that it would wait for.
fn last_items(state: &mut State, stream: usize) -> Result<Vec<crate::stream::Completion>> {
    let key = state.stream_key(stream)?;
    state.refuse_capture(key)?;
    let stream = &state.streams[&key];
    if stream.kind == Kind::Legacy {
        let blocking = state.streams.values().filter(|other| other.device == stream.device && other.is_blocking());
        let gone = state.devices[stream.device].leftovers.iter().filter(|(blocking, _)| *blocking).map(|(_, last)| last);
        return Ok(blocking.map(|other| &other.last).chain(gone).chain([&stream.last]).cloned().collect());
    }
    Ok(vec![stream.last.clone()])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: usize) -> i32 {
    call(|| {
        let done = last_items(&mut state(), stream)?.iter().all(|last| last.is_done());
        if done { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: usize) -> i32 {
    call(|| {
        let last = last_items(&mut state(), stream)?;
        for last in last {
            last.wait();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> i32 {
    call(|| state().wait_event(stream, event, flags & 1 != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) -> i32 {
    call(|| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        state().submit(stream, Work::Host { function, data: Address(data as usize) }).map(|_| ())
    })
}

/// A word that a stream waits for or writes: aligned, and in known memory.
fn word(state: &State, address: usize, wide: bool) -> Result<Address> {
    let bytes = if wide { 8 } else { 4 };
    if address.is_multiple_of(bytes) && state.knows(address, bytes) { Ok(Address(address)) } else { Err(Code::INVALID_VALUE) }
}

fn wait_value(stream: usize, address: usize, value: u64, flags: u32, wide: bool) -> i32 {
    call(|| {
        // CU_STREAM_WAIT_VALUE_FLUSH is for remote writes, which need no flush here.
        let compare = match flags & !(1 << 30) {
            0 => Compare::AtLeast,
            1 => Compare::Equal,
            2 => Compare::And,
            3 => Compare::Nor,
            _ => return Err(Code::INVALID_VALUE),
        };
        let mut state = state();
        let at = word(&state, address, wide)?;
        state.submit(stream, Work::AwaitWord { at, value, wide, compare }).map(|_| ())
    })
}

fn write_value(stream: usize, address: usize, value: u64, wide: bool) -> i32 {
    call(|| {
        let mut state = state();
        let to = word(&state, address, wide)?;
        state.submit(stream, Work::StoreWord { to, value, wide }).map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue32_v2(stream: usize, address: usize, value: u32, flags: u32) -> i32 {
    wait_value(stream, address, u64::from(value), flags, false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitValue64_v2(stream: usize, address: usize, value: u64, flags: u32) -> i32 {
    wait_value(stream, address, value, flags, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue32_v2(stream: usize, address: usize, value: u32, _flags: u32) -> i32 {
    write_value(stream, address, u64::from(value), false)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWriteValue64_v2(stream: usize, address: usize, value: u64, _flags: u32) -> i32 {
    write_value(stream, address, value, true)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> i32 {
    call(|| state().begin_capture(stream, mode))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> i32 {
    call(|| {
        let ended = state().end_capture(stream);
        // SAFETY: the output is as cuda.h asks. A failed capture leaves no graph.
        unsafe { put(graph, ended.unwrap_or(0))? };
        ended.map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut u32) -> i32 {
    call(|| {
        let mut state = state();
        let key = state.stream_key(stream)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(status, state.capture_status(key)?) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: usize,
    status: *mut u32,
    id: *mut u64,
    graph: *mut usize,
    nodes: *mut *const usize,
    edges: *mut *const c_void,
    count: *mut usize,
) -> i32 {
    call(|| {
        let mut state = state();
        let key = state.stream_key(stream)?;
        let found = state.capture_status(key)?;
        // SAFETY: the outputs are as cuda.h asks; all but the first may be NULL.
        unsafe { put(status, found)? };
        if found != STATUS_ACTIVE {
            return Ok(());
        }
        let Some(capture) = &state.streams[&key].capture else { return Ok(()) };
        // SAFETY: as above. The nodes stay where they are until the stream's next call.
        unsafe {
            put_if(id, capture.id);
            put_if(graph, state.captures[&capture.id].graph);
            put_if(nodes, capture.nodes.as_ptr());
            put_if(edges, std::ptr::null());
            put_if(count, capture.nodes.len());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: usize,
    status: *mut u32,
    id: *mut u64,
    graph: *mut usize,
    nodes: *mut *const usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, std::ptr::null_mut(), count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamUpdateCaptureDependencies(stream: usize, nodes: *const usize, count: usize, flags: u32) -> i32 {
    call(|| {
        if flags > 1 || (nodes.is_null() && count > 0) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller gives `count` nodes.
        let nodes = if count == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec() };
        state().update_capture(stream, &nodes, flags == 1)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    stream: usize,
    nodes: *const usize,
    _edges: *const c_void,
    count: usize,
    flags: u32,
) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamUpdateCaptureDependencies(stream, nodes, count, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> i32 {
    call(|| {
        if mode.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller gives the new mode and takes the old one.
        unsafe { mode.write(exchange_mode(mode.read())?) };
        Ok(())
    })
}
