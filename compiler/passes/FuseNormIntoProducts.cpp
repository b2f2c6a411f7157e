// Sums the squares for the gradient norm where products of runs make the gradients of all
// parameters of a block, instead of in another pass over them: with experts these are most of the
// model. Each product gets the sum of squares of its gradient as a second result, which a cell
// passes to `update`; with several microbatches the last one remains. Only for norms that read the
// block as the products left it: gradients that ranks reduce, that other ops add to or make, and
// those of which ranks have copies keep sum_squares, and so do products in 8 bits.
#include <algorithm>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;
using plan::ValueId;
using Key = plan::AttrKey;

class ProductFuser {
public:
  ProductFuser(const plan::Plan &plan, plan::Role &role) : plan_(plan), role_(role) {}

  void run() {
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i)
        if (role_.segments[s].ops[i].kind == OpKind::SumSquares)
          takeSums(s, i);
  }

private:
  void takeSums(uint32_t segment, uint32_t op) {
    const Op before = role_.segments[segment].ops[op];
    std::vector<ValueId> operands;
    std::vector<plan::ListedBlock> blocks;
    for (size_t k = 0; k < before.operands.size(); ++k) {
      OpPlace pack = soleMakerOf(role_, segment, before.operands[k]);
      std::vector<ValueId> sums = {before.operands[k]};
      if (pack.op != plan::kNone && isOfProducts(pack, before.blocks[k].block))
        sums = sumsOf(pack, segment);
      operands.insert(operands.end(), sums.begin(), sums.end());
      blocks.insert(blocks.end(), sums.size(), before.blocks[k]);
    }
    role_.segments[segment].ops[op].operands = std::move(operands);
    role_.segments[segment].ops[op].blocks = std::move(blocks);
  }

  /// True if the op packs the whole block of this rank, of what products of runs make at least in
  /// the last microbatch.
  bool isOfProducts(OpPlace pack, int32_t index) const {
    const Segment &segment = role_.segments[pack.segment];
    const Op &op = segment.ops[pack.op];
    const plan::Block &block = plan_.blocks[static_cast<size_t>(index)];
    std::vector<const plan::Param *> params = paramsOf(index);
    auto hasCopies = [](const plan::Param *param) { return !param->copies.empty(); };
    auto isProduct = [&](ValueId part) {
      const plan::Value &value = segment.values[part];
      return value.def != plan::kNone && value.defResult == 0 &&
             canSquare(segment.ops[value.def], value.type);
    };
    return op.kind == OpKind::Pack && op.getInt(Key::block) == index &&
           block.stateShard == block.numel && params.size() == op.operands.size() &&
           std::ranges::all_of(op.operands, isProduct) && std::ranges::none_of(params, hasCopies);
  }

  static bool canSquare(const Op &op, const plan::Type &gradient) {
    bool isLast = op.pred == plan::Pred::Always || op.pred == plan::Pred::Last;
    return op.kind == OpKind::GroupedMatMulBwd && op.getInt(Key::fp8_recipe) == 0 && isLast &&
           op.group < 0 && isComputeType(gradient.dtype);
  }

  /// In the order in which the block has them.
  std::vector<const plan::Param *> paramsOf(int32_t block) const {
    std::vector<const plan::Param *> params;
    for (const plan::Param &param : plan_.params)
      if (param.block == block)
        params.push_back(&param);
    std::ranges::sort(params, {}, &plan::Param::offset);
    return params;
  }

  /// The sums of squares of what is packed, in the segment `reader`.
  std::vector<ValueId> sumsOf(OpPlace pack, uint32_t reader) {
    Segment &segment = role_.segments[pack.segment];
    const std::vector<ValueId> parts = segment.ops[pack.op].operands;
    std::vector<const plan::Param *> params =
        paramsOf(static_cast<int32_t>(segment.ops[pack.op].getInt(Key::block)));
    std::vector<ValueId> sums;
    for (size_t k = 0; k < parts.size(); ++k) {
      uint32_t product = segment.values[parts[k]].def;
      segment.ops[product].kind = OpKind::GroupedMatMulBwdSquares;
      sums.push_back(addSquares(role_, {pack.segment, product}, "ss." + params[k]->name,
                                {plan::CellKind::Buffer}, reader));
    }
    return sums;
  }

  const plan::Plan &plan_;
  plan::Role &role_;
};

} // namespace

void runFuseNormIntoProducts(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    ProductFuser(plan, role).run();
}

} // namespace shardc::passes
