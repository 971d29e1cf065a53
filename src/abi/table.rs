// The exported names, in the order of NCCL's headers: what each is called, takes and answers, and the private function behind it.
//
// This file is included twice, under two meanings of `nccl_api!`: by `exports.rs`, which makes the functions, and by `xtask`, which makes the
// headers. Doc comments become the headers' comments.

// Declared in nccl.h.
nccl_api! { HOST:
    // Memory, version, identity.

    /// Allocates device memory that peers can map.
    ncclMemAlloc pncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> RawResult = communicators::mem_alloc;

    /// Frees memory of ncclMemAlloc.
    ncclMemFree pncclMemFree(ptr: *mut c_void) -> RawResult = communicators::mem_free;

    /// The NCCL release whose behaviour this library offers, as NCCL_VERSION_CODE; MKERNEL_REPORT_VERSION overrides it.
    ncclGetVersion pncclGetVersion(version: *mut c_int) -> RawResult = communicators::get_version;

    /// Makes an id; one rank calls it and hands the id to all others.
    ncclGetUniqueId pncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> RawResult = communicators::get_unique_id;

    // Communicators.

    /// Joins a communicator as `rank`, with the current device. `config` may be NULL.
    ncclCommInitRankConfig pncclCommInitRankConfig(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t
    ) -> RawResult = communicators::init_rank_config;

    /// Joins a communicator as `rank`, with the current device.
    ncclCommInitRank pncclCommInitRank(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int
    ) -> RawResult = communicators::init_rank;

    /// One communicator per device of `devlist` (NULL: the first `ndev`), all in this process. A device may be named several times.
    ncclCommInitAll pncclCommInitAll(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> RawResult = communicators::init_all;

    /// Flushes a communicator's operations.
    ncclCommFinalize pncclCommFinalize(comm: ncclComm_t) -> RawResult = communicators::finalize;

    /// Ends a communicator; the handle is invalid afterwards.
    ncclCommDestroy pncclCommDestroy(comm: ncclComm_t) -> RawResult = communicators::destroy;

    /// Ends a communicator at once, without waiting for its operations or peers; the handle is invalid afterwards.
    ncclCommAbort pncclCommAbort(comm: ncclComm_t) -> RawResult = communicators::abort;

    /// Stops a communicator's operations; it can still be split or destroyed.
    ncclCommRevoke pncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> RawResult = communicators::revoke;

    /// Splits a communicator by colour, ranks ordered by key. With NCCL_SPLIT_NOCOLOR the caller gets NULL.
    ncclCommSplit pncclCommSplit(
        comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t
    ) -> RawResult = communicators::split;

    /// Not available: ncclInvalidUsage.
    ncclCommShrink pncclCommShrink(
        comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
        shrinkFlags: c_int
    ) -> RawResult = stubs::shrink;

    /// Not available: ncclInvalidUsage.
    ncclCommGetUniqueId pncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> RawResult = stubs::comm_unique_id;

    /// Not available: ncclInvalidUsage.
    ncclCommGrow pncclCommGrow(
        comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t
    ) -> RawResult = stubs::grow;

    /// Joins a communicator with several ids, which share the work of the rendezvous.
    ncclCommInitRankScalable pncclCommInitRankScalable(
        newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut ncclUniqueId, config: *mut ncclConfig_t
    ) -> RawResult = communicators::init_rank_scalable;

    /// A text for a result code.
    ncclGetErrorString pncclGetErrorString(result: RawResult) -> *const c_char = communicators::error_string;

    /// What went wrong last in this process, in full. `comm` may be NULL.
    ncclGetLastError pncclGetLastError(comm: ncclComm_t) -> *const c_char = communicators::last_error;

    /// Deprecated: reads NCCL's logging variables again.
    ncclResetDebugInit pncclResetDebugInit() -> () = stubs::reset_debug;

    /// The state of a communicator: success, in progress, or the error that ended it.
    ncclCommGetAsyncError pncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut RawResult) -> RawResult = communicators::async_error;

    /// The number of ranks.
    ncclCommCount pncclCommCount(comm: ncclComm_t, count: *mut c_int) -> RawResult = communicators::count;

    /// The CUDA device of this rank.
    ncclCommCuDevice pncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> RawResult = communicators::device;

    /// This rank's number.
    ncclCommUserRank pncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> RawResult = communicators::user_rank;

    /// Accepted without effect: `handle` becomes NULL.
    ncclCommRegister pncclCommRegister(
        comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void
    ) -> RawResult = stubs::register;

    /// Accepts the NULL of ncclCommRegister.
    ncclCommDeregister pncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> RawResult = stubs::deregister;

    /// Not available: ncclInvalidUsage.
    ncclCommSuspend pncclCommSuspend(comm: ncclComm_t, flags: c_int) -> RawResult = stubs::suspend;

    /// Not available: ncclInvalidUsage.
    ncclCommResume pncclCommResume(comm: ncclComm_t) -> RawResult = stubs::resume;

    /// Not available: ncclInvalidUsage.
    ncclCommMemStats pncclCommMemStats(comm: ncclComm_t, stat: RawMemStat, value: *mut u64) -> RawResult = stubs::mem_stats;

    /// Without symmetric memory: `win` becomes NULL.
    ncclCommWindowRegister pncclCommWindowRegister(
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int
    ) -> RawResult = stubs::window_register;

    /// Accepts the NULL of ncclCommWindowRegister.
    ncclCommWindowDeregister pncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> RawResult = stubs::window_deregister;

    /// Not available: ncclInvalidArgument.
    ncclWinGetUserPtr pncclWinGetUserPtr(
        comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void
    ) -> RawResult = stubs::window_user_pointer;

    // Reduction operators.

    /// Makes an operator that multiplies each input by a scalar and then sums.
    ncclRedOpCreatePreMulSum pncclRedOpCreatePreMulSum(
        op: *mut RawRedOp, scalar: *mut c_void, datatype: RawDataType, residence: RawResidence, comm: ncclComm_t
    ) -> RawResult = operations::create_premul_sum;

    /// Ends an operator; operations that were issued with it are not affected.
    ncclRedOpDestroy pncclRedOpDestroy(op: RawRedOp, comm: ncclComm_t) -> RawResult = operations::destroy_redop;

    // Collectives and point-to-point operations. Each returns once it is enqueued on `stream`.

    /// Reduces `count` elements of all ranks into `recvbuff` of the root.
    ncclReduce pncclReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: RawDataType, op: RawRedOp, root: c_int, comm: ncclComm_t,
        stream: RawStream
    ) -> RawResult = operations::reduce;

    /// ncclBroadcast in place.
    ncclBcast pncclBcast(
        buff: *mut c_void, count: usize, datatype: RawDataType, root: c_int, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = operations::bcast;

    /// Copies `count` elements of the root's `sendbuff` into every `recvbuff`.
    ncclBroadcast pncclBroadcast(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: RawDataType, root: c_int, comm: ncclComm_t,
        stream: RawStream
    ) -> RawResult = operations::broadcast;

    /// Reduces `count` elements of all ranks into every `recvbuff`.
    ncclAllReduce pncclAllReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: RawDataType, op: RawRedOp, comm: ncclComm_t,
        stream: RawStream
    ) -> RawResult = operations::all_reduce;

    /// Reduces, and leaves block i of `recvcount` elements with rank i.
    ncclReduceScatter pncclReduceScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: RawDataType, op: RawRedOp, comm: ncclComm_t,
        stream: RawStream
    ) -> RawResult = operations::reduce_scatter;

    /// Collects `sendcount` elements of each rank, in rank order, in every `recvbuff`.
    ncclAllGather pncclAllGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: RawDataType, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = operations::all_gather;

    /// Sends block j of `count` elements to rank j, and receives block i from rank i.
    ncclAlltoAll pncclAlltoAll(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: RawDataType, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = operations::all_to_all;

    /// Collects `count` elements of each rank, in rank order, in `recvbuff` of the root.
    ncclGather pncclGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: RawDataType, root: c_int, comm: ncclComm_t,
        stream: RawStream
    ) -> RawResult = operations::gather;

    /// Sends block i of `count` elements of the root's `sendbuff` to rank i.
    ncclScatter pncclScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: RawDataType, root: c_int, comm: ncclComm_t,
        stream: RawStream
    ) -> RawResult = operations::scatter;

    /// Sends to `peer`, which must call ncclRecv with the same count and type.
    ncclSend pncclSend(
        sendbuff: *const c_void, count: usize, datatype: RawDataType, peer: c_int, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = operations::send;

    /// Receives from `peer`, which must call ncclSend with the same count and type.
    ncclRecv pncclRecv(
        recvbuff: *mut c_void, count: usize, datatype: RawDataType, peer: c_int, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = operations::recv;

    // One-sided operations.

    /// Not available: ncclInvalidArgument.
    ncclPutSignal pncclPutSignal(
        localbuff: *const c_void, count: usize, datatype: RawDataType, peer: c_int, peerWin: ncclWindow_t, peerWinOffset: usize,
        sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = stubs::put_signal;

    /// Not available: ncclInvalidArgument.
    ncclSignal pncclSignal(
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = stubs::signal;

    /// Not available: ncclInvalidArgument.
    ncclWaitSignal pncclWaitSignal(
        nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: RawStream
    ) -> RawResult = stubs::wait_signal;

    // Groups.

    /// Operations from here to the matching ncclGroupEnd are issued together.
    ncclGroupStart pncclGroupStart() -> RawResult = communicators::group_start;

    /// Ends a group; the outermost end issues its operations.
    ncclGroupEnd pncclGroupEnd() -> RawResult = communicators::group_end;

    /// Ends a group without issuing it, and estimates its time.
    ncclGroupSimulateEnd pncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> RawResult = communicators::group_simulate_end;

    // Parameters by name. This library has none.

    /// No parameter is found: ncclInvalidArgument.
    ncclParamBind pncclParamBind(out: *mut ncclParamHandle_t, key: *const c_char) -> RawResult = stubs::param_bind;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetI8 pncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetI16 pncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetI32 pncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetI64 pncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetU8 pncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetU16 pncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetU32 pncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetU64 pncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGetStr pncclParamGetStr(h: ncclParamHandle_t, out: *mut *const c_char) -> RawResult = stubs::param_get;

    /// No handle is valid: ncclInvalidArgument.
    ncclParamGet pncclParamGet(
        h: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int
    ) -> RawResult = stubs::param_get_bytes;

    /// No parameter is found: ncclInvalidArgument.
    ncclParamGetParameter pncclParamGetParameter(
        key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int
    ) -> RawResult = stubs::param_get_by_name;

    /// An empty list.
    ncclParamGetAllParameterKeys pncclParamGetAllParameterKeys(
        table: *mut *mut *const c_char, tableLen: *mut c_int
    ) -> RawResult = stubs::param_keys;

    /// Prints nothing.
    ncclParamDumpAll pncclParamDumpAll() -> () = stubs::param_dump;
}

// The host half of the device API, declared in nccl_device.h.
nccl_api! { DEVICE:
    /// Rank, ranks and device; no device API, multicast or one-sided operations.
    ncclCommQueryProperties pncclCommQueryProperties(
        comm: ncclComm_t, props: *mut ncclCommProperties_t
    ) -> RawResult = stubs::query_properties;

    /// Not available: ncclInvalidUsage.
    ncclDevCommCreate pncclDevCommCreate(
        comm: ncclComm_t, reqs: *const ncclDevCommRequirements_t, outDevComm: *mut ncclDevComm_t
    ) -> RawResult = stubs::dev_comm_create;

    /// Accepts NULL.
    ncclDevCommDestroy pncclDevCommDestroy(comm: ncclComm_t, devComm: *const ncclDevComm_t) -> RawResult = stubs::dev_comm_destroy;

    /// Not available: ncclInvalidArgument.
    ncclGetLsaMultimemDevicePointer pncclGetLsaMultimemDevicePointer(
        window: ncclWindow_t, offset: usize, outPtr: *mut *mut c_void
    ) -> RawResult = stubs::lsa_multimem_pointer;

    /// Not available: ncclInvalidArgument.
    ncclGetMultimemDevicePointer pncclGetMultimemDevicePointer(
        window: ncclWindow_t, offset: usize, multimem: ncclMultimemHandle_t, outPtr: *mut *mut c_void
    ) -> RawResult = stubs::multimem_pointer;

    /// Not available: ncclInvalidArgument.
    ncclGetLsaDevicePointer pncclGetLsaDevicePointer(
        window: ncclWindow_t, offset: usize, lsaRank: c_int, outPtr: *mut *mut c_void
    ) -> RawResult = stubs::lsa_pointer;

    /// Not available: ncclInvalidArgument.
    ncclGetPeerDevicePointer pncclGetPeerDevicePointer(
        window: ncclWindow_t, offset: usize, peer: c_int, outPtr: *mut *mut c_void
    ) -> RawResult = stubs::peer_pointer;

    /// All ranks.
    ncclTeamWorld pncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t = stubs::team_world;

    /// The ranks that share symmetric memory with this one: itself.
    ncclTeamLsa pncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t = stubs::team_lsa;

    /// One rank of each load/store team.
    ncclTeamRail pncclTeamRail(comm: ncclComm_t) -> ncclTeam_t = stubs::team_rail;

    /// A team member's number among all ranks.
    ncclTeamRankToWorld pncclTeamRankToWorld(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int = stubs::team_rank_to_world;

    /// A team member's number in the load/store team.
    ncclTeamRankToLsa pncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int = stubs::team_rank_to_lsa;

    /// Not available: ncclInvalidUsage.
    ncclLsaBarrierCreateRequirement pncclLsaBarrierCreateRequirement(
        team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclLsaBarrierHandle_t, outReq: *mut ncclDevResourceRequirements_t
    ) -> RawResult = stubs::lsa_barrier_requirement;

    /// Not available: ncclInvalidUsage.
    ncclGinBarrierCreateRequirement pncclGinBarrierCreateRequirement(
        comm: ncclComm_t, team: ncclTeam_t, nBarriers: c_int, outHandle: *mut ncclGinBarrierHandle_t,
        outReq: *mut ncclDevResourceRequirements_t
    ) -> RawResult = stubs::gin_barrier_requirement;

    /// Not available: ncclInvalidUsage.
    ncclGinOutboxCreateRequirement pncclGinOutboxCreateRequirement(
        nBlocks: c_int, size_log2: c_int, outHandle: *mut ncclGinOutboxHandle, outReq: *mut ncclDevResourceRequirements_t
    ) -> RawResult = stubs::gin_outbox_requirement;

    /// Not available: ncclInvalidUsage.
    ncclGinInboxA2ACreateRequirement pncclGinInboxA2ACreateRequirement(
        peers: ncclTeam_t, nBlocks: c_int, size_log2: c_int, outHandle: *mut ncclGinInboxA2AHandle,
        outReq: *mut ncclDevResourceRequirements_t
    ) -> RawResult = stubs::gin_inbox_requirement;

    /// Slots that a low-latency exchange of so many elements needs.
    ncclLLA2ACalcSlots pncclLLA2ACalcSlots(maxElts: c_int, maxEltSize: c_int) -> c_int = stubs::ll_a2a_slots;

    /// Not available: ncclInvalidUsage.
    ncclLLA2ACreateRequirement pncclLLA2ACreateRequirement(
        nBlocks: c_int, nSlots: c_int, outHandle: *mut ncclLLA2AHandle_t, outReq: *mut ncclDevResourceRequirements_t
    ) -> RawResult = stubs::ll_a2a_requirement;
}
