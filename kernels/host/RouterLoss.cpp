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
#include "kernels/host/Scratch.h"

namespace shardc::kernels::host {
namespace {

/// Maps rows of a call to parts.
struct PartsOfRows {
  int64_t first, size; ///< index of the member's first row among all rows, and rows per part

  PartsOfRows(const Call &call, int64_t rows, const Tensor &load)
      : first(call.index * rows), size(rows * call.groupSize / load.shape[0]) {}
  int64_t of(int64_t row) const { return (first + row) / size; }
};

const char *checkLoad(const Call &call, int64_t rows, const Tensor &load) {
  SHARDC_REQUIRE(load.dtype == DType::F32 && load.rank == 2, "the load is not f32[G, E]");
  SHARDC_REQUIRE(rows * call.groupSize % load.shape[0] == 0,
                 "the rows do not consist of as many equal parts as the load has");
  return nullptr;
}

// ---- expert_load ----

const char *acceptsExpertLoad(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1, 1}));
  SHARDC_REQUIRE(call.in[0].dtype == DType::I32 && call.in[0].rank == 2, "ids are not i32[T, K]");
  return checkLoad(call, call.in[0].shape[0], call.out[0]);
}

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

const char *checkRows(const Call &call) {
  SHARDC_REQUIRE(call.in[0].dtype == DType::F32, "logits are not f32[T, E]");
  SHARDC_REQUIRE(call.attrs.score >= kRouterSoftmax && call.attrs.score <= kRouterSqrtSoftplus,
                 "the score is none of the three");
  return nullptr;
}

const char *checkRowsWithLoad(const Call &call) {
  SHARDC_REQUIRE_OK(checkRows(call));
  SHARDC_REQUIRE_OK(checkLoad(call, call.in[0].rows(), call.in[1]));
  SHARDC_REQUIRE(call.in[1].shape[1] == call.in[0].cols(), "the load is not of as many experts");
  return nullptr;
}

const char *checkLosses(const Call &call) {
  SHARDC_REQUIRE(call.out[0].dtype == DType::F32 && isVector(call.out[0], call.in[0].rows()),
                 "losses are not f32[T]");
  return nullptr;
}

const char *checkGradient(const Call &call) {
  SHARDC_REQUIRE(call.out[0].dtype == DType::F32 && sameShape(call.out[0], call.in[0]),
                 "the gradient has not the type of the logits");
  return nullptr;
}

const char *acceptsRouterLoss(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1}));
  SHARDC_REQUIRE_OK(checkRowsWithLoad(call));
  return checkLosses(call);
}

const char *acceptsRouterLossBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 3, 1, 1}));
  SHARDC_REQUIRE_OK(checkRowsWithLoad(call));
  SHARDC_REQUIRE_OK(checkScaleState(call, 2));
  return checkGradient(call);
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
void runRouterLoss(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
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

void runRouterLossBwd(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
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

const char *acceptsRouterZLoss(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  SHARDC_REQUIRE_OK(checkRows(call));
  return checkLosses(call);
}

const char *acceptsRouterZLossBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 2, 1, 1}));
  SHARDC_REQUIRE_OK(checkRows(call));
  SHARDC_REQUIRE_OK(checkScaleState(call, 1));
  return checkGradient(call);
}

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
void runRouterZLossBwd(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
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
  SHARDC_REQUIRE_OK(checkArity(call, {1, 2, 1, 1, 1}));
  const Tensor &x = call.in[0], &sums = call.out[0];
  SHARDC_REQUIRE(x.dtype == DType::F32, "x is not f32[R, C]");
  SHARDC_REQUIRE(call.inCount == 1 || isScalar(call.in[1], DType::F32), "n is not f32[1]");
  SHARDC_REQUIRE(sums.dtype == DType::F32 && sums.rank == 2 && sums.shape[1] == x.cols() &&
                     sums.shape[0] == call.attrs.slots,
                 "sums are not f32[slots, C]");
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

const char *acceptsRunningMean(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  SHARDC_REQUIRE(call.in[0].dtype == DType::F32 && call.out[0].dtype == DType::F32 &&
                     sameShape(call.out[0], call.in[0]),
                 "operand and result are not f32 of one shape");
  return nullptr;
}

void runRunningMean(const Call &call) {
  const float *total = static_cast<const float *>(call.in[0].data);
  float *mean = static_cast<float *>(call.out[0].data);
  for (int64_t i = 0; i < call.in[0].numel(); ++i)
    mean[i] = total[i] / static_cast<float>(call.microbatch + 1);
}

const char *acceptsExpertBiasUpdate(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1}));
  const Tensor &bias = call.in[0], &load = call.in[1];
  SHARDC_REQUIRE(bias.dtype == DType::F32 && bias.rank == 2, "the bias is not f32[R, E]");
  SHARDC_REQUIRE(load.dtype == DType::F32 && sameShape(load, bias), "the load is not f32[R, E]");
  SHARDC_REQUIRE(call.out[0].dtype == DType::F32 && sameShape(call.out[0], bias) &&
                     call.out[0].data == bias.data,
                 "the bias is not updated in place");
  SHARDC_REQUIRE(call.attrs.experts > 0 && call.attrs.experts <= bias.cols(),
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

const Kernel kExpertLoad = {"expert_load_host", runExpertLoad, acceptsExpertLoad};
const Kernel kRouterLoss = {"router_loss_host", runRouterLoss, acceptsRouterLoss,
                            workspaceOf<Buffers>};
const Kernel kRouterLossBwd = {"router_loss_bwd_host", runRouterLossBwd, acceptsRouterLossBwd,
                               workspaceOf<Buffers>};
const Kernel kRouterZLoss = {"router_z_loss_host", runRouterZLoss, acceptsRouterZLoss};
const Kernel kRouterZLossBwd = {"router_z_loss_bwd_host", runRouterZLossBwd, acceptsRouterZLossBwd,
                                workspaceOf<Buffers>};
const Kernel kTally = {"tally_host", runTally, acceptsTally};
const Kernel kRunningMean = {"running_mean_host", runRunningMean, acceptsRunningMean};
const Kernel kExpertBiasUpdate = {"expert_bias.update_host", runExpertBiasUpdate,
                                  acceptsExpertBiasUpdate};

} // namespace shardc::kernels::host
