// Who sends what to whom: the addresses and lengths of one operation on one channel, as pure functions of the descriptor.
#pragma once
#include "executor/work.h"

namespace mk {

struct Piece {
  const char* from;
  uint64_t bytes;
};
struct Place {
  char* to;
  uint64_t bytes;
};

MK_DEVICE uint64_t whole_bytes(const OpDesc& op) { return op.count * op.elem_size; }
// What channel `channel` handles of `count` elements.
MK_DEVICE Range channel_range(const OpDesc& op, uint32_t channel) { return part_of(whole_bytes(op), op.channels, channel); }
MK_DEVICE const char* input(const OpDesc& op) { return reinterpret_cast<const char*>(op.send); }
MK_DEVICE char* output(const OpDesc& op) { return reinterpret_cast<char*>(op.recv); }

// Operations that only move data: what this rank sends to `peer`.
MK_DEVICE Piece piece_for(const OpDesc& op, uint32_t rank, uint32_t peer, Range r) {
  const uint64_t whole = whole_bytes(op);
  const uint32_t root = static_cast<uint32_t>(op.root);
  switch (op.kind) {
    case kAllGather: return {input(op) + r.begin, r.bytes};
    case kBroadcast: return {input(op) + r.begin, rank == root ? r.bytes : 0};
    case kAllToAll: return {input(op) + peer * whole + r.begin, r.bytes};
    case kGather: return {input(op) + r.begin, peer == root ? r.bytes : 0};
    case kScatter: return {input(op) + peer * whole + r.begin, rank == root ? r.bytes : 0};
    default: return {nullptr, 0};
  }
}
// ... and where what `peer` sends here goes.
MK_DEVICE Place place_from(const OpDesc& op, uint32_t rank, uint32_t peer, Range r) {
  const uint64_t whole = whole_bytes(op);
  const uint32_t root = static_cast<uint32_t>(op.root);
  switch (op.kind) {
    case kAllGather:
    case kAllToAll: return {output(op) + peer * whole + r.begin, r.bytes};
    case kBroadcast:
    case kScatter: return {output(op) + r.begin, peer == root ? r.bytes : 0};
    case kGather: return {output(op) + peer * whole + r.begin, rank == root ? r.bytes : 0};
    default: return {nullptr, 0};
  }
}
MK_DEVICE bool same_piece_for_all(const OpDesc& op) { return op.kind == kAllGather || op.kind == kBroadcast; }

// Reducing operations: rank `owner` reduces this part of every rank's input. Offsets into the input.
MK_DEVICE Range slice_of(const OpDesc& op, uint32_t nranks, uint32_t owner, Range r) {
  if (op.kind == kReduceScatter) return {owner * whole_bytes(op) + r.begin, r.bytes};
  if ((op.flags & kOneShot) != 0) return r;
  const Range part = part_of(r.bytes, nranks, owner);
  return {r.begin + part.begin, part.bytes};
}
// Where the result of a slice goes in an output of this operation.
MK_DEVICE uint64_t result_offset(const OpDesc& op, Range slice, Range r) { return op.kind == kReduceScatter ? r.begin : slice.begin; }

MK_DEVICE bool reduces(const OpDesc& op) { return op.kind == kAllReduce || op.kind == kReduce || op.kind == kReduceScatter; }
MK_DEVICE Reduction reduction_of(const Work& w, const OpDesc& op) { return {op.dtype, op.redop, w.lane->geometry.nranks}; }

}  // namespace mk
