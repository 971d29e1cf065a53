// The kernels of the library on a GPU. kernels/host_kernels.cpp has the same for the emulated GPU; src/executor/launch.rs launches them.
#include "executor/resident.h"
#include "executor/run.h"

using namespace mk;

// More than are launched: it bounds the registers of a thread, so that a resident block leaves some of its SM's for the gates that wait for it.
constexpr uint32_t kBound = kThreads + 64;

// A launch on the user's stream that does the work itself: one block a channel.
extern "C" __global__ void __launch_bounds__(kBound, 1) mk_inline(Lane* lane, const __grid_constant__ Command command) {
  __shared__ Work work;
  __shared__ Shared shared;
  run_inline(lane, command, work, shared);
}

// A launch on the user's stream that hands the work to the executor and waits for it: one block.
extern "C" __global__ void __launch_bounds__(kGateThreads, 1) mk_gate(Lane* lane, const __grid_constant__ Command command) { run_gate(lane, command); }

// Waits until the communicator has finished `launches` uncaptured launches: orders two streams without touching the other one.
extern "C" __global__ void __launch_bounds__(32, 1) mk_order(Lane* lane, uint64_t launches) { run_order(lane, launches); }

// The executor: serves the lanes of one process until it has been idle for `linger_ns`.
extern "C" __global__ void __launch_bounds__(kBound, 1) mk_executor(Executor* executor, Generation* generation, uint64_t linger_ns) {
  __shared__ ExecutorBlock block;
  run_executor(executor, generation, linger_ns, block);
}
