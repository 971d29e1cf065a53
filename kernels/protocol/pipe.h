// Pipes: chunks through staging slots. For each ordered pair of ranks, channel and phase there is a queue of kSlots slots in the receiver's
// inbox. The sender copies a chunk into slot `sent % kSlots`, then writes its mark; the receiver copies it out and returns a credit by
// writing how many chunks it has consumed into the sender's inbox. Counters grow for ever, so nothing is reset between operations, graph
// replays included.
//
// Order: chunk, barrier of the block, fence, mark; mark seen, fence, barrier, chunk read; chunk read, barrier, fence, credit; credit seen,
// barrier, slot written again. Thread p of a block alone keeps the counters of rank p. Between nodes the mark and the credit are followed by a
// command to the proxy, which does the same on the other side.
#pragma once
#include "protocol/network.h"

namespace mk {

// What rank p's thread sees of its pipes.
struct PipeView {
  bool sendable[kPhases];
  bool ready[kPhases];    // a chunk has come, of an operation with the signature asked for
  bool foreign[kPhases];  // a chunk has come, of another operation: the next one, unless more is expected of this one
  uint64_t foreign_data;
};

// By rank `p`'s thread.
MK_DEVICE PipeView poll_pipes(const Work& w, uint32_t p, uint32_t signature) {
  const Lane& lane = *w.lane;
  const Channel& ch = lane.channel[w.channel];
  const Geometry& g = lane.geometry;
  const uint64_t in = lane.peers[p].in;
  PipeView view;
  bool arrived = false;
#pragma unroll
  for (uint32_t phase = 0; phase < kPhases; phase++) {
    const uint64_t next = ch.received[phase][p];
    const uint64_t credit = load_relaxed(credit_at(g, in, phase, w.channel));
    const Line mark = load_line(mark_at(g, in, phase, w.channel, next));
    view.sendable[phase] = ch.sent[phase][p] - credit < kSlots;
    const bool here = mark.flag == next + 1;
    view.ready[phase] = here && static_cast<uint32_t>(mark.data) == signature;
    view.foreign[phase] = here && !view.ready[phase];
    if (view.foreign[phase]) view.foreign_data = mark.data;
    arrived |= view.ready[phase];
  }
  if (arrived) fence(lane.one_gpu != 0);
  return view;
}

// By rank `p`'s thread, which expects a chunk that has not come: waits for p. A foreign one in its place makes p a suspect, for failure.h.
MK_DEVICE void await_chunk(Work& w, Shared& s, const PipeView& view, uint32_t phase, uint32_t p) {
  or_shared(&s.awaited, 1ull << p);
  if (!view.foreign[phase]) return;
  w.suspect = p + 1;
  w.suspect_data = view.foreign_data;
}

MK_DEVICE char* next_slot(const Work& w, uint32_t phase, uint32_t peer) {
  const Lane& lane = *w.lane;
  return slot_at(lane.geometry, lane.peers[peer].out_slots, phase, w.channel, lane.channel[w.channel].sent[phase][peer]);
}
MK_DEVICE char* arrived_slot(const Work& w, uint32_t phase, uint32_t peer) {
  const Lane& lane = *w.lane;
  return slot_at(lane.geometry, lane.peers[peer].in_slots, phase, w.channel, lane.channel[w.channel].received[phase][peer]);
}

// By rank `p`'s thread, after the chunk of `bytes` is written and a barrier.
MK_DEVICE void post(Work& w, uint32_t phase, uint32_t p, uint32_t signature, uint32_t bytes) {
  Lane& lane = *w.lane;
  Channel& ch = lane.channel[w.channel];
  const uint64_t n = ch.sent[phase][p];
  fence(lane.one_gpu != 0);
  store_line(mark_at(lane.geometry, lane.peers[p].out, phase, w.channel, n), signature, n + 1);
  ch.sent[phase][p] = n + 1;
  if (is_remote(lane, p)) give_command(lane, w.channel, command_word(kCommandMark, p, phase, w.channel, n % kSlots, bytes));
}

// By rank `p`'s thread, after the chunk is read and a barrier.
MK_DEVICE void release(Work& w, uint32_t phase, uint32_t p) {
  Lane& lane = *w.lane;
  Channel& ch = lane.channel[w.channel];
  const uint64_t n = ch.received[phase][p] + 1;
  fence(lane.one_gpu != 0);
  store_relaxed(credit_at(lane.geometry, lane.peers[p].out, phase, w.channel), n);
  ch.received[phase][p] = n;
  if (is_remote(lane, p)) give_command(lane, w.channel, command_word(kCommandCredit, p, phase, w.channel, 0, 0));
}

// Jobs, by any thread.
MK_DEVICE void add_copy(Shared& s, char* to, const char* from, uint64_t bytes) { s.copies[add_shared(&s.ncopies, 1)] = {from, to, bytes}; }

}  // namespace mk
