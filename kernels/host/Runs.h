// Rows in runs: a tensor of `bound` rows consists of equal slots; each begins with the rows of its
// runs, one run behind the other, as counts i32[slots, runs] say. Other rows are not there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/host/Check.h"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {

/// Null, or why counts do not fit rows in slots.
inline const char *checkCounts(const Tensor &counts, int64_t bound) {
  SHARDC_REQUIRE(counts.dtype == DType::I32 && counts.rank == 2, "counts are not i32[slots, runs]");
  SHARDC_REQUIRE(bound % counts.shape[0] == 0, "the rows do not consist of equal slots");
  return nullptr;
}

/// Where runs begin and how many rows they have. No run goes beyond its slot, whatever counts say.
class Runs {
public:
  Runs(const Tensor &counts, int64_t bound, Scratch &scratch)
      : slots(counts.shape[0]), runs(counts.shape[1]), slotRows(bound / slots), counts_(counts),
        begins_(scratch.take<int64_t>(slots * runs)), rows_(scratch.take<int64_t>(slots * runs)) {}

  void read() {
    const int32_t *counts = static_cast<const int32_t *>(counts_.data);
    for (int64_t slot = 0; slot < slots; ++slot)
      for (int64_t run = 0, used = 0; run < runs; ++run) {
        int64_t at = slot * runs + run;
        begins_[at] = slot * slotRows + used;
        rows_[at] = std::clamp<int64_t>(counts[at], 0, slotRows - used);
        used += rows_[at];
      }
  }

  int64_t begin(int64_t slot, int64_t run) const { return begins_[slot * runs + run]; }
  int64_t rows(int64_t slot, int64_t run) const { return rows_[slot * runs + run]; }

  const int64_t slots, runs, slotRows;

private:
  const Tensor &counts_;
  int64_t *begins_, *rows_;
};

} // namespace shardc::kernels::host
