// Byte ranges of an arena whose bounds may depend linearly on the rank's index in one group of the
// plan. Every rank of a role has the same plan text, but some places, such as a shard's, move with
// the index. Ranges that depend on the same group are compared exactly, at every index. An
// intersection of ranges of different groups, or with more than four bounds, is replaced by a wider
// range (isInexact()). The verifier may then refuse a valid plan, but never accepts an invalid one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::verifier {

/// The indices, first to last inclusive, that ranks of a role have in a group.
struct IndexRange {
  int64_t first = 0, last = 0;
  /// Whether all ranks of the role have the same index.
  bool isSole() const { return first == last; }
};

/// The intervals of indices of one role's ranks in each group of the plan.
class Indices {
public:
  Indices(const Plan &plan, const Role &role);
  /// Group -1 has a single index.
  IndexRange of(int16_t group) const { return ranges_[static_cast<size_t>(group + 1)]; }

private:
  std::vector<IndexRange> ranges_; ///< indices of group -1, then of each group
};

/// The byte interval [begin, end) of an arena that a range covers at some index, or at all.
struct Hull {
  int64_t begin = 0, end = 0;
};

/// The bytes from the maximum of several lines (lower bounds) to the minimum of several lines
/// (upper bounds). A line is an offset in bytes plus a coefficient times the index. A range starts
/// with one line of each; intersections of ranges with different slopes add more. A range whose
/// begin is not below its end is empty. Ranges are small values and keep no reference to `indices`.
class Range {
public:
  /// The range of `bytes` bytes at a place, for the ranks of a role.
  static Range of(const Place &place, int64_t bytes, const Indices &indices) {
    Range range;
    range.arena_ = place.arena;
    IndexRange own = indices.of(place.group);
    int64_t coef = own.isSole() ? 0 : place.coef; // with a single index, nothing moves
    int64_t offset = place.offset + (place.coef - coef) * own.first;
    range.group_ = coef == 0 ? int16_t{-1} : place.group;
    range.lower_[0] = {offset, coef, range.group_};
    range.upper_[0] = {offset + bytes, coef, range.group_};
    return range;
  }
  static Range of(const Value &value, const Indices &indices) {
    return of(value.place, value.type.bytes(), indices);
  }
  static Range of(const Cell &cell, const Indices &indices) {
    return of(cell.place, cell.type.bytes(), indices);
  }

  Arena arena() const { return arena_; }
  /// The group whose index the lines multiply; -1 if the range is the same on all ranks.
  int16_t group() const { return group_; }
  /// Compares the lines, not the bytes: two ranges with equal bytes but different lines are
  /// unequal. Callers treat unequal ranges as possibly different, which is safe.
  bool operator==(const Range &other) const {
    return arena_ == other.arena_ && inexact_ == other.inexact_ &&
           std::equal(lower_.begin(), lower_.begin() + lowers_, other.lower_.begin(),
                      other.lower_.begin() + other.lowers_) &&
           std::equal(upper_.begin(), upper_.begin() + uppers_, other.upper_.begin(),
                      other.upper_.begin() + other.uppers_);
  }
  /// The first byte, and the byte after the last, at index `member` of group().
  int64_t begin(int64_t member) const {
    int64_t begin = lower_[0].at(member);
    for (uint8_t i = 1; i < lowers_; ++i)
      begin = std::max(begin, lower_[i].at(member));
    return begin;
  }
  int64_t end(int64_t member) const {
    int64_t end = upper_[0].at(member);
    for (uint8_t i = 1; i < uppers_; ++i)
      end = std::min(end, upper_[i].at(member));
    return end;
  }
  /// Whether the bytes are the same on all ranks.
  bool isFixed() const {
    return lowers_ == 1 && uppers_ == 1 && lower_[0].coef == 0 && upper_[0].coef == 0;
  }
  /// An index at which the range is not empty, if there is one. Each pair of a lower and an upper
  /// line limits the index by one linear inequality.
  std::optional<int64_t> findIndex(const Indices &indices) const {
    auto [first, last] = indices.of(group_);
    for (uint8_t l = 0; l < lowers_; ++l)
      for (uint8_t u = 0; u < uppers_; ++u) {
        int64_t room = upper_[u].offset - lower_[l].offset, slope = upper_[u].coef - lower_[l].coef;
        if (slope == 0 && room <= 0)
          return std::nullopt;
        // Division rounds towards zero, so only nonnegative numbers are divided.
        if (slope > 0 && room <= 0)
          first = std::max(first, -room / slope + 1);
        if (slope > 0 && room > 0)
          first = std::max(first, -((room - 1) / slope));
        if (slope < 0 && room <= 0)
          last = std::min(last, -((-room - slope) / -slope));
        if (slope < 0 && room > 0)
          last = std::min(last, (room - 1) / -slope);
      }
    return first <= last ? std::optional(first) : std::nullopt;
  }

  /// Whether an intersection was inexact (too many lines, or lines of different groups); the range
  /// is then too large.
  bool isInexact() const { return inexact_; }

  /// An interval that contains the range at every index, for comparisons. It may be wider than
  /// needed.
  Hull hull(const Indices &indices) const {
    Hull hull = {least(lower_[0], indices), most(upper_[0], indices)};
    for (uint8_t i = 1; i < lowers_; ++i)
      hull.begin = std::max(hull.begin, least(lower_[i], indices));
    for (uint8_t i = 1; i < uppers_; ++i)
      hull.end = std::min(hull.end, most(upper_[i], indices));
    return hull;
  }

  Range intersect(const Range &other, const Indices &indices) const {
    Range result = *this;
    if (arena_ != other.arena_) {
      result.upper_[0] = result.lower_[0];
      return result;
    }
    for (uint8_t i = 0; i < other.lowers_; ++i)
      result.addLower(other.lower_[i], indices);
    for (uint8_t i = 0; i < other.uppers_; ++i)
      result.addUpper(other.upper_[i], indices);
    result.inexact_ |= other.inexact_;
    return result;
  }
  /// The part of this range before `other` begins. behind() is the part after `other` ends. Both
  /// use only the first line of `other`.
  Range before(const Range &other, const Indices &indices) const {
    Range result = *this;
    result.addUpper(other.lower_[0], indices);
    return result;
  }
  Range behind(const Range &other, const Indices &indices) const {
    Range result = *this;
    result.addLower(other.upper_[0], indices);
    return result;
  }

  /// Calls fn(line) for all bounds.
  template <typename Fn> void forEachLine(const Fn &fn) const {
    for (uint8_t i = 0; i < lowers_; ++i)
      fn(lower_[i]);
    for (uint8_t i = 0; i < uppers_; ++i)
      fn(upper_[i]);
  }

private:
  static constexpr uint8_t kLinesMax = 4;
  using Lines = std::array<Moving, kLinesMax>;

  static int64_t least(const Moving &line, const Indices &indices) {
    IndexRange own = indices.of(line.group);
    return std::min(line.at(own.first), line.at(own.last));
  }
  static int64_t most(const Moving &line, const Indices &indices) {
    IndexRange own = indices.of(line.group);
    return std::max(line.at(own.first), line.at(own.last));
  }
  /// Whether a >= b at every index of the role. Lines are linear, so the first and the last index
  /// decide. If the lines depend on different groups, all combinations of indices count.
  static bool isNeverBelow(const Moving &a, const Moving &b, const Indices &indices) {
    if (a.group != b.group && a.group >= 0 && b.group >= 0)
      return least(a, indices) >= most(b, indices);
    IndexRange own = indices.of(std::max(a.group, b.group));
    return a.at(own.first) >= b.at(own.first) && a.at(own.last) >= b.at(own.last);
  }

  void addLower(const Moving &line, const Indices &indices) {
    add(lower_, lowers_, line, least(line, indices),
        [&](const Moving &a, const Moving &b) { return isNeverBelow(a, b, indices); });
  }
  void addUpper(const Moving &line, const Indices &indices) {
    add(upper_, uppers_, line, most(line, indices),
        [&](const Moving &a, const Moving &b) { return isNeverBelow(b, a, indices); });
  }
  /// Adds a bound and drops the bounds that it makes redundant at every index. A range depends on
  /// one group only: a line of another group is replaced by `widest`, its least restrictive value
  /// over all indices.
  template <typename Decides>
  void add(Lines &lines, uint8_t &count, Moving line, int64_t widest, const Decides &decides) {
    for (uint8_t i = 0; i < count; ++i)
      if (decides(lines[i], line))
        return;
    if (line.group >= 0 && group_ >= 0 && line.group != group_) {
      line = {widest};
      inexact_ = true;
    }
    uint8_t kept = 0;
    for (uint8_t i = 0; i < count; ++i)
      if (!decides(line, lines[i]))
        lines[kept++] = lines[i];
    count = kept;
    if (count == kLinesMax)
      inexact_ = true;
    else
      lines[count++] = line;
    group_ = -1;
    forEachLine([&](const Moving &each) { group_ = std::max(group_, each.group); });
  }

  Arena arena_ = Arena::Work;
  int16_t group_ = -1; ///< the group of all lines that move
  uint8_t lowers_ = 1, uppers_ = 1;
  bool inexact_ = false;
  Lines lower_{}, upper_{};
};

} // namespace shardc::plan::verifier
