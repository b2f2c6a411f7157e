// Decisions about images of ranks' state in memory: which rank keeps the second copy of which
// rank's state, and from which images a restart continues. This code uses no memory, sockets or
// clocks. All ranks reach the same decision, since they decide from the same reports.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/save/StateImages.h"

namespace shardc::save {

/// The location of a rank: its machine, and its number on its node.
struct RankPlace {
  std::string machine;   ///< processes with the same text share a machine
  int64_t localRank = 0; ///< number on its node; a machine may have several nodes
};

/// For each rank, the rank that keeps the second copy of its state: the rank with the same local
/// number on the next node, or with a single node the next rank. -1 if there is none: the job has
/// one rank, or the next node has fewer ranks.
std::vector<int> neighboursOf(std::span<const RankPlace> ranks);

/// The images from which a restart continues.
struct ImageChoice {
  int64_t attempt = 0, step = 0;
  std::vector<int> holders; ///< by owner: the rank that has the image
  ImageId idOf(size_t owner) const {
    return {static_cast<int64_t>(owner), attempt, step, std::ssize(holders)};
  }
};

/// The newest step after `newerThan` for which an image of each rank exists. All images must be
/// from one attempt, which may have had another number of ranks. `held` lists each rank's images in
/// memory. An image of an owner is taken from the rank with the same number if that rank has it.
std::optional<ImageChoice> chooseImages(std::span<const std::vector<ImageId>> held,
                                        int64_t newerThan);

} // namespace shardc::save
