// How the emulated GPU finds our kernels compiled for the host: one table, name to function.
// Made by kernels/host_kernels.cpp; called by emulator/.
#pragma once
#include <stddef.h>

extern "C" {
// Runs block `block` of `blocks` of one launch on the calling thread. `params[i]` points to the i-th kernel argument, as in cuLaunchKernel.
typedef void (*MkHostKernelFn)(void** params, unsigned block, unsigned blocks);
struct MkHostKernel {
  const char* name;            // as cuModuleGetFunction asks for it
  MkHostKernelFn run;
  size_t param_count;
  const size_t* param_sizes;   // bytes of each argument: the emulator copies them at launch
};
// The table; *count receives its length.
const MkHostKernel* mk_host_kernels(size_t* count);
}
