// (Skeleton: one kernel, so that the emulator can be built and tested.)
#include "host_kernels.h"

namespace {
// Adds 1 to each of `n` words at `words`; the emulator's own tests use it.
void mk_selftest(void** params, unsigned block, unsigned blocks) {
  unsigned* words = *static_cast<unsigned**>(params[0]);
  unsigned n = *static_cast<unsigned*>(params[1]);
  for (unsigned i = block; i < n; i += blocks) words[i] += 1;
}
const size_t kSelftestSizes[] = {sizeof(unsigned*), sizeof(unsigned)};
const MkHostKernel kKernels[] = {{"mk_selftest", mk_selftest, 2, kSelftestSizes}};
}  // namespace

extern "C" const MkHostKernel* mk_host_kernels(size_t* count) {
  *count = sizeof(kKernels) / sizeof(kKernels[0]);
  return kKernels;
}
