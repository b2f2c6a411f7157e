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

using plan::kNone;
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
  /// Where a shard is formed.
  struct Reduction {
    uint32_t segment = kNone, op = kNone;
  };

  void takeSums(uint32_t segment, uint32_t op) {
    size_t count = role_.segments[segment].ops[op].operands.size();
    for (size_t k = 0; k < count; ++k) {
      auto block = static_cast<size_t>(role_.segments[segment].ops[op].blocks[k].block);
      Reduction reduction = reductionOf(segment, role_.segments[segment].ops[op].operands[k]);
      if (reduction.op == kNone || !isShard(reduction, block))
        continue;
      ValueId sum = addSum(reduction, block, segment);
      role_.segments[segment].ops[op].operands[k] = sum;
    }
  }

  /// The reduction whose result a segment receives as `value`, if nothing else fills the cell.
  Reduction reductionOf(uint32_t segment, ValueId value) const {
    uint32_t cell = kNone;
    for (const Segment::Boundary &in : role_.segments[segment].ins)
      if (in.value == value)
        cell = in.cell;
    Reduction found;
    int fills = 0;
    for (uint32_t s = 0; s < role_.segments.size() && cell != kNone; ++s)
      for (const Segment::Boundary &out : role_.segments[s].outs)
        if (out.cell == cell) {
          found = {s, role_.segments[s].values[out.value].def};
          ++fills;
        }
    return fills == 1 ? found : Reduction{};
  }

  /// True if the op exchanges the block's gradient at least in the last microbatch, and does not
  /// sum its squares yet.
  bool isShard(Reduction reduction, size_t block) const {
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

  /// The sum of squares in the segment `reader`.
  ValueId addSum(Reduction reduction, size_t block, uint32_t reader) {
    std::string name = "ss." + plan_.blocks[block].name;
    plan::Type type = plan::Type::of(DType::F64, {1});
    uint32_t cell = addCell(role_, name, {plan::CellKind::GradientSquares, block}, type,
                            plan::Arena::Work, plan::Purpose::Step);
    Segment &segment = role_.segments[reduction.segment];
    ValueId sum = plan::addValue(segment, name, type, plan::Purpose::Step);
    segment.ops[reduction.op].results.push_back(sum);
    // Squares are formed with each sum, and only those that the last microbatch forms are read.
    segment.outs.push_back({sum, cell, segment.ops[reduction.op].pred != plan::Pred::Last});
    plan::renumber(segment);
    return plan::addLiveIn(role_.segments[reader], name, role_, cell);
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
