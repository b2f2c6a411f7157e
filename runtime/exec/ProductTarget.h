// Limits the multiprocessors of products that overlap NCCL's kernels, which occupy some of them. A
// product whose tiles fill all multiprocessors once would need a second wave. A product that is
// tiled for the remaining ones takes only a little longer.
#pragma once

#include "runtime/exec/Bind.h"

namespace shardc::exec {

/// The limit of one run, the same for all of its products.
struct ProductTarget {
  int32_t multiprocessors = 0; ///< multiprocessors that NCCL leaves free; 0: no limit
  int products = 1;            ///< number of products that execute during a collective
};

/// Limits products to the multiprocessors of the target. For each NCCL collective, it limits
/// `target.products` products after the op for which the collective waits, or fewer if an attention
/// or an op that waits for the collective comes first.
void limitProducts(const plan::Plan &plan, const plan::Segment &segment,
                   const ProductTarget &target, BoundSegment &bound);

} // namespace shardc::exec
