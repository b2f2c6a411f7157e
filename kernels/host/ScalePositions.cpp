// scale_positions: y = x·(1 + position_slope·log(1 + floor((s + 1) / position_step))) for
// x[B,S,heads,D] at position s, or at the row's position in positions i32[B,S], if given. The
// factor is fp32. Data are f32, bf16 or f16 each, rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

const char *acceptsScalePositions(const Call &call) {
  SHARDC_REQUIRE(call.attrs.position_step >= 1, "position_step is not at least 1");
  return nullptr;
}

void runScalePositions(const Call &call) {
  float buffer[kBlock], scaled[kBlock];
  const Tensor &x = call.in[0], &y = call.out[0];
  const auto *given = call.inCount > 1 ? static_cast<const int32_t *>(call.in[1].data) : nullptr;
  auto slope = static_cast<float>(call.attrs.position_slope);
  int64_t length = x.shape[2] * x.shape[3]; // elements per position
  for (int64_t row = 0, rows = x.shape[0] * x.shape[1]; row < rows; ++row) {
    int64_t position = given != nullptr ? given[row] : row % x.shape[1];
    int64_t steps = (position + 1) / call.attrs.position_step;
    float factor = std::log1p(static_cast<float>(steps)) * slope + 1.0f;
    for (int64_t begin = 0; begin < length; begin += kBlock) {
      int64_t n = std::min(kBlock, length - begin), offset = row * length + begin;
      const float *from = readF32(x, offset, n, buffer);
      for (int64_t i = 0; i < n; ++i)
        scaled[i] = from[i] * factor;
      writeF32(y, offset, n, scaled);
    }
  }
}

} // namespace

SHARDC_HOST_KERNEL(ScalePositions, runScalePositions, acceptsScalePositions);

} // namespace shardc::kernels::host
