// The machine as device code sees it on the emulated GPU: a block is one thread, so barriers are nothing and "all threads" is this one.
// platform/cuda.h is the same interface on a GPU and says what each access promises.
#pragma once
#include <sched.h>
#include <string.h>
#include <time.h>

#include "layout.h"

#define MK_DEVICE inline
#define MK_SLOW inline
#define MK_FUNCTION inline
#define MK_CONSTANT inline const

namespace mk {

struct alignas(16) uint4 { uint32_t x, y, z, w; };

inline thread_local uint32_t t_block_id = 0;
inline thread_local uint32_t t_block_count = 1;

MK_DEVICE uint32_t thread_id() { return 0; }
MK_DEVICE uint32_t thread_count() { return 1; }
MK_DEVICE uint32_t block_id() { return t_block_id; }
MK_DEVICE uint32_t block_count() { return t_block_count; }

MK_DEVICE void sync() {}
MK_DEVICE bool sync_and(bool condition) { return condition; }
MK_DEVICE bool sync_or(bool condition) { return condition; }

MK_DEVICE uint64_t load_relaxed(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
MK_DEVICE uint32_t load_relaxed(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
MK_DEVICE uint64_t load_acquire(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
MK_DEVICE uint32_t load_acquire(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
MK_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
MK_DEVICE void store_relaxed(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
MK_DEVICE void fence(bool) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// There is no 16-byte store to rely on: the flag follows the data, and is read before it.
MK_DEVICE Line load_line(const Line* p) {
  Line v;
  v.flag = __atomic_load_n(&p->flag, __ATOMIC_ACQUIRE);
  v.data = __atomic_load_n(&p->data, __ATOMIC_RELAXED);
  return v;
}
MK_DEVICE void store_line(Line* p, uint64_t data, uint64_t flag) {
  __atomic_store_n(&p->data, data, __ATOMIC_RELAXED);
  __atomic_store_n(&p->flag, flag, __ATOMIC_RELEASE);
}

MK_DEVICE uint4 load_bulk(const uint4* p) { return *p; }
template <class T> MK_DEVICE T load_bulk_element(const T* p) { return *p; }
MK_DEVICE void store_bulk(uint4* p, uint4 v) { *p = v; }

MK_DEVICE uint32_t add_device(uint32_t* p, uint32_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
MK_DEVICE uint64_t add_device(uint64_t* p, uint64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
MK_DEVICE uint32_t exchange_if(uint32_t* p, uint32_t expected, uint32_t desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
MK_DEVICE uint32_t add_shared(uint32_t* p, uint32_t v) { const uint32_t before = *p; *p += v; return before; }
MK_DEVICE void or_shared(uint64_t* p, uint64_t v) { *p |= v; }

MK_DEVICE uint32_t lowest_bit(uint64_t v) { return static_cast<uint32_t>(__builtin_ctzll(v)); }

MK_DEVICE uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}
MK_DEVICE void pause() { sched_yield(); }
MK_DEVICE void wait_for_stream() {}
MK_DEVICE void let_next_start() {}

}  // namespace mk
