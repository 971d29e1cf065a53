//! The C types of `nccl.h`, with the layout of NCCL 2.30.7. `device_types` adds those of `nccl_device.h`.
//!
//! Enumerations cross the boundary as the integer wrappers `ncclResult_t`, `RawDataType` and so on: a C caller may pass any `int`, and a Rust
//! enum with an undeclared value would be undefined behaviour. The Rust enums here exist for the header generator, which turns them into
//! C enumerations under NCCL's names, and takes over the doc comments of what C sees (see `cbindgen.toml`).
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case)]

pub use super::device_types::*;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

pub const NCCL_MAJOR: c_int = 2;
pub const NCCL_MINOR: c_int = 30;
pub const NCCL_PATCH: c_int = 7;

/// `NCCL_VERSION` of `nccl.h` for the releases that this library has to tell apart (2.9 and later).
pub const fn version_code(major: c_int, minor: c_int, patch: c_int) -> c_int {
    major * 10000 + minor * 100 + patch
}

pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;

pub const NCCL_WIN_DEFAULT: c_int = 0;
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
pub const NCCL_WIN_STRICT_ORDERING: c_int = 2;
pub const NCCL_WIN_REQUIRED_ALIGNMENT: c_int = 4096;

pub const NCCL_CTA_POLICY_DEFAULT: c_int = 0;
pub const NCCL_CTA_POLICY_EFFICIENCY: c_int = 1;
pub const NCCL_CTA_POLICY_ZERO: c_int = 2;

pub const NCCL_SHRINK_DEFAULT: c_int = 0;
pub const NCCL_SHRINK_ABORT: c_int = 1;
pub const NCCL_REVOKE_DEFAULT: c_int = 0;
pub const NCCL_SUSPEND_MEM: c_int = 1;

/// First word of the versioned structs a caller fills in (`NCCL_API_MAGIC`).
pub const API_MAGIC: c_uint = 0xcafe_beef;
/// The same for `ncclSimInfo_t`.
pub const SIM_INFO_MAGIC: c_uint = 0x7468_5283;
/// `NCCL_CONFIG_UNDEF_INT`: the caller left the member alone.
pub const UNDEF_INT: c_int = c_int::MIN;

/// What every call answers with. A plain integer on the wire; the header shows the enumeration.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawResult(pub c_int);

impl RawResult {
    pub const SUCCESS: Self = Self(Result_t::ncclSuccess as c_int);
    pub const IN_PROGRESS: Self = Self(Result_t::ncclInProgress as c_int);
    pub const INTERNAL_ERROR: Self = Self(Result_t::ncclInternalError as c_int);
}

/// `ncclDataType_t` as it arrives.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDataType(pub c_int);

/// `ncclRedOp_t` as it arrives.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRedOp(pub c_int);

/// `ncclScalarResidence_t` as it arrives.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawResidence(pub c_int);

/// `ncclCommMemStat_t` as it arrives.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawMemStat(pub c_int);

/// `cudaStream_t`: the driver's `CUstream`, or 0, 1 and 2 for the special streams. Never dereferenced here.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawStream(pub *mut c_void);

/// What a call ended with.
#[repr(C)]
pub enum Result_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8,
    ncclNumResults = 9,
}

/// Element type of a buffer.
#[repr(C)]
pub enum DataType_t {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12,
}

/// Reduction operator; values from ncclNumOps to ncclMaxRedOp are made by ncclRedOpCreatePreMulSum.
#[repr(C)]
pub enum RedOp_t {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fff_ffff,
}

/// Where the scalar of ncclRedOpCreatePreMulSum is, and so when it is read: when an operation runs, or at once.
#[repr(C)]
pub enum ScalarResidence_t {
    ncclScalarDevice = 0,
    ncclScalarHostImmediate = 1,
}

/// What ncclCommMemStats is asked for.
#[repr(C)]
pub enum CommMemStat_t {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3,
}

/// A communicator.
pub enum ncclComm {}
pub type ncclComm_t = *mut ncclComm;

/// A symmetric memory window.
pub enum ncclWindow_vidmem {}
pub type ncclWindow_t = *mut ncclWindow_vidmem;

/// A parameter bound by name.
pub enum ncclParamHandle {}
pub type ncclParamHandle_t = *mut ncclParamHandle;

/// What ranks meet by; opaque, to be copied whole.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    pub internal: [c_char; NCCL_UNIQUE_ID_BYTES],
}

impl std::fmt::Debug for ncclUniqueId {
    /// The first bytes are enough to tell two ids apart in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("id ")?;
        self.internal[..16].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Properties of a communicator to be created. Start from NCCL_CONFIG_INITIALIZER.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclConfig_v23000 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
}
pub type ncclConfig_t = ncclConfig_v23000;

/// Answer of ncclGroupSimulateEnd, in microseconds. Start from NCCL_SIM_INFO_INITIALIZER.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclSimInfo_v22200 {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimatedTime: f32,
}
pub type ncclSimInfo_t = ncclSimInfo_v22200;

/// Signals to wait for: how many, from whom, which.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclWaitSignalDesc_t {
    pub opCnt: c_int,
    pub peer: c_int,
    pub sigIdx: c_int,
    pub ctx: c_int,
}

// `compat-tests/abi/layout.c` repeats these against the header.
const _: () = {
    assert!(size_of::<RawResult>() == 4 && size_of::<Result_t>() == 4 && size_of::<RedOp_t>() == 4);
    assert!(size_of::<ncclUniqueId>() == 128);
    assert!(size_of::<ncclConfig_t>() == 96);
    assert!(offset_of!(ncclConfig_t, magic) == 8 && offset_of!(ncclConfig_t, version) == 12);
    assert!(offset_of!(ncclConfig_t, blocking) == 16 && offset_of!(ncclConfig_t, maxCTAs) == 28);
    assert!(offset_of!(ncclConfig_t, netName) == 32 && offset_of!(ncclConfig_t, splitShare) == 40);
    assert!(offset_of!(ncclConfig_t, trafficClass) == 44 && offset_of!(ncclConfig_t, commName) == 48);
    assert!(offset_of!(ncclConfig_t, collnetEnable) == 56 && offset_of!(ncclConfig_t, nvlsCTAs) == 68);
    assert!(offset_of!(ncclConfig_t, nChannelsPerNetPeer) == 72 && offset_of!(ncclConfig_t, graphUsageMode) == 80);
    assert!(offset_of!(ncclConfig_t, maxP2pPeers) == 88 && offset_of!(ncclConfig_t, graphStreamOrdering) == 92);
    assert!(size_of::<ncclSimInfo_t>() == 24 && offset_of!(ncclSimInfo_t, estimatedTime) == 16);
    assert!(size_of::<ncclWaitSignalDesc_t>() == 16);
};
