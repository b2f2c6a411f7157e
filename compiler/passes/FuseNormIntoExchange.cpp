// Computes the sum of squares for the gradient norm in the reduction that forms a shard from
// exchanged pieces, which saves a pass over the shard: the kernel that adds the pieces has every
// element at hand. The reduction gets the sum of squares as a second result, which `update` reads
// through a cell, like the shard. With several microbatches, each reduction overwrites the cell, so
// the last one remains. This applies only to norms that read exactly the result of such a
// reduction. Shards that other ops add to, that are reduced again, or that a library reduces keep
// their op sum_squares.
#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Execution.h"

namespace shardc::passes {
namespace {

using plan::Segment;

/// Whether the op exchanges the block's gradient at least in the last microbatch, and does not
/// compute the sum of squares yet.
bool isShard(const plan::Plan &plan, const plan::Role &role, OpPlace reduction, int32_t block) {
  const Segment &segment = role.segments[reduction.segment];
  const Op &op = segment.ops[reduction.op];
  if (op.kind != OpKind::ReduceScatter || op.results.size() != 1 || !isInLast(op))
    return false;
  const plan::Type &type =
      segment.values[plan::resultNamed<OpKind::ReduceScatter>(op, "shard")].type;
  return isComputeType(type.dtype) && op.getInt(plan::AttrKey::block) == block &&
         type.numel() == plan.blocks[static_cast<size_t>(block)].stateShard &&
         plan::isExchanged(plan, segment, op);
}

} // namespace

void runFuseNormIntoExchange(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    replaceSquared(role, [&](OpPlace reduction, int32_t index, uint32_t reader) {
      if (!isShard(plan, role, reduction, index))
        return std::vector<plan::ValueId>{};
      auto block = static_cast<size_t>(index);
      return std::vector{addSquares(role, reduction, "ss." + plan.blocks[block].name,
                                    {plan::CellKind::GradientSquares, block}, reader)};
    });
}

} // namespace shardc::passes
