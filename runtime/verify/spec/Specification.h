// Proves that a plan computes what its specification says: the logical plan of the same recipe
// before it is divided among ranks. Each value of the plan is a value of the specification, at a
// placement, or the plan is refused. docs/plan.md describes what is proven, and with which axioms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/verify/Verify.h"

namespace shardc::plan::spec {

struct Comparison {
  /// Where the plan first computes something else, or something of which it is not known.
  std::optional<Finding> difference;
  bool isUnknown = false;            ///< it is something of which it is not known
  std::vector<std::string> declared; ///< how the plan differs from the model by what it is
  uint64_t visits = 0;               ///< of ops
};

/// Whether each step of the plan does what the specification says, for the program's first two
/// steps.
Comparison compare(const Plan &specification, const Plan &plan);

} // namespace shardc::plan::spec
