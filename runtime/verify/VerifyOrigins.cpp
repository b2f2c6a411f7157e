// Checks attention over sequence slices: whose keys and values it reads. Ranks shift keys and
// values around with their positions and documents, and shift their gradients back. Or they
// exchange slices for heads before attention, and heads for slices after it. The state of a value
// passes through buffers to other segments, and through transfers to other stages.
#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "runtime/verify/VerifyFlow.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

/// To which rank a value belongs: to this rank, to the member of a group that is `by` positions
/// before it, to several ranks, or to a rank that depends on the path.
struct Origin {
  enum Kind : uint8_t { OfMember, OfSeveral, Unknown } kind = OfMember;
  int64_t by = 0;
  int16_t group = -1; ///< -1: the rank itself

  bool isOwn() const { return *this == Origin{}; }
  bool operator==(const Origin &) const = default;
};

/// To which rank a sum belongs. A sum of values of two members belongs to neither.
Origin added(const Origin &a, const Origin &b) {
  if (a == b)
    return a;
  bool isKnown = a.kind != Origin::Unknown && b.kind != Origin::Unknown;
  return {isKnown ? Origin::OfSeveral : Origin::Unknown};
}

/// To which rank the result of an op on two values belongs. If one value is this rank's own, it
/// belongs to the other value's member.
Origin joined(const Origin &a, const Origin &b) {
  if (a == b || b.isOwn())
    return a;
  return a.isOwn() ? b : added(a, b);
}

/// The keys that the attention of a value covers: `positions` of each of some members of a group.
struct Keys {
  static constexpr int64_t kUnknown =
      -1; ///< in place of `positions`: the keys depend on the path to the value

  int64_t positions = 0;     ///< positions of each member; 0: not attention to a part of the keys
  int16_t group = -1;        ///< -1: the only member is the rank itself
  std::set<int64_t> members; ///< by how far their keys were shifted

  bool isPart() const { return positions != 0; }
  int64_t seen() const {
    return positions == kUnknown ? 0 : positions * static_cast<int64_t>(members.size());
  }
  bool operator==(const Keys &) const = default;
};

/// Whether a value depends on embedded tokens, and along which axes ranks have exchanged their
/// slices of all heads for all slices of some heads.
struct Exchange {
  enum Kind : uint8_t { NoTokens, Tokens, Unknown } kind = NoTokens;
  Axes axes = 0;
  bool operator==(const Exchange &) const = default;
};

/// Whether a value counts tokens, and along which axes these counts have been summed.
struct Count {
  enum Kind : uint8_t { NoCount, OfTokens, Wrong } kind = NoCount;
  Axes axes = 0;
  bool operator==(const Count &) const = default;
};

struct SliceState {
  Origin origin;
  Keys keys;
  Exchange exchange;
  Count count;

  bool operator==(const SliceState &) const = default;

  void join(const SliceState &more) {
    if (origin != more.origin)
      origin = {Origin::Unknown};
    if (keys != more.keys)
      keys = {Keys::kUnknown};
    if (exchange != more.exchange)
      exchange = {Exchange::Unknown};
    if (count != more.count)
      count = {Count::Wrong};
  }
};

class SliceDomain {
public:
  using State = SliceState;
  using Values = SegmentValues<State>;

  explicit SliceDomain(Inspection &inspection) : inspection_(inspection), plan_(inspection.plan()) {
    findSlices();
  }

  /// Whether ranks load or exchange slices.
  bool isNeeded() const { return sliceAxes_ != 0 || exchangesSlices_; }

  void follow(const Values &at, uint32_t i, const Op &op) {
    at.setAll(op,
              {originOf(at, i, op), keysOf(at, i, op), exchangeOf(at, i, op), countOf(at, i, op)});
    if (op.kind == OpKind::AttentionPartBwd) // they belong to the members whose keys these are
      for (size_t r = 1; r < op.results.size(); ++r)
        at[op.results[r]].origin = at.operand(op, kPartBwdOperands.k).origin;
  }

  void add(const Values &at, uint32_t i, const Tie &tie) {
    State &sum = at[at.scope.segment.ops[i].results[tie.result]];
    sum.origin = added(sum.origin, at[tie.value].origin);
  }

private:
  /// Finds along which axes ranks load slices of a sequence. These must be the same axes in all
  /// stages. They must not be axes along which ranks have other samples, or other layers.
  void findSlices() {
    Axes others = axesOf(plan_, groupOfKind(plan_, GroupKind::Data));
    std::vector<std::pair<Spot, const Op *>> loads;
    forEachOp(plan_, [&](Spot at, const Segment &, const Op &op) {
      if (op.kind == OpKind::Send)
        others |= axesOf(plan_, op.group);
      if (op.kind == OpKind::BatchLoad && !inspection_.variantsOf(at.role, at.segment).empty())
        loads.emplace_back(at, &op);
      exchangesSlices_ |=
          opInfo(op).hasSlices || op.kind == OpKind::Shift || op.kind == OpKind::AllToAll;
    });
    for (const auto &[at, op] : loads) {
      Axes axes = axesOf(plan_, op->group), first = axesOf(plan_, loads.front().second->group);
      const Segment &segment = plan_.roles[at.role].segments[at.segment];
      const Type &tokens = segment.values[resultNamed<OpKind::BatchLoad>(*op, "tokens")].type;
      positions_ = tokens.shape[tokens.rank - 1] *
                   (op->group < 0 ? 1 : static_cast<int64_t>(plan_.groupSize(op->group)));
      sliceAxes_ |= axes;
      if (first != axes)
        inspection_.add(finding::LoadsAlongOther, at, names(axes), names(first));
      else if ((axes & others) != 0)
        inspection_.add(finding::LoadsOverData, at, names(axes), names(axes & others));
    }
  }

  std::string names(Axes axes) const { return namesOf(plan_, axes); }

  // ---- whose values are ----

  Origin originOf(const Values &at, uint32_t i, const Op &op) {
    if (op.kind == OpKind::Add)
      return added(at.operand(op, 0).origin, at.operand(op, 1).origin);
    if (op.kind == OpKind::Shift)
      return shifted(at.operand(op, 0).origin, op);
    if (opInfo(op).hasSlices) {
      const PartOperands &operands =
          op.kind == OpKind::AttentionPart ? kPartOperands : kPartBwdOperands;
      checkPart(at, i, op, operands);
      checkGroup(at, i, op, operands);
      return {};
    }
    Origin result;
    for (ValueId operand : op.operands)
      result = joined(result, at[operand].origin);
    if (op.kind == OpKind::MergeQkv || op.kind == OpKind::MergeQkvRope ||
        op.kind == OpKind::MergeQkvNormRope || op.kind == OpKind::LatentHeadsBwd)
      for (ValueId operand : op.operands)
        needOwn(at, i, operand);
    return result;
  }

  Origin shifted(const Origin &from, const Op &op) const {
    int64_t members = plan_.groupSize(op.group);
    int16_t group = firstAlike(plan_, op.group);
    if (from.kind != Origin::OfMember || (from.by != 0 && from.group != group))
      return from.kind == Origin::Unknown ? from : Origin{Origin::OfSeveral};
    int64_t by = (from.by + op.getInt(AttrKey::by) % members + members) % members;
    return {Origin::OfMember, by, by == 0 ? int16_t{-1} : group};
  }

  void checkPart(const Values &at, uint32_t i, const Op &op, const PartOperands &operands) {
    const std::array owns = {operands.q, operands.queryPositions, operands.queryDocs},
                     others = {operands.v, operands.positions, operands.docs};
    for (size_t own : owns)
      needOwn(at, i, op.operands[own]);
    const Origin &keys = at.operand(op, operands.k).origin;
    for (size_t other : others)
      if (keys.kind != Origin::OfMember || at.operand(op, other).origin != keys)
        at.scope.add(finding::KeysOfTwoMembers, i, at.scope.nameOf(op.operands[operands.k]),
                     at.scope.nameOf(op.operands[other]));
  }

  void needOwn(const Values &at, uint32_t i, ValueId operand) {
    if (!at[operand].origin.isOwn())
      at.scope.add(finding::OfOtherMember, i, at.scope.nameOf(operand));
  }

  /// With attribute `slices`, the op derives the causal mask from the rank's index in the op's
  /// group. That must be the index of the rank's slice, and the keys must be those of the member
  /// that `by` names.
  void checkGroup(const Values &at, uint32_t i, const Op &op, const PartOperands &operands) {
    int64_t slices = op.getInt(AttrKey::slices);
    const Exchange &exchange = at.operand(op, operands.q).exchange;
    if (slices == 0 || exchange.kind == Exchange::NoTokens)
      return;
    auto needed = static_cast<Axes>(sliceAxes_ & ~exchange.axes);
    Axes found = outerAxesOf(plan_, op.group, slices);
    if (exchange.kind == Exchange::Unknown || found != needed)
      at.scope.add(finding::SlicesByOtherIndex, i, names(found), names(needed));
    const Origin &keys = at.operand(op, operands.k).origin;
    bool isOfGroup = keys.isOwn() || axesOf(plan_, keys.group) == found;
    if (keys.kind == Origin::OfMember && (keys.by != op.getInt(AttrKey::by) || !isOfGroup))
      at.scope.addValue(finding::KeysOfOtherMember, i, op.operands[operands.k], keys.by,
                        op.getInt(AttrKey::by));
  }

  // ---- the keys that a value's attention covers ----

  /// Attention to some of the keys must be joined with attention to all others before any other op
  /// reads it.
  Keys keysOf(const Values &at, uint32_t i, const Op &op) {
    if (op.kind == OpKind::AttentionPart) {
      const Origin &keys = at.operand(op, kPartOperands.k).origin;
      int64_t positions = at.scope.value(op.operands[kPartOperands.k]).type.shape[1];
      return keys.kind == Origin::OfMember ? Keys{positions, keys.group, {keys.by}}
                                           : Keys{Keys::kUnknown};
    }
    if (op.kind == OpKind::AttentionJoin)
      return together(at, i, op);
    for (ValueId operand : op.operands)
      if (at[operand].keys.isPart() && at[operand].keys.seen() < positions_)
        at.scope.addValue(finding::KeysMissing, i, operand, at[operand].keys.seen(), positions_);
    return {};
  }

  /// Checks that each output comes with the statistics of the same keys, and that both parts have
  /// no key in common.
  Keys together(const Values &at, uint32_t i, const Op &op) {
    constexpr OpKind kOp = OpKind::AttentionJoin;
    constexpr size_t kOutput = operandIndex<kOp>("o"), kStats = operandIndex<kOp>("lse"),
                     kMore = operandIndex<kOp>("more"), kMoreStats = operandIndex<kOp>("morelse");
    Keys keys = at.operand(op, kOutput).keys;
    const Keys &more = at.operand(op, kMore).keys;
    bool isPaired = at.operand(op, kStats).keys == keys && at.operand(op, kMoreStats).keys == more;
    bool isOfOneGroup = keys.group < 0 || more.group < 0 || keys.group == more.group;
    bool areApart = isOfOneGroup && keys.positions == more.positions &&
                    std::ranges::none_of(more.members, [&](int64_t member) {
                      return keys.members.contains(member);
                    });
    if (!keys.isPart() || !more.isPart() || !isPaired || !areApart)
      at.scope.add(finding::PartsDoNotJoin, i, at.scope.nameOf(op.operands[kOutput]),
                   at.scope.nameOf(op.operands[kMore]));
    keys.group = std::max(keys.group, more.group);
    keys.members.insert(more.members.begin(), more.members.end());
    return keys;
  }

  // ---- which values are exchanged ----

  /// An op must not combine values of exchanged slices with values of other slices. An exchange of
  /// counted rows does not move slices of sequences; VerifyCounts.cpp checks it.
  Exchange exchangeOf(const Values &at, uint32_t i, const Op &op) {
    Exchange result;
    if (op.kind == OpKind::MakeRuns)
      return result;
    if (op.kind == OpKind::Embedding || op.kind == OpKind::EmbeddingShard)
      result.kind = Exchange::Tokens;
    for (ValueId operand : op.operands) {
      const Exchange &taken = at[operand].exchange;
      if (taken.kind == Exchange::NoTokens)
        continue;
      bool isAlike =
          result.kind == Exchange::NoTokens || (result == taken && taken.kind == Exchange::Tokens);
      if (!isAlike && opInfo(op).traits != OpTraits::Alias)
        at.scope.addValue(finding::SlicesMixed, i, operand, taken.axes == 0 ? "not " : "");
      result = result.kind == Exchange::NoTokens ? taken : result;
    }
    if (op.kind == OpKind::AttentionSink || op.kind == OpKind::AttentionSinkBwd)
      needHeads(at, i, op, result);
    if (op.kind == OpKind::AllToAll && result.kind == Exchange::Tokens &&
        at.scope.value(op.operands[0]).counts == kNone)
      result.axes ^= axesOf(plan_, op.group);
    return result;
  }

  /// Checks that each rank reads the sinks of the heads that it has after the exchange.
  void needHeads(const Values &at, uint32_t i, const Op &op, const Exchange &exchange) {
    bool hasSinks = op.kind == OpKind::AttentionSinkBwd ||
                    op.operands.size() > operandIndex<OpKind::AttentionSink>("sink");
    Axes found = axesOf(plan_, op.group);
    if (hasSinks && exchange.kind != Exchange::NoTokens &&
        (exchange.kind == Exchange::Unknown || found != exchange.axes))
      at.scope.add(finding::SinksOfOtherHeads, i, names(found), names(exchange.axes));
  }

  // ---- token counts ----

  /// Gradients must be divided by the tokens of all ranks with slices of the same sequences.
  Count countOf(const Values &at, uint32_t i, const Op &op) {
    constexpr size_t kCount = operandIndex<OpKind::CrossEntropyBwd>("n");
    static_assert(kCount == operandIndex<OpKind::LmLossGrad>("n"));
    bool divides = (op.kind == OpKind::CrossEntropyBwd || op.kind == OpKind::LmLossGrad) &&
                   !op.getBool(AttrKey::per_token);
    if (divides)
      needCount(at, i, op.operands[kCount]);
    if (op.kind == OpKind::TokenCount)
      return {Count::OfTokens};
    if (op.operands.empty() || at.operand(op, 0).count.kind == Count::NoCount)
      return {};
    const Count &from = at.operand(op, 0).count;
    if (op.kind == OpKind::Cast || op.kind == OpKind::Send)
      return from;
    Axes over = axesOf(plan_, op.group);
    bool isSum = op.kind == OpKind::AllReduce && !op.getBool(AttrKey::average);
    if (isSum && from.kind == Count::OfTokens && (from.axes & over) == 0)
      return {Count::OfTokens, static_cast<Axes>(from.axes | over)};
    return {opInfo(op).collective ? Count::Wrong : Count::NoCount};
  }

  void needCount(const Values &at, uint32_t i, ValueId value) {
    const Count &count = at[value].count;
    bool isAnyNumber = count.kind == Count::NoCount && sliceAxes_ == 0;
    if (isAnyNumber || count == Count{Count::OfTokens, sliceAxes_})
      return;
    if (count.kind == Count::OfTokens)
      at.scope.addValue(finding::TokensOfOtherRanks, i, value, names(count.axes),
                        names(sliceAxes_));
    else
      at.scope.addValue(finding::TokensUnknown, i, value, names(sliceAxes_));
  }

  Inspection &inspection_;
  const Plan &plan_;
  Axes sliceAxes_ = 0;
  bool exchangesSlices_ = false;
  int64_t positions_ = 0; ///< in a whole sequence; 0 if no op loads any
};

} // namespace

std::unique_ptr<ValueDomain> makeSlices(Inspection &inspection) {
  SliceDomain domain(inspection);
  return domain.isNeeded() ? asValueDomain(std::move(domain)) : nullptr;
}

} // namespace shardc::plan::verifier
