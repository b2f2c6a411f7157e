#include "Compare.h"

#include <fmt/format.h>

#include "runtime/plan/Printer.h"
#include "runtime/plan/Verify.h"

namespace shardc::plan::oracle {
namespace {

constexpr size_t kDisagreementsMax = 5;

} // namespace

int64_t Comparison::total() const {
  int64_t sum = 0;
  for (const Tally &tally : tallies)
    sum += tally.broken + tally.harmless + tally.missed + tally.tooStrict;
  return sum;
}

void compare(const Plan &plan, const Mutations &mutations, Comparison &comparison) {
  std::mt19937_64 random(mutations.seed);
  for (int64_t made = 0; made < mutations.count;) {
    Plan changed = plan;
    auto mutation = static_cast<Mutation>(random() % kMutationCount);
    std::string what = mutate(changed, mutation, random);
    // Two changes at once reach plans that one alone does not, as a swap with an added wait.
    if (!what.empty() && random() % 4 == 0)
      if (std::string more =
              mutate(changed, static_cast<Mutation>(random() % kMutationCount), random);
          !more.empty())
        what += "; " + more;
    if (what.empty())
      continue;
    ++made;
    std::vector<Finding> findings = verify(changed);
    std::string problem = findBreak(changed, {mutations.randomOrders, random()});
    Tally &tally = comparison.tallies[static_cast<size_t>(mutation)];
    if (problem.empty() && findings.empty()) {
      ++tally.harmless;
    } else if (!problem.empty() && !findings.empty()) {
      ++tally.broken;
    } else {
      ++(problem.empty() ? tally.tooStrict : tally.missed);
      if (comparison.disagreements.size() < kDisagreementsMax)
        comparison.disagreements.push_back(
            fmt::format("{}: {} ({})\n  oracle: {}\n  verifier: {}", plan.name, what,
                        mutationName(mutation), problem.empty() ? "no break" : problem,
                        findings.empty() ? "accepted" : render(changed, findings[0])));
    }
  }
}

} // namespace shardc::plan::oracle
