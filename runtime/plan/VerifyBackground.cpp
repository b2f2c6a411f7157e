// Background segments: unordered with everything between the end of a step and the segment that
// they name, so nothing there may write what they read, or touch what they write.
#include <algorithm>
#include <set>

#include "runtime/plan/VerifyContents.h"

namespace shardc::plan::verifier {
namespace {

/// Bytes that an op reads or writes.
struct Touch {
  uint32_t op;
  ValueId value;
  Range range;
};

/// Segments that a background segment runs beside: from a step's end to the next run of `before`,
/// or to the program's end.
std::set<uint32_t> segmentsBeside(const Role &role, uint32_t before) {
  std::set<uint32_t> beside;
  auto add = [&](const ProgramNode &node, const auto &self) -> void {
    if (node.segment != kNone)
      beside.insert(node.segment);
    for (const ProgramNode &child : node.children)
      self(child, self);
  };
  bool isBehind = false;
  for (const ProgramNode &node : role.program) {
    if (isBehind)
      add(node, add);
    if (node.kind != ProgramNode::Steps)
      continue;
    isBehind = true;
    for (const ProgramNode &child : node.children) {
      if (child.kind == ProgramNode::Run && child.segment == before)
        break;
      add(child, add);
    }
  }
  return beside;
}

bool isRunInSteps(const Role &role, uint32_t segment) {
  for (const ProgramNode &node : role.program)
    if (node.kind == ProgramNode::Steps)
      for (const ProgramNode &child : node.children)
        if (child.kind == ProgramNode::Run && child.segment == segment)
          return true;
  return false;
}

bool isInProgram(const std::vector<ProgramNode> &nodes, uint32_t segment) {
  return std::any_of(nodes.begin(), nodes.end(), [&](const ProgramNode &node) {
    return node.segment == segment || isInProgram(node.children, segment);
  });
}

/// What an op that takes effect in some microbatch writes.
void addWrites(const Plan &plan, const Segment &segment, uint32_t index, int64_t lastDp,
               std::vector<Touch> &writes) {
  const Op &op = segment.ops[index];
  for (ValueId result : op.results) {
    Range range = Range::of(segment.values[result], lastDp);
    if (!gathersInPlace(plan, segment, op)) {
      writes.push_back({index, result, range});
      continue;
    }
    Range own = Range::of(segment.values[op.operands[0]], lastDp); // stays as it is
    writes.push_back({index, result, range.before(own, lastDp)});
    writes.push_back({index, result, range.behind(own, lastDp)});
  }
}

/// Ops of one background segment against one segment that runs beside it.
class BesideCheck {
public:
  BesideCheck(const Scope &background, uint32_t besideIndex)
      : scope_(background), besideIndex_(besideIndex),
        beside_(background.role.segments[besideIndex]),
        lastDp_(dpSize(background.plan()) - 1) {}

  void run(const std::vector<Touch> &reads, const std::vector<Touch> &writes) {
    for (uint32_t i = 0; i < beside_.ops.size() && !scope_.report.isFull(); ++i) {
      const Op &op = beside_.ops[i];
      if (opInfo(op.kind).traits == OpTraits::Alias)
        continue;
      std::vector<Touch> written;
      addWrites(scope_.plan(), beside_, i, lastDp_, written);
      for (const Touch &touch : written) {
        compare(reads, touch, "reads bytes that an op beside it writes", "written");
        compare(writes, touch, "writes bytes that an op beside it writes too", "written");
      }
      for (ValueId operand : op.operands)
        compare(writes, {i, operand, Range::of(beside_.values[operand], lastDp_)},
                "writes bytes that an op beside it reads", "read");
    }
  }

private:
  void compare(const std::vector<Touch> &ours, const Touch &theirs, std::string_view what,
               std::string_view verb) {
    if (theirs.range.isEmpty(lastDp_))
      return;
    for (const Touch &touch : ours) {
      if (touch.range.arena() != theirs.range.arena() ||
          touch.range.hullEnd(lastDp_) <= theirs.range.hullBegin(lastDp_) ||
          theirs.range.hullEnd(lastDp_) <= touch.range.hullBegin(lastDp_) ||
          touch.range.intersect(theirs.range, lastDp_).isEmpty(lastDp_))
        continue;
      Finding *finding =
          scope_.addValue(Rule::Background, touch.op, touch.value, "the background segment {}: '%{}'",
                          what, scope_.nameOf(touch.value));
      if (finding == nullptr)
        continue;
      finding->note = fmt::format("'%{}' is {} here, in segment {}",
                                  beside_.values[theirs.value].name, verb, beside_.name);
      finding->noteAt = {scope_.roleIndex, besideIndex_, theirs.op};
    }
  }

  const Scope &scope_;
  uint32_t besideIndex_;
  const Segment &beside_;
  int64_t lastDp_;
};

class BackgroundCheck {
public:
  explicit BackgroundCheck(const Scope &scope)
      : scope_(scope), segment_(scope.segment), lastDp_(dpSize(scope.plan()) - 1) {}

  void form() {
    if (segment_.before >= scope_.role.segments.size() ||
        !isRunInSteps(scope_.role, segment_.before)) {
      scope_.add(Rule::Background, kNone, "the segment before which it ends is run in no step");
      return;
    }
    if (segment_.body || isInProgram(scope_.role.program, scope_.segmentIndex))
      scope_.add(Rule::Background, kNone, "a background segment is no body, and in no program");
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      formOf(i);
    for (const Segment::Boundary &in : segment_.ins)
      if (scope_.role.cells[in.cell].arena == Arena::Host)
        scope_.addValue(Rule::Background, kNone, in.value,
                        "cell '@{}' lies in arena host, which the host may write at any time",
                        scope_.role.cells[in.cell].name);
    for (const Segment::Boundary &out : segment_.outs)
      if (scope_.role.cells[out.cell].arena != Arena::Host)
        scope_.addValue(Rule::Background, kNone, out.value,
                        "a background segment fills cell '@{}', which does not lie in arena host",
                        scope_.role.cells[out.cell].name);
  }

  void bytes() {
    std::vector<Touch> reads, writes;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      if (opInfo(segment_.ops[i].kind).traits == OpTraits::Alias)
        continue;
      for (ValueId operand : segment_.ops[i].operands)
        reads.push_back({i, operand, Range::of(segment_.values[operand], lastDp_)});
      addWrites(scope_.plan(), segment_, i, lastDp_, writes);
    }
    for (const Touch &touch : writes)
      if (touch.range.arena() != Arena::Host)
        scope_.addValue(Rule::Background, touch.op, touch.value,
                        "a background segment writes '%{}', which does not lie in arena host",
                        scope_.nameOf(touch.value));
    checkHostCells(writes);
    for (uint32_t beside : segmentsBeside(scope_.role, segment_.before))
      BesideCheck(scope_, beside).run(reads, writes);
  }

private:
  void formOf(uint32_t i) {
    const Op &op = segment_.ops[i];
    OpTraits traits = opInfo(op.kind).traits;
    if (traits != OpTraits::Copy && traits != OpTraits::Alias)
      scope_.add(Rule::Background, i, "a background segment only copies, and has '{}'",
                 opInfo(op.kind).name);
    if (traits == OpTraits::Alias || scope_.plan().level < Level::Scheduled)
      return;
    for (const Segment &other : scope_.role.segments)
      if (other.before == kNone &&
          std::any_of(other.ops.begin(), other.ops.end(), [&](const Op &theirs) {
            return theirs.stream == op.stream &&
                   opInfo(theirs.kind).traits != OpTraits::Alias;
          })) {
        scope_.add(Rule::Background, i,
                   "a background segment has streams of its own; segment {} uses stream {} too",
                   other.name, toString(op.stream));
        return;
      }
  }

  /// Cells that the host fills are written whenever it likes.
  void checkHostCells(const std::vector<Touch> &writes) {
    std::set<uint32_t> own;
    for (const Segment &segment : scope_.role.segments)
      if (segment.before != kNone)
        for (const Segment::Boundary &out : segment.outs)
          own.insert(out.cell);
    for (uint32_t c = 0; c < scope_.role.cells.size(); ++c) {
      const Cell &cell = scope_.role.cells[c];
      if (cell.arena != Arena::Host || own.contains(c))
        continue;
      Range range = Range::of(cell, lastDp_);
      for (const Touch &touch : writes)
        if (touch.range.arena() == Arena::Host &&
            !touch.range.intersect(range, lastDp_).isEmpty(lastDp_))
          scope_.addValue(Rule::Background, touch.op, touch.value,
                          "a background segment writes '%{}' over cell '@{}' of the host",
                          scope_.nameOf(touch.value), cell.name);
    }
  }

  const Scope &scope_;
  const Segment &segment_;
  int64_t lastDp_;
};

} // namespace

void checkBackgroundForm(const Scope &scope) {
  if (scope.segment.before != kNone)
    BackgroundCheck(scope).form();
}

void checkBackgroundBytes(const Scope &scope) {
  if (scope.segment.before != kNone)
    BackgroundCheck(scope).bytes();
}

} // namespace shardc::plan::verifier
