// Collectives on buffers that all ranks can address as they are (ranks of one process on one GPU): ranks tell each other where their buffers
// are, each does its share with reads and writes in place, and all wait for all before anyone goes on. Every byte is read once and written
// once per output. The messages travel through the pipes of this channel: addresses in phase 0, an empty chunk in phase 1.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

// Bytes of one step: long enough to keep the memory busy, short enough to look around in between.
constexpr uint64_t kDirectStep = 512 * 1024;

// This rank's share on this channel: what it reads from rank p's input and writes to rank p's output; offsets, or kNothing.
constexpr uint64_t kNothing = ~0ull;
struct Share {
  uint64_t read;
  uint64_t write;
  uint64_t bytes;
};
MK_DEVICE Share share_with(const OpDesc& op, uint32_t nranks, uint32_t me, uint32_t p, Range r) {
  const uint64_t whole = whole_bytes(op);
  const bool root = static_cast<uint32_t>(op.root) == p;
  const Range part = part_of(r.bytes, nranks, me);  // of operations whose work is shared among the ranks
  const uint64_t at = r.begin + part.begin;
  switch (op.kind) {
    case kAllReduce: return {at, at, part.bytes};
    case kReduce: return {at, root ? at : kNothing, part.bytes};
    case kReduceScatter: return {me * whole + r.begin, p == me ? r.begin : kNothing, r.bytes};
    case kAllGather: return {p == me ? r.begin : kNothing, me * whole + r.begin, r.bytes};
    default: return {root ? at : kNothing, at, part.bytes};  // kBroadcast: each rank spreads a part of the root's buffer
  }
}

enum DirectStage : uint32_t { kTell = 1, kLearn, kWork, kReport, kLeave };

// Rank p's thread, this rank's own included.
MK_DEVICE void plan_direct_with(Work& w, Shared& s, uint32_t p) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t me = lane.rank;
  const uint64_t bit = 1ull << p;
  s.unfinished = 1;
  if (w.stage == kWork) return;
  if (p == me) {
    if (w.stage == kLearn) {
      w.peers[0][p] = op.send;
      w.peers[1][p] = op.recv;
      w.peers[2][p] = w.scalar;
    }
    return;
  }
  const PipeView view = poll_pipes(w, p, op.signature);
  bool go = false;
  switch (w.stage) {
    case kTell:
      if ((go = view.sendable[0])) or_shared(&s.sendable[0], bit);
      break;
    case kLearn:
      if ((go = view.ready[0])) or_shared(&s.ready[0], bit);
      break;
    case kReport:
      if ((go = view.sendable[1])) or_shared(&s.sendable[1], bit);
      break;
    default:
      if ((go = view.ready[1])) or_shared(&s.ready[1], bit);
  }
  if (!go) {
    await_chunk(w, s, view, w.stage < kReport ? 0 : 1, p);
  } else if (w.stage == kTell) {  // nobody looks before the mark
    uint64_t* slot = reinterpret_cast<uint64_t*>(next_slot(w, 0, p));
    store_relaxed(slot, op.send);
    store_relaxed(slot + 1, op.recv);
    store_relaxed(slot + 2, w.scalar);
  } else if (w.stage == kLearn) {
    const uint64_t* slot = reinterpret_cast<const uint64_t*>(arrived_slot(w, 0, p));
    for (uint32_t i = 0; i < 3; i++) w.peers[i][p] = load_relaxed(slot + i);
  }
}

// Thread 0, when all ranks' threads have planned: nothing goes on before all ranks are where this one is.
MK_DEVICE void plan_direct(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t n = lane.geometry.nranks, me = lane.rank;
  const uint64_t peers = all_peers(lane);
  if (w.stage == kWork) {
    const Range r = channel_range(op, w.channel);
    uint32_t nfrom = 0, nto = 0;
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < n; k++) {
      const Share share = share_with(op, n, me, k, r);
      bytes = share.bytes;
      if (share.read != kNothing) {
        s.pointers.scalars[nfrom] = w.peers[2][k];
        s.pointers.from[nfrom++] = reinterpret_cast<const char*>(w.peers[0][k] + share.read + w.pushed);
      }
      // Everyone starts writing at another rank.
      const uint32_t to = (me + k) % n;
      const Share there = share_with(op, n, me, to, r);
      if (there.write != kNothing) s.pointers.to[nto++] = reinterpret_cast<char*>(w.peers[1][to] + there.write + w.pushed);
    }
    if (w.pushed < bytes) {
      s.pointers.nfrom = nfrom;
      s.pointers.nto = nto;
      s.wide = reduces(op) ? Wide::kFold : Wide::kCopy;
      s.wide_bytes = bytes - w.pushed < kDirectStep ? bytes - w.pushed : kDirectStep;
      w.pushed += s.wide_bytes;
      return;
    }
    w.stage = kReport;  // the next step reports
    s.step = Step::kMoved;
    return;
  }
  if (s.awaited != 0) return;
  switch (w.stage) {
    case kTell: s.post[0] = peers; break;
    case kLearn: s.release[0] = peers; break;
    case kReport: s.post[1] = peers; break;
    default:
      s.release[1] = peers;
      s.unfinished = 0;
  }
  w.stage++;
}

}  // namespace mk
