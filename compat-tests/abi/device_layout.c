/* Layout of the host half of nccl_device.h as NCCL 2.30.7 has it. C and C++; with THEIRS, NVIDIA's header has already been included. */
#ifndef THEIRS
#include <nccl_device.h>
#endif
#include <stddef.h>

#ifdef __cplusplus
#define SAME(a, b) static_assert((a) == (b), #a)
#else
#define SAME(a, b) _Static_assert((a) == (b), #a)
#endif
#define AT(type, member, offset) SAME(offsetof(type, member), offset)

SAME(sizeof(ncclTeam_t), 12); AT(ncclTeam_t, nRanks, 0); AT(ncclTeam_t, rank, 4); AT(ncclTeam_t, stride, 8);
SAME(sizeof(ncclMultimemHandle_t), 8);

SAME(sizeof(ncclCommProperties_t), 56);
AT(ncclCommProperties_t, size, 0); AT(ncclCommProperties_t, magic, 8); AT(ncclCommProperties_t, version, 12);
AT(ncclCommProperties_t, rank, 16); AT(ncclCommProperties_t, nRanks, 20); AT(ncclCommProperties_t, cudaDev, 24);
AT(ncclCommProperties_t, nvmlDev, 28); AT(ncclCommProperties_t, deviceApiSupport, 32); AT(ncclCommProperties_t, multimemSupport, 33);
AT(ncclCommProperties_t, ginType, 36); AT(ncclCommProperties_t, nLsaTeams, 40); AT(ncclCommProperties_t, hostRmaSupport, 44);
AT(ncclCommProperties_t, railedGinType, 48);

SAME(sizeof(ncclDevCommRequirements_t), 96);
AT(ncclDevCommRequirements_t, resourceRequirementsList, 16); AT(ncclDevCommRequirements_t, teamRequirementsList, 24);
AT(ncclDevCommRequirements_t, lsaMultimem, 32); AT(ncclDevCommRequirements_t, barrierCount, 36);
AT(ncclDevCommRequirements_t, lsaBarrierCount, 40); AT(ncclDevCommRequirements_t, ginForceEnable, 56);
AT(ncclDevCommRequirements_t, ginContextCount, 60); AT(ncclDevCommRequirements_t, ginConnectionType, 72);
AT(ncclDevCommRequirements_t, ginExclusiveContexts, 76); AT(ncclDevCommRequirements_t, ginQueueDepth, 80);
AT(ncclDevCommRequirements_t, worldGinBarrierCount, 88); AT(ncclDevCommRequirements_t, ginVaSignalsRequired, 93);
SAME(sizeof(ncclDevResourceRequirements_t), 56); SAME(sizeof(ncclTeamRequirements_t), 32);

SAME(sizeof(ncclDevComm_t), 240);
AT(ncclDevComm_t, rank, 8); AT(ncclDevComm_t, nRanks, 12); AT(ncclDevComm_t, lsaRank, 20); AT(ncclDevComm_t, lsaSize, 24);
AT(ncclDevComm_t, lsaMultimem, 120); AT(ncclDevComm_t, lsaBarrier, 128); AT(ncclDevComm_t, railGinBarrier, 136);
AT(ncclDevComm_t, abortFlag, 208); AT(ncclDevComm_t, worldGinBarrier, 232);
SAME(sizeof(ncclLsaBarrierHandle_t), 8); SAME(sizeof(ncclGinBarrierHandle_t), 8); SAME(sizeof(ncclLLA2AHandle_t), 8);

SAME(NCCL_GIN_CONNECTION_NONE, 0); SAME(NCCL_GIN_CONNECTION_FULL, 1); SAME(NCCL_GIN_CONNECTION_RAIL, 2);
SAME(NCCL_GIN_TYPE_NONE, 0); SAME(NCCL_GIN_TYPE_PROXY, 2); SAME(NCCL_GIN_TYPE_GDAKI, 3); SAME(NCCL_GIN_TYPE_GPI, 4);

ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
