// Checks single places: aligned, inside the arena on every rank, and equal for values that share a
// buffer. VerifyBytes.cpp checks whether the bytes hold what ops read.
#include <algorithm>

#include "runtime/plan/Execution.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// A malicious plan can overflow products of 64 bits.
using Wide = __int128;

/// Checks the place of one value or cell on all ranks of the role. Messages prefix its name with
/// `what`.
template <typename Placed, typename SpotOf>
void checkPlaceOf(const Placed &placed, std::string_view what, Inspection &inspection,
                  const Role &role, const Indices &indices, const SpotOf &spotOf) {
  const Plan &plan = inspection.plan();
  const Place &place = placed.place;
  int64_t bytes = placed.type.bytes(),
          arenaBytes = role.arenaBytes[static_cast<size_t>(place.arena)];
  auto refuse = [&](auto row, const auto &...args) {
    inspection.addAbout(row, spotOf(), placed.name, what, args...);
  };
  if (place.coef == 0 && place.offset >= 0 && bytes <= arenaBytes &&
      place.offset <= arenaBytes - bytes && place.offset % kAlignmentBytes == 0)
    return; // nearly always
  IndexRange own = indices.of(place.group);
  Wide first = Wide(place.offset) + Wide(place.coef) * own.first;
  Wide last = Wide(place.offset) + Wide(place.coef) * own.last;
  if (first < 0 || last < 0 || first + bytes > arenaBytes || last + bytes > arenaBytes)
    refuse(finding::BeyondArena, bytes, printPlace(plan, place), arenaBytes);
  else if (first % kAlignmentBytes != 0 || (!own.isSole() && place.coef % kAlignmentBytes != 0))
    refuse(finding::PlaceUnaligned, printPlace(plan, place), kAlignmentBytes);
}

class PlaceCheck {
public:
  explicit PlaceCheck(const Scope &scope) : scope_(scope), indices_(scope.plan(), scope.role) {}

  void run() {
    size_t before = scope_.inspection.size();
    for (ValueId id = 0; id < scope_.segment.values.size() && !scope_.inspection.isFull(); ++id)
      checkPlace(id);
    if (scope_.inspection.size() != before)
      return;
    for (uint32_t i = 0; i < scope_.segment.ops.size() && !scope_.inspection.isFull(); ++i)
      checkReads(i), checkShared(i);
    for (const Segment::Boundary &in : scope_.segment.ins)
      checkBoundary(in);
    for (const Segment::Boundary &out : scope_.segment.outs)
      checkBoundary(out);
  }

private:
  void checkPlace(ValueId id) {
    const Value &value = scope_.value(id);
    uint32_t op = value.def;
    if (!value.place.placed) {
      scope_.addValue(finding::NotPlaced, op, id);
      return;
    }
    checkPlaceOf(value, "'%", scope_.inspection, scope_.role, indices_,
                 [&] { return scope_.spot(op); });
    if (op == kNone || isExempt(scope_.segment.ops[op]))
      return;
    bool isCopied = scope_.segment.ops[op].kind == OpKind::ToHost;
    if (value.place.arena == Arena::Host && !isCopied)
      scope_.addValue(finding::WritesHostArena, op, id);
    if (value.place.arena != Arena::Host && isCopied)
      scope_.addValue(finding::NotToHost, op, id, toString(value.place.arena));
  }

  /// Whether the rules on copies in arena host do not apply to the op: it executes nothing, or it
  /// copies for a save.
  bool isExempt(const Op &op) const {
    return scope_.segment.before != kNone || opInfo(op).traits == OpTraits::Alias;
  }

  /// Checks that only `to_device` reads copies in arena host. VerifyHost.cpp checks the ops that
  /// read cells which the host writes.
  void checkReads(uint32_t i) {
    const Op &op = scope_.segment.ops[i];
    if (isExempt(op) || op.kind == OpKind::ToDevice)
      return;
    for (ValueId operand : op.operands)
      if (scope_.value(operand).place.arena == Arena::Host && isCopy(operand))
        scope_.addValue(finding::ReadsHostArena, i, operand);
  }

  /// Whether an op of the program made the value, here or in another segment.
  bool isCopy(ValueId id) const {
    uint32_t def = scope_.value(id).def;
    if (def != kNone)
      return scope_.segment.ops[def].kind != OpKind::View ||
             isCopy(scope_.segment.ops[def].operands[0]);
    return std::ranges::any_of(scope_.segment.ins, [&](const Segment::Boundary &in) {
      return in.value == id && std::ranges::any_of(scope_.role.segments, [&](const Segment &other) {
               return other.before == kNone &&
                      std::ranges::count(other.outs, in.cell, &Segment::Boundary::cell) > 0;
             });
    });
  }

  bool isSame(const Place &a, const Place &b) const {
    return liesAt(scope_.plan(), scope_.role, a, b);
  }

  /// Checks that a result lies where the value lies whose buffer it takes over.
  void needSame(uint32_t i, ValueId result, ValueId other) {
    const Value &a = scope_.value(result), &b = scope_.value(other);
    if (!isSame(a.place, b.place))
      scope_.addValue(finding::NotInSameBuffer, i, result, printPlace(scope_.plan(), a.place),
                      b.name, printPlace(scope_.plan(), b.place));
  }

  void needAt(uint32_t i, ValueId part, ValueId whole, Moving apart) {
    const Value &a = scope_.value(part), &b = scope_.value(whole);
    int64_t bytes = dtypeBytes(b.type.dtype);
    apart.offset *= bytes, apart.coef *= bytes;
    if (liesAt(scope_.plan(), scope_.role, a.place, b.place, apart))
      return;
    Place expected = b.place;
    std::optional<Moving> at =
        sumOf(scope_.plan(), {b.place.offset, b.place.coef, b.place.group}, apart);
    if (at)
      expected.offset = at->offset, expected.coef = at->coef, expected.group = at->group;
    scope_.addValue(finding::NotInItsWhole, i, part, printPlace(scope_.plan(), a.place), b.name,
                    at ? printPlace(scope_.plan(), expected)
                       : "a place that moves with several groups, which no place does");
  }

  void checkShared(uint32_t i) {
    const Op &op = scope_.segment.ops[i];
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = inPlaceOperand(op, r); operand >= 0)
        needSame(i, op.results[r], op.operands[static_cast<size_t>(operand)]);
    for (const Tie &tie : op.ties)
      needSame(i, op.results[tie.result], tie.value);
    if (op.kind == OpKind::View)
      needAt(i, op.results[0], op.operands[0], beginOf(op));
    if (op.kind == OpKind::Pack)
      checkParts(i);
  }

  void checkParts(uint32_t i) {
    const Op &op = scope_.segment.ops[i];
    const int32_t block = blockNamedBy(op);
    int64_t end = 0; // end of the parts so far, if they belong to no block
    for (size_t p = 0; p < op.operands.size(); ++p) {
      int64_t begin = block < 0 ? end : scope_.inspection.paramsOf(block)[p]->offset;
      needAt(i, op.operands[p], op.results[0], {begin});
      end += scope_.value(op.operands[p]).type.numel();
    }
  }

  void checkBoundary(const Segment::Boundary &boundary) {
    const Value &value = scope_.value(boundary.value);
    const Cell &cell = scope_.role.cells[boundary.cell];
    if (!isSame(value.place, cell.place))
      scope_.addValue(finding::NotInItsCell, scope_.opOf(boundary.value), boundary.value,
                      printPlace(scope_.plan(), value.place), cell.name,
                      printPlace(scope_.plan(), cell.place));
  }

  const Scope &scope_;
  Indices indices_;
};

} // namespace

void checkPlaces(const Scope &scope) { PlaceCheck(scope).run(); }

Spot spotOfCell(Inspection &inspection, uint32_t role, uint32_t cell) {
  const std::vector<Segment> &segments = inspection.plan().roles[role].segments;
  for (uint32_t s = 0; s < segments.size(); ++s)
    for (const auto *boundaries : {&segments[s].outs, &segments[s].ins})
      for (const Segment::Boundary &boundary : *boundaries)
        if (boundary.cell == cell) {
          Scope scope{inspection, inspection.plan().roles[role], segments[s], role, s};
          return scope.spot(scope.opOf(boundary.value));
        }
  return {role, kNone, kNone};
}

void checkCells(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  for (uint32_t r = 0; r < plan.roles.size(); ++r) {
    Indices indices(plan, plan.roles[r]);
    for (uint32_t c = 0; c < plan.roles[r].cells.size() && !inspection.isFull(); ++c) {
      const Cell &cell = plan.roles[r].cells[c];
      auto spotOf = [&] { return spotOfCell(inspection, r, c); };
      if (!cell.place.placed || cell.place.arena != cell.arena)
        inspection.addAbout(finding::CellNotPlaced, spotOf(), cell.name);
      else
        checkPlaceOf(cell, "cell '@", inspection, plan.roles[r], indices, spotOf);
    }
  }
}

void checkGraphs(Inspection &inspection) {
  for (uint32_t r = 0; r < inspection.plan().roles.size(); ++r) {
    const Role &role = inspection.plan().roles[r];
    if (std::optional<GraphNeed> need = graphsBeyondLimit(inspection.plan(), role))
      inspection.add(finding::TooManyGraphs, {r, kNone, kNone}, toString(*need),
                     limits::kGraphNodesMax);
  }
}

} // namespace shardc::plan::verifier
