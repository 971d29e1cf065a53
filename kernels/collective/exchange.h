// Sends and receives of one group, all under way at once: no order of calls inside a group can deadlock. Transfers between the same two
// ranks keep their order, because they share a pipe.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

// One past the last operation of the run of sends and receives that starts at `begin`.
MK_DEVICE uint32_t exchange_end(const Work& w, uint32_t begin) {
  uint32_t end = begin;
  while (end < w.command->nops && is_point_to_point(w.ops[end])) end++;
  return end;
}

// Chunks of a transfer on a channel. A transfer of nothing sends one empty chunk on channel 0, so that it is matched all the same.
MK_DEVICE uint64_t transfer_chunks(const OpDesc& op, uint32_t channel, uint32_t chunk, Range& r) {
  r = {0, 0};
  if (channel >= op.channels) return 0;
  r = channel_range(op, channel);
  if (whole_bytes(op) == 0) return channel == 0 ? 1 : 0;
  return chunks_of(r.bytes, chunk);
}

// w.progress[i]: chunks moved of transfer w.op + i.
MK_DEVICE Step step_exchange(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const uint32_t me = lane.rank, chunk = lane.geometry.slot_bytes;
  const uint32_t end = exchange_end(w, w.op);
  const Masks m = poll_pipes(w, s);
  // A peer takes part in one step once in each direction: the first unfinished transfer is its turn.
  uint64_t send_turn = 0, recv_turn = 0, to = 0, from = 0, awaited = 0;
  bool unfinished = false, moved_local = false;
  for (uint32_t i = w.op; i < end; i++) {
    const OpDesc& op = w.ops[i];
    const uint32_t peer = static_cast<uint32_t>(op.root), done = w.progress[i - w.op];
    const uint64_t bit = 1ull << peer;
    Range r;
    const uint64_t chunks = transfer_chunks(op, w.channel, chunk, r);
    if (done >= chunks) continue;
    if (peer == me) {  // the planner has joined a send to oneself with its receive
      copy(output(op) + r.begin + static_cast<uint64_t>(done) * chunk, input(op) + r.begin + static_cast<uint64_t>(done) * chunk, chunk_bytes(r.bytes, chunk, done));
      moved_local = true;
      continue;
    }
    unfinished = true;
    const bool sends = op.kind == kSend;
    uint64_t& turn = sends ? send_turn : recv_turn;
    if ((turn & bit) != 0) continue;
    turn |= bit;
    const uint64_t offset = r.begin + static_cast<uint64_t>(done) * chunk;
    const uint64_t bytes = r.bytes == 0 ? 0 : chunk_bytes(r.bytes, chunk, done);
    if (sends) {
      if ((m.sendable[0] & bit) == 0) { awaited |= bit; continue; }
      copy(next_slot(w, 0, peer), input(op) + offset, bytes);
      to |= bit;
    } else {
      if (matching(w, s, 0, m.ready[0] & bit, op.signature) == 0) { awaited |= bit; continue; }
      copy(output(op) + offset, arrived_slot(w, 0, peer), bytes);
      from |= bit;
    }
  }
  sync();
  // The signature of each send, by the thread that posts for its peer: find the transfer whose turn it was.
  for (uint64_t left = to; left != 0; left &= left - 1) {
    const uint32_t p = lowest_bit(left);
    uint32_t signature = 0;
    for (uint32_t i = w.op; i < end; i++) {
      Range r;
      const OpDesc& op = w.ops[i];
      if (op.kind == kSend && static_cast<uint32_t>(op.root) == p && w.progress[i - w.op] < transfer_chunks(op, w.channel, chunk, r)) {
        signature = op.signature;
        break;
      }
    }
    post(w, 0, 1ull << p, signature);
  }
  release(w, 0, from);
  sync();
  if (thread_id() == 0) {
    uint64_t sends = to, receives = from;
    for (uint32_t i = w.op; i < end; i++) {
      const OpDesc& op = w.ops[i];
      const uint64_t bit = 1ull << op.root;
      Range r;
      if (w.progress[i - w.op] >= transfer_chunks(op, w.channel, chunk, r)) continue;
      if (static_cast<uint32_t>(op.root) == me) { w.progress[i - w.op]++; continue; }
      uint64_t& pending = op.kind == kSend ? sends : receives;
      if ((pending & bit) == 0) continue;
      pending &= ~bit;
      w.progress[i - w.op]++;
    }
    w.awaited = awaited;
  }
  if ((to | from) != 0 || moved_local) return Step::kMoved;
  return unfinished ? Step::kWaiting : Step::kFinished;
}

}  // namespace mk
