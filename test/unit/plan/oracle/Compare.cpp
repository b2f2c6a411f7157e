#include "Compare.h"

#include <fmt/format.h>

#include "runtime/base/Io.h"
#include "runtime/plan/Printer.h"
#include "runtime/verify/Verify.h"

namespace shardc::plan::oracle {
namespace {

constexpr size_t kDisagreementsMax = 5;
/// So many draws without a place in the plan, one after the other, are the last ones.
constexpr int kVainMax = 10000;

void keep(const Plan &plan, const Mutations &mutations, const std::string &name,
          const std::string &what, Comparison &comparison) {
  if (Status status = writeFileAtomic(mutations.acceptedFolder + "/" + name, print(plan));
      !status.isOk())
    comparison.problem = std::string(status.message());
  comparison.accepted.emplace_back(name, what);
}

} // namespace

int64_t Comparison::total() const {
  int64_t sum = 0;
  for (const Tally &tally : tallies)
    sum += tally.broken + tally.harmless + tally.missed + tally.tooStrict;
  return sum;
}

void compare(const Plan &plan, const Mutations &mutations, Comparison &comparison) {
  std::mt19937_64 random(mutations.seed);
  int vain = 0;
  for (int64_t made = 0; made < mutations.count;) {
    Plan changed = plan;
    const std::vector<Mutation> &kinds = mutations.kinds;
    auto mutation = kinds.empty() ? static_cast<Mutation>(random() % kMutationCount)
                                  : kinds[random() % kinds.size()];
    std::string what = mutate(changed, mutation, random);
    // Two changes at once reach plans that one alone does not, as a swap with an added wait.
    if (!what.empty())
      what += fmt::format(" [{}]", mutationName(mutation));
    if (!what.empty() && random() % 4 == 0) {
      auto second = static_cast<Mutation>(random() % kMutationCount);
      if (std::string more = mutate(changed, second, random); !more.empty())
        what += fmt::format("; {} [{}]", more, mutationName(second));
    }
    if (what.empty()) {
      if (++vain == kVainMax) {
        comparison.problem = fmt::format("{} has no place for these mutations", plan.name);
        return;
      }
      continue;
    }
    vain = 0;
    std::vector<Finding> findings = verify(changed);
    if (!findings.empty() && findings[0].rule == Rule::Followed)
      continue; // the oracle judges nothing but what the verifier can
    ++made;
    uint64_t seed = random();
    std::string problem =
        mutations.asksOracle ? findBreak(changed, {mutations.randomOrders, seed}) : std::string();
    if (findings.empty() && !mutations.acceptedFolder.empty())
      keep(changed, mutations,
           fmt::format("{}-{}.plan", comparison.accepted.size(), mutationName(mutation)), what,
           comparison);
    if (!mutations.asksOracle && !findings.empty()) {
      ++comparison.tallies[static_cast<size_t>(mutation)].broken;
      continue;
    }
    Tally &tally = comparison.tallies[static_cast<size_t>(mutation)];
    if (problem.empty() && findings.empty()) {
      ++tally.harmless;
    } else if (!problem.empty() && !findings.empty()) {
      ++tally.broken;
    } else {
      ++(problem.empty() ? tally.tooStrict : tally.missed);
      if (comparison.disagreements.size() < kDisagreementsMax)
        comparison.disagreements.push_back(
            fmt::format("{}: {}\n  oracle: {}\n  verifier: {}", plan.name, what,
                        problem.empty() ? "no break" : problem,
                        findings.empty() ? "accepted" : render(changed, findings[0])));
    }
  }
}

} // namespace shardc::plan::oracle
