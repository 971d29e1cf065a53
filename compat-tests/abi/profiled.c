/* What the profiler watches. */
#include <nccl.h>

int main(void) {
  int version = 0;
  char buffer[4];
  if (ncclGetVersion(&version) != ncclSuccess || version == 0) return 1;
  return ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, NULL, NULL) == ncclInvalidArgument ? 0 : 2;
}
