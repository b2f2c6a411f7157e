// l2norm over the last dimension, a norm without weights: rstd[t] = 1/sqrt(mean(x[t,:]²) + eps), y
// = x·rstd. Backward, with h = x·rstd: dx = rstd·(dy - h·mean(dy·h)). Data are f32, bf16 or f16
// each, rstd is f32; sums over a row are fp64. Limited by memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"

#include <cmath>

namespace shardc::kernels::host {
namespace {

struct Buffers {
  float *x, *dy, *to;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    for (float **buffer : {&x, &dy, &to})
      *buffer = scratch.take<float>(cols);
  }
};

/// y = x / sqrt(mean(x²) + eps), without a weight.
void runL2Norm(const Call &call, const Buffers &buffers) {
  const Tensor &x = call.in[0], &y = call.out[0];
  float *rstd = static_cast<float *>(call.out[1].data);
  for (int64_t row = 0, rows = x.rows(), n = x.cols(); row < rows; ++row) {
    const float *from = readF32(x, row * n, n, buffers.x);
    double meanSquare = dot(from, from, n) / static_cast<double>(n);
    rstd[row] = static_cast<float>(1.0 / std::sqrt(meanSquare + call.attrs.eps));
    float *to = targetF32(y, row * n, buffers.to);
    for (int64_t i = 0; i < n; ++i)
      to[i] = from[i] * rstd[row];
    writeF32(y, row * n, n, to);
  }
}

/// dx = rstd · (dy - h · mean(dy · h)), with h = x · rstd.
void runL2NormBwd(const Call &call, const Buffers &buffers) {
  const float *rstd = static_cast<const float *>(call.in[2].data);
  for (int64_t row = 0, rows = call.in[1].rows(), n = call.in[1].cols(); row < rows; ++row) {
    const float *dy = readF32(call.in[0], row * n, n, buffers.dy);
    const float *x = readF32(call.in[1], row * n, n, buffers.x);
    double product = dot(dy, x, n) * static_cast<double>(rstd[row]);
    auto mean = static_cast<float>(product / static_cast<double>(n));
    for (int64_t i = 0; i < n; ++i)
      buffers.to[i] = rstd[row] * (dy[i] - x[i] * rstd[row] * mean);
    writeF32(call.out[0], row * n, n, buffers.to);
  }
}

} // namespace

const Kernel kL2Norm = kernelOf<OpKind::L2Norm>(withBuffers<runL2Norm>);
const Kernel kL2NormBwd = kernelOf<OpKind::L2NormBwd>(withBuffers<runL2NormBwd>);

} // namespace shardc::kernels::host
