// Moving and reducing many bytes by all threads of a block: `copy_to_all` spreads one source to several places, `fold` reduces several sources in
// the order given and spreads the result. Both take byte pointers of any alignment that the element type allows.
#pragma once
#include "types/element.h"

namespace mk {

// What a fold does to the elements; the same for every chunk of an operation.
struct Reduction {
  uint8_t dtype;
  uint8_t redop;
  uint32_t ranks;    // divisor of kAvg
};

// Ends of a fold that hold accumulators instead of elements.
struct Carry {
  bool in;
  bool out;
};

// Sources and destinations of a bulk move, in the block's shared memory.
struct Pointers {
  const char* from[kMaxRanks];
  char* to[kMaxRanks];
  uint64_t scalars[kMaxRanks];  // per source: bits of the element that kPreMulSum multiplies it by
  uint32_t nfrom;
  uint32_t nto;
};

// The same for one source and one destination, in registers.
struct OnePair {
  const char* from[1];
  char* to[1];
  static constexpr uint32_t nfrom = 1, nto = 1;
};

template <class P> MK_DEVICE uint64_t low_bits(const P& p) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < p.nfrom; i++) bits |= reinterpret_cast<uint64_t>(p.from[i]);
  for (uint32_t i = 0; i < p.nto; i++) bits |= reinterpret_cast<uint64_t>(p.to[i]);
  return bits;
}

template <class Unit, class P> MK_DEVICE void copy_units(const P& p, uint64_t begin, uint64_t end) {
  const Unit* from = reinterpret_cast<const Unit*>(p.from[0]);
#pragma unroll 1
  for (uint64_t i = begin + thread_id(); i < end; i += thread_count()) {
    Unit v = load_bulk_element(from + i);
#pragma unroll 1
    for (uint32_t d = 0; d < p.nto; d++) reinterpret_cast<Unit*>(p.to[d])[i] = v;
  }
}

// Copies `bytes` from p.from[0] to each of p.to.
template <class P> MK_DEVICE void copy_to_all(const P& p, uint64_t bytes) {
  const uint64_t bits = low_bits(p);
  if (bits % 16 == 0) {
    constexpr uint32_t kUnroll = 8;
    const uint4* from = reinterpret_cast<const uint4*>(p.from[0]);
    const uint64_t n = bytes / 16, step = thread_count();
    for (uint64_t i = thread_id(); i < n; i += kUnroll * step) {
      uint4 v[kUnroll];
      if (i + (kUnroll - 1) * step < n) {
#pragma unroll
        for (uint32_t u = 0; u < kUnroll; u++) v[u] = load_bulk(from + i + u * step);
#pragma unroll 1
        for (uint32_t d = 0; d < p.nto; d++) {
          uint4* to = reinterpret_cast<uint4*>(p.to[d]) + i;
#pragma unroll
          for (uint32_t u = 0; u < kUnroll; u++) store_bulk(to + u * step, v[u]);
        }
      } else {
#pragma unroll
        for (uint32_t u = 0; u < kUnroll; u++)
          if (i + u * step < n) v[u] = load_bulk(from + i + u * step);
#pragma unroll 1
        for (uint32_t d = 0; d < p.nto; d++) {
          uint4* to = reinterpret_cast<uint4*>(p.to[d]) + i;
#pragma unroll
          for (uint32_t u = 0; u < kUnroll; u++)
            if (i + u * step < n) store_bulk(to + u * step, v[u]);
        }
      }
    }
    copy_units<uint8_t>(p, n * 16, bytes);
  } else if (bits % 8 == 0) {
    copy_units<uint64_t>(p, 0, bytes / 8);
    copy_units<uint8_t>(p, bytes / 8 * 8, bytes);
  } else if (bits % 4 == 0) {
    copy_units<uint32_t>(p, 0, bytes / 4);
    copy_units<uint8_t>(p, bytes / 4 * 4, bytes);
  } else if (bits % 2 == 0) {
    copy_units<uint16_t>(p, 0, bytes / 2);
    copy_units<uint8_t>(p, bytes / 2 * 2, bytes);
  } else {
    copy_units<uint8_t>(p, 0, bytes);
  }
}

// Operators are template arguments in the moving code: a switch inside it costs as many registers as all of its cases together.
template <class T, uint8_t kOp, uint32_t N>
MK_DEVICE void begin_fold(typename T::Acc (&acc)[N], const typename T::Store (&in)[N], typename T::Acc scalar) {
#pragma unroll
  for (uint32_t e = 0; e < N; e++) acc[e] = kOp == kPreMulSum ? T::mul(T::widen(in[e]), scalar) : T::widen(in[e]);
}
template <class T, uint8_t kOp, uint32_t N>
MK_DEVICE void combine(typename T::Acc (&acc)[N], const typename T::Store (&in)[N], typename T::Acc scalar) {
#pragma unroll
  for (uint32_t e = 0; e < N; e++) {
    const typename T::Acc v = T::widen(in[e]);
    if constexpr (kOp == kProd) acc[e] = T::mul(acc[e], v);
    else if constexpr (kOp == kMax) acc[e] = larger(acc[e], v);
    else if constexpr (kOp == kMin) acc[e] = smaller(acc[e], v);
    else if constexpr (kOp == kPreMulSum) acc[e] = T::add(acc[e], T::mul(v, scalar));
    else acc[e] = T::add(acc[e], v);
  }
}
template <class T, uint8_t kOp, uint32_t N>
MK_DEVICE void end_fold(typename T::Store (&out)[N], const typename T::Acc (&acc)[N], uint32_t ranks) {
#pragma unroll
  for (uint32_t e = 0; e < N; e++) {
    if constexpr (kOp == kAvg) out[e] = T::average(acc[e], ranks);
    else out[e] = T::narrow(acc[e]);
  }
}
// The scalar of a source, as an accumulator; nothing for operators that have none.
template <class T, uint8_t kOp> MK_DEVICE typename T::Acc scalar_of(uint64_t bits) {
  if constexpr (kOp != kPreMulSum) return {};
  typename T::Store s;
  memcpy(static_cast<void*>(&s), &bits, sizeof(s));
  return T::widen(s);
}

// Folds kUnroll vectors per thread from vector `i` on. The loads of several sources are under way at once; the values are added in the order of
// the sources.
template <class T, uint8_t kOp, uint32_t kUnroll> MK_DEVICE void fold_tile(const Pointers& p, uint64_t i, uint32_t ranks) {
  using Store = typename T::Store;
  constexpr uint32_t kPer = 16 / sizeof(Store);
  constexpr uint32_t kSources = 4;
  union Vector { uint4 whole; Store part[kPer]; MK_DEVICE Vector() {} };
  const uint32_t step = thread_count();
  typename T::Acc acc[kUnroll][kPer];
#pragma unroll 1
  for (uint32_t first = 0; first < p.nfrom; first += kSources) {
    Vector v[kSources][kUnroll];
#pragma unroll
    for (uint32_t s = 0; s < kSources; s++) {
      if (first + s >= p.nfrom) continue;
      const uint4* from = reinterpret_cast<const uint4*>(p.from[first + s]) + i;
#pragma unroll
      for (uint32_t u = 0; u < kUnroll; u++) v[s][u].whole = load_bulk(from + u * step);
    }
#pragma unroll
    for (uint32_t s = 0; s < kSources; s++) {
      if (first + s >= p.nfrom) continue;
      const typename T::Acc scalar = scalar_of<T, kOp>(p.scalars[first + s]);
#pragma unroll
      for (uint32_t u = 0; u < kUnroll; u++) {
        if (s == 0 && first == 0) begin_fold<T, kOp>(acc[u], v[s][u].part, scalar);
        else combine<T, kOp>(acc[u], v[s][u].part, scalar);
      }
    }
  }
  Vector out[kUnroll];
#pragma unroll
  for (uint32_t u = 0; u < kUnroll; u++) end_fold<T, kOp>(out[u].part, acc[u], ranks);
#pragma unroll 1
  for (uint32_t d = 0; d < p.nto; d++) {
    uint4* to = reinterpret_cast<uint4*>(p.to[d]) + i;
#pragma unroll
    for (uint32_t u = 0; u < kUnroll; u++) store_bulk(to + u * step, out[u].whole);
  }
}

// The whole of a fold for one type and operator.
template <class T, uint8_t kOp> MK_FUNCTION void fold_as(const Pointers& p, uint64_t count, uint32_t ranks) {
  using Store = typename T::Store;
  uint64_t begin = 0;
  if (low_bits(p) % 16 == 0) {
    constexpr uint32_t kPer = 16 / sizeof(Store);
    constexpr uint32_t kUnroll = 2;
    const uint64_t n = count / kPer, step = thread_count();
    uint64_t i = thread_id();
#pragma unroll 1
    for (; i + (kUnroll - 1) * step < n; i += kUnroll * step) fold_tile<T, kOp, kUnroll>(p, i, ranks);
#pragma unroll 1
    for (; i < n; i += step) fold_tile<T, kOp, 1>(p, i, ranks);
    begin = n * kPer;
  }
#pragma unroll 1
  for (uint64_t i = begin + thread_id(); i < count; i += thread_count()) {
    typename T::Acc acc[1];
    Store v[1];
#pragma unroll 1
    for (uint32_t s = 0; s < p.nfrom; s++) {
      v[0] = load_bulk_element(reinterpret_cast<const Store*>(p.from[s]) + i);
      const typename T::Acc scalar = scalar_of<T, kOp>(p.scalars[s]);
      if (s == 0) begin_fold<T, kOp>(acc, v, scalar);
      else combine<T, kOp>(acc, v, scalar);
    }
    end_fold<T, kOp>(v, acc, ranks);
#pragma unroll 1
    for (uint32_t d = 0; d < p.nto; d++) reinterpret_cast<Store*>(p.to[d])[i] = v[0];
  }
}

// A function for every type and operator is reached through a table of their addresses. Calls by name would make the compiler plan registers and
// stack for all of them together, which takes minutes and serves none of them well.
#define MK_OPERATORS(f, T) {f<T, kSum>, f<T, kProd>, f<T, kMax>, f<T, kMin>, f<T, kAvg>, f<T, kPreMulSum>}
#define MK_TYPES_AND_OPERATORS(f)                                                                                                        \
  {MK_OPERATORS(f, Int8), MK_OPERATORS(f, Uint8), MK_OPERATORS(f, Int32), MK_OPERATORS(f, Uint32), MK_OPERATORS(f, Int64),               \
   MK_OPERATORS(f, Uint64), MK_OPERATORS(f, Float16), MK_OPERATORS(f, Float32), MK_OPERATORS(f, Float64), MK_OPERATORS(f, Bfloat16),      \
   MK_OPERATORS(f, Float8e4m3), MK_OPERATORS(f, Float8e5m2)}

using FoldFunction = void (*)(const Pointers&, uint64_t, uint32_t);
MK_CONSTANT FoldFunction kFolds[kTypes][kRedops] = MK_TYPES_AND_OPERATORS(fold_as);

// Reduces `count` elements of p.from, in that order, into each of p.to.
MK_DEVICE void fold(const Pointers& p, uint64_t count, const Reduction& r) { kFolds[r.dtype][r.redop](p, count, r.ranks); }

}  // namespace mk
