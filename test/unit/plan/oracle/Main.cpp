// plan-oracle [--mutations N] [--kind K]... [--orders N] [--seed S] [--verify-only] [--accepted
// DIR] PLAN...: a table of mutations by kind and verdict; status 1 if verifier and oracle disagree
// on any. With --kind mutations are of these kinds, though a second one may be of any. With
// --verify-only nobody but the verifier is asked. Accepted plans are written to DIR, and a list of
// them with what was changed, accepted.tsv. With --attributes N the verifier is given each value of
// the attributes that ops have, and every Nth one of those that they have not; only a crash is
// wrong.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "Attributes.h"
#include "Compare.h"
#include "runtime/base/Io.h"
#include "runtime/plan/Parser.h"

using namespace shardc;

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
  fmt::print("{} values of attributes of {} kinds of ops, {} refused\n", tally.total(),
             std::ranges::count_if(tally.mutants, [](int64_t n) { return n > 0; }), tally.refused);
  return 0;
}

} // namespace

int main(int argc, char **argv) {
  plan::oracle::Mutations mutations;
  std::vector<std::string> files;
  int64_t stride = 0;
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
    else if (std::strcmp(argv[i], "--accepted") == 0 && i + 1 < argc)
      mutations.acceptedFolder = argv[++i];
    else
      files.emplace_back(argv[i]);
  }
  if (files.empty()) {
    fmt::print(stderr, "usage: plan-oracle [--mutations N] [--kind K]... [--orders N] [--seed S] "
                       "[--verify-only] [--accepted DIR] [--attributes N] PLAN...\n");
    return 2;
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
    plan::oracle::compare(*read, mutations, comparison);
  }
  printTable(comparison);
  std::string list;
  for (const auto &[file, what] : comparison.accepted)
    list += fmt::format("{}\t{}\n", file, what);
  if (!list.empty())
    if (Status status = writeFileAtomic(mutations.acceptedFolder + "/accepted.tsv", list);
        !status.isOk())
      comparison.problem = std::string(status.message());
  for (const std::string &text : comparison.disagreements)
    fmt::print("{}\n", text);
  if (!comparison.problem.empty())
    fmt::print(stderr, "{}\n", comparison.problem);
  return comparison.disagreements.empty() && comparison.problem.empty() ? 0 : 1;
}
