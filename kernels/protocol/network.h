// Between nodes: what a block tells the proxy thread of its process, which carries it to the peer. src/transport/proxy/ring.rs reads the commands.
#pragma once
#include "executor/work.h"

namespace mk {

MK_DEVICE uint64_t command_word(uint32_t kind, uint32_t peer, uint32_t phase, uint32_t channel, uint32_t slot, uint64_t bytes) {
  return kind | phase << 4 | slot << 8 | channel << 16 | static_cast<uint64_t>(peer) << 24 | bytes << 32;
}

// By one thread, after it has written what the command is about.
MK_SLOW void give_command(Lane& lane, uint32_t channel, uint64_t word) {
  const uint32_t r = channel % lane.rings;
  fence(false);
  const uint64_t n = add_device(&lane.ring_next[r], 1);
  store_line(reinterpret_cast<Line*>(lane.ring[r]) + (n & (lane.ring_lines - 1)), word, n + 1);
}

// After this rank's announcement for `p` has been written: has it carried, unless a command for it is under way that the proxy has not taken.
// Either this thread sees that the proxy has taken all, or the proxy, which says so before it reads the announcement, reads this one. The rings
// thus never hold two such commands for a peer.
MK_SLOW void carry_announcement(Lane& lane, uint32_t p) {
  fence(false);
  const uint32_t taken = load_relaxed(reinterpret_cast<const uint32_t*>(lane.peers[p].taken));
  if (exchange_if(&lane.announced[p], taken, taken + 1) == taken) give_command(lane, 0, command_word(kCommandAnnounce, p, 0, 0, 0, 0));
}

}  // namespace mk
