// Byte ranges of an arena whose ends may move with the index in the group of shards.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "runtime/plan/Plan.h"

namespace shardc::plan::verifier {

/// Indices in the plan's group of shards that the ranks of a role have.
struct IndexRange {
  int64_t first = 0, last = 0;
  bool isSole() const { return first == last; }
};

/// True if both places are the same bytes at each coordinate, `coef` bytes a coordinate apart.
inline bool liesAt(const Place &a, const Place &b, IndexRange indices, int64_t coef = 0) {
  if (coef == 0 && a.offset == b.offset && a.coef == b.coef)
    return a.arena == b.arena; // nearly always
  auto at = [](const Place &place, int64_t member) {
    return place.offset + __int128(place.coef) * member;
  };
  return a.arena == b.arena &&
         at(a, indices.first) == at(b, indices.first) + __int128(coef) * indices.first &&
         at(a, indices.last) == at(b, indices.last) + __int128(coef) * indices.last;
}

/// offset + coef·member
struct Line {
  int64_t offset = 0, coef = 0;
  int64_t at(int64_t member) const { return offset + coef * member; }
  bool operator==(const Line &) const = default;
  auto operator<=>(const Line &) const = default;
};

/// From the largest of some lines to the smallest of others; one line each unless ranges that move
/// differently were cut with each other.
class Range {
public:
  static Range of(const Place &place, int64_t bytes, IndexRange indices) {
    Range range;
    range.arena_ = place.arena;
    int64_t coef = indices.isSole() ? 0 : place.coef; // one coordinate only: nothing moves
    int64_t offset = place.offset + (place.coef - coef) * indices.first;
    range.lower_[0] = {offset, coef};
    range.upper_[0] = {offset + bytes, coef};
    return range;
  }
  static Range of(const Value &value, IndexRange indices) {
    return of(value.place, value.type.bytes(), indices);
  }
  static Range of(const Cell &cell, IndexRange indices) {
    return of(cell.place, cell.type.bytes(), indices);
  }

  Arena arena() const { return arena_; }
  /// Equal lines; ranges that are the same by different lines are not found out.
  bool operator==(const Range &other) const {
    return arena_ == other.arena_ && inexact_ == other.inexact_ &&
           std::equal(lower_.begin(), lower_.begin() + lowers_, other.lower_.begin(),
                      other.lower_.begin() + other.lowers_) &&
           std::equal(upper_.begin(), upper_.begin() + uppers_, other.upper_.begin(),
                      other.upper_.begin() + other.uppers_);
  }
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
  bool isFixed() const {
    return lowers_ == 1 && uppers_ == 1 && lower_[0].coef == 0 && upper_[0].coef == 0;
  }
  /// True if it has no byte at any coordinate, as far as single lines show.
  bool isEmpty(IndexRange indices) const {
    for (uint8_t l = 0; l < lowers_; ++l)
      for (uint8_t u = 0; u < uppers_; ++u)
        if (lower_[l].at(indices.first) >= upper_[u].at(indices.first) &&
            lower_[l].at(indices.last) >= upper_[u].at(indices.last))
          return true;
    return false;
  }
  /// A coordinate at which it has bytes, if there is one. Where an end is ahead of a begin is a
  /// matter of one inequality each.
  std::optional<int64_t> findIndex(IndexRange indices) const {
    int64_t first = indices.first, last = indices.last;
    for (uint8_t l = 0; l < lowers_; ++l)
      for (uint8_t u = 0; u < uppers_; ++u) {
        int64_t room = upper_[u].offset - lower_[l].offset, slope = upper_[u].coef - lower_[l].coef;
        if (slope == 0 && room <= 0)
          return std::nullopt;
        // The quotient is rounded to zero, so its sign is kept out of it.
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

  /// True if it could not be cut exactly: too many lines. It is then larger than it should be.
  bool isInexact() const { return inexact_; }

  /// Smallest begin and largest end over all coordinates, or wider.
  int64_t hullBegin(IndexRange indices) const {
    int64_t begin = std::min(lower_[0].at(indices.first), lower_[0].at(indices.last));
    for (uint8_t i = 1; i < lowers_; ++i)
      begin = std::max(begin, std::min(lower_[i].at(indices.first), lower_[i].at(indices.last)));
    return begin;
  }
  int64_t hullEnd(IndexRange indices) const {
    int64_t end = std::max(upper_[0].at(indices.first), upper_[0].at(indices.last));
    for (uint8_t i = 1; i < uppers_; ++i)
      end = std::min(end, std::max(upper_[i].at(indices.first), upper_[i].at(indices.last)));
    return end;
  }

  Range intersect(const Range &other, IndexRange indices) const {
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
  /// What lies before `other`, and after it.
  Range before(const Range &other, IndexRange indices) const {
    Range result = *this;
    result.addUpper(other.lower_[0], indices);
    return result;
  }
  Range behind(const Range &other, IndexRange indices) const {
    Range result = *this;
    result.addLower(other.upper_[0], indices);
    return result;
  }

  /// Calls fn(line) for all lines that its ends follow.
  template <typename Fn> void forEachLine(const Fn &fn) const {
    for (uint8_t i = 0; i < lowers_; ++i)
      fn(lower_[i]);
    for (uint8_t i = 0; i < uppers_; ++i)
      fn(upper_[i]);
  }

private:
  static constexpr uint8_t kLinesMax = 4;
  using Lines = std::array<Line, kLinesMax>;

  void addLower(Line line, IndexRange indices) {
    add(lower_, lowers_, line, [&](const Line &a, const Line &b) {
      return a.at(indices.first) >= b.at(indices.first) && a.at(indices.last) >= b.at(indices.last);
    });
  }
  void addUpper(Line line, IndexRange indices) {
    add(upper_, uppers_, line, [&](const Line &a, const Line &b) {
      return a.at(indices.first) <= b.at(indices.first) && a.at(indices.last) <= b.at(indices.last);
    });
  }
  /// Keeps only lines that no other one makes superfluous at all coordinates.
  template <typename Decides>
  void add(Lines &lines, uint8_t &count, Line line, const Decides &decides) {
    for (uint8_t i = 0; i < count; ++i)
      if (decides(lines[i], line))
        return;
    uint8_t kept = 0;
    for (uint8_t i = 0; i < count; ++i)
      if (!decides(line, lines[i]))
        lines[kept++] = lines[i];
    count = kept;
    if (count == kLinesMax)
      inexact_ = true;
    else
      lines[count++] = line;
  }

  Arena arena_ = Arena::Work;
  uint8_t lowers_ = 1, uppers_ = 1;
  bool inexact_ = false;
  Lines lower_{}, upper_{};
};

} // namespace shardc::plan::verifier
