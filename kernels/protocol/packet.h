// Packets: 16-byte lines of 8 data bytes and a flag, stored straight into every rank's region. A line is there when its flag is the channel's
// packet number; no fence is needed, and nothing is acknowledged: the lines of two consecutive packet operations lie in different halves
// (parity), and a rank that finishes operation k has heard from all ranks in k, so all have finished k-1 and its half may be written again.
// That holds because every rank sends to every rank in each packet operation. A message starts with two header lines: the signature, and
// (if the operation has one) the sender's scalar.
#pragma once
#include "executor/work.h"

namespace mk {

constexpr uint32_t kHeaderLines = 2;

// 8 bytes at `offset` of a piece of `bytes`, whatever its alignment; what is past the end reads as 0.
MK_DEVICE uint64_t load_eight(const char* from, uint64_t offset, uint64_t bytes) {
  const char* p = from + offset;
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  if (offset + 8 <= bytes) {
    if (address % 8 == 0) return load_bulk_element(reinterpret_cast<const uint64_t*>(p));
    if (address % 4 == 0) {
      const uint32_t* q = reinterpret_cast<const uint32_t*>(p);
      return load_bulk_element(q) | static_cast<uint64_t>(load_bulk_element(q + 1)) << 32;
    }
  }
  uint64_t v = 0;
#pragma unroll 1
  for (uint64_t i = 0; i < 8 && offset + i < bytes; i++) v |= static_cast<uint64_t>(load_bulk_element(reinterpret_cast<const uint8_t*>(p) + i)) << (8 * i);
  return v;
}
MK_DEVICE void store_eight(char* to, uint64_t offset, uint64_t bytes, uint64_t v) {
  char* p = to + offset;
  if (offset + 8 <= bytes && reinterpret_cast<uint64_t>(p) % 8 == 0) {
    *reinterpret_cast<uint64_t*>(p) = v;
    return;
  }
#pragma unroll 1
  for (uint64_t i = 0; i < 8 && offset + i < bytes; i++) reinterpret_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(v >> (8 * i));
}

MK_DEVICE uint64_t lines_of(uint64_t bytes) { return (bytes + 7) / 8; }

// Polls a line a bounded number of times. The caller tries again in its next step.
MK_DEVICE bool receive_line(const Line* p, uint64_t flag, uint32_t tries, uint64_t& data) {
#pragma unroll 1
  for (uint32_t i = 0; i < tries; i++) {
    const Line line = load_line(p);
    if (line.flag == flag) { data = line.data; return true; }
  }
  return false;
}

}  // namespace mk
