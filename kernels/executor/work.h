// One launch's progress on one channel, and what a block shares while it advances it. Nothing here waits: a Work is advanced by steps, so that
// the executor can serve several communicators and an inline kernel can look at its deadline in between.
//
// A step has four parts with barriers between them: thread p of the block polls rank p's words and decides what to move between that rank and
// this one; thread 0 decides what takes all ranks; all threads move the bytes; thread p tells rank p. So decisions are made in parallel,
// nothing but the jobs in shared memory lives across the moving, and the moving code exists once.
#pragma once
#include "protocol/bulk.h"

namespace mk {

// What one step did.
enum class Step : uint32_t { kWaiting, kMoved, kFinished };

// Lives in shared memory; written by thread 0 unless said otherwise, with a barrier before others read.
struct Work {
  Lane* lane;
  const Command* command;
  const OpDesc* ops;
  uint32_t channel;
  uint32_t op;             // index of the present operation
  uint32_t stage;          // of the present operation; 0: not begun
  uint64_t seq;            // number of the present operation among the communicator's collectives
  uint64_t pushed;         // chunks pushed to every peer, or bytes done
  uint64_t folded;         // chunks reduced
  uint64_t local;          // bytes copied from this rank to itself
  uint64_t scalar;         // the present operation's scalar, fetched
  // Waiting.
  uint64_t awaited;        // bit r: rank r has not delivered
  uint64_t wait_started;   // ns; 0: not waiting
  uint64_t last_look;      // ns of the last look at abort words and announcements
  uint64_t suspect;        // rank + 1 whose mark does not match ours; written by that rank's thread
  uint64_t suspect_data;   // that mark
  uint32_t idle_steps;
  uint32_t announced;
  uint32_t give_up;        // FailureCode
  uint32_t reported;       // the host has been told of this wait
  union {
    uint32_t progress[kMaxOps];            // chunks: per peer [sent][received][received in phase 1], or per transfer of a group; written by the peer's thread
    uint64_t peers[3][kMaxRanks];          // direct: input, output and scalar of each rank; written by the rank's thread
  };
};

struct CopyJob {
  const char* from;
  char* to;
  uint64_t bytes;
};
enum class Wide : uint32_t { kNone, kCopy, kFold, kCarry };

// The block's scratch space: the jobs of one step. Empty between steps.
struct Shared {
  CopyJob copies[2 * kMaxRanks + 1];  // towards and from each rank, and from this rank to itself; in any order
  Pointers pointers;                  // the one job with several sources or destinations
  uint64_t wide_bytes;
  Wide wide;
  uint32_t wide_phase;                // in which the wide job's result travels
  Carry carry;                        // kCarry: which ends of the fold are accumulators
  uint64_t wide_elements;             // kCarry: elements folded; wide_bytes are those of the result
  uint32_t ncopies;
  uint64_t sendable[kPhases];         // bit r: there is a free slot towards rank r
  uint64_t ready[kPhases];            // bit r: a chunk of this operation has come from rank r
  uint64_t post[kPhases];             // bit r: after the moving, mark a chunk for rank r
  uint64_t release[kPhases];          // bit r: after the moving, return a credit to rank r
  uint64_t awaited;                   // bit r: something is left to do that waits for rank r
  uint32_t unfinished;                // something is left to do
  uint32_t disagrees;                 // rank + 1 that has announced another operation in this one's place
  uint32_t signature;                 // of the marks to post; exchange has one per rank
  Step step;
  uint32_t bytes[kPhases][kMaxRanks]; // of the chunk for each rank that is posted and not the wide job's
  uint32_t turn[2][kMaxRanks];        // exchange, index of the transfer whose chunk moves to, and from, each rank
};

// Elements [begin, begin + count) of a whole, as bytes.
struct Range {
  uint64_t begin;
  uint64_t bytes;
};

// Part `index` of `parts` of `bytes`, cut at multiples of 128 bytes so that parts stay aligned; the last parts may be shorter or empty.
MK_DEVICE Range part_of(uint64_t bytes, uint32_t parts, uint32_t index) {
  const uint64_t per = (bytes / parts + (bytes % parts != 0) + 127) / 128 * 128;
  const uint64_t begin = per * index < bytes ? per * index : bytes;
  const uint64_t end = begin + per < bytes ? begin + per : bytes;
  return {begin, end - begin};
}
MK_DEVICE uint64_t chunks_of(uint64_t bytes, uint32_t chunk) { return (bytes + chunk - 1) / chunk; }
MK_DEVICE uint64_t chunk_bytes(uint64_t bytes, uint32_t chunk, uint64_t index) {
  const uint64_t left = bytes - index * chunk;
  return left < chunk ? left : chunk;
}

// What rank `p` writes for this one, and what this one writes for `p`.
MK_DEVICE const InboxHeader* inbox_of(const Lane& lane, uint32_t p) { return reinterpret_cast<const InboxHeader*>(lane.peers[p].in); }
MK_DEVICE InboxHeader* outbox_of(const Lane& lane, uint32_t p) { return reinterpret_cast<InboxHeader*>(lane.peers[p].out); }
MK_DEVICE bool is_remote(const Lane& lane, uint32_t p) { return lane.peers[p].taken != 0; }

// Places of a pipe in an inbox, or in its slots, that starts at `base`.
MK_DEVICE uint32_t pipe_index(const Geometry& g, uint32_t phase, uint32_t channel) { return phase * g.channels + channel; }
MK_DEVICE uint64_t* credit_at(const Geometry& g, uint64_t base, uint32_t phase, uint32_t channel) {
  return reinterpret_cast<uint64_t*>(base + g.credits) + pipe_index(g, phase, channel);
}
MK_DEVICE Line* mark_at(const Geometry& g, uint64_t base, uint32_t phase, uint32_t channel, uint64_t chunk) {
  return reinterpret_cast<Line*>(base + g.marks) + pipe_index(g, phase, channel) * kSlots + chunk % kSlots;
}
MK_DEVICE char* slot_at(const Geometry& g, uint64_t base, uint32_t phase, uint32_t channel, uint64_t chunk) {
  const uint64_t slot = pipe_index(g, phase, channel) * kSlots + chunk % kSlots;
  return reinterpret_cast<char*>(base) + slot * (kSlotHead + g.slot_bytes) + kSlotHead;
}
// The word before the chunk of a slot.
MK_DEVICE uint64_t* scalar_at(char* slot) { return reinterpret_cast<uint64_t*>(slot) - 1; }

// Packet lines in the region of rank `of`.
MK_DEVICE Line* packets_of(const Lane& lane, uint32_t of, uint32_t parity, uint32_t channel, uint32_t from) {
  const Geometry& g = lane.geometry;
  return reinterpret_cast<Line*>(lane.peers[of].packets) + ((static_cast<uint64_t>(parity) * g.channels + channel) * g.nranks + from) * g.packet_lines;
}

MK_DEVICE bool is_point_to_point(const OpDesc& op) { return op.kind == kSend || op.kind == kRecv; }
MK_DEVICE uint64_t all_peers(const Lane& lane) {
  const uint64_t all = lane.geometry.nranks == 64 ? ~0ull : (1ull << lane.geometry.nranks) - 1;
  return all & ~(1ull << lane.rank);
}

}  // namespace mk
