// Small changes of plans. Some break a plan, others are harmless: the oracle decides which.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

enum class Mutation : uint8_t {
#define MUTATION(enumerator, name, meaning, doc) enumerator,
#include "Mutations.def"
};
inline constexpr int kMutationCount = 0
#define MUTATION(enumerator, name, meaning, doc) +1
#include "Mutations.def"
    ;
std::string_view mutationName(Mutation mutation);
std::string_view mutationDoc(Mutation mutation);
/// Whether an accepted mutation must train like its plan.
bool meansTheSame(Mutation mutation);

/// Changes the plan at a random place. Returns what was done; empty if there is no such place, and
/// then the plan is unchanged. In the result, values are still defined before their uses.
std::string mutate(Plan &plan, Mutation mutation, std::mt19937_64 &random);

} // namespace shardc::plan::oracle
