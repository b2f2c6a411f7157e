// Decisions about images of ranks' state in memory, without memory, sockets or clocks: which rank
// keeps a second copy of whose state, and from which images a restart goes on. All ranks decide
// alike from what all have said.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/save/StateImages.h"

namespace shardc::save {

/// Where a rank runs: its machine, and its number on its node.
struct RankPlace {
  std::string machine;   ///< processes with the same text share a machine
  int64_t localRank = 0; ///< on its node; a machine may have several nodes
};

/// For each rank the one that keeps the second copy of its state: the rank with the same number on
/// the next node, or where there is one node, the next rank. -1 for a rank without one: it is
/// alone, or the next node has fewer ranks.
std::vector<int> neighboursOf(std::span<const RankPlace> ranks);

/// The images from which a restart goes on.
struct ImageChoice {
  int64_t attempt = 0, step = 0;
  std::vector<int> holders; ///< by owner: the rank that has the image now
  ImageId idOf(size_t owner) const {
    return {static_cast<int64_t>(owner), attempt, step, std::ssize(holders)};
  }
};

/// The newest step after `newerThan` of which there is an image of each rank, of one attempt, which
/// may have had another number of ranks. `held` has by rank what it has in memory. An image that
/// the rank with its owner's number has is taken from there.
std::optional<ImageChoice> chooseImages(std::span<const std::vector<ImageId>> held,
                                        int64_t newerThan);

} // namespace shardc::save
