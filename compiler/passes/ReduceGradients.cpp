// Reduces gradients over the ranks that have other samples: of each microbatch, or once all of them
// are summed on each rank.
#include <algorithm>

#include "compiler/passes/BlockCollectives.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

class GradientReducer {
public:
  GradientReducer(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                  BlockCollectives &blocks)
      : plan_(plan), role_(role), segment_(segment), blocks_(blocks), strategy_(blocks.strategy()) {
  }

  void run() {
    if (std::none_of(segment_.outs.begin(), segment_.outs.end(),
                     [&](const plan::Segment::Boundary &out) {
                       return blocks_.blockOf(plan::CellKind::Gradient, out.cell) != kNone;
                     }))
      return;
    if (strategy_.accumulatesLocally())
      accumulateLocally();
    else // where another segment has left what is summed, in a buffer that it fills again
      copySums([this](const Op &sum) { return segment_.values[sum.operands[0]].def == kNone; });
    if (!strategy_.accumulatesLocally() && strategy_.shardsState)
      markTransient();
    std::vector<Op> ops;
    ops.reserve(segment_.ops.size() + blocks_.size());
    for (Op &op : segment_.ops) {
      bool isPack = isOfBlock(op);
      uint32_t block = isPack ? static_cast<uint32_t>(op.getInt(Key::block)) : 0;
      ValueId whole = op.results.empty() ? kNone : op.results[0];
      ops.push_back(std::move(op));
      if (isPack)
        emitReduction(ops, block, whole);
    }
    plan::replaceOps(segment_, std::move(ops));
  }

private:
  /// Whether it makes a block's whole gradient.
  static bool isOfBlock(const Op &op) {
    return op.kind == OpKind::Pack && op.getInt(Key::block) >= 0;
  }

  /// Whole gradients that exist only from the backward pass to their reduction.
  void markTransient() {
    for (plan::Value &value : segment_.values)
      if (value.purpose == plan::Purpose::Grads)
        value.purpose = plan::Purpose::Comm;
  }

  /// A sum over ranks is in its operand's buffer. If `isElsewhere` says so of the op, that is not
  /// in the block's buffer, and the sum is copied to there.
  template <typename Predicate> void copySums(Predicate isElsewhere) {
    std::vector<uint8_t> isPacked(segment_.values.size(), 0);
    for (const Op &op : segment_.ops)
      if (isOfBlock(op))
        for (ValueId part : op.operands) {
          const Op &maker = segment_.ops[segment_.values[part].def];
          isPacked[part] = maker.kind == OpKind::AllReduce && isElsewhere(maker);
        }
    if (std::ranges::find(isPacked, 1) == isPacked.end())
      return;
    std::vector<ValueId> copyOf(segment_.values.size(), kNone);
    std::vector<Op> ops;
    for (Op &op : segment_.ops) {
      ValueId sum = op.results.empty() ? kNone : op.results[0];
      if (isOfBlock(op))
        for (ValueId &part : op.operands)
          part = isPacked[part] != 0 ? copyOf[part] : part;
      ops.push_back(std::move(op));
      if (sum == kNone || isPacked[sum] == 0)
        continue;
      Op cast = plan::makeOp(OpKind::Cast, {sum}, ops.back().unit, ops.back().loc);
      cast.phase = ops.back().phase;
      Type type = segment_.values[sum].type;
      std::string name = segment_.values[sum].name + ".own";
      copyOf[sum] = plan::addValue(segment_, std::move(name), type, plan::Purpose::Grads);
      cast.results = {copyOf[sum]};
      isPacked.resize(segment_.values.size(), 0);
      copyOf.resize(segment_.values.size(), kNone);
      ops.push_back(std::move(cast));
    }
    plan::replaceOps(segment_, std::move(ops));
  }

  /// The first contribution to each parameter's gradient adds to the sum of earlier microbatches.
  void accumulateLocally() {
    copySums([](const Op &) { return true; }); // microbatches are added in the block's buffer
    std::vector<ValueId> before(segment_.values.size(),
                                kNone); // by gradient value: the view to add to
    std::vector<Op> views;
    for (plan::Value &value : segment_.values)
      if (value.purpose == plan::Purpose::Grads)
        value.type.dtype = strategy_.mainGrads;
    for (const plan::Segment::Boundary &in : segment_.ins)
      if (segment_.values[in.value].purpose == plan::Purpose::Grads &&
          role_.cells[in.cell].kind == plan::CellKind::Buffer)
        plan::changeType(role_, in.cell, strategy_.mainGrads);
    std::vector<std::vector<size_t>> params(blocks_.size());
    for (size_t p = 0; p < plan_.params.size(); ++p)
      params[static_cast<size_t>(plan_.params[p].block)].push_back(p);
    for (std::vector<size_t> &list : params)
      std::sort(list.begin(), list.end(), [&](size_t a, size_t b) {
        return plan_.params[a].offset < plan_.params[b].offset;
      });
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      if (!isOfBlock(segment_.ops[i]))
        continue;
      const Op pack = segment_.ops[i];
      auto block = static_cast<uint32_t>(pack.getInt(Key::block));
      ValueId sum = plan::addLiveIn(segment_, "G." + plan_.blocks[block].name + ".sum", role_,
                                    blocks_.gradCell(block));
      for (size_t k = 0; k < pack.operands.size(); ++k) {
        ValueId first = firstContribution(pack.operands[k]);
        Op view = plan::makeOp(OpKind::View, {sum}, pack.unit);
        view.set(Key::offset, plan_.params[params[block][k]].offset);
        view.phase = pack.phase;
        Type type = segment_.values[first].type;
        std::string name = segment_.values[first].name + ".sum";
        view.results = {plan::addValue(segment_, std::move(name), type, plan::Purpose::Grads)};
        before[first] = view.results[0];
        views.push_back(std::move(view));
      }
    }
    for (Op &op : segment_.ops)
      for (size_t r = 0; r < op.results.size(); ++r)
        if (op.results[r] < before.size() && before[op.results[r]] != kNone)
          op.ties.push_back({plan::Tie::Acc, static_cast<uint8_t>(r), before[op.results[r]],
                             plan::Pred::NotFirst});
    views.insert(views.end(), std::make_move_iterator(segment_.ops.begin()),
                 std::make_move_iterator(segment_.ops.end()));
    plan::replaceOps(segment_, std::move(views));
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

  void emitReduction(std::vector<Op> &ops, uint32_t block, ValueId whole) {
    bool lastOnly = !strategy_.shardsGrads && strategy_.microbatches > 1;
    plan::Pred pred = lastOnly ? plan::Pred::Last : plan::Pred::Always;
    ValueId wire = whole;
    if (strategy_.dataRanks > 1 && segment_.values[whole].type.dtype != strategy_.wire)
      wire = emitCast(ops, block, whole, pred, "G.");
    if (strategy_.shardsState)
      return emitReduceScatter(ops, block, wire, pred);
    if (strategy_.dataRanks > 1)
      emitAllReduce(ops, block, wire, whole, pred);
  }

  /// To the type in which gradients are sent; the result's name begins with `prefix`.
  ValueId emitCast(std::vector<Op> &ops, uint32_t block, ValueId gradient, plan::Pred pred,
                   const char *prefix) {
    Op cast = plan::makeOp(OpKind::Cast, {gradient}, plan_.blocks[block].unit, blocks_.loc());
    cast.pred = pred;
    cast.phase = plan::Phase::Backward;
    Type type = segment_.values[gradient].type;
    type.dtype = strategy_.wire;
    cast.results = {plan::addValue(segment_, prefix + plan_.blocks[block].name + ".wire", type,
                                   plan::Purpose::Comm)};
    ValueId result = cast.results[0];
    ops.push_back(std::move(cast));
    return result;
  }

  void emitReduceScatter(std::vector<Op> &ops, uint32_t block, ValueId wire, plan::Pred pred) {
    Op reduce = blocks_.make(OpKind::ReduceScatter, wire, block, plan::Phase::Backward);
    reduce.pred = pred;
    uint32_t cell = blocks_.gradShardCell(block);
    ValueId shard = plan::addValue(segment_, "gs." + plan_.blocks[block].name,
                                   role_.cells[cell].type, plan::Purpose::Grads);
    reduce.results = {shard};
    if (strategy_.shardsGrads && strategy_.microbatches > 1) {
      ValueId sum =
          plan::addLiveIn(segment_, "gs." + plan_.blocks[block].name + ".sum", role_, cell);
      reduce.ties.push_back({plan::Tie::Acc, 0, sum, plan::Pred::NotFirst});
    }
    ops.push_back(std::move(reduce));
    if (strategy_.accumulatesLocally())
      segment_.outs.push_back({shard, cell});
    else
      setOut(blocks_.gradCell(block), cell, shard);
    if (blocks_.hasCopies())
      reduceShard(ops, block, shard, pred);
  }

  /// Adds what the groups of shards have summed, each by itself, once all microbatches are in it.
  void reduceShard(std::vector<Op> &ops, uint32_t block, ValueId shard, plan::Pred before) {
    bool isEach = before == plan::Pred::Always && strategy_.microbatches > 1;
    plan::Pred pred = isEach ? plan::Pred::Last : before;
    uint32_t cell = blocks_.gradShardCell(block);
    bool isCast = role_.cells[cell].type.dtype != strategy_.wire;
    ValueId wire = isCast ? emitCast(ops, block, shard, pred, "gs.") : shard;
    bool isDivided = strategy_.dividesShards();
    Op sum = blocks_.make(isDivided ? OpKind::ReduceScatter : OpKind::AllReduce, wire, block,
                          plan::Phase::Backward, Scope::Shard);
    sum.pred = pred;
    Type type = segment_.values[wire].type;
    if (isDivided)
      type = Type::of(strategy_.mainGrads, {plan_.blocks[block].stateShard});
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
      segment_.outs.push_back({reduced, addReducedCell(block, type, plan::Arena::Sym)});
    }
    ops.push_back(std::move(reduce));
  }

  plan::Plan &plan_;
  plan::Role &role_;
  plan::Segment &segment_;
  BlockCollectives &blocks_;
  const Strategy &strategy_;
};

} // namespace

void reduceGradients(plan::Plan &plan, plan::Role &role, plan::Segment &segment,
                     BlockCollectives &blocks) {
  GradientReducer(plan, role, segment, blocks).run();
}

} // namespace shardc::passes
