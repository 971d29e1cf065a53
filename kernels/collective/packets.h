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

// Folds one line of all ranks. False when a line has not come yet.
template <class T> MK_DEVICE bool fold_line(const Lane& lane, const Shared& s, const Line* first, uint64_t flag, const Reduction& r, uint64_t& out) {
  constexpr uint32_t kPer = 8 / sizeof(typename T::Store);
  union Eight { uint64_t whole; typename T::Store part[kPer]; MK_DEVICE Eight() {} };
  const uint64_t stride = lane.geometry.packet_lines;
  const uint32_t n = lane.geometry.nranks;
  typename T::Acc acc[kPer] = {};
  constexpr uint32_t kBatch = 4;  // lines of several ranks in flight
#pragma unroll 1
  for (uint32_t base = 0; base < n; base += kBatch) {
    Line lines[kBatch];
#pragma unroll
    for (uint32_t b = 0; b < kBatch; b++)
      if (base + b < n) lines[b] = load_line(first + (base + b) * stride);
#pragma unroll
    for (uint32_t b = 0; b < kBatch; b++) {
      if (base + b >= n) break;
      Eight v;
      v.whole = lines[b].data;
      if (lines[b].flag != flag && !receive_line(first + (base + b) * stride, flag, kTries, v.whole)) return false;
      const typename T::Acc scalar = scalar_of<T>(s.pointers.scalars[base + b]);
      if (base + b == 0) begin_fold<T>(acc, v.part, r.redop, scalar);
      else combine<T>(acc, v.part, r.redop, scalar);
    }
  }
  Eight v;
  end_fold<T>(v.part, acc, r);
  out = v.whole;
  return true;
}

MK_DEVICE bool receive_packets(const Work& w, const Shared& s, const OpDesc& op, Range r, uint64_t flag) {
  const Lane& lane = *w.lane;
  const uint32_t n = lane.geometry.nranks, me = lane.rank;
  const Line* first = packets_of(lane, me, flag & 1, w.channel, 0) + kHeaderLines;
  const uint64_t stride = lane.geometry.packet_lines, lines = lines_of(r.bytes);
  bool complete = true;
  if (reduces(op)) {
    const Reduction reduction = reduction_of(w, op);
    with_type(op.dtype, [&]<class T>() {
#pragma unroll 1
      for (uint64_t i = thread_id(); i < lines && complete; i += thread_count()) {
        uint64_t v = 0;
        complete = fold_line<T>(*opaque(&lane), s, opaque(first) + i, flag, reduction, v);
        if (complete) store_eight(opaque(output(op)) + r.begin, i * 8, r.bytes, v);
      }
    });
  } else {
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
