// Two algorithms: first-fit decreasing, which needs few packs, and a variation that also gives the
// packs equal attention costs.
#include "runtime/data/Packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/data/NumpyRandom.h"

namespace shardc::data {
namespace {

using Packs = std::vector<std::vector<uint32_t>>;

/// The free space of packs, to find the first pack that has enough: a tree of the largest space
/// below each node.
class FreeSpace {
public:
  explicit FreeSpace(size_t count) {
    while (leaves_ < count)
      leaves_ *= 2;
    most_.assign(2 * leaves_, 0);
  }
  int64_t of(size_t pack) const { return most_[leaves_ + pack]; }
  void set(size_t pack, int64_t tokens) {
    size_t node = leaves_ + pack;
    most_[node] = tokens;
    while ((node /= 2) > 0)
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
  }
  /// Returns the first pack with enough space, or the number of leaves if there is none.
  size_t firstWith(int64_t tokens) const {
    if (most_[1] < tokens)
      return leaves_;
    size_t node = 1;
    while (node < leaves_)
      node = most_[2 * node] >= tokens ? 2 * node : 2 * node + 1;
    return node - leaves_;
  }

private:
  size_t leaves_ = 1;
  std::vector<int64_t> most_;
};

/// The first pack with enough space takes the row. `order` is by decreasing length, which makes
/// this first-fit decreasing.
Packs firstFit(std::span<const int32_t> lengths, std::span<const uint32_t> order,
               int64_t capacity) {
  Packs packs;
  FreeSpace space(order.size());
  for (uint32_t row : order) {
    int64_t length = lengths[row];
    size_t pack = space.firstWith(length);
    if (pack >= packs.size()) {
      pack = packs.size();
      packs.emplace_back();
      space.set(pack, capacity);
    }
    packs[pack].push_back(row);
    space.set(pack, space.of(pack) - length);
  }
  return packs;
}

/// Assigns each row, in decreasing order of length, to the cheapest pack that has space among the
/// first few by cost, otherwise to the first pack that has space.
Packs balanced(std::span<const int32_t> lengths, std::span<const uint32_t> order, int64_t capacity,
               size_t count) {
  constexpr int64_t kTried = 64;
  Packs packs(count);
  FreeSpace space(order.size());
  std::set<std::pair<int64_t, size_t>> byCost;
  for (size_t pack = 0; pack < count; ++pack) {
    space.set(pack, capacity);
    byCost.emplace(0, pack);
  }
  std::vector<int64_t> costs(count, 0);
  for (uint32_t row : order) {
    int64_t length = lengths[row], tried = 0;
    size_t pack = packs.size();
    for (auto at = byCost.begin(); at != byCost.end() && tried < kTried; ++at, ++tried)
      if (space.of(at->second) >= length) {
        pack = at->second;
        break;
      }
    if (pack == packs.size())
      pack = std::min(space.firstWith(length), packs.size());
    if (pack == packs.size()) {
      packs.emplace_back();
      costs.push_back(0);
      space.set(pack, capacity);
    }
    byCost.erase({costs[pack], pack});
    costs[pack] += length * length;
    byCost.emplace(costs[pack], pack);
    packs[pack].push_back(row);
    space.set(pack, space.of(pack) - length);
  }
  return packs;
}

} // namespace

int64_t attentionCost(std::span<const int32_t> lengths, std::span<const uint32_t> rows) {
  int64_t cost = 0;
  for (uint32_t row : rows)
    cost += int64_t{lengths[row]} * lengths[row];
  return cost;
}

/// The number of packs of the balanced kind is that of first-fit decreasing, unless its rows then
/// do not fit. At the end, rows in packs and the packs are shuffled, so that training does not see
/// them sorted by length.
Result<Packs> packRows(std::span<const int32_t> lengths, int64_t capacity, PackingKind kind,
                       uint32_t seed) {
  if (lengths.size() > std::numeric_limits<uint32_t>::max())
    return makeStatus(report::DataRefused, "{} rows are more than a set of packs can hold",
                      lengths.size());
  for (size_t row = 0; row < lengths.size(); ++row)
    if (lengths[row] < 1 || lengths[row] > capacity)
      return makeStatus(report::DataRefused, "row {} has {} tokens; a pack has room for 1 to {}",
                        row, lengths[row], capacity);
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0u);
  NumpyRandom random(seed);
  random.shuffle(std::span(order)); // randomises the order of rows with equal lengths
  if (kind == PackingKind::None) {
    Packs packs;
    for (uint32_t row : order)
      packs.push_back({row});
    return packs;
  }
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  Packs packs = firstFit(lengths, order, capacity);
  if (kind == PackingKind::Balanced)
    packs = balanced(lengths, order, capacity, packs.size());
  std::erase_if(packs, [](const std::vector<uint32_t> &pack) { return pack.empty(); });
  for (std::vector<uint32_t> &pack : packs)
    random.shuffle(std::span(pack));
  random.shuffle(std::span(packs));
  return packs;
}

} // namespace shardc::data
