// The kernels of the library for the emulated GPU, which finds them by name. kernels/mkernel.cu has the same for a real one.
#include "host_kernels.h"

#include <memory>

#include "executor/resident.h"
#include "executor/run.h"

namespace {
using namespace mk;

template <class T> T& argument(void** params, int index) { return *static_cast<T*>(params[index]); }

void mk_inline(void** params, unsigned block, unsigned blocks) {
  t_block_id = block;
  t_block_count = blocks;
  auto work = std::make_unique<Work>();
  auto shared = std::make_unique<Shared>();
  run_inline(argument<Lane*>(params, 0), argument<Command>(params, 1), *work, *shared);
}
void mk_gate(void** params, unsigned, unsigned) { run_gate(argument<Lane*>(params, 0), argument<Command>(params, 1)); }
void mk_order(void** params, unsigned, unsigned) { run_order(argument<Lane*>(params, 0), argument<uint64_t>(params, 1)); }
void mk_executor(void** params, unsigned block, unsigned blocks) {
  t_block_id = block;
  t_block_count = blocks;
  auto state = std::make_unique<ExecutorBlock>();
  run_executor(argument<Executor*>(params, 0), argument<Generation*>(params, 1), argument<uint64_t>(params, 2), *state);
}

// Adds 1 to each of `n` words at `words`; the emulator's own tests use it.
void mk_selftest(void** params, unsigned block, unsigned blocks) {
  unsigned* words = argument<unsigned*>(params, 0);
  const unsigned n = argument<unsigned>(params, 1);
  for (unsigned i = block; i < n; i += blocks) words[i] += 1;
}

const size_t kLaunchSizes[] = {sizeof(Lane*), sizeof(Command)};
const size_t kOrderSizes[] = {sizeof(Lane*), sizeof(uint64_t)};
const size_t kExecutorSizes[] = {sizeof(Executor*), sizeof(Generation*), sizeof(uint64_t)};
const size_t kSelftestSizes[] = {sizeof(unsigned*), sizeof(unsigned)};
const MkHostKernel kKernels[] = {
    {"mk_inline", mk_inline, 2, kLaunchSizes},     {"mk_gate", mk_gate, 2, kLaunchSizes},
    {"mk_order", mk_order, 2, kOrderSizes},        {"mk_executor", mk_executor, 3, kExecutorSizes},
    {"mk_selftest", mk_selftest, 2, kSelftestSizes},
};
}  // namespace

extern "C" const MkHostKernel* mk_host_kernels(size_t* count) {
  *count = sizeof(kKernels) / sizeof(kKernels[0]);
  return kKernels;
}
