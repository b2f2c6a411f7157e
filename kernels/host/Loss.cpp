// cross_entropy: lse[t] = log(sum over the valid columns of exp(logits[t,:])), losses[t] =
// mask[t]·(lse[t] - logits[t,labels[t]]). cross_entropy_bwd: dlogits =
// loss_scale·mask/max(n,1)·(softmax - onehot), without the division if per_token, times the step
// state's loss scale if the call has a state. With a soft cap c, c·tanh(x/c) replaces each logit x
// in these formulas. Logits are f32, bf16 or f16, labels i32, everything else f32. In a group, the
// logits of cross_entropy_bwd are this member's part of equal parts of the columns. Limited by exp.
#include "kernels/host/Loss.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "runtime/base/StepState.h"

#include <cmath>
#include <limits>

namespace shardc::kernels::host {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool isValid(int32_t label, int64_t valid) { return label >= 0 && label < valid; }

} // namespace

int64_t validCols(const Call &call, int64_t cols) {
  return call.attrs.valid_cols == 0 ? cols * call.groupSize : call.attrs.valid_cols;
}

void capLogits(const float *logits, int64_t n, float cap, float *to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = cap * std::tanh(logits[i] / cap);
}

float *takeLogits(const Call &call, Scratch &scratch) {
  int64_t cols = call.in[0].cols();
  return call.attrs.soft_cap > 0 ? scratch.take<float>(cols)
                                 : scratch.takeUnlessF32(call.in[0], cols);
}

const float *readLogits(const Call &call, int64_t row, float *buffer) {
  int64_t cols = call.in[0].cols();
  const float *logits = readF32(call.in[0], row * cols, cols, buffer);
  if (call.attrs.soft_cap <= 0)
    return logits;
  capLogits(logits, cols, static_cast<float>(call.attrs.soft_cap), buffer);
  return buffer;
}

/// Exponentials are relative to the largest logit, so that none overflows.
Exponentials exponentialsOfRow(const float *logits, int64_t valid) {
  float top = largest(logits, valid);
  float exponentials[kBlock];
  double total = 0;
  for (int64_t begin = 0; begin < valid; begin += kBlock) {
    int64_t n = std::min(kBlock, valid - begin);
    for (int64_t i = 0; i < n; ++i)
      exponentials[i] = std::exp(logits[begin + i] - top);
    total += sum(exponentials, n);
  }
  return {top, total};
}

float lseOfRow(const float *logits, int64_t valid) {
  Exponentials row = exponentialsOfRow(logits, valid);
  return static_cast<float>(static_cast<double>(row.largest) + std::log(row.sum));
}

float lossOfRow(const float *logits, int64_t valid, float lse, int32_t label, float mask) {
  float target = isValid(label, valid) ? logits[label] : mask == 0.0f ? lse : kNan;
  return mask * (lse - target);
}

float lossScale(const Call &call, int state) {
  auto scale = static_cast<float>(call.attrs.loss_scale);
  if (call.inCount <= state)
    return scale;
  return scale * static_cast<const StepState *>(call.in[state].data)->lossScale;
}

float gradientFactor(const Attrs &attrs, float scale, float mask, float n) {
  float factor = scale * mask;
  return attrs.per_token ? factor : factor / std::max(n, 1.0f);
}

void gradientOfRow(const float *logits, const Columns &columns, float lse, int32_t label,
                   float factor, float cap, float *d) {
  if (factor != 0.0f && !columns.isValid(label))
    factor = kNan;
  int64_t valid = columns.validHere();
  auto slopeAt = [&](int64_t i) { // slope of the soft cap
    float share = logits[i] / cap;
    return 1.0f - share * share;
  };
  bool isHere = columns.has(label), isCapped = cap > 0;
  float ofLabel = isHere && isCapped ? factor * slopeAt(label - columns.first) : factor;
  for (int64_t i = 0; i < valid; ++i) {
    float slope = isCapped ? slopeAt(i) : 1.0f;
    d[i] = factor * std::exp(logits[i] - lse) * slope;
  }
  std::fill(d + valid, d + columns.count, 0.0f);
  if (isHere)
    d[label - columns.first] -= ofLabel;
}

const char *checkColumns(const Call &call, int64_t cols) {
  SHARDC_REQUIRE(call.attrs.valid_cols >= 0 && call.attrs.valid_cols <= cols * call.groupSize,
                 "valid_cols is not from 0 to the columns of the logits");
  return nullptr;
}
const char *acceptsLogits(const Call &call) { return checkColumns(call, call.in[0].cols()); }

namespace {

struct Buffers {
  float *logits, *dlogits;

  Buffers(const Call &call, Scratch &scratch) {
    logits = takeLogits(call, scratch);
    dlogits = scratch.take<float>(call.in[0].cols());
  }
};

void runCrossEntropy(const Call &call, const Buffers &buffers) {
  const Tensor &logits = call.in[0];
  const int32_t *labels = static_cast<const int32_t *>(call.in[1].data);
  const float *mask = static_cast<const float *>(call.in[2].data);
  float *losses = static_cast<float *>(call.out[0].data);
  float *lse = static_cast<float *>(call.out[1].data);
  int64_t cols = logits.cols(), valid = validCols(call, cols);
  for (int64_t row = 0, rows = logits.rows(); row < rows; ++row) {
    const float *x = readLogits(call, row, buffers.logits);
    lse[row] = lseOfRow(x, valid);
    losses[row] = lossOfRow(x, valid, lse[row], labels[row], mask[row]);
  }
}

void runCrossEntropyBwd(const Call &call, const Buffers &buffers) {
  const Tensor &logits = call.in[0], &dlogits = call.out[0];
  const float *lse = static_cast<const float *>(call.in[1].data);
  const int32_t *labels = static_cast<const int32_t *>(call.in[2].data);
  const float *mask = static_cast<const float *>(call.in[3].data);
  float n = *static_cast<const float *>(call.in[4].data), scale = lossScale(call, 5);
  int64_t cols = logits.cols();
  Columns columns(call, cols);
  for (int64_t row = 0, rows = logits.rows(); row < rows; ++row) {
    const float *x = readLogits(call, row, buffers.logits);
    float *to = targetF32(dlogits, row * cols, buffers.dlogits);
    gradientOfRow(x, columns, lse[row], labels[row],
                  gradientFactor(call.attrs, scale, mask[row], n),
                  static_cast<float>(call.attrs.soft_cap), to);
    writeF32(dlogits, row * cols, cols, to);
  }
}

} // namespace

SHARDC_HOST_KERNEL(CrossEntropy, withBuffers<runCrossEntropy>, acceptsLogits);
SHARDC_HOST_KERNEL(CrossEntropyBwd, withBuffers<runCrossEntropyBwd>, acceptsLogits);

} // namespace shardc::kernels::host
