// Computes the sum of squares for the gradient norm in grouped products, if these compute the
// gradients of all parameters of a block. This saves a pass over the gradients, which with experts
// are most of the model. Each product gets the sum of squares of its gradient as a second result,
// which `update` reads through a cell; with several microbatches, the last one remains. This
// applies only to norms that read the block as the products wrote it. Gradients that ranks reduce
// or replicate, that other ops compute or add to, and those of 8-bit products keep their op
// sum_squares.
#include <algorithm>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Segment;

bool canSquare(const Op &op, const plan::Type &gradient) {
  return op.kind == OpKind::GroupedMatMulBwd && op.getInt(Key::fp8_recipe) == 0 && isInLast(op) &&
         op.group < 0 && isComputeType(gradient.dtype);
}

/// Whether the op packs a block whose gradients are all computed by grouped products, at least in
/// the last microbatch.
bool packsProducts(const Segment &segment, const Op &op, int32_t block) {
  auto isProduct = [&](ValueId part) {
    const plan::Value &value = segment.values[part];
    return value.def != plan::kNone && value.defResult == 0 &&
           canSquare(segment.ops[value.def], value.type);
  };
  return op.kind == OpKind::Pack && op.getInt(Key::block) == block &&
         std::ranges::all_of(op.operands, isProduct);
}

/// The parameters of the block, in the block's order.
std::vector<const plan::Param *> paramsOf(const plan::Plan &plan, int32_t block) {
  std::vector<const plan::Param *> params;
  for (const plan::Param &param : plan.params)
    if (param.block == block)
      params.push_back(&param);
  std::ranges::sort(params, {}, &plan::Param::offset);
  return params;
}

/// The sums of squares of the packed gradients, in segment `reader`; empty if they do not cover the
/// whole block.
std::vector<ValueId> sumsOf(const plan::Plan &plan, plan::Role &role, OpPlace pack, int32_t index,
                            uint32_t reader) {
  Segment &segment = role.segments[pack.segment];
  const plan::Block &block = plan.blocks[static_cast<size_t>(index)];
  if (block.stateShard != block.numel || !packsProducts(segment, segment.ops[pack.op], index))
    return {};
  const std::vector<ValueId> parts = segment.ops[pack.op].operands;
  std::vector<const plan::Param *> params = paramsOf(plan, index);
  auto hasCopies = [](const plan::Param *param) { return !param->copies.empty(); };
  if (params.size() != parts.size() || std::ranges::any_of(params, hasCopies))
    return {};
  std::vector<ValueId> sums;
  for (size_t k = 0; k < parts.size(); ++k) {
    uint32_t product = segment.values[parts[k]].def;
    segment.ops[product].kind = OpKind::GroupedMatMulBwdSquares;
    sums.push_back(addSquares(role, {pack.segment, product}, "ss." + params[k]->name,
                              {plan::CellKind::Buffer}, reader));
  }
  return sums;
}

} // namespace

void runFuseNormIntoProducts(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    replaceSquared(role, [&](OpPlace pack, int32_t block, uint32_t reader) {
      return sumsOf(plan, role, pack, block, reader);
    });
}

} // namespace shardc::passes
