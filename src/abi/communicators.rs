//! The life of communicators, groups, device memory, and what a caller may ask about them.

use super::guard::required;
use super::last_error::{last_error_cstr, set_last_error};
use super::types::*;
use super::{config, handle, version};
use crate::bootstrap::{self, UniqueId};
use crate::comm::{self, CommConfig, Communicator, Status};
use crate::error::{Error, Result};
use crate::group;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

// Every `unsafe fn` here relies on the promise at the top of `abi`: pointers are NULL or good for what `nccl.h` says of them.

/// # Safety
/// As at the top of [`super`].
pub unsafe fn get_version(out: *mut c_int) -> Result<()> {
    let out = required("ncclGetVersion", "version", out)?;
    // SAFETY: not NULL, so writable.
    unsafe { out.write(version::reported_version()) };
    Ok(())
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn get_unique_id(out: *mut ncclUniqueId) -> Result<()> {
    let out = required("ncclGetUniqueId", "uniqueId", out)?;
    let id = bootstrap::create_id(&crate::env::socket_settings())?;
    // SAFETY: not NULL, so writable.
    unsafe { out.write(ncclUniqueId { internal: id.0.map(|byte| byte as c_char) }) };
    Ok(())
}

/// The texts that scripts grep for are NCCL's own.
pub fn error_string(result: RawResult) -> *const c_char {
    match result.0 {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
    .as_ptr()
}

/// One text for the process, whatever the communicator: it may be NULL or dead by now.
pub fn last_error(_comm: ncclComm_t) -> *const c_char {
    last_error_cstr()
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn init_rank(comm: *mut ncclComm_t, nranks: c_int, id: ncclUniqueId, rank: c_int) -> Result<Status> {
    // SAFETY: passed on under the same promise; no config.
    unsafe { init("ncclCommInitRank", comm, nranks, rank, &[id], std::ptr::null()) }
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn init_rank_config(
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> Result<Status> {
    // SAFETY: passed on under the same promise.
    unsafe { init("ncclCommInitRankConfig", comm, nranks, rank, &[id], config) }
}

/// # Safety
/// As at the top of [`super`]; `ids` points to `nid` ids.
pub unsafe fn init_rank_scalable(
    comm: *mut ncclComm_t,
    nranks: c_int,
    rank: c_int,
    nid: c_int,
    ids: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> Result<Status> {
    const CALL: &str = "ncclCommInitRankScalable";
    if nid < 1 || nid > nranks {
        return Err(Error::argument(format!("{CALL}: nId is {nid}; allowed: 1 to nranks ({nranks})")));
    }
    let ids = required(CALL, "commIds", ids)?;
    // SAFETY: not NULL, and the caller vouches for `nid` ids, which is positive.
    let ids = unsafe { std::slice::from_raw_parts(ids.as_ptr(), nid as usize) };
    // SAFETY: passed on under the same promise.
    unsafe { init(CALL, comm, nranks, rank, ids, config) }
}

/// # Safety
/// As at the top of [`super`].
unsafe fn init(
    call: &str,
    comm: *mut ncclComm_t,
    nranks: c_int,
    rank: c_int,
    ids: &[ncclUniqueId],
    config: *const ncclConfig_t,
) -> Result<Status> {
    let comm = required(call, "comm", comm)?;
    // SAFETY: not NULL, so writable. A caller that ignores our answer then holds NULL, which every call recognises.
    unsafe { comm.write(std::ptr::null_mut()) };
    if nranks < 1 {
        return Err(Error::argument(format!("{call}: nranks is {nranks}; allowed: 1 or more")));
    }
    if !(0..nranks).contains(&rank) {
        return Err(Error::argument(format!("{call}: rank is {rank}; allowed: 0 to {} (nranks is {nranks})", nranks - 1)));
    }
    // SAFETY: the caller vouches for the config.
    let config = unsafe { config::read(call, config) }?;
    let ids = ids.iter().map(|id| UniqueId(id.internal.map(|byte| byte as u8))).collect();
    let (made, status) = comm::init_rank(nranks, ids, rank, config)?;
    // SAFETY: as above.
    unsafe { hand_out(comm, made) }?;
    Ok(status)
}

/// Stores a handle for `made`; if there is none left, `made` is aborted.
///
/// # Safety
/// `place` is writable.
unsafe fn hand_out(place: NonNull<ncclComm_t>, made: Arc<Communicator>) -> Result<()> {
    let issued = handle::issue(Arc::clone(&made)).inspect_err(|_| {
        // The caller learns that there is no handle; how the abort went adds nothing.
        let _ = made.abort();
    })?;
    // SAFETY: the caller vouches for `place`.
    unsafe { place.write(issued) };
    Ok(())
}

/// # Safety
/// As at the top of [`super`]; `comms` has room for `ndev` handles and `devices` is NULL or points to `ndev` numbers.
pub unsafe fn init_all(comms: *mut ncclComm_t, ndev: c_int, devices: *const c_int) -> Result<()> {
    const CALL: &str = "ncclCommInitAll";
    let comms = required(CALL, "comm", comms)?;
    if ndev < 1 {
        return Err(Error::argument(format!("{CALL}: ndev is {ndev}; allowed: 1 or more")));
    }
    let present = comm::device_count()?;
    let devices: Vec<c_int> = if devices.is_null() {
        if ndev > present {
            return Err(Error::argument(format!(
                "{CALL}: ndev is {ndev} but this process sees {present} device(s); to put several ranks on one device, name it several times in devlist"
            )));
        }
        (0..ndev).collect()
    } else {
        // SAFETY: not NULL, so the caller vouches for `ndev` numbers, which is positive.
        unsafe { std::slice::from_raw_parts(devices, ndev as usize) }.to_vec()
    };
    if let Some((index, device)) = devices.iter().enumerate().find(|(_, device)| !(0..present).contains(*device)) {
        return Err(Error::argument(format!("{CALL}: devlist[{index}] is {device}; allowed: 0 to {}", present - 1)));
    }
    for (index, made) in comm::init_all(&devices)?.into_iter().enumerate() {
        // SAFETY: the core makes one communicator per device, and the caller vouches for room for as many handles.
        unsafe { hand_out(comms.add(index), made) }?;
    }
    Ok(())
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn split(comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t) -> Result<Status> {
    const CALL: &str = "ncclCommSplit";
    let parent = handle::get(CALL, comm)?;
    let newcomm = required(CALL, "newcomm", newcomm)?;
    // SAFETY: not NULL, so writable.
    unsafe { newcomm.write(std::ptr::null_mut()) };
    if color < NCCL_SPLIT_NOCOLOR {
        return Err(Error::argument(format!("{CALL}: color is {color}; allowed: 0 or more, or NCCL_SPLIT_NOCOLOR (-1)")));
    }
    // SAFETY: the caller vouches for the config.
    let config: Option<CommConfig> = if config.is_null() { None } else { Some(unsafe { config::read(CALL, config) }?) };
    let (child, status) = parent.split(color, key, config)?;
    if let Some(child) = child {
        // SAFETY: as above.
        unsafe { hand_out(newcomm, child) }?;
    }
    Ok(status)
}

pub fn finalize(comm: ncclComm_t) -> Result<Status> {
    if comm.is_null() {
        return Ok(Status::Done);
    }
    handle::get("ncclCommFinalize", comm)?.finalize()
}

pub fn destroy(comm: ncclComm_t) -> Result<Status> {
    if comm.is_null() {
        return Ok(Status::Done);
    }
    handle::retire("ncclCommDestroy", comm)?.destroy()
}

pub fn abort(comm: ncclComm_t) -> Result<Status> {
    if comm.is_null() {
        return Ok(Status::Done);
    }
    handle::retire("ncclCommAbort", comm)?.abort()
}

pub fn revoke(comm: ncclComm_t, flags: c_int) -> Result<Status> {
    const CALL: &str = "ncclCommRevoke";
    if comm.is_null() {
        return Ok(Status::Done);
    }
    let communicator = handle::get(CALL, comm)?;
    if flags != NCCL_REVOKE_DEFAULT {
        return Err(Error::argument(format!("{CALL}: revokeFlags is {flags}; allowed: NCCL_REVOKE_DEFAULT (0)")));
    }
    communicator.revoke()
}

/// The body of the three number queries.
///
/// # Safety
/// `out` is NULL or writable.
unsafe fn query(call: &str, name: &str, comm: ncclComm_t, out: *mut c_int, ask: impl FnOnce(&Communicator) -> Result<c_int>) -> Result<()> {
    let communicator = handle::get(call, comm)?;
    let out = required(call, name, out)?;
    let value = ask(&communicator)?;
    // SAFETY: not NULL, so writable.
    unsafe { out.write(value) };
    Ok(())
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn count(comm: ncclComm_t, out: *mut c_int) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { query("ncclCommCount", "count", comm, out, Communicator::count) }
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn device(comm: ncclComm_t, out: *mut c_int) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { query("ncclCommCuDevice", "device", comm, out, Communicator::device) }
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn user_rank(comm: ncclComm_t, out: *mut c_int) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { query("ncclCommUserRank", "rank", comm, out, Communicator::rank) }
}

/// Success says that the state was read; the state itself goes to `out`, its text to `ncclGetLastError`.
///
/// # Safety
/// As at the top of [`super`].
pub unsafe fn async_error(comm: ncclComm_t, out: *mut RawResult) -> Result<()> {
    const CALL: &str = "ncclCommGetAsyncError";
    let communicator = handle::get(CALL, comm)?;
    let out = required(CALL, "asyncError", out)?;
    let state = match communicator.async_state() {
        Ok(Status::Done) => RawResult::SUCCESS,
        Ok(Status::InProgress) => RawResult::IN_PROGRESS,
        Err(error) => {
            // Not through `report`: clients poll, and the failure was logged when it happened.
            set_last_error(&error.message);
            RawResult(error.code as c_int)
        }
    };
    // SAFETY: not NULL, so writable.
    unsafe { out.write(state) };
    Ok(())
}

pub fn group_start() -> Result<()> {
    group::start()
}

pub fn group_end() -> Result<Status> {
    group::end()
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn group_simulate_end(info: *mut ncclSimInfo_t) -> Result<()> {
    const CALL: &str = "ncclGroupSimulateEnd";
    // The group is closed before the answer's place is checked: a bad pointer must not leave it open.
    let estimate = group::simulate_end()?;
    let info = required(CALL, "simInfo", info)?;
    // SAFETY: not NULL, so the caller vouches for the struct's header.
    let (size, magic) = unsafe { ((&raw const (*info.as_ptr()).size).read(), (&raw const (*info.as_ptr()).magic).read()) };
    if magic != SIM_INFO_MAGIC || size < std::mem::offset_of!(ncclSimInfo_t, estimatedTime) + size_of::<f32>() {
        return Err(Error::argument(format!(
            "{CALL}: simInfo->size is {size} and ->magic is {magic:#x}; initialise the struct with NCCL_SIM_INFO_INITIALIZER"
        )));
    }
    // SAFETY: the struct is at least as large as the member, by the check above.
    unsafe { (&raw mut (*info.as_ptr()).estimatedTime).write(estimate) };
    Ok(())
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn mem_alloc(out: *mut *mut c_void, size: usize) -> Result<()> {
    let out = required("ncclMemAlloc", "ptr", out)?;
    let address = if size == 0 { 0 } else { comm::mem_alloc(size)? };
    // SAFETY: not NULL, so writable.
    unsafe { out.write(address as *mut c_void) };
    Ok(())
}

pub fn mem_free(pointer: *mut c_void) -> Result<()> {
    if pointer.is_null() { Ok(()) } else { comm::mem_free(pointer.addr() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use std::ffi::CStr;

    const ID: ncclUniqueId = ncclUniqueId { internal: [7; NCCL_UNIQUE_ID_BYTES] };

    fn refused<T>(answer: Result<T>, text: &str) {
        let error = answer.err().unwrap_or_else(|| panic!("accepted, where {text:?} was expected"));
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
        assert!(error.message.contains(text), "{error} lacks {text}");
    }

    #[test]
    fn every_result_has_nccls_text() {
        // SAFETY: all answers are static C strings.
        let text = |code| unsafe { CStr::from_ptr(error_string(RawResult(code))) }.to_str().unwrap();
        assert_eq!(text(0), "no error");
        assert_eq!(text(1), "unhandled cuda error (run with NCCL_DEBUG=INFO for details)");
        assert_eq!(text(4), "invalid argument (run with NCCL_DEBUG=WARN for details)");
        assert_eq!(text(6), "remote process exited or there was a network error");
        assert_eq!(text(8), "timeout");
        for unknown in [-1, 9, 12345, c_int::MAX, c_int::MIN] {
            assert_eq!(text(unknown), "unknown result code");
        }
    }

    #[test]
    fn init_checks_its_arguments_in_order() {
        let mut comm = std::ptr::without_provenance_mut::<ncclComm>(0x8);
        let mut id = ID;
        let ids = &raw mut id;
        // SAFETY: pointers are NULL or to live locals.
        unsafe {
            refused(init_rank(std::ptr::null_mut(), 0, ID, 9), "comm is NULL");
            refused(init_rank(&raw mut comm, 0, ID, 9), "nranks is 0; allowed: 1 or more");
            refused(init_rank(&raw mut comm, 4, ID, 4), "ncclCommInitRank: rank is 4; allowed: 0 to 3 (nranks is 4)");
            refused(init_rank(&raw mut comm, 4, ID, -1), "rank is -1");
            let mut config = [0u64; 12];
            config[0] = 96;
            refused(init_rank_config(&raw mut comm, 4, ID, 0, config.as_mut_ptr().cast()), "config->magic is 0x0");
            refused(init_rank_scalable(&raw mut comm, 2, 0, 3, ids, std::ptr::null_mut()), "nId is 3");
            refused(init_rank_scalable(&raw mut comm, 2, 0, 0, ids, std::ptr::null_mut()), "nId is 0");
            refused(init_rank_scalable(&raw mut comm, 2, 0, 1, std::ptr::null_mut(), std::ptr::null_mut()), "commIds is NULL");
            refused(init_all(std::ptr::null_mut(), 1, std::ptr::null()), "comm is NULL");
            refused(init_all(&raw mut comm, 0, std::ptr::null()), "ndev is 0");
        }
        assert!(comm.is_null(), "a failed init leaves NULL behind");
    }

    #[test]
    fn null_handles_are_fine_to_end_and_nothing_else() {
        let null = std::ptr::null_mut();
        assert_eq!(finalize(null), Ok(Status::Done));
        assert_eq!(destroy(null), Ok(Status::Done));
        assert_eq!(abort(null), Ok(Status::Done));
        assert_eq!(revoke(null, 0), Ok(Status::Done));
        let (mut number, mut state) = (0, RawResult(0));
        // SAFETY: pointers are NULL or to live locals.
        unsafe {
            refused(count(null, &raw mut number), "ncclCommCount: comm is NULL");
            refused(device(null, &raw mut number), "ncclCommCuDevice: comm is NULL");
            refused(user_rank(null, &raw mut number), "ncclCommUserRank: comm is NULL");
            refused(async_error(null, &raw mut state), "ncclCommGetAsyncError: comm is NULL");
            refused(split(null, 0, 0, std::ptr::null_mut(), std::ptr::null_mut()), "ncclCommSplit: comm is NULL");
        }
    }

    #[test]
    fn foreign_handles_are_refused_everywhere() {
        let foreign = std::ptr::without_provenance_mut::<ncclComm>(0xabcd);
        let text = "(0xabcd) is not a communicator of this library";
        refused(finalize(foreign), text);
        refused(destroy(foreign), text);
        refused(abort(foreign), text);
        refused(revoke(foreign, 0), text);
    }

    #[test]
    fn missing_places_for_results_are_refused() {
        // SAFETY: NULL is allowed for all of these.
        unsafe {
            refused(get_version(std::ptr::null_mut()), "version is NULL");
            refused(get_unique_id(std::ptr::null_mut()), "uniqueId is NULL");
            refused(mem_alloc(std::ptr::null_mut(), 1), "ptr is NULL");
        }
        assert_eq!(mem_free(std::ptr::null_mut()), Ok(()));
    }

    #[test]
    fn an_empty_allocation_is_null() {
        let mut pointer = std::ptr::without_provenance_mut::<c_void>(8);
        // SAFETY: a live local.
        assert_eq!(unsafe { mem_alloc(&raw mut pointer, 0) }, Ok(()));
        assert!(pointer.is_null());
    }
}
