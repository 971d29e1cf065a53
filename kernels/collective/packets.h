// Small all-reduce, reduce-scatter, all-gather and all-to-all in one exchange of packets: every rank sends each rank what it needs (itself
// too, so that a step may be repeated although the output overwrites the input), then folds or places what all ranks sent, in rank order.
#pragma once
#include "collective/shape.h"
#include "protocol/packet.h"

namespace mk {

constexpr uint32_t kTries = 16;  // polls of a line before the step returns and others have their turn

// What this rank sends to `peer`, and where in the output the result or `peer`'s piece goes.
MK_DEVICE Piece packet_for(const OpDesc& op, uint32_t rank, uint32_t peer, Range r) {
  if (op.kind == kAllReduce) return {input(op) + r.begin, r.bytes};
  if (op.kind == kReduceScatter) return {input(op) + peer * whole_bytes(op) + r.begin, r.bytes};
  return piece_for(op, rank, peer, r);
}

// Folds one line of all ranks. False when a line has not come yet.
template <class T> MK_DEVICE bool fold_line(const Lane& lane, const Line* first, uint64_t flag, const Reduction& r, typename T::Acc scalar, uint64_t& out) {
  constexpr uint32_t kPer = 8 / sizeof(typename T::Store);
  union Eight { uint64_t whole; typename T::Store part[kPer]; MK_DEVICE Eight() {} };
  const uint64_t stride = lane.geometry.packet_lines;
  typename T::Acc acc[kPer] = {};
  constexpr uint32_t kBatch = 4;  // lines of several ranks in flight
  for (uint32_t base = 0; base < lane.geometry.nranks; base += kBatch) {
    Line lines[kBatch];
#pragma unroll
    for (uint32_t b = 0; b < kBatch; b++)
      if (base + b < lane.geometry.nranks) lines[b] = load_line(first + (base + b) * stride);
#pragma unroll
    for (uint32_t b = 0; b < kBatch; b++) {
      if (base + b >= lane.geometry.nranks) break;
      Eight v;
      v.whole = lines[b].data;
      if (lines[b].flag != flag && !receive_line(first + (base + b) * stride, flag, kTries, v.whole)) return false;
      if (base + b == 0) begin_fold<T>(acc, v.part, r.redop, scalar);
      else combine<T>(acc, v.part, r.redop, scalar);
    }
  }
  Eight v;
  end_fold<T>(v.part, acc, r);
  out = v.whole;
  return true;
}

template <class T> MK_SLOW bool fold_lines(const Lane& lane, const Line* first, uint64_t flag, const Reduction& r, char* to, uint64_t bytes) {
  const typename T::Acc scalar = scalar_of<T>(r);
  const uint64_t lines = lines_of(bytes);
  for (uint64_t i = thread_id(); i < lines; i += thread_count()) {
    uint64_t v;
    if (!fold_line<T>(lane, first + i, flag, r, scalar, v)) return false;
    store_eight(to, i * 8, bytes, v);
  }
  return true;
}

MK_DEVICE void send_packets(const Work& w, const OpDesc& op, Range r, uint64_t flag) {
  const Lane& lane = *w.lane;
  const uint32_t n = lane.geometry.nranks, me = lane.rank, parity = flag & 1;
  for (uint32_t p = thread_id(); p < n; p += thread_count()) store_line(packets_of(lane, p, parity, w.channel, me), op.signature, flag);
  const bool same = op.kind == kAllReduce || op.kind == kAllGather;
  const uint64_t lines = lines_of(r.bytes);
  for (uint64_t i = thread_id(); i < lines; i += thread_count()) {
    uint64_t v = same ? load_eight(packet_for(op, me, me, r).from, i * 8, r.bytes) : 0;
    for (uint32_t step = 0; step < n; step++) {
      const uint32_t p = (me + step) % n;
      if (!same) v = load_eight(packet_for(op, me, p, r).from, i * 8, r.bytes);
      store_line(packets_of(lane, p, parity, w.channel, me) + 1 + i, v, flag);
    }
  }
}

MK_DEVICE bool receive_packets(Work& w, const OpDesc& op, Range r, uint64_t flag) {
  const Lane& lane = *w.lane;
  const uint32_t n = lane.geometry.nranks, me = lane.rank;
  const Line* first = packets_of(lane, me, flag & 1, w.channel, 0);
  const uint64_t stride = lane.geometry.packet_lines;
  // Headers: a rank whose signature differs is in another operation; failure.h finds out in which.
  for (uint32_t p = thread_id(); p < n; p += thread_count()) {
    uint64_t signature;
    if (!receive_line(first + p * stride, flag, kTries, signature) || signature != op.signature) return false;
  }
  if (reduces(op)) {
    bool complete = true;
    const Reduction reduction = reduction_of(w, op);
    with_type(op.dtype, [&]<class T>() { complete = fold_lines<T>(lane, first + 1, flag, reduction, output(op) + r.begin, r.bytes); });
    return complete;
  }
  const uint64_t lines = lines_of(r.bytes);
  for (uint64_t i = thread_id(); i < lines * n; i += thread_count()) {
    const uint32_t p = static_cast<uint32_t>(i / lines);
    uint64_t v;
    if (!receive_line(first + p * stride + 1 + i % lines, flag, kTries, v)) return false;
    store_eight(place_from(op, me, p, r).to, i % lines * 8, r.bytes, v);
  }
  return true;
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

MK_DEVICE Step step_packets(Work& w, Shared&) {
  Channel& ch = w.lane->channel[w.channel];
  const OpDesc& op = w.ops[w.op];
  const Range r = channel_range(op, w.channel);
  const uint64_t flag = ch.packets + 1;
  if (w.pushed == 0) {
    send_packets(w, op, r, flag);
    sync();
    if (thread_id() == 0) w.pushed = 1;
  }
  const bool complete = sync_and(receive_packets(w, op, r, flag));
  if (complete) {
    if (thread_id() == 0) ch.packets = flag;
    return Step::kFinished;
  }
  if (thread_id() == 0 && (w.idle_steps & 31) == 31) w.awaited = missing_packets(w, op, flag);
  return Step::kWaiting;
}

}  // namespace mk
