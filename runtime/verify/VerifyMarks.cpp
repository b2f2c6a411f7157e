// Computes marks. The mark of a value says which contributions to a sum the value contains. Also
// computes the join of marks where paths through the program meet, the values that become blocks
// with split parameters, and the ops that contribute to a sum.
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {

namespace {

Cover joined(const Cover &a, const Cover &b) {
  if (a.kind != b.kind)
    return a.kind > b.kind ? a : b;
  return a == b ? a : Cover{Cover::Missing};
}

/// The contributions that the sum of both values covers.
Cover added(const Cover &a, const Cover &b, int64_t microbatch) {
  if (a.kind != Cover::Some || b.kind != Cover::Some)
    return a.kind > b.kind ? a : b;
  const Cover &first = a.begin < b.begin || (a.begin == b.begin && a.end > b.end) ? a : b;
  const Cover &second = &first == &a ? b : a;
  if (first.end == second.begin) // the second one continues the first one
    return {Cover::Some, first.begin, second.end};
  if (first.end < second.begin)
    return {Cover::Missing};
  bool isSameAgain = second == Cover::of(microbatch) && first.end == second.end;
  return isSameAgain ? first : Cover{Cover::Twice};
}

} // namespace

static Phase joined(Phase a, Phase b) {
  if (a == b || b == Phase::None)
    return a;
  return a == Phase::None ? b : Phase::Unclear;
}

/// A value without contributions agrees with any multiple.
static float multipleOf(const Mark &a, const Mark &b) {
  if (a.cover.kind == Cover::None || b.cover.kind == Cover::None)
    return a.cover.kind == Cover::None ? b.multiple : a.multiple;
  return a.multiple == b.multiple ? a.multiple : kManyMultiples;
}

Mark joined(OpSets &sets, const Mark &a, const Mark &b) {
  Mark mark;
  bool hasBoth = a.cover.kind != Cover::None && b.cover.kind != Cover::None;
  const Mark &one = a.cover.kind != Cover::None ? a : b;
  mark.latest = hasBoth ? sets.common(a.latest, b.latest) : one.latest;
  mark.before = hasBoth ? sets.common(a.before, b.before) : one.before;
  mark.multiple = multipleOf(a, b);
  mark.varies = a.varies | b.varies;
  mark.split = a.split | b.split;
  mark.due = a.due | b.due;
  mark.block = a.block < 0 || a.block == b.block ? b.block : b.block < 0 ? a.block : -1;
  mark.cover = joined(a.cover, b.cover);
  mark.phase = joined(a.phase, b.phase);
  mark.evaluation = joined(a.evaluation, b.evaluation);
  return mark;
}

/// Merges the ops that contribute to `a` and `b`. If an op is in both, the sum counts it twice.
static void addOps(OpSets &sets, Mark &sum, const Mark &a, const Mark &b) {
  const Mark &later = a.cover.end > b.cover.end ? a : b, &earlier = &later == &a ? b : a;
  if (later.cover.end != earlier.cover.end) {
    sum.latest = later.latest;
    sum.before = sets.common(later.before, sets.common(earlier.latest, earlier.before));
    return;
  }
  // Both include the last microbatch, and one of them includes nothing else.
  if (sets.haveCommon(a.latest, b.latest))
    sum.cover = {Cover::Twice};
  sum.latest = sets.united(a.latest, b.latest);
  sum.before = sets.common(a.before, b.before);
}

Mark added(OpSets &sets, const Mark &a, const Mark &b, int64_t microbatch) {
  Mark mark = joined(sets, a, b);
  mark.cover = added(a.cover, b.cover, microbatch);
  if (mark.cover.kind == Cover::Some && a.cover.kind == b.cover.kind)
    addOps(sets, mark, a, b);
  if (a.cover.kind != Cover::None && b.cover.kind != Cover::None && a.due != b.due &&
      !mark.cover.isBad())
    mark.cover = {Cover::Mixed};
  return mark;
}

Mark packed(OpSets &sets, const Mark &a, const Mark &b) {
  Mark mark = joined(sets, a, b);
  if (a.cover.kind == Cover::None || b.cover.kind == Cover::None || mark.cover.isBad())
    return mark;
  mark.latest = sets.united(a.latest, b.latest);
  mark.before = sets.united(a.before, b.before);
  if (a.due != b.due)
    mark.cover = {Cover::Mixed};
  return mark;
}

bool isMovedOn(const Mark &before, const Mark &after, int64_t step) {
  Mark moved = before;
  moved.cover = after.cover;
  int64_t begin = after.cover.begin - before.cover.begin;
  int64_t end = after.cover.end - before.cover.end;
  return moved == after && before.cover.kind == after.cover.kind && (begin == 0 || begin == step) &&
         (end == 0 || end == step);
}

void moveOn(const Cover &before, Cover &after, int64_t microbatches) {
  if (after.kind != Cover::Some || before.kind != Cover::Some)
    return;
  int64_t begin = after.begin - before.begin, end = after.end - before.end;
  after.begin += begin * microbatches;
  after.end += end * microbatches;
}

Mark gathered(Mark mark, Axes over) {
  if ((mark.due & over) != 0 && mark.cover.kind != Cover::None)
    mark.cover = {Cover::Mixed};
  if ((mark.split & over) != 0)
    mark.block = -1; // parts of all ranks together are no longer one rank's part of the block
  mark.varies &= ~over;
  mark.split &= ~over;
  mark.due &= ~over;
  return mark;
}

/// If ranks have equal values, or have already added theirs, a sum counts the value once per rank.
/// An average of equal values is that value.
Mark reduced(const Plan &plan, Mark mark, Axes over, bool isAverage, bool isScattered) {
  Axes counted = isAverage ? mark.varies | mark.split : over;
  if (isAverage)
    mark.multiple /= static_cast<float>(ranksAlong(plan, mark.due & over));
  if ((over & counted & ~mark.due) != 0 && mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Twice};
  mark.varies &= ~over;
  mark.due &= ~over;
  if (isScattered)
    mark.varies |= over;
  return mark;
}

/// The result is no longer a gradient: its elements were moved to other ranks, or contributions
/// were not added.
Mark exchanged(Mark mark, Axes over, bool isApart) {
  if (mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Mixed};
  mark.varies = static_cast<Axes>(isApart ? mark.varies | over : mark.varies & ~over);
  mark.split &= ~over;
  mark.due &= ~over;
  mark.block = -1;
  return mark;
}

/// If all members have equal values, a shift changes nothing.
Mark shifted(Mark mark, Axes over) {
  if (((mark.varies | mark.split) & over) == 0)
    return mark;
  if (mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Mixed};
  mark.varies |= mark.split & over;
  mark.split &= ~over;
  mark.block = -1;
  return mark;
}

std::string_view whyIncomplete(Cover::Kind cover) {
  switch (cover) {
  case Cover::None:
    return "has no contribution from the step's microbatches";
  case Cover::Some:
  case Cover::Missing:
    return "lacks contributions from some of the step's microbatches";
  case Cover::Mixed:
    return "mixes values that are summed over ranks with values that are not, or of other ranks";
  case Cover::Twice:
    return "counts contributions more than once";
  case Cover::Old:
    return "is left over from another step";
  }
  return {};
}

/// The bit of an axis; none if it has one rank.
static Axes bitOf(const Plan &plan, size_t axis) {
  return static_cast<Axes>(plan.mesh[axis].size > 1 ? 1u << axis : 0);
}

Axes axesOf(const Plan &plan, int16_t group) {
  Axes axes = 0;
  if (group < 0)
    return axes;
  for (uint16_t axis : groupAt(plan, group).axes)
    axes |= bitOf(plan, axis);
  return axes;
}

Axes axesOf(const Plan &plan) {
  Axes axes = 0;
  for (size_t axis = 0; axis < plan.mesh.size(); ++axis)
    axes |= bitOf(plan, axis);
  return axes;
}

Axes stateAxesOf(const Plan &plan, const Block &block) {
  return block.stateShard < block.numel ? axesOf(plan, block.stateGroup) : Axes{0};
}

int64_t ranksAlong(const Plan &plan, Axes axes) {
  int64_t ranks = 1;
  for (size_t axis = 0; axis < plan.mesh.size(); ++axis)
    ranks *= (axes >> axis & 1) != 0 ? plan.mesh[axis].size : 1;
  return ranks;
}

std::string namesOf(const Plan &plan, Axes axes) {
  std::string names;
  for (size_t axis = 0; axis < plan.mesh.size(); ++axis)
    if ((axes >> axis & 1) != 0)
      names += fmt::format("{}'{}'", names.empty() ? "" : " and ", plan.mesh[axis].name);
  return names.empty() ? "no axis" : names;
}

// ---- blocks with split parameters ----

Mark withSplits(Mark mark, Axes splits) {
  // One contribution cannot stand for each rank's own elements.
  if (mark.cover.kind == Cover::Some && (splits & ~(mark.varies | mark.split)) != 0)
    mark.cover = {Cover::Mixed};
  mark.split |= mark.varies & splits;
  mark.varies &= ~splits;
  mark.due &= ~splits;
  return mark;
}

BlockSplits::BlockSplits(Inspection &inspection) : report_(inspection), plan_(inspection.plan()) {
  for (const Param &param : plan_.params) {
    Axes axes = splitAxesOf(plan_, param);
    ofAll_ |= axes;
    if (param.block < 0 || axes == 0)
      continue;
    axes_.resize(plan_.blocks.size());
    axes_[static_cast<size_t>(param.block)] |= axes;
  }
}

Mark BlockSplits::asBlock(Mark mark, int32_t block) {
  if (axes_.empty() || block < 0 || mark.block >= 0)
    return mark;
  Axes common = of(block);
  for (const Param *param : report_.paramsOf(block))
    common &= splitAxesOf(plan_, *param);
  mark = withSplits(mark, common);
  mark.block = block;
  return mark;
}

Mark BlockSplits::packed(const Mark &mark, int32_t block, size_t k) {
  if (axes_.empty() || block < 0 || k >= report_.paramsOf(block).size())
    return mark;
  return withSplits(mark, splitAxesOf(plan_, *report_.paramsOf(block)[k]));
}

Mark BlockSplits::viewed(Mark mark, const Op &view, const std::vector<Value> &values) {
  Axes along = view.getInt(AttrKey::coef) != 0 ? axesOf(plan_, view.group) : Axes{0};
  bool moves = along != 0; // in a group of one rank, the index is always 0
  mark.varies |= along;
  int64_t numel = values[view.results[0]].type.numel();
  int64_t from = values[view.operands[0]].type.numel();
  if (mark.split == 0 || mark.block < 0 || numel == from)
    return mark;
  const Block &block = blockAt(plan_, mark.block);
  bool isShard = moves && partOf(block, numel).has_value();
  if (!moves && from == block.numel) {
    int64_t begin = view.getInt(AttrKey::offset);
    mark.split = 0;
    for (const Param *param : report_.paramsOf(mark.block))
      if (param->offset < begin + numel && begin < param->offset + param->type.numel())
        mark.split |= splitAxesOf(plan_, *param);
  }
  if (!isShard)
    mark.block = -1;
  return mark;
}

} // namespace shardc::plan::verifier
