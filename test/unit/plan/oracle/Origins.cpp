// Follows, from rank to rank, whose keys are used by attention on slices.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "Members.h"
#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

constexpr int64_t kSeveral = -1, kNotKnown = -2;

class Origins {
public:
  Origins(const std::vector<Term> &terms, const Members &members)
      : terms_(terms), homes_(terms.size(), kNotKnown) {
    for (const Term &term : terms)
      if (term.op != nullptr && term.op->kind == OpKind::BatchLoad && term.result == 0)
        positions_[term.rank] =
            term.numel *
            (term.op->group < 0 ? 1 : std::ssize(members.of(term.rank, term.op->group)));
  }

  std::string find() {
    for (const Term &term : terms_)
      if (term.op != nullptr && term.result == 0) {
        std::string problem = findIn(term);
        if (problem.empty() && seesSome(term))
          problem = fmt::format("'{}' takes attention to some keys", opInfo(*term.op).name);
        if (!problem.empty())
          return fmt::format("rank {}: {}", term.rank, problem);
      }
    return {};
  }

private:
  /// Whether the op takes attention to the keys of only some members, without joining it with the
  /// others.
  bool seesSome(const Term &term) {
    if (term.op->kind == OpKind::AttentionJoin || !positions_.contains(term.rank))
      return false;
    return std::ranges::any_of(term.from, [&](int from) {
      std::map<int64_t, int64_t> keys = keysOf(terms_[static_cast<size_t>(from)]);
      int64_t seen = 0;
      for (auto [home, positions] : keys)
        seen += positions;
      return !keys.empty() && !keys.contains(kSeveral) && seen < positions_.at(term.rank);
    });
  }

  /// For each rank, the number of its keys' positions to which the term attends.
  std::map<int64_t, int64_t> keysOf(const Term &term) {
    std::map<int64_t, int64_t> keys;
    if (term.op != nullptr && term.op->kind == OpKind::AttentionPart)
      keys[homeOf(term.from[1])] = terms_[static_cast<size_t>(term.from[4])].numel;
    else if (term.op != nullptr && term.op->kind == OpKind::AttentionJoin)
      for (int from : term.from)
        keys.merge(keysOf(terms_[static_cast<size_t>(from)]));
    return keys;
  }

  std::string findIn(const Term &term) {
    OpKind kind = term.op->kind;
    auto areHere = [&](std::initializer_list<size_t> operands) {
      return std::ranges::all_of(
          operands, [&](size_t operand) { return homeOf(term.from[operand]) == term.rank; });
    };
    auto areTogether = [&](std::initializer_list<size_t> operands) {
      int64_t first = homeOf(term.from[*operands.begin()]);
      return first != kSeveral && std::ranges::all_of(operands, [&](size_t operand) {
               return homeOf(term.from[operand]) == first;
             });
    };
    bool isPart = kind == OpKind::AttentionPart, isBackward = kind == OpKind::AttentionPartBwd;
    if ((isPart && !areTogether({1, 2, 4, 6})) || (isBackward && !areTogether({2, 3, 7, 9})))
      return "keys, their values, positions and documents are of several ranks";
    if ((isPart && !areHere({0, 3, 5})) || (isBackward && !areHere({1, 6, 8})))
      return "queries, their positions and documents are of another rank";
    if (kind == OpKind::MergeQkv || kind == OpKind::MergeQkvRope ||
        kind == OpKind::MergeQkvNormRope)
      for (size_t i = 0; i < term.from.size(); ++i)
        if (!areHere({i}))
          return "gradients of another rank's queries, keys or values are merged";
    return {};
  }

  int64_t homeOf(int index) {
    int64_t &home = homes_[static_cast<size_t>(index)];
    return home != kNotKnown ? home : home = find(terms_[static_cast<size_t>(index)]);
  }

  int64_t find(const Term &term) {
    int64_t home = homeOfResult(term);
    for (int added : term.added)
      home = homeOf(added) == home ? home : kSeveral;
    return home;
  }

  int64_t homeOfResult(const Term &term) {
    if (term.op == nullptr)
      return term.rank;
    OpKind kind = term.op->kind;
    if (kind == OpKind::Shift)
      return homeOf(shiftedFrom(term));
    if (kind == OpKind::AttentionPartBwd && term.result > 0)
      return homeOf(term.from[2]);
    if (kind == OpKind::AttentionPart || kind == OpKind::AttentionPartBwd)
      return term.rank;
    if (kind == OpKind::Add)
      return homeOf(term.from[0]) == homeOf(term.from[1]) ? homeOf(term.from[0]) : kSeveral;
    if (isMeeting(*term.op)) {
      bool isOwn = std::ranges::all_of(term.members, [&](int member) {
        return homeOf(member) == terms_[static_cast<size_t>(member)].rank;
      });
      return isOwn ? term.rank : kSeveral;
    }
    int64_t home = term.rank;
    for (int from : term.from)
      if (int64_t its = homeOf(from); its != term.rank)
        home = home == term.rank || home == its ? its : kSeveral;
    return home;
  }

  const std::vector<Term> &terms_;
  std::vector<int64_t> homes_;           ///< by term: the rank to which it belongs
  std::map<int64_t, int64_t> positions_; ///< by rank: positions in its batches, in full sequences
};

/// The ranks with which a rank has exchanged slices of tokens' values in a run, until it exchanges
/// them back.
class Exchanges {
public:
  explicit Exchanges(const std::vector<Term> &terms) : terms_(terms) {}

  std::string find() {
    for (const Term &term : terms_) {
      std::set<Partners> found;
      for (size_t k = 0; k < term.from.size() && !isAmaxes(term); ++k)
        if (std::optional<Partners> partners = partnersOf(term, term.from[k]);
            partners && dependsOn(term, k))
          found.insert(*partners);
      if (found.size() > 1 && !isAlias(*term.op))
        return fmt::format("rank {}: '{}' takes slices that are exchanged, and others", term.rank,
                           opInfo(*term.op).name);
    }
    return {};
  }

private:
  using Partners = std::set<std::vector<int64_t>>; ///< ranks of each open exchange

  /// Whether the term is an array of amaxes, which belongs to several tensors.
  static bool isAmaxes(const Term &term) {
    return term.op != nullptr && factsOf(*term.op).seesAmaxes &&
           inPlaceOperand(*term.op, term.result) >= 0;
  }

  std::optional<Partners> partnersOf(const Term &taker, int from) {
    return terms_[static_cast<size_t>(from)].run == taker.run ? partnersOf(from) : std::nullopt;
  }

  std::optional<Partners> partnersOf(int index) {
    auto [at, isNew] = partners_.try_emplace(index);
    if (isNew)
      at->second = find(terms_[static_cast<size_t>(index)]);
    return partners_[index];
  }

  std::optional<Partners> find(const Term &term) {
    if (term.op == nullptr || isAmaxes(term))
      return std::nullopt;
    std::optional<Partners> partners;
    if (term.op->kind == OpKind::Embedding || term.op->kind == OpKind::EmbeddingShard)
      partners = Partners();
    for (int from : term.from)
      partners = partners ? partners : partnersOf(term, from);
    if (term.op->kind != OpKind::AllToAll || !partners)
      return partners;
    std::vector<int64_t> ranks;
    for (int member : term.members)
      ranks.push_back(terms_[static_cast<size_t>(member)].rank);
    if (partners->erase(ranks) == 0)
      partners->insert(ranks);
    return partners;
  }

  const std::vector<Term> &terms_;
  std::map<int, std::optional<Partners>> partners_;
};

} // namespace

std::string findOriginBreak(const std::vector<Term> &terms, const Members &members) {
  std::string problem = Origins(terms, members).find();
  return problem.empty() ? Exchanges(terms).find() : problem;
}

} // namespace shardc::plan::oracle
