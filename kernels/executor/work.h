// One launch's progress on one channel, and what a block shares while it advances it. Nothing here waits: collectives advance a Work by
// one step and return, so that the executor can serve several communicators and an inline kernel can look at its deadline in between.
#pragma once
#include "protocol/bulk.h"

namespace mk {

// What one step did.
enum class Step { kWaiting, kMoved, kFinished };

// Lives in shared memory; written by thread 0 unless said otherwise, with a barrier before others read.
struct Work {
  Lane* lane;
  const Command* command;
  const OpDesc* ops;
  uint32_t channel;
  uint32_t op;             // index of the present operation
  uint32_t stage;          // of the present operation; 0: not begun
  uint32_t active;         // slot in use (executor)
  uint64_t seq;            // number of the present operation among the communicator's collectives
  uint64_t pushed;         // chunks pushed to every peer, or bytes done
  uint64_t folded;         // chunks reduced
  uint64_t local;          // bytes copied from this rank to itself
  uint64_t scalar;         // the present operation's scalar, fetched
  // Waiting.
  uint64_t awaited;        // bit r: rank r has not delivered
  uint64_t wait_started;   // ns; 0: not waiting
  uint64_t last_look;      // ns of the last look at abort words and announcements
  uint64_t suspect;        // rank + 1 whose mark does not match ours
  uint64_t suspect_data;   // that mark
  uint32_t idle_steps;
  uint32_t announced;
  uint32_t give_up;        // FailureCode
  uint32_t reported;       // the host has been told of this wait
  union {
    uint32_t progress[kMaxOps];            // chunks: per peer [sent 64][received 64], or per transfer of a group
    uint64_t peer_buffers[2][kMaxRanks];   // direct: [send, recv] of each rank
  };
};

// The block's scratch space.
struct Shared {
  Pointers pointers;
  uint64_t masks[3][4];            // results of polls, in turn: a buffer is cleared one poll before it is used
  uint64_t mark_data[kPhases][kMaxRanks];
  uint32_t turn;
  uint32_t verdict;
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
  return region_at<char>(lane, of, lane.geometry.slots) + (pipe_index(lane.geometry, phase, channel, from) * kSlots + chunk % kSlots) * lane.geometry.slot_bytes;
}
MK_DEVICE Line* packets_of(const Lane& lane, uint32_t of, uint32_t parity, uint32_t channel, uint32_t from) {
  const Geometry& g = lane.geometry;
  return region_at<Line>(lane, of, g.packets) + ((static_cast<uint64_t>(parity) * g.channels + channel) * g.nranks + from) * g.packet_lines;
}

MK_DEVICE bool is_point_to_point(const OpDesc& op) { return op.kind == kSend || op.kind == kRecv; }
MK_DEVICE uint64_t all_peers(const Lane& lane) {
  const uint64_t all = lane.geometry.nranks == 64 ? ~0ull : (1ull << lane.geometry.nranks) - 1;
  return all & ~(1ull << lane.rank);
}

}  // namespace mk
