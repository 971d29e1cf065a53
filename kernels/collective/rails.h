// Rails: where all nodes have the same number of ranks, in order, the ranks with the same place in their nodes form a rail. Between nodes, data travel
// along rails only, so that each byte crosses the network once for a node and not once for each of its ranks.
#pragma once
#include "collective/shape.h"
#include "protocol/pipe.h"

namespace mk {

struct Rails {
  uint32_t per_node;
  uint32_t nodes;
  uint32_t node;   // this rank's
  uint32_t place;  // ... and its place there, which is its rail
};

MK_DEVICE Rails rails_of(const Lane& lane) {
  const uint32_t per_node = lane.geometry.ranks_per_node;
  return {per_node, lane.geometry.nranks / per_node, lane.rank / per_node, lane.rank % per_node};
}
MK_DEVICE bool uses_rails(const OpDesc& op) { return (op.flags & kRails) != 0; }
// The other ranks of this node.
MK_DEVICE uint64_t near_peers(const Lane& lane, const Rails& rails) {
  const uint64_t all = rails.per_node == 64 ? ~0ull : (1ull << rails.per_node) - 1;
  return all << (rails.node * rails.per_node) & ~(1ull << lane.rank);
}
// The other ranks of this rail.
MK_DEVICE uint64_t rail_peers(const Lane& lane, const Rails& rails) {
  uint64_t peers = 0;
  for (uint32_t n = 0; n < rails.nodes; n++) peers |= 1ull << (n * rails.per_node + rails.place);
  return peers & ~(1ull << lane.rank);
}

}  // namespace mk
