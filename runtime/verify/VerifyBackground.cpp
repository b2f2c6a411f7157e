// Checks which ops, cells and streams background segments use. VerifyProgram.cpp compares their
// accesses with those of segments that run at the same time.
#include <algorithm>

#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Whether a later background segment copies to the host what this one stages.
bool isFollowed(const Role &role, const Segment &segment) {
  return std::ranges::any_of(
      role.segments, [&](const Segment &other) { return stagedBy(role, other) == &segment; });
}

bool isRunInSteps(const Role &role, uint32_t segment) {
  auto isRun = [&](const ProgramNode &child) {
    return child.kind == ProgramNode::Run && child.segment == segment;
  };
  return std::ranges::any_of(role.program, [&](const ProgramNode &node) {
    return node.kind == ProgramNode::Steps && std::ranges::any_of(node.children, isRun);
  });
}

/// Checks which ops, cells and streams a background segment uses.
class BackgroundFormCheck {
public:
  /// A segment of the program that uses the stream, if there is one.
  using StreamUsers = std::array<const Segment *, kStreamsMax>;

  BackgroundFormCheck(const Scope &scope, const StreamUsers &usersOfStreams)
      : scope_(scope), segment_(scope.segment), usersOfStreams_(usersOfStreams) {}

  void run() {
    const Segment *stage = stagedBy(scope_.role, segment_);
    uint32_t awaits = stage != nullptr ? stage->before : segment_.before;
    if (segment_.before >= scope_.role.segments.size() || !isRunInSteps(scope_.role, awaits)) {
      scope_.add(finding::BackgroundBeforeNothing, kNone);
      return;
    }
    auto isOwn = [&](const ProgramNode &node) { return node.segment == scope_.segmentIndex; };
    if (segment_.body || hasNode(scope_.role.program, isOwn))
      scope_.add(finding::BackgroundInProgram, kNone);
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      formOf(i);
    checkHandedOver();
    for (const Segment::Boundary &out : segment_.outs)
      checkOut(out);
  }

private:
  void checkOut(const Segment::Boundary &out) {
    const Cell &cell = scope_.role.cells[out.cell];
    uint32_t op = scope_.opOf(out.value);
    bool isStaged = op != kNone && segment_.ops[op].kind == OpKind::Stage;
    if (isStaged && !isFollowed(scope_.role, segment_))
      scope_.addValue(finding::StagesForNobody, op, out.value);
    else if (isStaged && cell.arena != Arena::Work)
      scope_.addValue(finding::StagesInArena, op, out.value, cell.name, toString(cell.arena));
    else if (!isStaged &&
             (cell.arena != Arena::Host || cell.kind != CellKind::Buffer || cell.isRing()))
      scope_.addValue(finding::BackgroundFillsCell, op, out.value, cellKindInfo(cell.kind).word,
                      cell.name, toString(cell.arena));
  }

  void formOf(uint32_t i) {
    const Op &op = segment_.ops[i];
    OpTraits traits = opInfo(op).traits;
    if (traits != OpTraits::Alias && op.kind != OpKind::Stage && op.kind != OpKind::Snapshot)
      scope_.add(finding::BackgroundComputes, i);
    const Segment *other = usersOfStreams_[op.stream];
    if (traits != OpTraits::Alias && scope_.plan().level >= Level::Scheduled && other != nullptr)
      scope_.add(finding::BackgroundSharesStream, i, other->name,
                 scope_.plan().streams[op.stream].name);
  }

  /// The host reads a snapshot's copies, and another segment reads staged copies. Both happen after
  /// the segment ends, so the segment must store the copies to cells: other bytes may be
  /// overwritten earlier.
  void checkHandedOver() {
    std::vector<bool> isLeft(segment_.values.size());
    for (const Segment::Boundary &out : segment_.outs)
      isLeft[out.value] = true;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      for (ValueId result : segment_.ops[i].results)
        if (opInfo(segment_.ops[i]).traits == OpTraits::Copy && !isLeft[result])
          scope_.addValue(finding::BackgroundCopyNotLeft, i, result);
  }

  const Scope &scope_;
  const Segment &segment_;
  const StreamUsers &usersOfStreams_;
};

BackgroundFormCheck::StreamUsers findUsersOfStreams(const Role &role) {
  BackgroundFormCheck::StreamUsers users{};
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops)
      if (segment.before == kNone && opInfo(op).traits != OpTraits::Alias)
        users[op.stream] = &segment;
  return users;
}

} // namespace

void checkBackgroundForm(Inspection &inspection, uint32_t role) {
  const Role &all = inspection.plan().roles[role];
  BackgroundFormCheck::StreamUsers users = findUsersOfStreams(all);
  for (uint32_t s = 0; s < all.segments.size() && !inspection.isFull(); ++s)
    if (all.segments[s].before != kNone) {
      Scope scope{inspection, all, all.segments[s], role, s};
      BackgroundFormCheck(scope, users).run();
    }
}

} // namespace shardc::plan::verifier
