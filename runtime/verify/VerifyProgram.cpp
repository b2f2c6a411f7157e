// Follows the contents of cells through the program: which cells have a content when a segment
// begins. The byte checks of each segment tell which contents it needs and which it stores.
//
// The first attempt tracks whole cells, and assumes steps in any order. It is fast, and a plan that
// passes is valid. If it fails, the second attempt also tracks the parts of cells that ops read. If
// that fails too, the check follows the program step by step.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyBytes.h"
#include "runtime/verify/VerifyWalk.h"

namespace shardc::plan::verifier {
namespace {

/// Limits: states of cells at one point of the program, and regions in all of these states.
constexpr size_t kStatesMax = 1024, kRegionsInStatesMax = size_t{1} << 23;

/// The cost of copying a region's state, in counted visits.
constexpr uint64_t kVisitsOfRegion = 4;
/// The cost of finding what is due in a step, and whether it has already run from a state.
constexpr uint64_t kVisitsOfStep = 64;

/// Which regions of cells have a content.
using Validity = std::vector<bool>;

/// Which regions have a content, the microbatch in each ring slot, and, for messages, how each
/// region last lost its content; null if it never did.
struct State {
  Validity isValid;
  std::vector<int64_t> microbatches; ///< by cell; empty without rings
  std::vector<const Loss *> lost;
  const Finding *corrupted(uint32_t region) const {
    return lost[region] != nullptr ? lost[region]->corrupted.get() : nullptr;
  }
  Spot lostAt(uint32_t region) const { return lost[region] != nullptr ? lost[region]->at : Spot{}; }
  bool operator<(const State &other) const {
    return std::tie(isValid, microbatches) < std::tie(other.isValid, other.microbatches);
  }
  bool isSame(const State &other) const {
    return isValid == other.isValid && microbatches == other.microbatches;
  }
};
using States = std::set<State>; ///< with distinct validities

class ProgramCheck : ProgramWalk<ProgramCheck, States> {
  friend ProgramWalk;

public:
  ProgramCheck(Inspection &inspection, uint32_t roleIndex)
      : ProgramWalk(inspection, roleIndex),
        regions_(inspection, role_, Indices(inspection.plan(), role_)),
        effects_(role_.segments.size()), isSaved_(inspection.saved(roleIndex).has) {
    for (const Segment &segment : role_.segments) {
      shiftsIn_.push_back(shiftsOf(segment.ins));
      shiftsOut_.push_back(shiftsOf(segment.outs));
    }
    stepCell_ = findCell(role_, CellKind::Step);
  }

  void run() {
    checkSegments();
    if (!isStopped())
      follow();
  }

private:
  void follow() {
    if (passesTrial())
      return;
    if (regions_.hasSeenParts() && !rings_.hasRings()) { // slots of a ring rotate as whole cells
      followParts();
      if (report_.size() != 0 || passesTrial())
        return;
    }
    walkProgram();
  }

  /// Also true if a finding was reported, since no other attempt is needed then.
  bool passesTrial() {
    isTrial_ = true, hasFailed_ = false;
    walkProgram();
    isTrial_ = false;
    return !hasFailed_ || report_.size() != 0;
  }

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

  void walkProgram() {
    State state{Validity(regions_.size()),
                std::vector<int64_t>(rings_.hasRings() ? role_.cells.size() : 0),
                std::vector<const Loss *>(regions_.size())};
    for (uint32_t w = 0; w < regions_.size(); ++w)
      state.isValid[w] = isWrittenByHost(role_.cells[regions_.cellOf(w)]);
    States states = {state};
    walk(role_.program, states);
  }

  bool isStopped() const { return (isTrial_ && hasFailed_) || report_.size() != 0; }
  /// Records a failure. In a trial it returns true: the caller reports nothing, since the program
  /// is followed again.
  bool isTried() {
    hasFailed_ = true;
    return isTrial_;
  }

  /// The state after `count` further iterations that do the same.
  State movedOn(const State &state, const LoopIterations &iterations, int64_t count) const {
    State moved = state;
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (uint32_t to = iterations.at(c, count); iterations.touches(c) && rings_.isSlot(c)) {
        moved.isValid[to] = state.isValid[c];
        moved.lost[to] = state.lost[c];
        moved.microbatches[to] = state.microbatches[c] + count * iterations.step();
      }
    return moved;
  }

  void skip(const States &, States &states, const LoopIterations &iterations, int64_t count) const {
    States moved;
    for (const State &state : states)
      moved.insert(movedOn(state, iterations, count));
    states = std::move(moved);
  }

  /// True if an iteration changed nothing except the current microbatch.
  bool isSteady(const States &before, const States &after, const LoopIterations &iterations) const {
    return std::ranges::equal(before, after, [&](const State &a, const State &b) {
      for (uint32_t region = regions_.size(); region-- > 0;) { // slots, which differ, are last
        uint32_t to = iterations.at(region, 1);
        if (a.isValid[region] != b.isValid[to] || a.lost[region] != b.lost[to])
          return false;
        if (to >= role_.cells.size() || !rings_.isSlot(to) || !b.isValid[to])
          continue; // an empty slot has no microbatch
        int64_t step = iterations.touches(region) ? iterations.step() : 0;
        if (a.microbatches[region] + step != b.microbatches[to])
          return false;
      }
      return true;
    });
  }

  void runEvery(const ProgramNode &node, States &states) {
    readStep(states);
    if (step_ % node.count != 0)
      return;
    walkRings(node.children, states);
    readStep(states);
  }

  /// Follows the nodes of a step or an `every`. Rings are empty before and after it.
  void walkRings(const std::vector<ProgramNode> &nodes, States &states) {
    emptyRings(states);
    walkAnew(nodes, states);
    emptyRings(states);
  }

  void emptyRings(States &states) {
    if (!rings_.hasRings())
      return;
    States emptied;
    for (State state : states) {
      for (uint32_t c = 0; c < role_.cells.size(); ++c)
        if (rings_.isSlot(c)) {
          state.isValid[c] = false;
          state.microbatches[c] = 0;
          state.lost[c] = nullptr;
        }
      emptied.insert(std::move(state));
    }
    states = std::move(emptied);
  }

  /// A run that loads a checkpoint does not execute 'start'; the load fills cells of arena state.
  /// So 'start' may fill only these.
  void start(uint32_t segment, States &states) {
    for (const Segment::Boundary &out : role_.segments[segment].outs)
      if (role_.cells[out.cell].arena != Arena::State)
        scope(segment).addValue(finding::StartFillsArena, scope(segment).opOf(out.value), out.value,
                                role_.cells[out.cell].name, toString(role_.cells[out.cell].arena));
    apply(segment, Variant::Only, states);
  }

  /// A run that loads a checkpoint may begin with any step, or after the last one, and any run may
  /// end after any step.
  void runSteps(const ProgramNode &loop, States &states) {
    States ends = isTrial_ ? tryManySteps(loop, states) : runEachStep(loop, states);
    join(states, ends);
  }

  /// Follows any number of steps up to the loop's, in any order, and returns the states after them.
  /// Runs only representative steps, since every other step does the same as one of these.
  States tryManySteps(const ProgramNode &loop, const States &begin) {
    const std::set<int64_t> kinds = stepsThatDiffer(loop);
    States seen = begin, fresh = begin, ends;
    hasFailed_ |= kinds.size() > kStepsMax;
    for (int64_t step = 0; step < loop.count && !fresh.empty() && !isStopped(); ++step) {
      States next;
      for (int64_t kind : kinds) {
        States states;
        join(states, fresh);
        step_ = kind;
        walkRings(loop.children, states);
        readStep(states);
        join(ends, states);
        for (const State &state : states)
          if (seen.insert(state).second) // a known state leads to nothing new
            next.insert(state);
      }
      fresh = std::move(next);
    }
    checkStepEnds(ends);
    return ends;
  }

  /// Follows the steps in order, from each state that a run may begin with, until the states
  /// repeat. Returns the states at the ends of steps.
  States runEachStep(const ProgramNode &loop, const States &begin) {
    const int64_t period = periodOf(loop);
    // Rings are empty between steps, so a step depends only on which regions are valid.
    std::map<std::pair<std::vector<bool>, Validity>, State> made;
    States now, ends, atPeriod;
    for (step_ = 1; step_ <= loop.count && !isStopped(); ++step_) {
      if (made.size() > statesMax())
        made.clear(); // bounds the memory; results can be computed again
      const std::vector<bool> due = dueIn(loop, step_);
      States starts = now, next;
      join(starts, begin);
      for (const State &state : starts) {
        if (!report_.spend(kVisitsOfStep + loop.children.size()) || !spend())
          return ends;
        auto [at, isNew] = made.try_emplace({due, state.isValid});
        if (isNew)
          at->second = runStep(loop, state);
        next.insert(at->second);
      }
      join(ends, next);
      bool isRepeated = step_ % period == 0 && isSame(next, atPeriod);
      if (isRepeated)
        break; // later steps repeat the same states
      if (step_ % period == 0)
        atPeriod = next;
      // Skips steps in which nothing is due and which change nothing.
      if (std::ranges::find(due, true) == due.end() && isSame(next, now))
        step_ = nextDue(loop, step_) - 1;
      now = std::move(next);
    }
    return ends;
  }

  State runStep(const ProgramNode &loop, const State &begin) {
    States states = {begin};
    walkRings(loop.children, states);
    readStep(states);
    checkStepEnds(states);
    return *states.begin();
  }

  static bool isSame(const States &a, const States &b) {
    return std::ranges::equal(a, b, [](const State &x, const State &y) { return x.isSame(y); });
  }

  /// The number of steps after which the same `every` are due again; more than the loop's steps if
  /// that never happens.
  static int64_t periodOf(const ProgramNode &loop) {
    int64_t period = 1;
    for (const ProgramNode &node : loop.children)
      if (node.kind == ProgramNode::Every) {
        int64_t factor = node.count / std::gcd(period, node.count);
        if (factor > loop.count / period)
          return loop.count + 1;
        period *= factor;
      }
    return period;
  }

  /// For each node of the loop, whether it is an `every` that is due, except those due in each
  /// step.
  static std::vector<bool> dueIn(const ProgramNode &loop, int64_t step) {
    std::vector<bool> due;
    for (const ProgramNode &node : loop.children)
      due.push_back(node.kind == ProgramNode::Every && node.count > 1 && step % node.count == 0);
    return due;
  }

  /// The next step in which an `every` is due; count + 1 if the loop has none.
  static int64_t nextDue(const ProgramNode &loop, int64_t step) {
    int64_t next = loop.count + 1;
    for (const ProgramNode &node : loop.children)
      if (node.kind == ProgramNode::Every && node.count > 1)
        next = std::min(next, (step / node.count + 1) * node.count);
    return next;
  }

  void checkStepEnds(const States &states) {
    checkBackground(states);
    for (uint32_t c = 0; c < isSaved_.size(); ++c)
      if (isSaved_[c])
        for (const State &state : states)
          readByHost(c, "a save reads", state);
  }

  /// The host reads the step state after each step and each `every`.
  void readStep(const States &states) {
    if (stepCell_ != kNone)
      for (const State &state : states)
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
    ByteRange bytes = lostBytes(cell, state);
    Finding &finding =
        report_.addAbout(finding::NoContentAtStepEnd, lost.segment == kNone ? used : lost,
                         role_.cells[cell].name, who, toString(bytes));
    finding.bytes = bytes;
    if (lost.segment != kNone && used.op != kNone && used != lost)
      note(finding, fmt::format("cell '@{}' is used here", role_.cells[cell].name), used);
  }

  /// A background segment may start after any step, or after the background segment that stages its
  /// inputs. The host reads everything that it stores in arena host.
  void checkBackground(const States &states) {
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      if (role_.segments[s].before != kNone && stagedBy(role_, role_.segments[s]) == nullptr)
        checkBackground(s, states);
    for (uint32_t s = 0; s < role_.segments.size() && !isStopped(); ++s) {
      if (stagedBy(role_, role_.segments[s]) == nullptr)
        continue;
      States staged = states;
      apply(role_.segments[s].before, Variant::Only, staged);
      checkBackground(s, staged);
      checkStillThere(role_.segments[s].before, s, staged);
    }
  }

  /// The host reads what both segments have copied, once the second one has ended.
  void checkStillThere(uint32_t first, uint32_t second, States states) {
    apply(second, Variant::Only, states);
    for (const Segment::Boundary &out : role_.segments[first].outs) {
      auto isLost = [&](const State &state) { return !state.isValid[out.cell]; };
      if (role_.cells[out.cell].arena != Arena::Host || isStopped() ||
          std::ranges::none_of(states, isLost) || isTried())
        continue;
      scope(first).addValue(finding::CopyWrittenOver, scope(first).opOf(out.value), out.value,
                            role_.cells[out.cell].name, role_.segments[second].name);
    }
  }

  void checkBackground(uint32_t s, const States &states) {
    const SegmentEffect &effect = *effects_.find(s, Variant::Only);
    if (!report_.spend(states.size() * effect.needs.size()))
      return;
    for (const State &state : states)
      for (const SegmentEffect::Need &need : effect.needs)
        if (!state.isValid[need.region])
          reportNeed(s, Variant::Only, need, state);
    for (const SegmentEffect::Out &out : effect.outs)
      checkLeft(s, out, states);
  }

  /// Checks a cell to which a background segment stores.
  void checkLeft(uint32_t s, const SegmentEffect::Out &out, const States &states) {
    if (out.loss.corrupted && !isTried())
      report_.add(*out.loss.corrupted);
    if (!report_.spend(1 + states.size() * out.from.size()))
      return;
    if (!out.isDefined && !isTried())
      scope(s).addValue(finding::NothingForHost, scope(s).opOf(out.value), out.value,
                        role_.cells[regions_.cellOf(out.region)].name);
    for (const State &state : states)
      for (uint32_t region : out.from)
        if (!state.isValid[region])
          reportNeed(s, Variant::Only, {region, scope(s).opOf(out.value), out.value}, state);
  }

  size_t statesMax() const {
    return std::min(kStatesMax, kRegionsInStatesMax / std::max<size_t>(regions_.size(), 1));
  }

  void join(States &into, const States &from) {
    for (const State &state : from)
      if (into.size() <= statesMax() && spend())
        into.insert(state);
    if (into.size() > statesMax() && !isTried())
      report_.add(finding::TooManyStates, {roleIndex_, kNone, kNone}, role_.cells.size(),
                  statesMax());
  }

  void apply(uint32_t segment, const Variant &variant, States &states) {
    States results;
    bool isCompared = states.size() > 1;
    while (!states.empty() && (!isCompared || spend())) {
      State now = std::move(states.extract(states.begin()).value());
      apply(segment, variant, now);
      results.insert(std::move(now));
    }
    states = std::move(results);
  }

  /// Counts a visit of all regions and a copy of their state.
  bool spend() { return report_.spend(regions_.size() * kVisitsOfRegion); }

  /// For each cell, the distance of the slot's microbatch from the segment's own, where the segment
  /// reads or stores it. Empty without rings.
  std::vector<int64_t> shiftsOf(const std::vector<Segment::Boundary> &boundaries) const {
    std::vector<int64_t> shifts(rings_.hasRings() ? role_.cells.size() : 0);
    for (size_t i = shifts.empty() ? 0 : boundaries.size(); i-- > 0;)
      shifts[boundaries[i].cell] = boundaries[i].shift;
    return shifts;
  }

  /// True if the region holds valid content of the microbatch that the segment reads.
  bool isThere(uint32_t segment, uint32_t region, const State &state) const {
    uint32_t at = placeOf(region);
    return state.isValid[at] &&
           (!rings_.isSlot(at) ||
            state.microbatches[at] == microbatch_ + shiftsIn_[segment][region]);
  }

  /// The microbatch of what a segment stores. A content that it passes on keeps its microbatch.
  int64_t microbatchLeft(uint32_t segment, const SegmentEffect::Out &out,
                         const State &state) const {
    for (uint32_t region : out.from)
      if (uint32_t at = placeOf(region); rings_.isSlot(at))
        return state.microbatches[at];
    return microbatch_ + out.shift.value_or(shiftsOut_[segment][out.region]);
  }

  /// Applies the segment's effect to the state. Visits only regions that the segment accesses.
  void apply(uint32_t segment, const Variant &variant, State &state) {
    const SegmentEffect *found = effects_.find(segment, variant);
    if (found == nullptr ||
        !report_.spend(1 + found->needs.size() + found->clobbers.size() + found->outs.size()))
      return;
    for (const SegmentEffect::Need &need : found->needs)
      if (!isThere(segment, need.region, state))
        reportNeed(segment, variant, need, state);
    // A stored content may come from another cell that the segment overwrites, so all losses are
    // found before the state changes.
    std::vector<const Loss *> losses; // by the state at the segment's start
    for (const SegmentEffect::Out &out : found->outs)
      losses.push_back(lossOf(out, state));
    std::vector<std::pair<uint32_t, int64_t>> left; // stored slots and their new microbatches
    for (const SegmentEffect::Out &out : found->outs)
      if (uint32_t at = placeOf(out.region); rings_.isSlot(at))
        left.emplace_back(at, microbatchLeft(segment, out, state));
    auto set = [&](uint32_t given, const Loss *loss) {
      uint32_t region = placeOf(given);
      state.isValid[region] = loss == nullptr;
      state.lost[region] = loss;
    };
    for (const SegmentEffect::Clobber &clobber : found->clobbers)
      set(clobber.region, &clobber.loss);
    for (size_t i = 0; i < losses.size(); ++i)
      set(found->outs[i].region, losses[i]);
    for (const auto &[cell, microbatch] : left)
      state.microbatches[cell] = microbatch;
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
    const uint32_t given = need.region;
    need.region = placeOf(given);
    if (state.isValid[need.region])
      return reportOther(segment, variant, need, microbatch_ + shiftsIn_[segment][given],
                         state.microbatches[need.region]);
    if (const Finding *corrupted = state.corrupted(need.region)) {
      addCorrupted(*corrupted, regions_.cellOf(need.region), "is read here",
                   scope(segment).spot(need.op));
      return;
    }
    const Cell &cell = role_.cells[regions_.cellOf(need.region)];
    ByteRange bytes = lostBytes(need.region, state);
    Finding &finding = scope(segment).addValue(finding::NoContent, need.op, need.operand, cell.name,
                                               toString(bytes));
    finding.variant = variant;
    finding.bytes = bytes;
    Spot lost = state.lostAt(need.region);
    note(finding,
         lost.segment == kNone ? "nothing in the program has filled it before"
                               : "its bytes were last written here",
         lost);
  }

  /// Reports that a slot holds another microbatch than the op reads.
  void reportOther(uint32_t segment, const Variant &variant, const SegmentEffect::Need &need,
                   int64_t wanted, int64_t held) {
    scope(segment)
        .addValue(finding::ContentOfOtherMicrobatch, need.op, need.operand,
                  role_.cells[need.region].name, wanted, held)
        .variant = variant;
  }

  CellRegions regions_;
  SegmentEffects effects_;
  const std::vector<bool> &isSaved_; ///< for each cell: whether a save reads it
  std::vector<std::vector<int64_t>> shiftsIn_, shiftsOut_; ///< of each segment
  uint32_t stepCell_ = kNone;                              ///< the cell with the step state
  int64_t step_ = 0;     ///< the current one, if followed in order
  bool isTrial_ = false; ///< failures are not reported; another attempt follows
  bool hasFailed_ = false;
};

} // namespace

void checkPrograms(Inspection &inspection, uint32_t role) { ProgramCheck(inspection, role).run(); }

} // namespace shardc::plan::verifier
