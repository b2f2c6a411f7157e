// Finds, for each NCCL collective, the matrix products that are likely to run at the same time.
#include "runtime/exec/ProductTarget.h"

#include <algorithm>

namespace shardc::exec {
namespace {

bool isOf(const plan::Op &op, plan::CostClass cost) { return plan::opInfo(op).work.cost == cost; }

/// The last compute op for which the collective waits.
size_t startOf(const BoundSegment &bound, size_t collective) {
  size_t start = 0;
  bool isFound = false;
  for (uint32_t awaited : bound.ops[collective].waits)
    if (bound.ops[awaited].stream == plan::kComputeStream) {
      start = std::max<size_t>(start, awaited);
      isFound = true;
    }
  return isFound ? start : collective;
}

} // namespace

/// Counts from the op for which the collective waits, and limits at most `target.products` products
/// on the compute stream. An attention op ends the search, since it runs so long that the
/// collective has ended before the next product. Collectives on the copy engines occupy no
/// multiprocessors and are skipped.
void limitProducts(const plan::Plan &plan, const plan::Segment &segment,
                   const ProductTarget &target, BoundSegment &bound) {
  if (target.multiprocessors == 0)
    return;
  for (size_t i = 0; i < bound.ops.size(); ++i) {
    const BoundOp &collective = bound.ops[i];
    if (collective.kind != BoundOp::Collective || collective.channel->size() < 2 ||
        plan.transportOf(segment.ops[i]) == plan::Transport::Ce)
      continue;
    int left = target.products;
    for (size_t j = startOf(bound, i) + 1; j < bound.ops.size() && left > 0; ++j) {
      BoundOp &op = bound.ops[j];
      if (op.kind != BoundOp::Kernel || op.stream != plan::kComputeStream)
        continue;
      if (isOf(segment.ops[j], plan::CostClass::Attention))
        break;
      if (isOf(segment.ops[j], plan::CostClass::Product)) {
        op.call->multiprocessors = target.multiprocessors;
        --left;
      }
    }
  }
}

} // namespace shardc::exec
