// The rows of tokens that a value contains, as lists of ranges, and the changes that ops make to
// such lists. VerifyRows.cpp says which op makes which change. Ranks with slices of sequences have
// different rows; so do chunks and pieces of a microbatch.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {

inline constexpr int64_t kOwn = -1;

/// A range of the microbatch's rows; a list has its ranges in the order of the value's rows.
/// `slice` is the index of the context-parallel member to whose slice the rows belong. `column` is
/// the index of the member whose columns (heads) they contain. kOwn: this rank's own.
struct RowRange {
  int64_t first = 0, count = 0, slice = kOwn, column = kOwn;
  auto operator<=>(const RowRange &) const = default;
};
using RowList = std::vector<RowRange>;

/// Which of the two owners an operation changes: &RowRange::slice or &RowRange::column.
using Whose = int64_t RowRange::*;

/// Limits of lists. Groups larger than this never divide layers, and longer lists would take too
/// much work. A value beyond a limit has an unknown layout.
inline constexpr int64_t kMembersMax = 1024;
inline constexpr size_t kRangesMax = 4096;
inline bool isTooLong(const RowList &rows, int64_t times) {
  return times > kMembersMax || rows.size() * static_cast<size_t>(times) > kRangesMax;
}

int64_t countOf(const RowList &rows);
/// Appends a range, and merges it with the last one if it continues it.
void append(RowList &rows, const RowRange &more);
/// `0 to 3 of slice 0, 8 to 11 of slice 1`
std::string toString(const RowList &rows);
/// The rows with their owner changed from `from` to `to`; none if a range has another owner. Either
/// may be kOwn.
std::optional<RowList> moved(const RowList &rows, Whose whose, int64_t from, int64_t to);
/// `count` rows from index `first` on; none if the list has fewer.
std::optional<RowList> slice(const RowList &rows, int64_t first, int64_t count);
/// The `i`-th of `parts` equal parts; none if the list cannot be divided into equal, non-empty
/// parts.
std::optional<RowList> partOf(const RowList &rows, int64_t i, int64_t parts);
/// The result of a gather: the rank's rows once per member of a group, each time owned by that
/// member.
std::optional<RowList> ofEach(const RowList &rows, int64_t members, Whose whose);
/// The reverse of ofEach(): the rows once, if the list has the same rows of each member in order;
/// none otherwise.
std::optional<RowList> ofOwn(const RowList &rows, int64_t members, Whose whose);
/// The exchange of attention with context parallelism (all-to-all): a rank gives its rows' columns
/// to the other members and gets its own columns of their slices, or the other way round.
std::optional<RowList> exchanged(const RowList &rows, int64_t members);
/// Reorders gathered slices [member, sample, half] into the order of the sequences, or the other
/// way round (see the op table).
std::optional<RowList> merged(const RowList &rows, int64_t samples, int64_t members,
                              bool isInverse);

/// The rows of a value on each rank: one list for each index in a group, or one for all ranks.
struct Layout {
  int16_t group = -1;
  std::vector<RowList> rows; ///< by index in the group; a single list if all ranks have the same
  Axes whole = 0;            ///< axes along which sequences are sliced and the value has all slices
  Axes parts = 0;            ///< axes over which the value is still a partial sum

  auto operator<=>(const Layout &) const = default;
  bool isSame() const { return group < 0; }
  const RowList &of(int64_t index) const { return rows[isSame() ? 0 : static_cast<size_t>(index)]; }
};

/// Numbers layouts, so that equal numbers are equal layouts and states compare in constant time.
class LayoutTable {
public:
  static constexpr int kNone = 0;    ///< list of a value that has no rows of tokens
  static constexpr int kUnknown = 1; ///< list of a value whose rows could not be determined

  int add(Layout layout) {
    if (std::ranges::all_of(layout.rows, [&](const RowList &r) { return r == layout.rows[0]; }))
      layout.group = -1, layout.rows.resize(1);
    auto [at, isNew] = numbers_.try_emplace(std::move(layout), static_cast<int>(layouts_.size()));
    if (isNew)
      layouts_.push_back(&at->first);
    return at->second;
  }
  const Layout &at(int number) const { return *layouts_[static_cast<size_t>(number)]; }

private:
  std::map<Layout, int> numbers_;
  std::vector<const Layout *> layouts_ = {nullptr, nullptr};
};

} // namespace shardc::plan::verifier
