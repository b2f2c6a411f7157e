// Checks whose keys and values attention of slices takes: ranks shift them around with their
// positions and documents, and shift their gradients back, or exchange slices for heads and back.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

/// Whose a value is: this rank's own, that of the member of a group so many places before it, of
/// several ranks, or not known.
struct Origin {
  enum Kind : uint8_t { OfMember, OfSeveral, Unknown } kind = OfMember;
  int64_t by = 0;
  int16_t group = -1; ///< -1 if it is its own
  bool isForeign() const { return kind == OfSeveral || (kind == OfMember && by != 0); }
  bool operator==(const Origin &) const = default;
};

/// Of what is computed of both, and belongs to the one that has been shifted.
Origin joined(const Origin &a, const Origin &b) {
  if (a == b || (a.kind != Origin::Unknown && b == Origin{}))
    return a;
  if (b.kind != Origin::Unknown && a == Origin{})
    return b;
  bool isKnown = a.kind != Origin::Unknown && b.kind != Origin::Unknown;
  return {isKnown ? Origin::OfSeveral : Origin::Unknown};
}

/// Of a sum, element by element.
Origin added(const Origin &a, const Origin &b) {
  if (a == b)
    return a;
  bool isKnown = a.kind != Origin::Unknown && b.kind != Origin::Unknown;
  return {isKnown ? Origin::OfSeveral : Origin::Unknown};
}

/// Operands of attention of a part: keys and values with their positions and documents, and queries
/// with theirs.
struct PartOperands {
  size_t k, v, positions, docs, q, queryPositions, queryDocs;
};
constexpr PartOperands kForward = {1, 2, 4, 6, 0, 3, 5}, kBackward = {2, 3, 7, 9, 1, 6, 8};

class OriginCheck {
public:
  explicit OriginCheck(const Scope &scope)
      : scope_(scope), segment_(scope.segment), origins_(segment_.values.size()) {
    for (const Segment::Boundary &in : segment_.ins)
      if (scope.role.cells[in.cell].kind == CellKind::Buffer)
        origins_[in.value].kind = Origin::Unknown;
  }

  void run() {
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      follow(i, segment_.ops[i]);
      followKeys(i, segment_.ops[i]);
    }
  }

private:
  // ---- of which keys attention is ----

  /// Attention to the keys of some members, so many positions of each.
  struct Keys {
    std::set<int64_t> members; ///< by how far they were shifted
    int64_t positions = 0;
  };

  /// Attention to keys of some positions is joined with that to all others before it is used.
  void followKeys(uint32_t i, const Op &op) {
    if (op.kind == OpKind::BatchLoad) {
      const Type &tokens = scope_.value(op.results[0]).type;
      positions_ =
          tokens.shape[tokens.rank - 1] * (op.group < 0 ? 1 : scope_.plan().groupSize(op.group));
    }
    bool isPart = op.kind == OpKind::AttentionPart;
    Keys keys;
    if (isPart && of(op, kForward.k).kind == Origin::OfMember)
      keys = {{of(op, kForward.k).by}, scope_.value(op.operands[kForward.k]).type.shape[1]};
    for (ValueId operand : op.operands) {
      auto its = keys_.find(operand);
      if (its == keys_.end() || isPart)
        continue;
      if (op.kind == OpKind::AttentionJoin)
        keys = together(std::move(keys), its->second);
      else
        needAll(i, op, operand, its->second);
    }
    if (keys.positions > 0)
      for (ValueId result : op.results)
        keys_[result] = keys;
  }

  static Keys together(Keys keys, const Keys &more) {
    keys.members.insert(more.members.begin(), more.members.end());
    keys.positions = more.positions;
    return keys;
  }

  void needAll(uint32_t i, const Op &op, ValueId operand, const Keys &keys) {
    int64_t seen = keys.positions * static_cast<int64_t>(keys.members.size());
    if (seen < positions_)
      scope_.addValue(Rule::Origin, i, operand,
                      "'{}' takes '%{}', which is attention to {} of {} positions",
                      opInfo(op.kind).name, scope_.nameOf(operand), seen, positions_);
  }

  // ---- whose values are ----

  const Origin &of(const Op &op, size_t operand) const { return origins_[op.operands[operand]]; }

  void follow(uint32_t i, const Op &op) {
    Origin result;
    if (op.kind == OpKind::Add)
      result = added(of(op, 0), of(op, 1));
    else if (op.kind == OpKind::Shift)
      result = shifted(of(op, 0), op);
    else if (op.kind == OpKind::AttentionPart)
      checkPart(i, op, kForward);
    else if (op.kind == OpKind::AttentionPartBwd)
      checkPart(i, op, kBackward);
    else
      for (ValueId operand : op.operands)
        result = joined(result, origins_[operand]);
    if (op.kind == OpKind::MergeQkv || op.kind == OpKind::MergeQkvRope)
      for (ValueId operand : op.operands)
        needOwn(i, op, operand);
    for (ValueId value : op.results)
      origins_[value] = result;
    if (op.kind == OpKind::AttentionPartBwd) // gradients of keys and values are their members'
      for (size_t r = 1; r < op.results.size(); ++r)
        origins_[op.results[r]] = of(op, kBackward.k);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc)
        origins_[op.results[tie.result]] =
            added(origins_[op.results[tie.result]], origins_[tie.value]);
  }

  Origin shifted(const Origin &from, const Op &op) const {
    int64_t members = scope_.plan().groupSize(op.group);
    int16_t group = firstAlike(scope_.plan(), op.group);
    if (from.kind != Origin::OfMember || (from.by != 0 && from.group != group))
      return from.kind == Origin::Unknown ? from : Origin{Origin::OfSeveral};
    int64_t by = (from.by + op.getInt(AttrKey::by) % members + members) % members;
    return {Origin::OfMember, by, by == 0 ? int16_t{-1} : group};
  }

  void checkPart(uint32_t i, const Op &op, const PartOperands &at) {
    for (size_t own : {at.q, at.queryPositions, at.queryDocs})
      needOwn(i, op, op.operands[own]);
    for (size_t other : {at.v, at.positions, at.docs}) {
      const Origin &keys = of(op, at.k), &its = of(op, other);
      if (keys.kind == Origin::OfSeveral || added(keys, its).kind == Origin::OfSeveral)
        scope_.add(Rule::Origin, i, "'{}' takes keys '%{}' of one member, and '%{}' of another",
                   opInfo(op.kind).name, scope_.nameOf(op.operands[at.k]),
                   scope_.nameOf(op.operands[other]));
    }
  }

  void needOwn(uint32_t i, const Op &op, ValueId operand) {
    if (origins_[operand].isForeign())
      scope_.add(Rule::Origin, i, "'{}' takes '%{}', which is of another member",
                 opInfo(op.kind).name, scope_.nameOf(operand));
  }

  const Scope &scope_;
  const Segment &segment_;
  std::vector<Origin> origins_;  ///< by value
  std::map<ValueId, Keys> keys_; ///< of values of attention
  int64_t positions_ = 0;        ///< of a whole sequence; 0 where none is loaded
};

/// Follows what is computed of embedded tokens: along which axes ranks have exchanged their slices
/// of it for all of some heads. No op takes what is exchanged with what is not.
class ExchangeCheck {
public:
  explicit ExchangeCheck(const Scope &scope)
      : scope_(scope), exchanged_(scope.segment.values.size()) {}

  void run() {
    for (uint32_t i = 0; i < scope_.segment.ops.size(); ++i)
      follow(i, scope_.segment.ops[i]);
  }

private:
  void follow(uint32_t i, const Op &op) {
    std::optional<Axes> result;
    if (op.kind == OpKind::Embedding || op.kind == OpKind::EmbeddingShard)
      result = Axes{0};
    for (ValueId operand : op.operands) {
      const std::optional<Axes> &taken = exchanged_[operand];
      if (result && taken && *result != *taken && opInfo(op.kind).traits != OpTraits::Alias)
        scope_.addValue(Rule::Origin, i, operand,
                        "'{}' takes '%{}', of which ranks have {}exchanged their slices, with what "
                        "they have not",
                        opInfo(op.kind).name, scope_.nameOf(operand), *taken == 0 ? "not " : "");
      result = result ? result : taken;
    }
    if (op.kind == OpKind::AllToAll && result)
      *result ^= axesOf(scope_.plan(), op.group);
    for (ValueId value : op.results)
      exchanged_[value] = result;
  }

  const Scope &scope_;
  std::vector<std::optional<Axes>> exchanged_; ///< by value; none if no tokens are in it
};

} // namespace

void checkOrigins(const Scope &scope) {
  if (scope.inspection.variantsOf(scope.roleIndex, scope.segmentIndex).empty())
    return; // never run
  auto has = [&](OpKind kind) {
    return std::ranges::any_of(scope.segment.ops, [&](const Op &op) { return op.kind == kind; });
  };
  if (has(OpKind::Shift) || has(OpKind::AttentionPart))
    OriginCheck(scope).run();
  if (has(OpKind::AllToAll))
    ExchangeCheck(scope).run();
}

} // namespace shardc::plan::verifier
