//! Calls whose feature this library does not have. Each answers as NCCL does on a machine without the feature, so that a client takes the
//! path it has for such machines; the text of `ncclGetLastError` says what is missing.

use super::guard::required;
use super::handle;
use super::types::*;
use crate::error::{Error, Result};
use std::ffi::{c_char, c_int, c_uint, c_void};

const NO_WINDOWS: &str = "there is no symmetric memory in this library, and every window that it registered is NULL";
const NO_DEVICE_API: &str = "this library has no device API (ncclCommQueryProperties says deviceApiSupport = false)";
const NO_RMA: &str =
    "this library has no one-sided operations (ncclCommQueryProperties says hostRmaSupport = false); use ncclSend and ncclRecv";

// Fault tolerance and growth.

/// # Safety
/// As at the top of [`super`].
pub unsafe fn shrink(
    comm: ncclComm_t,
    _exclude: *mut c_int,
    _exclude_count: c_int,
    newcomm: *mut ncclComm_t,
    _config: *mut ncclConfig_t,
    _flags: c_int,
) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { no_child("ncclCommShrink", Some(comm), newcomm) }?;
    Err(Error::usage(
        "ncclCommShrink: this library cannot shrink a communicator yet; abort it and create a new one with the surviving ranks",
    ))
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn grow(
    comm: ncclComm_t,
    _nranks: c_int,
    _id: *const ncclUniqueId,
    _rank: c_int,
    newcomm: *mut ncclComm_t,
    _config: *mut ncclConfig_t,
) -> Result<()> {
    // SAFETY: passed on under the same promise. Ranks that join have no communicator yet and pass NULL.
    unsafe { no_child("ncclCommGrow", (!comm.is_null()).then_some(comm), newcomm) }?;
    Err(Error::usage(
        "ncclCommGrow: this library cannot grow a communicator yet; create a new one with ncclGetUniqueId and ncclCommInitRank",
    ))
}

/// Checks what both of the above check, and leaves NULL where the child would be.
///
/// # Safety
/// `newcomm` is NULL or writable.
unsafe fn no_child(call: &str, parent: Option<ncclComm_t>, newcomm: *mut ncclComm_t) -> Result<()> {
    if let Some(parent) = parent {
        handle::get(call, parent)?;
    }
    let newcomm = required(call, "newcomm", newcomm)?;
    // SAFETY: not NULL, so writable.
    unsafe { newcomm.write(std::ptr::null_mut()) };
    Ok(())
}

/// Ids from a communicator exist to grow it.
pub fn comm_unique_id(comm: ncclComm_t, _out: *mut ncclUniqueId) -> Result<()> {
    handle::get("ncclCommGetUniqueId", comm)?;
    Err(Error::usage("ncclCommGetUniqueId: the id serves ncclCommGrow, which this library does not have yet; use ncclGetUniqueId"))
}

// Memory of communicators.

pub fn suspend(comm: ncclComm_t, _flags: c_int) -> Result<()> {
    without_memory_manager("ncclCommSuspend", comm)
}

pub fn resume(comm: ncclComm_t) -> Result<()> {
    without_memory_manager("ncclCommResume", comm)
}

pub fn mem_stats(comm: ncclComm_t, _stat: RawMemStat, _out: *mut u64) -> Result<()> {
    without_memory_manager("ncclCommMemStats", comm)
}

fn without_memory_manager(call: &str, comm: ncclComm_t) -> Result<()> {
    handle::get(call, comm)?;
    Err(Error::usage(format!("{call}: this library has no memory manager; its communicators cannot give memory back before they end")))
}

/// Registration only makes transfers faster; without it they are staged. NULL is NCCL's handle for "not registered".
///
/// # Safety
/// As at the top of [`super`].
pub unsafe fn register(comm: ncclComm_t, _buffer: *mut c_void, _size: usize, out: *mut *mut c_void) -> Result<()> {
    const CALL: &str = "ncclCommRegister";
    handle::get(CALL, comm)?;
    // SAFETY: passed on under the same promise.
    unsafe { null_result(CALL, "handle", out) }
}

pub fn deregister(comm: ncclComm_t, registration: *mut c_void) -> Result<()> {
    const CALL: &str = "ncclCommDeregister";
    handle::get(CALL, comm)?;
    null_object(CALL, "handle", registration, "every handle that ncclCommRegister returned is NULL")
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn window_register(comm: ncclComm_t, _buffer: *mut c_void, _size: usize, out: *mut ncclWindow_t, _flags: c_int) -> Result<()> {
    const CALL: &str = "ncclCommWindowRegister";
    handle::get(CALL, comm)?;
    tracing::info!(target: "REG", "{CALL}: {NO_WINDOWS}");
    // SAFETY: passed on under the same promise.
    unsafe { null_result(CALL, "win", out) }
}

pub fn window_deregister(comm: ncclComm_t, window: ncclWindow_t) -> Result<()> {
    const CALL: &str = "ncclCommWindowDeregister";
    handle::get(CALL, comm)?;
    null_object(CALL, "win", window, NO_WINDOWS)
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn window_user_pointer(comm: ncclComm_t, _window: ncclWindow_t, out: *mut *mut c_void) -> Result<()> {
    const CALL: &str = "ncclWinGetUserPtr";
    handle::get(CALL, comm)?;
    // SAFETY: passed on under the same promise.
    unsafe { null_result(CALL, "outUserPtr", out) }?;
    Err(Error::argument(format!("{CALL}: {NO_WINDOWS}")))
}

/// # Safety
/// `out` is NULL or writable.
unsafe fn null_result<T>(call: &str, name: &str, out: *mut *mut T) -> Result<()> {
    let out = required(call, name, out)?;
    // SAFETY: not NULL, so writable.
    unsafe { out.write(std::ptr::null_mut()) };
    Ok(())
}

fn null_object<T>(call: &str, name: &str, object: *mut T, why: &str) -> Result<()> {
    if object.is_null() {
        return Ok(());
    }
    Err(Error::argument(format!("{call}: {name} is {object:p}, which this library did not make: {why}")))
}

// One-sided operations.

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn put_signal(
    _local: *const c_void,
    _count: usize,
    _dtype: RawDataType,
    _peer: c_int,
    _window: ncclWindow_t,
    _offset: usize,
    _signal: c_int,
    _context: c_int,
    _flags: c_uint,
    comm: ncclComm_t,
    _stream: RawStream,
) -> Result<()> {
    without_rma("ncclPutSignal", comm)
}

pub fn signal(_peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, comm: ncclComm_t, _stream: RawStream) -> Result<()> {
    without_rma("ncclSignal", comm)
}

pub fn wait_signal(_count: c_int, _descriptors: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, _stream: RawStream) -> Result<()> {
    without_rma("ncclWaitSignal", comm)
}

fn without_rma(call: &str, comm: ncclComm_t) -> Result<()> {
    handle::get(call, comm)?;
    Err(Error::argument(format!("{call}: {NO_RMA}")))
}

// Device API.

/// # Safety
/// As at the top of [`super`]; `properties` starts with its own size.
pub unsafe fn query_properties(comm: ncclComm_t, properties: *mut ncclCommProperties_t) -> Result<()> {
    const CALL: &str = "ncclCommQueryProperties";
    let communicator = handle::get(CALL, comm)?;
    let place = required(CALL, "props", properties)?.as_ptr();
    // SAFETY: not NULL, so the caller vouches for the header.
    let (size, magic, version) =
        unsafe { ((&raw const (*place).size).read(), (&raw const (*place).magic).read(), (&raw const (*place).version).read()) };
    if magic != API_MAGIC {
        return Err(Error::argument(format!(
            "{CALL}: props->magic is {magic:#x}, not {API_MAGIC:#x}; initialise the struct with NCCL_COMM_PROPERTIES_INITIALIZER"
        )));
    }
    let nranks = communicator.count()?;
    let answer = ncclCommProperties {
        size,
        magic,
        version,
        rank: communicator.rank()?,
        nRanks: nranks,
        cudaDev: communicator.device()?,
        // NVML is not asked, and its numbering differs from CUDA's when CUDA_VISIBLE_DEVICES is set.
        nvmlDev: -1,
        deviceApiSupport: false,
        multimemSupport: false,
        ginType: RawGinType(0),
        nLsaTeams: nranks,
        hostRmaSupport: false,
        railedGinType: RawGinType(0),
    };
    // SAFETY: the caller's struct has `size` bytes, the answer at least as many as are copied.
    unsafe { std::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), place.cast(), size.min(size_of_val(&answer))) };
    Ok(())
}

pub fn dev_comm_create(comm: ncclComm_t, _requirements: *const ncclDevCommRequirements_t, _out: *mut ncclDevComm_t) -> Result<()> {
    handle::get("ncclDevCommCreate", comm)?;
    without_device_api("ncclDevCommCreate")
}

/// NULL is what a client holds after a refused creation.
pub fn dev_comm_destroy(comm: ncclComm_t, device_comm: *const ncclDevComm_t) -> Result<()> {
    const CALL: &str = "ncclDevCommDestroy";
    handle::get(CALL, comm)?;
    if device_comm.is_null() { Ok(()) } else { without_device_api(CALL) }
}

fn without_device_api(call: &str) -> Result<()> {
    Err(Error::usage(format!("{call}: {NO_DEVICE_API}")))
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn lsa_multimem_pointer(_window: ncclWindow_t, _offset: usize, out: *mut *mut c_void) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { no_window_pointer("ncclGetLsaMultimemDevicePointer", out) }
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn multimem_pointer(
    _window: ncclWindow_t,
    _offset: usize,
    _multimem: ncclMultimemHandle_t,
    out: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { no_window_pointer("ncclGetMultimemDevicePointer", out) }
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn lsa_pointer(_window: ncclWindow_t, _offset: usize, _rank: c_int, out: *mut *mut c_void) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { no_window_pointer("ncclGetLsaDevicePointer", out) }
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn peer_pointer(_window: ncclWindow_t, _offset: usize, _peer: c_int, out: *mut *mut c_void) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { no_window_pointer("ncclGetPeerDevicePointer", out) }
}

/// # Safety
/// `out` is NULL or writable.
unsafe fn no_window_pointer(call: &str, out: *mut *mut c_void) -> Result<()> {
    // SAFETY: passed on under the same promise.
    unsafe { null_result(call, "outPtr", out) }?;
    Err(Error::argument(format!("{call}: {NO_WINDOWS}")))
}

/// All ranks, in order.
pub fn team_world(comm: ncclComm_t) -> Result<ncclTeam_t> {
    let communicator = handle::get("ncclTeamWorld", comm)?;
    Ok(ncclTeam { nRanks: communicator.count()?, rank: communicator.rank()?, stride: 1 })
}

/// The ranks whose windows this one can load from and store to: without symmetric memory, itself alone.
pub fn team_lsa(comm: ncclComm_t) -> Result<ncclTeam_t> {
    handle::get("ncclTeamLsa", comm)?;
    Ok(ncclTeam { nRanks: 1, rank: 0, stride: 1 })
}

/// One rank of each load/store team, hence all of them.
pub fn team_rail(comm: ncclComm_t) -> Result<ncclTeam_t> {
    let communicator = handle::get("ncclTeamRail", comm)?;
    Ok(ncclTeam { nRanks: communicator.count()?, rank: communicator.rank()?, stride: 1 })
}

pub fn team_rank_to_world(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> Result<c_int> {
    let communicator = handle::get("ncclTeamRankToWorld", comm)?;
    Ok(translate(team, rank, communicator.rank()?))
}

pub fn team_rank_to_lsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> Result<c_int> {
    handle::get("ncclTeamRankToLsa", comm)?;
    Ok(translate(team, rank, 0))
}

/// Where member `rank` of `team` stands in a team in which this rank is number `own`. Wraps on nonsense, as it would in C.
fn translate(team: ncclTeam_t, rank: c_int, own: c_int) -> c_int {
    own.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride))
}

pub fn lsa_barrier_requirement(
    _team: ncclTeam_t,
    _barriers: c_int,
    _handle: *mut ncclLsaBarrierHandle_t,
    _requirement: *mut ncclDevResourceRequirements_t,
) -> Result<()> {
    without_device_api("ncclLsaBarrierCreateRequirement")
}

pub fn gin_barrier_requirement(
    comm: ncclComm_t,
    _team: ncclTeam_t,
    _barriers: c_int,
    _handle: *mut ncclGinBarrierHandle_t,
    _requirement: *mut ncclDevResourceRequirements_t,
) -> Result<()> {
    handle::get("ncclGinBarrierCreateRequirement", comm)?;
    without_device_api("ncclGinBarrierCreateRequirement")
}

pub fn gin_outbox_requirement(
    _blocks: c_int,
    _size_log2: c_int,
    _handle: *mut ncclGinOutboxHandle,
    _requirement: *mut ncclDevResourceRequirements_t,
) -> Result<()> {
    without_device_api("ncclGinOutboxCreateRequirement")
}

pub fn gin_inbox_requirement(
    _peers: ncclTeam_t,
    _blocks: c_int,
    _size_log2: c_int,
    _handle: *mut ncclGinInboxA2AHandle,
    _requirement: *mut ncclDevResourceRequirements_t,
) -> Result<()> {
    without_device_api("ncclGinInboxA2ACreateRequirement")
}

/// Eight-byte words that hold `elements` elements of up to `size` bytes each. Arithmetic only, so it works without the rest.
pub fn ll_a2a_slots(elements: c_int, size: c_int) -> Result<c_int> {
    Ok(elements.wrapping_mul(size.max(0).cast_unsigned().div_ceil(8).cast_signed()))
}

pub fn ll_a2a_requirement(
    _blocks: c_int,
    _slots: c_int,
    _handle: *mut ncclLLA2AHandle_t,
    _requirement: *mut ncclDevResourceRequirements_t,
) -> Result<()> {
    without_device_api("ncclLLA2ACreateRequirement")
}

// Parameters by name.

/// # Safety
/// As at the top of [`super`].
pub unsafe fn param_bind(out: *mut ncclParamHandle_t, key: *const c_char) -> Result<()> {
    const CALL: &str = "ncclParamBind";
    // SAFETY: passed on under the same promise.
    unsafe { null_result(CALL, "out", out) }?;
    // SAFETY: passed on under the same promise.
    Err(unsafe { unknown_param(CALL, key) })
}

/// # Safety
/// `key` is NULL or a C string.
unsafe fn unknown_param(call: &str, key: *const c_char) -> Error {
    if key.is_null() {
        return Error::argument(format!("{call}: key is NULL"));
    }
    // SAFETY: not NULL, so a C string.
    let key = unsafe { std::ffi::CStr::from_ptr(key) }.to_string_lossy();
    Error::argument(format!("{call}: this library has no parameter {key:?} to read by name; its settings are environment variables"))
}

/// The body of all typed reads: no handle can be valid.
pub fn param_get<T>(parameter: ncclParamHandle_t, _out: *mut T) -> Result<()> {
    Err(Error::argument(format!("ncclParamGet: {parameter:p} is not a parameter; ncclParamBind has found none in this library")))
}

pub fn param_get_bytes(parameter: ncclParamHandle_t, out: *mut c_void, _capacity: c_int, _length: *mut c_int) -> Result<()> {
    param_get(parameter, out)
}

/// # Safety
/// As at the top of [`super`].
pub unsafe fn param_get_by_name(key: *const c_char, _value: *mut *const c_char, _length: *mut c_int) -> Result<()> {
    // SAFETY: passed on under the same promise.
    Err(unsafe { unknown_param("ncclParamGetParameter", key) })
}

/// An empty list.
///
/// # Safety
/// As at the top of [`super`].
pub unsafe fn param_keys(table: *mut *mut *const c_char, length: *mut c_int) -> Result<()> {
    const CALL: &str = "ncclParamGetAllParameterKeys";
    let (table, length) = (required(CALL, "table", table)?, required(CALL, "tableLen", length)?);
    // SAFETY: not NULL, so writable.
    unsafe { (table.write(std::ptr::null_mut()), length.write(0)) };
    Ok(())
}

/// There is nothing to print.
pub fn param_dump() {}

/// NCCL reads its logging variables again. Deprecated there, and nothing depends on it.
///
/// (For the lead: call the log module here if it can do so.)
pub fn reset_debug() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn teams_translate_ranks() {
        let every_second = ncclTeam { nRanks: 4, rank: 1, stride: 2 };
        assert_eq!(translate(every_second, 3, 10), 14);
        assert_eq!(translate(every_second, 0, 10), 8);
    }

    #[test]
    fn slots_are_eight_bytes() {
        assert_eq!([(4, 8), (4, 9), (1, 1), (0, 8), (3, -5)].map(|(n, size)| ll_a2a_slots(n, size).unwrap()), [4, 8, 1, 0, 0]);
    }

    #[test]
    fn missing_features_leave_null_behind() {
        let mut pointer = std::ptr::without_provenance_mut::<c_void>(8);
        // SAFETY: pointers are to live locals or literals.
        let errors = unsafe {
            [
                lsa_pointer(std::ptr::null_mut(), 0, 0, &raw mut pointer).unwrap_err(),
                param_bind((&raw mut pointer).cast(), c"NCCL_BUFFSIZE".as_ptr()).unwrap_err(),
                param_get_by_name(std::ptr::null(), std::ptr::null_mut(), std::ptr::null_mut()).unwrap_err(),
            ]
        };
        assert!(pointer.is_null());
        assert!(errors.iter().all(|error| error.code == Code::InvalidArgument));
        assert!(errors[1].message.contains("\"NCCL_BUFFSIZE\""), "{}", errors[1]);
    }

    #[test]
    fn there_are_no_parameters() {
        let (mut table, mut length) = (std::ptr::without_provenance_mut(8), 5);
        // SAFETY: live locals.
        unsafe { param_keys(&raw mut table, &raw mut length) }.unwrap();
        assert_eq!((table.is_null(), length), (true, 0));
    }
}
