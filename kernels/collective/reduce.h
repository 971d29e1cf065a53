// All-reduce, reduce-scatter and reduce through pipes. Each rank owns a slice: phase 0 brings every rank's part of it to the owner, who folds
// them in rank order; phase 1 takes the result to whoever wants it. The phases overlap chunk by chunk.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

// Ranks that receive a slice's result from its owner through phase 1.
MK_DEVICE uint64_t result_takers(const Lane& lane, const OpDesc& op) {
  if (op.kind == kAllReduce) return all_peers(lane);
  if (op.kind == kReduce) return all_peers(lane) & 1ull << op.root;
  return 0;
}
MK_DEVICE bool takes_results(const Lane& lane, const OpDesc& op) {
  return op.kind == kAllReduce || (op.kind == kReduce && static_cast<uint32_t>(op.root) == lane.rank);
}

MK_DEVICE Step step_reduce(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t n = lane.geometry.nranks, me = lane.rank, chunk = lane.geometry.slot_bytes;
  const Range r = channel_range(op, w.channel);
  const Masks m = poll_pipes(w, s);
  const uint64_t inputs = matching(w, s, 0, m.ready[0], op.signature);
  const uint64_t results = matching(w, s, 1, m.ready[1], op.signature);
  uint32_t* sent = w.progress;
  uint32_t* received = w.progress + kMaxRanks;
  uint64_t to = 0, from = 0, unfinished = 0, awaited = 0;

  for (uint32_t step = 1; step < n; step++) {
    const uint32_t p = (me + step) % n;
    const Range slice = slice_of(op, n, p, r);
    if (sent[p] >= chunks_of(slice.bytes, chunk)) continue;
    unfinished = 1;
    if ((m.sendable[0] >> p & 1) == 0) { awaited |= 1ull << p; continue; }
    copy(next_slot(w, 0, p), input(op) + slice.begin + static_cast<uint64_t>(sent[p]) * chunk, chunk_bytes(slice.bytes, chunk, sent[p]));
    to |= 1ull << p;
  }

  // The results of other owners first: that frees their slots.
  if (takes_results(lane, op)) {
    for (uint32_t step = 1; step < n; step++) {
      const uint32_t p = (me + n - step) % n;
      const Range slice = slice_of(op, n, p, r);
      if (received[p] >= chunks_of(slice.bytes, chunk)) continue;
      unfinished = 1;
      if ((results >> p & 1) == 0) { awaited |= 1ull << p; continue; }
      copy(output(op) + slice.begin + static_cast<uint64_t>(received[p]) * chunk, arrived_slot(w, 1, p), chunk_bytes(slice.bytes, chunk, received[p]));
      from |= 1ull << p;
    }
  }

  const Range own = slice_of(op, n, me, r);
  const uint64_t takers = result_takers(lane, op);
  bool folded = false;
  if (w.folded < chunks_of(own.bytes, chunk)) {
    unfinished = 1;
    if (inputs == all_peers(lane) && (m.sendable[1] & takers) == takers) {
      const uint64_t offset = w.folded * chunk;
      if (thread_id() == 0) {
        for (uint32_t p = 0; p < n; p++) s.pointers.from[p] = p == me ? input(op) + own.begin + offset : arrived_slot(w, 0, p);
        s.pointers.nfrom = n;
        uint32_t k = 0;
        for (uint64_t left = takers; left != 0; left &= left - 1) s.pointers.to[k++] = next_slot(w, 1, lowest_bit(left));
        if (takes_results(lane, op) || op.kind == kReduceScatter) s.pointers.to[k++] = output(op) + result_offset(op, own, r) + offset;
        s.pointers.nto = k;
      }
      sync();
      fold(s.pointers, chunk_bytes(own.bytes, chunk, w.folded) / op.elem_size, reduction_of(w, op));
      folded = true;
    } else {
      awaited |= (all_peers(lane) & ~inputs) | (takers & ~m.sendable[1]);
    }
  }
  sync();
  post(w, 0, to, op.signature);
  release(w, 1, from);
  if (folded) {
    post(w, 1, takers, op.signature);
    release(w, 0, all_peers(lane));
  }
  if (thread_id() == 0) {
    for (uint64_t left = to; left != 0; left &= left - 1) sent[lowest_bit(left)]++;
    for (uint64_t left = from; left != 0; left &= left - 1) received[lowest_bit(left)]++;
    if (folded) w.folded++;
    w.awaited = awaited;
  }
  if ((to | from) != 0 || folded) return Step::kMoved;
  return unfinished != 0 ? Step::kWaiting : Step::kFinished;
}

}  // namespace mk
