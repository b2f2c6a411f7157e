// The valid rows of values in a run op by op: counts as ops wrote them, or as a segment began with
// them. When rows are looked at, other values may already use the bytes of the counts, so they are
// copied.
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

  /// The elements that are there of a value of the segment: all of them where no counts say less.
  std::vector<ElementRange> elementsOf(uint32_t segment, size_t rank, plan::ValueId value) const;

private:
  Status keep(const Position &position, plan::ValueId counts);

  exec::Executable &executable_;
  std::map<std::tuple<uint32_t, size_t, plan::ValueId>, std::vector<int32_t>> kept_;
};

} // namespace shardc::run
