// Small changes of plans: some break them, some are harmless. Which is which, the oracle says.
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
/// Whether an accepted mutation has to train as its plan does.
bool meansTheSame(Mutation mutation);

/// Changes the plan at a place drawn from `random`. Returns what was done; empty, and the plan as
/// it was, if there is no such place. The result is well-formed: values stand before their uses.
std::string mutate(Plan &plan, Mutation mutation, std::mt19937_64 &random);

} // namespace shardc::plan::oracle
