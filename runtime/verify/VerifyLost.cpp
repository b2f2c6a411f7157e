// Finds contents of cells that are never read. Follows the program backwards with the set of live
// cells: those whose content is read before it is overwritten. A content is lost if no path through
// the program leads from it to a reader. A content that survives the program's end is not lost if
// its cell has any reader, because a run may end after any step.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyBytes.h"
#include "runtime/verify/VerifyWalk.h"

namespace shardc::plan::verifier {
namespace {

using Set = std::vector<uint8_t>; ///< a flag for each cell
/// `read`: live cells. `kept`: live cells, and those whose content survives the program's end.
struct Live {
  Set read, kept;
  void joinWith(const Live &other) {
    for (size_t c = 0; c < read.size(); ++c) {
      read[c] |= other.read[c];
      kept[c] |= other.kept[c];
    }
  }
  void set(uint32_t cell, bool isLive) { read[cell] = kept[cell] = isLive ? 1 : 0; }
  bool operator==(const Live &) const = default;
};

class LostCheck : ProgramWalk<LostCheck, Live, Walk::Backwards> {
  friend ProgramWalk;

public:
  LostCheck(Inspection &inspection, uint32_t roleIndex, const CellRegions &regions,
            const SegmentEffects &effects)
      : ProgramWalk(inspection, roleIndex), regions_(regions), effects_(effects),
        readAtStepEnd_(role_.cells.size()), isRead_(role_.cells.size()),
        isLive_(role_.segments.size()) {
    findReaders();
  }

  void run() {
    if (!updatesBlocks(role_)) // the rule applies only to roles that train
      return;
    Live live{Set(role_.cells.size()), isRead_};
    walk(role_.program, live);
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s) {
      for (const auto &[variant, effect] : effects_.of(s)) {
        checkOuts(s, variant);
        checkTies(s, variant);
      }
      checkUnused(s);
    }
  }

private:
  void findReaders() {
    const std::vector<bool> &isSaved = report_.saved(roleIndex_).has;
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      readAtStepEnd_[c] = isSaved[c] || isReadByHost(role_.cells[c]) ? 1 : 0;
    for (uint32_t s = 0; s < role_.segments.size(); ++s) {
      const SegmentEffect *last = nullptr; // variants that execute the same ops share it
      for (const auto &[variant, effect] : effects_.of(s))
        if (effect.get() != last)
          addReads(*(last = effect.get()), role_.segments[s].before != kNone);
    }
    for (size_t c = 0; c < isRead_.size(); ++c)
      isRead_[c] |= readAtStepEnd_[c];
  }

  void addReads(const SegmentEffect &effect, bool isBackground) {
    auto add = [&](uint32_t region) {
      uint32_t cell = regions_.cellOf(region);
      for (uint32_t slot : rings_.slotsOf(cell))
        isRead_[slot] = 1;
      if (isBackground)
        readAtStepEnd_[cell] = 1;
    };
    for (const SegmentEffect::Need &need : effect.needs)
      add(need.region);
    for (const SegmentEffect::Out &out : effect.outs)
      for (uint32_t region : out.from)
        if (regions_.cellOf(region) != regions_.cellOf(out.region))
          add(region);
  }

  bool isStopped() const { return report_.isFull(); }
  void start(uint32_t segment, Live &live) { apply(segment, Variant::Only, live); }
  static bool isSame(const Live &after, const Live &before) { return after == before; }

  static bool isSteady(const Live &after, const Live &before, const LoopIterations &turns) {
    for (uint32_t c = 0; c < after.read.size(); ++c)
      if (uint32_t to = turns.at(c, -1);
          after.read[c] != before.read[to] || after.kept[c] != before.kept[to])
        return false;
    return true;
  }

  /// The state before `count` further iterations that do the same as this one.
  void skip(const Live &, Live &live, const LoopIterations &turns, int64_t count) const {
    const Live own = live;
    for (uint32_t c = 0; c < role_.cells.size(); ++c) {
      uint32_t to = turns.at(c, -count);
      live.read[to] = own.read[c];
      live.kept[to] = own.kept[c];
    }
  }

  /// The run may end after the last step in which the `every` is due, so its stores may be the last
  /// ones.
  void runEvery(const ProgramNode &node, Live &live) {
    if (node.count > stepsOfLoop_)
      return;
    if (node.count == 1)
      return walkAnew(node.children, live);
    bool before = std::exchange(isSometimes_, true);
    Live with = live;
    walkAnew(node.children, with);
    isSometimes_ = before;
    live.joinWith(with);
  }

  void runSteps(const ProgramNode &loop, Live &live) {
    stepsOfLoop_ = loop.count;
    Live end = live;
    if (loop.count > 1)
      end.kept = end.read; // the last step's contents survive; earlier steps store for the next
    for (size_t c = 0; c < readAtStepEnd_.size(); ++c)
      if (readAtStepEnd_[c] != 0)
        end.set(static_cast<uint32_t>(c), true);
    for (;;) {
      live = end;
      walkAnew(loop.children, live);
      Live next = end;
      next.joinWith(live);
      if (loop.count == 1 || next == end || report_.isFull())
        return;
      end = std::move(next);
    }
  }

  /// The cell that holds a region in the current microbatch.
  uint32_t cellAt(uint32_t region) const { return placeOf(regions_.cellOf(region)); }

  void apply(uint32_t segment, Variant variant, Live &live) {
    const SegmentEffect *effect = effects_.find(segment, variant);
    if (effect == nullptr ||
        !report_.spend(1 + effect->outs.size() + effect->needs.size() + effect->clobbers.size()))
      return;
    std::vector<uint8_t> &isLive = isLive_[segment][variant];
    isLive.resize(effect->outs.size() + 1);
    isLive.back() = 1;                              // marks the variant as run
    std::vector<std::pair<uint8_t, uint8_t>> after; // read and kept, of each cell with a store
    for (const SegmentEffect::Out &out : effect->outs)
      after.emplace_back(live.read[cellAt(out.region)], live.kept[cellAt(out.region)]);
    // Backwards through the segment: before it, a region that it overwrites is dead, and a region
    // that it reads is live.
    for (const SegmentEffect::Clobber &clobber : effect->clobbers)
      if (clobber.region < role_.cells.size())
        live.set(cellAt(clobber.region), false);
    for (size_t i = 0; i < effect->outs.size(); ++i) {
      uint32_t cell = cellAt(effect->outs[i].region);
      isLive[i] |= isSometimes_ ? isRead_[cell] : after[i].second;
      live.set(cell, false);
    }
    // If a region's content passes through the segment into a live region, it is live before the
    // segment.
    for (size_t i = 0; i < effect->outs.size(); ++i)
      for (uint32_t region : effect->outs[i].from) {
        live.read[cellAt(region)] |= after[i].first;
        live.kept[cellAt(region)] |= after[i].second;
      }
    for (const SegmentEffect::Need &need : effect->needs)
      live.set(cellAt(need.region), true);
  }

  void checkOuts(uint32_t s, Variant variant) {
    const std::vector<uint8_t> &isLive = isLive_[s][variant];
    const SegmentEffect *effect = effects_.find(s, variant);
    for (size_t i = 0; i + 1 < isLive.size(); ++i) {
      const SegmentEffect::Out &out = effect->outs[i];
      if (isLive[i] != 0 || out.mayDrop || !out.isDefined || !out.from.empty() ||
          out.region >= role_.cells.size() || isReadWithin(s, variant, out.value))
        continue;
      const std::string &cell = role_.cells[out.region].name;
      scope(s).addValue(finding::LeftUnread, scope(s).opOf(out.value), out.value, cell).variant =
          variant;
    }
  }

  /// An accumulating op writes its buffer even in microbatches in which it does not accumulate. If
  /// the buffer holds another op's result of the same microbatch, something must read that result
  /// first.
  void checkTies(uint32_t s, Variant variant) {
    if (isLive_[s][variant].empty())
      return;
    const Segment &segment = role_.segments[s];
    for (uint32_t i = 0; i < segment.ops.size() && !report_.isFull(); ++i) {
      const Op &op = segment.ops[i];
      for (const Tie &tie : op.ties) {
        if (tie.kind != Tie::Acc || holds(tie.pred, variant) || !executes(op, variant) ||
            !isComputed(segment, tie.value, variant) || isReadWithin(s, variant, tie.value))
          continue;
        scope(s).addValue(finding::AddsOverUnread, i, tie.value, whenOf(tie.pred)).variant =
            variant;
      }
    }
  }

  static std::string whenOf(const Pred &pred) {
    switch (pred.kind) {
    case Pred::Kind::Always:
      return "always";
    case Pred::Kind::First:
      return "in the first microbatch";
    case Pred::Kind::NotFirst:
      return "after the first microbatch";
    case Pred::Kind::Last:
      return "in the last microbatch";
    case Pred::Kind::NotLast:
      return "before the last microbatch";
    case Pred::Kind::Within:
      return fmt::format("in microbatches {} to {}", pred.begin, pred.last) +
             (pred.period > 0
                  ? fmt::format(", and again every {} up to {}", pred.period, pred.until)
                  : "");
    }
    return "";
  }

  /// True if an op of the segment computes the value in the variant. Aliases do not compute.
  static bool isComputed(const Segment &segment, ValueId id, Variant variant) {
    uint32_t def = segment.values[id].def;
    return def != kNone && executes(segment.ops[def], variant);
  }

  /// True if an op of the segment reads the value, or a part of it, in the variant.
  bool isReadWithin(uint32_t s, Variant variant, ValueId value) const {
    const Segment &segment = role_.segments[s];
    if (!report_.spend(segment.values.size() + 4 * segment.ops.size()))
      return true;
    const Contents &contents = report_.contentsOf(roleIndex_, s, variant);
    std::set<ValueId> wanted;
    contents.forEachSource(
        value, [&](ValueId source) { wanted.insert(source); }, true);
    auto isPartOfIt = [&](ValueId read) {
      bool isPart = false; // whichever bytes of the source it has
      contents.forEachSource(
          read, [&](ValueId source) { isPart |= wanted.contains(source); }, true);
      return isPart;
    };
    return std::ranges::any_of(segment.ops, [&](const Op &op) {
      return executes(op, variant) && (std::ranges::any_of(op.operands, isPartOfIt) ||
                                       std::ranges::any_of(op.ties, [&](const Tie &tie) {
                                         return tie.kind == Tie::Acc && holds(tie.pred, variant) &&
                                                isPartOfIt(tie.value);
                                       }));
    });
  }

  /// Reports an op that overwrites the complete result of an earlier one: a sum that lacks its tie.
  /// No other unused result is reported. An op may have no used result on purpose, and an op with
  /// one may also compute activations that nothing needs.
  void checkUnused(uint32_t s) {
    const Segment &segment = role_.segments[s];
    std::vector<uint8_t> isUsed(segment.values.size());
    for (const Segment::Boundary &out : segment.outs)
      isUsed[out.value] = 1;
    auto anyUsed = [&](const Op &op) {
      return std::ranges::any_of(op.results, [&](ValueId result) { return isUsed[result] != 0; });
    };
    for (size_t i = segment.ops.size(); i-- > 0;) {
      const Op &op = segment.ops[i];
      if (opInfo(op).traits == OpTraits::Alias && !anyUsed(op))
        continue; // an alias that nothing reads
      for (ValueId operand : op.operands)
        isUsed[operand] = 1;
      for (const Tie &tie : op.ties)
        if (takesEffect(s, op, tie))
          isUsed[tie.value] = 1;
    }
    for (uint32_t i = 0; i < segment.ops.size() && !report_.isFull(); ++i) {
      const Op &op = segment.ops[i];
      if (opInfo(op).traits == OpTraits::Alias)
        continue;
      bool isTaken = anyUsed(op);
      for (ValueId result : op.results)
        if (Purpose purpose = segment.values[result].purpose;
            isUsed[result] == 0 &&
            (!isTaken || (purpose != Purpose::Activations && purpose != Purpose::Data)))
          checkWrittenOver(s, i, result);
    }
  }

  /// Whether some variant adds the tie's value to the result, or keeps it instead of the result.
  bool takesEffect(uint32_t s, const Op &op, const Tie &tie) const {
    return std::ranges::any_of(report_.variantsOf(roleIndex_, s), [&](Variant variant) {
      return tie.kind == Tie::Acc ? executes(op, variant) && holds(tie.pred, variant)
                                  : !executes(op, variant);
    });
  }

  void checkWrittenOver(uint32_t s, uint32_t i, ValueId result) {
    const Segment &segment = role_.segments[s];
    const Value &unused = segment.values[result];
    if (!report_.spend(segment.values.size()))
      return;
    for (const Value &value : segment.values) {
      if (value.def == kNone || value.def <= i || value.type != unused.type ||
          value.place != unused.place || opInfo(segment.ops[value.def]).traits == OpTraits::Alias)
        continue;
      note(scope(s).addValue(finding::WrittenOver, i, result, value.name), "it is overwritten here",
           scope(s).spot(value.def));
      return;
    }
  }

  const CellRegions &regions_;
  const SegmentEffects &effects_;
  Set readAtStepEnd_; ///< cells that the host or a background segment reads
  Set isRead_;        ///< cells with any reader
  /// For each segment, variant and stored cell: whether something reads that content after some
  /// run. One more entry marks that the variant runs.
  std::vector<std::map<Variant, std::vector<uint8_t>>> isLive_;
  bool isSometimes_ = false;
  int64_t stepsOfLoop_ = 0;
};

} // namespace

void checkLost(Inspection &inspection, uint32_t role, const CellRegions &regions,
               const SegmentEffects &effects) {
  LostCheck(inspection, role, regions, effects).run();
}

} // namespace shardc::plan::verifier
