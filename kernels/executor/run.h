// One launch on one channel from its first step to its last, for the inline kernel and the executor alike.
#pragma once
#include "collective/direct.h"
#include "collective/exchange.h"
#include "collective/move.h"
#include "collective/packets.h"
#include "collective/reduce.h"
#include "executor/failure.h"

namespace mk {

// Prepares the block's scratch space. All threads; ends with a barrier.
MK_DEVICE void init_shared(Shared& s) {
  if (thread_id() == 0) {
    for (uint32_t b = 0; b < 3; b++)
      for (uint32_t i = 0; i < 4; i++) s.masks[b][i] = 0;
    s.turn = 0;
  }
  sync();
}

// Thread 0: the launch begins on this channel.
MK_DEVICE void begin_work(Work& w, Lane* lane, const Command* command, uint32_t channel) {
  w.lane = lane;
  w.command = command;
  w.ops = command->more_ops != 0 ? reinterpret_cast<const OpDesc*>(command->more_ops) : command->ops;
  w.channel = channel;
  w.op = 0;
  w.stage = 0;
  w.seq = lane->op_seq;
  w.give_up = lane->failed;
  w.reported = 0;
  w.wait_started = 0;
  w.idle_steps = 0;
  w.suspect = 0;
  w.active = 1;
}

MK_DEVICE uint64_t fetch_scalar(const OpDesc& op) {
  if ((op.flags & kScalarOnDevice) == 0) return op.scalar;
  uint64_t bits = 0;
  const uint8_t* from = reinterpret_cast<const uint8_t*>(op.scalar);
  for (uint32_t i = 0; i < op.elem_size; i++) bits |= static_cast<uint64_t>(load_bulk_element(from + i)) << (8 * i);
  return bits;
}

// The next operation begins. All threads; ends with a barrier.
MK_DEVICE void begin_operation(Work& w) {
  const OpDesc& op = w.ops[w.op];
  for (uint32_t i = thread_id(); i < kMaxOps; i += thread_count()) w.progress[i] = 0;
  if (thread_id() == 0) {
    w.stage = 1;
    w.pushed = 0;
    w.folded = 0;
    w.local = 0;
    w.awaited = 0;
    w.announced = 0;
    if (!is_point_to_point(op)) w.seq++;
    w.scalar = op.redop == kPreMulSum ? fetch_scalar(op) : 0;
  }
  sync();
  // Packet operations wait on all ranks anyway and announce themselves when that takes long.
  if (op.protocol != kPacket && !is_point_to_point(op) && w.channel == 0)
    for (uint32_t p = thread_id(); p < w.lane->geometry.nranks; p += thread_count())
      if (p != w.lane->rank) announce_to(w, p);
}

MK_DEVICE Step step_operation(Work& w, Shared& s) {
  const OpDesc& op = w.ops[w.op];
  if (is_point_to_point(op)) return step_exchange(w, s);
  if (op.channels <= w.channel) return Step::kFinished;
  if (op.protocol == kPacket) return step_packets(w, s);
  if (op.protocol == kDirect) return step_direct(w, s);
  return reduces(op) ? step_reduce(w, s) : step_move(w, s);
}

// One step. kFinished: the launch is done on this channel (or was given up). All threads; begins and ends with the block in step.
MK_DEVICE Step advance(Work& w, Shared& s) {
  if (w.give_up != kNoFailure) return Step::kFinished;
  if (w.stage == 0) begin_operation(w);
  const Step step = step_operation(w, s);
  sync();
  if (thread_id() == 0) {
    if (step == Step::kWaiting) {
      keep_waiting(w);
    } else {
      if (w.idle_steps != 0) wait_over(w);
      if (step == Step::kFinished) {
        w.op = is_point_to_point(w.ops[w.op]) ? exchange_end(w, w.op) : w.op + 1;
        w.stage = 0;
      }
    }
  }
  sync();
  if (step != Step::kFinished) return step;
  return w.op >= w.command->nops ? Step::kFinished : Step::kMoved;
}

// A communicator of one rank: the operation is a copy, or a reduction of one input, done here and now.
MK_DEVICE void run_alone(const OpDesc& op, Work& w, Shared& s) {
  const Range r = channel_range(op, w.channel);
  if (op.channels <= w.channel) return;
  if (thread_id() == 0) {
    s.pointers.nfrom = s.pointers.nto = 1;
    s.pointers.from[0] = input(op) + r.begin;
    s.pointers.to[0] = output(op) + r.begin;
    w.scalar = op.redop == kPreMulSum ? fetch_scalar(op) : 0;
  }
  sync();
  if (reduces(op)) fold(s.pointers, r.bytes / op.elem_size, reduction_of(w, op));
  else if (op.send != op.recv) copy(s.pointers, r.bytes);
  sync();
}

// Thread 0, when the launch is done on a channel. True for the last channel of the launch: its results, and those of the others, are visible.
MK_DEVICE bool arrive(Work& w) {
  Lane& lane = *w.lane;
  const Command& command = *w.command;
  fence(false);
  if (add_device(&lane.arrived, 1) + 1 != command.channels) return false;
  fence(false);
  uint64_t collectives = 0;
  for (uint32_t i = 0; i < command.nops; i++) collectives += !is_point_to_point(w.ops[i]);
  lane.arrived = 0;
  store_relaxed(&lane.op_seq, lane.op_seq + collectives);
  fence(false);
  if (command.eager) store_relaxed(&lane.eager_done, lane.eager_done + 1);
  return true;
}

// The inline kernel: block b is channel b.
MK_DEVICE void run_inline(Lane* lane, const Command& command, Work& w, Shared& s) {
  wait_for_stream();
  init_shared(s);
  if (thread_id() == 0) begin_work(w, lane, &command, block_id());
  sync();
  if (lane->geometry.nranks == 1) {
    for (uint32_t i = 0; i < command.nops; i++) run_alone(w.ops[i], w, s);
  } else {
    while (true) {
      const Step step = advance(w, s);
      if (step == Step::kFinished) break;
      if (step == Step::kWaiting && w.idle_steps > 64) pause();
    }
  }
  sync();
  if (thread_id() == 0) arrive(w);
}

}  // namespace mk
