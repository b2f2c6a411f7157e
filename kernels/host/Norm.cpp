#include "kernels/host/Norm.h"

namespace shardc::kernels::host {

const float *normWeight(const Call &call, const Tensor &weight, float *buffer) {
  int64_t n = weight.numel();
  const float *stored = readF32(weight, 0, n, buffer);
  if (!call.attrs.zero_centered)
    return stored;
  for (int64_t i = 0; i < n; ++i)
    buffer[i] = stored[i] + 1.0f;
  return buffer;
}

} // namespace shardc::kernels::host
