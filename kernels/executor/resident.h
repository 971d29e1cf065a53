// The executor: a resident grid that serves every communicator of a process on one GPU, and the kernels that stand on user streams for it.
//
// A gate copies its operations into its lane's command, then posts the command's number and channels in `Executor::posted`. Each block of the
// executor polls those words, takes the channels of a command that are its own, and advances all its works in turn. The last channel to
// finish writes `Executor::done`, which the gate waits for. One command per lane at a time: order inside a lane is the gates' order. A block
// reads a command only if it has a part in it, so the command cannot be over, and overwritten, while it is read.
//
// Leaving: src/executor/handshake.rs has the protocol, its argument and its model.
#pragma once
#include "executor/run.h"

namespace mk {

constexpr uint32_t kMaxWorks = 16;         // channels one block advances at a time
constexpr uint64_t kLeaveAfterNs = 2'000;  // idle time after which a generation that was asked to leave does

// A command that this block has a part in and has not taken yet.
struct Fresh {
  uint64_t number;
  uint32_t lane;
  uint32_t channel;
};

struct ExecutorBlock {
  Shared shared;
  uint64_t seen[kMaxLanes];  // per lane: number of the last command this block took or had no part in
  Fresh fresh[kMaxLanes];    // in any order
  uint32_t fresh_count;
  uint32_t leave;
  uint32_t active;           // bit k: works[k] is under way
  Work works[kMaxWorks];
};

// Spreads the channels of the lanes over the blocks, so that small operations of different lanes meet different blocks.
MK_DEVICE bool has_part(uint32_t lane, uint32_t channels, uint32_t block, uint32_t blocks, uint32_t& channel) {
  channel = (block + blocks - lane % blocks) % blocks;
  return channel < channels;
}

MK_DEVICE void run_gate(Lane* lane, const Command& command) {
  wait_for_stream();
  let_next_start();
  Executor* executor = reinterpret_cast<Executor*>(lane->executor);
  const uint64_t number = (load_relaxed(&executor->posted[lane->index]) >> 8) + 1;
  const uint64_t* from = reinterpret_cast<const uint64_t*>(&command);
  uint64_t* to = reinterpret_cast<uint64_t*>(&lane->command);
  const uint32_t words = (offsetof(Command, ops) + command.nops * sizeof(OpDesc)) / 8;
  for (uint32_t i = thread_id(); i < words; i += thread_count()) to[i] = from[i];
  sync();
  if (thread_id() == 0) {
    fence(true);
    store_relaxed(&executor->posted[lane->index], number << 8 | command.channels);
    // The executor ends every operation by its own deadline or by the abort word, so this wait ends too.
    uint32_t polls = 0;
    while (load_acquire(&executor->done[lane->index]) < number)
      if (++polls > 4096) pause();
    fence(true);
  }
}

MK_DEVICE void run_order(Lane* lane, uint64_t launches) {
  if (thread_id() != 0) return;
  const HostPage* page = reinterpret_cast<const HostPage*>(lane->host_page);
  uint32_t polls = 0;
  while (load_acquire(&lane->eager_done) < launches) {
    if (++polls > 1024) pause();
    // After a failure launches end at once, so the count is reached; an abort need not wait even for that.
    if (polls % 65536 == 0 && load_relaxed(&page->abort) != 0) break;
  }
  fence(true);
}

// How block 0 has spent its time, for the residency policy, in ns.
struct Times {
  uint64_t serving, waiting, idle;
  uint64_t until;     // the present end of the account
  uint64_t reported;  // commands finished at the last report
};
MK_DEVICE void write_times(Generation* words, Times& times, uint64_t finished) {
  times.reported = finished;
  store_relaxed(&words->serving_ns, times.serving);
  store_relaxed(&words->waiting_ns, times.waiting);
  store_relaxed(&words->idle_ns, times.idle);
  store_relaxed(&words->served, finished);
}

// Block 0, thread 0: nothing to do for the linger time. True: this generation is over for the host.
MK_DEVICE bool try_leave(Executor* executor, Generation* words, uint32_t number, Times& times) {
  store_relaxed(&words->closing, number);
  fence(false);
  const uint64_t finished = load_acquire(&executor->finished);
  if (load_relaxed(&words->posted) != finished) {
    store_relaxed(&words->closing, 0);
    fence(false);
    return false;
  }
  store_relaxed(&executor->leaving, 1);
  write_times(words, times, finished);
  fence(false);
  store_relaxed(&words->closed, number);
  return true;
}

MK_DEVICE void run_executor(Executor* executor, Generation* generation, uint64_t linger_ns, ExecutorBlock& b) {
  const uint32_t me = block_id(), blocks = block_count();
  init_shared(b.shared);
  for (uint32_t l = thread_id(); l < kMaxLanes; l += thread_count()) b.seen[l] = load_acquire(&executor->done[l]);
  if (thread_id() == 0) b.leave = b.active = b.fresh_count = 0;
  sync();

  const uint32_t number = load_relaxed(&generation->number);
  uint64_t idle_since = now_ns();
  Times times = {0, 0, 0, idle_since, 0};
  while (true) {
    // New commands, each lane's by a thread of its own.
    const uint32_t lanes = load_relaxed(&executor->lane_count);
    bool any = false, pending = false;
    for (uint32_t l = thread_id(); l < lanes && l < kMaxLanes; l += thread_count()) {
      const uint64_t posting = load_relaxed(&executor->posted[l]), command = posting >> 8;
      if (me == 0) pending |= command != load_relaxed(&executor->done[l]);
      uint32_t channel;
      if (command == b.seen[l]) continue;
      if (has_part(l, posting & 0xff, me, blocks, channel)) {
        b.fresh[add_shared(&b.fresh_count, 1)] = {command, l, channel};
        any = true;
      } else {
        b.seen[l] = command;
      }
    }
    if (any) fence(true);
    // Whether any block has work: block 0 keeps the time for all.
    if (me == 0) pending = sync_or(pending);
    if (sync_or(any)) {
      if (thread_id() == 0) {
        // Once this generation has left for the host, a new command is the next generation's.
        b.leave = load_relaxed(&executor->leaving);
        for (uint32_t i = 0; i < b.fresh_count && !b.leave; i++) {
          const uint32_t k = lowest_bit(~static_cast<uint64_t>(b.active));
          if (k >= kMaxWorks) break;  // the rest is found again, and taken when a work has ended
          const Fresh& fresh = b.fresh[i];
          Lane* lane = reinterpret_cast<Lane*>(load_relaxed(&executor->lanes[fresh.lane]));
          begin_work(b.works[k], lane, &lane->command, fresh.channel);
          b.active |= 1u << k;
          b.seen[fresh.lane] = fresh.number;
        }
        b.fresh_count = 0;
      }
      sync();
    }

    // One step of each work.
    bool moved = false;
    for (uint32_t left = b.active; left != 0; left &= left - 1) {
      const uint32_t k = lowest_bit(left);
      Work& w = b.works[k];
      const Step step = advance(w, b.shared);
      moved |= step != Step::kWaiting;
      if (step != Step::kFinished) continue;
      sync();
      if (thread_id() == 0) {
        Lane* lane = w.lane;
        const bool eager = w.command->eager != 0;  // the command may be overwritten as soon as it is done
        b.active &= ~(1u << k);
        if (arrive(w)) {
          fence(true);
          store_relaxed(&executor->done[lane->index], b.seen[lane->index]);
          add_device(&executor->finished, 1);
          count_launch(*lane, eager);
        }
      }
      sync();
    }

    // Leaving, and how the time goes: block 0 decides for all.
    if (thread_id() == 0) {
      if (me == 0) {
        const uint64_t now = now_ns();
        (moved ? times.serving : pending ? times.waiting : times.idle) += now - times.until;
        times.until = now;
        if (pending || moved) {
          idle_since = now;
        } else {
          const uint64_t finished = load_relaxed(&executor->finished);
          if (finished != times.reported) write_times(generation, times, finished);
          const uint64_t idle = now - idle_since;
          if (idle >= linger_ns || (idle >= kLeaveAfterNs && load_relaxed(&generation->leave) != 0)) {
            if (try_leave(executor, generation, number, times)) b.leave = 1;
            else idle_since = now;
          }
        }
      } else if (b.active == 0 && load_relaxed(&executor->leaving) != 0) {
        b.leave = 1;
      }
    }
    sync();
    if (b.leave) break;
    if (!moved) pause();
  }
}

}  // namespace mk
