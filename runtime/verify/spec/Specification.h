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

/// Where a plan first computes something else, or something of which it is not known.
struct Difference {
  std::string message; ///< one sentence in the diagnostics' style
  Spot at;
  std::string meant; ///< the first value before that which the model does not have; may be empty
  Spot meantAt;
};

struct Comparison {
  std::optional<Difference> difference; ///< nothing: they are equal
  std::vector<std::string> declared;    ///< how the plan differs from the model by what it is
  uint64_t visits = 0;                  ///< of ops
};

/// Whether each step of the plan does what the specification says, for the program's first two
/// steps.
Comparison compare(const Plan &specification, const Plan &plan);

/// The difference in the diagnostics' form.
std::string render(const Plan &plan, const Difference &difference);

} // namespace shardc::plan::spec
