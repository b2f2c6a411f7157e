// The neighbour of a rank is the rank at the same position on the next node, so that the loss of
// one node leaves a copy of every image. With a single node it is the next rank.
#include "runtime/save/ImageChoice.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace shardc::save {
namespace {

constexpr int64_t kRanksMax = 1 << 20; ///< more ranks than any job has

/// The nodes, sorted by first rank; each with its ranks in ascending order.
std::vector<std::vector<int>> nodesOf(std::span<const RankPlace> ranks) {
  // If two ranks on a machine have the same local number, the second one is on the machine's second
  // node.
  std::map<std::pair<std::string, int64_t>, int> seen;
  std::map<std::pair<std::string, int>, size_t> nodeOf;
  std::vector<std::vector<int>> nodes;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int number = seen[{ranks[rank].machine, ranks[rank].localRank}]++;
    auto [node, isNew] = nodeOf.try_emplace({ranks[rank].machine, number}, nodes.size());
    if (isNew)
      nodes.emplace_back();
    nodes[node->second].push_back(static_cast<int>(rank));
  }
  return nodes;
}

} // namespace

std::vector<int> neighboursOf(std::span<const RankPlace> ranks) {
  std::vector<int> neighbours(ranks.size(), -1);
  std::vector<std::vector<int>> nodes = nodesOf(ranks);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const std::vector<int> &own = nodes[n], &next = nodes[(n + 1) % nodes.size()];
    for (size_t i = 0; i < own.size(); ++i) {
      if (nodes.size() > 1)
        neighbours[static_cast<size_t>(own[i])] = i < next.size() ? next[i] : -1;
      else if (own.size() > 1)
        neighbours[static_cast<size_t>(own[i])] = own[(i + 1) % own.size()];
    }
  }
  return neighbours;
}

std::optional<ImageChoice> chooseImages(std::span<const std::vector<ImageId>> held,
                                        int64_t newerThan) {
  // The holder of each owner's image, by step, attempt and number of ranks.
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int>> sets;
  for (size_t rank = 0; rank < held.size(); ++rank)
    for (const ImageId &id : held[rank]) {
      if (id.step <= newerThan || id.owner < 0 || id.owner >= id.ranks || id.ranks > kRanksMax)
        continue;
      std::vector<int> &holders = sets[{id.step, id.attempt, id.ranks}];
      holders.resize(static_cast<size_t>(id.ranks), -1);
      int &holder = holders[static_cast<size_t>(id.owner)];
      if (holder < 0 || id.owner == static_cast<int64_t>(rank))
        holder = static_cast<int>(rank);
    }
  for (auto set = sets.rbegin(); set != sets.rend(); ++set)
    if (std::ranges::find(set->second, -1) == set->second.end())
      return ImageChoice{std::get<1>(set->first), std::get<0>(set->first), set->second};
  return std::nullopt;
}

} // namespace shardc::save
