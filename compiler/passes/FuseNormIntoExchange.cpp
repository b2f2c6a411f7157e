// Sums the squares for the gradient norm where a shard is formed from exchanged pieces, instead of
// in another pass over it: the kernel that adds the pieces has every element at hand. The reduction
// gets the sum of squares as a second result, which a cell passes to `update`, like the shard; with
// several microbatches each reduction overwrites it, and the last one remains. Only for norms that
// read exactly the result of such a reduction: shards that other ops add to or reduce again, or
// that a library reduces, keep sum_squares.
#include <algorithm>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Execution.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;
using plan::ValueId;
using Key = plan::AttrKey;

class ExchangeFuser {
public:
  ExchangeFuser(const plan::Plan &plan, plan::Role &role) : plan_(plan), role_(role) {}

  void run() {
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i)
        if (role_.segments[s].ops[i].kind == OpKind::SumSquares)
          takeSums(s, i);
  }

private:
  void takeSums(uint32_t segment, uint32_t op) {
    size_t count = role_.segments[segment].ops[op].operands.size();
    for (size_t k = 0; k < count; ++k) {
      auto block = static_cast<size_t>(role_.segments[segment].ops[op].blocks[k].block);
      OpPlace reduction = soleMakerOf(role_, segment, role_.segments[segment].ops[op].operands[k]);
      if (reduction.op == plan::kNone || !isShard(reduction, block))
        continue;
      ValueId sum = addSquares(role_, reduction, "ss." + plan_.blocks[block].name,
                               {plan::CellKind::GradientSquares, block}, segment);
      role_.segments[segment].ops[op].operands[k] = sum;
    }
  }

  /// True if the op exchanges the block's gradient at least in the last microbatch, and does not
  /// sum its squares yet.
  bool isShard(OpPlace reduction, size_t block) const {
    const Segment &segment = role_.segments[reduction.segment];
    const Op &op = segment.ops[reduction.op];
    bool isLast = op.pred == plan::Pred::Always || op.pred == plan::Pred::Last;
    if (op.kind != OpKind::ReduceScatter || op.results.size() != 1 || !isLast)
      return false;
    const plan::Type &type =
        segment.values[plan::resultNamed<OpKind::ReduceScatter>(op, "shard")].type;
    return isComputeType(type.dtype) && op.getInt(Key::block) == static_cast<int64_t>(block) &&
           type.numel() == plan_.blocks[block].stateShard && plan::isExchanged(plan_, segment, op);
  }

  const plan::Plan &plan_;
  plan::Role &role_;
};

} // namespace

void runFuseNormIntoExchange(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    ExchangeFuser(plan, role).run();
}

} // namespace shardc::passes
