// Reduces gradients over the ranks that have other samples: after each microbatch, or once after
// all microbatches were accumulated locally.
#include <algorithm>

#include "compiler/passes/BlockCollectives.h"
#include "compiler/passes/OpWriter.h"

namespace shardc::passes {
namespace {

class GradientReducer : OpWriter {
public:
  GradientReducer(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                  BlockCollectives &blocks)
      : OpWriter(segment), plan_(plan), role_(role), blocks_(blocks) {}

  /// Adds a reduction after each pack of a block's gradient. Whether it runs for every microbatch
  /// or only for the last depends on the block's sharding.
  void run() {
    if (std::none_of(segment_.outs.begin(), segment_.outs.end(),
                     [&](const plan::Segment::Boundary &out) {
                       return blocks_.blockOf(plan::CellKind::Gradient, out.cell) != kNone;
                     }))
      return;
    copySums();
    if (hasBlock(accumulatesLocally))
      accumulateLocally();
    if (hasBlock(isTransient))
      markTransient();
    ops_.reserve(segment_.ops.size() + blocks_.size());
    rewrite([this](Op op) {
      ops_.push_back(op);
      if (isOfBlock(op))
        emitReduction(blockOf(op), op.results[0]);
    });
  }

private:
  uint32_t index() const { return blocks_.indexOf(segment_); }
  /// The microbatches in which a contribution to the block is added to earlier ones. Chunks of a
  /// stage may use one table, so several segments may contribute.
  plan::Pred addedIn(uint32_t block) const {
    return blocks_.runs().begins(index(), blocks_.contributors(block))
               ? blocks_.runs().of(index()).like(plan::Pred::NotFirst)
               : plan::Pred::Always;
  }
  /// Whether this segment, and not another one, completes the block's gradient.
  bool completes(uint32_t block) const {
    return blocks_.runs().ends(index(), blocks_.contributors(block));
  }
  /// The microbatch that runs last.
  plan::Pred last() const { return blocks_.runs().of(index()).like(plan::Pred::Last); }

  /// Whether the op packs the whole gradient of a block.
  static bool isOfBlock(const Op &op) {
    return op.kind == OpKind::Pack && op.getInt(Key::block) >= 0;
  }

  static uint32_t blockOf(const Op &pack) { return static_cast<uint32_t>(pack.getInt(Key::block)); }

  using IsOf = bool (*)(const BlockStrategy &strategy);
  static bool accumulatesLocally(const BlockStrategy &strategy) {
    return strategy.accumulatesLocally();
  }
  /// Whether whole gradients exist only from the backward pass to their reduction.
  static bool isTransient(const BlockStrategy &strategy) {
    return !strategy.accumulatesLocally() && strategy.shardsState;
  }

  /// Whether the segment computes the gradient of a block for which `isOf` holds.
  bool hasBlock(IsOf isOf) const {
    return std::ranges::any_of(segment_.ops, [&](const Op &op) {
      return isOfBlock(op) && isOf(blocks_.strategy(blockOf(op)));
    });
  }

  /// For each value, whether it is the gradient, or a part of it, of a block for which `isOf`
  /// holds. A value that the segment packs into no block counts if `isOf` holds for all blocks that
  /// the segment packs.
  std::vector<uint8_t> gradientsOf(IsOf isOf) const {
    auto isGradient = [&](ValueId value) {
      return segment_.values[value].purpose == plan::Purpose::Grads;
    };
    std::vector<uint8_t> marks(segment_.values.size(), 0);
    if (!std::ranges::any_of(segment_.ops, [&](const Op &op) {
          return isOfBlock(op) && !isOf(blocks_.strategy(blockOf(op)));
        })) {
      for (ValueId value = 0; value < marks.size(); ++value)
        marks[value] = isGradient(value);
      return marks;
    }
    std::vector<ValueId> open;
    for (const Op &op : segment_.ops)
      if (isOfBlock(op) && isOf(blocks_.strategy(blockOf(op))))
        open.push_back(op.results[0]);
    while (!open.empty()) {
      ValueId value = open.back();
      open.pop_back();
      if (!isGradient(value) || marks[value] != 0)
        continue;
      marks[value] = 1;
      if (uint32_t def = segment_.values[value].def; def != kNone) {
        const Op &op = segment_.ops[def];
        open.insert(open.end(), op.operands.begin(), op.operands.end());
        for (const plan::Tie &tie : op.ties)
          open.push_back(tie.value);
      }
    }
    return marks;
  }

  void markTransient() {
    std::vector<uint8_t> marks = gradientsOf(isTransient);
    for (ValueId value = 0; value < marks.size(); ++value)
      if (marks[value] != 0)
        segment_.values[value].purpose = plan::Purpose::Comm;
  }

  /// A sum over ranks is computed in its operand's buffer. It is copied into the block's buffer in
  /// two cases: microbatches are accumulated in the block's buffer, or another segment stored the
  /// operand in a buffer that it overwrites later.
  void copySums() {
    std::vector<uint8_t> isPacked(segment_.values.size(), 0);
    for (const Op &op : segment_.ops)
      if (isOfBlock(op))
        for (ValueId part : op.operands) {
          const Op &producer = segment_.ops[segment_.values[part].def];
          isPacked[part] = producer.kind == OpKind::AllReduce &&
                           (blocks_.strategy(blockOf(op)).accumulatesLocally() ||
                            segment_.values[producer.operands[0]].def == kNone);
        }
    if (std::ranges::find(isPacked, 1) == isPacked.end())
      return;
    std::vector<ValueId> copyOf(segment_.values.size(), kNone);
    rewrite([&](Op op) {
      if (isOfBlock(op))
        for (ValueId &part : op.operands)
          part = isPacked[part] != 0 ? copyOf[part] : part;
      const ValueId sum = op.results.empty() ? kNone : op.results[0];
      ops_.push_back(std::move(op));
      if (sum == kNone || isPacked[sum] == 0)
        return;
      Op cast = plan::makeOp(OpKind::Cast, {sum}, unit_, loc_);
      cast.phase = ops_.back().phase;
      copyOf[sum] =
          emit(std::move(cast), nameOf(sum) + ".own", Type(typeOf(sum)), plan::Purpose::Grads);
    });
  }

  /// Adds the first contribution to each parameter's gradient to the sum of earlier microbatches.
  void accumulateLocally() {
    std::vector<ValueId> before(segment_.values.size(),
                                kNone); // by gradient value: the view to which it is added
    std::vector<plan::Pred> added(before.size()); // and in which microbatches
    DType mainGrads = blocks_.job().mainGrads;
    std::vector<uint8_t> marks = gradientsOf(accumulatesLocally);
    for (ValueId value = 0; value < marks.size(); ++value)
      if (marks[value] != 0)
        segment_.values[value].type.dtype = mainGrads;
    for (const plan::Segment::Boundary &in : segment_.ins)
      if (marks[in.value] != 0 && role_.cells[in.cell].kind == plan::CellKind::Buffer)
        plan::changeType(role_, in.cell, mainGrads);
    std::vector<std::vector<size_t>> params(blocks_.size());
    for (size_t p = 0; p < plan_.params.size(); ++p)
      params[static_cast<size_t>(plan_.params[p].block)].push_back(p);
    for (std::vector<size_t> &list : params)
      std::sort(list.begin(), list.end(), [&](size_t a, size_t b) {
        return plan_.params[a].offset < plan_.params[b].offset;
      });
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      if (!isOfBlock(segment_.ops[i]) ||
          !accumulatesLocally(blocks_.strategy(blockOf(segment_.ops[i]))))
        continue;
      const Op pack = segment_.ops[i];
      uint32_t block = blockOf(pack);
      ValueId sum = plan::addLiveIn(segment_, "G." + plan_.blocks[block].name + ".sum", role_,
                                    blocks_.gradCell(block));
      for (size_t k = 0; k < pack.operands.size(); ++k) {
        ValueId first = firstContribution(pack.operands[k]);
        Op view = plan::makeOp(OpKind::View, {sum}, pack.unit);
        view.set(Key::offset, plan_.params[params[block][k]].offset);
        view.phase = pack.phase;
        before[first] = emit(std::move(view), nameOf(first) + ".sum", Type(typeOf(first)),
                             plan::Purpose::Grads);
        added[first] = addedIn(block);
      }
    }
    for (Op &op : segment_.ops)
      for (size_t r = 0; r < op.results.size(); ++r)
        if (op.results[r] < before.size() && before[op.results[r]] != kNone)
          op.ties.push_back({plan::Tie::Acc, static_cast<uint8_t>(r), before[op.results[r]],
                             added[op.results[r]]});
    rewrite([this](Op op) { ops_.push_back(std::move(op)); });
  }

  ValueId firstContribution(ValueId grad) const {
    while (true) {
      const plan::Value &value = segment_.values[grad];
      const Op &op = segment_.ops[value.def];
      auto tie = std::find_if(op.ties.begin(), op.ties.end(), [&](const plan::Tie &t) {
        return t.kind == plan::Tie::Acc && t.result == value.defResult;
      });
      if (tie == op.ties.end())
        return grad;
      grad = tie->value;
    }
  }

  void setOut(uint32_t from, uint32_t to, ValueId value) {
    for (plan::Segment::Boundary &out : segment_.outs)
      if (out.cell == from) {
        out = {value, to};
        return;
      }
  }

  void emitReduction(uint32_t block, ValueId whole) {
    const BlockStrategy &strategy = blocks_.strategy(block);
    if (strategy.accumulatesLocally() && !completes(block))
      return;
    plan::Pred pred = strategy.accumulatesLocally() ? last() : plan::Pred::Always;
    DType dtype = segment_.values[whole].type.dtype;
    bool isSent = strategy.sumRanks > 1;
    ValueId wire = whole;
    if ((isSent && dtype != strategy.wire) || strategy.scale != 1)
      wire = emitCast(block, whole, pred, "G.", isSent ? strategy.wire : dtype, strategy.scale);
    if (strategy.shardsState)
      return emitReduceScatter(block, wire, pred);
    if (isSent)
      return emitAllReduce(block, wire, whole, pred);
    if (wire != whole)
      leaveReduced(block, wire, plan::Arena::Work);
  }

  /// Stores the reduced gradient in a separate cell if the block's cell holds the sum of
  /// microbatches.
  void leaveReduced(uint32_t block, ValueId reduced, plan::Arena arena) {
    uint32_t cell = addReducedCell(block, segment_.values[reduced].type, arena);
    if (blocks_.strategy(block).accumulatesLocally())
      segment_.outs.push_back({reduced, cell});
    else
      setOut(blocks_.gradCell(block), cell, reduced);
  }

  /// Appends a cast of a gradient to the type of its reduction, or a multiplication by `scale`. The
  /// result's name begins with `prefix`.
  ValueId emitCast(uint32_t block, ValueId gradient, plan::Pred pred, const char *prefix,
                   DType dtype, double scale = 1) {
    Op cast = plan::makeOp(OpKind::Cast, {gradient}, plan_.blocks[block].unit, blocks_.loc());
    cast.pred = pred;
    cast.phase = plan::Phase::Backward;
    cast.set(Key::scale, scale);
    Type type = segment_.values[gradient].type;
    type.dtype = dtype;
    return emit(std::move(cast), prefix + plan_.blocks[block].name + ".wire", type,
                plan::Purpose::Comm);
  }

  void emitReduceScatter(uint32_t block, ValueId wire, plan::Pred pred) {
    const BlockStrategy &strategy = blocks_.strategy(block);
    Op reduce = blocks_.make(OpKind::ReduceScatter, wire, block, plan::Phase::Backward);
    reduce.pred = pred;
    uint32_t cell = blocks_.gradShardCell(block);
    ValueId shard = plan::addValue(segment_, "gs." + plan_.blocks[block].name,
                                   role_.cells[cell].type, plan::Purpose::Grads);
    reduce.results = {shard};
    if (strategy.shardsGrads && strategy.microbatches > 1) {
      ValueId sum =
          plan::addLiveIn(segment_, "gs." + plan_.blocks[block].name + ".sum", role_, cell);
      reduce.ties.push_back({plan::Tie::Acc, 0, sum, addedIn(block)});
    }
    ops_.push_back(std::move(reduce));
    if (strategy.accumulatesLocally())
      segment_.outs.push_back({shard, cell});
    else
      setOut(blocks_.gradCell(block), cell, shard);
    if (blocks_.hasCopies(block))
      reduceShard(block, shard, pred);
  }

  /// Sums the gradient of a shard over its copies, after all microbatches were added to each.
  void reduceShard(uint32_t block, ValueId shard, plan::Pred before) {
    const BlockStrategy &strategy = blocks_.strategy(block);
    bool isEach = before == plan::Pred::Always && strategy.microbatches > 1;
    if (isEach && !completes(block))
      return;
    plan::Pred pred = isEach ? last() : before;
    uint32_t cell = blocks_.gradShardCell(block);
    bool isCast = role_.cells[cell].type.dtype != strategy.wire;
    ValueId wire = isCast ? emitCast(block, shard, pred, "gs.", strategy.wire) : shard;
    bool isDivided = strategy.dividesShards();
    Op sum = blocks_.make(isDivided ? OpKind::ReduceScatter : OpKind::AllReduce, wire, block,
                          plan::Phase::Backward, Scope::Shard);
    sum.pred = pred;
    Type type = segment_.values[wire].type;
    if (isDivided)
      type = Type::of(strategy.mainGrads, {plan_.blocks[block].stateShard});
    ValueId reduced = plan::addValue(segment_, "gs." + plan_.blocks[block].name + ".reduced", type,
                                     plan::Purpose::Grads);
    sum.results = {reduced};
    if (!isCast && !isDivided) {
      if (isEach)
        sum.ties.push_back({plan::Tie::Else, 0, shard});
      setOut(cell, cell, reduced);
    } else {
      uint32_t to = addReducedCell(block, type, plan::Arena::Work);
      if (isEach)
        segment_.outs.push_back({reduced, to});
      else
        setOut(cell, to, reduced); // no other microbatch is added to the shard
    }
    ops_.push_back(std::move(sum));
  }

  uint32_t addReducedCell(uint32_t block, const Type &type, plan::Arena arena) {
    return addCell(role_, "gr." + plan_.blocks[block].name,
                   {plan::CellKind::ReducedGradient, block}, type, arena, plan::Purpose::Grads);
  }

  void emitAllReduce(uint32_t block, ValueId wire, ValueId whole, plan::Pred pred) {
    Op reduce = blocks_.make(OpKind::AllReduce, wire, block, plan::Phase::Backward);
    reduce.pred = pred;
    Type type = segment_.values[wire].type;
    reduce.results = {plan::addValue(segment_, "G." + plan_.blocks[block].name + ".reduced", type,
                                     plan::Purpose::Grads)};
    ValueId reduced = reduce.results[0];
    if (wire == whole) {
      if (pred != plan::Pred::Always)
        reduce.ties.push_back({plan::Tie::Else, 0, wire});
      setOut(blocks_.gradCell(block), blocks_.gradCell(block), reduced);
    } else {
      leaveReduced(block, reduced, plan::Arena::Sym);
    }
    ops_.push_back(std::move(reduce));
  }

  plan::Plan &plan_;
  plan::Role &role_;
  BlockCollectives &blocks_;
};

} // namespace

void reduceGradients(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     BlockCollectives &blocks) {
  GradientReducer(plan, role, segment, blocks).run();
}

} // namespace shardc::passes
