// plan-meaning [--mutations N] [--seed S] [--list] [SPECIFICATION PLAN]...
// plan-meaning --refused SPECIFICATION PLAN...
//
// The first form makes N changes of each kind in what each plan means, and counts how many the
// verifier refuses, how many of the others the specification refuses, and how those train that both
// accept: a run may refuse them before its first step. With --list, it prints each of these. Status
// 1 if a change that both accept trains differently from its plan, or if a plan differs from its
// specification.
//
// The second form prints the plans that are equal to the specification, or cannot be read; status 1
// if there are any.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "Execute.h"
#include "MeaningMutants.h"
#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/Verify.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc {
namespace {

struct Options {
  int64_t mutations = 4;
  uint64_t seed = 11;
  bool isListed = false, isRefused = false;
  std::vector<std::string> files;
};

struct Tally {
  int64_t mutants = 0, verifier = 0, specification = 0, run = 0, same = 0, differ = 0;
};

/// The largest relative difference between the figures of two trainings.
double distance(const plan::oracle::Training &one, const plan::oracle::Training &other) {
  if (!other.problem.empty() || one.figures.size() != other.figures.size())
    return INFINITY;
  double most = 0;
  auto add = [&](double a, double b) {
    double far = std::fabs(a - b) / std::max(std::fabs(a), 1e-12);
    most = std::isnan(far) ? INFINITY : std::max(most, far);
  };
  for (size_t i = 0; i < one.figures.size(); ++i) {
    add(one.figures[i].loss, other.figures[i].loss);
    add(one.figures[i].gradNorm, other.figures[i].gradNorm);
  }
  return most;
}

/// The largest relative difference between sums in different orders.
constexpr double kSame = 1e-5;

Result<plan::Plan> readPlan(const std::string &file) {
  Result<std::string> text = readFile(file);
  return text.isOk() ? plan::parse(*text, file) : Result<plan::Plan>(text.status());
}

void judge(const plan::Plan &specification, const plan::Plan &mutant,
           const plan::oracle::Training &own, Tally &tally, const std::string &what,
           bool isListed) {
  ++tally.mutants;
  if (!plan::verify(mutant, 1).empty()) {
    ++tally.verifier;
    return;
  }
  if (plan::spec::compare(specification, mutant).difference) {
    ++tally.specification;
    return;
  }
  plan::oracle::Training training = plan::oracle::train(mutant, std::nullopt);
  bool isRefused = !training.problem.empty() && training.figures.empty();
  bool isSame = distance(own, training) <= kSame;
  ++(isRefused ? tally.run : isSame ? tally.same : tally.differ);
  if (isListed || !(isSame || isRefused))
    fmt::print("{}: {} {}\n",
               isRefused ? "does not run"
               : isSame  ? "trains the same"
                         : "trains otherwise",
               what, training.problem);
}

/// False if the plan differs from its specification or does not run.
bool judgePlan(const Options &options, size_t at, std::vector<Tally> &tallies) {
  Result<plan::Plan> specification = readPlan(options.files[at]),
                     plan = readPlan(options.files[at + 1]);
  for (const Result<plan::Plan> *each : {&specification, &plan})
    if (!each->isOk())
      return fmt::print("{}\n", each->status().message()), false;
  plan::spec::Comparison found = plan::spec::compare(*specification, *plan);
  if (found.difference)
    return fmt::print("{}: {}\n", options.files[at + 1], render(*plan, *found.difference)), false;
  plan::oracle::Training own = plan::oracle::train(*plan, std::nullopt);
  if (!own.problem.empty())
    return fmt::print("{}: {}\n", options.files[at + 1], own.problem), false;
  for (int kind = 0; kind < plan::oracle::kMeaningCount; ++kind)
    for (int64_t k = 0; k < options.mutations; ++k) {
      std::mt19937_64 random(options.seed * 1000003 + static_cast<uint64_t>(kind * 100003 + k));
      plan::Plan mutant;
      std::string what;
      for (int tries = 0; tries < 8 && what.empty(); ++tries) {
        mutant = *plan;
        what = mutateMeaning(mutant, static_cast<plan::oracle::Meaning>(kind), random);
      }
      if (!what.empty())
        judge(*specification, mutant, own, tallies[static_cast<size_t>(kind)],
              options.files[at + 1] + ": " + what, options.isListed);
    }
  return true;
}

int run(const Options &options) {
  std::vector<Tally> tallies(plan::oracle::kMeaningCount);
  bool isFine = true;
  for (size_t at = 0; at + 1 < options.files.size(); at += 2)
    isFine &= judgePlan(options, at, tallies);
  fmt::print(
      "| change | mutants | verifier refuses | specification refuses | run refuses | train the "
      "same | train otherwise |\n|---|--:|--:|--:|--:|--:|--:|\n");
  Tally sum;
  auto print = [](std::string_view name, const Tally &tally) {
    fmt::print("| {} | {} | {} | {} | {} | {} | {} |\n", name, tally.mutants, tally.verifier,
               tally.specification, tally.run, tally.same, tally.differ);
  };
  for (int kind = 0; kind < plan::oracle::kMeaningCount; ++kind) {
    const Tally &tally = tallies[static_cast<size_t>(kind)];
    print(toString(static_cast<plan::oracle::Meaning>(kind)), tally);
    sum.mutants += tally.mutants, sum.verifier += tally.verifier;
    sum.specification += tally.specification, sum.run += tally.run;
    sum.same += tally.same, sum.differ += tally.differ;
  }
  print("all", sum);
  return isFine && sum.differ == 0 ? 0 : 1;
}

/// False if a plan cannot be read, or is equal to the specification.
bool areRefused(const std::vector<std::string> &files) {
  bool isFine = true;
  Result<plan::Plan> specification = readPlan(files[0]);
  for (const std::string &file : files) {
    Result<plan::Plan> plan = readPlan(file);
    bool isRead = specification.isOk() && plan.isOk();
    if (isRead && (&file == &files[0] || plan::spec::compare(*specification, *plan).difference))
      continue;
    isFine = false;
    fmt::print("{}: {}\n", file, isRead ? "equal" : plan.status().message());
  }
  return isFine;
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  shardc::Options options;
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc)
      options.mutations = std::atoll(argv[++i]);
    else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
      options.seed = static_cast<uint64_t>(std::atoll(argv[++i]));
    else if (std::strcmp(argv[i], "--list") == 0)
      options.isListed = true;
    else if (std::strcmp(argv[i], "--refused") == 0)
      options.isRefused = true;
    else
      options.files.emplace_back(argv[i]);
  if (options.isRefused && options.files.size() > 1)
    return shardc::areRefused(options.files) ? 0 : 1;
  if (options.files.empty() || options.files.size() % 2 != 0) {
    fmt::print(stderr, "usage: plan-meaning [--mutations N] [--seed S] [--list] SPECIFICATION "
                       "PLAN...\n       plan-meaning --refused SPECIFICATION PLAN...\n");
    return 2;
  }
  return shardc::run(options);
}
