// Limits the multiprocessors of products that overlap NCCL's kernels, which occupy some. A product
// cut into one wave for all then takes two waves; one cut for the rest takes only a little longer.
#pragma once

#include "runtime/exec/Bind.h"

namespace shardc::exec {

struct ProductTarget {
  int32_t multiprocessors = 0; ///< that NCCL leaves free; 0: no limit
  int products = 1;            ///< number of products during which a collective runs
};

/// Limits the products after the op that an NCCL collective waits for, this many or up to the next
/// attention, to the remaining multiprocessors.
void limitProducts(const plan::Plan &plan, const plan::Segment &segment,
                   const ProductTarget &target, BoundSegment &bound);

} // namespace shardc::exec
