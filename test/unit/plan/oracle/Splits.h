// Which ranks have the same elements of split parameters.
#pragma once

#include "Positions.h"

namespace shardc::plan::oracle {

class Splits {
public:
  Splits(const Plan &plan, const Positions &positions) : plan_(plan), positions_(positions) {}

  /// Whether both ranks have the same elements of the parameter, apart from their parts of its
  /// block.
  bool areSame(const Param &param, int64_t a, int64_t b) const;
  /// Whether both ranks have the same elements of all parameters of the block.
  bool areSame(int32_t block, int64_t a, int64_t b) const;

private:
  const Plan &plan_;
  const Positions &positions_;
};

} // namespace shardc::plan::oracle
