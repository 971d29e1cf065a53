// Folds that begin or end with accumulators instead of elements, so that several ranks can fold one after the other and round once. The network
// bounds their speed: one element a thread at a time.
#pragma once
#include "protocol/bulk.h"

namespace mk {

// Bytes of an accumulator of elements of this size.
MK_DEVICE uint32_t carried_bytes(uint32_t elem_size) { return elem_size < 4 ? 4 : elem_size; }

template <class T, uint8_t kOp> MK_FUNCTION void carry_as(const Pointers& p, uint64_t count, uint32_t ranks, Carry carry) {
  using Store = typename T::Store;
  using Acc = typename T::Acc;
  static_assert(sizeof(Acc) == (sizeof(Store) < 4 ? 4 : sizeof(Store)), "carried_bytes");
#pragma unroll 1
  for (uint64_t i = thread_id(); i < count; i += thread_count()) {
    Acc acc[1] = {};
    if (carry.in) acc[0] = load_bulk_element(reinterpret_cast<const Acc*>(p.from[0]) + i);
#pragma unroll 1
    for (uint32_t s = carry.in ? 1 : 0; s < p.nfrom; s++) {
      const Store v[1] = {load_bulk_element(reinterpret_cast<const Store*>(p.from[s]) + i)};
      const Acc scalar = scalar_of<T, kOp>(p.scalars[s]);
      if (s == 0) begin_fold<T, kOp>(acc, v, scalar);
      else combine<T, kOp>(acc, v, scalar);
    }
    if (carry.out) {
      reinterpret_cast<Acc*>(p.to[0])[i] = acc[0];
      continue;
    }
    Store v[1];
    end_fold<T, kOp>(v, acc, ranks);
#pragma unroll 1
    for (uint32_t d = 0; d < p.nto; d++) reinterpret_cast<Store*>(p.to[d])[i] = v[0];
  }
}

using CarryFunction = void (*)(const Pointers&, uint64_t, uint32_t, Carry);
MK_CONSTANT CarryFunction kCarries[kTypes][kRedops] = MK_TYPES_AND_OPERATORS(carry_as);

// Reduces `count` elements of p.from, in that order. `carry.in`: the first source holds accumulators; `carry.out`: so does the one destination.
MK_SLOW void fold_carrying(const Pointers& p, uint64_t count, const Reduction& r, Carry carry) { kCarries[r.dtype][r.redop](p, count, r.ranks, carry); }

}  // namespace mk
