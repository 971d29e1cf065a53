// The macros and names of nccl.h that PyTorch's sources test or use (NCCLUtils, ProcessGroupNCCL, torch/csrc/cuda/nccl), each in the way it is used there.
#include <nccl.h>

#include <string>

#if !defined(NCCL_MAJOR) || !defined(NCCL_MINOR) || !defined(NCCL_PATCH) || !defined(NCCL_SUFFIX)
#error "torch.cuda.nccl.version() is made of these"
#endif
#if !defined(NCCL_VERSION) || !defined(NCCL_VERSION_CODE) || NCCL_VERSION_CODE < NCCL_VERSION(2, 23, 0)
#error "PyTorch 2.15 asks for 2.23 or later"
#endif
#ifndef NCCL_SIM_INFO_INITIALIZER
#error "time estimates depend on this macro"
#endif
#ifndef NCCL_CONFIG_INITIALIZER
#error "communicator options start from this macro"
#endif

const std::string suffix(NCCL_SUFFIX);

struct Options {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  Options() {
    config.blocking = 0;
    config.cgaClusterSize = 2;
    config.minCTAs = 1;
    config.maxCTAs = 4;
    config.netName = "Socket";
    config.splitShare = 1;
    config.trafficClass = NCCL_CONFIG_UNDEF_INT;
    config.commName = "name";
    config.collnetEnable = 0;
    config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
    config.shrinkShare = 0;
    config.nvlsCTAs = NCCL_CONFIG_UNDEF_INT;
    config.maxP2pPeers = NCCL_CONFIG_UNDEF_INT;
  }
};

// Each is used by pointer, which must have the type that PyTorch's calls assume.
ncclResult_t (*const split)(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) = ncclCommSplit;
ncclResult_t (*const shrink)(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) = ncclCommShrink;
ncclResult_t (*const scalable)(ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*) = ncclCommInitRankScalable;
ncclResult_t (*const premul)(ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) = ncclRedOpCreatePreMulSum;
ncclResult_t (*const allocate)(void**, size_t) = ncclMemAlloc;
ncclResult_t (*const release)(void*) = ncclMemFree;
ncclResult_t (*const window)(ncclComm_t, void*, size_t, ncclWindow_t*, int) = ncclCommWindowRegister;
ncclResult_t (*const all_to_all)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) = ncclAlltoAll;
const char* (*const last)(ncclComm_t) = ncclGetLastError;

int cases(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: case ncclUnhandledCudaError: case ncclSystemError: case ncclInternalError: case ncclInvalidArgument: case ncclInvalidUsage: return 0;
    case ncclRemoteError: case ncclInProgress: case ncclNumResults: return NCCL_SPLIT_NOCOLOR;
    default: return NCCL_WIN_COLL_SYMMETRIC | NCCL_SHRINK_DEFAULT | NCCL_SHRINK_ABORT;
  }
}

ncclDataType_t types[] = {ncclChar, ncclUint8, ncclFloat, ncclDouble, ncclInt64, ncclInt, ncclHalf, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};
ncclRedOp_t operators[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
