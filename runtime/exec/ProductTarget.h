// NCCL's kernels hold multiprocessors while they run. A product that is cut into one wave for all
// of them then takes two; one that is cut for those that are left takes a little longer, once.
#pragma once

#include "runtime/exec/Bind.h"

namespace shardc::exec {

struct ProductTarget {
  int32_t multiprocessors = 0; ///< that NCCL leaves; 0: nothing is done
  int products = 1;            ///< that a collective takes as long as
};

/// Cuts the products behind what an NCCL collective waits for, so many or up to the next attention,
/// for the multiprocessors that are left.
void limitProducts(const plan::Segment &segment, const ProductTarget &target, BoundSegment &bound);

} // namespace shardc::exec
