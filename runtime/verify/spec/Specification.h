// Proves that a plan computes what its specification says: the logical plan of the same recipe
// before it is divided among ranks. Each value of the plan must be a value of the specification at
// some placement; otherwise the plan is refused. docs/plan.md describes what is proved, and from
// which axioms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/verify/Verify.h"

namespace shardc::plan::spec {

/// The result of compare().
struct Comparison {
  /// Where the plan first differs from the specification, or where the proof does not cover an op
  /// or a placement.
  std::optional<Finding> difference;
  /// Known differences between what the plan computes and the model. They are not errors: they
  /// follow from the way in which work is divided among ranks, or the proof does not follow them.
  std::vector<std::string> declared;
  uint64_t visits = 0; ///< ops that were followed
};

/// Compares the plan with the specification for the program's first two steps.
Comparison compare(const Plan &specification, const Plan &plan);

/// The form of a specification in Plan::specification.
std::string packed(const Plan &specification);

/// Whether the plan is equal to the specification that it carries. A plan without one is
/// accepted. The plan must obey the rules of Verify.h. Errors: InvalidInput with the difference, or
/// if the specification is damaged.
Status proved(const Plan &plan);

} // namespace shardc::plan::spec
