// Checks the form of one segment: indices, names, definitions before uses, arity, attributes, ties,
// predicates, waits and boundaries. All later phases rely on it.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Whether an op that computes a new result can add it to an earlier value.
bool accumulates(const OpInfo &info) { return !info.collective || isSum(info.collective->kind); }

class FormCheck {
public:
  explicit FormCheck(const Scope &scope)
      : scope_(scope), segment_(scope.segment), defined_(segment_.values.size(), kNone) {}

  void run() {
    if (!needAtMost(scope_.inspection, scope_.spot(), "the segment", segment_.ops.size(), "ops",
                    limits::kOpsMax))
      return;
    checkValues();
    checkIns();
    for (uint32_t i = 0; i < segment_.ops.size() && !scope_.inspection.isFull(); ++i)
      if (checkIndices(i)) {
        checkUses(i);
        checkAttrs(i);
        if (checkArity(i)) // the next checks access all operands and results of the row
          checkTies(i);
        checkWaits(i);
        checkCollectiveForm(i);
        defineResults(i);
      }
    checkOuts();
    checkAllDefined();
  }

private:
  const Op &op(uint32_t index) const { return segment_.ops[index]; }
  // The value's id has an entry in `defined_`.
  bool isValue(ValueId id) const { return id < defined_.size(); }

  void checkValues() {
    std::unordered_set<std::string_view> names(2 * segment_.values.size());
    for (ValueId id = 0; id < segment_.values.size(); ++id) {
      const Value &value = segment_.values[id];
      if (!names.insert(value.name).second)
        scope_.addValue(finding::NameTwice, value.def, id);
      checkNameLength(scope_.inspection, scope_.spot(value.def), "value", value.name);
      if (!isTypeSane(value.type))
        scope_.addValue(finding::TypeNotSane, value.def, id);
    }
  }

  void checkIns() {
    Taken isTaken{std::vector<bool>(scope_.role.cells.size()), {}};
    for (const Segment::Boundary &in : segment_.ins) {
      if (!checkBoundary(in, isTaken, "in"))
        continue;
      const Value &value = scope_.value(in.value);
      if (value.def != kNone || defined_[in.value] != kNone)
        scope_.addValue(finding::LiveInDefined, scope_.opOf(in.value), in.value);
      checkCountsOf(in.value);
      defined_[in.value] = 0;
    }
  }

  /// Cells and ring slots that earlier boundaries name.
  struct Taken {
    std::vector<bool> cells;
    std::set<std::pair<uint32_t, int64_t>> slots;
  };

  /// False if an earlier boundary names the same cell or slot.
  static bool take(Taken &taken, const Segment::Boundary &boundary, const Cell &cell) {
    if (cell.slots <= 1) {
      bool wasTaken = taken.cells[boundary.cell];
      taken.cells[boundary.cell] = true;
      return !wasTaken;
    }
    int64_t slot = boundary.shift % cell.slots;
    return taken.slots.insert({boundary.cell, slot < 0 ? slot + cell.slots : slot}).second;
  }

  /// False, with a finding, if the boundary names something that does not exist.
  bool checkBoundary(const Segment::Boundary &boundary, Taken &isTaken, std::string_view word) {
    if (!isValue(boundary.value) || boundary.cell >= scope_.role.cells.size()) {
      scope_.add(finding::BoundaryOutOfRange, kNone, word, boundary.value, segment_.values.size(),
                 boundary.cell, scope_.role.cells.size());
      return false;
    }
    const Value &value = scope_.value(boundary.value);
    const Cell &cell = scope_.role.cells[boundary.cell];
    if (!take(isTaken, boundary, cell))
      scope_.addValue(finding::CellTwice, scope_.opOf(boundary.value), boundary.value, cell.name,
                      word);
    if (value.type != cell.type)
      scope_.addValue(finding::BoundaryType, scope_.opOf(boundary.value), boundary.value,
                      printType(value.type), cell.name, printType(cell.type));
    return true;
  }

  void checkOuts() {
    Taken isTaken{std::vector<bool>(scope_.role.cells.size()), {}};
    for (const Segment::Boundary &out : segment_.outs)
      checkBoundary(out, isTaken, "out");
  }

  /// False, with a finding, if the op names something that does not exist. Later checks would then
  /// index out of range.
  bool checkIndices(uint32_t i) {
    const Op &o = op(i);
    const Plan &plan = scope_.plan();
    bool ok = true;
    auto need = [&](std::string_view what, int64_t index, size_t count, int64_t least = 0) {
      if (least <= index && index < static_cast<int64_t>(count))
        return;
      scope_.add(finding::OpNamesNone, i, what, index, count);
      ok = false;
    };
    for (const auto *ids : {&o.operands, &o.results})
      for (ValueId id : *ids)
        need("value", id, segment_.values.size());
    for (const Tie &tie : o.ties)
      need("value", tie.value, segment_.values.size());
    need("group", o.group, plan.groups.size(), -1);
    need("channel", o.channel, plan.channels.size(), kNoChannel);
    need("stream", o.stream, plan.streams.size());
    need("unit", o.unit, plan.units.size(), -1);
    if (o.loc != kNone)
      need("recipe location", o.loc, plan.locs.size());
    return checkCounts(i) && ok;
  }

  /// False, with a finding, if the op exceeds a limit on a number of its parts.
  bool checkCounts(uint32_t i) {
    const Op &o = op(i);
    bool ok = true;
    auto limit = [&](std::string_view what, size_t count, int64_t most) {
      ok &= needAtMost(scope_.inspection, scope_.spot(i), "the op", count, what, most);
    };
    limit("operands", o.operands.size(), limits::kOperandsMax);
    limit("results", o.results.size(), limits::kResultsMax);
    limit("ties", o.ties.size(), limits::kTiesMax);
    limit("waits", o.waits.size(), limits::kWaitsMax);
    limit("attributes", o.attrs.size(), kAttrCount);
    return ok;
  }

  /// False, with a finding, if the op may lack operands or results that its row requires.
  bool checkArity(uint32_t i) {
    const OpInfo &info = opInfo(op(i));
    const OpInfo &producer = opInfo(op(i).kind);
    if (op(i).epilogue == Epilogue::None ? producer.needsEpilogue
                                         : !producer.takes(op(i).epilogue)) {
      scope_.add(finding::EpilogueRefused, i, producer.name,
                 producer.needsEpilogue ? "stands without an epilogue; it needs one that it takes"
                                        : "has an epilogue that it does not take");
      return false;
    }
    return checkCount(i, "operand", op(i).operands.size(), info.operandsMin, info.operandsMax,
                      info.operands) &&
           checkCount(i, "result", op(i).results.size(), info.resultsMin, info.resultsMax,
                      info.results) &&
           checkList(i);
  }

  /// An op that takes a list names a block for each operand, and no other op names any. Several
  /// operands that are sums of squares may name the same block.
  bool checkList(uint32_t i) {
    const Op &o = op(i);
    size_t count = opInfo(o).block == BlockUse::List ? o.operands.size() : 0;
    if (o.blocks.size() != count) {
      scope_.add(finding::BlockCount, i, o.blocks.size(), count);
      return false;
    }
    std::map<int32_t, size_t> first;
    auto isSum = [&](size_t k) {
      ValueId id = o.operands[k];
      return id < scope_.segment.values.size() && scope_.value(id).type.dtype == DType::F64;
    };
    for (size_t k = 0; k < o.blocks.size(); ++k) {
      const ListedBlock &each = o.blocks[k];
      if (each.block < 0 || static_cast<size_t>(each.block) >= scope_.plan().blocks.size()) {
        scope_.add(finding::NoSuchBlock, i, each.block, scope_.plan().blocks.size());
        return false;
      }
      auto [at, isNew] = first.try_emplace(each.block, k);
      if (!isNew && !(isSum(k) && isSum(at->second) && o.blocks[at->second] == each))
        scope_.add(finding::BlockTwice, i, blockAt(scope_.plan(), each.block).name);
      if (each.copies < 1 || each.copies > limits::kWorldSizeMax)
        scope_.add(finding::CopiesOutOfRange, i, each.copies, limits::kWorldSizeMax);
    }
    if (count > 0 && o.getInt(AttrKey::block) >= 0)
      scope_.add(finding::BlockBesideList, i);
    return true;
  }

  bool checkCount(uint32_t i, std::string_view what, size_t count, uint8_t min, uint8_t max,
                  std::string_view names) {
    if (count >= min && (max == kAnyNumber || count <= max))
      return true;
    scope_.add(finding::ArityDiffers, i, count, what, count == 1 ? "" : "s", names);
    return false;
  }

  void checkUses(uint32_t i) {
    auto use = [&](ValueId id) {
      if (defined_[id] == kNone)
        scope_.addValue(finding::UsedBeforeDefined, i, id);
    };
    for (ValueId id : op(i).operands)
      use(id);
    for (const Tie &tie : op(i).ties)
      use(tie.value);
  }

  /// Checks that a value's counts are defined before the value, and that all rows of the counts
  /// themselves are valid.
  void checkCountsOf(ValueId id) {
    const Value &value = scope_.value(id);
    if (value.counts == kNone)
      return;
    if (!isValue(value.counts))
      scope_.addValue(finding::NoSuchCounts, value.def, id, value.counts, segment_.values.size());
    else if (defined_[value.counts] == kNone || scope_.value(value.counts).counts != kNone)
      scope_.addValue(finding::CountsRefused, value.def, id, scope_.nameOf(value.counts),
                      defined_[value.counts] == kNone ? "is defined after it"
                                                      : "has counted rows itself");
  }

  void defineResults(uint32_t i) {
    const Op &o = op(i);
    for (ValueId id : o.results)
      checkCountsOf(id);
    for (size_t r = 0; r < o.results.size(); ++r) {
      ValueId id = o.results[r];
      const Value &value = scope_.value(id);
      if (defined_[id] != kNone || value.def != i || value.defResult != r)
        scope_.addValue(finding::DefinedElsewhere, i, id, value.defResult, value.def);
      defined_[id] = i;
    }
  }

  void checkAllDefined() {
    for (ValueId id = 0; id < segment_.values.size(); ++id)
      if (defined_[id] == kNone)
        scope_.addValue(finding::NeverDefined, scope_.opOf(id), id);
  }

  void checkAttrs(uint32_t i) {
    const std::vector<Attr> &attrs = op(i).attrs;
    for (size_t a = 0; a < attrs.size(); ++a) {
      if (static_cast<int>(attrs[a].key) >= kAttrCount) {
        scope_.add(finding::AttributeUnknown, i);
        return;
      }
      const AttrInfo &info = attrInfo(attrs[a].key);
      if (a > 0 && attrs[a - 1].key >= attrs[a].key)
        scope_.add(finding::AttributeTwice, i, info.name);
      if (info.type == AttrInfo::Float && !(attrs[a].f - attrs[a].f == 0))
        scope_.add(finding::AttributeNotFinite, i, info.name, attrs[a].f);
      if (info.type == AttrInfo::Int && (attrs[a].i < info.least || attrs[a].i > info.most))
        scope_.add(finding::AttributeOutOfRange, i, info.name, attrs[a].i, info.least, info.most);
      if (info.type == AttrInfo::Bool && attrs[a].i != 0 && attrs[a].i != 1)
        scope_.add(finding::AttributeNotBool, i, info.name, attrs[a].i);
      if (info.type == AttrInfo::Enum && enumeratorName(info, attrs[a].i).empty())
        scope_.add(finding::AttributeNotEnum, i, info.name, attrs[a].i, info.enumerators);
    }
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
    if (tie.result >= o.results.size()) {
      scope_.add(finding::NoSuchResult, i, tie.result, o.results.size());
      return;
    }
    if (tie.kind != Tie::Acc && tie.kind != Tie::Else) {
      scope_.add(finding::TieKind, i);
      return;
    }
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
    for (uint32_t wait : o.waits) {
      if (wait >= i)
        scope_.add(finding::WaitsForLater, i, wait);
      else if (opInfo(op(wait)).traits == OpTraits::Alias)
        scope_.add(finding::WaitsForAlias, i, wait, opInfo(op(wait)).name);
    }
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
  std::vector<uint32_t> defined_; ///< defining op of each value seen so far, 0 for live-in ones
};

} // namespace

void checkForm(const Scope &scope) { FormCheck(scope).run(); }

} // namespace shardc::plan::verifier
