//! The NCCL library under test: its functions, looked up by name, and an owner for communicators' handles.
//!
//! Calls are checked: anything but the expected result code is a failure that carries the library's own words.

use crate::outcome::{Outcome, Stop, fail};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

/// Result codes of `nccl.h`.
pub const SUCCESS: c_int = 0;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const IN_PROGRESS: c_int = 7;

pub const SPLIT_NOCOLOR: c_int = -1;
/// "Not set" in `ncclConfig_t`.
const UNDEFINED: c_int = c_int::MIN;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

/// `ncclComm_t`.
pub type RawComm = *mut c_void;
/// `cudaStream_t`.
pub type RawStream = *mut c_void;

/// `ncclConfig_t` of NCCL 2.30.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    pub blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    n_channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    num_rma_ctx: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
}

const _: () = assert!(size_of::<Config>() == 96 && std::mem::offset_of!(Config, comm_name) == 48);

impl Config {
    /// What `NCCL_CONFIG_INITIALIZER` makes.
    pub fn new() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 23007,
            blocking: UNDEFINED,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: std::ptr::null(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
            n_channels_per_net_peer: UNDEFINED,
            nvlink_centric_sched: UNDEFINED,
            graph_usage_mode: UNDEFINED,
            num_rma_ctx: UNDEFINED,
            max_p2p_peers: UNDEFINED,
            graph_stream_ordering: UNDEFINED,
        }
    }

    /// Makes it look like memory that no initialiser has seen.
    pub fn spoil_magic(&mut self) {
        self.magic = 0;
    }
}

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*
     @newer $($new_field:ident = $new_symbol:literal: fn($($new_argument:ty),*) -> $new_result:ty;)*) => {
        /// The functions of `nccl.h` that the checks call.
        pub struct Nccl {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $($new_field: Option<unsafe extern "C" fn($($new_argument),*) -> $new_result>,)*
        }

        impl Nccl {
            /// Opens a library for the rest of the process's life and looks up every function.
            pub fn open(path: &Path) -> Outcome<&'static Self> {
                // SAFETY: runs the library's initialisers, which is what a program that links it does.
                let library = unsafe { libloading::Library::new(path) };
                let library = match library {
                    Ok(library) => Box::leak(Box::new(library)),
                    Err(error) => fail!("cannot load {}: {error}", path.display()),
                };
                Ok(Box::leak(Box::new(Self {
                    // SAFETY: the type is that of nccl.h, and the library stays loaded.
                    $($field: match unsafe { library.get(concat!($symbol, "\0").as_bytes()) } {
                        Ok(function) => *function,
                        Err(error) => fail!("{} has no function {}: {error}", path.display(), $symbol),
                    },)*
                    // SAFETY: as above.
                    $($new_field: unsafe { library.get(concat!($new_symbol, "\0").as_bytes()) }.ok().map(|function| *function),)*
                })))
            }

            $(
                /// A function that not every release has; a check that needs it is skipped where it is missing.
                pub fn $new_field(&self) -> Outcome<unsafe extern "C" fn($($new_argument),*) -> $new_result> {
                    self.$new_field.ok_or_else(|| Stop::Skipped(concat!("the library has no ", $new_symbol).into()))
                }
            )*
        }
    };
}

functions! {
    get_version = "ncclGetVersion": fn(*mut c_int) -> c_int;
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    get_error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
    get_last_error = "ncclGetLastError": fn(RawComm) -> *const c_char;
    comm_init_rank = "ncclCommInitRank": fn(*mut RawComm, c_int, UniqueId, c_int) -> c_int;
    comm_init_rank_config = "ncclCommInitRankConfig": fn(*mut RawComm, c_int, UniqueId, c_int, *mut Config) -> c_int;
    comm_init_rank_scalable = "ncclCommInitRankScalable": fn(*mut RawComm, c_int, c_int, c_int, *mut UniqueId, *mut Config) -> c_int;
    comm_init_all = "ncclCommInitAll": fn(*mut RawComm, c_int, *const c_int) -> c_int;
    comm_split = "ncclCommSplit": fn(RawComm, c_int, c_int, *mut RawComm, *mut Config) -> c_int;
    comm_finalize = "ncclCommFinalize": fn(RawComm) -> c_int;
    comm_destroy = "ncclCommDestroy": fn(RawComm) -> c_int;
    comm_abort = "ncclCommAbort": fn(RawComm) -> c_int;
    comm_get_async_error = "ncclCommGetAsyncError": fn(RawComm, *mut c_int) -> c_int;
    comm_count = "ncclCommCount": fn(RawComm, *mut c_int) -> c_int;
    comm_user_rank = "ncclCommUserRank": fn(RawComm, *mut c_int) -> c_int;
    comm_cu_device = "ncclCommCuDevice": fn(RawComm, *mut c_int) -> c_int;
    comm_register = "ncclCommRegister": fn(RawComm, *mut c_void, usize, *mut *mut c_void) -> c_int;
    comm_deregister = "ncclCommDeregister": fn(RawComm, *mut c_void) -> c_int;
    comm_window_register = "ncclCommWindowRegister": fn(RawComm, *mut c_void, usize, *mut *mut c_void, c_int) -> c_int;
    comm_window_deregister = "ncclCommWindowDeregister": fn(RawComm, *mut c_void) -> c_int;
    mem_alloc = "ncclMemAlloc": fn(*mut *mut c_void, usize) -> c_int;
    mem_free = "ncclMemFree": fn(*mut c_void) -> c_int;
    red_op_create_pre_mul_sum = "ncclRedOpCreatePreMulSum": fn(*mut c_int, *mut c_void, c_int, c_int, RawComm) -> c_int;
    red_op_destroy = "ncclRedOpDestroy": fn(c_int, RawComm) -> c_int;
    group_start = "ncclGroupStart": fn() -> c_int;
    group_end = "ncclGroupEnd": fn() -> c_int;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    bcast = "ncclBcast": fn(*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, RawStream) -> c_int;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> c_int;
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    all_to_all = "ncclAlltoAll": fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> c_int;
    gather = "ncclGather": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    scatter = "ncclScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    recv = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, RawComm, RawStream) -> c_int;
    @newer
    comm_revoke = "ncclCommRevoke": fn(RawComm, c_int) -> c_int;
}

/// A C string of the library, or a word when it is missing.
///
/// # Safety
/// `text` is NULL or a C string that lives during the call.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return "(NULL)".into();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The name of a result code in `nccl.h`.
pub fn code_name(code: c_int) -> String {
    let names = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
        "ncclTimeout",
    ];
    usize::try_from(code).ok().and_then(|index| names.get(index)).map_or_else(|| format!("result code {code}"), |name| (*name).to_owned())
}

impl Nccl {
    /// The library's last words, for a communicator or (NULL) the process.
    ///
    /// # Safety
    /// `comm` is NULL or a live communicator.
    pub unsafe fn last_error(&self, comm: RawComm) -> String {
        // SAFETY: the caller's promise; the library returns NULL or a C string of its own.
        unsafe { text_of((self.get_last_error)(comm)) }
    }

    pub fn error_string(&self, code: c_int) -> String {
        // SAFETY: takes a number, returns NULL or a C string of the library's own.
        unsafe { text_of((self.get_error_string)(code)) }
    }

    /// Success, or a failure with the library's words.
    pub fn check(&self, call: &str, code: c_int) -> Outcome {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: NULL is allowed.
        let words = unsafe { self.last_error(std::ptr::null_mut()) };
        Err(Stop::Failed(format!("{call} returned {} ({words})", code_name(code))))
    }

    /// Fails unless a call that had to be refused was refused with this code.
    pub fn refused(&self, call: &str, code: c_int, expected: c_int) -> Outcome {
        if code == expected {
            return Ok(());
        }
        fail!("{call} returned {}, expected {}", code_name(code), code_name(expected))
    }

    pub fn version(&self) -> Outcome<c_int> {
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&mut version) })?;
        Ok(version)
    }

    pub fn unique_id(&self) -> Outcome<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is valid for the call.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    pub fn group_start(&self) -> Outcome {
        // SAFETY: takes nothing.
        self.check("ncclGroupStart", unsafe { (self.group_start)() })
    }

    pub fn group_end(&self) -> Outcome {
        // SAFETY: takes nothing; what the group holds was promised valid by those who put it there.
        self.check("ncclGroupEnd", unsafe { (self.group_end)() })
    }
}
