// All-gather and broadcast over rails: a rank streams its piece to the others of its node and of its rail (phase 0); what comes along the rail it passes on
// to the others of its node (phase 1). With several pieces to pass on, their chunks take turns, in an order that the receivers know.
#pragma once
#include "collective/rails.h"

namespace mk {

// Pieces that the rank at `place` of this node has to pass on to the others there.
MK_DEVICE uint32_t pieces_passed_on(const OpDesc& op, const Rails& rails, uint32_t place) {
  if (op.kind == kAllGather) return rails.nodes - 1;
  const uint32_t root = static_cast<uint32_t>(op.root);
  return root % rails.per_node == place && root / rails.per_node != rails.node ? 1 : 0;
}
// The rank that the k-th chunk it passes on comes from, and the chunk's number in that rank's piece.
struct Passed {
  uint32_t origin;
  uint64_t chunk;
};
MK_DEVICE Passed passed_on(const OpDesc& op, const Rails& rails, uint32_t place, uint64_t k) {
  if (op.kind == kBroadcast) return {static_cast<uint32_t>(op.root), k};
  const uint32_t pieces = rails.nodes - 1, node = (rails.node + 1 + static_cast<uint32_t>(k % pieces)) % rails.nodes;
  return {node * rails.per_node + place, k / pieces};
}

// Rank p's thread: w.progress[kMaxRanks + p] chunks of its own piece have come from p, w.progress[2 * kMaxRanks + p] that it passes on.
MK_SLOW void plan_rail_move_with(Work& w, Shared& s, uint32_t p) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const Rails rails = rails_of(lane);
  const uint32_t place = p % rails.per_node;
  const bool near = p / rails.per_node == rails.node;
  if (!near && place != rails.place) return;
  const uint32_t chunk = lane.geometry.slot_bytes;
  const Range r = channel_range(op, w.channel);
  const PipeView view = poll_pipes(w, p, op.signature);
  const uint64_t bit = 1ull << p;
  for (uint32_t phase = 0; phase < kPhases; phase++)
    if (view.sendable[phase]) or_shared(&s.sendable[phase], bit);
  if (!near) {
    if (view.ready[0]) or_shared(&s.ready[0], bit);
    const uint64_t passed = w.folded;
    const uint64_t all = pieces_passed_on(op, rails, rails.place) * chunks_of(r.bytes, chunk);
    if (view.foreign[0] && passed < all && passed_on(op, rails, rails.place, passed).origin == p) await_chunk(w, s, view, 0, p);
    return;
  }
  const Place own = place_from(op, lane.rank, p, r);
  const uint64_t received = w.progress[kMaxRanks + p];
  if (received < chunks_of(own.bytes, chunk)) {
    s.unfinished = 1;
    if (view.ready[0]) {
      add_copy(s, own.to + received * chunk, arrived_slot(w, 0, p), chunk_bytes(own.bytes, chunk, received));
      or_shared(&s.release[0], bit);
    } else {
      await_chunk(w, s, view, 0, p);
    }
  }
  const uint64_t taken = w.progress[2 * kMaxRanks + p];
  if (taken < pieces_passed_on(op, rails, place) * chunks_of(r.bytes, chunk)) {
    s.unfinished = 1;
    if (view.ready[1]) {
      const Passed passed = passed_on(op, rails, place, taken);
      const Place to = place_from(op, lane.rank, passed.origin, r);
      add_copy(s, to.to + passed.chunk * chunk, arrived_slot(w, 1, p), chunk_bytes(to.bytes, chunk, passed.chunk));
      or_shared(&s.release[1], bit);
    } else {
      await_chunk(w, s, view, 1, p);
    }
  }
}

// Thread 0, when all ranks' threads have planned: w.pushed chunks of this rank's own piece are under way, w.folded have been passed on.
MK_SLOW void plan_rail_move(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const Rails rails = rails_of(lane);
  const uint32_t chunk = lane.geometry.slot_bytes, me = lane.rank;
  const Range r = channel_range(op, w.channel);
  const uint64_t near = near_peers(lane, rails);
  // Passing on goes first: others wait for it.
  if (w.folded < pieces_passed_on(op, rails, rails.place) * chunks_of(r.bytes, chunk)) {
    s.unfinished = 1;
    const Passed passed = passed_on(op, rails, rails.place, w.folded);
    const uint64_t origin = 1ull << passed.origin;
    const uint64_t missing = (origin & ~s.ready[0]) | (near & ~s.sendable[1]);
    if (missing == 0) {
      const Place to = place_from(op, me, passed.origin, r);
      uint32_t k = 0;
      for (uint64_t left = near; left != 0; left &= left - 1) s.pointers.to[k++] = next_slot(w, 1, lowest_bit(left));
      s.pointers.to[k++] = to.to + passed.chunk * chunk;
      s.pointers.nto = k;
      s.pointers.from[0] = arrived_slot(w, 0, passed.origin);
      s.pointers.nfrom = 1;
      s.wide = Wide::kCopy;
      s.wide_bytes = chunk_bytes(to.bytes, chunk, passed.chunk);
      s.wide_phase = 1;
      s.post[1] = near;
      s.release[0] |= origin;
      w.folded++;
      return;
    }
    s.awaited |= missing;
  }
  const Piece own = piece_for(op, me, me, r);
  if (w.pushed >= chunks_of(own.bytes, chunk)) return;
  s.unfinished = 1;
  const uint64_t takers = near | rail_peers(lane, rails);
  if ((takers & ~s.sendable[0]) != 0) {
    s.awaited |= takers & ~s.sendable[0];
    return;
  }
  const Place place = place_from(op, me, me, r);
  const uint64_t offset = w.pushed * chunk;
  uint32_t k = 0;
  for (uint64_t left = takers; left != 0; left &= left - 1) s.pointers.to[k++] = next_slot(w, 0, lowest_bit(left));
  if (place.bytes != 0 && own.from != place.to) s.pointers.to[k++] = place.to + offset;
  s.pointers.nto = k;
  s.pointers.from[0] = own.from + offset;
  s.pointers.nfrom = 1;
  s.wide = Wide::kCopy;
  s.wide_bytes = chunk_bytes(own.bytes, chunk, w.pushed);
  s.wide_phase = 0;
  s.post[0] = takers;
  w.pushed++;
}

}  // namespace mk
