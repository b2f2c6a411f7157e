// Grouped products whose kernels quantise the operands to 8 bits, as `fp8_recipe` specifies.
#pragma once

#include "kernels/host/RowGroups.h"

namespace shardc::kernels::host {

/// Scratch buffers in fp32 for one group: its rows from all slots (a), the other operand (b), and
/// their product (c).
struct Float8Buffers {
  RowGroups groups;
  float *a, *b, *c;

  /// The buffers of a grouped_matmul, grouped_matmul_scaled, or gradient call.
  Float8Buffers(const Call &call, Scratch &scratch);
};

/// Null, or the reason why the fp8 recipe, or the amaxes of the operands from operand `amax` on,
/// are invalid.
const char *checkFloat8(const Call &call, int amax);

void runGroupedFloat8(const Call &call);
void runGroupedScaled(const Call &call);
void runGroupedFloat8Bwd(const Call &call);

} // namespace shardc::kernels::host
