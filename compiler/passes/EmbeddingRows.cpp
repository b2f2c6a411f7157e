// Finds an embedding's lookups and the chain of ops that reduces its gradient, and replaces the
// chain by an exchange of rows.
#include "compiler/passes/EmbeddingRows.h"

#include <algorithm>

#include "compiler/passes/PlanNames.h"

namespace shardc::passes {

const plan::Param *tableOf(const plan::Plan &plan, uint32_t block) {
  const plan::Param *table = nullptr;
  for (const plan::Param &param : plan.params) {
    if (param.block != static_cast<int32_t>(block))
      continue;
    if (table != nullptr)
      return nullptr;
    table = &param;
  }
  bool holdsRows = table != nullptr && table->type.rank == 2 &&
                   table->offset % table->rowSize() == 0 &&
                   plan.blocks[block].shard % table->rowSize() == 0;
  return holdsRows ? table : nullptr;
}

bool mustAgreeToTheBit(const plan::Plan &plan, const BlockStrategy &strategy) {
  return strategy.params == DType::F32 || plan.job.model.deterministicMode;
}

std::optional<GradientChain> gradientChain(const plan::Segment &segment, const plan::Users &users,
                                           uint32_t pack) {
  auto soleUser = [&](const Op &op) {
    return users.count(op.results[0]) == 1 ? *users.begin(op.results[0]) : plan::kNone;
  };
  const Op &whole = segment.ops[pack];
  if (whole.operands.size() != 1 || users.count(whole.operands[0]) != 1)
    return std::nullopt;
  GradientChain chain{.lookups = segment.values[whole.operands[0]].def, .pack = pack};
  if (chain.lookups == plan::kNone || segment.ops[chain.lookups].kind != OpKind::EmbeddingBwd ||
      segment.ops[chain.lookups].group >= 0)
    return std::nullopt;
  uint32_t next = soleUser(whole);
  if (next != plan::kNone && segment.ops[next].kind == OpKind::Cast) {
    chain.cast = next;
    next = soleUser(segment.ops[next]);
  }
  chain.reduction = next;
  if (next == plan::kNone || segment.ops[next].kind != OpKind::ReduceScatter)
    return std::nullopt;
  return chain;
}

plan::Type RowGathers::typeOfAll(ValueId value) const {
  plan::Type type = segment_.values[value].type;
  type.shape[0] *= strategy_.ranks;
  return type;
}

ValueId RowGathers::gather(ValueId value, plan::Phase phase) {
  for (const Op &op : ops_)
    if (op.kind == OpKind::AllGather && op.operands[0] == value && op.group == like_.group &&
        op.channel == like_.channel && op.pred == plan::Pred::Always)
      return op.results[0];
  Op gather = plan::makeOp(OpKind::AllGather, {value}, like_.unit, like_.loc);
  gather.phase = phase;
  gather.group = like_.group, gather.channel = like_.channel;
  gather.results = {
      plan::addValue(segment_, nameOfAll(value), typeOfAll(value), plan::Purpose::Comm)};
  ops_.push_back(gather);
  return gather.results[0];
}

/// The name of the gathered value. It gets a suffix if another table has already gathered the same
/// value, for an op in a later position.
std::string RowGathers::nameOfAll(ValueId value) const {
  std::string name = segment_.values[value].name + ".all";
  while (std::ranges::find(segment_.values, name, &plan::Value::name) != segment_.values.end())
    name += ".first";
  return name;
}

Op sumOfRows(RowGathers &gathers, const std::vector<Op> &ops, const GradientChain &chain,
             uint32_t block, const BlockStrategy &strategy) {
  const Op &gradient = ops[chain.lookups], &reduction = ops[chain.reduction];
  ValueId ids = gathers.gather(gradient.operands[plan::operandIndex<OpKind::EmbeddingBwd>("ids")],
                               gradient.phase);
  ValueId dx = gathers.gather(gradient.operands[plan::operandIndex<OpKind::EmbeddingBwd>("dx")],
                              gradient.phase);
  Op sum = plan::makeOp(OpKind::EmbeddingShardBwd, {dx, ids}, gradient.unit, gradient.loc);
  sum.phase = gradient.phase;
  sum.set(Key::block, static_cast<int64_t>(block));
  double scale = chain.cast == plan::kNone ? 1 : ops[chain.cast].getFloat(Key::scale);
  if (reduction.getBool(Key::average))
    scale /= static_cast<double>(strategy.ranks);
  sum.set(Key::scale, scale);
  sum.pred = reduction.pred, sum.ties = reduction.ties, sum.results = reduction.results;
  return sum;
}

} // namespace shardc::passes
