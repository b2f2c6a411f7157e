// Tracks which rows of values are valid. An op sorts rows into groups and counts them. From then on
// its rows, counts and positions belong together, through ops, buffers and exchanges. They are
// matched by the origin of the counts, not by names or types.
#include <algorithm>
#include <array>
#include <vector>

#include "runtime/plan/FactorExtents.h"
#include "runtime/verify/VerifyFlow.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

/// How values came from other ranks: by a collective of a group, or by a transfer over a channel.
struct RowExchange {
  CollectiveKind kind;
  int16_t of;     ///< index in Plan::groups; for a transfer, in Plan::channels
  int64_t by = 0; ///< distance of a shift
  bool operator==(const RowExchange &) const = default;
};

/// The origin of counts. Rows and counts belong together if all fields of their origins are equal.
struct CountSource {
  uint32_t role = 0, segment = 0, op = 0; ///< the op that made the counts
  std::vector<RowExchange> exchanges;     ///< exchanges since then
  bool isOld = false;                     ///< an earlier run of the reading segment made them
  int64_t bound = 0, slots = 0;           ///< capacity in rows, and the slots that share it
  bool operator==(const CountSource &) const = default;
};

struct CountState {
  enum Kind : uint8_t {
    Plain,  ///< all of its rows are valid
    Counts, ///< row counts
    Places, ///< positions of counted rows
    Rows,   ///< rows of which only the counted ones are valid
    Unknown ///< differs between the ways to reach it
  } kind = Plain;
  CountSource source;
  /// The segments to whose buffers the value or its inputs were stored, sorted. If one of them
  /// reads the value from its buffer, an earlier run of that segment computed it.
  std::vector<uint32_t> leftBy;

  bool is(Kind other, const CountSource &from) const { return kind == other && source == from; }
  bool lacksRows() const { return kind == Rows || kind == Unknown; }
  bool operator==(const CountState &) const = default;

  void addLeft(const std::vector<uint32_t> &segments) {
    for (uint32_t segment : segments)
      if (auto at = std::ranges::lower_bound(leftBy, segment); at == leftBy.end() || *at != segment)
        leftBy.insert(at, segment);
  }

  void join(const CountState &more) {
    if (kind == more.kind && source == more.source)
      addLeft(more.leftBy);
    else
      *this = {Unknown, {}, {}};
  }
};

class CountDomain {
public:
  using State = CountState;
  using Values = SegmentValues<State>;

  explicit CountDomain(const Plan &plan) : plan_(plan) {}

  void follow(const Values &at, uint32_t i, const Op &op) {
    checkLeftOut(at, i, op);
    if (op.kind == OpKind::MakeRuns)
      makeRuns(at, i, op);
    else if (op.kind == OpKind::View)
      followView(at, i, op);
    else if (opInfo(op).collective)
      followExchange(at, i, op);
    else
      followFactors(at, i, op);
  }

  /// The result of an op that accumulates must have the same valid rows as its buffer.
  void add(const Values &at, uint32_t i, const Tie &tie) {
    State &sum = at[at.scope.segment.ops[i].results[tie.result]];
    const State &more = at[tie.value];
    if (!sum.lacksRows() && !more.lacksRows())
      return;
    if (more.is(sum.kind, sum.source))
      return sum.addLeft(more.leftBy);
    at.scope.addValue(finding::AddsToOtherRows, i, tie.value);
    sum = {State::Unknown, {}, {}};
  }

  State received(const State &given, const Op &op) const {
    State state = given;
    if (state.kind != State::Plain && state.kind != State::Unknown)
      state.source.exchanges.push_back({CollectiveKind::Recv, op.channel});
    state.leftBy.clear(); // segments of another stage do not count
    return state;
  }

  State kept(const Scope &scope, const State &state) const {
    State left = state;
    if (left.kind != State::Plain && left.kind != State::Unknown)
      left.addLeft({scope.segmentIndex});
    return left;
  }

  /// VerifyMicrobatches.cpp proves that a ring holds the microbatch that is read.
  State found(const Scope &scope, const State &state) const {
    State own = state;
    own.source.isOld |= std::ranges::binary_search(own.leftBy, scope.segmentIndex);
    return own;
  }

  void finish(const Values &at) {
    for (ValueId id = 0; id < at.scope.segment.values.size(); ++id)
      if (at.isReached(id))
        checkType(at, id);
    for (const Segment::Boundary &out : at.scope.segment.outs)
      if (at[out.value].lacksRows() && at.scope.role.cells[out.cell].kind != CellKind::Buffer)
        at.scope.addValue(finding::CountedRowsLeft, at.scope.opOf(out.value), out.value,
                          at.scope.role.cells[out.cell].name);
  }

private:
  // ---- types ----

  void checkType(const Values &at, ValueId id) const {
    const Value &value = at.scope.value(id);
    const State &state = at[id];
    auto refuseType = [&](auto row, const auto &...args) {
      at.scope.addValue(row, at.scope.opOf(id), id, args...);
    };
    if (state.kind == State::Counts && value.type.shape[0] != state.source.slots)
      refuseType(finding::SlotsDiffer, state.source.slots, value.type.shape[0]);
    if (value.counts == kNone) {
      if (state.kind == State::Rows)
        refuseType(finding::CountsNotNamed);
      return;
    }
    const std::string &counts = at.scope.nameOf(value.counts);
    if (state.kind != State::Rows)
      refuseType(finding::CountsRowsOfOther, counts,
                 state.kind == State::Unknown ? "but it is not known which rows exist"
                                              : "but all of its rows exist");
    else if (!at[value.counts].is(State::Counts, state.source))
      refuseType(finding::CountsRowsOfOther, counts, "which does not count them");
    else if (microbatchOf(at, id) != microbatchOf(at, value.counts))
      refuseType(finding::CountsRowsOfOther, counts, "which is of another microbatch");
    else if (value.type.shape[0] != state.source.bound)
      refuseType(finding::BoundDiffers, value.type.shape[0], counts, state.source.bound);
  }

  /// The value's microbatch, relative to the segment's own.
  static int64_t microbatchOf(const Values &at, ValueId value) {
    return at.scope.inspection.shiftOf(at.scope.roleIndex, at.scope.segmentIndex, value);
  }

  // ---- ops ----

  /// An op may skip rows by counts. These must be the counts that its first operand's type names.
  void checkLeftOut(const Values &at, uint32_t i, const Op &op) const {
    if (std::optional<size_t> counts = leavesOutBy(op);
        counts && at.scope.value(op.operands[0]).counts != op.operands[*counts])
      at.scope.addValue(finding::CountsOfOthers, i, op.operands[0]);
  }

  void makeRuns(const Values &at, uint32_t i, const Op &op) const {
    CountSource source{at.scope.roleIndex, at.scope.segmentIndex, i};
    source.bound = op.getInt(AttrKey::bound);
    source.slots = at.scope.value(op.results[0]).type.shape[0];
    at[plan::resultNamed<OpKind::MakeRuns>(op, "counts")] = {State::Counts, source, {}};
    at[plan::resultNamed<OpKind::MakeRuns>(op, "places")] = {State::Places, source, {}};
  }

  /// A view of all elements that keeps the rows has the state of its operand. Positions stay
  /// positions in any shape.
  void followView(const Values &at, uint32_t i, const Op &op) const {
    const State &from = at.operand(op, 0);
    const Type &type = at.scope.value(op.operands[0]).type,
               &part = at.scope.value(op.results[0]).type;
    if (part.numel() == type.numel() &&
        (part.shape[0] == type.shape[0] || from.kind == State::Places))
      at[op.results[0]] = from;
    else if (from.lacksRows())
      at.scope.addValue(finding::PartOfCounted, i, op.operands[0]);
  }

  void followExchange(const Values &at, uint32_t i, const Op &op) const {
    if (op.operands.empty() || at.operand(op, 0).kind == State::Plain)
      return;
    const State &from = at.operand(op, 0);
    bool isMoved = false;
    switch (opInfo(op).collective->kind) {
    case CollectiveKind::AllGather:
    case CollectiveKind::AllToAll:
      isMoved = from.kind == State::Rows || from.kind == State::Counts;
      break;
    case CollectiveKind::Shift:
    case CollectiveKind::Send:
      isMoved = from.kind != State::Unknown;
      break;
    case CollectiveKind::ReduceScatter:
      isMoved = from.kind == State::Rows && isLast(from, op, CollectiveKind::AllGather);
      break;
    case CollectiveKind::Recv:
    case CollectiveKind::AllReduce:
    case CollectiveKind::AllReduceMax:
      break;
    }
    if (isMoved && !op.results.empty())
      at[op.results[0]] = exchanged(at, i, op, from);
    else if (!isMoved && from.lacksRows())
      needsAll(at, i, op.operands[0]);
  }

  /// Whether the last exchange of the rows was of this kind, over the group of the op.
  bool isLast(const State &from, const Op &op, CollectiveKind kind) const {
    const std::vector<RowExchange> &exchanges = from.source.exchanges;
    return !exchanges.empty() && exchanges.back().kind == kind &&
           exchanges.back().of == firstAlike(plan_, op.group);
  }

  State exchanged(const Values &at, uint32_t i, const Op &op, const State &from) const {
    CollectiveKind kind = opInfo(op).collective->kind;
    State to = from;
    std::vector<RowExchange> &exchanges = to.source.exchanges;
    int64_t members = plan_.membersOf(op);
    RowExchange exchange = {kind, firstAlike(plan_, op.group)};
    bool isAgain = isLast(from, op, kind);
    if (kind == CollectiveKind::ReduceScatter) { // sums of what members computed of gathered rows
      to.source.bound /= members, to.source.slots /= members;
      exchanges.pop_back();
      return to;
    }
    if (kind == CollectiveKind::AllGather) {
      to.source.bound *= members, to.source.slots *= members;
    } else if (kind == CollectiveKind::AllToAll) {
      if (to.source.slots % members != 0)
        at.scope.addValue(finding::SlotsNotExchanged, i, op.operands[0]);
      if (isAgain) { // a second exchange returns the rows
        exchanges.pop_back();
        return to;
      }
    } else if (kind == CollectiveKind::Shift) {
      exchange.by = isAgain ? exchanges.back().by : 0;
      exchange.by = ((exchange.by + op.getInt(AttrKey::by)) % members + members) % members;
      if (isAgain)
        exchanges.pop_back();
      if (exchange.by == 0)
        return to;
    }
    exchanges.push_back(exchange);
    return to;
  }

  void followFactors(const Values &at, uint32_t i, const Op &op) const {
    const OpFactors &factors = factorsOf(op);
    bool knowsCounts = false;
    for (FactorId factor = 0; factor < factors.factorCount; ++factor)
      if (factors.isBound(factor)) {
        knowsCounts = true;
        followCounted(at, i, op, factor);
      }
    if (!knowsCounts)
      followByRows(at, i, op);
  }

  /// An op with an operand that holds counts of the rows along a factor, or their positions.
  void followCounted(const Values &at, uint32_t i, const Op &op, FactorId factor) const {
    const OpFactors &factors = factorsOf(op);
    size_t by = *factors.boundBy(factor);
    bool isCounts = factors.operand(by).countsRowsOf == factor;
    const State which = at.operand(op, by);
    bool isKnown = which.kind == (isCounts ? State::Counts : State::Places);
    if (!isKnown && isCounts)
      at.scope.addValue(finding::NoCounts, i, op.operands[by]);
    else if (!isKnown)
      at.scope.addValue(finding::NoPlaces, i, op.operands[by]);
    for (size_t k = 0; k < op.operands.size() && isKnown; ++k) {
      bool isCounted = factors.operand(k).has(factor) && k != by;
      bool isTheirs = at.operand(op, k).is(State::Rows, which.source);
      if (isCounted && !isTheirs && isCounts)
        at.scope.addValue(finding::CountsOfOthers, i, op.operands[k]);
      else if (isCounted && !isTheirs)
        at.scope.addValue(finding::PlacesOfOthers, i, op.operands[k]);
      else if (!isCounted && at.operand(op, k).lacksRows())
        needsAll(at, i, op.operands[k]);
    }
    State made = {State::Rows, which.source, {}};
    addLeft(at, op, made);
    for (size_t r = 0; r < op.results.size() && isKnown; ++r)
      if (factors.result(r).has(factor))
        at[op.results[r]] = made;
  }

  /// An op that works row by row: its results lack the rows that its operands lack.
  void followByRows(const Values &at, uint32_t i, const Op &op) const {
    auto lacking =
        std::ranges::find_if(op.operands, [&](ValueId operand) { return at[operand].lacksRows(); });
    if (lacking == op.operands.end())
      return;
    const State state = at[*lacking];
    auto k = static_cast<size_t>(lacking - op.operands.begin());
    FactorId rows = state.kind == State::Rows ? rowsOf(at, op, k, true) : kNoFactor;
    if (rows == kNoFactor || !worksByRows(at, op, rows))
      return needsAll(at, i, *lacking);
    const OpFactors &factors = factorsOf(op);
    for (size_t o = 0; o < op.operands.size(); ++o)
      if (operandOf(op, factors, o).has(rows) && !at.operand(op, o).is(State::Rows, state.source))
        at.scope.addValue(finding::OtherRows, i, op.operands[o]);
      else if (!operandOf(op, factors, o).has(rows) && at.operand(op, o).lacksRows())
        needsAll(at, i, op.operands[o]);
    State made = state;
    addLeft(at, op, made);
    at.setAll(op, made);
  }

  static void addLeft(const Values &at, const Op &op, State &made) {
    for (ValueId operand : op.operands)
      made.addLeft(at[operand].leftBy);
  }

  /// Whether each row of a result depends only on the same row of the operands.
  bool worksByRows(const Values &at, const Op &op, FactorId rows) const {
    const OpFactors &factors = factorsOf(op);
    if (factors.isNeededWhole(rows) || op.results.empty())
      return false;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const FactorValue &value = operandOf(op, factors, k);
      if (value.pointsInto == rows || (value.has(rows) && rowsOf(at, op, k, true) != rows))
        return false;
    }
    for (size_t r = 0; r < op.results.size(); ++r)
      if (rowsOf(at, op, r, false) != rows)
        return false;
    return true;
  }

  /// The factor that is the whole first dimension of an operand or result. kNoFactor if what the op
  /// does with a row depends on its position.
  FactorId rowsOf(const Values &at, const Op &op, size_t k, bool isOperand) const {
    const OpFactors &factors = factorsOf(op);
    const FactorValue &value = isOperand ? operandOf(op, factors, k) : resultOf(op, factors, k);
    bool isTransposed = value.transposedBy && op.getBool(*value.transposedBy);
    if (value.isList || value.form != FactorValue::Dims)
      return kNoFactor;
    const Type &type = at.scope.value(isOperand ? op.operands[k] : op.results[k]).type;
    FactorId first = factorAt(value, isTransposed, type.rank, 0);
    const FactorAtom *atom = value.find(first);
    bool isAlone = atom != nullptr && atom->form == FactorAtom::Plain && !atom->isCounted &&
                   !atom->isKnownByIndex && !atom->isShare && !atom->isInSharedDim;
    for (const FactorAtom &other : value.words())
      isAlone &= atom == &other || atom == nullptr || other.dim != atom->dim;
    return isAlone ? first : kNoFactor;
  }

  void needsAll(const Values &at, uint32_t i, ValueId value) const {
    if (at[value].kind == State::Unknown)
      at.scope.addValue(finding::CountedUnknown, i, value);
    else
      at.scope.addValue(finding::NeedsEachRow, i, value);
  }

  const Plan &plan_;
};

/// Ops by kind that make counts, or whose factors count rows.
using KindSet = std::array<bool, kOpCount>;
const KindSet &kindsWithCounts() {
  static const KindSet kinds = [] {
    KindSet set{};
    for (size_t kind = 0; kind < set.size(); ++kind) {
      const OpFactors &factors = factorsOf(static_cast<OpKind>(kind));
      for (FactorId factor = 0; factor < factors.factorCount; ++factor)
        set[kind] |= factors.isBound(factor);
    }
    set[static_cast<size_t>(OpKind::MakeRuns)] = true;
    return set;
  }();
  return kinds;
}

bool hasCounts(const Plan &plan) {
  auto isCounted = [](const Op &op) { return kindsWithCounts()[static_cast<size_t>(op.kind)]; };
  return hasOp(plan, isCounted) || std::ranges::any_of(plan.roles, [&](const Role &role) {
           return std::ranges::any_of(role.segments, [&](const Segment &segment) {
             return std::ranges::any_of(segment.values,
                                        [](const Value &value) { return value.counts != kNone; });
           });
         });
}

} // namespace

std::unique_ptr<ValueDomain> makeCounts(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  return hasCounts(plan) ? asValueDomain(CountDomain(plan)) : nullptr;
}

} // namespace shardc::plan::verifier
