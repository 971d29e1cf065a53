// All-gather, broadcast, all-to-all, gather and scatter through pipes: each rank streams its piece to each peer and takes what comes.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

MK_DEVICE Step step_move(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t n = lane.geometry.nranks, me = lane.rank, chunk = lane.geometry.slot_bytes;
  const Range r = channel_range(op, w.channel);
  const Masks m = poll_pipes(w, s);
  const uint64_t ready = matching(w, s, 0, m.ready[0], op.signature);
  uint32_t* sent = w.progress;
  uint32_t* received = w.progress + kMaxRanks;

  uint64_t to = 0, from = 0, unfinished = 0, awaited = 0;
  bool local_moved = false;
  const Piece own = piece_for(op, me, me, r);
  const Place own_place = place_from(op, me, me, r);
  const bool local = own.bytes != 0 && own_place.bytes != 0 && own.from != own_place.to;

  if (same_piece_for_all(op)) {
    // One read serves all peers and this rank's own output, chunk by chunk in lockstep.
    const uint64_t chunks = chunks_of(own.bytes, chunk);
    if (w.pushed < chunks) {
      unfinished |= 1;
      if ((m.sendable[0] & all_peers(lane)) == all_peers(lane)) {
        const uint64_t offset = w.pushed * chunk;
        if (thread_id() == 0) {
          uint32_t k = 0;
          for (uint32_t p = 0; p < n; p++)
            if (p != me) s.pointers.to[k++] = next_slot(w, 0, p);
          if (local) s.pointers.to[k++] = own_place.to + offset;
          s.pointers.nto = k;
          s.pointers.nfrom = 1;
          s.pointers.from[0] = own.from + offset;
        }
        sync();
        copy(s.pointers, chunk_bytes(own.bytes, chunk, w.pushed));
        to = all_peers(lane);
      } else {
        awaited |= all_peers(lane) & ~m.sendable[0];
      }
    }
  } else {
    for (uint32_t step = 1; step < n; step++) {
      const uint32_t p = (me + step) % n;  // everyone starts with another peer
      const Piece piece = piece_for(op, me, p, r);
      if (sent[p] >= chunks_of(piece.bytes, chunk)) continue;
      unfinished |= 1;
      if ((m.sendable[0] >> p & 1) == 0) { awaited |= 1ull << p; continue; }
      copy(next_slot(w, 0, p), piece.from + static_cast<uint64_t>(sent[p]) * chunk, chunk_bytes(piece.bytes, chunk, sent[p]));
      to |= 1ull << p;
    }
    if (local && w.local < own.bytes) {
      const uint64_t bytes = own.bytes - w.local < 4ull * chunk ? own.bytes - w.local : 4ull * chunk;
      copy(own_place.to + w.local, own.from + w.local, bytes);
      local_moved = true;
      unfinished |= w.local + bytes < own.bytes;
    }
  }
  for (uint32_t step = 1; step < n; step++) {
    const uint32_t p = (me + n - step) % n;
    const Place place = place_from(op, me, p, r);
    if (received[p] >= chunks_of(place.bytes, chunk)) continue;
    unfinished |= 1;
    if ((ready >> p & 1) == 0) { awaited |= 1ull << p; continue; }
    copy(place.to + static_cast<uint64_t>(received[p]) * chunk, arrived_slot(w, 0, p), chunk_bytes(place.bytes, chunk, received[p]));
    from |= 1ull << p;
  }
  sync();
  post(w, 0, to, op.signature);
  release(w, 0, from);
  if (thread_id() == 0) {
    for (uint64_t left = to; left != 0; left &= left - 1) sent[lowest_bit(left)]++;
    for (uint64_t left = from; left != 0; left &= left - 1) received[lowest_bit(left)]++;
    if (same_piece_for_all(op) && to != 0) w.pushed++;
    if (local_moved) w.local += own.bytes - w.local < 4ull * chunk ? own.bytes - w.local : 4ull * chunk;
    w.awaited = awaited;
  }
  if ((to | from) != 0 || local_moved) return Step::kMoved;
  return unfinished != 0 ? Step::kWaiting : Step::kFinished;
}

}  // namespace mk
