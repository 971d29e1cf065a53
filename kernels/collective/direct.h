// Collectives on buffers that all ranks can address as they are (ranks of one process on one GPU): ranks tell each other where their buffers
// are, each does its share with reads and writes in place, and all wait for all before anyone goes on. Every byte is read once and written
// once per output. The messages travel through the pipes of this channel: an address pair in phase 0, an empty chunk in phase 1.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

// What this rank does, on this channel: `bytes` from each of `from` (at their offsets) to each of `to`. Thread 0 fills the pointers.
MK_DEVICE uint64_t direct_share(const Work& w, const OpDesc& op, Range r, Pointers& p) {
  const Lane& lane = *w.lane;
  const uint32_t n = lane.geometry.nranks, me = lane.rank, root = static_cast<uint32_t>(op.root);
  const uint64_t whole = whole_bytes(op);
  const uint64_t* in = w.peer_buffers[0];
  const uint64_t* out = w.peer_buffers[1];
  uint32_t nfrom = 0, nto = 0;
  uint64_t bytes = r.bytes;
  auto read = [&](uint32_t rank, uint64_t offset) { p.from[nfrom++] = reinterpret_cast<const char*>(in[rank] + offset); };
  auto write = [&](uint32_t rank, uint64_t offset) { p.to[nto++] = reinterpret_cast<char*>(out[rank] + offset); };
  const Range part = part_of(r.bytes, n, me);  // of operations whose work is shared among the ranks
  switch (op.kind) {
    case kAllReduce:
      for (uint32_t k = 0; k < n; k++) read(k, r.begin + part.begin);
      for (uint32_t k = 0; k < n; k++) write((me + k) % n, r.begin + part.begin);
      bytes = part.bytes;
      break;
    case kReduce:
      for (uint32_t k = 0; k < n; k++) read(k, r.begin + part.begin);
      write(root, r.begin + part.begin);
      bytes = part.bytes;
      break;
    case kReduceScatter:
      for (uint32_t k = 0; k < n; k++) read(k, me * whole + r.begin);
      write(me, r.begin);
      break;
    case kAllGather:
      read(me, r.begin);
      for (uint32_t k = 0; k < n; k++) write((me + k) % n, me * whole + r.begin);
      break;
    default:  // kBroadcast: each rank spreads a part of the root's buffer
      read(root, r.begin + part.begin);
      for (uint32_t k = 0; k < n; k++) write((me + k) % n, r.begin + part.begin);
      bytes = part.bytes;
  }
  p.nfrom = nfrom;
  p.nto = nto;
  return bytes;
}

enum DirectStage : uint32_t { kTell = 1, kLearn, kWork, kDone };
// Bytes of one step: long enough to keep the memory busy, short enough to look around in between.
constexpr uint64_t kDirectStep = 512 * 1024;

MK_DEVICE Step step_direct(Work& w, Shared& s) {
  Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const uint32_t n = lane.geometry.nranks, me = lane.rank;
  const uint64_t peers = all_peers(lane);
  const Range r = channel_range(op, w.channel);
  const uint32_t stage = w.stage;

  if (stage == kWork) {
    // Pointers stay as thread 0 left them: nothing else uses the block's scratch space while a step of this stage follows another... but in
    // the executor other works come in between, so they are made anew.
    if (thread_id() == 0) s.verdict = 0, w.folded = direct_share(w, op, r, s.pointers);
    sync();
    const uint64_t bytes = w.folded, begin = w.pushed;
    if (begin < bytes) {
      const uint64_t now = bytes - begin < kDirectStep ? bytes - begin : kDirectStep;
      if (thread_id() == 0) {
        for (uint32_t k = 0; k < s.pointers.nfrom; k++) s.pointers.from[k] += begin;
        for (uint32_t k = 0; k < s.pointers.nto; k++) s.pointers.to[k] += begin;
      }
      sync();
      if (reduces(op)) fold(s.pointers, now / op.elem_size, reduction_of(w, op));
      else copy(s.pointers, now);
      sync();
      if (thread_id() == 0) w.pushed = begin + now;
      return Step::kMoved;
    }
  }

  const Masks m = poll_pipes(w, s);
  uint64_t awaited = 0;
  bool moved = false;
  if (stage == kTell) {
    awaited = peers & ~m.sendable[0];
    if (awaited == 0) {
      for (uint32_t p = thread_id(); p < n; p += thread_count()) {
        if (p == me) continue;
        uint64_t* slot = reinterpret_cast<uint64_t*>(next_slot(w, 0, p));
        store_relaxed(slot, op.send);
        store_relaxed(slot + 1, op.recv);
      }
      sync();
      post(w, 0, peers, op.signature);
      if (thread_id() == 0) w.stage = kLearn;
      moved = true;
    }
  } else if (stage == kLearn) {
    awaited = peers & ~matching(w, s, 0, m.ready[0], op.signature);
    if (awaited == 0) {
      for (uint32_t p = thread_id(); p < n; p += thread_count()) {
        const uint64_t* slot = reinterpret_cast<const uint64_t*>(p == me ? nullptr : arrived_slot(w, 0, p));
        w.peer_buffers[0][p] = p == me ? op.send : load_relaxed(slot);
        w.peer_buffers[1][p] = p == me ? op.recv : load_relaxed(slot + 1);
      }
      sync();
      release(w, 0, peers);
      if (thread_id() == 0) w.stage = kWork;
      moved = true;
    }
  } else if (stage == kWork) {  // all done here: tell
    awaited = peers & ~m.sendable[1];
    if (awaited == 0) {
      post(w, 1, peers, op.signature);
      if (thread_id() == 0) w.stage = kDone;
      moved = true;
    }
  } else {
    awaited = peers & ~matching(w, s, 1, m.ready[1], op.signature);
    if (awaited == 0) {
      release(w, 1, peers);
      return Step::kFinished;
    }
  }
  if (thread_id() == 0) w.awaited = awaited;
  return moved ? Step::kMoved : Step::kWaiting;
}

}  // namespace mk
