// All-reduce over rails, to the same bits as on one node. The ranks of a node share the work: rank l folds part l of the inputs of its node, in rank
// order, on top of what the nodes before have folded, and hands the accumulators, unrounded, to its rail's rank on the next node (phase 0). The last
// node rounds; the result travels back along the rail and from each rank to the others of its node (phase 1). Both directions are under way at once,
// chunk by chunk.
#pragma once
#include "collective/rails.h"
#include "protocol/carry.h"

namespace mk {

// Bytes of a chunk of elements whose accumulators fill a slot.
MK_DEVICE uint32_t carried_chunk(const Lane& lane, const OpDesc& op) { return lane.geometry.slot_bytes / carried_bytes(op.elem_size) * op.elem_size; }

MK_DEVICE Range rail_slice(uint32_t per_node, uint32_t place, Range r) {
  const Range part = part_of(r.bytes, per_node, place);
  return {r.begin + part.begin, part.bytes};
}

// Rank p's thread: w.progress[p] chunks of p's part have gone to p, w.progress[kMaxRanks + p] chunks of its result have come.
MK_SLOW void plan_rail_reduce_with(Work& w, Shared& s, uint32_t p) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const Rails rails = rails_of(lane);
  const bool near = p / rails.per_node == rails.node, on_rail = p % rails.per_node == rails.place;
  const bool before = on_rail && p + rails.per_node == lane.rank, after = on_rail && p == lane.rank + rails.per_node;
  if (!near && !before && !after) return;
  const uint32_t chunk = carried_chunk(lane, op);
  const Range r = channel_range(op, w.channel);
  const uint64_t own_chunks = chunks_of(rail_slice(rails.per_node, rails.place, r).bytes, chunk);
  const PipeView view = poll_pipes(w, p, op.signature);
  const uint64_t bit = 1ull << p;

  if (near) {
    const Range slice = rail_slice(rails.per_node, p % rails.per_node, r);
    const uint64_t sent = w.progress[p], received = w.progress[kMaxRanks + p];
    if (sent < chunks_of(slice.bytes, chunk)) {
      s.unfinished = 1;
      if (view.sendable[0]) {
        char* slot = next_slot(w, 0, p);
        if (op.redop == kPreMulSum) *scalar_at(slot) = w.scalar;
        add_copy(s, slot, input(op) + slice.begin + sent * chunk, chunk_bytes(slice.bytes, chunk, sent));
        or_shared(&s.post[0], bit);
      } else {
        or_shared(&s.awaited, bit);
      }
    }
    if (received < chunks_of(slice.bytes, chunk)) {
      s.unfinished = 1;
      if (view.ready[1]) {
        add_copy(s, output(op) + slice.begin + received * chunk, arrived_slot(w, 1, p), chunk_bytes(slice.bytes, chunk, received));
        or_shared(&s.release[1], bit);
      } else {
        await_chunk(w, s, view, 1, p);
      }
    }
  }
  // What thread 0 needs for the fold, and for passing the result on.
  if (view.ready[0]) {
    char* slot = arrived_slot(w, 0, p);
    const uint32_t source = before ? 0 : p % rails.per_node + (rails.node != 0);
    s.pointers.from[source] = slot;
    if (near && op.redop == kPreMulSum) s.pointers.scalars[source] = *scalar_at(slot);
    or_shared(&s.ready[0], bit);
  } else if (!after && view.foreign[0] && w.folded < own_chunks) {
    await_chunk(w, s, view, 0, p);
  }
  if (after && view.ready[1]) or_shared(&s.ready[1], bit);
  if (after && view.foreign[1] && w.pushed < own_chunks) await_chunk(w, s, view, 1, p);
  for (uint32_t phase = 0; phase < kPhases; phase++)
    if (view.sendable[phase]) or_shared(&s.sendable[phase], bit);
}

// Thread 0, when all ranks' threads have planned.
MK_SLOW void plan_rail_reduce(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const Rails rails = rails_of(lane);
  const bool first = rails.node == 0, last = rails.node + 1 == rails.nodes;
  const uint32_t me = lane.rank, chunk = carried_chunk(lane, op);
  const Range own = rail_slice(rails.per_node, rails.place, channel_range(op, w.channel));
  const uint64_t chunks = chunks_of(own.bytes, chunk);
  const uint64_t near = near_peers(lane, rails);
  const uint64_t before = first ? 0 : 1ull << (me - rails.per_node), after = last ? 0 : 1ull << (me + rails.per_node);
  const uint64_t takers = near | before;

  if (!last && w.pushed < chunks) {  // the result comes back
    s.unfinished = 1;
    const uint64_t missing = (after & ~s.ready[1]) | (takers & ~s.sendable[1]);
    if (missing == 0) {
      uint32_t k = 0;
      for (uint64_t left = takers; left != 0; left &= left - 1) s.pointers.to[k++] = next_slot(w, 1, lowest_bit(left));
      s.pointers.to[k++] = output(op) + own.begin + w.pushed * chunk;
      s.pointers.nto = k;
      s.pointers.from[0] = arrived_slot(w, 1, me + rails.per_node);
      s.pointers.nfrom = 1;
      s.wide = Wide::kCopy;
      s.wide_bytes = chunk_bytes(own.bytes, chunk, w.pushed);
      s.wide_phase = 1;
      s.post[1] = takers;
      s.release[1] |= after;
      w.pushed++;
      return;
    }
    s.awaited |= missing;
  }
  if (w.folded >= chunks) return;
  s.unfinished = 1;
  const uint64_t sources = near | before;
  const uint64_t missing = (sources & ~s.ready[0]) | (last ? takers & ~s.sendable[1] : after & ~s.sendable[0]);
  if (missing != 0) {
    s.awaited |= missing;
    return;
  }
  const uint32_t mine = rails.place + !first;
  s.pointers.from[mine] = input(op) + own.begin + w.folded * chunk;
  s.pointers.scalars[mine] = w.scalar;
  s.pointers.nfrom = rails.per_node + !first;
  uint32_t k = 0;
  if (last) {
    for (uint64_t left = takers; left != 0; left &= left - 1) s.pointers.to[k++] = next_slot(w, 1, lowest_bit(left));
    s.pointers.to[k++] = output(op) + own.begin + w.folded * chunk;
  } else {
    s.pointers.to[k++] = next_slot(w, 0, me + rails.per_node);
  }
  s.pointers.nto = k;
  s.wide = Wide::kCarry;
  s.carry = {!first, !last};
  s.wide_elements = chunk_bytes(own.bytes, chunk, w.folded) / op.elem_size;
  s.wide_bytes = s.wide_elements * (last ? op.elem_size : carried_bytes(op.elem_size));
  s.wide_phase = last ? 1 : 0;
  if (last) s.post[1] = takers;
  else s.post[0] |= after;
  s.release[0] = sources;
  w.folded++;
}

}  // namespace mk
