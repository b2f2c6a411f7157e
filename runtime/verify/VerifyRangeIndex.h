// An interval tree over byte ranges in all arenas. It finds the items that overlap a range in
// logarithmic time plus one visit per result. Otherwise overlap checks of a plan with a hundred
// thousand values would compare all pairs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyRange.h"

namespace shardc::plan::verifier {

/// Items with their byte intervals, by arena. Use it in three phases: add() all items, sort() once,
/// then search; an item added after sort() is not found. Empty intervals are ignored. Searches do
/// not change the index. Hulls are wider than ranges that move with an index, so callers compare
/// the ranges themselves afterwards.
template <typename Item> class RangeIndex {
public:
  void add(Arena arena, const Hull &hull, const Item &item) {
    if (hull.begin < hull.end)
      arenas_[static_cast<size_t>(arena)].entries.push_back({hull.begin, hull.end, item});
  }

  void sort() {
    for (PerArena &arena : arenas_) {
      std::stable_sort(arena.entries.begin(), arena.entries.end(),
                       [](const Entry &a, const Entry &b) { return a.begin < b.begin; });
      arena.leaves = std::bit_ceil(arena.entries.size());
      arena.ends.assign(2 * arena.leaves, std::numeric_limits<int64_t>::min());
      for (size_t i = 0; i < arena.entries.size(); ++i)
        arena.ends[arena.leaves + i] = arena.entries[i].end;
      for (size_t i = arena.leaves - 1; i > 0; --i)
        arena.ends[i] = std::max(arena.ends[2 * i], arena.ends[2 * i + 1]);
    }
  }

  /// Whether no item was added for this arena.
  bool isEmpty(Arena arena) const { return arenas_[static_cast<size_t>(arena)].entries.empty(); }

  /// Calls fn(item) for each item that overlaps one of the disjoint intervals, which ascend, in
  /// order of begin and once, until fn returns false.
  template <typename Fn>
  void forEachIn(Arena arena, const std::vector<Hull> &ranges, const Fn &fn) const {
    const PerArena &all = arenas_[static_cast<size_t>(arena)];
    size_t seen = 0; // entries before this one overlap an earlier interval or end before this one
    for (auto [begin, end] : ranges) {
      size_t behind = all.countBefore(end);
      if (begin < end && !all.visit(1, 0, all.leaves, {seen, behind}, begin, fn))
        return;
      seen = behind;
    }
  }

private:
  struct Entry {
    int64_t begin, end;
    Item item;
  };
  struct PerArena {
    std::vector<Entry> entries; ///< by begin
    size_t leaves = 1;
    std::vector<int64_t> ends = {0, 0}; ///< the largest end in each subtree; the root is 1

    size_t countBefore(int64_t end) const {
      auto at = std::partition_point(entries.begin(), entries.end(),
                                     [&](const Entry &entry) { return entry.begin < end; });
      return static_cast<size_t>(at - entries.begin());
    }

    /// Visits the entries below a tree node, whose first entry is `first`, that end after `begin`.
    /// Returns false if fn stopped the search.
    template <typename Fn>
    bool visit(size_t node, size_t first, size_t count, std::pair<size_t, size_t> wanted,
               int64_t begin, const Fn &fn) const {
      if (first >= wanted.second || first + count <= wanted.first || ends[node] <= begin)
        return true;
      if (count == 1)
        return fn(entries[first].item);
      return visit(2 * node, first, count / 2, wanted, begin, fn) &&
             visit(2 * node + 1, first + count / 2, count / 2, wanted, begin, fn);
    }
  };

  std::array<PerArena, kArenaCount> arenas_;
};

} // namespace shardc::plan::verifier
