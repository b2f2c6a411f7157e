// Loop rotation: moves the gathers at the beginning of every forward pass to the end of the
// preceding segment, where they overlap the optimizer instead of delaying the first product. The
// gathered units are kept in cells: `update` and `prologue` fill them, training and evaluation read
// them. This applies only if a step has one microbatch; otherwise these units would have to stay
// gathered through all microbatches. If shards of these units are gathered themselves, those
// gathers move along: first the shard is gathered, then the unit.
#include <algorithm>
#include <optional>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/Strategy.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

/// The number of units that are gathered at the beginning of a body: the first unit, and the one
/// that is prefetched.
constexpr size_t kUnitsAhead = 2;

class Rotator {
public:
  Rotator(plan::Plan &plan, plan::Role &role, bool byParam)
      : plan_(plan), role_(role), byParam_(byParam) {}

  void run() {
    uint32_t update = plan::findSegment(role_, plan::SegmentKind::Update);
    uint32_t prologue = plan::findSegment(role_, plan::SegmentKind::Prologue);
    if (update == kNone || prologue == kNone)
      return;
    for (const plan::Segment &segment : role_.segments)
      if (beginsWithGathers(segment) && gathers_.empty())
        findGathers(segment);
    for (const Op &gather : gathers_)
      for (const plan::Segment &segment : role_.segments)
        if (beginsWithGathers(segment) && indexIn(segment, gather) == kNone)
          return; // bodies begin with different gathers
    for (const Op &gather : gathers_)
      rotate(gather, role_.segments[update], role_.segments[prologue]);
    dropUnusedCells(role_);
  }

private:
  /// Only bodies that begin a microbatch can start with weights that were gathered ahead. A
  /// backward pass follows a forward pass, so it cannot.
  static bool beginsWithGathers(const plan::Segment &segment) {
    return segment.body && segment.kind != plan::SegmentKind::Backward;
  }

  /// Finds the gathers of the forward pass's first units, in order. The first repeated block ends
  /// the forward pass.
  void findGathers(const plan::Segment &body) {
    std::vector<int32_t> units;
    for (const Op &op : body.ops) {
      bool ofWeights = op.kind == OpKind::AllGather && blockOf(op) >= 0;
      if (!ofWeights || op.pred != plan::Pred::Always)
        continue;
      if (units.empty() || units.back() != op.unit)
        units.push_back(op.unit);
      bool isAgain = std::ranges::any_of(
          gathers_, [&](const Op &gather) { return blockOf(gather) == blockOf(op); });
      if (units.size() > kUnitsAhead || isAgain)
        return;
      gathers_.push_back(op);
    }
  }

  static int32_t blockOf(const Op &op) {
    return static_cast<int32_t>(op.getInt(plan::AttrKey::block));
  }

  /// The block's first gather that has the predicate, and that has a result even if it is skipped;
  /// kNone if there is none.
  static uint32_t indexOf(const plan::Segment &segment, int32_t block, plan::Pred pred) {
    for (uint32_t i = 0; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i];
      bool hasResult = pred == plan::Pred::Always || op.ties.size() == 1;
      if (op.kind == OpKind::AllGather && blockOf(op) == block && op.pred == pred && hasResult)
        return i;
    }
    return kNone;
  }
  static uint32_t indexIn(const plan::Segment &segment, const Op &gather) {
    return indexOf(segment, blockOf(gather), gather.pred);
  }

  /// Moves the gather of the block's shard, if bodies have such a gather.
  void rotateShard(int32_t block, plan::Segment &update, plan::Segment &prologue) {
    uint32_t slot = plan::findCell(role_, plan::CellKind::WeightShard, block);
    uint32_t shard = plan::findCell(role_, plan::CellKind::Weight, block);
    std::optional<Op> gather;
    for (plan::Segment &segment : role_.segments)
      if (uint32_t at = indexOf(segment, block, plan::Pred::First); at != kNone && slot != kNone) {
        gather = segment.ops[at];
        removeGather(segment, at, slot, shard);
      }
    if (!gather)
      return;
    gather->pred = plan::Pred::Always;
    gather->ties.clear();
    for (plan::Segment *segment : {&update, &prologue})
      fillShard(*segment, *gather, slot, shard);
  }

  /// Removes the gather of the shard; the body reads the gathered shard from its cell.
  static void removeGather(plan::Segment &segment, uint32_t at, uint32_t slot, uint32_t shard) {
    ValueId gathered = segment.ops[at].results[0], kept = segment.ops[at].ties[0].value;
    segment.ops.erase(segment.ops.begin() + at);
    for (Op &op : segment.ops)
      std::ranges::replace(op.operands, gathered, kept);
    std::erase_if(segment.ins, [&](const plan::Segment::Boundary &in) { return in.cell == slot; });
    std::erase_if(segment.outs,
                  [&](const plan::Segment::Boundary &out) { return out.cell == shard; });
    plan::renumber(segment);
  }

  /// Gathers the shard that the segment wrote or, if it wrote none, the content of the slot. Except
  /// for updates of weights that are halves of their masters, nothing else reads the slot.
  void fillShard(plan::Segment &segment, Op gather, uint32_t slot, uint32_t shard) {
    bool isKept = readsCell(slot);
    auto left = std::ranges::find(segment.outs, slot, &plan::Segment::Boundary::cell);
    if (left == segment.outs.end() && !isKept)
      return;
    gather.operands = {left == segment.outs.end()
                           ? plan::addLiveIn(segment, role_.cells[slot].name, role_, slot)
                           : left->value};
    const plan::Cell &cell = role_.cells[shard];
    gather.results = {plan::addValue(segment, cell.name + ".all", cell.type, cell.purpose)};
    gather.phase = plan::segmentKindInfo(segment.kind).phase;
    if (isKept)
      segment.outs.push_back({gather.results[0], shard});
    else
      *left = {gather.results[0], shard};
    uint32_t def = segment.values[gather.operands[0]].def;
    segment.ops.insert(segment.ops.begin() + (def == kNone ? 0 : def + 1), std::move(gather));
    plan::renumber(segment);
  }

  bool readsCell(uint32_t cell) const {
    return std::ranges::any_of(role_.segments, [&](const plan::Segment &segment) {
      return plan::liveInOf(segment, cell) != kNone;
    });
  }

  void rotate(const Op &gather, plan::Segment &update, plan::Segment &prologue) {
    rotateShard(blockOf(gather), update, prologue);
    auto of = static_cast<size_t>(blockOf(gather));
    const plan::Block &block = plan_.blocks[of];
    uint32_t shard = plan::findCell(role_, plan::CellKind::Weight, static_cast<int32_t>(of));
    if (shard == kNone)
      return;
    plan::Type type = plan::Type::of(role_.cells[shard].type.dtype, {block.numel});
    uint32_t cell = addCell(role_, "W." + block.name, {plan::CellKind::GatheredWeight, of}, type,
                            plan::Arena::Sym, plan::Purpose::Comm);
    for (plan::Segment &segment : role_.segments)
      if (beginsWithGathers(segment))
        takeFromCell(segment, gather, cell, "W." + block.name);
    for (plan::Segment *segment : {&update, &prologue})
      fillCell(*segment, gather, shard, cell, "W." + block.name);
  }

  void takeFromCell(plan::Segment &segment, const Op &gather, uint32_t cell,
                    const std::string &name) {
    uint32_t at = indexIn(segment, gather);
    ValueId old = segment.ops[at].results[0], shard = segment.ops[at].operands[0];
    ValueId whole = plan::addLiveIn(segment, name, role_, cell);
    segment.ops.erase(segment.ops.begin() + at);
    bool shardIsUsed = false;
    for (Op &op : segment.ops)
      for (ValueId &operand : op.operands) {
        operand = operand == old ? whole : operand;
        shardIsUsed |= operand == shard;
      }
    if (!shardIsUsed)
      std::erase_if(segment.ins,
                    [&](const plan::Segment::Boundary &in) { return in.value == shard; });
    plan::renumber(segment);
  }

  /// Adds the gather after the op that writes the shard, or at the beginning if the segment does
  /// not write it.
  void fillCell(plan::Segment &segment, const Op &gather, uint32_t shardCell, uint32_t cell,
                const std::string &name) {
    ValueId shard = kNone;
    for (const plan::Segment::Boundary &out : segment.outs)
      if (out.cell == shardCell)
        shard = out.value;
    if (shard == kNone)
      shard = plan::liveInOf(segment, shardCell);
    if (shard == kNone)
      shard = plan::addLiveIn(segment, "w" + name.substr(1), role_, shardCell);
    ValueId whole =
        plan::addValue(segment, name, role_.cells[cell].type, role_.cells[cell].purpose);
    Op op = gather;
    op.operands = {shard};
    op.results = {whole};
    op.phase = plan::segmentKindInfo(segment.kind).phase;
    uint32_t def = segment.values[shard].def;
    uint32_t position = byParam_ ? behindUnit(segment, op.unit) : def == kNone ? 0 : def + 1;
    segment.ops.insert(segment.ops.begin() + position, std::move(op));
    segment.outs.push_back({whole, cell});
    plan::renumber(segment);
  }

  /// The position of a unit's gathers: after the last op that writes one of their shards.
  uint32_t behindUnit(const plan::Segment &segment, int32_t unit) const {
    uint32_t position = 0;
    for (const Op &gather : gathers_) {
      if (gather.unit != unit)
        continue;
      uint32_t shard = plan::findCell(role_, plan::CellKind::Weight, blockOf(gather));
      for (const plan::Segment::Boundary &out : segment.outs)
        if (uint32_t def = segment.values[out.value].def; out.cell == shard && def != kNone)
          position = std::max(position, def + 1);
    }
    auto isOfUnit = [&](const Op &op) { return op.kind == OpKind::AllGather && op.unit == unit; };
    while (position < segment.ops.size() && isOfUnit(segment.ops[position]))
      ++position;
    return position;
  }

  plan::Plan &plan_;
  plan::Role &role_;
  bool byParam_; ///< whether units have a block for each parameter
  std::vector<Op> gathers_;
};

} // namespace

void runOverlap(plan::Plan &plan, Notes &) {
  JobStrategy job = jobStrategyOf(plan);
  bool gathers = std::ranges::any_of(strategiesOf(plan), &BlockStrategy::shardsParams);
  if (!gathers || job.microbatches != 1)
    return;
  for (plan::Role &role : plan.roles)
    Rotator(plan, role, job.byParam).run();
}

} // namespace shardc::passes
