// Compares the verifier with the oracle, or with the training results of mutations of a plan.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "Mutate.h"
#include "Oracle.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan::oracle {

/// Mutations of one kind, counted by the judgements of oracle and verifier.
struct Tally {
  int64_t broken = 0;    ///< the oracle finds a break, the verifier refuses
  int64_t harmless = 0;  ///< no break, accepted
  int64_t missed = 0;    ///< a break, accepted
  int64_t tooStrict = 0; ///< no break, refused
};

struct Comparison {
  std::array<Tally, kMutationCount> tallies{};
  std::vector<std::string> disagreements; ///< a few of them, as text
  std::vector<std::string> list; ///< each mutation with the verifier's judgement, if isListed
  std::string problem;           ///< unwritable file, or plan without places for the mutations
  int64_t total() const;
};

struct Mutations {
  int64_t count = 1000;
  int randomOrders = 4; ///< number of random orders, in addition to orders that hold back one op
  uint64_t seed = 1;
  std::vector<Mutation> kinds; ///< kinds of the first change; empty: all kinds
  bool asksOracle = true;      ///< if false, accepted mutations count as harmless
  /// If set, this also judges mutations that the verifier accepts.
  std::function<std::optional<Finding>(const Plan &mutant)> refuse;
  /// If set, this judges accepted mutations instead of the oracle. Returns what is wrong with a
  /// mutation. With `meansTheSame`, the mutation must train like the plan; otherwise it must only
  /// run without a fault.
  std::function<std::string(const Plan &mutant, bool meansTheSame, uint64_t seed)> execute;
  bool isListed = false;
  /// Folder for plans on which both disagree, as `<number>.plan`; empty: none.
  std::string folder;
};

/// Tries mutations of the plan, each with one or two changes.
void compare(const Plan &plan, const Mutations &mutations, Comparison &comparison);

} // namespace shardc::plan::oracle
