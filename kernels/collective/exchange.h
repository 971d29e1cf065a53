// Sends and receives of one group, all under way at once: no order of calls inside a group can deadlock. Transfers between the same two
// ranks keep their order, because they share a pipe.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

constexpr uint32_t kNoTransfer = ~0u;

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

// Rank p's thread: the first unfinished transfer in each direction has its turn. w.progress[i]: chunks moved of transfer w.op + i.
MK_DEVICE void plan_exchange_with(Work& w, Shared& s, uint32_t p) {
  const Lane& lane = *w.lane;
  const uint32_t chunk = lane.geometry.slot_bytes, end = exchange_end(w, w.op);
  const uint64_t bit = 1ull << p;
  uint32_t send = kNoTransfer, receive = kNoTransfer;
  for (uint32_t i = w.op; i < end; i++) {
    const OpDesc& op = w.ops[i];
    if (static_cast<uint32_t>(op.root) != p) continue;
    uint32_t& turn = op.kind == kSend ? send : receive;
    Range r;
    if (turn != kNoTransfer || w.progress[i - w.op] >= transfer_chunks(op, w.channel, chunk, r)) continue;
    turn = i;
  }
  s.turn[0][p] = send;
  s.turn[1][p] = receive;
  if (send == kNoTransfer && receive == kNoTransfer) return;
  s.unfinished = 1;
  Range r;
  if (p == lane.rank) {  // the planner has joined a send to oneself with its receive
    const OpDesc& op = w.ops[send];
    const uint64_t done = w.progress[send - w.op];
    transfer_chunks(op, w.channel, chunk, r);
    add_copy(s, output(op) + r.begin + done * chunk, input(op) + r.begin + done * chunk, chunk_bytes(r.bytes, chunk, done));
    w.progress[send - w.op]++;
    return;
  }
  // An unfinished receive names the signature that a chunk must have; without one, nothing is taken.
  const PipeView view = poll_pipes(w, p, receive == kNoTransfer ? 0 : w.ops[receive].signature);
  if (send != kNoTransfer) {
    const OpDesc& op = w.ops[send];
    const uint64_t done = w.progress[send - w.op];
    transfer_chunks(op, w.channel, chunk, r);
    if (view.sendable[0]) {
      s.bytes[0][p] = r.bytes != 0 ? static_cast<uint32_t>(chunk_bytes(r.bytes, chunk, done)) : 0;
      if (r.bytes != 0) add_copy(s, next_slot(w, 0, p), input(op) + r.begin + done * chunk, s.bytes[0][p]);
      or_shared(&s.post[0], bit);
    } else {
      or_shared(&s.awaited, bit);
    }
  }
  if (receive != kNoTransfer) {
    const OpDesc& op = w.ops[receive];
    const uint64_t done = w.progress[receive - w.op];
    transfer_chunks(op, w.channel, chunk, r);
    if (view.ready[0]) {
      if (r.bytes != 0) add_copy(s, output(op) + r.begin + done * chunk, arrived_slot(w, 0, p), chunk_bytes(r.bytes, chunk, done));
      or_shared(&s.release[0], bit);
    } else {
      await_chunk(w, s, view, 0, p);
    }
  }
}

}  // namespace mk
