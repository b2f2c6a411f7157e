// The ops on StepState: counters, learning rates, weight decay, sums of losses and tokens, gradient
// norm and clipping factor. They work in place; sums are fp64. A norm or loss that is not finite
// sets nonfinite and halt, and the update does not count as applied; with a dynamic loss scale, it
// sets only nonfinite. A skipped update, for that reason or because the norm exceeds skip_above,
// sets skip. Gradients are multiplied by the loss scale, so norm and update divide by it. The cost
// is negligible: a few numbers per step.
#include "runtime/base/StepState.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Schedule.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

/// Enumerators have the order of the words of scaling in Attrs.def.
enum Scaling { None, Constant, Dynamic };

StepState &stateOf(const Call &call) { return *static_cast<StepState *>(call.out[0].data); }

template <typename T> const T *dataOf(const Tensor &t) { return static_cast<const T *>(t.data); }

/// The mean loss per token. If no token counts, the sum itself, which is then 0 unless something is
/// wrong.
double meanLoss(double lossSum, double tokens) { return tokens > 0 ? lossSum / tokens : lossSum; }

const char *acceptsStateAlone(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  return checkState(call, 0);
}

const char *acceptsStepReset(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {0, 0, 1, 1}));
  SHARDC_REQUIRE(call.attrs.loss_scale > 0, "the loss scale is not positive");
  return checkStateSize(call.out[0]);
}

void runStepReset(const Call &call) {
  StepState &state = stateOf(call);
  state = StepState{};
  state.lossScale = static_cast<float>(call.attrs.loss_scale);
  state.hysteresisTracker = static_cast<int32_t>(call.attrs.hysteresis);
}

const char *acceptsStepBegin(const Call &call) {
  SHARDC_REQUIRE_OK(acceptsStateAlone(call));
  return checkSchedule(call.attrs);
}

void runStepBegin(const Call &call) {
  StepState &state = stateOf(call);
  ++state.step;
  state.lossSum = 0;
  state.tokens = 0;
  int64_t counted = call.attrs.step_samples > 0 ? state.samples : state.applied;
  state.lr = static_cast<float>(learningRate(call.attrs, counted));
  state.decoupledLr = static_cast<float>(decoupledRate(call.attrs, counted));
  state.weightDecay = static_cast<float>(weightDecay(call.attrs, counted));
}

const char *acceptsLosses(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 1, 1}));
  SHARDC_REQUIRE_OK(checkState(call, 0));
  SHARDC_REQUIRE(call.in[1].dtype == DType::F32, "losses are not f32");
  SHARDC_REQUIRE(isScalar(call.in[2], DType::F32), "the token count is not one f32");
  return nullptr;
}

void addLosses(const Call &call, double &lossSum, double &tokens) {
  lossSum += sum(dataOf<float>(call.in[1]), call.in[1].numel());
  tokens += static_cast<double>(*dataOf<float>(call.in[2]));
}

void runLossAdd(const Call &call) { addLosses(call, stateOf(call).lossSum, stateOf(call).tokens); }

void runEvalAdd(const Call &call) {
  addLosses(call, stateOf(call).evalLossSum, stateOf(call).evalTokens);
}

const char *acceptsStepPack(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 1, 1}));
  SHARDC_REQUIRE_OK(checkStateSize(call.in[0]));
  SHARDC_REQUIRE(isScalar(call.in[1], DType::F64), "the sum of squares is not one f64");
  SHARDC_REQUIRE(isScalar(call.in[2], DType::I32), "the stop flag is not one i32");
  SHARDC_REQUIRE(call.out[0].dtype == DType::F64 && isVector(call.out[0], kStepPartialCount),
                 "the partial sums are not f64[4]");
  SHARDC_REQUIRE(call.attrs.loss_copies >= 1, "there are fewer than 1 copies of the losses");
  return nullptr;
}

void runStepPack(const Call &call) {
  const StepState &state = *dataOf<StepState>(call.in[0]);
  double *partial = static_cast<double *>(call.out[0].data);
  partial[0] = call.attrs.norm_replicated ? 0.0 : *dataOf<double>(call.in[1]);
  partial[1] = state.lossSum / static_cast<double>(call.attrs.loss_copies);
  partial[2] = state.tokens / static_cast<double>(call.attrs.loss_copies);
  partial[3] = *dataOf<int32_t>(call.in[2]) != 0 ? 1.0 : 0.0;
}

const char *acceptsStepFinish(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 1, 1}));
  SHARDC_REQUIRE_OK(checkState(call, 0));
  SHARDC_REQUIRE(call.in[1].dtype == DType::F64 && isVector(call.in[1], kStepPartialCount),
                 "the partial sums are not f64[4]");
  SHARDC_REQUIRE(isScalar(call.in[2], DType::F64), "the sum of squares is not one f64");
  SHARDC_REQUIRE(call.attrs.clip >= 0 && call.attrs.skip_above >= 0,
                 "the largest norm is negative");
  if (call.attrs.scaling == Dynamic)
    SHARDC_REQUIRE(call.attrs.growth_interval >= 1 && call.attrs.hysteresis >= 1 &&
                       call.attrs.min_scale > 0,
                   "growth_interval, hysteresis or min_scale is below its minimum");
  return nullptr;
}

/// Megatron's DynamicGradScaler; with a hysteresis of 1, PyTorch's GradScaler. As in the latter,
/// the scale does not grow beyond the range of f32.
void updateLossScale(const Attrs &attrs, bool isFinite, StepState &state) {
  if (!isFinite) {
    state.growthTracker = 0;
    if (--state.hysteresisTracker <= 0)
      state.lossScale = std::max(state.lossScale * 0.5f, static_cast<float>(attrs.min_scale));
    return;
  }
  if (++state.growthTracker < attrs.growth_interval)
    return;
  state.growthTracker = 0;
  state.hysteresisTracker = static_cast<int32_t>(attrs.hysteresis);
  if (std::isfinite(state.lossScale * 2.0f))
    state.lossScale *= 2.0f;
}

/// Computes the mean loss, the gradient norm and the clipping factor, and decides whether the
/// update is skipped. `partial` has sums over all ranks: squares, losses, tokens, requests to stop.
void runStepFinish(const Call &call) {
  StepState &state = stateOf(call);
  const Attrs &attrs = call.attrs;
  const double *partial = dataOf<double>(call.in[1]);
  double squares = attrs.norm_replicated ? *dataOf<double>(call.in[2]) : partial[0];
  double gradientTokens = attrs.per_token ? std::max(partial[2], 1.0) : 1.0;
  state.totalTokens = partial[2];
  state.loss = meanLoss(partial[1], partial[2]);
  double divisor = gradientTokens * (attrs.scaling == None ? 1.0 : state.lossScale);
  state.gradNorm = static_cast<float>(std::sqrt(squares) / divisor);
  bool isFinite = std::isfinite(state.gradNorm) && std::isfinite(state.loss);
  // A halt persists: the host may have enqueued further steps, which must not change the state.
  state.halt |= !isFinite && attrs.scaling != Dynamic;
  state.nonfinite = state.halt || !isFinite;
  state.stop = partial[3] != 0;
  // As in Megatron, the clipping factor never increases gradients.
  double factor = attrs.clip > 0 ? attrs.clip / (static_cast<double>(state.gradNorm) + 1e-6) : 1.0;
  state.gradScale = static_cast<float>(std::min(factor, 1.0) / divisor);
  bool isLarge = attrs.skip_above > 0 && state.gradNorm > attrs.skip_above;
  state.skip = state.nonfinite || isLarge;
  if (!state.skip) {
    ++state.applied;
    state.samples += attrs.step_samples;
  }
  if (attrs.scaling == Dynamic)
    updateLossScale(attrs, isFinite, state);
}

void runEvalBegin(const Call &call) {
  stateOf(call).evalLossSum = 0;
  stateOf(call).evalTokens = 0;
}

const char *acceptsEvalPack(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  SHARDC_REQUIRE_OK(checkStateSize(call.in[0]));
  SHARDC_REQUIRE(call.out[0].dtype == DType::F64 && isVector(call.out[0], kEvalPartialCount),
                 "the partial sums are not f64[2]");
  return nullptr;
}

void runEvalPack(const Call &call) {
  const StepState &state = *dataOf<StepState>(call.in[0]);
  double *partial = static_cast<double *>(call.out[0].data);
  partial[0] = state.evalLossSum;
  partial[1] = state.evalTokens;
}

const char *acceptsEvalFinish(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1}));
  SHARDC_REQUIRE_OK(checkState(call, 0));
  SHARDC_REQUIRE(call.in[1].dtype == DType::F64 && isVector(call.in[1], kEvalPartialCount),
                 "the partial sums are not f64[2]");
  return nullptr;
}

void runEvalFinish(const Call &call) {
  const double *partial = dataOf<double>(call.in[1]);
  stateOf(call).evalLoss = meanLoss(partial[0], partial[1]);
}

} // namespace

const Kernel kStepReset = {"step_reset_host", runStepReset, acceptsStepReset};
const Kernel kStepBegin = {"step_begin_host", runStepBegin, acceptsStepBegin};
const Kernel kLossAdd = {"loss_add_host", runLossAdd, acceptsLosses};
const Kernel kStepPack = {"step_pack_host", runStepPack, acceptsStepPack};
const Kernel kStepFinish = {"step_finish_host", runStepFinish, acceptsStepFinish};
const Kernel kEvalBegin = {"eval_begin_host", runEvalBegin, acceptsStateAlone};
const Kernel kEvalAdd = {"eval_add_host", runEvalAdd, acceptsLosses};
const Kernel kEvalPack = {"eval_pack_host", runEvalPack, acceptsEvalPack};
const Kernel kEvalFinish = {"eval_finish_host", runEvalFinish, acceptsEvalFinish};

} // namespace shardc::kernels::host
