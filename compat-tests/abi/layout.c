/* Layout and values of nccl.h as NCCL 2.30.7 has them. Compiles as C and as C++, against our header and against NVIDIA's; nothing runs. */
#include <nccl.h>
#include <nccl.h> /* twice, for the include guard */

#ifdef __cplusplus
#define SAME(a, b) static_assert((a) == (b), #a)
#else
#define SAME(a, b) _Static_assert((a) == (b), #a)
#endif
#define AT(type, member, offset) SAME(offsetof(type, member), offset)

SAME(NCCL_MAJOR, 2); SAME(NCCL_MINOR, 30); SAME(NCCL_PATCH, 7);
SAME(sizeof(NCCL_SUFFIX), 1);
SAME(NCCL_VERSION_CODE, 23007);
SAME(NCCL_VERSION(2, 30, 7), NCCL_VERSION_CODE);
SAME(NCCL_VERSION(2, 8, 4), 2804);
SAME(NCCL_VERSION(2, 9, 0), 20900);

SAME(sizeof(ncclUniqueId), 128); SAME(NCCL_UNIQUE_ID_BYTES, 128); SAME(sizeof(((ncclUniqueId*)0)->internal), 128);
SAME(sizeof(ncclComm_t), 8); SAME(sizeof(ncclWindow_t), 8); SAME(sizeof(ncclParamHandle_t), 8);

SAME(sizeof(ncclConfig_t), 96);
AT(ncclConfig_t, size, 0); AT(ncclConfig_t, magic, 8); AT(ncclConfig_t, version, 12);
AT(ncclConfig_t, blocking, 16); AT(ncclConfig_t, cgaClusterSize, 20); AT(ncclConfig_t, minCTAs, 24); AT(ncclConfig_t, maxCTAs, 28);
AT(ncclConfig_t, netName, 32); AT(ncclConfig_t, splitShare, 40); AT(ncclConfig_t, trafficClass, 44); AT(ncclConfig_t, commName, 48);
AT(ncclConfig_t, collnetEnable, 56); AT(ncclConfig_t, CTAPolicy, 60); AT(ncclConfig_t, shrinkShare, 64); AT(ncclConfig_t, nvlsCTAs, 68);
AT(ncclConfig_t, nChannelsPerNetPeer, 72); AT(ncclConfig_t, nvlinkCentricSched, 76); AT(ncclConfig_t, graphUsageMode, 80);
AT(ncclConfig_t, numRmaCtx, 84); AT(ncclConfig_t, maxP2pPeers, 88); AT(ncclConfig_t, graphStreamOrdering, 92);
SAME(sizeof(ncclSimInfo_t), 24); AT(ncclSimInfo_t, magic, 8); AT(ncclSimInfo_t, version, 12); AT(ncclSimInfo_t, estimatedTime, 16);
SAME(sizeof(ncclWaitSignalDesc_t), 16);
AT(ncclWaitSignalDesc_t, opCnt, 0); AT(ncclWaitSignalDesc_t, peer, 4); AT(ncclWaitSignalDesc_t, sigIdx, 8); AT(ncclWaitSignalDesc_t, ctx, 12);

SAME(sizeof(ncclResult_t), 4);
SAME(ncclSuccess, 0); SAME(ncclUnhandledCudaError, 1); SAME(ncclSystemError, 2); SAME(ncclInternalError, 3); SAME(ncclInvalidArgument, 4);
SAME(ncclInvalidUsage, 5); SAME(ncclRemoteError, 6); SAME(ncclInProgress, 7); SAME(ncclTimeout, 8); SAME(ncclNumResults, 9);
SAME(sizeof(ncclDataType_t), 4);
SAME(ncclInt8, 0); SAME(ncclChar, 0); SAME(ncclUint8, 1); SAME(ncclInt32, 2); SAME(ncclInt, 2); SAME(ncclUint32, 3); SAME(ncclInt64, 4);
SAME(ncclUint64, 5); SAME(ncclFloat16, 6); SAME(ncclHalf, 6); SAME(ncclFloat32, 7); SAME(ncclFloat, 7); SAME(ncclFloat64, 8);
SAME(ncclDouble, 8); SAME(ncclBfloat16, 9); SAME(ncclFloat8e4m3, 10); SAME(ncclFloat8e5m2, 11); SAME(ncclNumTypes, 12);
SAME(sizeof(ncclRedOp_t), 4);
SAME(ncclSum, 0); SAME(ncclProd, 1); SAME(ncclMax, 2); SAME(ncclMin, 3); SAME(ncclAvg, 4); SAME(ncclNumOps, 5); SAME(ncclMaxRedOp, 0x7fffffff);
SAME(sizeof(ncclScalarResidence_t), 4); SAME(ncclScalarDevice, 0); SAME(ncclScalarHostImmediate, 1);
SAME(sizeof(ncclCommMemStat_t), 4);
SAME(ncclStatGpuMemSuspend, 0); SAME(ncclStatGpuMemSuspended, 1); SAME(ncclStatGpuMemPersist, 2); SAME(ncclStatGpuMemTotal, 3);

SAME(NCCL_WIN_DEFAULT, 0); SAME(NCCL_WIN_COLL_SYMMETRIC, 1); SAME(NCCL_WIN_STRICT_ORDERING, 2); SAME(NCCL_WIN_REQUIRED_ALIGNMENT, 4096);
SAME(NCCL_CTA_POLICY_DEFAULT, 0); SAME(NCCL_CTA_POLICY_EFFICIENCY, 1); SAME(NCCL_CTA_POLICY_ZERO, 2);
SAME(NCCL_SHRINK_DEFAULT, 0); SAME(NCCL_SHRINK_ABORT, 1); SAME(NCCL_REVOKE_DEFAULT, 0); SAME(NCCL_SUSPEND_MEM, 1);
SAME(NCCL_SPLIT_NOCOLOR, -1); SAME(NCCL_CONFIG_UNDEF_INT, INT_MIN); SAME(NCCL_API_MAGIC, 0xcafebeefu);

/* The types must be the enumerations themselves: in C++ an int does not convert to one. */
ncclDataType_t type = ncclFloat;
ncclRedOp_t op = ncclSum;
ncclComm_t comm = NCCL_COMM_NULL;
const char* name = (const char*)NCCL_CONFIG_UNDEF_PTR;
ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
float undefined = NCCL_UNDEF_FLOAT;
