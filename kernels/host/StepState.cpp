// The ops on StepState, by the formulas of kernels/api/StepFormulas.h. They work in place. The cost
// is negligible: a few numbers per step.
#include "kernels/api/StepFormulas.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

namespace shardc::kernels::host {
namespace {

StepState &stateOf(const Call &call) { return *static_cast<StepState *>(call.out[0].data); }

template <typename T> const T *dataOf(const Tensor &t) { return static_cast<const T *>(t.data); }

const char *acceptsStepReset(const Call &call) {
  SHARDC_REQUIRE(call.attrs.loss_scale > 0, "the loss scale is not positive");
  return nullptr;
}

void runStepReset(const Call &call) { step::reset(call.attrs, stateOf(call)); }

/// Null, or the reason why the schedule's attributes define no learning rate or weight decay.
const char *checkSchedule(const Attrs &attrs) {
  SHARDC_REQUIRE(attrs.decay_style >= step::Constant && attrs.decay_style < step::DecayStyles,
                 "decay_style is not one of its enumerators");
  SHARDC_REQUIRE(attrs.warmup_steps >= 0, "warmup_steps is negative");
  SHARDC_REQUIRE(attrs.weight_decay_style >= step::DecayConstant &&
                     attrs.weight_decay_style < step::DecayStylesOfWeights,
                 "weight_decay_style is not one of its enumerators");
  SHARDC_REQUIRE(attrs.weight_decay_style == step::DecayConstant || attrs.weight_decay_steps > 0,
                 "weight_decay_steps is not positive");
  if (attrs.decay_style == step::Constant)
    return nullptr;
  SHARDC_REQUIRE(attrs.decay_steps > attrs.warmup_steps, "decay_steps is not above warmup_steps");
  if (attrs.decay_style != step::WarmupStableDecay)
    return nullptr;
  SHARDC_REQUIRE(attrs.wsd_decay_style >= step::FinalExponential &&
                     attrs.wsd_decay_style < step::FinalStyles,
                 "wsd_decay_style is not one of its enumerators");
  SHARDC_REQUIRE(attrs.wsd_decay_steps > 0, "wsd_decay_steps is not positive");
  return nullptr;
}

const char *acceptsStepBegin(const Call &call) { return checkSchedule(call.attrs); }

void runStepBegin(const Call &call) { step::begin(call.attrs, stateOf(call)); }

void addLosses(const Call &call, double &lossSum, double &tokens) {
  lossSum += sum(dataOf<float>(call.in[1]), call.in[1].numel());
  tokens += static_cast<double>(*dataOf<float>(call.in[2]));
}

void runLossAdd(const Call &call) { addLosses(call, stateOf(call).lossSum, stateOf(call).tokens); }

void runEvalAdd(const Call &call) {
  addLosses(call, stateOf(call).evalLossSum, stateOf(call).evalTokens);
}

const char *acceptsStepPack(const Call &call) {
  SHARDC_REQUIRE(isScalar(call.in[2], DType::I32), "the stop flag is not one i32");
  SHARDC_REQUIRE(call.attrs.loss_copies >= 1, "there are fewer than 1 copies of the losses");
  return nullptr;
}

void runStepPack(const Call &call) {
  step::pack(call.attrs, *dataOf<StepState>(call.in[0]), *dataOf<double>(call.in[1]),
             *dataOf<int32_t>(call.in[2]), static_cast<double *>(call.out[0].data));
}

const char *acceptsStepFinish(const Call &call) {
  SHARDC_REQUIRE(call.attrs.clip >= 0 && call.attrs.skip_above >= 0,
                 "the largest norm is negative");
  if (call.attrs.scaling == step::DynamicScaling)
    SHARDC_REQUIRE(call.attrs.growth_interval >= 1 && call.attrs.hysteresis >= 1 &&
                       call.attrs.min_scale > 0,
                   "growth_interval, hysteresis or min_scale is below its minimum");
  return nullptr;
}

void runStepFinish(const Call &call) {
  step::finish(call.attrs, dataOf<double>(call.in[1]), *dataOf<double>(call.in[2]), stateOf(call));
}

void runEvalBegin(const Call &call) {
  stateOf(call).evalLossSum = 0;
  stateOf(call).evalTokens = 0;
}

void runEvalPack(const Call &call) {
  const StepState &state = *dataOf<StepState>(call.in[0]);
  double *partial = static_cast<double *>(call.out[0].data);
  partial[0] = state.evalLossSum;
  partial[1] = state.evalTokens;
}

void runEvalFinish(const Call &call) {
  const double *partial = dataOf<double>(call.in[1]);
  stateOf(call).evalLoss = step::meanLoss(partial[0], partial[1]);
}

} // namespace

SHARDC_HOST_KERNEL(StepReset, runStepReset, acceptsStepReset);
SHARDC_HOST_KERNEL(StepBegin, runStepBegin, acceptsStepBegin);
SHARDC_HOST_KERNEL(LossAdd, runLossAdd);
SHARDC_HOST_KERNEL(StepPack, runStepPack, acceptsStepPack);
SHARDC_HOST_KERNEL(StepFinish, runStepFinish, acceptsStepFinish);
SHARDC_HOST_KERNEL(EvalBegin, runEvalBegin);
SHARDC_HOST_KERNEL(EvalAdd, runEvalAdd);
SHARDC_HOST_KERNEL(EvalPack, runEvalPack);
SHARDC_HOST_KERNEL(EvalFinish, runEvalFinish);

} // namespace shardc::kernels::host
