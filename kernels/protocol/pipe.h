// Pipes: chunks through staging slots. For each ordered pair of ranks, channel and phase there is a queue of kSlots slots in the receiver's
// region. The sender copies a chunk into slot `sent % kSlots`, then writes its mark; the receiver copies it out and returns a credit by
// writing how many chunks it has consumed into the sender's region. Counters grow for ever, so nothing is reset between operations, graph
// replays included.
//
// Order: chunk, barrier of the block, fence, mark; mark seen, fence, barrier, chunk read; chunk read, barrier, fence, credit; credit seen,
// barrier, slot written again. Thread p of a block alone keeps the counters of rank p.
#pragma once
#include "executor/work.h"

namespace mk {

struct Masks {
  uint64_t sendable[kPhases];  // bit r: there is a free slot towards rank r
  uint64_t ready[kPhases];     // bit r: a chunk from rank r has arrived
};

// Asks all pipes of the channel at once. Ends with a barrier.
MK_DEVICE Masks poll_pipes(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const Channel& ch = lane.channel[w.channel];
  const uint32_t turn = s.turn, next_turn = turn == 2 ? 0 : turn + 1;
  bool arrived = false;
  for (uint32_t p = thread_id(); p < lane.geometry.nranks; p += thread_count()) {
    if (p == lane.rank) continue;
#pragma unroll
    for (uint32_t phase = 0; phase < kPhases; phase++) {
      const uint64_t credit = load_relaxed(credit_of(lane, lane.rank, phase, w.channel, p));
      if (ch.sent[phase][p] - credit < kSlots) or_shared(&s.masks[turn][phase], 1ull << p);
      const uint64_t next = ch.received[phase][p];
      const Line mark = load_line(mark_of(lane, lane.rank, phase, w.channel, p, next));
      if (mark.flag == next + 1) {
        s.mark_data[phase][p] = mark.data;
        or_shared(&s.masks[turn][kPhases + phase], 1ull << p);
        arrived = true;
      }
    }
  }
  if (arrived) fence(lane.one_gpu != 0);
  if (thread_id() == 0)
    for (uint32_t i = 0; i < 4; i++) s.masks[next_turn][i] = 0;
  sync();
  Masks m;
  for (uint32_t phase = 0; phase < kPhases; phase++) {
    m.sendable[phase] = s.masks[turn][phase];
    m.ready[phase] = s.masks[turn][kPhases + phase];
  }
  if (thread_id() == 0) s.turn = next_turn;  // read by others only after the barrier that ends the step
  return m;
}

// Of the ranks in `ready`, those whose next chunk belongs to an operation with this signature; the others are suspects, for failure.h.
MK_DEVICE uint64_t matching(Work& w, const Shared& s, uint32_t phase, uint64_t ready, uint32_t signature) {
  uint64_t good = 0;
  for (uint64_t left = ready; left != 0; left &= left - 1) {
    const uint32_t p = lowest_bit(left);
    if (static_cast<uint32_t>(s.mark_data[phase][p]) == signature) {
      good |= 1ull << p;
    } else if (thread_id() == 0) {
      w.suspect = p + 1;
      w.suspect_data = s.mark_data[phase][p];
    }
  }
  return good;
}

MK_DEVICE char* next_slot(const Work& w, uint32_t phase, uint32_t peer) {
  const Lane& lane = *w.lane;
  return slot_of(lane, peer, phase, w.channel, lane.rank, lane.channel[w.channel].sent[phase][peer]);
}
MK_DEVICE const char* arrived_slot(const Work& w, uint32_t phase, uint32_t peer) {
  const Lane& lane = *w.lane;
  return slot_of(lane, lane.rank, phase, w.channel, peer, lane.channel[w.channel].received[phase][peer]);
}

// After the chunks are written and a barrier: marks them for each rank in `to`.
MK_DEVICE void post(Work& w, uint32_t phase, uint64_t to, uint32_t signature) {
  Lane& lane = *w.lane;
  Channel& ch = lane.channel[w.channel];
  for (uint32_t p = thread_id(); p < lane.geometry.nranks; p += thread_count()) {
    if ((to >> p & 1) == 0) continue;
    fence(lane.one_gpu != 0);
    const uint64_t n = ch.sent[phase][p];
    store_line(mark_of(lane, p, phase, w.channel, lane.rank, n), signature, n + 1);
    ch.sent[phase][p] = n + 1;
  }
}

// After the chunks are read and a barrier: returns a credit to each rank in `from`.
MK_DEVICE void release(Work& w, uint32_t phase, uint64_t from) {
  Lane& lane = *w.lane;
  Channel& ch = lane.channel[w.channel];
  for (uint32_t p = thread_id(); p < lane.geometry.nranks; p += thread_count()) {
    if ((from >> p & 1) == 0) continue;
    fence(lane.one_gpu != 0);
    const uint64_t n = ch.received[phase][p] + 1;
    store_relaxed(credit_of(lane, p, phase, w.channel, lane.rank), n);
    ch.received[phase][p] = n;
  }
}

}  // namespace mk
