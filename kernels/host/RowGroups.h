// Rows in groups. A tensor of `bound` rows consists of equal slots. Each slot begins with the rows
// of its groups, one group after the other, with the numbers of rows in counts i32[slots, groups].
// Further rows of a slot are not valid.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/host/Check.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {

/// Null, or the reason why counts do not match `bound` rows.
inline const char *checkCounts(const Tensor &counts, int64_t bound) {
  SHARDC_REQUIRE(bound % counts.shape[0] == 0, "the rows do not consist of equal slots");
  return nullptr;
}
/// The same for counts as operand `kCounts`, if the call has it, of the rows of operand `kRows`.
template <int kCounts, int kRows = 0> const char *acceptsCounts(const Call &call) {
  return call.inCount > kCounts ? checkCounts(call.in[kCounts], call.in[kRows].rows()) : nullptr;
}

/// Number of rows of a group whose slot has `rowsLeft` rows left. Never exceeds the slot, whatever
/// the count is.
inline int64_t rowsOfGroup(int32_t count, int64_t rowsLeft) {
  return std::clamp<int64_t>(count, 0, rowsLeft);
}

/// Number of rows of all groups of a slot.
inline int64_t rowsOfSlot(const Tensor &counts, int64_t slot, int64_t slotRows) {
  int64_t groups = counts.shape[1], rows = 0;
  const int32_t *ofSlot = static_cast<const int32_t *>(counts.data) + slot * groups;
  for (int64_t group = 0; group < groups; ++group)
    rows += rowsOfGroup(ofSlot[group], slotRows - rows);
  return rows;
}

/// Calls `fn(row)` for each valid row; without counts, all rows are valid.
template <typename Fn> void forRowsThere(const Tensor *counts, int64_t bound, const Fn &fn) {
  int64_t slots = counts ? counts->shape[0] : 1, slotRows = bound / slots;
  for (int64_t slot = 0; slot < slots; ++slot)
    for (int64_t i = 0, rows = counts ? rowsOfSlot(*counts, slot, slotRows) : bound; i < rows; ++i)
      fn(slot * slotRows + i);
}

/// The first row, and the number of rows, of each group.
class RowGroups {
public:
  RowGroups(const Tensor &counts, int64_t bound, Scratch &scratch)
      : slots(counts.shape[0]), groups(counts.shape[1]), slotRows(bound / slots), counts_(counts),
        begins_(scratch.take<int64_t>(slots * groups)),
        rows_(scratch.take<int64_t>(slots * groups)) {}

  void read() {
    const int32_t *counts = static_cast<const int32_t *>(counts_.data);
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t group = 0, used = 0; group < groups; ++group) {
        int64_t at = slot * groups + group;
        begins_[at] = slot * slotRows + used;
        rows_[at] = rowsOfGroup(counts[at], slotRows - used);
        used += rows_[at];
      }
  }

  int64_t begin(int64_t slot, int64_t group) const { return begins_[slot * groups + group]; }
  int64_t rows(int64_t slot, int64_t group) const { return rows_[slot * groups + group]; }

  const int64_t slots, groups, slotRows;

private:
  const Tensor &counts_;
  int64_t *begins_, *rows_;
};

/// y[r,:] = x[r,:] + bias[e,:] (·weights[r]) for each row r of each group e. y may be x.
void addBiases(const RowGroups &groups, const Tensor &x, const Tensor &bias, const Tensor *weights,
               const Tensor &y);

} // namespace shardc::kernels::host
