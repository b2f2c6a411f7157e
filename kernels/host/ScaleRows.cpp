// Weights of rows. scale_rows: y[r,:] = x[r,:]·weights[r]; x[R,C], weights[R,1], y[R,C]. dot_rows:
// y[r] = scale·(sum over c of a[r,c]·b[r,c]·w[c]); a[R,C], b[R,C], y[R,1], and w[C] (w + 1 if
// zero_centered), or no w. Leading dimensions are flattened to rows. Data are f32, bf16 or f16
// each; products are fp32, sums of dot_rows fp64, rounded once. Limited by memory.
#include "kernels/host/Norm.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

SHARDC_CLONES void scaleBlock(const float *x, float weight, int64_t n, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = x[i] * weight;
}

SHARDC_CLONES void multiply(const float *a, const float *w, int64_t n, float plus, float *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = a[i] * (w[i] + plus);
}

void runScaleRows(const Call &call) {
  float buffer[kBlock], scaled[kBlock], weight = 0;
  int64_t rows = call.out[0].rows(), cols = call.out[0].cols();
  for (int64_t row = 0; row < rows; ++row) {
    weight = *readF32(call.in[1], row, 1, &weight);
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * cols + begin;
      float *to = targetF32(call.out[0], offset, scaled);
      scaleBlock(readF32(call.in[0], offset, n, buffer), weight, n, to);
      writeF32(call.out[0], offset, n, to);
    }
  }
}

/// The dot product of each row of two matrices, of which the first may be multiplied by weights of
/// columns.
void runDotRows(const Call &call) {
  float a[kBlock], b[kBlock], w[kBlock], weighted[kBlock];
  int64_t rows = call.in[0].rows(), cols = call.in[0].cols();
  float plus = call.attrs.zero_centered ? 1.0f : 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * cols + begin;
      const float *first = readF32(call.in[0], offset, n, a);
      if (call.inCount > 2) {
        multiply(first, readF32(call.in[2], begin, n, w), n, plus, weighted);
        first = weighted;
      }
      sum += dot(first, readF32(call.in[1], offset, n, b), n);
    }
    auto product = static_cast<float>(sum * call.attrs.scale);
    writeF32(call.out[0], row, 1, &product);
  }
}

} // namespace

SHARDC_HOST_KERNEL(ScaleRows, runScaleRows);
SHARDC_HOST_KERNEL(DotRows, runDotRows);

} // namespace shardc::kernels::host
