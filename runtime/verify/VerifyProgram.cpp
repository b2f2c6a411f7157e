// Follows the contents of cells through the program: which cells have a content when a segment
// begins. The byte checks of each segment tell which contents it needs and which it stores.
//
// A content is there if it is there on every path through the program, where steps come in any
// order. No precision is lost: whether a segment needs or leaves a content never depends on two
// contents in different ways. The first attempt tracks whole cells, which is fast, and a plan that
// passes is valid. If it fails, the second attempt also tracks the parts of cells that ops read.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyBytes.h"
#include "runtime/verify/VerifyWalk.h"

namespace shardc::plan::verifier {
namespace {

/// The cost of copying a region's state, in counted visits.
constexpr uint64_t kVisitsOfRegion = 4;

/// Which regions have a content and, for messages, how each region last lost its content; null if
/// it never did.
struct State {
  std::vector<bool> isValid;
  std::vector<const Loss *> lost;
  const Finding *corrupted(uint32_t region) const {
    return lost[region] != nullptr ? lost[region]->corrupted.get() : nullptr;
  }
  Spot lostAt(uint32_t region) const { return lost[region] != nullptr ? lost[region]->at : Spot{}; }
  /// Removes what the other state lacks. False if it lacks nothing.
  bool meet(const State &other) {
    bool hasChanged = false;
    for (size_t region = 0; region < isValid.size(); ++region)
      if (isValid[region] && !other.isValid[region]) {
        isValid[region] = false, lost[region] = other.lost[region];
        hasChanged = true;
      }
    return hasChanged;
  }
};

/// Adds the segments that the node and its descendants run.
void addRuns(const ProgramNode &node, std::set<uint32_t> &segments) {
  if (node.segment != kNone)
    segments.insert(node.segment);
  for (const ProgramNode &child : node.children)
    addRuns(child, segments);
}

/// Segments that the program runs in its steps or after them.
std::set<uint32_t> segmentsOfSteps(const Role &role) {
  std::set<uint32_t> all;
  auto steps = std::ranges::find(role.program, ProgramNode::Steps, &ProgramNode::kind);
  for (; steps != role.program.end(); ++steps)
    addRuns(*steps, all);
  return all;
}

/// Segments that run concurrently with a background segment: those from a step's end to the next
/// run of `before`, or to the program's end. A loop of a single step has no next step. A background
/// segment that copies what another one has staged runs concurrently with all segments of steps.
std::set<uint32_t> segmentsBeside(const Role &role, uint32_t before) {
  if (role.segments[before].before != kNone)
    return segmentsOfSteps(role);
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

class ProgramCheck : ProgramWalk<ProgramCheck, State> {
  friend ProgramWalk;

public:
  ProgramCheck(Inspection &inspection, uint32_t roleIndex)
      : ProgramWalk(inspection, roleIndex), regions_(inspection, roleIndex),
        effects_(role_.segments.size()), isLoaded_(cellsOfState(role_, loadedBlocks(plan_, role_))),
        isSaved_(cellsOfState(role_, savedBlocks(plan_, role_))),
        stepCell_(findCell(role_, CellKind::Step)) {}

  void run() {
    checkSegments();
    if (report_.size() != 0)
      return;
    checkProgram();
    if (!hasFailed_)
      return;
    if (regions_.hasSeenParts())
      followParts();
    isTrial_ = false;
    if (report_.size() == 0)
      checkProgram();
  }

private:
  void checkSegments() {
    regions_.index();
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      checkBytes(scope(s), regions_, effects_);
  }

  /// A read part of a stored cell makes the part of the cell from which it was stored a region too.
  void followParts() {
    regions_.followParts();
    uint32_t known = 0;
    while (regions_.size() != known && report_.size() == 0) {
      known = regions_.size();
      checkSegments();
    }
  }

  void checkProgram() {
    std::map<uint32_t, std::vector<uint32_t>> byBefore;
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      if (role_.segments[s].before != kNone)
        byBefore[role_.segments[s].before].push_back(s);
    for (const auto &[before, segments] : byBefore)
      checkBeside(before, segments);
    State state{std::vector<bool>(regions_.size()), std::vector<const Loss *>(regions_.size())};
    for (uint32_t w = 0; w < regions_.size(); ++w)
      state.isValid[w] = isWrittenByHost(role_.cells[regions_.cellOf(w)]);
    walk(role_.program, state);
  }

  /// Checks that no concurrent segment writes regions that a background segment reads, and that no
  /// segment of steps accesses what it writes: staged bytes are read after it has ended. Background
  /// segments that end before the same segment run beside the same ones.
  void checkBeside(uint32_t before, const std::vector<uint32_t> &segments) {
    std::vector<uint32_t> readBy(regions_.size(), kNone), writtenBy(regions_.size(), kNone);
    for (uint32_t s : segments) {
      const SegmentEffect &effect = *effects_[s].at(Variant::Only);
      for (const SegmentEffect::Need &need : effect.needs)
        readBy[need.region] = s;
      forEachWritten(effect, [&](uint32_t region, const Loss &) { writtenBy[region] = s; });
    }
    std::set<uint32_t> beside = segmentsBeside(role_, before);
    for (uint32_t other : segmentsOfSteps(role_))
      for (const auto &[variant, effect] : effects_[other]) {
        if (!report_.spend(effect->needs.size() + effect->clobbers.size() + effect->outs.size()))
          return;
        for (const SegmentEffect::Need &need : effect->needs)
          reportBeside(writtenBy[need.region], need.region, {scope(other).spot(need.op), {}, {}},
                       "writes bytes that a concurrent op reads");
        forEachWritten(*effect, [&](uint32_t region, const Loss &loss) {
          reportBeside(writtenBy[region], region, loss,
                       "writes bytes that a concurrent op also writes");
          if (beside.contains(other))
            reportBeside(readBy[region], region, loss, "reads bytes that a concurrent op writes");
        });
      }
  }

  /// Calls fn(region, loss) for each region whose bytes the segment changes.
  template <typename Fn> static void forEachWritten(const SegmentEffect &effect, const Fn &fn) {
    for (const SegmentEffect::Clobber &clobber : effect.clobbers)
      fn(clobber.region, clobber.loss);
    for (const SegmentEffect::Out &out : effect.outs)
      if (out.isWritten || out.loss.corrupted)
        fn(out.region, out.loss);
  }

  void reportBeside(uint32_t s, uint32_t region, const Loss &loss, std::string_view what) {
    if (s == kNone || isTried())
      return;
    Finding &finding = report_.addAbout(finding::BackgroundConflicts, scope(s).spot(),
                                        role_.cells[regions_.cellOf(region)].name, what,
                                        toString(loss.bytes ? *loss.bytes : bytesOf(region)));
    note(finding, "the concurrent op is here", loss.at);
  }

  bool isStopped() const { return (isTrial_ && hasFailed_) || report_.size() != 0; }
  /// Records a failure. In a trial it returns true: the caller reports nothing, since the program
  /// is followed again.
  bool isTried() {
    hasFailed_ = true;
    return isTrial_;
  }

  bool isSame(const State &a, const State &b) const { return a.isValid == b.isValid; }

  /// The state after `count` further iterations that do the same.
  void skip(const State &, State &state, const LoopIterations &iterations, int64_t count) const {
    State moved = state;
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (uint32_t to = iterations.at(c, count); iterations.touches(c) && rings_.isSlot(c)) {
        moved.isValid[to] = state.isValid[c];
        moved.lost[to] = state.lost[c];
      }
    state = std::move(moved);
  }

  /// True if an iteration changed nothing except the current microbatch.
  bool isSteady(const State &before, const State &after, const LoopIterations &iterations) const {
    for (uint32_t region = regions_.size(); region-- > 0;) { // slots, which differ, are last
      uint32_t to = iterations.at(region, 1);
      if (before.isValid[region] != after.isValid[to] || before.lost[region] != after.lost[to])
        return false;
    }
    return true;
  }

  void runEvery(const ProgramNode &node, State &state) {
    readStep(state);
    if (step_ % node.count != 0)
      return;
    walkAnew(node.children, state);
    readStep(state);
  }

  /// A run that loads a checkpoint does not execute 'start'. Then only the cells that the load
  /// fills have a content.
  void start(uint32_t segment, State &state) {
    State loaded = state;
    for (uint32_t region = 0; region < regions_.size(); ++region)
      loaded.isValid[region] = loaded.isValid[region] || isLoaded_[regions_.cellOf(region)];
    apply(segment, Variant::Only, state);
    if (!plan_.blocks.empty())
      state.meet(loaded);
  }

  /// A run that loads a checkpoint may begin with any step, or after the last one, and any run may
  /// end after any step.
  /// Follows representative steps, since every other step does the same as one of these, until
  /// their ends lack nothing more.
  void runSteps(const ProgramNode &loop, State &state) {
    bool hasChanged = true;
    for (int64_t step = 0; step < loop.count && hasChanged; ++step) {
      const State begin = state;
      hasChanged = false;
      for (int64_t kind : stepsThatDiffer(loop)) {
        if (isStopped() || !report_.spend(regions_.size() * kVisitsOfRegion))
          return;
        State end = begin;
        step_ = kind;
        walkAnew(loop.children, end);
        readStep(end);
        checkStepEnd(end);
        hasChanged |= state.meet(end);
      }
    }
  }

  void checkStepEnd(const State &state) {
    checkBackground(state);
    for (uint32_t c = 0; c < isSaved_.size(); ++c)
      if (isSaved_[c])
        readByHost(c, "a save reads", state);
  }

  /// The host reads the step state after each step and each `every`.
  void readStep(const State &state) {
    if (stepCell_ != kNone)
      readByHost(stepCell_, "the host reads", state);
  }

  void readByHost(uint32_t cell, std::string_view who, const State &state) {
    if (state.isValid[cell] || isTried())
      return;
    Spot used = spotOfCell(report_, roleIndex_, cell);
    if (const Finding *corrupted = state.corrupted(cell)) {
      addCorrupted(*corrupted, cell, "is used here", used);
      return;
    }
    Spot lost = state.lostAt(cell);
    Finding &finding =
        report_.addAbout(finding::NoContentAtStepEnd, lost.segment == kNone ? used : lost,
                         role_.cells[cell].name, who, toString(lostBytes(cell, state)));
    if (lost.segment != kNone && used.op != kNone && used != lost)
      note(finding, fmt::format("cell '@{}' is used here", role_.cells[cell].name), used);
  }

  /// A background segment may start after any step, or after the background segment that stages its
  /// inputs. The host reads everything that it stores in arena host.
  void checkBackground(const State &state) {
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      if (role_.segments[s].before != kNone && stagedBy(role_, role_.segments[s]) == nullptr)
        checkBackground(s, state);
    for (uint32_t s = 0; s < role_.segments.size() && !isStopped(); ++s) {
      if (stagedBy(role_, role_.segments[s]) == nullptr)
        continue;
      State staged = state;
      apply(role_.segments[s].before, Variant::Only, staged);
      checkBackground(s, staged);
      checkStillThere(role_.segments[s].before, s, staged);
    }
  }

  /// The host reads what both segments have copied, once the second one has ended.
  void checkStillThere(uint32_t first, uint32_t second, State state) {
    apply(second, Variant::Only, state);
    for (const Segment::Boundary &out : role_.segments[first].outs)
      if (role_.cells[out.cell].arena == Arena::Host && !isStopped() && !state.isValid[out.cell] &&
          !isTried())
        scope(first).addValue(finding::CopyWrittenOver, scope(first).opOf(out.value), out.value,
                              role_.cells[out.cell].name, role_.segments[second].name);
  }

  void checkBackground(uint32_t s, const State &state) {
    const SegmentEffect &effect = *effects_[s].at(Variant::Only);
    if (!report_.spend(effect.needs.size()))
      return;
    for (const SegmentEffect::Need &need : effect.needs)
      if (!state.isValid[need.region])
        reportNeed(s, Variant::Only, need, state);
    for (const SegmentEffect::Out &out : effect.outs)
      checkLeft(s, out, state);
  }

  /// Checks a cell to which a background segment stores.
  void checkLeft(uint32_t s, const SegmentEffect::Out &out, const State &state) {
    if (out.loss.corrupted && !isTried())
      report_.add(*out.loss.corrupted);
    if (!report_.spend(1 + out.from.size()))
      return;
    for (uint32_t region : out.from)
      if (!state.isValid[region])
        reportNeed(s, Variant::Only, {region, scope(s).opOf(out.value), out.value}, state);
  }

  /// Applies the segment's effect to the state. Visits only regions that the segment accesses.
  void apply(uint32_t segment, const Variant &variant, State &state) {
    auto at = effects_[segment].find(variant); // a program may have runs that are never due
    const SegmentEffect *found = at == effects_[segment].end() ? nullptr : at->second.get();
    if (found == nullptr ||
        !report_.spend(1 + found->needs.size() + found->clobbers.size() + found->outs.size()))
      return;
    for (const SegmentEffect::Need &need : found->needs)
      if (!state.isValid[placeOf(need.region)])
        reportNeed(segment, variant, need, state);
    // A stored content may come from another cell that the segment overwrites, so all losses are
    // found before the state changes.
    std::vector<const Loss *> losses; // by the state at the segment's start
    for (const SegmentEffect::Out &out : found->outs)
      losses.push_back(lossOf(out, state));
    auto set = [&](uint32_t given, const Loss *loss) {
      uint32_t region = placeOf(given);
      state.isValid[region] = loss == nullptr;
      state.lost[region] = loss;
    };
    for (const SegmentEffect::Clobber &clobber : found->clobbers)
      set(clobber.region, &clobber.loss);
    for (size_t i = 0; i < losses.size(); ++i)
      set(found->outs[i].region, losses[i]);
  }

  /// Why the region has no content after the segment's store; null if it has one.
  const Loss *lossOf(const SegmentEffect::Out &out, const State &state) {
    if (out.loss.corrupted || !out.isDefined || !report_.spend(out.from.size()))
      return &out.loss;
    for (uint32_t region : out.from)
      if (!state.isValid[placeOf(region)])
        return state.corrupted(placeOf(region)) != nullptr ? state.lost[placeOf(region)]
                                                           : &out.loss;
    return nullptr;
  }

  /// The bytes of a region that do not hold its content.
  ByteRange lostBytes(uint32_t region, const State &state) const {
    if (state.lost[region] != nullptr && state.lost[region]->bytes)
      return *state.lost[region]->bytes;
    return bytesOf(region);
  }
  ByteRange bytesOf(uint32_t region) const {
    Range range = regions_.rangeOf(region);
    int64_t member = Indices(report_.plan(), role_).of(range.group()).first;
    return {range.arena(), range.begin(member), range.end(member), member};
  }

  /// Reports a corrupted content. The note shows the reader, unless it already shows another op.
  void addCorrupted(Finding finding, uint32_t cell, std::string_view what, Spot where) {
    if (finding.note.empty())
      note(finding, fmt::format("cell '@{}' {}", role_.cells[cell].name, what), where);
    report_.add(std::move(finding));
  }

  void reportNeed(uint32_t segment, Variant variant, SegmentEffect::Need need, const State &state) {
    if (isTried())
      return;
    need.region = placeOf(need.region);
    if (const Finding *corrupted = state.corrupted(need.region)) {
      addCorrupted(*corrupted, regions_.cellOf(need.region), "is read here",
                   scope(segment).spot(need.op));
      return;
    }
    const Cell &cell = role_.cells[regions_.cellOf(need.region)];
    Finding &finding = scope(segment).addValue(finding::NoContent, need.op, need.operand, cell.name,
                                               toString(lostBytes(need.region, state)));
    finding.variant = variant;
    Spot lost = state.lostAt(need.region);
    note(finding,
         lost.segment == kNone ? "nothing in the program has filled it before"
                               : "its bytes were last written here",
         lost);
  }

  CellRegions regions_;
  SegmentEffects effects_;
  std::vector<bool> isLoaded_, isSaved_; ///< by cell: whether a load fills it, a save reads it
  uint32_t stepCell_;                    ///< the cell with the step state
  int64_t step_ = 0;                     ///< the current one
  bool isTrial_ = true;                  ///< failures are not reported; another attempt follows
  bool hasFailed_ = false;
};

} // namespace

void checkPrograms(Inspection &inspection, uint32_t role) { ProgramCheck(inspection, role).run(); }

} // namespace shardc::plan::verifier
