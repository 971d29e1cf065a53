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

// What rank p's thread sees of its pipes.
struct PipeView {
  bool sendable[kPhases];
  bool ready[kPhases];  // and the chunk belongs to an operation with the signature asked for
};

// By rank `p`'s thread. Chunks with another signature make p a suspect, for failure.h.
MK_DEVICE PipeView poll_pipes(Work& w, uint32_t p, uint32_t signature) {
  const Lane& lane = *w.lane;
  const Channel& ch = lane.channel[w.channel];
  PipeView view;
  bool arrived = false;
#pragma unroll
  for (uint32_t phase = 0; phase < kPhases; phase++) {
    const uint64_t next = ch.received[phase][p];
    const uint64_t credit = load_relaxed(credit_of(lane, lane.rank, phase, w.channel, p));
    const Line mark = load_line(mark_of(lane, lane.rank, phase, w.channel, p, next));
    view.sendable[phase] = ch.sent[phase][p] - credit < kSlots;
    const bool here = mark.flag == next + 1;
    view.ready[phase] = here && static_cast<uint32_t>(mark.data) == signature;
    arrived |= view.ready[phase];
    if (here && !view.ready[phase]) {
      w.suspect = p + 1;
      w.suspect_data = mark.data;
    }
  }
  if (arrived) fence(lane.one_gpu != 0);
  return view;
}

MK_DEVICE char* next_slot(const Work& w, uint32_t phase, uint32_t peer) {
  const Lane& lane = *w.lane;
  return slot_of(lane, peer, phase, w.channel, lane.rank, lane.channel[w.channel].sent[phase][peer]);
}
MK_DEVICE char* arrived_slot(const Work& w, uint32_t phase, uint32_t peer) {
  const Lane& lane = *w.lane;
  return slot_of(lane, lane.rank, phase, w.channel, peer, lane.channel[w.channel].received[phase][peer]);
}

// By rank `p`'s thread, after the chunk is written and a barrier.
MK_DEVICE void post(Work& w, uint32_t phase, uint32_t p, uint32_t signature) {
  Lane& lane = *w.lane;
  Channel& ch = lane.channel[w.channel];
  const uint64_t n = ch.sent[phase][p];
  fence(lane.one_gpu != 0);
  store_line(mark_of(lane, p, phase, w.channel, lane.rank, n), signature, n + 1);
  ch.sent[phase][p] = n + 1;
}

// By rank `p`'s thread, after the chunk is read and a barrier.
MK_DEVICE void release(Work& w, uint32_t phase, uint32_t p) {
  Lane& lane = *w.lane;
  Channel& ch = lane.channel[w.channel];
  const uint64_t n = ch.received[phase][p] + 1;
  fence(lane.one_gpu != 0);
  store_relaxed(credit_of(lane, p, phase, w.channel, lane.rank), n);
  ch.received[phase][p] = n;
}

// Jobs, by any thread.
MK_DEVICE void add_copy(Shared& s, char* to, const char* from, uint64_t bytes) { s.copies[add_shared(&s.ncopies, 1)] = {from, to, bytes}; }

}  // namespace mk
