// Turns whole blocks into shards as the sharding strategy requires, and adds the necessary
// collectives.
//
// clang-format off
//                     weights                            gradients
// no_shard            whole                              all-reduced after the last microbatch
// optim               gathered before the first forward  reduce-scattered after the last microbatch
// optim_grads         gathered before the first forward  reduce-scattered after each microbatch,
//                                                        added to the shard
// optim_grads_params  gathered around each use of a      reduce-scattered after each microbatch,
//                     unit                               added to the shard
// clang-format on
//
// Several groups may hold the same shards. Then the shard of a gradient is all-reduced over the
// ranks that hold it, after the last microbatch. If these divide the state of a shard, its gradient
// is reduce-scattered instead, and the shard of the weights is gathered before the first forward.
#include <algorithm>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/Strategy.h"
#include "compiler/predict/Transfers.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

/// Consecutive uses of blocks that are gathered together: from the first op to the last.
struct Span {
  std::vector<uint32_t> blocks; ///< that are used, in order of their first use
  uint32_t first, last;
};

/// The device for which transports are chosen. If the plan names no GPU, the transports are chosen
/// for the GPU whose links were measured.
const predict::Device &deviceOf(const plan::Plan &plan) {
  std::optional<predict::Gpu> gpu = predict::findDevice(plan.needsGpu);
  bool isKnown = gpu && !predict::device(*gpu).isHost();
  return predict::device(isKnown ? *gpu : predict::Gpu::H200);
}

/// Whether a collective makes or takes whole blocks, or shards of them.
enum class Scope { Whole, Shard };

/// The transport of gathers, reductions or sums of blocks or of their shards.
plan::Transport chooseWay(const plan::Plan &plan, const Strategy &strategy, CollectiveKind kind,
                          int16_t group, Scope scope = Scope::Whole) {
  const predict::Device &device = deviceOf(plan);
  bool isGather = kind == CollectiveKind::AllGather;
  predict::Traffic traffic;
  traffic.kind = kind;
  if (group >= 0)
    traffic.team = predict::teamOf(device, plan, group);
  for (const plan::Block &block : plan.blocks)
    traffic.wholeBytes.push_back((scope == Scope::Shard ? block.shard : block.numel) *
                                 dtypeBytes(isGather ? strategy.params : strategy.wire));
  traffic.hasWindows = plan.job.ddp.ncclUb && !plan.job.ddp.disableSymmetricRegistration;
  traffic.isDeterministic = plan.job.model.deterministicMode;
  return predict::chooseTransport(device, traffic);
}

/// The group of the ranks that hold the same shards: it is added if the plan lacks it. -1 if each
/// shard is on one rank only.
int16_t groupOfCopies(plan::Plan &plan, const Strategy &strategy) {
  if (!strategy.shardsState || strategy.dataRanks == strategy.ranks)
    return -1;
  plan::Group copies{"", plan.groups[static_cast<size_t>(plan.dataGroup)].axes};
  for (uint16_t axis : plan.groups[static_cast<size_t>(strategy.group)].axes)
    std::erase(copies.axes, axis);
  for (uint16_t axis : copies.axes)
    copies.name += (copies.name.empty() ? "" : "_") + plan.mesh[axis].name;
  auto found = std::ranges::find(plan.groups, copies.axes, &plan::Group::axes);
  auto group = static_cast<int16_t>(found - plan.groups.begin());
  if (found == plan.groups.end())
    plan.groups.push_back(std::move(copies));
  return group;
}

class Inserter {
public:
  Inserter(plan::Plan &plan, plan::Role &role)
      : plan_(plan), role_(role), strategy_(readStrategy(plan)),
        loc_(jobLoc(plan, plan.job.derived.locStrategy)),
        numBlocks_(static_cast<uint32_t>(plan.blocks.size())),
        weightCells_(plan::findCells(role, plan::CellKind::Weight, numBlocks_)),
        gradCells_(plan::findCells(role, plan::CellKind::Gradient, numBlocks_)),
        copyGroup_(groupOfCopies(plan, strategy_)),
        gathers_(chooseWay(plan, strategy_, CollectiveKind::AllGather, strategy_.group)),
        reductions_(strategy_.shardsState
                        ? chooseWay(plan, strategy_, CollectiveKind::ReduceScatter, strategy_.group)
                        : chooseWay(plan, strategy_, CollectiveKind::AllReduce, plan.dataGroup)),
        shardReductions_(chooseWay(plan, strategy_,
                                   strategy_.dividesShards() ? CollectiveKind::ReduceScatter
                                                             : CollectiveKind::AllReduce,
                                   copyGroup_, Scope::Shard)),
        shardGathers_(
            chooseWay(plan, strategy_, CollectiveKind::AllGather, copyGroup_, Scope::Shard)) {}

  void run() {
    changeCells();
    for (plan::Segment &segment : role_.segments) {
      segment_ = &segment;
      if (strategy_.shardsParams)
        gatherAroundUses();
      else if (strategy_.shardsState)
        gatherOnce();
      reduceGrads();
    }
    dropUnusedCells(role_);
  }

private:
  void changeCells() {
    for (uint32_t b = 0; b < numBlocks_; ++b) {
      const plan::Block &block = plan_.blocks[b];
      Type shard = Type::of(strategy_.mainGrads, {block.shard});
      plan::Cell &weight = role_.cells[weightCells_[b]];
      if (strategy_.dividesShards()) {
        addSlot(b, block.shard, block.stateShard);
      } else if (strategy_.shardsParams) {
        weight.type.shape[0] = block.shard;
        // Both ends of a gather by copy engines must be registered. A weight that is its own master
        // stays with the state that is saved.
        if (gathers_ == plan::Transport::Ce && !strategy_.masterIsParam())
          weight.arena = plan::Arena::Sym;
      } else if (strategy_.shardsState) {
        addSlot(b, block.numel, block.shard);
      }
      if (strategy_.shardsState)
        gradShardCells_.push_back(addCell(role_, "gs." + block.name,
                                          {plan::CellKind::GradientShard, b}, shard,
                                          plan::Arena::Work, plan::Purpose::Grads));
      if (strategy_.accumulatesLocally())
        role_.cells[gradCells_[b]].type.dtype = strategy_.mainGrads;
    }
  }

  /// The block's weights are kept, and gathered once a step from what each rank updates.
  void addSlot(uint32_t block, int64_t kept, int64_t updated) {
    plan::Cell &weight = role_.cells[weightCells_[block]];
    weight.arena = plan::Arena::Sym; // the target of gathers
    weight.type.shape[0] = kept;
    Type type = weight.type;
    type.shape[0] = updated;
    shardCells_.push_back(addCell(role_, "ws." + plan_.blocks[block].name,
                                  {plan::CellKind::WeightShard, block}, type, plan::Arena::Sym,
                                  plan::Purpose::Params));
  }

  Op makeCollective(OpKind kind, ValueId operand, uint32_t block, plan::Phase phase,
                    Scope scope = Scope::Whole) {
    Op op = plan::makeOp(kind, {operand}, plan_.blocks[block].unit, loc_);
    op.phase = phase;
    bool isGather = kind == OpKind::AllGather;
    plan::setChannel(plan_, op,
                     scope == Scope::Shard ? channelOfShards(isGather)
                                           : channelOfWholes(isGather, plan_.blocks[block].group));
    op.set(Key::block, static_cast<int64_t>(block));
    if (!isGather && strategy_.average)
      op.set(Key::average, int64_t{1});
    return op;
  }

  plan::ChannelId channelOfWholes(bool isGather, int16_t group) {
    if (!isGather && !strategy_.shardsState)
      group = plan_.dataGroup;
    std::string_view name = isGather ? "gather" : "reduce"; // of the channel, and of its stream
    return plan::channelNamed(plan_, name, group, name, isGather ? gathers_ : reductions_);
  }

  /// Sums of shards follow the reductions that make these. Where shards are gathered as well, both
  /// run beside what moves inside the groups, and share a communicator if their transport is one.
  plan::ChannelId channelOfShards(bool isGather) {
    std::string_view stream = strategy_.dividesShards() ? "outer" : "reduce";
    bool isOwn = isGather && shardGathers_ != shardReductions_;
    return plan::channelNamed(plan_, isOwn ? "outer_gather" : "outer", copyGroup_, stream,
                              isGather ? shardGathers_ : shardReductions_);
  }

  /// The block that a cell of this kind is of; kNone for cells of other kinds.
  uint32_t blockOf(plan::CellKind kind, uint32_t cell) const {
    const plan::Cell &found = role_.cells[cell];
    return found.kind == kind ? static_cast<uint32_t>(found.of) : kNone;
  }

  /// Block of each live-in weight value; kNone for all other values.
  std::vector<uint32_t> blocksOfLiveIns() const {
    std::vector<uint32_t> blocks(segment_->values.size(), kNone);
    for (const plan::Segment::Boundary &in : segment_->ins)
      blocks[in.value] = blockOf(plan::CellKind::Weight, in.cell);
    return blocks;
  }

  // ---- optim, optim_grads: one gather per block and step, into the persistent whole ----

  /// Gathers what is kept from one step to the next, as the optimizer has left its parts.
  ValueId gatherKept(std::vector<Op> &ops, uint32_t block, ValueId kept, std::string part,
                     std::string name, Scope scope) {
    ValueId from = plan::addLiveIn(*segment_, std::move(part), role_, shardCells_[block]);
    Op gather = makeCollective(OpKind::AllGather, from, block,
                               plan::segmentKindInfo(segment_->kind).phase, scope);
    gather.pred = plan::Pred::First;
    Type type = segment_->values[kept].type;
    ValueId gathered = plan::addValue(*segment_, std::move(name), type, plan::Purpose::Params);
    gather.results = {gathered};
    gather.ties.push_back({plan::Tie::Else, 0, kept});
    ops.push_back(std::move(gather));
    segment_->outs.push_back({gathered, weightCells_[block]});
    return gathered;
  }

  void gatherOnce() {
    std::vector<Op> ops;
    std::vector<uint32_t> blockOf = blocksOfLiveIns();
    std::vector<ValueId> whole(segment_->values.size(), kNone);
    for (size_t v = 0, end = blockOf.size(); v < end; ++v) {
      if (blockOf[v] == kNone)
        continue;
      const std::string &name = plan_.blocks[blockOf[v]].name;
      whole[v] = gatherKept(ops, blockOf[v], static_cast<ValueId>(v), "ws." + name,
                            "W." + name + ".all", Scope::Whole);
    }
    for (Op &op : segment_->ops) {
      if (op.kind == OpKind::View && op.operands[0] < whole.size() &&
          whole[op.operands[0]] != kNone)
        op.operands[0] = whole[op.operands[0]];
      ops.push_back(std::move(op));
    }
    plan::replaceOps(*segment_, std::move(ops));
  }

  // ---- optim_grads_params: a gather for each span of uses ----

  void gatherAroundUses() {
    std::vector<uint32_t> blockOfWhole = blocksOfLiveIns();
    // Views of live-in weights are created again in each span; the old ones are removed.
    std::vector<int32_t> viewOf(segment_->values.size(), -1); // index of the view op
    for (size_t i = 0; i < segment_->ops.size(); ++i) {
      const Op &op = segment_->ops[i];
      if (op.kind == OpKind::View && blockOfWhole[op.operands[0]] != kNone)
        viewOf[op.results[0]] = static_cast<int32_t>(i);
    }
    std::vector<Span> spans = findSpans(viewOf, blockOfWhole);
    std::vector<ValueId> shards = replaceLiveIns();
    std::vector<Op> ops;
    if (strategy_.dividesShards())
      ops = gatherShards(shards);
    rewriteSpans(spans, viewOf, blockOfWhole, shards, std::move(ops));
  }

  /// Before all others, in order of the blocks. From here on the results are the shards.
  std::vector<Op> gatherShards(std::vector<ValueId> &shards) {
    std::vector<Op> ops;
    for (uint32_t b = 0; b < numBlocks_; ++b)
      if (shards[b] != kNone) {
        std::string name = "ws." + plan_.blocks[b].name;
        shards[b] = gatherKept(ops, b, shards[b], name + ".part", name + ".all", Scope::Shard);
      }
    return ops;
  }

  bool isLayer(uint32_t block) const { return plan::isLayer(plan_, plan_.blocks[block].unit); }

  /// A block's uses are split if another layer is used in between, and between a layer's forward
  /// and backward, so that no unit stays gathered after its last use. Where each parameter is a
  /// block, a unit's blocks are gathered together, before the first use of one of them.
  std::vector<Span> findSpans(const std::vector<int32_t> &viewOf,
                              const std::vector<uint32_t> &blockOfWhole) const {
    std::vector<Span> spans;
    size_t count = strategy_.byParam ? plan_.units.size() : numBlocks_;
    std::vector<uint32_t> open(count, kNone); // index in spans
    std::vector<plan::Phase> phaseOf(count, plan::Phase::Other);
    // The two latest uses by different layer units; they show whether another layer was used in
    // between.
    struct Use {
      int32_t unit = -1;
      uint32_t op = 0;
    } latest, before;
    for (uint32_t i = 0; i < segment_->ops.size(); ++i) {
      const Op &op = segment_->ops[i];
      for (ValueId operand : op.operands) {
        if (operand >= viewOf.size() || viewOf[operand] < 0)
          continue;
        uint32_t b = blockOfWhole[segment_->ops[static_cast<size_t>(viewOf[operand])].operands[0]];
        int32_t unit = plan_.blocks[b].unit;
        size_t key = strategy_.byParam ? static_cast<size_t>(unit) : b;
        uint32_t &span = open[key];
        plan::Phase &phase = phaseOf[key];
        const Use &other = latest.unit == unit ? before : latest;
        bool fresh = span == kNone || (isLayer(b) && phase != op.phase) ||
                     (other.unit >= 0 && other.op > spans[span].last);
        if (fresh) {
          span = static_cast<uint32_t>(spans.size());
          spans.push_back({{}, i, i});
          phase = op.phase;
        }
        std::vector<uint32_t> &blocks = spans[span].blocks;
        if (std::find(blocks.begin(), blocks.end(), b) == blocks.end())
          blocks.push_back(b);
        spans[span].last = i;
        if (!isLayer(b))
          continue;
        if (latest.unit != unit)
          before = latest;
        latest = {unit, i};
      }
    }
    return spans;
  }

  /// Live-in wholes become live-in shards. Returns the shard value of each block.
  std::vector<ValueId> replaceLiveIns() {
    std::vector<ValueId> shards(numBlocks_, kNone);
    for (plan::Segment::Boundary &in : segment_->ins) {
      uint32_t b = blockOf(plan::CellKind::Weight, in.cell);
      if (b == kNone)
        continue;
      shards[b] = plan::addValue(*segment_, "ws." + plan_.blocks[b].name, role_.cells[in.cell].type,
                                 plan::Purpose::Params);
      in.value = shards[b];
    }
    return shards;
  }

  void rewriteSpans(const std::vector<Span> &spans, const std::vector<int32_t> &viewOf,
                    const std::vector<uint32_t> &blockOfWhole, const std::vector<ValueId> &shards,
                    std::vector<Op> ops) {
    std::vector<Op> old = std::move(segment_->ops);
    ops.reserve(ops.size() + old.size() + 2 * spans.size());
    std::vector<uint32_t> current(numBlocks_, kNone); // current span
    std::vector<ValueId> wholes(numBlocks_, kNone);
    std::vector<std::pair<uint32_t, ValueId>> made(viewOf.size(),
                                                   {kNone, kNone}); // view's span and value
    std::vector<int> count(numBlocks_, 0);
    size_t next = 0;
    for (uint32_t i = 0; i < old.size(); ++i) {
      if (old[i].kind == OpKind::View && viewOf[old[i].results[0]] == static_cast<int32_t>(i))
        continue;
      for (; next < spans.size() && spans[next].first == i; ++next)
        for (uint32_t b : spans[next].blocks) {
          current[b] = static_cast<uint32_t>(next);
          wholes[b] = emitGather(ops, b, shards[b], count[b]++, old[i].phase);
        }
      for (ValueId &operand : old[i].operands) {
        if (operand >= viewOf.size() || viewOf[operand] < 0)
          continue;
        const Op &view = old[static_cast<size_t>(viewOf[operand])];
        uint32_t b = blockOfWhole[view.operands[0]];
        if (made[operand].first != current[b])
          made[operand] = {current[b], emitView(ops, view, wholes[b], count[b] - 1, old[i].phase)};
        operand = made[operand].second;
      }
      ops.push_back(std::move(old[i]));
    }
    plan::replaceOps(*segment_, std::move(ops));
  }

  static std::string suffix(int n) { return n == 0 ? "" : fmt::format(".{}", n + 1); }

  ValueId emitGather(std::vector<Op> &ops, uint32_t block, ValueId shard, int n,
                     plan::Phase phase) {
    Op gather = makeCollective(OpKind::AllGather, shard, block, phase);
    Type type = Type::of(segment_->values[shard].type.dtype, {plan_.blocks[block].numel});
    gather.results = {plan::addValue(*segment_,
                                     "W." + plan_.blocks[block].name + ".all" + suffix(n), type,
                                     plan::Purpose::Comm)};
    ValueId whole = gather.results[0];
    ops.push_back(std::move(gather));
    return whole;
  }

  ValueId emitView(std::vector<Op> &ops, const Op &view, ValueId whole, int n, plan::Phase phase) {
    Op copy = view;
    copy.phase = phase;
    copy.operands = {whole};
    const plan::Value &old = segment_->values[view.results[0]];
    Type type = old.type;
    std::string name = old.name + ".all" + suffix(n);
    copy.results = {plan::addValue(*segment_, std::move(name), type, plan::Purpose::Comm)};
    ValueId result = copy.results[0];
    ops.push_back(std::move(copy));
    return result;
  }

  // ---- gradients ----

  void reduceGrads() {
    if (std::none_of(segment_->outs.begin(), segment_->outs.end(),
                     [&](const plan::Segment::Boundary &out) {
                       return blockOf(plan::CellKind::Gradient, out.cell) != kNone;
                     }))
      return;
    if (strategy_.accumulatesLocally())
      accumulateLocally();
    else if (strategy_.shardsState)
      markTransient();
    std::vector<Op> ops;
    ops.reserve(segment_->ops.size() + numBlocks_);
    for (Op &op : segment_->ops) {
      bool isPack = op.kind == OpKind::Pack;
      uint32_t block = isPack ? static_cast<uint32_t>(op.getInt(Key::block)) : 0;
      ValueId whole = op.results.empty() ? kNone : op.results[0];
      ops.push_back(std::move(op));
      if (isPack)
        emitReduction(ops, block, whole);
    }
    plan::replaceOps(*segment_, std::move(ops));
  }

  /// Whole gradients that exist only from the backward pass to their reduction.
  void markTransient() {
    for (plan::Value &value : segment_->values)
      if (value.purpose == plan::Purpose::Grads)
        value.purpose = plan::Purpose::Comm;
  }

  /// The first contribution to each parameter's gradient adds to the sum of earlier microbatches.
  void accumulateLocally() {
    std::vector<ValueId> before(segment_->values.size(),
                                kNone); // by gradient value: the view to add to
    std::vector<Op> views;
    for (plan::Value &value : segment_->values)
      if (value.purpose == plan::Purpose::Grads)
        value.type.dtype = strategy_.mainGrads;
    std::vector<std::vector<size_t>> params(numBlocks_);
    for (size_t p = 0; p < plan_.params.size(); ++p)
      params[static_cast<size_t>(plan_.params[p].block)].push_back(p);
    for (std::vector<size_t> &list : params)
      std::sort(list.begin(), list.end(), [&](size_t a, size_t b) {
        return plan_.params[a].offset < plan_.params[b].offset;
      });
    for (size_t i = 0; i < segment_->ops.size(); ++i) {
      if (segment_->ops[i].kind != OpKind::Pack)
        continue;
      const Op pack = segment_->ops[i];
      auto block = static_cast<uint32_t>(pack.getInt(Key::block));
      ValueId sum = plan::addLiveIn(*segment_, "G." + plan_.blocks[block].name + ".sum", role_,
                                    gradCells_[block]);
      for (size_t k = 0; k < pack.operands.size(); ++k) {
        ValueId first = firstContribution(pack.operands[k]);
        Op view = plan::makeOp(OpKind::View, {sum}, pack.unit);
        view.set(Key::offset, plan_.params[params[block][k]].offset);
        view.phase = pack.phase;
        Type type = segment_->values[first].type;
        std::string name = segment_->values[first].name + ".sum";
        view.results = {plan::addValue(*segment_, std::move(name), type, plan::Purpose::Grads)};
        before[first] = view.results[0];
        views.push_back(std::move(view));
      }
    }
    for (Op &op : segment_->ops)
      for (size_t r = 0; r < op.results.size(); ++r)
        if (op.results[r] < before.size() && before[op.results[r]] != kNone)
          op.ties.push_back({plan::Tie::Acc, static_cast<uint8_t>(r), before[op.results[r]],
                             plan::Pred::NotFirst});
    views.insert(views.end(), std::make_move_iterator(segment_->ops.begin()),
                 std::make_move_iterator(segment_->ops.end()));
    plan::replaceOps(*segment_, std::move(views));
  }

  ValueId firstContribution(ValueId grad) const {
    while (true) {
      const plan::Value &value = segment_->values[grad];
      const Op &op = segment_->ops[value.def];
      auto tie = std::find_if(op.ties.begin(), op.ties.end(), [&](const plan::Tie &t) {
        return t.kind == plan::Tie::Acc && t.result == value.defResult;
      });
      if (tie == op.ties.end())
        return grad;
      grad = tie->value;
    }
  }

  void setOut(uint32_t from, uint32_t to, ValueId value) {
    for (plan::Segment::Boundary &out : segment_->outs)
      if (out.cell == from) {
        out = {value, to};
        return;
      }
  }

  void emitReduction(std::vector<Op> &ops, uint32_t block, ValueId whole) {
    bool lastOnly = !strategy_.shardsGrads && strategy_.microbatches > 1;
    plan::Pred pred = lastOnly ? plan::Pred::Last : plan::Pred::Always;
    ValueId wire = whole;
    if (strategy_.dataRanks > 1 && segment_->values[whole].type.dtype != strategy_.wire)
      wire = emitCast(ops, block, whole, pred, "G.");
    if (strategy_.shardsState)
      return emitReduceScatter(ops, block, wire, pred);
    if (strategy_.dataRanks > 1)
      emitAllReduce(ops, block, wire, whole, pred);
  }

  /// To the type in which gradients are sent; the result's name begins with `prefix`.
  ValueId emitCast(std::vector<Op> &ops, uint32_t block, ValueId gradient, plan::Pred pred,
                   const char *prefix) {
    Op cast = plan::makeOp(OpKind::Cast, {gradient}, plan_.blocks[block].unit, loc_);
    cast.pred = pred;
    cast.phase = plan::Phase::Backward;
    Type type = segment_->values[gradient].type;
    type.dtype = strategy_.wire;
    cast.results = {plan::addValue(*segment_, prefix + plan_.blocks[block].name + ".wire", type,
                                   plan::Purpose::Comm)};
    ValueId result = cast.results[0];
    ops.push_back(std::move(cast));
    return result;
  }

  void emitReduceScatter(std::vector<Op> &ops, uint32_t block, ValueId wire, plan::Pred pred) {
    Op reduce = makeCollective(OpKind::ReduceScatter, wire, block, plan::Phase::Backward);
    reduce.pred = pred;
    uint32_t cell = gradShardCells_[block];
    ValueId shard = plan::addValue(*segment_, "gs." + plan_.blocks[block].name,
                                   role_.cells[cell].type, plan::Purpose::Grads);
    reduce.results = {shard};
    if (strategy_.shardsGrads && strategy_.microbatches > 1) {
      ValueId sum =
          plan::addLiveIn(*segment_, "gs." + plan_.blocks[block].name + ".sum", role_, cell);
      reduce.ties.push_back({plan::Tie::Acc, 0, sum, plan::Pred::NotFirst});
    }
    ops.push_back(std::move(reduce));
    if (strategy_.accumulatesLocally())
      segment_->outs.push_back({shard, cell});
    else
      setOut(gradCells_[block], cell, shard);
    if (copyGroup_ >= 0)
      reduceShard(ops, block, shard, pred);
  }

  /// Adds what the groups of shards have summed, each by itself, once all microbatches are in it.
  void reduceShard(std::vector<Op> &ops, uint32_t block, ValueId shard, plan::Pred before) {
    bool isEach = before == plan::Pred::Always && strategy_.microbatches > 1;
    plan::Pred pred = isEach ? plan::Pred::Last : before;
    uint32_t cell = gradShardCells_[block];
    bool isCast = role_.cells[cell].type.dtype != strategy_.wire;
    ValueId wire = isCast ? emitCast(ops, block, shard, pred, "gs.") : shard;
    bool isDivided = strategy_.dividesShards();
    Op sum = makeCollective(isDivided ? OpKind::ReduceScatter : OpKind::AllReduce, wire, block,
                            plan::Phase::Backward, Scope::Shard);
    sum.pred = pred;
    Type type = segment_->values[wire].type;
    if (isDivided)
      type = Type::of(strategy_.mainGrads, {plan_.blocks[block].stateShard});
    ValueId reduced = plan::addValue(*segment_, "gs." + plan_.blocks[block].name + ".reduced", type,
                                     plan::Purpose::Grads);
    sum.results = {reduced};
    if (!isCast && !isDivided) {
      if (isEach)
        sum.ties.push_back({plan::Tie::Else, 0, shard});
      setOut(cell, cell, reduced);
    } else {
      uint32_t to = addReducedCell(block, type, plan::Arena::Work);
      if (isEach)
        segment_->outs.push_back({reduced, to});
      else
        setOut(cell, to, reduced); // no other microbatch adds to the shard
    }
    ops.push_back(std::move(sum));
  }

  uint32_t addReducedCell(uint32_t block, const Type &type, plan::Arena arena) {
    return addCell(role_, "gr." + plan_.blocks[block].name,
                   {plan::CellKind::ReducedGradient, block}, type, arena, plan::Purpose::Grads);
  }

  void emitAllReduce(std::vector<Op> &ops, uint32_t block, ValueId wire, ValueId whole,
                     plan::Pred pred) {
    Op reduce = makeCollective(OpKind::AllReduce, wire, block, plan::Phase::Backward);
    reduce.pred = pred;
    Type type = segment_->values[wire].type;
    reduce.results = {plan::addValue(*segment_, "G." + plan_.blocks[block].name + ".reduced", type,
                                     plan::Purpose::Grads)};
    ValueId reduced = reduce.results[0];
    if (wire == whole) {
      if (pred != plan::Pred::Always)
        reduce.ties.push_back({plan::Tie::Else, 0, wire});
      setOut(gradCells_[block], gradCells_[block], reduced);
    } else {
      segment_->outs.push_back({reduced, addReducedCell(block, type, plan::Arena::Sym)});
    }
    ops.push_back(std::move(reduce));
  }

  plan::Plan &plan_;
  plan::Role &role_;
  plan::Segment *segment_ = nullptr;
  Strategy strategy_;
  uint32_t loc_;
  uint32_t numBlocks_;
  std::vector<uint32_t> weightCells_, gradCells_; ///< by block
  int16_t copyGroup_;                             ///< of the ranks that hold the same shards
  plan::Transport gathers_, reductions_, shardReductions_, shardGathers_;
  std::vector<uint32_t> shardCells_,
      gradShardCells_; ///< by block; empty if the strategy has none
};

} // namespace

void runInsertCollectives(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    Inserter(plan, role).run();
}

} // namespace shardc::passes
