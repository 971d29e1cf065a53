// One launch on one channel from its first step to its last, for the inline kernel and the executor alike.
#pragma once
#include "collective/alone.h"
#include "collective/direct.h"
#include "collective/exchange.h"
#include "collective/move.h"
#include "collective/packets.h"
#include "collective/rail_move.h"
#include "collective/rail_reduce.h"
#include "collective/reduce.h"
#include "executor/failure.h"

namespace mk {

constexpr uint32_t kEarlyChannels = 2;  // widest launch that is set up beside the one before it

MK_DEVICE void clear_jobs(Shared& s) {
  s.ncopies = 0;
  s.wide = Wide::kNone;
  s.awaited = 0;
  s.unfinished = 0;
  s.disagrees = 0;
  for (uint32_t phase = 0; phase < kPhases; phase++) s.sendable[phase] = s.ready[phase] = s.post[phase] = s.release[phase] = 0;
}

// Prepares the block's scratch space. All threads; ends with a barrier.
MK_DEVICE void init_shared(Shared& s) {
  if (thread_id() == 0) clear_jobs(s);
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
}

MK_DEVICE uint64_t fetch_scalar(const OpDesc& op) {
  if ((op.flags & kScalarOnDevice) == 0) return op.scalar;
  uint64_t bits = 0;
  const uint8_t* from = reinterpret_cast<const uint8_t*>(op.scalar);
#pragma unroll 1
  for (uint32_t i = 0; i < op.elem_size; i++) bits |= static_cast<uint64_t>(load_bulk_element(from + i)) << (8 * i);
  return bits;
}

// The next operation begins. All threads; starts and ends with a barrier.
MK_DEVICE void begin_operation(Work& w) {
  sync();  // all threads have seen that there is one to begin, before thread 0 says that it has begun
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
  // What waits for all ranks announces itself when that takes long: so do packets, and so it is done where the news would cross the network.
  const bool waits_for_all = op.kind == kAllReduce || op.kind == kReduceScatter || op.kind == kAllGather || op.kind == kAllToAll;
  if (op.protocol != kPacket && !is_point_to_point(op) && w.channel == 0)
    for (uint32_t p = thread_id(); p < w.lane->geometry.nranks; p += thread_count())
      if (p != w.lane->rank && !(waits_for_all && is_remote(*w.lane, p))) announce_to(w, p);
}

// Thread 0, when a step is decided: keeps the wait's book, and goes on to the next operation when this one is finished.
MK_DEVICE void close_step(Work& w, Step step) {
  if (step == Step::kWaiting) return keep_waiting(w);
  if (w.idle_steps != 0) wait_over(w);
  if (step != Step::kFinished) return;
  const bool exchange = is_point_to_point(w.ops[w.op]) && w.lane->geometry.nranks > 1;
  w.op = exchange ? exchange_end(w, w.op) : w.op + 1;
  w.stage = 0;
}

// Rank p's thread, first part of a step.
MK_DEVICE void plan_with(Work& w, Shared& s, uint32_t p) {
  const OpDesc& op = w.ops[w.op];
  if (w.lane->geometry.nranks == 1) return;
  if (is_point_to_point(op)) return plan_exchange_with(w, s, p);
  if (op.channels <= w.channel) return;
  if (op.protocol == kDirect) return plan_direct_with(w, s, p);
  if (p == w.lane->rank) return;
  if (uses_rails(op)) {
    if (reduces(op)) plan_rail_reduce_with(w, s, p);
    else plan_rail_move_with(w, s, p);
  } else if (reduces(op)) {
    plan_reduce_with(w, s, p);
  } else {
    plan_move_with(w, s, p);
  }
  // A rank that only sends would not notice by what it gets. What came through the network is in the host's memory: not looked at each time.
  const bool look = w.channel == 0 && (!is_remote(*w.lane, p) || w.idle_steps % 16 == 0);
  if (look && is_elsewhere(w, p, op.signature)) s.disagrees = p + 1;
}

// Thread 0, second part.
MK_DEVICE void plan_all(Work& w, Shared& s) {
  const OpDesc& op = w.ops[w.op];
  s.step = Step::kWaiting;
  s.signature = op.signature;
  if (w.lane->geometry.nranks == 1) {
    plan_alone(w, s);
  } else if (!is_point_to_point(op) && op.channels > w.channel) {
    if (op.protocol == kDirect) plan_direct(w, s);
    else if (uses_rails(op) && reduces(op)) plan_rail_reduce(w, s);
    else if (uses_rails(op)) plan_rail_move(w, s);
    else if (reduces(op)) plan_reduce(w, s);
    else plan_move(w, s);
  }
  w.awaited = s.awaited;
  if (s.disagrees != 0) {
    fail_by_announcement(w, s.disagrees - 1);
    clear_jobs(s);
    s.step = Step::kMoved;  // the next step finds that this one has given up
    return;
  }
  if (s.unfinished == 0) s.step = Step::kFinished;
  else if (s.ncopies != 0 || s.wide != Wide::kNone || (s.post[0] | s.post[1] | s.release[0] | s.release[1]) != 0) s.step = Step::kMoved;
}

// Everything but packets. All threads; the result is the same for all.
MK_DEVICE Step step_jobs(Work& w, Shared& s) {
  const uint32_t n = w.lane->geometry.nranks, me = thread_id();
  const uint32_t first_op = w.op;
  const bool exchange = is_point_to_point(w.ops[w.op]);
  for (uint32_t p = me; p < n; p += thread_count()) {
    s.turn[0][p] = s.turn[1][p] = kNoTransfer;
    plan_with(w, s, p);
  }
  sync();
  if (me == 0) {
    plan_all(w, s);
    close_step(w, s.step);
    if (s.step == Step::kWaiting) clear_jobs(s);
  }
  sync();
  const Step step = s.step;
  if (step == Step::kWaiting) return step;

  for (uint32_t j = 0; j < s.ncopies; j++) copy_to_all(OnePair{{s.copies[j].from}, {s.copies[j].to}}, s.copies[j].bytes);
  if (s.wide == Wide::kCopy) copy_to_all(s.pointers, s.wide_bytes);
  if (s.wide == Wide::kFold) {
    const OpDesc& op = w.ops[first_op];
    fold(s.pointers, s.wide_bytes / op.elem_size, reduction_of(w, op));
  }
  if (s.wide == Wide::kCarry) fold_carrying(s.pointers, s.wide_elements, reduction_of(w, w.ops[first_op]), s.carry);
  sync();
  for (uint32_t p = me; p < n; p += thread_count()) {
    const bool sent = s.post[0] >> p & 1, took = (s.release[0] | s.release[1]) >> p & 1;
    if (exchange) {
      if (sent) w.progress[s.turn[0][p] - first_op]++;
      if (took) w.progress[s.turn[1][p] - first_op]++;
    } else if (w.ops[first_op].protocol == kPipe) {
      w.progress[p] += sent;
      // Of a reduction, what is taken for the fold is counted elsewhere.
      w.progress[kMaxRanks + p] += reduces(w.ops[first_op]) ? s.release[1] >> p & 1 : s.release[0] >> p & 1;
      w.progress[2 * kMaxRanks + p] += s.release[1] >> p & 1;
    }
    for (uint32_t phase = 0; phase < kPhases; phase++) {
      if (s.post[phase] >> p & 1) {
        const bool wide = s.wide != Wide::kNone && s.wide_phase == phase;
        const uint32_t bytes = wide ? static_cast<uint32_t>(s.wide_bytes) : s.bytes[phase][p];
        post(w, phase, p, exchange ? w.ops[s.turn[0][p]].signature : s.signature, bytes);
      }
      if (s.release[phase] >> p & 1) release(w, phase, p);
    }
  }
  sync();
  if (me == 0) clear_jobs(s);
  sync();
  return step;
}

// One step. kFinished: the launch is done on this channel, or was given up. All threads, in step.
MK_DEVICE Step advance(Work& w, Shared& s) {
  if (w.give_up != kNoFailure) return Step::kFinished;
  if (w.stage == 0) begin_operation(w);
  const OpDesc& op = w.ops[w.op];
  Step step;
  if (op.protocol == kPacket && op.channels > w.channel && w.lane->geometry.nranks > 1) {
    step = step_packets(w, s);
    if (thread_id() == 0) close_step(w, step);
    sync();
  } else {
    step = step_jobs(w, s);
  }
  if (step != Step::kFinished) return step;
  return w.op >= w.command->nops ? Step::kFinished : Step::kMoved;
}

// Thread 0, when the launch is done on a channel. True for the last channel of the launch: its results, and those of the others, are visible on
// this GPU, which is where the counters' readers are. That one says so in its way, then calls `count_launch`.
MK_DEVICE bool arrive(Work& w) {
  Lane& lane = *w.lane;
  if (w.command->channels > 1) {
    fence(true);
    if (add_device(&lane.arrived, 1) + 1 != w.command->channels) return false;
    fence(true);
    lane.arrived = 0;
  }
  uint64_t collectives = 0;
  for (uint32_t i = 0; i < w.command->nops; i++) collectives += !is_point_to_point(w.ops[i]);
  if (collectives != 0) store_relaxed(&lane.op_seq, lane.op_seq + collectives);
  return true;
}

// Lets launches on other streams go on. The last thing that is done for a launch: from here on the next one may run.
MK_DEVICE void count_launch(Lane& lane, bool eager) {
  if (!eager) return;
  fence(true);
  const uint64_t done = add_device(&lane.eager_done, 1) + 1;
  if (lane.rings != 0) store_relaxed(&reinterpret_cast<HostPage*>(lane.host_page)->launches_done, done);
}

// The inline kernel: block b is channel b.
MK_DEVICE void run_inline(Lane* lane, const Command& command, Work& w, Shared& s) {
  wait_for_stream();
  // The next small operation of a stream gets ready while this one runs. Large ones would take SMs only to wait.
  if (command.channels <= kEarlyChannels) let_next_start();
  if (thread_id() == 0) begin_work(w, lane, &command, block_id());
  init_shared(s);
  while (command.nops != 0) {  // a launch of nothing only makes the driver ready for the kernel
    const Step step = advance(w, s);
    if (step == Step::kFinished) break;
    if (step == Step::kWaiting && w.idle_steps > 64) pause();
  }
  sync();
  if (thread_id() == 0 && arrive(w)) count_launch(*lane, command.eager != 0);
}

}  // namespace mk
