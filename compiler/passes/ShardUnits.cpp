// Lays out the parameters of each unit in flat blocks (Layout.h) and rewrites bodies to use them:
// a parameter becomes a view into its block's weights, and the gradients of a block are packed
// into one value. No data moves between ranks yet: cells `w.<block>` and `g.<block>` hold whole
// blocks.
#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <span>

#include "compiler/passes/Layout.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/passes/Strategy.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Optimizers.h"
#include "runtime/plan/WeightScales.h"

namespace shardc::passes {
namespace {

/// For each parameter, a number that is equal for parameters of the same type that the same roles
/// have, and whose gradients the same segments compute.
std::vector<size_t> setsOfParams(const plan::Plan &plan) {
  std::vector<std::vector<std::pair<size_t, size_t>>> users(plan.params.size()); // role, segment
  for (size_t r = 0; r < plan.roles.size(); ++r) {
    const plan::Role &role = plan.roles[r];
    for (const plan::Cell &cell : role.cells)
      if (cell.kind == plan::CellKind::Param)
        users[static_cast<size_t>(cell.of)].emplace_back(r, role.segments.size());
    for (size_t s = 0; s < role.segments.size(); ++s)
      for (const plan::Segment::Boundary &out : role.segments[s].outs)
        if (const plan::Cell &cell = role.cells[out.cell];
            cell.kind == plan::CellKind::ParamGradient)
          users[static_cast<size_t>(cell.of)].emplace_back(r, s);
  }
  std::map<std::pair<std::vector<std::pair<size_t, size_t>>, DType>, size_t> numbers;
  std::vector<size_t> sets;
  for (size_t p = 0; p < users.size(); ++p)
    sets.push_back(
        numbers.try_emplace({users[p], plan.params[p].type.dtype}, numbers.size()).first->second);
  return sets;
}

/// Where shard boundaries may split a block: between rows, between parameters, or between the
/// matrices that each parameter stacks.
enum class Cuts : uint8_t { Rows, Params, Stacks };

/// The blocks of a unit with these parameters, which setsOfParams() gives the same number.
std::vector<LayoutBlock> layOutTogether(const std::vector<LayoutParam> &members, int64_t shards,
                                        bool byParam, Cuts cuts) {
  if (cuts == Cuts::Params && shards > 1)
    return {layOutMatrices(members, shards)};
  if (!byParam)
    return layOut(members, shards);
  std::vector<LayoutBlock> blocks;
  for (const LayoutParam &param : members)
    blocks.push_back(layOutRows(param, shards));
  return blocks;
}

/// The blocks of a unit with these parameters. A role has all of a block or nothing of it, a
/// segment computes all of a block's gradients or none, and a block has one type. So parameters
/// with other roles or segments or another type get separate blocks.
std::vector<LayoutBlock> layOutUnit(const std::vector<LayoutParam> &members,
                                    const std::vector<size_t> &setOf, int64_t shards, bool byParam,
                                    Cuts cuts) {
  std::map<size_t, std::vector<LayoutParam>> bySet;
  for (const LayoutParam &param : members)
    bySet[setOf[static_cast<size_t>(param.index)]].push_back(param);
  std::vector<LayoutBlock> blocks;
  for (const auto &[set, together] : bySet)
    std::ranges::move(layOutTogether(together, shards, byParam, cuts), std::back_inserter(blocks));
  return blocks;
}

/// Units in the order of the model, grouped by pipeline stage, so that the blocks of a stage are
/// consecutive, as sums of squares require.
std::vector<size_t> unitsByStage(const plan::Plan &plan) {
  std::vector<size_t> units(plan.units.size());
  std::iota(units.begin(), units.end(), size_t{0});
  PipelineStages stages = readStages(plan);
  if (stages.chunks > 1)
    std::ranges::stable_sort(units, {}, [&](size_t unit) { return stages.stageOf(unit); });
  return units;
}

/// Replaces the preliminary blocks by blocks that are laid out for their ranks. A preliminary block
/// has the parameters of a unit that have the same strategy.
class BlockMaker {
public:
  BlockMaker(plan::Plan &plan, bool byParam)
      : plan_(plan), byParam_(byParam), setOf_(setsOfParams(plan)), members_(plan.blocks.size()),
        blocksOf_(plan.units.size()) {
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
      divisions_.push_back(divisionOf(plan, b));
      blocksOf_[static_cast<size_t>(plan.blocks[b].unit)].push_back(b);
    }
    for (size_t p = 0; p < plan.params.size(); ++p) {
      const plan::Param &param = plan.params[p];
      const plan::Block &block = plan.blocks[static_cast<size_t>(param.block)];
      members_[static_cast<size_t>(param.block)].push_back(
          {static_cast<int>(p), param.type.numel(),
           plan::granuleOf(param, plan::optimizerOf(plan, block))});
    }
  }

  void run() {
    isInBank_.resize(plan_.blocks.size());
    const std::vector<size_t> units = unitsByStage(plan_);
    for (size_t u = 0; u < units.size(); ++u)
      layOut(units[u], std::span(units).subspan(u + 1));
    plan_.blocks = std::move(made_);
  }

private:
  /// Shards of whole matrices have padding of at most 1 / kPaddingShareMax of the parameters.
  static constexpr int64_t kPaddingShareMax = 2;

  void layOut(size_t unit, std::span<const size_t> laterUnits) {
    size_t first = made_.size();
    for (size_t b : blocksOf_[unit]) {
      if (isInBank_[b] != 0)
        continue;
      const Division &division = divisions_[b];
      if (takesBank(b))
        addBank(b, laterUnits);
      for (const LayoutBlock &layout : layOutBlock(b))
        add(plan_.blocks[b], division, layout);
    }
    for (size_t b = first; b < made_.size() && !byParam_; ++b) {
      made_[b].name = plan_.units[unit].name;
      if (made_.size() > first + 1)
        made_[b].name += fmt::format(".{}", b - first);
    }
  }

  /// If shards of whole matrices would need much padding, shards may end within a matrix, between
  /// rows. Updates of matrices are then gathered in fp32 once per step, which is half of the
  /// traffic of weight gathers in both passes and of gradient reductions.
  std::vector<LayoutBlock> layOutBlock(size_t b) const {
    const int64_t shards = divisions_[b].shards * divisions_[b].parts;
    auto lay = [&](const std::vector<LayoutParam> &members, Cuts cuts) {
      return layOutUnit(members, setOf_, shards, byParam_, cuts);
    };
    std::vector<LayoutBlock> blocks = lay(members_[b], cutsOf(b));
    if (cutsOf(b) == Cuts::Rows)
      return blocks;
    int64_t total = 0, laidOut = 0;
    for (const LayoutBlock &block : blocks)
      laidOut += block.numel;
    std::vector<LayoutParam> rows = members_[b];
    for (LayoutParam &param : rows) {
      param.row = plan_.params[static_cast<size_t>(param.index)].rowSize();
      total += param.numel;
    }
    return laidOut > total + total / kPaddingShareMax ? lay(rows, Cuts::Rows) : blocks;
  }

  /// Whether matrices of several layers may share one block. This is the case if bodies use whole
  /// weights: sharded state is then exchanged only once per step, and few matrices over many ranks
  /// would need much padding.
  bool takesBank(size_t b) const {
    const BlockStrategy strategy = strategyOf(plan_, b);
    return cutsOf(b) == Cuts::Params && !byParam_ && strategy.shardsState &&
           !strategy.shardsParams && readStages(plan_).chunks <= 1 &&
           plan_.units[static_cast<size_t>(plan_.blocks[b].unit)].kind == plan::UnitKind::Layer;
  }

  bool areAlike(size_t a, size_t b) const {
    const plan::Block &one = plan_.blocks[a], &other = plan_.blocks[b];
    auto setOf = [&](size_t block) {
      return setOf_[static_cast<size_t>(members_[block].front().index)];
    };
    return takesBank(b) && one.group == other.group && one.stateGroup == other.stateGroup &&
           one.sumGroup == other.sumGroup && one.paramClass == other.paramClass &&
           setOf(a) == setOf(b);
  }

  /// Adds matrices of the following layers, which must be alike, to the block while the padding is
  /// large: as few as make it small, otherwise as many as make it smallest. Adds none if shards of
  /// the block are then cut between rows nevertheless.
  void addBank(size_t first, std::span<const size_t> laterUnits) {
    constexpr int64_t kPaddingShare = 64;
    const int64_t shards = divisions_[first].shards * divisions_[first].parts;
    auto paddingOf = [&](const std::vector<LayoutParam> &members) {
      int64_t total = 0;
      for (const LayoutParam &param : members)
        total += param.numel;
      int64_t padding = layOutMatrices(members, shards).numel - total;
      return static_cast<double>(padding) / static_cast<double>(total);
    };
    std::vector<LayoutParam> members = members_[first];
    std::vector<size_t> taken, best;
    double least = paddingOf(members);
    for (size_t unit : laterUnits) {
      if (least <= 1.0 / kPaddingShare)
        break;
      auto next = std::ranges::find_if(
          blocksOf_[unit], [&](size_t b) { return isInBank_[b] == 0 && areAlike(first, b); });
      if (next == blocksOf_[unit].end())
        break;
      taken.push_back(*next);
      members.insert(members.end(), members_[*next].begin(), members_[*next].end());
      if (double padding = paddingOf(members); padding < least)
        least = padding, best = taken;
    }
    if (least > 1.0 / kPaddingShareMax)
      return;
    for (size_t b : best) {
      isInBank_[b] = 1;
      members_[first].insert(members_[first].end(), members_[b].begin(), members_[b].end());
    }
  }

  Cuts cutsOf(size_t b) const {
    const plan::Block &block = plan_.blocks[b];
    std::optional<plan::Optimizer> optimizer = plan::optimizerOf(plan_, block);
    if (!optimizer || !plan::needsMatrices(*optimizer) || !plan_.classOf(block).isTrained)
      return Cuts::Rows;
    bool isOfStacks = std::ranges::any_of(members_[b], [&](const LayoutParam &param) {
      return plan_.params[static_cast<size_t>(param.index)].isStacked();
    });
    return isOfStacks ? Cuts::Stacks : Cuts::Params;
  }

  void add(const plan::Block &before, const Division &division, const LayoutBlock &layout) {
    plan::Block block;
    if (byParam_)
      block.name = plan_.params[static_cast<size_t>(layout.params.front())].name;
    block.unit = before.unit;
    block.numel = layout.numel;
    block.shard = layout.shard * division.parts;
    block.group = before.group;
    block.stateShard = layout.shard;
    block.stateGroup = division.parts > 1 ? before.stateGroup : block.group;
    block.sumGroup = before.sumGroup;
    block.paramClass = before.paramClass;
    for (size_t k = 0; k < layout.params.size(); ++k) {
      plan::Param &param = plan_.params[static_cast<size_t>(layout.params[k])];
      param.block = static_cast<int32_t>(made_.size());
      param.offset = layout.offsets[k];
    }
    made_.push_back(std::move(block));
  }

  plan::Plan &plan_;
  bool byParam_;
  std::vector<size_t> setOf_;                     ///< by parameter
  std::vector<std::vector<LayoutParam>> members_; ///< by block
  std::vector<std::vector<size_t>> blocksOf_;     ///< by unit
  std::vector<Division> divisions_;               ///< by block
  std::vector<plan::Block> made_;
  std::vector<uint8_t> isInBank_; ///< by block: whether an earlier unit's block has its parameters
};

/// By block: its parameters, in order of offset.
std::vector<std::vector<size_t>> paramsByBlock(const plan::Plan &plan) {
  std::vector<std::vector<size_t>> lists(plan.blocks.size());
  for (size_t p = 0; p < plan.params.size(); ++p)
    lists[static_cast<size_t>(plan.params[p].block)].push_back(p);
  for (std::vector<size_t> &list : lists)
    std::sort(list.begin(), list.end(),
              [&](size_t a, size_t b) { return plan.params[a].offset < plan.params[b].offset; });
  return lists;
}

class UnitRewriter {
public:
  UnitRewriter(plan::Plan &plan, plan::Role &role, bool byParam)
      : plan_(plan), role_(role), byParam_(byParam), byBlock_(paramsByBlock(plan)) {}

  void run() {
    replaceCells();
    for (plan::Segment &segment : role_.segments)
      rewrite(segment);
    retypeKept();
  }

private:
  /// Replaces cells of parameters and their gradients by cells of blocks. The other cells follow in
  /// their old order.
  void replaceCells() {
    std::vector<plan::Cell> cells;
    std::vector<uint8_t> hasBlock(plan_.blocks.size());
    for (const plan::Cell &cell : role_.cells)
      if (cell.kind == plan::CellKind::Param)
        hasBlock[static_cast<size_t>(plan_.params[static_cast<size_t>(cell.of)].block)] = 1;
    paramOf_.assign(role_.cells.size(), -1);
    gradOf_.assign(role_.cells.size(), -1);
    for (plan::CellKind kind : {plan::CellKind::Weight, plan::CellKind::Gradient})
      for (size_t b = 0; b < plan_.blocks.size(); ++b)
        if (hasBlock[b] != 0 && (kind == plan::CellKind::Weight || isTrained(b)))
          cells.push_back(makeCell(kind, b));
    newIndex_.assign(role_.cells.size(), kNone);
    for (size_t c = 0; c < role_.cells.size(); ++c) {
      const plan::Cell &cell = role_.cells[c];
      if (cell.kind == plan::CellKind::Param) {
        paramOf_[c] = cell.of;
      } else if (cell.kind == plan::CellKind::ParamGradient) {
        gradOf_[c] = cell.of;
      } else {
        newIndex_[c] = static_cast<uint32_t>(cells.size());
        cells.push_back(cell);
      }
    }
    role_.cells = std::move(cells);
    weightCells_ = plan::findCells(role_, plan::CellKind::Weight, plan_.blocks.size());
    gradCells_ = plan::findCells(role_, plan::CellKind::Gradient, plan_.blocks.size());
  }

  bool isTrained(size_t block) const { return plan_.classOf(plan_.blocks[block]).isTrained; }

  /// Creates the cell for the weights of a block, or for its gradient.
  plan::Cell makeCell(plan::CellKind kind, size_t block) const {
    bool isWeight = kind == plan::CellKind::Weight;
    DType weight =
        byBlock_[block].empty() ? DType::F32 : plan_.params[byBlock_[block].front()].type.dtype;
    plan::Cell cell;
    cell.name = (isWeight ? "w." : "g.") + plan_.blocks[block].name;
    cell.kind = kind;
    cell.of = static_cast<int32_t>(block);
    cell.type = Type::of(isWeight ? weight : plan_.job.derived.wire, {plan_.blocks[block].numel});
    cell.arena = isWeight ? plan::Arena::State : plan::Arena::Sym;
    cell.purpose = isWeight ? plan::Purpose::Params : plan::Purpose::Grads;
    return cell;
  }

  void rewrite(plan::Segment &segment) {
    std::vector<ValueId> weightOf(plan_.params.size(), kNone), gradOf(plan_.params.size(), kNone);
    std::vector<plan::Segment::Boundary> ins, outs;
    for (const plan::Segment::Boundary &in : segment.ins) {
      if (paramOf_[in.cell] >= 0)
        weightOf[static_cast<size_t>(paramOf_[in.cell])] = in.value;
      else
        ins.emplace_back(in).cell = newIndex_[in.cell];
    }
    for (const plan::Segment::Boundary &out : segment.outs) {
      if (gradOf_[out.cell] >= 0)
        gradOf[static_cast<size_t>(gradOf_[out.cell])] = out.value;
      else
        outs.emplace_back(out).cell = newIndex_[out.cell];
    }
    segment.ins = std::move(ins);
    segment.outs = std::move(outs);
    addViews(segment, weightOf);
    addPacks(segment, gradOf);
  }

  /// Adds a view per parameter at the beginning of the body. The value that was a live-in becomes
  /// the result of the view.
  void addViews(plan::Segment &segment, const std::vector<ValueId> &weightOf) {
    std::vector<Op> ops;
    for (size_t b = 0; b < plan_.blocks.size(); ++b) {
      ValueId whole = kNone;
      for (size_t p : byBlock_[b]) {
        if (weightOf[p] == kNone)
          continue;
        if (whole == kNone)
          whole = plan::addLiveIn(segment, "W." + plan_.blocks[b].name, role_, weightCells_[b]);
        Op view = plan::makeOp(OpKind::View, {whole}, plan_.blocks[b].unit);
        view.set(Key::offset, plan_.params[p].offset);
        view.results = {weightOf[p]};
        view.phase = plan::segmentKindInfo(segment.kind).phase;
        ops.push_back(std::move(view));
      }
    }
    ops.insert(ops.end(), std::make_move_iterator(segment.ops.begin()),
               std::make_move_iterator(segment.ops.end()));
    plan::replaceOps(segment, std::move(ops));
  }

  /// By block: the op that computes its last gradient. If all blocks of a unit are reduced
  /// together, the last one of the unit.
  std::vector<uint32_t> lastGrads(const plan::Segment &segment,
                                  const std::vector<ValueId> &gradOf) const {
    std::vector<uint32_t> ofBlock(plan_.blocks.size()), ofUnit(plan_.units.size());
    for (size_t b = 0; b < plan_.blocks.size(); ++b)
      for (size_t p : byBlock_[b])
        if (gradOf[p] != kNone) {
          uint32_t &unit = ofUnit[static_cast<size_t>(plan_.blocks[b].unit)];
          ofBlock[b] = std::max(ofBlock[b], segment.values[gradOf[p]].def);
          unit = std::max(unit, ofBlock[b]);
        }
    for (size_t b = 0; byParam_ && b < plan_.blocks.size(); ++b)
      ofBlock[b] = ofUnit[static_cast<size_t>(plan_.blocks[b].unit)];
    return ofBlock;
  }

  /// Casts gradients to the type in which they are reduced, and adds a pack after the last gradient
  /// of each block.
  void addPacks(plan::Segment &segment, const std::vector<ValueId> &gradOf) {
    std::vector<std::vector<Op>> after(segment.ops.size() + 1);
    std::vector<uint32_t> lastOf = lastGrads(segment, gradOf);
    for (size_t b = 0; b < plan_.blocks.size(); ++b) {
      Op pack = plan::makeOp(OpKind::Pack, {}, plan_.blocks[b].unit);
      pack.set(Key::block, static_cast<int64_t>(b));
      uint32_t last = lastOf[b];
      for (size_t p : byBlock_[b])
        if (gradOf[p] != kNone)
          pack.operands.push_back(gradOf[p]);
      if (pack.operands.empty())
        continue;
      SHARDC_CHECK(pack.operands.size() == byBlock_[b].size(), "block '{}' lacks gradients",
                   plan_.blocks[b].name);
      const plan::Cell &cell = role_.cells[gradCells_[b]];
      ValueId whole =
          plan::addValue(segment, "G." + plan_.blocks[b].name, cell.type, plan::Purpose::Grads);
      pack.results = {whole};
      pack.loc = segment.ops[last].loc;
      pack.phase = segment.ops[last].phase;
      after[last + 1].push_back(std::move(pack));
      segment.outs.push_back({whole, gradCells_[b]});
    }
    retypeGrads(segment);
    std::vector<Op> ops;
    ops.reserve(segment.ops.size() + plan_.blocks.size());
    for (size_t i = 0; i <= segment.ops.size(); ++i) {
      for (Op &pack : after[i])
        ops.push_back(std::move(pack));
      if (i < segment.ops.size())
        ops.push_back(std::move(segment.ops[i]));
    }
    plan::replaceOps(segment, std::move(ops));
  }

  void retypeGrads(plan::Segment &segment) {
    for (plan::Value &value : segment.values)
      if (value.purpose == plan::Purpose::Grads)
        value.type.dtype = plan_.job.derived.wire;
  }

  /// Sets the types of gradients that one segment stores in a buffer for another segment, which
  /// reduces them.
  void retypeKept() {
    for (const plan::Segment &segment : role_.segments)
      for (const plan::Segment::Boundary &in : segment.ins)
        if (role_.cells[in.cell].kind == plan::CellKind::Buffer &&
            segment.values[in.value].purpose == plan::Purpose::Grads)
          plan::changeType(role_, in.cell, plan_.job.derived.wire);
  }

  plan::Plan &plan_;
  plan::Role &role_;
  bool byParam_;
  std::vector<std::vector<size_t>> byBlock_;
  std::vector<int32_t> paramOf_, gradOf_; ///< by old cell: its parameter; that of its gradient
  std::vector<uint32_t> newIndex_;        ///< new index of each old cell that stays
  std::vector<uint32_t> weightCells_, gradCells_; ///< by block
};

} // namespace

void runShardUnits(plan::Plan &plan, Notes &) {
  bool byParam = jobStrategyOf(plan).byParam;
  BlockMaker(plan, byParam).run();
  for (plan::Role &role : plan.roles)
    UnitRewriter(plan, role, byParam).run();
}

} // namespace shardc::passes
