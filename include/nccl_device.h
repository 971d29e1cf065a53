/*
 * nccl_device.h of mkernel. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * This library has no device API: ncclCommQueryProperties says so and ncclDevCommCreate answers ncclInvalidUsage. Programs that can use one,
 * such as nccl-tests with -D, ask first and go another way; this header lets them compile unchanged. The structs that cross the library's
 * boundary have the layout of NCCL 2.30.7, so that what is compiled here also runs with NVIDIA's library up to that point. Device
 * functions are those that nccl-tests names; each traps, for it cannot be reached without a device communicator.
 */
#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum { NCCL_GIN_CONNECTION_NONE = 0, NCCL_GIN_CONNECTION_FULL = 1, NCCL_GIN_CONNECTION_RAIL = 2 } ncclGinConnectionType_t;
typedef enum { NCCL_GIN_TYPE_NONE = 0, NCCL_GIN_TYPE_PROXY = 2, NCCL_GIN_TYPE_GDAKI = 3, NCCL_GIN_TYPE_GPI = 4 } ncclGinType_t;

typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

#include "nccl_device_host.h"

struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
};

struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
};

struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
};

/* What a device communicator should offer. Start from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER. */
typedef struct ncclTeamRequirements ncclTeamRequirements_t;
struct ncclDevCommRequirements {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount;
  int lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
};

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
  { \
    sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NULL, NULL, false, 0, 0, 0, 0, 0, false, 4 /* ginContextCount */, \
      0, 0, NCCL_GIN_CONNECTION_NONE, false, 0, NCCL_CONFIG_UNDEF_INT /* ginTrafficClass */, 0, true, true, \
  }

#define NCCL_COMM_PROPERTIES_INITIALIZER \
  { sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE }

struct ncclDevResourceRequirements {
  ncclDevResourceRequirements_t* next;
  size_t bufferSize, bufferAlign;
  ncclDevResourceHandle_t* outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t* outGinSignalStart;
  ncclGinCounter_t* outGinCounterStart;
};

struct ncclTeamRequirements {
  ncclTeamRequirements_t* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
};

/* The members that programs read, at their places; the rest is room for what NVIDIA's library writes. */
struct ncclDevComm {
  unsigned int magic;
  unsigned int version;
  int rank, nRanks;
  uint32_t nRanks_rcp32;
  int lsaRank, lsaSize;
  uint32_t reserved0[23];
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;
  uint64_t reserved1[8];
  uint32_t* abortFlag;
  ncclLsaBarrierHandle_t hybridLsaBarrier;
  ncclGinBarrierHandle_t hybridRailGinBarrier;
  ncclGinBarrierHandle_t worldGinBarrier;
};

#ifdef __CUDACC__
#include <cuda/atomic>

/* Fails the kernel: there is no device communicator that could have brought it here. */
template <typename Result = void>
__device__ inline Result ncclNoDeviceApi() {
  __trap();
  return Result();
}

__device__ inline ncclTeam ncclTeamWorld(ncclDevComm const& comm) {
  return ncclTeam{comm.nRanks, comm.rank, 1};
}
__device__ inline ncclTeam ncclTeamLsa(ncclDevComm const& comm) {
  return ncclTeam{comm.lsaSize, comm.lsaRank, 1};
}

struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclTeamTagRail {};
struct ncclCoopCta {};

__device__ inline void* ncclGetLocalPointer(ncclWindow_t, size_t) {
  return ncclNoDeviceApi<void*>();
}
__device__ inline void* ncclGetLsaPointer(ncclWindow_t, size_t, int) {
  return ncclNoDeviceApi<void*>();
}
__device__ inline void* ncclGetLsaMultimemPointer(ncclWindow_t, size_t, ncclDevComm const&) {
  return ncclNoDeviceApi<void*>();
}

template <typename Coop>
struct ncclLsaBarrierSession {
  __device__ ncclLsaBarrierSession(Coop, ncclDevComm const&, ncclTeam, ncclLsaBarrierHandle, uint32_t, bool = false, ncclMultimemHandle = {}) {
    ncclNoDeviceApi();
  }
  __device__ ncclLsaBarrierSession(Coop, ncclDevComm const&, ncclTeamTagLsa, uint32_t, bool = false) { ncclNoDeviceApi(); }
  ncclLsaBarrierSession(ncclLsaBarrierSession const&) = delete;
  __device__ void arrive(Coop, cuda::memory_order) { ncclNoDeviceApi(); }
  __device__ void wait(Coop, cuda::memory_order) { ncclNoDeviceApi(); }
  __device__ void sync(Coop, cuda::memory_order) { ncclNoDeviceApi(); }
};

enum class ncclGinFenceLevel : uint32_t { None = 0, Relaxed = 0, Put = 1, Get = 2 };

struct ncclGin_SignalInc {
  ncclGinSignal_t signal;
};

struct ncclGin {
  __device__ ncclGin(ncclDevComm const&, int) { ncclNoDeviceApi(); }
  template <typename Action>
  __device__ void put(ncclTeam, int, ncclWindow_t, size_t, ncclWindow_t, size_t, size_t, Action) {
    ncclNoDeviceApi();
  }
  __device__ uint64_t readSignal(ncclGinSignal_t) { return ncclNoDeviceApi<uint64_t>(); }
  template <typename Coop>
  __device__ void waitSignal(Coop, ncclGinSignal_t, uint64_t) {
    ncclNoDeviceApi();
  }
  template <typename Coop>
  __device__ void flush(Coop) {
    ncclNoDeviceApi();
  }
};

template <typename Coop>
struct ncclBarrierSession {
  __device__ ncclBarrierSession(Coop, ncclTeamTagWorld, ncclGin, uint32_t) { ncclNoDeviceApi(); }
  ncclBarrierSession(ncclBarrierSession const&) = delete;
  __device__ void sync(Coop, cuda::memory_order, ncclGinFenceLevel = ncclGinFenceLevel::None) { ncclNoDeviceApi(); }
};
#endif /* __CUDACC__ */

#endif
