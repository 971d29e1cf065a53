// All-gather, broadcast, all-to-all, gather and scatter through pipes: each rank streams its piece to each peer and takes what comes.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

// Rank p's thread: w.progress[p] chunks have gone to p, w.progress[kMaxRanks + p] have come.
MK_DEVICE void plan_move_with(Work& w, Shared& s, uint32_t p) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t chunk = lane.geometry.slot_bytes;
  const Range r = channel_range(op, w.channel);
  const PipeView view = poll_pipes(w, p, op.signature);
  const uint64_t bit = 1ull << p;

  if (same_piece_for_all(op)) {
    // One read serves all peers, chunk by chunk in lockstep: thread 0 decides.
    s.pointers.to[p < lane.rank ? p : p - 1] = next_slot(w, 0, p);
    if (view.sendable[0]) or_shared(&s.sendable[0], bit);
  } else {
    const Piece piece = piece_for(op, lane.rank, p, r);
    const uint64_t sent = w.progress[p];
    if (sent < chunks_of(piece.bytes, chunk)) {
      s.unfinished = 1;
      if (view.sendable[0]) {
        s.bytes[0][p] = static_cast<uint32_t>(chunk_bytes(piece.bytes, chunk, sent));
        add_copy(s, next_slot(w, 0, p), piece.from + sent * chunk, s.bytes[0][p]);
        or_shared(&s.post[0], bit);
      } else {
        or_shared(&s.awaited, bit);
      }
    }
  }
  const Place place = place_from(op, lane.rank, p, r);
  const uint64_t received = w.progress[kMaxRanks + p];
  if (received < chunks_of(place.bytes, chunk)) {
    s.unfinished = 1;
    if (view.ready[0]) {
      add_copy(s, place.to + received * chunk, arrived_slot(w, 0, p), chunk_bytes(place.bytes, chunk, received));
      or_shared(&s.release[0], bit);
    } else {
      await_chunk(w, s, view, 0, p);
    }
  }
}

// Thread 0, when all ranks' threads have planned.
MK_DEVICE void plan_move(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t chunk = lane.geometry.slot_bytes;
  const Range r = channel_range(op, w.channel);
  const Piece own = piece_for(op, lane.rank, lane.rank, r);
  const Place place = place_from(op, lane.rank, lane.rank, r);
  const bool local = own.bytes != 0 && place.bytes != 0 && own.from != place.to;
  if (same_piece_for_all(op)) {
    if (w.pushed >= chunks_of(own.bytes, chunk)) return;
    s.unfinished = 1;
    const uint64_t peers = all_peers(lane);
    if (s.sendable[0] != peers) {
      s.awaited |= peers & ~s.sendable[0];
      return;
    }
    const uint64_t offset = w.pushed * chunk;
    s.pointers.from[0] = own.from + offset;
    s.pointers.nfrom = 1;
    s.pointers.nto = lane.geometry.nranks - 1;
    if (local) s.pointers.to[s.pointers.nto++] = place.to + offset;
    s.wide = Wide::kCopy;
    s.wide_bytes = chunk_bytes(own.bytes, chunk, w.pushed);
    s.wide_phase = 0;
    s.post[0] = peers;
    w.pushed++;
  } else if (local && w.local < own.bytes) {
    const uint64_t bytes = own.bytes - w.local < 4ull * chunk ? own.bytes - w.local : 4ull * chunk;
    add_copy(s, place.to + w.local, own.from + w.local, bytes);
    w.local += bytes;
    s.unfinished = 1;
  }
}

}  // namespace mk
