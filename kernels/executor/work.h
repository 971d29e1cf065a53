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
    uint32_t progress[kMaxOps];            // chunks: per peer [sent 64][received 64], or per transfer of a group; written by the peer's thread
    uint64_t peers[3][kMaxRanks];          // direct: input, output and scalar of each rank; written by the rank's thread
  };
};

struct CopyJob {
  const char* from;
  char* to;
  uint64_t bytes;
};
enum class Wide : uint32_t { kNone, kCopy, kFold };

// The block's scratch space: the jobs of one step. Empty between steps.
struct Shared {
  CopyJob copies[2 * kMaxRanks + 1];  // towards and from each rank, and from this rank to itself; in any order
  Pointers pointers;                  // the one job with several sources or destinations
  uint64_t wide_bytes;
  Wide wide;
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

// Addresses inside the region of rank `of`, as reached from here.
template <class T> MK_DEVICE T* region_at(const Lane& lane, uint32_t of, uint64_t offset) { return reinterpret_cast<T*>(lane.regions[of] + offset); }
MK_DEVICE RegionHeader* header_of(const Lane& lane, uint32_t of) { return region_at<RegionHeader>(lane, of, 0); }
MK_DEVICE Announce* announce_of(const Lane& lane, uint32_t of, uint32_t from) { return region_at<Announce>(lane, of, lane.geometry.announce) + from; }
MK_DEVICE uint64_t pipe_index(const Geometry& g, uint32_t phase, uint32_t channel, uint32_t rank) {
  return (static_cast<uint64_t>(phase) * g.channels + channel) * g.nranks + rank;
}
MK_DEVICE uint64_t* credit_of(const Lane& lane, uint32_t of, uint32_t phase, uint32_t channel, uint32_t consumer) {
  return region_at<uint64_t>(lane, of, lane.geometry.credits) + pipe_index(lane.geometry, phase, channel, consumer);
}
MK_DEVICE Line* mark_of(const Lane& lane, uint32_t of, uint32_t phase, uint32_t channel, uint32_t from, uint64_t chunk) {
  return region_at<Line>(lane, of, lane.geometry.marks) + pipe_index(lane.geometry, phase, channel, from) * kSlots + chunk % kSlots;
}
MK_DEVICE char* slot_of(const Lane& lane, uint32_t of, uint32_t phase, uint32_t channel, uint32_t from, uint64_t chunk) {
  const Geometry& g = lane.geometry;
  const uint64_t pipe = (static_cast<uint64_t>(phase) * g.channels + channel) * (g.nranks - 1) + (from < of ? from : from - 1);
  return region_at<char>(lane, of, g.slots) + (pipe * kSlots + chunk % kSlots) * (g.slot_bytes + kSlotTail);
}
MK_DEVICE Line* packets_of(const Lane& lane, uint32_t of, uint32_t parity, uint32_t channel, uint32_t from) {
  const Geometry& g = lane.geometry;
  return region_at<Line>(lane, of, g.packets) + ((static_cast<uint64_t>(parity) * g.channels + channel) * g.nranks + from) * g.packet_lines;
}

// The word behind the chunk of a slot.
MK_DEVICE uint64_t* tail_of(const Lane& lane, char* slot) { return reinterpret_cast<uint64_t*>(slot + lane.geometry.slot_bytes); }

MK_DEVICE bool is_point_to_point(const OpDesc& op) { return op.kind == kSend || op.kind == kRecv; }
MK_DEVICE uint64_t all_peers(const Lane& lane) {
  const uint64_t all = lane.geometry.nranks == 64 ? ~0ull : (1ull << lane.geometry.nranks) - 1;
  return all & ~(1ull << lane.rank);
}

}  // namespace mk
