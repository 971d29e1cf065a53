//! Events.

use crate::event::Event;
use crate::result::{Code, call, put};
use crate::state::{need_device, state};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, flags: u32) -> i32 {
    call(|| {
        if flags > 7 || event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let device = need_device()?;
        let mut state = state();
        let handle = state.new_handle();
        state.events.insert(handle, Event { device, flags, recorded: Default::default() });
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(event, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: usize) -> i32 {
    call(|| state().events.remove(&event).map(|_| ()).ok_or(Code::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: usize, stream: usize) -> i32 {
    call(|| state().record_event(event, stream, false))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecordWithFlags(event: usize, stream: usize, flags: u32) -> i32 {
    call(|| state().record_event(event, stream, flags & 1 != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: usize) -> i32 {
    call(|| if state().event_completion(event)?.is_done() { Ok(()) } else { Err(Code::NOT_READY) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: usize) -> i32 {
    call(|| {
        let done = state().event_completion(event)?;
        done.wait();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) -> i32 {
    call(|| {
        let elapsed = state().elapsed(from, to)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(milliseconds, elapsed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: usize, to: usize) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuEventElapsedTime(milliseconds, from, to) }
}
