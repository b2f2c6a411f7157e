// Cells along the program: which have a content when a segment begins, on every way that the
// program can take; and the byte checks of each segment, which say what the segment needs and
// leaves.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/plan/HostCells.h"
#include "runtime/plan/VerifyBytes.h"

namespace shardc::plan::verifier {
namespace {

/// States of cells at one point of the program, and cells in all of them.
constexpr size_t kStatesMax = 1024, kCellsInStatesMax = size_t{1} << 23;

/// Which cells have a content.
using Validity = std::vector<bool>;

/// Validity, and for messages the op that took a cell's content away last, or how a segment that
/// was to leave one spoiled it.
struct State {
  Validity isValid;
  std::vector<Spot> lost;
  std::vector<const Finding *> spoiled;
  bool operator<(const State &other) const { return isValid < other.isValid; }
};
using States = std::set<State>; ///< different validities

class ProgramCheck {
public:
  ProgramCheck(Report &report, uint32_t roleIndex)
      : report_(report), roleIndex_(roleIndex), role_(report.plan().roles[roleIndex]),
        effects_(role_.segments.size()), isHeld_(cellsInCheckpoint(report.plan(), role_)) {
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (role_.cells[c].name == hostCellInfo(HostCell::Step).name)
        step_ = c;
  }

  void run() {
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      checkSegment(s);
    if (report_.size() != 0)
      return;
    State state{Validity(role_.cells.size()), std::vector<Spot>(role_.cells.size()),
                std::vector<const Finding *>(role_.cells.size())};
    for (size_t c = 0; c < role_.cells.size(); ++c)
      state.isValid[c] = isWrittenByHost(role_.cells[c]);
    States states = {state};
    walk(role_.program, states);
  }

private:
  Scope scope(uint32_t segment) {
    return {report_, role_, role_.segments[segment], roleIndex_, segment};
  }

  void checkSegment(uint32_t s) {
    Scope where = scope(s);
    ByteCheck bytes(where);
    std::vector<Variant> distinct = distinctVariants(role_, s);
    std::map<Variant, SegmentEffect> made;
    for (Variant variant : distinct)
      made[variant] = bytes.check(variant);
    std::array<Variant, 4> standing = representatives(role_.segments[s], distinct);
    for (size_t variant = 0; variant < standing.size(); ++variant)
      if (auto at = made.find(standing[variant]); at != made.end())
        effects_[s][variant] = at->second;
  }

  void walk(const std::vector<ProgramNode> &nodes, States &states) {
    for (const ProgramNode &node : nodes) {
      if (report_.size() != 0)
        return;
      switch (node.kind) {
      case ProgramNode::Start:
        checkStart(node.segment);
        runSegment(node, states);
        break;
      case ProgramNode::Run:
        runSegment(node, states);
        break;
      case ProgramNode::Steps:
        runSteps(node, states);
        break;
      case ProgramNode::Every: {
        readStep(states);
        States with = states;
        walk(node.children, with);
        readStep(with);
        if (node.count > 1)
          join(states, with);
        else
          states = std::move(with);
        break;
      }
      }
    }
  }

  /// A run that loads a checkpoint does not start, and finds the same cells filled: those of the
  /// state.
  void checkStart(uint32_t segment) {
    for (const Segment::Boundary &out : role_.segments[segment].outs)
      if (role_.cells[out.cell].arena != Arena::State)
        scope(segment).addValue(Rule::Program, scope(segment).opOf(out.value), out.value,
                                "'start' fills cell '@{}' in arena {}, which a run that loads a "
                                "checkpoint would not have",
                                role_.cells[out.cell].name, toString(role_.cells[out.cell].arena));
  }

  void runSteps(const ProgramNode &node, States &states) {
    States seen = states, fresh = states, ends;
    for (int64_t step = 0; step < node.count && !fresh.empty() && report_.size() == 0; ++step) {
      walk(node.children, fresh);
      readStep(fresh);
      join(ends, fresh);
      States next;
      for (const State &state : fresh)
        if (seen.insert(state).second)
          next.insert(state);
      fresh = std::move(next);
    }
    states = std::move(ends);
    checkBackground(states);
    for (uint32_t c = 0; c < isHeld_.size(); ++c)
      if (isHeld_[c])
        for (const State &state : states)
          readByHost(c, "a save reads", state);
  }

  /// The host reads the step state when a step has ended, and an `every`.
  void readStep(const States &states) {
    if (step_ != kNone)
      for (const State &state : states)
        readByHost(step_, "the host reads", state);
  }

  void readByHost(uint32_t cell, std::string_view who, const State &state) {
    if (state.isValid[cell])
      return;
    if (state.spoiled[cell] != nullptr) {
      report_.add(*state.spoiled[cell]);
      return;
    }
    const Spot &lost = state.lost[cell];
    report_.add(Rule::Cell, lost.segment == kNone ? spotOfCell(report_, roleIndex_, cell) : lost,
                fmt::format("{} cell '@{}' when a step has ended; it has no content by then", who,
                            role_.cells[cell].name),
                role_.cells[cell].name);
  }

  /// Background segments may start where any step has ended, and the host reads all that they
  /// leave.
  void checkBackground(const States &states) {
    for (uint32_t s = 0; s < role_.segments.size(); ++s) {
      if (role_.segments[s].before == kNone)
        continue;
      const SegmentEffect &effect = *effects_[s][static_cast<size_t>(Variant::Only)];
      for (const State &state : states)
        for (const SegmentEffect::Need &need : effect.needs)
          if (!state.isValid[need.cell])
            reportNeed(s, Variant::Only, need, state);
      for (const SegmentEffect::Out &out : effect.outs) {
        if (out.spoiled)
          report_.add(*out.spoiled);
        if (!out.isDefined)
          scope(s).addValue(Rule::Cell, scope(s).opOf(out.value), out.value,
                            "the host reads cell '@{}' when segment '{}' has ended, which leaves "
                            "nothing in it",
                            role_.cells[out.cell].name, role_.segments[s].name);
        for (const State &state : states)
          for (uint32_t cell : out.from)
            if (!state.isValid[cell])
              reportNeed(s, Variant::Only, {cell, scope(s).opOf(out.value), out.value}, state);
      }
    }
  }

  void join(States &into, const States &from) {
    size_t most = std::min(kStatesMax, kCellsInStatesMax / std::max<size_t>(role_.cells.size(), 1));
    for (const State &state : from)
      if (into.size() <= most && spend())
        into.insert(state);
    if (into.size() > most)
      report_.add(
          Rule::Program, {roleIndex_, kNone, kNone},
          fmt::format("the program leaves its {} cells in more than {} different states, the most "
                      "that are followed",
                      role_.cells.size(), most));
  }

  void runSegment(const ProgramNode &node, States &states) {
    States results;
    for (const State &state : states) {
      if (!spend())
        return;
      State now = state;
      if (!role_.segments[node.segment].body) {
        repeat(node.segment, Variant::Only, node.count, now);
      } else if (node.count == 1) {
        apply(node.segment, Variant::Only, now);
      } else {
        apply(node.segment, Variant::First, now);
        repeat(node.segment, Variant::Middle, node.count - 2, now);
        apply(node.segment, Variant::Last, now);
      }
      results.insert(std::move(now));
    }
    states = std::move(results);
  }

  /// For a look at all cells.
  bool spend() { return report_.spend(role_.cells.size()); }

  /// A run that changes nothing changes nothing again; a cell that is lost stays lost but for the
  /// segments' own contents, so as many runs as there are cells show all that can happen.
  void repeat(uint32_t segment, Variant variant, int64_t count, State &state) {
    for (int64_t i = 0; i < count && report_.size() == 0; ++i) {
      Validity before = state.isValid;
      if (!spend())
        return;
      apply(segment, variant, state);
      if (state.isValid == before)
        return;
    }
  }

  void apply(uint32_t segment, Variant variant, State &state) {
    const std::optional<SegmentEffect> &found = effects_[segment][static_cast<size_t>(variant)];
    if (!found)
      return;
    for (const SegmentEffect::Need &need : found->needs)
      if (!state.isValid[need.cell])
        reportNeed(segment, variant, need, state);
    State before = state;
    auto lose = [&](uint32_t cell, uint32_t op, const Finding *spoiled = nullptr) {
      state.isValid[cell] = false;
      state.lost[cell] = {roleIndex_, segment, op};
      state.spoiled[cell] = spoiled;
    };
    for (const SegmentEffect::Clobber &clobber : found->clobbers)
      lose(clobber.cell, clobber.op);
    for (const SegmentEffect::Out &out : found->outs) {
      auto missing = std::find_if(out.from.begin(), out.from.end(),
                                  [&](uint32_t cell) { return !before.isValid[cell]; });
      const Finding *spoiled = out.spoiled ? &*out.spoiled : nullptr;
      if (missing != out.from.end() && spoiled == nullptr)
        spoiled = before.spoiled[*missing];
      if (out.isDefined && missing == out.from.end() && spoiled == nullptr)
        state.isValid[out.cell] = true;
      else
        lose(out.cell, role_.segments[segment].values[out.value].def, spoiled);
    }
  }

  void reportNeed(uint32_t segment, Variant variant, const SegmentEffect::Need &need,
                  const State &state) {
    if (state.spoiled[need.cell] != nullptr) {
      report_.add(*state.spoiled[need.cell]);
      return;
    }
    const Cell &cell = role_.cells[need.cell];
    ByteRange bytes{cell.arena, cell.place.offset, cell.place.offset + cell.type.bytes(), 0};
    Finding *finding = scope(segment).addValue(
        Rule::Cell, need.op, need.operand,
        "the op reads the content of cell '@{}' in {}, which has none by then", cell.name,
        toString(bytes));
    if (finding == nullptr)
      return;
    finding->variant = variant;
    finding->bytes = bytes;
    const Spot &lost = state.lost[need.cell];
    finding->note = lost.segment == kNone ? "nothing in the program has filled it before"
                                          : "its bytes were last written here";
    finding->noteAt = lost;
  }

  Report &report_;
  uint32_t roleIndex_;
  const Role &role_;
  std::vector<std::array<std::optional<SegmentEffect>, 4>> effects_; ///< by segment and variant
  std::vector<bool> isHeld_; ///< of each cell: saves read it
  uint32_t step_ = kNone;    ///< the cell with the step state
};

} // namespace

void checkPrograms(Report &report, uint32_t role) { ProgramCheck(report, role).run(); }

} // namespace shardc::plan::verifier
