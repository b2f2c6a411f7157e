#include "runtime/save/ImageChoice.h"

#include <algorithm>
#include <map>

namespace shardc::save {
namespace {

/// The nodes in the order of their first ranks, each with its ranks in their order.
std::vector<std::vector<int>> nodesOf(std::span<const RankPlace> ranks) {
  // The second rank with one number on one machine is of the machine's second node.
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
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> sets; // holders, by step and attempt
  for (size_t rank = 0; rank < held.size(); ++rank)
    for (const ImageId &id : held[rank]) {
      if (id.step <= newerThan || id.owner < 0 || id.owner >= std::ssize(held))
        continue;
      std::vector<int> &holders = sets[{id.step, id.attempt}];
      holders.resize(held.size(), -1);
      int &holder = holders[static_cast<size_t>(id.owner)];
      if (holder < 0 || id.owner == static_cast<int64_t>(rank))
        holder = static_cast<int>(rank);
    }
  for (auto set = sets.rbegin(); set != sets.rend(); ++set)
    if (std::ranges::find(set->second, -1) == set->second.end())
      return ImageChoice{set->first.second, set->first.first, set->second};
  return std::nullopt;
}

} // namespace shardc::save
