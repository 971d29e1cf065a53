//! Which NCCL release this library claims to be.

use std::ffi::c_int;

/// The release that `ncclGetVersion` reports: `MKERNEL_REPORT_VERSION`.
///
/// Clients choose code paths by it: from 2.28 TensorRT-LLM uses window buffers, from 2.29 nccl-tests offers the device API, from 2.30
/// Transformer Engine and DeepEP try it. The lowest release whose every path works here is the honest answer, and 2.28.9 is also what
/// PyTorch 2.11 was built with. The header still says 2.30.7, because that is whose functions it declares.
pub fn reported_version() -> c_int {
    crate::env::settings().report_version
}
