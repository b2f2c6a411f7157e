// Holds the verifier and the oracle against each other on mutations of a plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "Mutate.h"
#include "Oracle.h"

namespace shardc::plan::oracle {

/// Mutations of one kind by what oracle and verifier said.
struct Tally {
  int64_t broken = 0;    ///< a break, refused
  int64_t harmless = 0;  ///< no break, accepted
  int64_t missed = 0;    ///< a break, accepted
  int64_t tooStrict = 0; ///< no break, refused
};

struct Comparison {
  std::array<Tally, kMutationCount> tallies{};
  std::vector<std::string> disagreements; ///< for people; a few of them
  /// Files of accepted plans, in their folder, with what was changed.
  std::vector<std::pair<std::string, std::string>> accepted;
  std::string problem; ///< a file that could not be written, or a plan that nothing fits
  int64_t total() const;
};

struct Mutations {
  int64_t count = 1000;
  int randomOrders = 4; ///< that a mutation without a break is run in, besides those held back
  uint64_t seed = 1;
  std::vector<Mutation> kinds; ///< that the first one is of; empty: of all
  bool asksOracle = true;      ///< otherwise what the verifier accepts counts as harmless
  /// Where each accepted plan is written to, as `<number>-<mutation>.plan`; empty: nowhere.
  std::string acceptedFolder;
};

/// Tries mutations of the plan, one or two at a time.
void compare(const Plan &plan, const Mutations &mutations, Comparison &comparison);

} // namespace shardc::plan::oracle
