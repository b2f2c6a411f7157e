#include "Compare.h"

#include <fmt/format.h>

#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"

namespace shardc::plan::oracle {
namespace {

constexpr size_t kDisagreementsMax = 20;
/// The search gives up after this many consecutive draws for which the plan has no place.
constexpr int kVainMax = 10000;
/// If a mutation is refused but did not break in its random orders, it runs in this many times more
/// orders, because in some plans few orders start two collectives in reverse.
constexpr int kMoreOrders = 50;

/// Rules about the meaning of plans. Execution judges the plans that they refuse, because the
/// oracle of bytes and orders does not see all of the meaning.
bool isAboutMeaning(Rule rule) { return rule == Rule::Split || rule == Rule::State; }

/// Changes the plan once or twice. Two changes reach plans that one cannot reach, such as a swap
/// with an added wait. Returns a description; empty if nothing was changed.
std::string change(Plan &plan, Mutation first, std::mt19937_64 &random, bool &meansSame) {
  std::string what = mutate(plan, first, random);
  if (what.empty())
    return what;
  meansSame = meansTheSame(first);
  what += fmt::format(" [{}]", mutationName(first));
  if (random() % 4 == 0) {
    auto second = static_cast<Mutation>(random() % kMutationCount);
    if (std::string more = mutate(plan, second, random); !more.empty()) {
      what += fmt::format("; {} [{}]", more, mutationName(second));
      meansSame = meansSame && meansTheSame(second);
    }
  }
  return what;
}

void disagree(const Plan &changed, const Mutations &mutations, const std::string &text,
              Comparison &comparison) {
  comparison.disagreements.push_back(text);
  if (mutations.folder.empty())
    return;
  std::string file = fmt::format("{}/{}.plan", mutations.folder, comparison.disagreements.size());
  if (Status status = writeFileAtomic(file, print(changed)); !status.isOk())
    comparison.problem = std::string(status.message());
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
    bool meansSame = true;
    std::string what = change(changed, mutation, random, meansSame);
    if (what.empty()) {
      if (++vain == kVainMax) {
        comparison.problem = fmt::format("{} has no place for these mutations", plan.name);
        return;
      }
      continue;
    }
    vain = 0;
    if (Result<Plan> read = parse(print(changed), plan.name); read.isOk())
      changed = std::move(*read);
    else
      continue; // the verifier only judges what the parser accepts
    std::vector<Finding> findings = verify(changed);
    if (!findings.empty() && findings[0].rule == Rule::Followed)
      continue; // the verifier cannot judge it, so the oracle need not
    if (findings.empty() && mutations.refuse)
      if (std::optional<Finding> finding = mutations.refuse(changed))
        findings.push_back(std::move(*finding));
    ++made;
    uint64_t seed = random();
    bool isAccepted = findings.empty();
    if (mutations.isListed)
      comparison.list.push_back(
          fmt::format("{}\t{}\t{}\t{}", plan.name, made,
                      isAccepted ? std::string_view("accepted") : ruleId(findings[0].rule), what));
    bool asksOracle = mutations.asksOracle && !mutations.execute;
    std::string problem =
        asksOracle ? findBreak(changed, {mutations.randomOrders, seed}) : std::string();
    if (asksOracle && problem.empty() && !isAccepted && !isAboutMeaning(findings[0].rule))
      problem = findBreak(changed, {kMoreOrders * mutations.randomOrders, seed});
    if (mutations.execute && isAccepted)
      problem = mutations.execute(changed, meansSame, seed);
    if (!asksOracle && !isAccepted) {
      ++comparison.tallies[static_cast<size_t>(mutation)].broken;
      continue;
    }
    Tally &tally = comparison.tallies[static_cast<size_t>(mutation)];
    if (problem.empty() && isAccepted) {
      ++tally.harmless;
    } else if (!isAccepted && (!problem.empty() || isAboutMeaning(findings[0].rule))) {
      ++tally.broken;
    } else {
      ++(problem.empty() ? tally.tooStrict : tally.missed);
      if (comparison.disagreements.size() < kDisagreementsMax)
        disagree(changed, mutations,
                 fmt::format("{}: {}\n  {}: {}\n  verifier: {}", plan.name, what,
                             mutations.execute ? "run" : "oracle",
                             problem.empty() ? "no break" : problem,
                             isAccepted ? "accepted" : render(changed, findings[0])),
                 comparison);
    }
  }
}

} // namespace shardc::plan::oracle
