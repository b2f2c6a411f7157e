// Plans in which one attribute of one op has another value: at the limits of its row, beyond them,
// and where products and quotients overflow. The verifier must return for each of them, and the
// text of accepted plans must parse to the same plan.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

struct AttributeTally {
  std::array<int64_t, kOpCount> mutants{}; ///< by kind of op
  int64_t refused = 0;
  int64_t changed = 0;       ///< accepted plans whose text parses to another plan
  double slowestSeconds = 0; ///< longest time for one of them

  int64_t total() const;
};

/// Verifies the plan with each value of each attribute that an op has, and with every `stride`-th
/// value of the attributes that it lacks.
void setEveryAttribute(const Plan &plan, int64_t stride, AttributeTally &tally);

/// A logical plan with one op of this form, which has the attributes that it needs, and an op that
/// fills its operands.
Plan planOfOne(OpKind kind);

} // namespace shardc::plan::oracle
