// Gathers weights: either once per step, before their first use, into a value that stays; or the
// blocks of a unit around each of its uses.
#include <algorithm>

#include <fmt/format.h>

#include "compiler/passes/BlockCollectives.h"
#include "compiler/passes/OpWriter.h"

namespace shardc::passes {
namespace {

/// Consecutive uses of blocks that are gathered together, from the first op to the last one.
struct Span {
  std::vector<uint32_t> blocks; ///< used blocks, in order of their first use
  uint32_t first, last;
};

class WeightGatherer : OpWriter {
public:
  WeightGatherer(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                 BlockCollectives &blocks)
      : OpWriter(segment), plan_(plan), role_(role), blocks_(blocks) {}

  void run() {
    if (hasBlock(&WeightGatherer::isGatheredAround))
      gatherAroundUses();
    if (hasBlock(&WeightGatherer::isKept) && !findsKept())
      gatherOnce();
  }

private:
  /// In a backward segment, the forward pass of the same microbatch has already gathered the
  /// persistent weights.
  bool findsKept() const { return segment_.kind == plan::SegmentKind::Backward; }

  using IsOf = bool (WeightGatherer::*)(uint32_t block) const;
  bool isGatheredAround(uint32_t block) const { return blocks_.strategy(block).shardsParams; }
  bool isKept(uint32_t block) const { return blocks_.strategy(block).keepsGathered(); }

  /// The block whose weights the boundary reads, if `isOf` holds for it; otherwise kNone.
  uint32_t blockOfIn(const plan::Segment::Boundary &in, IsOf isOf) const {
    uint32_t block = blocks_.blockOf(plan::CellKind::Weight, in.cell);
    return block != kNone && (this->*isOf)(block) ? block : kNone;
  }
  bool hasBlock(IsOf isOf) const {
    return std::ranges::any_of(segment_.ins, [&](const plan::Segment::Boundary &in) {
      return blockOfIn(in, isOf) != kNone;
    });
  }

  /// By value: the block whose weights it is, if it is a live-in and `isOf` holds for the block;
  /// otherwise kNone.
  std::vector<uint32_t> blocksOfLiveIns(IsOf isOf) const {
    std::vector<uint32_t> blocks(segment_.values.size(), kNone);
    for (const plan::Segment::Boundary &in : segment_.ins)
      blocks[in.value] = blockOfIn(in, isOf);
    return blocks;
  }

  // ---- optim, optim_grads: one gather per block and step, into gathered weights that stay ----

  /// Adds a gather of the block's shard, as the last update wrote it, into weights that stay from
  /// step to step. It runs in the first microbatch of a step; later microbatches use `kept`.
  ValueId gatherKept(uint32_t block, ValueId kept, std::string part, std::string name,
                     Scope scope) {
    ValueId from = plan::addLiveIn(segment_, std::move(part), role_, blocks_.shardCell(block));
    Op gather = blocks_.make(OpKind::AllGather, from, block,
                             plan::segmentKindInfo(segment_.kind).phase, scope);
    gather.pred = blocks_.runs().of(blocks_.indexOf(segment_)).like(plan::Pred::First);
    gather.ties.push_back({plan::Tie::Else, 0, kept});
    const Type type = typeOf(kept);
    ValueId gathered = emit(std::move(gather), std::move(name), type, plan::Purpose::Params);
    segment_.outs.push_back({gathered, blocks_.weightCell(block)});
    return gathered;
  }

  void gatherOnce() {
    std::vector<uint32_t> blockOf = blocksOfLiveIns(&WeightGatherer::isKept);
    std::vector<ValueId> whole(segment_.values.size(), kNone);
    for (size_t v = 0, end = blockOf.size(); v < end; ++v) {
      if (blockOf[v] == kNone)
        continue;
      const std::string &name = plan_.blocks[blockOf[v]].name;
      whole[v] = gatherKept(blockOf[v], static_cast<ValueId>(v), "ws." + name, "W." + name + ".all",
                            Scope::Whole);
    }
    for (Op &op : segment_.ops) {
      if (op.kind == OpKind::View && op.operands[0] < whole.size() &&
          whole[op.operands[0]] != kNone)
        op.operands[0] = whole[op.operands[0]];
      ops_.push_back(std::move(op));
    }
    plan::replaceOps(segment_, std::exchange(ops_, {}));
  }

  // ---- optim_grads_params: a gather for each span of uses ----

  void gatherAroundUses() {
    std::vector<uint32_t> blockOfWhole = blocksOfLiveIns(&WeightGatherer::isGatheredAround);
    // Views of live-in weights are created again in each span; the old ones are removed.
    std::vector<int32_t> viewOf(segment_.values.size(), -1); // by value: index of the view op
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (op.kind == OpKind::View && blockOfWhole[op.operands[0]] != kNone)
        viewOf[op.results[0]] = static_cast<int32_t>(i);
    }
    std::vector<Span> spans = findSpans(viewOf, blockOfWhole);
    std::vector<ValueId> shards = replaceLiveIns();
    if (!findsKept())
      gatherShards(shards);
    rewriteSpans(spans, viewOf, blockOfWhole, shards);
  }

  /// Gathers blocks whose shards are sharded further, before all others and in the order of blocks.
  /// Afterwards, `shards` contains the results.
  void gatherShards(std::vector<ValueId> &shards) {
    for (uint32_t b = 0; b < blocks_.size(); ++b)
      if (shards[b] != kNone && blocks_.strategy(b).dividesShards()) {
        std::string name = "ws." + plan_.blocks[b].name;
        shards[b] = gatherKept(b, shards[b], name + ".part", name + ".all", Scope::Shard);
      }
  }

  bool isLayer(uint32_t block) const { return plan::isLayer(plan_, plan_.blocks[block].unit); }

  /// The spans of uses. A span ends where another layer is used in between, and between a layer's
  /// forward and backward pass, so that no unit stays gathered after its last use. If each
  /// parameter is a block, the blocks of a unit are gathered together, before the first use of any
  /// of them.
  std::vector<Span> findSpans(const std::vector<int32_t> &viewOf,
                              const std::vector<uint32_t> &blockOfWhole) const {
    std::vector<Span> spans;
    bool byParam = blocks_.job().byParam;
    size_t count = byParam ? plan_.units.size() : blocks_.size();
    std::vector<uint32_t> open(count, kNone); // by block: index of its current span
    std::vector<plan::Phase> phaseOf(count, plan::Phase::Other);
    // The two latest uses by different layer units; they show whether another layer was used in
    // between.
    struct Use {
      int32_t unit = -1;
      uint32_t op = 0;
    } latest, before;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      for (ValueId operand : op.operands) {
        if (operand >= viewOf.size() || viewOf[operand] < 0)
          continue;
        uint32_t b = blockOfWhole[segment_.ops[static_cast<size_t>(viewOf[operand])].operands[0]];
        int32_t unit = plan_.blocks[b].unit;
        size_t key = byParam ? static_cast<size_t>(unit) : b;
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

  /// Replaces live-in gathered weights by live-in shards. Returns the shard value of each block.
  std::vector<ValueId> replaceLiveIns() {
    std::vector<ValueId> shards(blocks_.size(), kNone);
    for (plan::Segment::Boundary &in : segment_.ins) {
      uint32_t b = blockOfIn(in, &WeightGatherer::isGatheredAround);
      if (b == kNone)
        continue;
      shards[b] = plan::addValue(segment_, "ws." + plan_.blocks[b].name, role_.cells[in.cell].type,
                                 plan::Purpose::Params);
      in.value = shards[b];
    }
    return shards;
  }

  void rewriteSpans(const std::vector<Span> &spans, const std::vector<int32_t> &viewOf,
                    const std::vector<uint32_t> &blockOfWhole, const std::vector<ValueId> &shards) {
    std::vector<Op> old = std::move(segment_.ops);
    ops_.reserve(ops_.size() + old.size() + 2 * spans.size());
    std::vector<uint32_t> current(blocks_.size(), kNone); // by block: its current span
    std::vector<ValueId> wholes(blocks_.size(), kNone);
    std::vector<std::pair<uint32_t, ValueId>> made(viewOf.size(),
                                                   {kNone, kNone}); // by view: its span, value
    std::vector<int> count(blocks_.size(), 0);
    size_t next = 0;
    for (uint32_t i = 0; i < old.size(); ++i) {
      if (old[i].kind == OpKind::View && viewOf[old[i].results[0]] == static_cast<int32_t>(i))
        continue;
      for (; next < spans.size() && spans[next].first == i; ++next)
        for (uint32_t b : spans[next].blocks) {
          current[b] = static_cast<uint32_t>(next);
          wholes[b] = emitGather(b, shards[b], count[b]++, old[i].phase);
        }
      for (ValueId &operand : old[i].operands) {
        if (operand >= viewOf.size() || viewOf[operand] < 0)
          continue;
        const Op &view = old[static_cast<size_t>(viewOf[operand])];
        uint32_t b = blockOfWhole[view.operands[0]];
        if (made[operand].first != current[b])
          made[operand] = {current[b], emitView(view, wholes[b], count[b] - 1, old[i].phase)};
        operand = made[operand].second;
      }
      ops_.push_back(std::move(old[i]));
    }
    plan::replaceOps(segment_, std::exchange(ops_, {}));
  }

  static std::string suffix(int n) { return n == 0 ? "" : fmt::format(".{}", n + 1); }

  ValueId emitGather(uint32_t block, ValueId shard, int n, plan::Phase phase) {
    return emit(blocks_.make(OpKind::AllGather, shard, block, phase),
                "W." + plan_.blocks[block].name + ".all" + suffix(n),
                Type::of(typeOf(shard).dtype, {plan_.blocks[block].numel}), plan::Purpose::Comm);
  }

  ValueId emitView(const Op &view, ValueId whole, int n, plan::Phase phase) {
    Op copy = view;
    copy.phase = phase;
    copy.operands = {whole};
    const Type type = typeOf(view.results[0]);
    return emit(std::move(copy), nameOf(view.results[0]) + ".all" + suffix(n), type,
                plan::Purpose::Comm);
  }

  plan::Plan &plan_;
  plan::Role &role_;
  BlockCollectives &blocks_;
};

} // namespace

void gatherWeights(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                   BlockCollectives &blocks) {
  WeightGatherer(plan, role, segment, blocks).run();
}

} // namespace shardc::passes
