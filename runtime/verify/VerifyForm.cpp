// Checks what the parser does not check of one segment's form: arity, attributes, ties, predicates,
// waits and boundaries. All later phases rely on it.
#include <string_view>
#include <vector>

#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Whether an op that computes a new result can add it to an earlier value.
bool accumulates(const OpInfo &info) { return !info.collective || isSum(info.collective->kind); }

class FormCheck {
public:
  explicit FormCheck(const Scope &scope) : scope_(scope), segment_(scope.segment) {}

  void run() {
    checkBoundaries(segment_.ins);
    for (ValueId id = 0; id < segment_.values.size(); ++id)
      checkCountsOf(id);
    for (uint32_t i = 0; i < segment_.ops.size() && !scope_.inspection.isFull(); ++i) {
      if (checkArity(i)) // the next checks access all operands and results of the row
        checkTies(i);
      checkAttrs(i);
      checkWaits(i);
      checkCollectiveForm(i);
    }
    checkBoundaries(segment_.outs);
  }

private:
  const Op &op(uint32_t index) const { return segment_.ops[index]; }

  void checkBoundaries(const std::vector<Segment::Boundary> &boundaries) {
    for (const Segment::Boundary &boundary : boundaries) {
      const Value &value = scope_.value(boundary.value);
      const Cell &cell = scope_.role.cells[boundary.cell];
      if (value.type != cell.type)
        scope_.addValue(finding::BoundaryType, scope_.opOf(boundary.value), boundary.value,
                        printType(value.type), cell.name, printType(cell.type));
    }
  }

  /// False, with a finding, if the op may lack operands or results that its row requires.
  bool checkArity(uint32_t i) {
    const OpInfo &info = opInfo(op(i));
    if (info.isStep) {
      scope_.add(finding::OnlyAStep, i, info.name);
      return false;
    }
    return checkCount(i, "operand", op(i).operands.size(), info.operandsMin, info.operandsMax,
                      info.operands) &&
           checkCount(i, "result", op(i).results.size(), info.resultsMin, info.resultsMax,
                      info.results) &&
           checkList(i);
  }

  /// An op that takes a list names a block for each operand, and no other op names any.
  bool checkList(uint32_t i) {
    const Op &o = op(i);
    size_t count = opInfo(o).block == BlockUse::List ? o.operands.size() : 0;
    if (o.blocks.size() != count) {
      scope_.add(finding::BlockCount, i, o.blocks.size(), count);
      return false;
    }
    for (const ListedBlock &each : o.blocks)
      if (static_cast<size_t>(each.block) >= scope_.plan().blocks.size()) {
        scope_.add(finding::NoSuchBlock, i, each.block, scope_.plan().blocks.size());
        return false;
      }
    return true;
  }

  bool checkCount(uint32_t i, std::string_view what, size_t count, uint8_t min, uint8_t max,
                  std::string_view names) {
    if (count >= min && (max == kAnyNumber || count <= max))
      return true;
    scope_.add(finding::ArityDiffers, i, count, what, count == 1 ? "" : "s", names);
    return false;
  }

  /// Checks that a value's counts are defined before the value, and that all rows of the counts
  /// themselves are valid.
  void checkCountsOf(ValueId id) {
    const Value &value = scope_.value(id);
    if (value.counts == kNone)
      return;
    const Value &counts = scope_.value(value.counts);
    bool isBefore = counts.def == kNone || counts.def < value.def;
    if (!isBefore || counts.counts != kNone)
      scope_.addValue(finding::CountsRefused, value.def, id, counts.name,
                      isBefore ? "has counted rows itself" : "is defined after it");
  }

  void checkAttrs(uint32_t i) {
    const OpInfo &row = opInfo(op(i));
    for (const Attr &attr : op(i).attrs) {
      const AttrInfo &info = attrInfo(attr.key);
      if (!row.attrs.has(attr.key))
        scope_.add(finding::NoSuchAttribute, i, info.name, attrNames(row.attrs));
      if (info.type == AttrInfo::Int && (attr.i < info.least || attr.i > info.most))
        scope_.add(finding::AttributeOutOfRange, i, info.name, attr.i, info.least, info.most);
    }
    if (std::optional<AttrKey> lacking = missingAttr(op(i)))
      scope_.add(finding::AttributeMissing, i, attrInfo(*lacking).name);
    int64_t block = op(i).getInt(AttrKey::block);
    if (block < -1 || block >= static_cast<int64_t>(scope_.plan().blocks.size()))
      scope_.add(finding::NoSuchBlock, i, block, scope_.plan().blocks.size());
  }

  void checkTies(uint32_t i) {
    const Op &o = op(i);
    const OpInfo &info = opInfo(o);
    bool isAlias = info.traits == OpTraits::Alias;
    // An alias is only a name for bytes, so no predicate can skip it and nothing can be added to
    // it.
    if (isAlias && (!o.ties.empty() || o.pred != Pred::Always))
      scope_.add(finding::AliasWithTies, i);
    if (!segment_.body && o.pred != Pred::Always)
      scope_.add(finding::PredicateOutsideBody, i);
    for (size_t t = 0; t < o.ties.size(); ++t)
      checkTie(i, t);
  }

  void checkTie(uint32_t i, size_t t) {
    const Op &o = op(i);
    const Tie &tie = o.ties[t];
    const OpInfo &info = opInfo(o);
    int operand = inPlaceOperand(o, tie.result);
    bool inPlace = operand >= 0;
    const Type &tied = scope_.value(tie.value).type;
    if (const Type &type = scope_.value(o.results[tie.result]).type; tied != type)
      scope_.addValue(finding::TieType, i, tie.value, printType(tied), tie.result, printType(type));
    if (tie.kind == Tie::Acc && (inPlace || !accumulates(info)))
      scope_.addValue(finding::DoesNotAccumulate, i, tie.value, tie.result);
    if (inPlace && tie.kind == Tie::Else && o.operands[static_cast<size_t>(operand)] != tie.value)
      scope_.addValue(finding::ElseOfInPlace, i, tie.value, tie.result);
    if (tie.kind == Tie::Else && tie.pred != Pred::Always)
      scope_.addValue(finding::ElseWithPredicate, i, tie.value);
    if (tie.pred != Pred::Always && !segment_.body)
      scope_.addValue(finding::TiePredicateOutsideBody, i, tie.value);
    for (size_t other = 0; other < t; ++other) {
      const Tie &earlier = o.ties[other];
      if (earlier.result == tie.result && (earlier.kind == tie.kind || earlier.value != tie.value))
        scope_.addValue(finding::TiedTwice, i, tie.value, tie.result);
    }
  }

  void checkWaits(uint32_t i) {
    const Op &o = op(i);
    bool isAlias = opInfo(o).traits == OpTraits::Alias;
    if (isAlias && !o.waits.empty())
      scope_.add(finding::AliasWaits, i);
    for (uint32_t wait : o.waits)
      if (opInfo(op(wait)).traits == OpTraits::Alias)
        scope_.add(finding::WaitsForAlias, i, wait, opInfo(op(wait)).name);
  }

  void checkCollectiveForm(uint32_t i) {
    const Op &o = op(i);
    const OpInfo &info = opInfo(o);
    if (info.traits != OpTraits::Collective) {
      bool isView = o.kind == OpKind::View;
      bool moves = isView && o.getInt(AttrKey::coef) != 0;
      bool isShared = isView && o.getBool(AttrKey::shared);
      if (moves && o.group < 0)
        scope_.add(finding::ViewMoves, i);
      else if (isShared && (o.group < 0 || moves || scope_.plan().level != Level::Logical))
        scope_.add(finding::SharedView, i);
      else if (o.channel != kNoChannel ||
               (o.group != -1 && !moves && !isShared && !info.takesIndex()))
        scope_.add(finding::NotCollective, i);
      return;
    }
    if (o.group < 0)
      scope_.add(finding::NamesNoGroup, i);
    if (scope_.plan().level >= Level::Scheduled && o.channel == kNoChannel)
      scope_.add(finding::NamesNoChannel, i);
    if (o.channel == kNoChannel) {
      if (isPointToPoint(info.collective->kind))
        scope_.add(finding::NoPairChannel, i);
      return;
    }
    const Plan &plan = scope_.plan();
    const Channel &channel = channelAt(plan, o.channel);
    CollectiveKind kind = info.collective->kind;
    if (isPointToPoint(kind) && !channel.isPair())
      scope_.add(finding::TransferNeedsPair, i, channel.name);
    // Exception: the first and the last stage sum the gradient of a shared table over a pair.
    if (channel.isPair() && !isPointToPoint(kind) && kind != CollectiveKind::AllReduce)
      scope_.add(finding::PairHasTransfers, i, channel.name);
    if (o.group >= 0 && o.group != channel.group)
      scope_.add(finding::ChannelOfOtherGroup, i, groupAt(plan, o.group).name, channel.name,
                 groupAt(plan, channel.group).name);
  }

  const Scope &scope_;
  const Segment &segment_;
};

} // namespace

void checkForm(const Scope &scope) { FormCheck(scope).run(); }

} // namespace shardc::plan::verifier
