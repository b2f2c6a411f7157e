// Plans in which one attribute of one op has another value: at the ends of what its row allows,
// beyond them, and where products and quotients of it go wrong. The verifier has to return for
// each, and the text of those that it accepts has to give the same plan.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

struct AttributeTally {
  std::array<int64_t, kOpCount> mutants{}; ///< by kind of op
  int64_t refused = 0;
  int64_t changed = 0;       ///< accepted, and another plan once printed and read
  double slowestSeconds = 0; ///< of what was done with one of them

  int64_t total() const;
};

/// Verifies the plan with each value of each attribute that an op has, and every `stride`-th value
/// of those that it has not.
void setEveryAttribute(const Plan &plan, int64_t stride, AttributeTally &tally);

/// A logical plan of one such op beside what fills its operands.
Plan planOfOne(OpForm form);

} // namespace shardc::plan::oracle
