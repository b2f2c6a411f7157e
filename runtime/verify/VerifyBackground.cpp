// Checks background segments. A background segment runs concurrently with all ops between the end
// of a step and the segment that it names. So none of these ops may write bytes that it reads, or
// access bytes that it writes. A background segment that names another background segment runs
// concurrently with all ops of steps. It reads bytes that the other one has staged for it, so no op
// may write these bytes until it has ended.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyContents.h"
#include "runtime/verify/VerifyRangeIndex.h"

namespace shardc::plan::verifier {
namespace {

/// An access: the bytes that an op of a segment reads or writes.
struct Touch {
  uint32_t segment, op;
  ValueId value;
  Range range;
};

/// Accesses, sorted by their bytes.
class Touches {
public:
  explicit Touches(const Indices &indices) : indices_(indices) {}

  void add(const Touch &touch) {
    index_.add(touch.range.arena(), touch.range.hull(indices_), touch);
  }
  void sort() { index_.sort(); }

  /// Calls fn(touch, bytes) for each access that overlaps the range at some coordinate, until fn
  /// returns false.
  template <typename Fn> void forEachIn(const Range &range, const Fn &fn) const {
    index_.forEachIn(range.arena(), range.hull(indices_), [&](const Touch &touch) {
      std::optional<ByteRange> bytes = commonBytes(touch.range, range, indices_);
      return !bytes || fn(touch, *bytes);
    });
  }

private:
  Indices indices_;
  RangeIndex<Touch> index_;
};

/// Adds the segments that the node and its descendants run.
void addRuns(const ProgramNode &node, std::set<uint32_t> &segments) {
  if (node.segment != kNone)
    segments.insert(node.segment);
  for (const ProgramNode &child : node.children)
    addRuns(child, segments);
}

/// Segments that run concurrently with a background segment: those from a step's end to the next
/// run of `before`, or to the program's end. A loop of a single step has no next step.
std::set<uint32_t> segmentsBeside(const Role &role, uint32_t before) {
  std::set<uint32_t> beside;
  bool isBehind = false;
  for (const ProgramNode &node : role.program) {
    if (isBehind)
      addRuns(node, beside);
    if (node.kind != ProgramNode::Steps)
      continue;
    isBehind = true;
    for (const ProgramNode &child : node.children) {
      if (node.count == 1 || (child.kind == ProgramNode::Run && child.segment == before))
        break;
      addRuns(child, beside);
    }
  }
  return beside;
}

/// Segments that the program runs in its steps or after them.
std::set<uint32_t> segmentsOfSteps(const Role &role) {
  std::set<uint32_t> all;
  bool isBehind = false;
  for (const ProgramNode &node : role.program) {
    isBehind = isBehind || node.kind == ProgramNode::Steps;
    if (isBehind)
      addRuns(node, all);
  }
  return all;
}

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

/// Calls fn(touch) for each range of bytes that an op writes if it takes effect.
template <typename Fn>
void forEachWrite(const Scope &scope, uint32_t index, const Indices &indices, const Fn &fn) {
  const Segment &segment = scope.segment;
  const Op &op = segment.ops[index];
  for (ValueId result : op.results) {
    Range range = Range::of(segment.values[result], indices);
    if (!gathersInPlace(scope.plan(), scope.role, segment, op)) {
      fn(Touch{scope.segmentIndex, index, result, range});
      continue;
    }
    Range own = Range::of(segment.values[op.operands[0]], indices); // is not written
    fn(Touch{scope.segmentIndex, index, result, range.before(own, indices)});
    fn(Touch{scope.segmentIndex, index, result, range.behind(own, indices)});
  }
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
    for (const Segment::Boundary &in : segment_.ins)
      if (scope_.role.cells[in.cell].arena == Arena::Host)
        scope_.addValue(finding::BackgroundReadsHost, scope_.opOf(in.value), in.value,
                        scope_.role.cells[in.cell].name);
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
    else if (!isStaged && cell.arena != Arena::Host)
      scope_.addValue(finding::BackgroundFillsCell, op, out.value, cell.name, toString(cell.arena));
  }

  void formOf(uint32_t i) {
    const Op &op = segment_.ops[i];
    OpTraits traits = opInfo(op).traits;
    if (traits != OpTraits::Copy && traits != OpTraits::Alias)
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

/// Checks the bytes that all background segments of a role access. Those that end before the same
/// segment are checked together, since they run beside the same segments. Two background segments
/// never run concurrently.
class BytesCheck : RoleCheck {
public:
  BytesCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), indices_(inspection.plan(), role_),
        variants_(role_.segments.size()) {}

  void run() {
    std::map<uint32_t, std::vector<uint32_t>> byBefore;
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      if (role_.segments[s].before != kNone)
        byBefore[role_.segments[s].before].push_back(s);
    if (byBefore.empty())
      return;
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      variants_[s] = report_.variantsOf(roleIndex_, s);
    indexHostCells();
    std::set<uint32_t> ofSteps = segmentsOfSteps(role_);
    for (const auto &[before, segments] : byBefore) {
      Touches reads(indices_), writes(indices_), held(indices_);
      for (uint32_t s : segments)
        collect(scope(s), reads, writes, held);
      reads.sort();
      writes.sort();
      held.sort();
      bool copiesOn = role_.segments[before].before != kNone;
      std::set<uint32_t> beside = copiesOn ? ofSteps : segmentsBeside(role_, before);
      for (uint32_t other : ofSteps)
        if (beside.contains(other))
          checkBeside(scope(other), reads, writes);
        else
          checkBeside(scope(other), Touches(indices_), held);
    }
  }

private:
  /// Indexes the cells that the host fills, since the host may write these at any time.
  void indexHostCells() {
    const std::vector<bool> isSnapshot = cellsOfSnapshots(role_);
    for (uint32_t c = 0; c < role_.cells.size(); ++c) {
      Range range = Range::of(role_.cells[c], indices_);
      if (role_.cells[c].arena == Arena::Host && !isSnapshot[c])
        hostCells_.add(Arena::Host, range.hull(indices_), c);
    }
    hostCells_.sort();
  }

  /// Collects the accesses of a background segment. `held` gets writes that must persist until
  /// another background segment has copied them.
  void collect(const Scope &scope, Touches &reads, Touches &writes, Touches &held) {
    for (uint32_t i = 0; i < scope.segment.ops.size() && !report_.isFull(); ++i) {
      const Op &op = scope.segment.ops[i];
      if (opInfo(op).traits == OpTraits::Alias)
        continue;
      for (ValueId operand : op.operands)
        reads.add({scope.segmentIndex, i, operand, Range::of(scope.value(operand), indices_)});
      forEachWrite(scope, i, indices_, [&](const Touch &touch) {
        writes.add(touch);
        if (op.kind == OpKind::Stage)
          held.add(touch);
        checkWrite(scope, touch);
      });
    }
  }

  void checkWrite(const Scope &scope, const Touch &touch) {
    Arena arena = scope.segment.ops[touch.op].kind == OpKind::Stage ? Arena::Work : Arena::Host;
    if (touch.range.arena() != arena)
      scope.addValue(finding::BackgroundWritesArena, touch.op, touch.value,
                     toString(touch.range.arena()), toString(arena));
    hostCells_.forEachIn(touch.range.arena(), touch.range.hull(indices_), [&](uint32_t c) {
      Range range = Range::of(role_.cells[c], indices_);
      if (!touch.range.intersect(range, indices_).isEmpty(indices_))
        scope.addValue(finding::BackgroundWritesHostCell, touch.op, touch.value,
                       role_.cells[c].name);
      return report_.spend(1);
    });
  }

  /// Compares the accesses of background segments with the ops of a segment that runs concurrently.
  void checkBeside(const Scope &beside, const Touches &reads, const Touches &writes) {
    for (uint32_t i = 0; i < beside.segment.ops.size() && !report_.isFull(); ++i) {
      const Op &op = beside.segment.ops[i];
      bool isExecuted = std::ranges::any_of(variants_[beside.segmentIndex],
                                            [&](Variant variant) { return executes(op, variant); });
      if (!report_.spend(1) || !isExecuted)
        continue;
      forEachWrite(beside, i, indices_, [&](const Touch &touch) {
        compare(reads, beside, touch, "reads bytes that a concurrent op writes", "written");
        compare(writes, beside, touch, "writes bytes that a concurrent op also writes", "written");
      });
      for (ValueId operand : op.operands)
        compare(writes, beside,
                {beside.segmentIndex, i, operand, Range::of(beside.value(operand), indices_)},
                "writes bytes that a concurrent op reads", "read");
    }
  }

  void compare(const Touches &ours, const Scope &beside, const Touch &theirs, std::string_view what,
               std::string_view verb) {
    if (theirs.range.isEmpty(indices_))
      return;
    ours.forEachIn(theirs.range, [&](const Touch &touch, const ByteRange &bytes) {
      Scope own = scope(touch.segment);
      Finding &finding =
          own.addValue(finding::BackgroundConflicts, touch.op, touch.value, what, toString(bytes));
      finding.bytes = bytes;
      finding.note = fmt::format("'%{}' is {} here, in segment {}", beside.nameOf(theirs.value),
                                 verb, beside.segment.name);
      finding.noteAt = beside.spot(theirs.op);
      return report_.spend(1);
    });
  }

  Indices indices_;
  std::vector<std::vector<Variant>> variants_; ///< for each segment: variants that the program runs
  RangeIndex<uint32_t> hostCells_;             ///< cells that no background segment fills
};

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

void checkBackgroundBytes(Inspection &inspection, uint32_t role) {
  BytesCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
