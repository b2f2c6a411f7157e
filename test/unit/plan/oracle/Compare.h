// Holds the verifier against the oracle, or against what mutations of a plan train.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
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
  std::vector<std::string> list; ///< each mutation with what the verifier says, if asked for
  std::string problem;           ///< a file that could not be written, or a plan that nothing fits
  int64_t total() const;
};

struct Mutations {
  int64_t count = 1000;
  int randomOrders = 4; ///< that a mutation without a break is run in, besides those held back
  uint64_t seed = 1;
  std::vector<Mutation> kinds; ///< that the first one is of; empty: of all
  bool asksOracle = true;      ///< otherwise what the verifier accepts counts as harmless
  /// If set, asked in place of the oracle, about what the verifier accepts: what is wrong with a
  /// mutation that has to train as the plan does, or only to be fine by itself.
  std::function<std::string(const Plan &mutant, bool meansTheSame, uint64_t seed)> execute;
  bool isListed = false;
  /// Where plans are written to on which both disagree, as `<number>.plan`; empty: nowhere.
  std::string folder;
};

/// Tries mutations of the plan, one or two at a time.
void compare(const Plan &plan, const Mutations &mutations, Comparison &comparison);

} // namespace shardc::plan::oracle
