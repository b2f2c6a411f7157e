// plan-oracle [--mutations N] [--kind K]... [--orders N] [--seed S] [--run | --verify-only]
//             [--specification FILE] [--list] [--keep DIR] PLAN...
// plan-oracle --attributes N PLAN...
//
// The first form prints a table of mutations by kind and judgement; status 1 if verifier and oracle
// disagree on any. With --kind, mutations are of these kinds; a second change may be of any kind.
// With --run, execution replaces the oracle: each accepted mutation runs on the host three times,
// and must train like its plan. With --specification, a mutation is refused that differs from it.
// With --verify-only, only the verifier judges. With --list, each mutation is printed with the
// verifier's judgement. With --keep, plans on which both disagree are written to DIR.
//
// The second form verifies each value of the attributes that ops have, and every Nth value of those
// that they lack. Crashes are faults, and so are accepted plans whose text parses to another plan.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include "Attributes.h"
#include "Compare.h"
#include "Execute.h"
#include "runtime/base/Io.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc {
namespace {

std::optional<plan::oracle::Mutation> kindOf(std::string_view name) {
  for (int m = 0; m < plan::oracle::kMutationCount; ++m)
    if (auto mutation = static_cast<plan::oracle::Mutation>(m);
        plan::oracle::mutationName(mutation) == name)
      return mutation;
  return std::nullopt;
}

void printTable(const plan::oracle::Comparison &comparison) {
  fmt::print("| mutation | what is changed | refused breaks | accepted harmless | missed breaks | "
             "refused harmless |\n"
             "|---|---|--:|--:|--:|--:|\n");
  for (int m = 0; m < plan::oracle::kMutationCount; ++m) {
    auto mutation = static_cast<plan::oracle::Mutation>(m);
    const plan::oracle::Tally &tally = comparison.tallies[static_cast<size_t>(m)];
    fmt::print("| `{}` | {} | {} | {} | {} | {} |\n", plan::oracle::mutationName(mutation),
               plan::oracle::mutationDoc(mutation), tally.broken, tally.harmless, tally.missed,
               tally.tooStrict);
  }
  fmt::print("{} mutations\n", comparison.total());
}

Result<plan::Plan> readPlan(const std::string &file) {
  Result<std::string> text = readFile(file);
  return text.isOk() ? plan::parse(*text, file) : Result<plan::Plan>(text.status());
}

Status compareOne(const plan::Plan &plan, plan::oracle::Mutations mutations, bool runs,
                  plan::oracle::Comparison &comparison) {
  std::optional<plan::oracle::Reference> reference;
  if (runs) {
    reference.emplace(plan);
    if (!reference->problem().empty())
      return Status(StatusCode::InvalidInput, reference->problem());
    mutations.execute = [&](const plan::Plan &mutant, bool meansTheSame, uint64_t seed) {
      return reference->findBreak(mutant, meansTheSame, seed);
    };
  }
  plan::oracle::compare(plan, mutations, comparison);
  return Status::ok();
}

int setAttributes(const std::vector<std::string> &files, int64_t stride) {
  plan::oracle::AttributeTally tally;
  for (const std::string &file : files) {
    Result<plan::Plan> read = readPlan(file);
    if (!read.isOk()) {
      fmt::print(stderr, "{}\n", read.status().message());
      return 1;
    }
    plan::oracle::setEveryAttribute(*read, stride, tally);
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  fmt::print("{} values of attributes of {} kinds of ops, {} refused, {} changed by their text; "
             "{:.2f} s for the slowest, {} MiB at most\n",
             tally.total(), std::ranges::count_if(tally.mutants, [](int64_t n) { return n > 0; }),
             tally.refused, tally.changed, tally.slowestSeconds, used.ru_maxrss >> 10);
  return tally.changed == 0 ? 0 : 1;
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  using namespace shardc;
  plan::oracle::Mutations mutations;
  std::vector<std::string> files;
  int64_t stride = 0;
  bool runs = false;
  std::string specification;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc)
      mutations.count = std::atoll(argv[++i]);
    else if (std::strcmp(argv[i], "--kind") == 0 && i + 1 < argc && kindOf(argv[i + 1]))
      mutations.kinds.push_back(*kindOf(argv[++i]));
    else if (std::strcmp(argv[i], "--orders") == 0 && i + 1 < argc)
      mutations.randomOrders = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
      mutations.seed = static_cast<uint64_t>(std::atoll(argv[++i]));
    else if (std::strcmp(argv[i], "--verify-only") == 0)
      mutations.asksOracle = false;
    else if (std::strcmp(argv[i], "--attributes") == 0 && i + 1 < argc)
      stride = std::max(std::atoll(argv[++i]), 1LL);
    else if (std::strcmp(argv[i], "--run") == 0)
      runs = true;
    else if (std::strcmp(argv[i], "--specification") == 0 && i + 1 < argc)
      specification = argv[++i];
    else if (std::strcmp(argv[i], "--list") == 0)
      mutations.isListed = true;
    else if (std::strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
      mutations.folder = argv[++i];
    else
      files.emplace_back(argv[i]);
  }
  if (files.empty()) {
    fmt::print(stderr, "usage: plan-oracle [--mutations N] [--kind K]... [--orders N] [--seed S] "
                       "[--run | --verify-only] [--specification FILE] [--list] [--keep DIR] "
                       "[--attributes N] PLAN...\n");
    return 2;
  }
  if (!specification.empty()) {
    Result<plan::Plan> read = readPlan(specification);
    if (!read.isOk()) {
      fmt::print(stderr, "{}\n", read.status().message());
      return 1;
    }
    mutations.refuse = [model = std::move(*read)](const plan::Plan &mutant) {
      return plan::spec::compare(model, mutant).difference;
    };
  }
  if (stride > 0)
    return setAttributes(files, stride);
  plan::oracle::Comparison comparison;
  for (const std::string &file : files) {
    Result<plan::Plan> read = readPlan(file);
    if (!read.isOk()) {
      fmt::print(stderr, "{}\n", read.status().message());
      return 1;
    }
    if (Status status = compareOne(*read, mutations, runs, comparison); !status.isOk()) {
      fmt::print(stderr, "{}: {}\n", file, status.message());
      return 1;
    }
  }
  for (const std::string &line : comparison.list)
    fmt::print("{}\n", line);
  printTable(comparison);
  for (const std::string &text : comparison.disagreements)
    fmt::print("{}\n", text);
  if (!comparison.problem.empty())
    fmt::print(stderr, "{}\n", comparison.problem);
  return comparison.disagreements.empty() && comparison.problem.empty() ? 0 : 1;
}
