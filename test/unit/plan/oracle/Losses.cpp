#include <map>

#include <fmt/format.h>

#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

/// Which of a term's operands tell the tokens that it is of, and which one then has to be the same.
struct Told {
  std::vector<size_t> tokens;
  size_t same = 0;
};

Told toldBy(const Op &op) {
  if (op.kind == OpKind::LossAdd || op.kind == OpKind::EvalAdd)
    return {{2}, 1};
  if (op.kind == OpKind::CrossEntropyBwd && op.group >= 0)
    return {{2, 3}, 1};
  return {};
}

} // namespace

std::string findLossBreak(const std::vector<Term> &terms,
                          const std::function<Number(int)> &numberOf) {
  std::map<std::pair<const Op *, Number>, std::pair<Number, int64_t>> found; // what, on which rank
  for (const Term &term : terms) {
    const Told told = term.op == nullptr ? Told{} : toldBy(*term.op);
    if (told.tokens.empty())
      continue;
    Number tokens = 0;
    for (size_t operand : told.tokens)
      tokens = mix(tokens, numberOf(term.from[operand]));
    Number same = numberOf(term.from[told.same]);
    auto [at, isNew] = found.try_emplace({term.op, tokens}, same, term.rank);
    if (!isNew && at->second.first != same)
      return fmt::format("ranks {} and {} have other losses of the same tokens in '{}'",
                         at->second.second, term.rank, opInfo(term.op->kind).name);
  }
  return {};
}

} // namespace shardc::plan::oracle
