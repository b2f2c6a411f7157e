// Finds, for each NCCL collective, the matrix products that are likely to run at the same time.
#include "runtime/exec/ProductTarget.h"

#include <algorithm>

#include "runtime/base/SmallCollectives.h"

namespace shardc::exec {
namespace {

bool isOf(const plan::Op &op, plan::CostClass cost) { return plan::opInfo(op).work.cost == cost; }

bool isSmall(const hal::Collective &collective) {
  return collective.count * dtypeBytes(collective.inType) <= kSmallCollectiveBytes;
}

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

/// Whether the op waits until the collective has ended. Ops of a stream end in order.
bool waitsFor(const BoundSegment &bound, const BoundOp &op, size_t collective) {
  return std::ranges::any_of(op.waits, [&](uint32_t awaited) {
    return awaited >= collective && bound.ops[awaited].stream == bound.ops[collective].stream;
  });
}

} // namespace

/// Counts from the op for which the collective waits, and limits at most `target.products` products
/// on the compute stream. An op that waits for the collective ends the search, and so does an
/// attention op, since it runs so long that the collective has ended before the next product.
/// Collectives on the copy engines occupy no multiprocessors, and small ones only one, so they are
/// skipped.
void limitProducts(const plan::Plan &plan, const plan::Segment &segment,
                   const ProductTarget &target, BoundSegment &bound) {
  if (target.multiprocessors == 0)
    return;
  for (size_t i = 0; i < bound.ops.size(); ++i) {
    const BoundOp &collective = bound.ops[i];
    if (collective.kind != BoundOp::Collective || collective.channel->size() < 2 ||
        plan.transportOf(segment.ops[i]) == plan::Transport::Ce || isSmall(collective.collective))
      continue;
    int left = target.products;
    for (size_t j = startOf(bound, i) + 1; j < bound.ops.size() && left > 0; ++j) {
      BoundOp &op = bound.ops[j];
      if (op.kind != BoundOp::Kernel || op.stream != plan::kComputeStream)
        continue;
      if (isOf(segment.ops[j], plan::CostClass::Attention) || waitsFor(bound, op, i))
        break;
      if (isOf(segment.ops[j], plan::CostClass::Product)) {
        op.call->multiprocessors = target.multiprocessors;
        --left;
      }
    }
  }
}

} // namespace shardc::exec
