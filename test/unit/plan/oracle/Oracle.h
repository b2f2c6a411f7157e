// Determines whether a small plan can go wrong, by running it: every byte holds the name of the
// value that was written to it, and ops of all streams and ranks run in many orders. It shares only
// the plan's types with the verifier, so that each tests the other.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

struct Options {
  /// Orders drawn at random, besides those that hold back one op as long as anything else can run.
  int randomOrders = 20;
  uint64_t seed = 1;
};

/// What an operand that reads another value's bytes, an access outside an arena, ranks that are
/// stuck, or an op that could not be executed at all looks like; empty for a plan that runs in all
/// orders.
std::string findBreak(const Plan &plan, const Options &options = {});

} // namespace shardc::plan::oracle
