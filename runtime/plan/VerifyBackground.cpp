// Background segments: unordered with everything between the end of a step and the segment that
// they name, so nothing there may write what they read, or touch what they write.
#include <algorithm>
#include <limits>
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

/// Accesses in the order of their bytes, so that those that meet a range are found without a look
/// at all.
class Touches {
public:
  explicit Touches(int64_t lastDp) : lastDp_(lastDp) {}

  void add(const Touch &touch) { of(touch.range.arena()).push_back({touch, 0}); }
  void sort() {
    for (std::vector<Entry> &entries : arenas_) {
      std::stable_sort(entries.begin(), entries.end(), [&](const Entry &a, const Entry &b) {
        return a.touch.range.hullBegin(lastDp_) < b.touch.range.hullBegin(lastDp_);
      });
      int64_t end = std::numeric_limits<int64_t>::min();
      for (Entry &entry : entries)
        entry.endMax = end = std::max(end, entry.touch.range.hullEnd(lastDp_));
    }
  }

  /// Calls fn(touch) for each access that has a byte of the range.
  template <typename Fn> void forEachIn(const Range &range, const Fn &fn) const {
    const std::vector<Entry> &entries = arenas_[static_cast<size_t>(range.arena())];
    int64_t begin = range.hullBegin(lastDp_), end = range.hullEnd(lastDp_);
    auto behind = std::partition_point(entries.begin(), entries.end(), [&](const Entry &entry) {
      return entry.touch.range.hullBegin(lastDp_) < end;
    });
    while (behind != entries.begin() && std::prev(behind)->endMax > begin) {
      const Touch &touch = (--behind)->touch;
      if (!touch.range.intersect(range, lastDp_).isEmpty(lastDp_))
        fn(touch);
    }
  }

  /// Calls fn(touch) for each access of the arena.
  template <typename Fn> void forEachOf(Arena arena, const Fn &fn) const {
    for (const Entry &entry : arenas_[static_cast<size_t>(arena)])
      fn(entry.touch);
  }

private:
  struct Entry {
    Touch touch;
    int64_t endMax; ///< of this and all before
  };
  std::vector<Entry> &of(Arena arena) { return arenas_[static_cast<size_t>(arena)]; }

  int64_t lastDp_;
  std::array<std::vector<Entry>, kArenaCount> arenas_;
};

/// Segments that a background segment runs beside: from a step's end to the next run of `before`,
/// or to the program's end. A loop of one step has no other one to run beside.
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
      if (node.count == 1 || (child.kind == ProgramNode::Run && child.segment == before))
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

/// What an op writes where it takes effect.
template <typename Fn>
void forEachWrite(const Plan &plan, const Segment &segment, uint32_t index, int64_t lastDp,
                  const Fn &fn) {
  const Op &op = segment.ops[index];
  for (ValueId result : op.results) {
    Range range = Range::of(segment.values[result], lastDp);
    if (!gathersInPlace(plan, segment, op)) {
      fn(Touch{index, result, range});
      continue;
    }
    Range own = Range::of(segment.values[op.operands[0]], lastDp); // stays as it is
    fn(Touch{index, result, range.before(own, lastDp)});
    fn(Touch{index, result, range.behind(own, lastDp)});
  }
}

/// Ops of one background segment against one segment that runs beside it.
class BesideCheck {
public:
  BesideCheck(const Scope &background, uint32_t besideIndex)
      : scope_(background), besideIndex_(besideIndex),
        beside_(background.role.segments[besideIndex]),
        variants_(variantsOf(background.role, besideIndex)),
        lastDp_(dpSize(background.plan()) - 1) {}

  void run(const Touches &reads, const Touches &writes) {
    for (uint32_t i = 0; i < beside_.ops.size() && !scope_.report.isFull(); ++i) {
      const Op &op = beside_.ops[i];
      if (!scope_.report.spend(1) || !isExecuted(op))
        continue;
      forEachWrite(scope_.plan(), beside_, i, lastDp_, [&](const Touch &touch) {
        compare(reads, touch, "reads bytes that an op beside it writes", "written");
        compare(writes, touch, "writes bytes that an op beside it writes too", "written");
      });
      for (ValueId operand : op.operands)
        compare(writes, {i, operand, Range::of(beside_.values[operand], lastDp_)},
                "writes bytes that an op beside it reads", "read");
    }
  }

private:
  bool isExecuted(const Op &op) const {
    return std::ranges::any_of(variants_, [&](Variant variant) { return executes(op, variant); });
  }

  void compare(const Touches &ours, const Touch &theirs, std::string_view what,
               std::string_view verb) {
    if (theirs.range.isEmpty(lastDp_))
      return;
    ours.forEachIn(theirs.range, [&](const Touch &touch) {
      if (!scope_.report.spend(1))
        return;
      Finding *finding =
          scope_.addValue(Rule::Background, touch.op, touch.value,
                          "the background segment {}: '%{}'", what, scope_.nameOf(touch.value));
      if (finding == nullptr)
        return;
      finding->note = fmt::format("'%{}' is {} here, in segment {}",
                                  beside_.values[theirs.value].name, verb, beside_.name);
      finding->noteAt = {scope_.roleIndex, besideIndex_, theirs.op};
    });
  }

  const Scope &scope_;
  uint32_t besideIndex_;
  const Segment &beside_;
  std::vector<Variant> variants_; ///< that the program takes
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
    StreamUsers usersOfStreams = findUsersOfStreams();
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      formOf(i, usersOfStreams);
    checkHandedOver();
    for (const Segment::Boundary &in : segment_.ins)
      if (scope_.role.cells[in.cell].arena == Arena::Host)
        scope_.addValue(Rule::Background, scope_.opOf(in.value), in.value,
                        "cell '@{}' lies in arena host, which the host may write at any time",
                        scope_.role.cells[in.cell].name);
    for (const Segment::Boundary &out : segment_.outs)
      if (scope_.role.cells[out.cell].arena != Arena::Host)
        scope_.addValue(Rule::Background, scope_.opOf(out.value), out.value,
                        "a background segment fills cell '@{}', which does not lie in arena host",
                        scope_.role.cells[out.cell].name);
  }

  void bytes() {
    Touches reads(lastDp_), writes(lastDp_);
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      if (opInfo(segment_.ops[i].kind).traits == OpTraits::Alias)
        continue;
      for (ValueId operand : segment_.ops[i].operands)
        reads.add({i, operand, Range::of(segment_.values[operand], lastDp_)});
      forEachWrite(scope_.plan(), segment_, i, lastDp_,
                   [&](const Touch &touch) { writes.add(touch); });
    }
    reads.sort();
    writes.sort();
    for (Arena arena : {Arena::State, Arena::Work, Arena::Sym})
      writes.forEachOf(arena, [&](const Touch &touch) {
        scope_.addValue(Rule::Background, touch.op, touch.value,
                        "a background segment writes '%{}', which does not lie in arena host",
                        scope_.nameOf(touch.value));
      });
    checkHostCells(writes);
    for (uint32_t beside : segmentsBeside(scope_.role, segment_.before))
      BesideCheck(scope_, beside).run(reads, writes);
  }

private:
  /// A segment of the program that uses the stream, if there is one.
  using StreamUsers = std::array<const Segment *, kStreamCount>;

  void formOf(uint32_t i, const StreamUsers &usersOfStreams) {
    const Op &op = segment_.ops[i];
    OpTraits traits = opInfo(op.kind).traits;
    if (traits != OpTraits::Copy && traits != OpTraits::Alias)
      scope_.add(Rule::Background, i, "a background segment only copies, and has '{}'",
                 opInfo(op.kind).name);
    const Segment *other = usersOfStreams[static_cast<size_t>(op.stream)];
    if (traits != OpTraits::Alias && scope_.plan().level >= Level::Scheduled && other != nullptr)
      scope_.add(Rule::Background, i,
                 "a background segment has streams of its own; segment {} uses stream {} too",
                 other->name, toString(op.stream));
  }

  /// The host takes what a snapshot copies from its place; only a cell says that it is read there.
  void checkHandedOver() {
    std::vector<bool> isLeft(segment_.values.size());
    for (const Segment::Boundary &out : segment_.outs)
      isLeft[out.value] = true;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i)
      for (ValueId result : segment_.ops[i].results)
        if (opInfo(segment_.ops[i].kind).traits == OpTraits::Copy && !isLeft[result])
          scope_.addValue(Rule::Background, i, result,
                          "a background segment copies '%{}' and leaves it in no cell",
                          scope_.nameOf(result));
  }

  StreamUsers findUsersOfStreams() const {
    StreamUsers users{};
    for (const Segment &segment : scope_.role.segments)
      for (const Op &op : segment.ops)
        if (scope_.report.spend(1) && segment.before == kNone &&
            opInfo(op.kind).traits != OpTraits::Alias)
          users[static_cast<size_t>(op.stream)] = &segment;
    return users;
  }

  /// Cells that the host fills are written whenever it likes.
  void checkHostCells(const Touches &writes) {
    std::set<uint32_t> own;
    for (const Segment &segment : scope_.role.segments)
      if (segment.before != kNone)
        for (const Segment::Boundary &out : segment.outs)
          own.insert(out.cell);
    for (uint32_t c = 0; c < scope_.role.cells.size(); ++c) {
      const Cell &cell = scope_.role.cells[c];
      if (cell.arena != Arena::Host || own.contains(c))
        continue;
      writes.forEachIn(Range::of(cell, lastDp_), [&](const Touch &touch) {
        scope_.addValue(Rule::Background, touch.op, touch.value,
                        "a background segment writes '%{}' over cell '@{}' of the host",
                        scope_.nameOf(touch.value), cell.name);
      });
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
