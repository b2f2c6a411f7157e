// Grouped products of factors that the kernels bring to 8 bits themselves, as `fp8_recipe` says.
#pragma once

#include "kernels/host/Runs.h"

namespace shardc::kernels::host {

/// The rows of a run of all slots, the other factor, and their product, in fp32.
struct Float8Buffers {
  Runs runs;
  float *a, *b, *c;

  /// Of grouped_matmul, grouped_matmul_scaled, or the gradient.
  Float8Buffers(const Call &call, Scratch &scratch);
};

/// Null, or why the recipe, or the magnitudes that factors are expected to have, from operand
/// `amax` on, are none.
const char *checkFloat8(const Call &call, int amax);

void runGroupedFloat8(const Call &call);
void runGroupedScaled(const Call &call);
void runGroupedFloat8Bwd(const Call &call);

} // namespace shardc::kernels::host
