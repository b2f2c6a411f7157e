// The scales of DoRA. adapter_squares: q[o] = sum over i of (w[o,i] + scale·sum over j of
// b[o,j]·a[j,i])², w[O,I], b[O,J], a[J,I], q f32[O]. scale_columns: y[t,c] = x[t,c]·g[c], with
// g[c] = m[c]/root(q[c]); the root is rounded to m's type, so that a magnitude that is the root
// gives 1, and g is 0 where the root is 0. scale_columns_bwd: dx = dy·g, dm[c] = sum over t of
// dy·x/root, which may accumulate. Columns of parts that are not kept stay as they are, and have
// no dm. Data are f32, bf16 or f16 each; sums are fp64. Limited by memory.
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Parts.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

struct SquaresBuffers {
  float *factor, *row, *weight;
  double *sums;

  SquaresBuffers(const Call &call, Scratch &scratch) {
    factor = scratch.take<float>(call.in[2].numel());
    row = scratch.take<float>(call.in[2].shape[0]);
    weight = scratch.take<float>(call.in[0].shape[1]);
    sums = scratch.take<double>(call.in[0].shape[1]);
  }
};

SHARDC_CLONES void addMultiple(const float *a, double times, int64_t n, double *sums) {
  for (int64_t i = 0; i < n; ++i)
    sums[i] += times * static_cast<double>(a[i]);
}

/// Squared lengths of the rows of w + scale · b·a, without storing this sum.
void runSquares(const Call &call, const SquaresBuffers &buffers) {
  const Tensor &w = call.in[0], &b = call.in[1];
  int64_t columns = w.shape[1], rank = b.shape[1];
  const float *a = readF32(call.in[2], 0, call.in[2].numel(), buffers.factor);
  for (int64_t o = 0; o < w.shape[0]; ++o) {
    const float *row = readF32(b, o * rank, rank, buffers.row);
    const float *weight = readF32(w, o * columns, columns, buffers.weight);
    std::copy_n(weight, columns, buffers.sums);
    for (int64_t j = 0; j < rank; ++j)
      if (row[j] != 0)
        addMultiple(a + j * columns, call.attrs.scale * static_cast<double>(row[j]), columns,
                    buffers.sums);
    double squares = 0;
    for (int64_t i = 0; i < columns; ++i)
      squares += buffers.sums[i] * buffers.sums[i];
    static_cast<float *>(call.out[0].data)[o] = static_cast<float>(squares);
  }
}

/// The scales of columns, and 1/root for the gradient of magnitudes, 0 of columns without one.
struct Scales {
  float *scales, *inverses, *x, *y, *more;
  double *sums;

  Scales(const Call &call, Scratch &scratch) {
    int64_t columns = call.in[0].cols();
    for (float **buffer : {&scales, &inverses, &x, &y, &more})
      *buffer = scratch.take<float>(columns);
    sums = scratch.take<double>(columns);
  }

  void fill(const Call &call, const Tensor &m, const Tensor &squares) const {
    int64_t columns = m.numel();
    const float *magnitudes = readF32(m, 0, columns, x);
    for (int64_t c = 0; c < columns; ++c) {
      float root = roundedTo(m.dtype, std::sqrt(static_cast<const float *>(squares.data)[c]));
      bool isScaled = placeOfPart(call.attrs, c, columns) >= 0;
      inverses[c] = isScaled && root != 0 ? 1 / root : 0;
      scales[c] = !isScaled ? 1 : root != 0 ? magnitudes[c] / root : 0;
    }
  }
};

/// The same of both: rows of columns that form parts.
const char *acceptsColumns(const Call &call) { return checkParts(call.attrs, call.in[0].cols()); }

/// y = x, each column times its scale.
void runScale(const Call &call, const Scales &buffers) {
  buffers.fill(call, call.in[1], call.in[2]);
  const Tensor &x = call.in[0], &y = call.out[0];
  for (int64_t row = 0, n = x.cols(); row < x.rows(); ++row) {
    const float *from = readF32(x, row * n, n, buffers.x);
    float *to = targetF32(y, row * n, buffers.y);
    for (int64_t c = 0; c < n; ++c)
      to[c] = from[c] * buffers.scales[c];
    writeF32(y, row * n, n, to);
  }
}

void runScaleBwd(const Call &call, const Scales &buffers) {
  buffers.fill(call, call.in[2], call.in[3]);
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  int64_t n = x.cols();
  std::fill_n(buffers.sums, n, 0.0);
  for (int64_t row = 0; row < x.rows(); ++row) {
    const float *g = readF32(dy, row * n, n, buffers.more);
    addProducts(g, readF32(x, row * n, n, buffers.x), n, buffers.sums);
    for (int64_t c = 0; c < n; ++c)
      buffers.y[c] = g[c] * buffers.scales[c];
    writeF32(dx, row * n, n, buffers.y);
  }
  for (int64_t c = 0; c < n; ++c)
    buffers.sums[c] *= static_cast<double>(buffers.inverses[c]);
  writeSums(call.out[1], 0, n, buffers.sums, buffers.x);
}

} // namespace

SHARDC_HOST_KERNEL(AdapterSquares, withBuffers<runSquares>);
SHARDC_HOST_KERNEL(ScaleColumns, withBuffers<runScale>, acceptsColumns);
SHARDC_HOST_KERNEL(ScaleColumnsBwd, withBuffers<runScaleBwd>, acceptsColumns, 2);

} // namespace shardc::kernels::host
