// Ranks must add losses of the same tokens.
#include <map>
#include <optional>

#include <fmt/format.h>

#include "Members.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

/// A number that is equal for two terms of one op if they must have the same losses: terms of the
/// same tokens, and, in one run, terms of ranks that have other columns of the same rows.
std::optional<Number> needOf(const Term &term, const Members &members,
                             const std::function<Number(int)> &numberOf) {
  if (term.op == nullptr)
    return std::nullopt;
  const Op &op = *term.op;
  if (op.kind == OpKind::LossAdd || op.kind == OpKind::EvalAdd)
    return numberOf(term.from[2]);
  if (op.kind == OpKind::CrossEntropyBwd && op.group >= 0)
    return mix(static_cast<Number>(members.of(term.rank, op.group).front()),
               static_cast<Number>(term.run));
  return std::nullopt;
}

} // namespace

std::string findLossBreak(const std::vector<Term> &terms, const Members &members,
                          const std::function<Number(int)> &numberOf) {
  std::map<std::pair<const Op *, Number>, std::pair<Number, int64_t>> found; // losses and rank
  for (const Term &term : terms) {
    std::optional<Number> need = needOf(term, members, numberOf);
    if (!need)
      continue;
    Number same = numberOf(term.from[1]);
    auto [at, isNew] = found.try_emplace({term.op, *need}, same, term.rank);
    if (!isNew && at->second.first != same)
      return fmt::format("ranks {} and {} have other losses of the same tokens in '{}'",
                         at->second.second, term.rank, opInfo(*term.op).name);
  }
  return {};
}

} // namespace shardc::plan::oracle
