// Loads of experts, and losses of routers. Rows are divided into G equal parts, one after the
// other; the member's index determines which of all rows it has.
//
// clang-format off
//   expert_load         ids i32[T,K] -> load f32[G,E], which may accumulate
//   router_loss         logits f32[T,E], load f32[G,E] -> losses f32[T]
//   router_loss_bwd     logits, load, state? -> dlogits f32[T,E]
//   router_z_loss       logits f32[T,E] -> losses f32[T]
//   router_z_loss_bwd   logits, state? -> dlogits f32[T,E]
//   tally               x f32[R,C], n f32[1]? -> sums f32[slots,C], which may accumulate
//   running_mean        total f32 -> mean f32
//   expert_bias.update  bias f32[R,E], load f32[R,E] -> bias in its place
// clang-format on
//
// Sums are fp64, rounded once; Ops.def has the formulas. Limited by memory.
#include <algorithm>
#include <cmath>

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Loss.h"
#include "kernels/host/Router.h"
#include "kernels/host/Rows.h"

namespace shardc::kernels::host {
namespace {

/// Maps rows of a call to parts.
struct PartsOfRows {
  int64_t first, size; ///< index of the member's first row among all rows, and rows per part

  PartsOfRows(const Call &call, int64_t rows, const Tensor &load)
      : first(call.index * rows), size(rows * call.groupSize / load.shape[0]) {}
  int64_t of(int64_t row) const { return (first + row) / size; }
};

// ---- expert_load ----

/// Counts the choices of each expert, apart for each part of the rows. Choices that were dropped
/// have no expert.
void runExpertLoad(const Call &call) {
  const Tensor &ids = call.in[0], &load = call.out[0];
  const int32_t *id = static_cast<const int32_t *>(ids.data);
  float *counts = static_cast<float *>(load.data);
  int64_t experts = load.shape[1], choices = ids.shape[1];
  PartsOfRows parts(call, ids.shape[0], load);
  if (!load.accumulate)
    std::fill_n(counts, load.numel(), 0.0f);
  for (int64_t i = 0; i < ids.numel(); ++i)
    if (id[i] >= 0 && id[i] < experts)
      counts[parts.of(i / choices) * experts + id[i]] += 1;
}

// ---- router_loss ----

struct Buffers {
  double *shares, *grads; ///< shares of a row's experts, and their gradients

  Buffers(const Call &call, Scratch &scratch) {
    shares = scratch.take<double>(call.in[0].cols());
    grads = scratch.take<double>(call.in[0].cols());
  }
};

const char *acceptsScore(const Call &call) {
  SHARDC_REQUIRE(call.attrs.score >= kRouterSoftmax && call.attrs.score <= kRouterSqrtSoftplus,
                 "the score is none of the three");
  return nullptr;
}

const float *rowOf(const Tensor &matrix, int64_t row) {
  return static_cast<const float *>(matrix.data) + row * matrix.cols();
}

/// Computes the shares of n experts; returns the divisor of their scores.
double setShares(int64_t score, const float *logits, int64_t n, double *shares) {
  if (score == kRouterSoftmax) {
    softmax(logits, n, shares);
    return 1;
  }
  double divisor = kRouterEps;
  for (int64_t e = 0; e < n; ++e)
    divisor += shares[e] = routerScore(score, logits[e]);
  for (int64_t e = 0; e < n; ++e)
    shares[e] /= divisor;
  return divisor;
}

/// The loss of a row is the sum over experts of their load times the row's share of them.
void runRouterLoss(const Call &call, const Buffers &buffers) {
  const Tensor &logits = call.in[0], &load = call.in[1];
  PartsOfRows parts(call, logits.rows(), load);
  for (int64_t t = 0, experts = logits.cols(); t < logits.rows(); ++t) {
    const float *ofPart = rowOf(load, parts.of(t));
    setShares(call.attrs.score, rowOf(logits, t), experts, buffers.shares);
    double loss = 0;
    for (int64_t e = 0; e < experts; ++e)
      loss += static_cast<double>(ofPart[e]) * buffers.shares[e];
    static_cast<float *>(call.out[0].data)[t] = static_cast<float>(call.attrs.scale * loss);
  }
}

void runRouterLossBwd(const Call &call, const Buffers &buffers) {
  const Tensor &logits = call.in[0], &load = call.in[1];
  PartsOfRows parts(call, logits.rows(), load);
  double factor = call.attrs.scale * static_cast<double>(lossScale(call, 2));
  for (int64_t t = 0, experts = logits.cols(); t < logits.rows(); ++t) {
    const float *row = rowOf(logits, t), *ofPart = rowOf(load, parts.of(t));
    double divisor = setShares(call.attrs.score, row, experts, buffers.shares), mean = 0;
    for (int64_t e = 0; e < experts; ++e)
      mean += static_cast<double>(ofPart[e]) * buffers.shares[e];
    for (int64_t e = 0; e < experts; ++e) {
      double change = factor * (static_cast<double>(ofPart[e]) - mean), share = buffers.shares[e];
      double slope = call.attrs.score == kRouterSoftmax
                         ? share
                         : routerSlope(call.attrs.score, row[e], share * divisor) / divisor;
      static_cast<float *>(call.out[0].data)[t * experts + e] = static_cast<float>(change * slope);
    }
  }
}

// ---- router_z_loss ----

double logOfSum(const float *logits, int64_t n) {
  double largest = *std::max_element(logits, logits + n), total = 0;
  for (int64_t e = 0; e < n; ++e)
    total += std::exp(logits[e] - largest);
  return largest + std::log(total);
}

void runRouterZLoss(const Call &call) {
  const Tensor &logits = call.in[0];
  for (int64_t t = 0; t < logits.rows(); ++t) {
    double lse = logOfSum(rowOf(logits, t), logits.cols());
    static_cast<float *>(call.out[0].data)[t] = static_cast<float>(call.attrs.scale * lse * lse);
  }
}

/// The loss is lse², so its gradient is 2 · lse · softmax.
void runRouterZLossBwd(const Call &call, const Buffers &buffers) {
  const Tensor &logits = call.in[0];
  double factor = call.attrs.scale * static_cast<double>(lossScale(call, 1));
  for (int64_t t = 0, experts = logits.cols(); t < logits.rows(); ++t) {
    double lse = logOfSum(rowOf(logits, t), experts);
    softmax(rowOf(logits, t), experts, buffers.shares);
    for (int64_t e = 0; e < experts; ++e)
      static_cast<float *>(call.out[0].data)[t * experts + e] =
          static_cast<float>(factor * 2 * lse * buffers.shares[e]);
  }
}

// ---- state from one microbatch or step to the next ----

const char *acceptsTally(const Call &call) {
  SHARDC_REQUIRE(call.attrs.slot >= 0 && call.attrs.slot < call.attrs.slots,
                 "the slot is none of the slots");
  return nullptr;
}

/// Adds the scaled column sums of x to row `slot` of the result. With a second operand, the sums
/// are divided by it, but at least by 1.
void runTally(const Call &call) {
  const Tensor &x = call.in[0], &sums = call.out[0];
  int64_t cols = x.cols();
  float *all = static_cast<float *>(sums.data);
  double scale = call.attrs.scale;
  if (call.inCount > 1)
    scale /= std::max(static_cast<double>(*static_cast<const float *>(call.in[1].data)), 1.0);
  if (!sums.accumulate)
    std::fill_n(all, sums.numel(), 0.0f);
  for (int64_t c = 0; c < cols; ++c) {
    double total = 0;
    for (int64_t row = 0; row < x.rows(); ++row)
      total += static_cast<double>(rowOf(x, row)[c]);
    all[call.attrs.slot * cols + c] += static_cast<float>(scale * total);
  }
}

void runRunningMean(const Call &call) {
  const float *total = static_cast<const float *>(call.in[0].data);
  float *mean = static_cast<float *>(call.out[0].data);
  for (int64_t i = 0; i < call.in[0].numel(); ++i)
    mean[i] = total[i] / static_cast<float>(call.microbatch + 1);
}

const char *acceptsExpertBiasUpdate(const Call &call) {
  SHARDC_REQUIRE(call.attrs.experts > 0 && call.attrs.experts <= call.in[0].cols(),
                 "a row is not of so many experts");
  return nullptr;
}

/// Moves the bias of each expert by `rate` towards an even load. Only the direction counts.
void runExpertBiasUpdate(const Call &call) {
  const Tensor &load = call.in[1];
  float *bias = static_cast<float *>(call.out[0].data);
  auto rate = static_cast<float>(call.attrs.rate);
  for (int64_t row = 0, experts = call.attrs.experts; row < load.rows(); ++row) {
    const float *ofRow = rowOf(load, row);
    auto mean = static_cast<float>(sum(ofRow, experts) / static_cast<double>(experts));
    for (int64_t e = 0; e < experts; ++e)
      bias[row * load.cols() + e] += ofRow[e] < mean ? rate : ofRow[e] > mean ? -rate : 0.0f;
  }
}

} // namespace

SHARDC_HOST_KERNEL(ExpertLoad, runExpertLoad, nullptr, 1);
SHARDC_HOST_KERNEL(RouterLoss, withBuffers<runRouterLoss>, acceptsScore);
SHARDC_HOST_KERNEL(RouterLossBwd, withBuffers<runRouterLossBwd>, acceptsScore);
SHARDC_HOST_KERNEL(RouterZLoss, runRouterZLoss, acceptsScore);
SHARDC_HOST_KERNEL(RouterZLossBwd, withBuffers<runRouterZLossBwd>, acceptsScore);
SHARDC_HOST_KERNEL(Tally, runTally, acceptsTally, 1);
SHARDC_HOST_KERNEL(RunningMean, runRunningMean);
SHARDC_HOST_KERNEL(ExpertBiasUpdate, runExpertBiasUpdate, acceptsExpertBiasUpdate);

} // namespace shardc::kernels::host
