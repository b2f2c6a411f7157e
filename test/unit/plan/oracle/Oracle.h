// Runs a small plan to find out whether it can go wrong: every byte holds a label of the value that
// was written to it, and ops of all streams and ranks run in many orders. It shares only the plan's
// types with the verifier, so that each tests the other.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

struct Options {
  /// Number of random orders, in addition to orders that hold back one op as long as possible.
  int randomOrders = 20;
  uint64_t seed = 1;
};

/// Describes the first failure: an operand that reads another value's bytes, an access outside an
/// arena, ranks that are stuck, or an op that cannot be executed. Empty if the plan works in all
/// orders.
std::string findBreak(const Plan &plan, const Options &options = {});

} // namespace shardc::plan::oracle
