// Finds the first op with a non-finite result, by inspecting every result after its op has ended.
#pragma once

#include <vector>

#include "runtime/run/CountedRows.h"

namespace shardc::run {

/// Index of the first element in [begin, end) that is infinite or NaN; -1 if there is none, or if
/// the type has no such values. With `takesMinusInfinity`, -inf is accepted. `data` must be host
/// memory.
int64_t findNonFinite(DType type, const void *data, int64_t begin, int64_t end,
                      bool takesMinusInfinity);
/// The element as text: `nan`, `inf`, `-inf` or a number.
std::string elementText(DType type, const void *data, int64_t index);

/// Ends a run op by op with Numeric at the first non-finite result. Ignores the padding of blocks,
/// and invalid rows.
class NonFiniteFinder final : public exec::OpObserver {
public:
  explicit NonFiniteFinder(exec::Executable &executable)
      : executable_(executable), rows_(executable) {}
  void setStep(int64_t step) { step_ = step; } ///< for messages
  Status beforeSegment(const Position &position) override;
  Status afterOp(const Position &position) override;

private:
  Status checkRoom(const Position &position, size_t rank, const plan::Op &op);
  Status checkResult(const Position &position, size_t rank, const plan::Op &op,
                     plan::ValueId value);

  exec::Executable &executable_;
  CountedRows rows_;
  int64_t step_ = 0;
  std::vector<uint8_t> copy_;
};

/// Whether ranks may send each other more rows than fit into slots.
bool mayExceedCapacity(const plan::Plan &plan);

} // namespace shardc::run
