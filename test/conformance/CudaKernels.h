// The few kernels that the suite needs, in CUDA.
#pragma once

#include "kernels/api/Kernel.h"

namespace shardc::conformance {

void addValueOnDevice(const kernels::Call &call);
void writeStepOnDevice(const kernels::Call &call);

} // namespace shardc::conformance
