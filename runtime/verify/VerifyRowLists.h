// Rows of the microbatch's tokens as lists of ranges, and what moves of values make of them. What
// ops do to the rows of values, VerifyRows.cpp says.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {

inline constexpr int64_t kOwn = -1;

/// Some of the microbatch's rows, in the order in which a value has them. Of values that ranks with
/// slices of sequences exchange, `slice` says whose slice the rows are of, and `column` whose
/// columns of these rows: those of the member with that index, or the rank's own.
struct RowRange {
  int64_t first = 0, count = 0, slice = kOwn, column = kOwn;
  auto operator<=>(const RowRange &) const = default;
};
using RowList = std::vector<RowRange>;

/// Whose rows: the member of `RowRange` that says it.
using Whose = int64_t RowRange::*;

/// Lists that are made for members of larger groups, which have no parts of layers, or that get
/// longer, take too much work.
inline constexpr int64_t kMembersMax = 1024;
inline constexpr size_t kRangesMax = 4096;
inline bool isTooLong(const RowList &rows, int64_t times) {
  return times > kMembersMax || rows.size() * static_cast<size_t>(times) > kRangesMax;
}

int64_t countOf(const RowList &rows);
/// Puts a range behind the rows.
void append(RowList &rows, const RowRange &more);
/// `0 to 3 of slice 0, 8 to 11 of slice 1`
std::string toString(const RowList &rows);
/// The same rows, if they are that member's, as another member's. `from` and `to` may be the rank's
/// own, which is no member's in either respect.
std::optional<RowList> moved(const RowList &rows, Whose whose, int64_t from, int64_t to);
/// Those from the `first`-th on; nothing if there are not so many.
std::optional<RowList> slice(const RowList &rows, int64_t first, int64_t count);
/// The `i`-th of so many equal parts with some rows each; nothing if they are no such parts.
std::optional<RowList> partOf(const RowList &rows, int64_t i, int64_t parts);
/// The rank's rows repeated for each member, each time as the rows of that member.
std::optional<RowList> ofEach(const RowList &rows, int64_t members, Whose whose);
/// The reverse: if the list has the same rows of each member one after the other, these rows once.
std::optional<RowList> ofOwn(const RowList &rows, int64_t members, Whose whose);
/// Each member gives the others the columns of its slice, or its columns of their slices: columns
/// of the own slice go out, and come back as own columns of each slice.
std::optional<RowList> exchanged(const RowList &rows, int64_t members);
/// Chunks of members' slices [member, sample, half] in the order of sequences, or the other way
/// (see the op table).
std::optional<RowList> merged(const RowList &rows, int64_t samples, int64_t members,
                              bool isInverse);

/// The rows of a value: those of each index in a group, or of all ranks.
struct Layout {
  int16_t group = -1;
  std::vector<RowList> rows; ///< by index; one if all have the same
  Axes whole = 0;            ///< axes of slices along which the value has the slices of all ranks
  Axes parts = 0;            ///< axes over which the value is still a part of a sum

  auto operator<=>(const Layout &) const = default;
  bool isSame() const { return group < 0; }
  const RowList &of(int64_t index) const { return rows[isSame() ? 0 : static_cast<size_t>(index)]; }
};

/// Layouts are equal if their numbers are.
class LayoutTable {
public:
  static constexpr int kNone = 0; ///< number of a value without rows of tokens
  static constexpr int kUnknown =
      1; ///< number of a value of which it is not known which rows it has

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
