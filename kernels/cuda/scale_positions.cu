// scale_positions: y = x·(1 + position_slope·log(1 + floor((s + 1) / position_step))) for
// x[B,S,heads,D] at position s, or at the given position. Data are f32, bf16 or f16 each, the
// factor is f32. Mapping: a thread processes a chunk of 8 elements at one position and computes its
// factor. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

struct ScalePositionsOp {
  Data x, y;
  const int32_t *given; ///< positions of rows, or null
  int64_t positions, cols, step;
  float slope;

  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    int64_t position = given ? given[row] : row % positions;
    float factor = log1pf(static_cast<float>((position + 1) / step)) * slope + 1.0f;
    float v[kChunk];
    load8<M>(x, row * cols + c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] *= factor;
    store8<M>(y, row * cols + c, n, v);
  }
};

void runScalePositions(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  int64_t rows = x.shape[0] * x.shape[1], cols = x.shape[2] * x.shape[3];
  ScalePositionsOp op = {dataOf(x),
                         dataOf(y),
                         call.inCount > 1 ? static_cast<const int32_t *>(call.in[1].data) : nullptr,
                         x.shape[1],
                         cols,
                         call.attrs.position_step,
                         static_cast<float>(call.attrs.position_slope)};
  launchRows(call, modeOf({&x, &y}, cols), op, rows, cols);
}

} // namespace

SHARDC_KERNEL(ScalePositions, acceptsAs, runScalePositions);

} // namespace shardc::kernels::cuda
