// All-reduce, reduce-scatter and reduce through pipes. Each rank owns a slice: phase 0 brings every rank's part of it to the owner, who folds
// them in rank order; phase 1 takes the result to whoever wants it. The phases overlap chunk by chunk. With kOneShot every rank owns everything,
// and there is no second phase.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

// Ranks that receive a slice's result from its owner through phase 1.
MK_DEVICE bool is_one_shot(const OpDesc& op) { return (op.flags & kOneShot) != 0; }
MK_DEVICE uint64_t result_takers(const Lane& lane, const OpDesc& op) {
  if (is_one_shot(op)) return 0;
  if (op.kind == kAllReduce) return all_peers(lane);
  if (op.kind == kReduce) return all_peers(lane) & 1ull << op.root;
  return 0;
}
MK_DEVICE bool takes_results(const Lane& lane, const OpDesc& op) {
  return (op.kind == kAllReduce && !is_one_shot(op)) || (op.kind == kReduce && static_cast<uint32_t>(op.root) == lane.rank);
}

// Rank p's thread: w.progress[p] chunks of p's slice have gone to p, w.progress[kMaxRanks + p] chunks of its result have come.
MK_DEVICE void plan_reduce_with(Work& w, Shared& s, uint32_t p) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t chunk = lane.geometry.slot_bytes;
  const PipeView view = poll_pipes(w, p, op.signature);
  const uint64_t bit = 1ull << p;
  const Range slice = slice_of(op, lane.geometry.nranks, p, channel_range(op, w.channel));
  const uint64_t sent = w.progress[p], received = w.progress[kMaxRanks + p];

  if (sent < chunks_of(slice.bytes, chunk)) {
    s.unfinished = 1;
    if (view.sendable[0]) {
      char* slot = next_slot(w, 0, p);
      if (op.redop == kPreMulSum) *scalar_at(slot) = w.scalar;
      add_copy(s, slot, input(op) + slice.begin + sent * chunk, chunk_bytes(slice.bytes, chunk, sent));
      s.bytes[0][p] = static_cast<uint32_t>(chunk_bytes(slice.bytes, chunk, sent));
      or_shared(&s.post[0], bit);
    } else {
      or_shared(&s.awaited, bit);
    }
  }
  if (takes_results(lane, op) && received < chunks_of(slice.bytes, chunk)) {
    s.unfinished = 1;
    if (view.ready[1]) {
      add_copy(s, output(op) + slice.begin + received * chunk, arrived_slot(w, 1, p), chunk_bytes(slice.bytes, chunk, received));
      or_shared(&s.release[1], bit);
    } else {
      await_chunk(w, s, view, 1, p);
    }
  }
  // For the fold, should it come to one. In one shot, its output may overwrite what must have been sent before.
  if (view.ready[0] && (sent > w.folded || !is_one_shot(op))) {
    char* slot = arrived_slot(w, 0, p);
    or_shared(&s.ready[0], bit);
    s.pointers.from[p] = slot;
    if (op.redop == kPreMulSum) s.pointers.scalars[p] = *scalar_at(slot);
  } else if (view.foreign[0]) {
    const Range own = slice_of(op, lane.geometry.nranks, lane.rank, channel_range(op, w.channel));
    if (w.folded < chunks_of(own.bytes, chunk)) await_chunk(w, s, view, 0, p);
  }
  if (view.sendable[1]) or_shared(&s.sendable[1], bit);
}

// Thread 0, when all ranks' threads have planned.
MK_DEVICE void plan_reduce(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t chunk = lane.geometry.slot_bytes, me = lane.rank;
  const Range r = channel_range(op, w.channel);
  const Range own = slice_of(op, lane.geometry.nranks, me, r);
  if (w.folded >= chunks_of(own.bytes, chunk)) return;
  s.unfinished = 1;
  const uint64_t peers = all_peers(lane), takers = result_takers(lane, op);
  const uint64_t missing = (peers & ~s.ready[0]) | (takers & ~s.sendable[1]);
  if (missing != 0) {
    s.awaited |= missing;
    return;
  }
  const uint64_t offset = w.folded * chunk;
  s.pointers.from[me] = input(op) + own.begin + offset;
  s.pointers.scalars[me] = w.scalar;
  s.pointers.nfrom = lane.geometry.nranks;
  uint32_t k = 0;
  for (uint64_t left = takers; left != 0; left &= left - 1) s.pointers.to[k++] = next_slot(w, 1, lowest_bit(left));
  if (takes_results(lane, op) || is_one_shot(op) || op.kind == kReduceScatter) s.pointers.to[k++] = output(op) + result_offset(op, own, r) + offset;
  s.pointers.nto = k;
  s.wide = Wide::kFold;
  s.wide_bytes = chunk_bytes(own.bytes, chunk, w.folded);
  s.wide_phase = 1;
  s.post[1] = takers;
  s.release[0] = peers;
  w.folded++;
}

}  // namespace mk
