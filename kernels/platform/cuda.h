// The machine as device code sees it on an NVIDIA GPU: who I am in the block, and memory accesses with their promises spelled out.
// platform/host.h is the same interface for the emulated GPU, where a block is one thread.
#pragma once
#include <cuda_runtime.h>

#include "layout.h"

#define MK_DEVICE __device__ __forceinline__
#define MK_SLOW __device__ __noinline__
#define MK_FUNCTION __device__           // reached through its address
#define MK_CONSTANT __device__ const

namespace mk {

MK_DEVICE uint32_t thread_id() { return threadIdx.x; }
MK_DEVICE uint32_t thread_count() { return blockDim.x; }
MK_DEVICE uint32_t block_id() { return blockIdx.x; }
MK_DEVICE uint32_t block_count() { return gridDim.x; }

// Barrier of the block; orders memory among its threads.
MK_DEVICE void sync() { __syncthreads(); }
// Barrier that tells every thread whether `condition` held in all.
MK_DEVICE bool sync_and(bool condition) { return __syncthreads_and(condition) != 0; }
MK_DEVICE bool sync_or(bool condition) { return __syncthreads_or(condition) != 0; }

// Words that others write while we look. Relaxed: no promise about other data.
MK_DEVICE uint64_t load_relaxed(const uint64_t* p) { uint64_t v; asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
MK_DEVICE uint32_t load_relaxed(const uint32_t* p) { uint32_t v; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
// Acquire: what the writer released before is visible after.
MK_DEVICE uint64_t load_acquire(const uint64_t* p) { uint64_t v; asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory"); return v; }
MK_DEVICE uint32_t load_acquire(const uint32_t* p) { uint32_t v; asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
MK_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
MK_DEVICE void store_relaxed(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// Makes this thread's earlier accesses, and those of threads it has synchronised with, visible before its later ones. `near`: observers are
// on this GPU only.
MK_DEVICE void fence(bool near) { if (near) __threadfence(); else __threadfence_system(); }

// 16 bytes in one access: never seen half. PTX guarantees that for the scalar type b128, not for vectors.
MK_DEVICE Line load_line(const Line* p) {
  Line v;
  asm volatile("{.reg .b128 t; ld.relaxed.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t;}" : "=l"(v.data), "=l"(v.flag) : "l"(p) : "memory");
  return v;
}
MK_DEVICE void store_line(Line* p, uint64_t data, uint64_t flag) {
  asm volatile("{.reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.sys.global.b128 [%0], t;}" ::"l"(p), "l"(data), "l"(flag) : "memory");
}

// Bulk data: read past the L1 cache, which may hold what an earlier operation saw at the same address.
MK_DEVICE uint4 load_bulk(const uint4* p) { return __ldcg(p); }
template <class T> MK_DEVICE T load_bulk_element(const T* p) {
  if constexpr (sizeof(T) == 1) { unsigned char v = __ldcg(reinterpret_cast<const unsigned char*>(p)); return *reinterpret_cast<T*>(&v); }
  if constexpr (sizeof(T) == 2) { unsigned short v = __ldcg(reinterpret_cast<const unsigned short*>(p)); return *reinterpret_cast<T*>(&v); }
  if constexpr (sizeof(T) == 4) { unsigned int v = __ldcg(reinterpret_cast<const unsigned int*>(p)); return *reinterpret_cast<T*>(&v); }
  if constexpr (sizeof(T) == 8) { unsigned long long v = __ldcg(reinterpret_cast<const unsigned long long*>(p)); return *reinterpret_cast<T*>(&v); }
}
MK_DEVICE void store_bulk(uint4* p, uint4 v) { __stcg(p, v); }

MK_DEVICE uint32_t add_device(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
MK_DEVICE uint64_t add_device(uint64_t* p, uint64_t v) { return atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v)); }
MK_DEVICE uint32_t exchange_if(uint32_t* p, uint32_t expected, uint32_t desired) { return atomicCAS(p, expected, desired); }
MK_DEVICE uint32_t add_shared(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
MK_DEVICE void or_shared(uint64_t* p, uint64_t v) { atomicOr(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v)); }

MK_DEVICE uint32_t lowest_bit(uint64_t v) { return __ffsll(static_cast<long long>(v)) - 1; }

MK_DEVICE uint64_t now_ns() { uint64_t t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
// A short rest between two looks at a word that does not change.
MK_DEVICE void pause() { __nanosleep(20); }

// Programmatic stream serialization: wait until the work before this kernel in its stream is complete and visible.
MK_DEVICE void wait_for_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// ... and let the next kernel that is launched so be set up now; it still waits for the end of this one.
MK_DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
}  // namespace mk
