// The order in which a role's program runs bodies within a step. `First` and `Last` of a body's
// predicates mean microbatch numbers; a body may run other microbatches first and last.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// The microbatches that a body runs first and last in a step.
struct Runs {
  int64_t first = 0, last = 0, count = 1;

  /// A predicate on the number of a microbatch that holds where `pred` holds for the order of runs.
  plan::Pred like(const plan::Pred &pred) const;
};

/// The runs of a role's bodies.
class RunOrder {
public:
  explicit RunOrder(const plan::Role &role);

  /// The runs of one body.
  const Runs &of(uint32_t segment) const { return bodies_[segment].runs; }
  /// Whether the first run of these bodies is one of `segment`.
  bool begins(uint32_t segment, const std::vector<uint32_t> &among) const;
  /// Whether the last run of these bodies is one of `segment`.
  bool ends(uint32_t segment, const std::vector<uint32_t> &among) const;

private:
  struct Body {
    Runs runs;
    int64_t begin = 0, end = 0; ///< numbers of its first and its last run among all runs
  };
  void follow(const std::vector<plan::ProgramNode> &nodes);

  std::vector<Body> bodies_; ///< by segment
  int64_t count_ = 0;        ///< runs
};

} // namespace shardc::passes
