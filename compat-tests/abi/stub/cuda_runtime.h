/* The little of CUDA's header that nccl.h needs, so that it compiles on a machine without a toolkit. */
#ifndef MKERNEL_STUB_CUDA_RUNTIME_H
#define MKERNEL_STUB_CUDA_RUNTIME_H
#include <stddef.h>
#define CUDART_VERSION 13000
typedef struct CUstream_st* cudaStream_t;
#endif
