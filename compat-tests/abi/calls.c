/*
 * Calls every function of nccl.h and nccl_device.h, under both of its names, with arguments that can be refused without a GPU, and compares the
 * answers. Compiles as C and as C++. Exits 0 if all are as expected.
 */
#include <nccl_device.h>
#include <stdio.h>
#include <string.h>

static int failures = 0, calls = 0;

static void check(const char* call, int answer, int expected) {
  calls++;
  if (answer != expected) {
    printf("%s answered %d, expected %d: %s\n", call, answer, expected, ncclGetLastError(NULL));
    failures++;
  }
}

#define BOTH(expected, name, arguments) (check(#name #arguments, name arguments, expected), check("p" #name #arguments, p##name arguments, expected))
/* The answer depends on the machine; that the call comes back is all there is to see. */
#define RETURNS(name, arguments) ((void)name arguments, (void)p##name arguments, calls += 2)

static void communicators(ncclComm_t bad) {
  ncclComm_t made = NULL;
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t state;
  int number, devices[1] = {-1};
  memset(&id, 0, sizeof id);
  BOTH(ncclInvalidArgument, ncclGetUniqueId, (NULL));
  BOTH(ncclInvalidArgument, ncclCommInitRank, (&made, 0, id, 0));
  BOTH(ncclInvalidArgument, ncclCommInitRank, (&made, 2, id, 2));
  BOTH(ncclInvalidArgument, ncclCommInitRankConfig, (NULL, 1, id, 0, &config));
  config.blocking = 3;
  BOTH(ncclInvalidArgument, ncclCommInitRankConfig, (&made, 1, id, 0, &config));
  if (strstr(ncclGetLastError(NULL), "config->blocking is 3") == NULL) {
    printf("the initialiser's header was not accepted: %s\n", ncclGetLastError(NULL));
    failures++;
  }
  BOTH(ncclInvalidArgument, ncclCommInitRankScalable, (&made, 1, 0, 2, &id, NULL));
  BOTH(ncclInvalidArgument, ncclCommInitAll, (NULL, 1, devices));
  BOTH(ncclInvalidArgument, ncclCommInitAll, (&made, 0, NULL));
  BOTH(ncclInvalidArgument, ncclCommSplit, (bad, 0, 0, &made, NULL));
  BOTH(ncclInvalidArgument, ncclCommShrink, (bad, devices, 1, &made, NULL, NCCL_SHRINK_DEFAULT));
  BOTH(ncclInvalidArgument, ncclCommGetUniqueId, (bad, &id));
  BOTH(ncclInvalidUsage, ncclCommGrow, (NULL, 2, &id, 1, &made, NULL));
  BOTH(ncclInvalidArgument, ncclCommGetAsyncError, (bad, &state));
  BOTH(ncclInvalidArgument, ncclCommCount, (bad, &number));
  BOTH(ncclInvalidArgument, ncclCommCuDevice, (bad, &number));
  BOTH(ncclInvalidArgument, ncclCommUserRank, (bad, &number));
  if (made != NULL) {
    printf("a refused call left a handle behind\n");
    failures++;
  }
  /* NULL is fine to end, anything else that is not a communicator is not. */
  int expected = bad == NULL ? ncclSuccess : ncclInvalidArgument;
  BOTH(expected, ncclCommFinalize, (bad));
  BOTH(expected, ncclCommRevoke, (bad, NCCL_REVOKE_DEFAULT));
  BOTH(expected, ncclCommDestroy, (bad));
  BOTH(expected, ncclCommAbort, (bad));
}

static void memory(ncclComm_t bad) {
  void* pointer = &pointer;
  ncclWindow_t window;
  uint64_t value;
  BOTH(ncclInvalidArgument, ncclMemAlloc, (NULL, 8));
  BOTH(ncclSuccess, ncclMemAlloc, (&pointer, 0));
  BOTH(ncclSuccess, ncclMemFree, (NULL));
  BOTH(ncclInvalidArgument, ncclCommRegister, (bad, &value, 8, &pointer));
  BOTH(ncclInvalidArgument, ncclCommDeregister, (bad, NULL));
  BOTH(ncclInvalidArgument, ncclCommSuspend, (bad, NCCL_SUSPEND_MEM));
  BOTH(ncclInvalidArgument, ncclCommResume, (bad));
  BOTH(ncclInvalidArgument, ncclCommMemStats, (bad, ncclStatGpuMemTotal, &value));
  BOTH(ncclInvalidArgument, ncclCommWindowRegister, (bad, &value, 8, &window, NCCL_WIN_DEFAULT));
  BOTH(ncclInvalidArgument, ncclCommWindowDeregister, (bad, NULL));
  BOTH(ncclInvalidArgument, ncclWinGetUserPtr, (bad, NULL, &pointer));
}

static void operations(ncclComm_t bad) {
  char a[8], b[8];
  ncclRedOp_t op;
  float scalar = 2;
  ncclWaitSignalDesc_t wait = {1, 0, 0, 0};
  BOTH(ncclInvalidArgument, ncclRedOpCreatePreMulSum, (&op, &scalar, ncclFloat, ncclScalarHostImmediate, bad));
  BOTH(ncclInvalidArgument, ncclRedOpDestroy, (ncclAvg, bad));
  BOTH(ncclInvalidArgument, ncclReduce, (a, b, 1, ncclFloat, ncclSum, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclBcast, (a, 1, ncclFloat, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclBroadcast, (a, b, 1, ncclFloat, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclAllReduce, (a, b, 1, ncclFloat, ncclSum, bad, NULL));
  BOTH(ncclInvalidArgument, ncclReduceScatter, (a, b, 1, ncclFloat, ncclSum, bad, NULL));
  BOTH(ncclInvalidArgument, ncclAllGather, (a, b, 1, ncclFloat, bad, NULL));
  BOTH(ncclInvalidArgument, ncclAlltoAll, (a, b, 1, ncclFloat, bad, NULL));
  BOTH(ncclInvalidArgument, ncclGather, (a, b, 1, ncclFloat, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclScatter, (a, b, 1, ncclFloat, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclSend, (a, 1, ncclFloat, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclRecv, (a, 1, ncclFloat, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclPutSignal, (a, 1, ncclFloat, 0, NULL, 0, 0, 0, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclSignal, (0, 0, 0, 0, bad, NULL));
  BOTH(ncclInvalidArgument, ncclWaitSignal, (1, &wait, bad, NULL));
}

static void parameters(void) {
  ncclParamHandle_t handle;
  int8_t i8; int16_t i16; int32_t i32; int64_t i64; uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64;
  const char *text, **keys;
  int length = -1;
  BOTH(ncclInvalidArgument, ncclParamBind, (&handle, "NCCL_BUFFSIZE"));
  BOTH(ncclInvalidArgument, ncclParamGetI8, (handle, &i8));
  BOTH(ncclInvalidArgument, ncclParamGetI16, (handle, &i16));
  BOTH(ncclInvalidArgument, ncclParamGetI32, (handle, &i32));
  BOTH(ncclInvalidArgument, ncclParamGetI64, (handle, &i64));
  BOTH(ncclInvalidArgument, ncclParamGetU8, (handle, &u8));
  BOTH(ncclInvalidArgument, ncclParamGetU16, (handle, &u16));
  BOTH(ncclInvalidArgument, ncclParamGetU32, (handle, &u32));
  BOTH(ncclInvalidArgument, ncclParamGetU64, (handle, &u64));
  BOTH(ncclInvalidArgument, ncclParamGetStr, (handle, &text));
  BOTH(ncclInvalidArgument, ncclParamGet, (handle, &u64, 8, &length));
  BOTH(ncclInvalidArgument, ncclParamGetParameter, ("NCCL_BUFFSIZE", &text, &length));
  BOTH(ncclSuccess, ncclParamGetAllParameterKeys, (&keys, &length));
  check("length of the list of parameters", length, 0);
  RETURNS(ncclParamDumpAll, ());
}

static void device_api(ncclComm_t bad) {
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t device;
  ncclMultimemHandle_t multimem = {NULL};
  ncclTeam_t team = {1, 0, 1};
  ncclDevResourceRequirements_t resource;
  ncclLsaBarrierHandle_t barrier;
  ncclGinBarrierHandle_t gin;
  ncclLLA2AHandle_t exchange;
  void* pointer;
  BOTH(ncclInvalidArgument, ncclCommQueryProperties, (bad, &properties));
  BOTH(ncclInvalidArgument, ncclDevCommCreate, (bad, &requirements, &device));
  BOTH(ncclInvalidArgument, ncclDevCommDestroy, (bad, &device));
  BOTH(ncclInvalidArgument, ncclGetLsaMultimemDevicePointer, (NULL, 0, &pointer));
  BOTH(ncclInvalidArgument, ncclGetMultimemDevicePointer, (NULL, 0, multimem, &pointer));
  BOTH(ncclInvalidArgument, ncclGetLsaDevicePointer, (NULL, 0, 0, &pointer));
  BOTH(ncclInvalidArgument, ncclGetPeerDevicePointer, (NULL, 0, 0, &pointer));
  BOTH(0, ncclTeamWorld, (bad).nRanks);
  BOTH(0, ncclTeamLsa, (bad).nRanks);
  BOTH(0, ncclTeamRail, (bad).nRanks);
  BOTH(-1, ncclTeamRankToWorld, (bad, team, 0));
  BOTH(-1, ncclTeamRankToLsa, (bad, team, 0));
  BOTH(ncclInvalidUsage, ncclLsaBarrierCreateRequirement, (team, 1, &barrier, &resource));
  BOTH(ncclInvalidArgument, ncclGinBarrierCreateRequirement, (bad, team, 1, &gin, &resource));
  BOTH(ncclInvalidUsage, ncclGinOutboxCreateRequirement, (1, 4, NULL, &resource));
  BOTH(ncclInvalidUsage, ncclGinInboxA2ACreateRequirement, (team, 1, 4, NULL, &resource));
  BOTH(6, ncclLLA2ACalcSlots, (3, 16));
  BOTH(ncclInvalidUsage, ncclLLA2ACreateRequirement, (1, 1, &exchange, &resource));
}

int main(void) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int version = 0;
  BOTH(ncclInvalidArgument, ncclGetVersion, (NULL));
  BOTH(ncclSuccess, ncclGetVersion, (&version));
  if (version < 20000 || version > 99999) {
    printf("the version is %d, which is not of the form that vLLM takes apart\n", version);
    failures++;
  }
  RETURNS(ncclGroupStart, ());
  RETURNS(ncclGroupEnd, ());
  RETURNS(ncclGroupSimulateEnd, (&info));
  RETURNS(ncclResetDebugInit, ());

  /* NULL, a small number, an odd address, an unmapped one, and memory that begins like a communicator of NVIDIA's library. */
  static const uint64_t theirs[8] = {0x0280028002800280u};
  ncclComm_t bad[] = {NULL, (ncclComm_t)8, (ncclComm_t)0x1001, (ncclComm_t)0x7fffdeadbee0, (ncclComm_t)(uintptr_t)theirs};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    communicators(bad[i]);
    memory(bad[i]);
    operations(bad[i]);
    device_api(bad[i]);
  }
  check("ncclSend", ncclSend(&version, 1, ncclInt, 0, bad[4], NULL), ncclInvalidArgument);
  if (strstr(ncclGetLastError(bad[4]), "another NCCL library") == NULL || strcmp(ncclGetLastError(NULL), pncclGetLastError(NULL)) != 0) {
    printf("the text does not say that the handle is the other library's: %s\n", ncclGetLastError(NULL));
    failures++;
  }
  parameters();
  for (int code = -3; code < 12; code++)
    if (strlen(ncclGetErrorString((ncclResult_t)code)) == 0 || strcmp(ncclGetErrorString((ncclResult_t)code), pncclGetErrorString((ncclResult_t)code)) != 0)
      failures++;
  printf("%d calls, %d failures\n", calls, failures);
  return failures != 0;
}
