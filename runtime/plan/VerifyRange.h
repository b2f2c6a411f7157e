// Byte ranges of an arena whose ends may move with the data-parallel coordinate.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::plan::verifier {

/// offset + coef·dp
struct Line {
  int64_t offset = 0, coef = 0;
  int64_t at(int64_t dp) const { return offset + coef * dp; }
  bool operator==(const Line &) const = default;
  auto operator<=>(const Line &) const = default;
};

/// From the largest of some lines to the smallest of others; one line each unless ranges that move
/// differently were cut with each other.
class Range {
public:
  static Range of(const Place &place, int64_t bytes, int64_t lastDp) {
    Range range;
    range.arena_ = place.arena;
    int64_t coef = lastDp == 0 ? 0 : place.coefDp; // one coordinate only: nothing moves
    range.lower_[0] = {place.offset, coef};
    range.upper_[0] = {place.offset + bytes, coef};
    return range;
  }
  static Range of(const Value &value, int64_t lastDp) {
    return of(value.place, value.type.bytes(), lastDp);
  }
  static Range of(const Cell &cell, int64_t lastDp) {
    return of(cell.place, cell.type.bytes(), lastDp);
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
  int64_t begin(int64_t dp) const {
    int64_t begin = lower_[0].at(dp);
    for (uint8_t i = 1; i < lowers_; ++i)
      begin = std::max(begin, lower_[i].at(dp));
    return begin;
  }
  int64_t end(int64_t dp) const {
    int64_t end = upper_[0].at(dp);
    for (uint8_t i = 1; i < uppers_; ++i)
      end = std::min(end, upper_[i].at(dp));
    return end;
  }
  bool isFixed() const {
    return lowers_ == 1 && uppers_ == 1 && lower_[0].coef == 0 && upper_[0].coef == 0;
  }
  /// True if it has no byte at any coordinate, as far as single lines tell.
  bool isEmpty(int64_t lastDp) const {
    for (uint8_t l = 0; l < lowers_; ++l)
      for (uint8_t u = 0; u < uppers_; ++u)
        if (lower_[l].at(0) >= upper_[u].at(0) && lower_[l].at(lastDp) >= upper_[u].at(lastDp))
          return true;
    return false;
  }
  /// True if it could not be cut exactly: too many lines. It is then larger than it should be.
  bool isInexact() const { return inexact_; }

  /// Smallest begin and largest end over all coordinates, or wider.
  int64_t hullBegin(int64_t lastDp) const {
    int64_t begin = std::min(lower_[0].at(0), lower_[0].at(lastDp));
    for (uint8_t i = 1; i < lowers_; ++i)
      begin = std::max(begin, std::min(lower_[i].at(0), lower_[i].at(lastDp)));
    return begin;
  }
  int64_t hullEnd(int64_t lastDp) const {
    int64_t end = std::max(upper_[0].at(0), upper_[0].at(lastDp));
    for (uint8_t i = 1; i < uppers_; ++i)
      end = std::min(end, std::max(upper_[i].at(0), upper_[i].at(lastDp)));
    return end;
  }

  Range intersect(const Range &other, int64_t lastDp) const {
    Range result = *this;
    if (arena_ != other.arena_) {
      result.upper_[0] = result.lower_[0];
      return result;
    }
    for (uint8_t i = 0; i < other.lowers_; ++i)
      result.addLower(other.lower_[i], lastDp);
    for (uint8_t i = 0; i < other.uppers_; ++i)
      result.addUpper(other.upper_[i], lastDp);
    result.inexact_ |= other.inexact_;
    return result;
  }
  /// What lies before `other`, and behind it.
  Range before(const Range &other, int64_t lastDp) const {
    Range result = *this;
    result.addUpper(other.lower_[0], lastDp);
    return result;
  }
  Range behind(const Range &other, int64_t lastDp) const {
    Range result = *this;
    result.addLower(other.upper_[0], lastDp);
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

  void addLower(Line line, int64_t lastDp) {
    add(lower_, lowers_, line, [&](const Line &a, const Line &b) {
      return a.at(0) >= b.at(0) && a.at(lastDp) >= b.at(lastDp);
    });
  }
  void addUpper(Line line, int64_t lastDp) {
    add(upper_, uppers_, line, [&](const Line &a, const Line &b) {
      return a.at(0) <= b.at(0) && a.at(lastDp) <= b.at(lastDp);
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
