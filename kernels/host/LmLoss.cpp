// lm_loss_grad: losses = cross_entropy(x·wᵀ), dx = dlogits·w and dw = dlogitsᵀ·x, which may
// accumulate, in chunks of chunk_rows rows (0: all at once), so that the full logits never exist;
// x[T,H], w[V,H]. x, w, dx, dw are f32, bf16 or f16 each. Logits and their gradients stay fp32;
// their rows use the functions of cross_entropy (Loss.h). Its steps would sum dw in another order.
// Limited by BLAS.
#include "kernels/host/Blas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Loss.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

enum Operand { X, W, Labels, Mask, N, State };

int64_t chunkRows(const Call &call) {
  int64_t rows = call.in[X].rows(), chunk = call.attrs.chunk_rows;
  return chunk == 0 ? rows : std::min(rows, chunk);
}

struct Buffers {
  float *x, *w, *logits, *dx, *dw;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t chunk = chunkRows(call), hidden = call.in[W].cols(), vocabulary = call.in[W].shape[0];
    x = scratch.takeUnlessF32(call.in[X], chunk * hidden);
    w = scratch.takeUnlessF32(call.in[W], vocabulary * hidden);
    logits = scratch.take<float>(chunk * vocabulary);
    dx = scratch.takeUnlessF32(call.out[1], chunk * hidden);
    // Chunks are summed before they are added to an accumulating dw: old + contribution. The buffer
    // is always taken, so that all microbatches of a step need the same workspace.
    dw = scratch.take<float>(call.outCount > 2 ? call.in[W].numel() : 0);
  }
};

const char *acceptsLmLossGrad(const Call &call) {
  SHARDC_REQUIRE(call.in[X].rows() < (int64_t{1} << 31), "x is not [T, H] with T below 2^31");
  SHARDC_REQUIRE(call.attrs.chunk_rows >= 0, "chunk_rows is negative");
  return checkColumns(call, call.in[W].shape[0]);
}

/// Computes the logits of rows [begin, end) and their losses, and replaces the logits by their
/// gradients.
void lossesOfChunk(const Call &call, const float *x, const float *w, int64_t begin, int64_t end,
                   float *logits) {
  int64_t hidden = call.in[W].cols(), cols = call.in[W].shape[0];
  Columns columns(call, cols);
  const int32_t *labels = static_cast<const int32_t *>(call.in[Labels].data);
  const float *mask = static_cast<const float *>(call.in[Mask].data);
  float *losses = static_cast<float *>(call.out[0].data);
  float n = *static_cast<const float *>(call.in[N].data);
  float scale = lossScale(call, State);
  auto cap = static_cast<float>(call.attrs.soft_cap);
  gemm(end - begin, cols, hidden, 1.0f, {x, hidden}, {w, hidden, true}, 0.0f, logits, cols);
  for (int64_t row = begin; row < end; ++row) {
    float *logit = logits + (row - begin) * cols;
    if (cap > 0)
      capLogits(logit, cols, cap, logit);
    float lse = lseOfRow(logit, columns.valid);
    losses[row] = lossOfRow(logit, columns.valid, lse, labels[row], mask[row]);
    gradientOfRow(logit, columns, lse, labels[row], gradientFactor(call.attrs, scale, mask[row], n),
                  cap, logit);
  }
}

/// The logits exist for one chunk of rows at a time.
void runLmLossGrad(const Call &call, const Buffers &buffers) {
  const Tensor &dx = call.out[1];
  const Tensor *dw = call.outCount > 2 ? &call.out[2] : nullptr; // null if w is not trained
  int64_t rows = call.in[X].rows(), hidden = call.in[X].cols(), chunk = chunkRows(call);
  int64_t cols = call.in[W].shape[0];
  const float *w = readF32(call.in[W], 0, call.in[W].numel(), buffers.w);
  float *sums = dw ? targetF32(*dw, 0, buffers.dw) : nullptr;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    int64_t end = std::min(begin + chunk, rows), offset = begin * hidden;
    const float *x = readF32(call.in[X], offset, (end - begin) * hidden, buffers.x);
    lossesOfChunk(call, x, w, begin, end, buffers.logits);
    if (dw)
      gemm(cols, hidden, end - begin, 1.0f, {buffers.logits, cols, true}, {x, hidden},
           begin == 0 ? 0.0f : 1.0f, sums, hidden);
    float *to = targetF32(dx, offset, buffers.dx);
    gemm(end - begin, hidden, cols, 1.0f, {buffers.logits, cols}, {w, hidden}, 0.0f, to, hidden);
    writeF32(dx, offset, (end - begin) * hidden, to);
  }
  if (dw)
    writeF32(*dw, 0, dw->numel(), sums);
}

} // namespace

SHARDC_HOST_KERNEL(LmLossGrad, withBuffers<runLmLossGrad>, acceptsLmLossGrad, 4);

} // namespace shardc::kernels::host
