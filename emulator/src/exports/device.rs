//! Devices and contexts. A device has one context, its primary one.

use crate::result::{Code, call, put, put_if};
use crate::state::{self, DEVICE_BYTES, context_handle, need_device, state};
use crate::stream::{PRIORITIES, wait_for_device};
use std::ffi::{CStr, c_char};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    call(|| {
        state().device(ordinal)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    call(|| unsafe { put(count, state().devices.len() as i32) })
}

/// Writes a C string, cut to what fits.
///
/// # Safety
/// `to` is NULL or has room for `length` bytes.
unsafe fn put_string(to: *mut c_char, length: i32, text: &str) -> crate::result::Result {
    let Some(room) = usize::try_from(length).ok().filter(|&room| room > 0 && !to.is_null()) else { return Err(Code::INVALID_VALUE) };
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the bytes and the NUL fit by the line above.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: i32, device: i32) -> i32 {
    call(|| {
        state().device(device)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put_string(name, length, "mkernel emulated GPU") }
    })
}

/// Differs between hosts and between the devices of a host; the same in all its processes.
fn uuid(device: i32) -> [u8; 16] {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut next = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    };
    let first = next(&boot);
    let second = next(&device.to_le_bytes());
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&first.to_le_bytes());
    uuid[8..].copy_from_slice(&second.to_le_bytes());
    uuid
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], device: i32) -> i32 {
    call(|| {
        state().device(device)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(to, uuid(device)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(to: *mut [u8; 16], device: i32) -> i32 {
    // SAFETY: the caller's contract is the same.
    unsafe { cuDeviceGetUuid_v2(to, device) }
}

/// The attributes that differ from 0, by `CUdevice_attribute`: those of a small Hopper without what the emulator lacks.
fn attribute(which: i32, device: i32, multiprocessors: i32) -> i32 {
    match which {
        1..=3 => 1024,          // threads per block, block dimensions x and y
        4 => 64,                // block dimension z
        5 => i32::MAX,          // grid dimension x
        6 | 7 => 65535,         // grid dimensions y and z
        8 => 48 << 10,          // shared memory per block
        9 => 64 << 10,          // constant memory
        10 => 32,               // warp size
        12 | 82 => 65536,       // registers per block, per multiprocessor
        13 | 36 => 1_000_000,   // clock and memory clock, kHz
        15 | 19 | 31 | 41 => 1, // overlap, mapped host memory, concurrent kernels, unified addresses
        16 => multiprocessors,
        33 => device + 1,         // PCI bus
        37 => 4096,               // memory bus width
        38 => 50 << 20,           // L2
        39 => 2048,               // threads per multiprocessor
        40 => 2,                  // copy engines
        75 => 9,                  // compute capability
        78 => 1,                  // stream priorities
        81 => 228 << 10,          // shared memory per multiprocessor
        91 => 1,                  // registered host memory at its own address
        95 | 99 | 122 | 123 => 1, // cooperative launches, registered host memory, stream memory operations in their forms
        97 => 227 << 10,          // shared memory per block, at most
        106 => 32,                // blocks per multiprocessor
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, which: i32, device: i32) -> i32 {
    call(|| {
        let mut state = state();
        state.device(device)?;
        if which <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(value, attribute(which, device, state.multiprocessors)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> i32 {
    call(|| {
        state().device(device)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(bytes, DEVICE_BYTES) }
    })
}

fn bus_id(device: i32) -> String {
    format!("0000:{:02X}:00.0", device + 1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32) -> i32 {
    call(|| {
        state().device(device)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put_string(text, length, &bus_id(device)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetByPCIBusId(device: *mut i32, text: *const c_char) -> i32 {
    call(|| {
        if text.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a C string.
        let wanted = unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_VALUE)?;
        let count = state().devices.len() as i32;
        let found = (0..count).find(|&d| bus_id(d).eq_ignore_ascii_case(wanted)).ok_or(Code::INVALID_DEVICE)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(device, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> i32 {
    call(|| {
        let mut state = state();
        state.device(device)?;
        state.device(peer)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(can, i32::from(device != peer)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetP2PAttribute(value: *mut i32, which: i32, device: i32, peer: i32) -> i32 {
    call(|| {
        let mut state = state();
        state.device(device)?;
        state.device(peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        // Access and atomics yes (2, 3); no ranking (1), no arrays (4).
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(value, i32::from(matches!(which, 2 | 3))) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> i32 {
    call(|| {
        state().device(device)?.retained += 1;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(context, context_handle(device as usize)) }
    })
}

/// Only counts: what was made in the context stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    call(|| {
        let mut state = state();
        let device = state.device(device)?;
        device.retained = device.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    call(|| {
        let retained = state().device(device)?.retained;
        // SAFETY: the outputs are as cuda.h asks.
        unsafe {
            put(flags, 0)?;
            put(active, i32::from(retained > 0))
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    call(|| unsafe { put(context, state::current_device().map_or(0, context_handle)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: usize) -> i32 {
    call(|| {
        let device = if context == 0 { None } else { Some(state().context_device(context)?) };
        state::set_current(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: usize) -> i32 {
    call(|| {
        let device = state().context_device(context)?;
        state::push_current(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> i32 {
    call(|| {
        let device = state::pop_current().ok_or(Code::INVALID_CONTEXT)?;
        // SAFETY: the output is as cuda.h asks.
        unsafe { put_if(context, context_handle(device)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    // SAFETY: the output is as cuda.h asks.
    call(|| unsafe { put(device, need_device()? as i32) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetApiVersion(context: usize, version: *mut u32) -> i32 {
    call(|| {
        if context != 0 {
            state().context_device(context)?;
        }
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(version, 13000) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> i32 {
    call(|| {
        let device = need_device()?;
        if state().streams.values().any(|stream| stream.device == device && stream.capture.is_some()) {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        wait_for_device(Some(device));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32 {
    call(|| {
        need_device()?;
        // SAFETY: the outputs are as cuda.h asks, which lets them be NULL.
        unsafe {
            put_if(least, PRIORITIES.0);
            put_if(greatest, PRIORITIES.1);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxEnablePeerAccess(context: usize, flags: u32) -> i32 {
    call(|| {
        let device = need_device()?;
        let mut state = state();
        let peer = state.context_device(context)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if peer == device {
            return Err(Code::INVALID_CONTEXT);
        }
        let peers = &mut state.devices[device].peers;
        if peers.contains(&peer) {
            return Err(Code::PEER_ALREADY_ENABLED);
        }
        peers.push(peer);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDisablePeerAccess(context: usize) -> i32 {
    call(|| {
        let device = need_device()?;
        let mut state = state();
        let peer = state.context_device(context)?;
        let peers = &mut state.devices[device].peers;
        let at = peers.iter().position(|&p| p == peer).ok_or(Code::PEER_NOT_ENABLED)?;
        peers.remove(at);
        Ok(())
    })
}
