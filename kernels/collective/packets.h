// Small all-reduce, reduce-scatter, all-gather and all-to-all in one exchange of packets: every rank sends each rank what it needs (itself
// too, so that a step may be repeated although the output overwrites the input), then folds or places what all ranks sent, in rank order.
#pragma once
#include "collective/shape.h"
#include "protocol/packet.h"

namespace mk {

constexpr uint32_t kTries = 16;  // polls of a line before the step returns and others have their turn

// What this rank sends to `peer`.
MK_DEVICE Piece packet_for(const OpDesc& op, uint32_t rank, uint32_t peer, Range r) {
  if (op.kind == kAllReduce) return {input(op) + r.begin, r.bytes};
  if (op.kind == kReduceScatter) return {input(op) + peer * whole_bytes(op) + r.begin, r.bytes};
  return piece_for(op, rank, peer, r);
}

MK_DEVICE void send_packets(const Work& w, const OpDesc& op, Range r, uint64_t flag) {
  const Lane& lane = *w.lane;
  const uint32_t n = lane.geometry.nranks, me = lane.rank, parity = flag & 1;
  for (uint32_t p = thread_id(); p < n; p += thread_count()) {
    Line* header = packets_of(lane, p, parity, w.channel, me);
    store_line(header, op.signature, flag);
    if (op.redop == kPreMulSum) store_line(header + 1, w.scalar, flag);
  }
  const bool same = op.kind == kAllReduce || op.kind == kAllGather;
  const uint64_t lines = lines_of(r.bytes);
#pragma unroll 1
  for (uint64_t i = thread_id(); i < lines; i += thread_count()) {
    uint64_t v = same ? load_eight(packet_for(op, me, me, r).from, i * 8, r.bytes) : 0;
#pragma unroll 1
    for (uint32_t step = 0; step < n; step++) {
      const uint32_t p = me + step < n ? me + step : me + step - n;
      if (!same) v = load_eight(packet_for(op, me, p, r).from, i * 8, r.bytes);
      store_line(packets_of(lane, p, parity, w.channel, me) + kHeaderLines + i, v, flag);
    }
  }
}

// Rank p's thread: the header of its message. A rank whose signature differs is in another operation; failure.h finds out in which.
MK_DEVICE bool receive_header(Shared& s, const OpDesc& op, const Line* header, uint32_t p, uint64_t flag) {
  uint64_t signature;
  if (!receive_line(header, flag, kTries, signature) || signature != op.signature) return false;
  return op.redop != kPreMulSum || receive_line(header + 1, flag, kTries, s.pointers.scalars[p]);
}

// Folds the lines of all ranks, thread by thread. False when one has not come yet: the step is repeated, which does no harm, since the input has
// been sent.
template <class T, uint8_t kOp>
MK_FUNCTION bool fold_lines(const Shared& s, const Line* first, uint64_t stride, uint64_t flag, uint32_t n, char* to, uint64_t bytes) {
  constexpr uint32_t kPer = 8 / sizeof(typename T::Store);
  union Eight { uint64_t whole; typename T::Store part[kPer]; MK_DEVICE Eight() {} };
  constexpr uint32_t kBatch = 4;  // lines of several ranks in flight
  const uint64_t count = lines_of(bytes);
#pragma unroll 1
  for (uint64_t i = thread_id(); i < count; i += thread_count()) {
    const Line* from = first + i;
    typename T::Acc acc[kPer] = {};
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += kBatch) {
      Line lines[kBatch];
#pragma unroll
      for (uint32_t b = 0; b < kBatch; b++)
        if (base + b < n) lines[b] = load_line(from + (base + b) * stride);
#pragma unroll
      for (uint32_t b = 0; b < kBatch; b++) {
        if (base + b >= n) continue;
        Eight v;
        v.whole = lines[b].data;
        if (lines[b].flag != flag && !receive_line(from + (base + b) * stride, flag, kTries, v.whole)) return false;
        const typename T::Acc scalar = scalar_of<T, kOp>(s.pointers.scalars[base + b]);
        if (b == 0 && base == 0) begin_fold<T, kOp>(acc, v.part, scalar);
        else combine<T, kOp>(acc, v.part, scalar);
      }
    }
    Eight v;
    end_fold<T, kOp>(v.part, acc, n);
    store_eight(to, i * 8, bytes, v.whole);
  }
  return true;
}

using LineFoldFunction = bool (*)(const Shared&, const Line*, uint64_t, uint64_t, uint32_t, char*, uint64_t);
MK_CONSTANT LineFoldFunction kLineFolds[kTypes][kRedops] = MK_TYPES_AND_OPERATORS(fold_lines);

MK_DEVICE bool receive_packets(const Work& w, const Shared& s, const OpDesc& op, Range r, uint64_t flag) {
  const Lane& lane = *w.lane;
  const uint32_t n = lane.geometry.nranks, me = lane.rank;
  const Line* first = packets_of(lane, me, flag & 1, w.channel, 0) + kHeaderLines;
  const uint64_t stride = lane.geometry.packet_lines;
  bool complete = true;
  if (reduces(op)) {
    complete = kLineFolds[op.dtype][op.redop](s, first, stride, flag, n, output(op) + r.begin, r.bytes);
  } else {
    const uint64_t lines = lines_of(r.bytes);
#pragma unroll 1
    for (uint64_t i = thread_id(); i < lines * n && complete; i += thread_count()) {
      const uint32_t p = static_cast<uint32_t>(i / lines), line = static_cast<uint32_t>(i % lines);
      uint64_t v = 0;
      complete = receive_line(first + p * stride + line, flag, kTries, v);
      if (complete) store_eight(place_from(op, me, p, r).to, line * 8ull, r.bytes, v);
    }
  }
  return complete;
}

// Which ranks' headers are missing or different, for the report of a long wait. By one thread.
MK_SLOW uint64_t missing_packets(const Work& w, const OpDesc& op, uint64_t flag) {
  const Lane& lane = *w.lane;
  uint64_t missing = 0;
  for (uint32_t p = 0; p < lane.geometry.nranks; p++) {
    const Line line = load_line(packets_of(lane, lane.rank, flag & 1, w.channel, p));
    if (line.flag != flag || line.data != op.signature) missing |= 1ull << p;
  }
  return missing;
}

// One step. All threads; the result is the same for all.
MK_DEVICE Step step_packets(Work& w, Shared& s) {
  const Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  const Range r = channel_range(op, w.channel);
  const uint64_t flag = lane.channel[w.channel].packets + 1;
  if (w.pushed == 0) send_packets(w, op, r, flag);
  bool complete = true;
  for (uint32_t p = thread_id(); p < lane.geometry.nranks; p += thread_count())
    complete &= receive_header(s, op, packets_of(lane, lane.rank, flag & 1, w.channel, p), p, flag);
  if (op.redop == kPreMulSum) complete = sync_and(complete);  // the scalars are there for all threads
  complete = complete && receive_packets(w, s, op, r, flag);
  const bool done = sync_and(complete);
  if (thread_id() == 0) {
    w.pushed = 1;
    if (done) w.lane->channel[w.channel].packets = flag;
    else if ((w.idle_steps & 31) == 31) w.awaited = missing_packets(w, op, flag);
  }
  return done ? Step::kFinished : Step::kWaiting;
}

}  // namespace mk
