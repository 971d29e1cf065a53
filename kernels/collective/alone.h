// A communicator of one rank: each operation is a copy, or a reduction of one input.
#pragma once
#include "collective/shape.h"

namespace mk {

// Thread 0.
MK_DEVICE void plan_alone(Work& w, Shared& s) {
  constexpr uint64_t kStep = 1 << 20;
  const OpDesc& op = w.ops[w.op];
  const Range r = channel_range(op, w.channel);
  if (w.pushed >= r.bytes || op.channels <= w.channel || (!reduces(op) && op.send == op.recv)) return;
  s.unfinished = 1;
  s.pointers.nfrom = s.pointers.nto = 1;
  s.pointers.from[0] = input(op) + r.begin + w.pushed;
  s.pointers.to[0] = output(op) + r.begin + w.pushed;
  s.pointers.scalars[0] = w.scalar;
  s.wide = reduces(op) ? Wide::kFold : Wide::kCopy;
  s.wide_bytes = r.bytes - w.pushed < kStep ? r.bytes - w.pushed : kStep;
  w.pushed += s.wide_bytes;
}

}  // namespace mk
