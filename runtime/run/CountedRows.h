// Finds the valid rows of values in a run op by op, from row counts that ops wrote or that a
// segment began with. Counts are copied, since other values may overwrite them before the rows are
// inspected.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "runtime/base/Reduction.h"
#include "runtime/exec/Executable.h"

namespace shardc::run {

class CountedRows final : public exec::OpObserver {
public:
  explicit CountedRows(exec::Executable &executable) : executable_(executable) {}
  Status beforeSegment(const Position &position) override;
  Status afterOp(const Position &position) override;

  /// The valid elements of a value of the segment; all elements if the value has no row counts.
  std::vector<ElementRange> elementsOf(uint32_t segment, size_t rank, plan::ValueId value) const;

private:
  Status keep(const Position &position, plan::ValueId counts);

  exec::Executable &executable_;
  std::map<std::tuple<uint32_t, size_t, plan::ValueId>, std::vector<int32_t>> kept_;
};

} // namespace shardc::run
