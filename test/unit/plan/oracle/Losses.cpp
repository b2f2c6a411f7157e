// Ranks must add losses of the same tokens, and divide by a token count over the same ranks.
#include <map>
#include <optional>
#include <set>

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

using Ranks = std::set<int64_t>;

/// The ranks whose slices of sequences a rank loads, and the ranks whose tokens it counts.
class Tokens {
public:
  Tokens(const std::vector<Term> &terms, const Members &members)
      : terms_(terms), members_(members) {}

  std::string find() {
    for (const Term &term : terms_)
      if (term.op != nullptr && term.op->kind == OpKind::BatchLoad && term.result == 0) {
        Ranks ranks = {term.rank};
        if (term.op->group >= 0)
          for (int64_t member : members_.of(term.rank, term.op->group))
            ranks.insert(member);
        if (!together_.try_emplace(term.rank, ranks).second && together_[term.rank] != ranks)
          return fmt::format("rank {} loads slices of other ranks' sequences", term.rank);
      }
    for (const Term &term : terms_)
      if (term.op != nullptr && term.result == 0 && countsOthers(term))
        return fmt::format("rank {}: '{}' divides by the tokens of other ranks", term.rank,
                           opInfo(*term.op).name);
    return {};
  }

private:
  bool countsOthers(const Term &term) const {
    bool isGradient =
        term.op->kind == OpKind::CrossEntropyBwd || term.op->kind == OpKind::LmLossGrad;
    if (!isGradient || term.op->getBool(AttrKey::per_token))
      return false;
    std::optional<Ranks> counted = countedIn(term.from[4]);
    auto together = together_.find(term.rank);
    return counted && together != together_.end() && *counted != together->second;
  }

  /// The ranks whose tokens a term counts; empty if the term is not a count.
  std::optional<Ranks> countedIn(int index) const {
    const Term &term = terms_[static_cast<size_t>(index)];
    if (term.op == nullptr)
      return std::nullopt;
    if (term.op->kind == OpKind::TokenCount)
      return Ranks{term.rank};
    if (term.op->kind != OpKind::AllReduce)
      return std::nullopt;
    Ranks all;
    for (int member : term.members) {
      std::optional<Ranks> its = countedIn(member);
      if (!its)
        return std::nullopt;
      all.insert(its->begin(), its->end());
    }
    return all;
  }

  const std::vector<Term> &terms_;
  const Members &members_;
  std::map<int64_t, Ranks> together_; ///< by rank: ranks with slices of the same sequences
};

} // namespace

std::string findTokenBreak(const std::vector<Term> &terms, const Members &members) {
  return Tokens(terms, members).find();
}

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
