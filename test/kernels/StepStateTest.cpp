// The ops on a step's state, and the learning rate schedules, compared with their formulas.
#include "test/kernels/Harness.h"

#include "kernels/api/StepFormulas.h"
#include "kernels/host/Registry.h"
#include "runtime/base/StepState.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numbers>
#include <string>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

Tensor vectorOf(DType dtype, void *data, int64_t n) {
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = 1;
  tensor.shape[0] = n;
  return tensor;
}

/// A state, with functions that run the ops on it.
struct Fixture {
  alignas(16) StepState state = {};
  double partial[kStepPartialCount] = {}, ss = 0;
  int32_t stop = 0;
  Attrs attrs;

  Tensor stateTensor() { return vectorOf(DType::U8, &state, sizeof state); }
  Tensor partialTensor() { return vectorOf(DType::F64, partial, kStepPartialCount); }

  /// Runs an op whose first operand is the state; its result is `result`, or else the state.
  void run(const char *op, std::vector<Tensor> operands, Tensor result = {}) {
    Call call;
    call.attrs = attrs;
    call.in[call.inCount++] = stateTensor();
    for (const Tensor &operand : operands)
      call.in[call.inCount++] = operand;
    call.out[call.outCount++] = result.data ? result : stateTensor();
    const Kernel *kernel = findHostKernel(op);
    ASSERT_NE(kernel, nullptr);
    const char *reason = kernel->accepts(call);
    ASSERT_EQ(reason, nullptr) << op << ": " << reason;
    kernel->run(call);
  }

  void add(const char *op, std::vector<float> losses, float tokens) {
    run(op, {vectorOf(DType::F32, losses.data(), static_cast<int64_t>(losses.size())),
             vectorOf(DType::F32, &tokens, 1)});
  }
  void pack() {
    run("step.pack", {vectorOf(DType::F64, &ss, 1), vectorOf(DType::I32, &stop, 1)},
        partialTensor());
  }
  void finish() { run("step.finish", {partialTensor(), vectorOf(DType::F64, &ss, 1)}); }
};

TEST(StepState, ResetClearsEverything) {
  StepState state;
  std::memset(&state, 0xff, sizeof state);
  Call call;
  call.out[call.outCount++] = vectorOf(DType::U8, &state, sizeof state);
  const Kernel *kernel = findHostKernel("step.reset");
  ASSERT_EQ(kernel->accepts(call), nullptr);
  kernel->run(call);
  StepState begun = {};
  begun.lossScale = 1;
  EXPECT_EQ(std::memcmp(&state, &begun, sizeof state), 0);
  call.attrs.loss_scale = 65536, call.attrs.hysteresis = 2;
  kernel->run(call);
  begun.lossScale = 65536, begun.hysteresisTracker = 2;
  EXPECT_EQ(std::memcmp(&state, &begun, sizeof state), 0);
}

TEST(StepState, AStepGoesThroughItsOps) {
  Fixture f;
  f.attrs.lr = 0.25;
  f.attrs.clip = 1.0;
  f.state.step = 4;
  f.state.applied = 3;
  f.state.lossSum = f.state.tokens = 99; // from the step before
  f.run("step.begin", {});
  EXPECT_EQ(f.state.step, 5);
  EXPECT_EQ(f.state.lr, 0.25f);
  f.add("loss.add", {1.5f, 2.0f, 0.0f}, 2);
  f.add("loss.add", {4.5f}, 1);
  EXPECT_EQ(f.state.lossSum, 8);
  EXPECT_EQ(f.state.tokens, 3);
  f.ss = 16;
  f.stop = 2;
  f.pack();
  EXPECT_EQ(f.partial[0], 16);
  EXPECT_EQ(f.partial[3], 1);
  for (double &value : f.partial)
    value *= 2; // like the sum over two ranks with equal numbers
  f.finish();
  EXPECT_EQ(f.state.gradNorm, static_cast<float>(std::sqrt(32.0)));
  EXPECT_EQ(f.state.gradScale, static_cast<float>(1 / (double{f.state.gradNorm} + 1e-6)));
  EXPECT_EQ(f.state.loss, 8.0 / 3);
  EXPECT_EQ(f.state.totalTokens, 6);
  EXPECT_EQ(f.state.applied, 4);
  EXPECT_EQ(f.state.stop, 1);
  EXPECT_EQ(f.state.nonfinite | f.state.halt, 0);
}

TEST(StepState, ClippingOnlyShrinks) {
  Fixture f;
  f.attrs.clip = 10;
  f.partial[0] = 9;
  f.partial[2] = 1;
  f.finish();
  EXPECT_EQ(f.state.gradNorm, 3);
  EXPECT_EQ(f.state.gradScale, 1);
  f.attrs.clip = 0;
  f.partial[0] = 1e20;
  f.finish();
  EXPECT_EQ(f.state.gradScale, 1);
}

TEST(StepState, PerTokenGradientsAreDividedByTheTokens) {
  Fixture f;
  f.attrs.per_token = true;
  f.attrs.clip = 0.25;
  f.partial[0] = 64;
  f.partial[1] = 40;
  f.partial[2] = 16;
  f.finish();
  EXPECT_EQ(f.state.gradNorm, 0.5f);
  EXPECT_EQ(f.state.gradScale, static_cast<float>(0.25 / (0.5 + 1e-6) / 16));
  EXPECT_EQ(f.state.loss, 2.5);
}

TEST(StepState, AReplicatedNormIsNotSummedOverRanks) {
  Fixture f;
  f.attrs.norm_replicated = true;
  f.ss = 25;
  f.pack();
  EXPECT_EQ(f.partial[0], 0);
  f.finish();
  EXPECT_EQ(f.state.gradNorm, 5);
}

TEST(StepState, AStepThatIsNotFiniteDoesNotApply) {
  for (int which : {0, 1}) {
    Fixture f;
    f.partial[2] = 1;
    f.partial[which] =
        which ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    f.finish();
    EXPECT_EQ(f.state.nonfinite & f.state.skip, 1);
    EXPECT_EQ(f.state.halt, 1);
    EXPECT_EQ(f.state.applied, 0);
  }
}

TEST(StepState, AHaltStays) {
  // The host may enqueue further steps before it reads that the run must halt.
  Fixture f;
  f.partial[0] = std::numeric_limits<double>::infinity();
  f.finish();
  f.partial[0] = 1;
  f.run("step.begin", {});
  f.finish();
  EXPECT_EQ(f.state.nonfinite, 1);
  EXPECT_EQ(f.state.halt, 1);
  EXPECT_EQ(f.state.applied, 0);
}

/// If batches grow, schedules count samples of applied updates, like Megatron's scheduler.
TEST(StepState, SamplesOfAppliedUpdatesAreCounted) {
  Fixture f;
  f.attrs.lr = 1.0;
  f.attrs.warmup_steps = 100;
  f.attrs.scaling = 2; // dynamic
  f.attrs.growth_interval = 1000;
  f.attrs.hysteresis = 1;
  f.attrs.min_scale = 1;
  f.state.lossScale = 1;
  f.state.applied = 50; // a schedule in samples ignores the number of updates
  f.partial[2] = 1;
  const float rates[] = {0.0f, 0.04f, 0.04f, 0.12f};
  const int64_t sizes[] = {4, 4, 8, 8};
  for (size_t step = 0; step < 4; ++step) {
    f.attrs.step_samples = sizes[step];
    f.run("step.begin", {});
    EXPECT_EQ(f.state.lr, rates[step]) << step;
    f.partial[0] = step == 1 ? std::numeric_limits<double>::infinity() : 1.0;
    f.finish();
  }
  EXPECT_EQ(f.state.samples, 20);
  EXPECT_EQ(f.state.applied, 53);
  f.attrs.step_samples = 0;
  f.run("step.begin", {});
  EXPECT_EQ(f.state.lr, 0.53f) << "the updates";
  f.finish();
  EXPECT_EQ(f.state.samples, 20);
}

/// Like Megatron's grad_norm_skip_threshold: skips steps whose norm is above the threshold, but not
/// equal to it.
TEST(StepState, AStepOfALargeNormIsLeftOut) {
  for (double norm : {3.0, 4.0, 5.0}) {
    Fixture f;
    f.attrs.skip_above = 4;
    f.partial[0] = norm * norm, f.partial[2] = 1;
    f.finish();
    bool isLarge = norm > 4;
    EXPECT_EQ(f.state.skip, isLarge ? 1 : 0) << norm;
    EXPECT_EQ(f.state.applied, isLarge ? 0 : 1) << norm;
    EXPECT_EQ(f.state.nonfinite | f.state.halt, 0) << norm;
    EXPECT_EQ(f.state.gradNorm, static_cast<float>(norm));
  }
}

enum Scaling { ConstantScale = 1, DynamicScale };

/// Only overflows change the loss scale.
TEST(StepState, ALargeNormIsNoOverflow) {
  Fixture f;
  f.attrs.scaling = DynamicScale, f.attrs.skip_above = 0.5;
  f.attrs.growth_interval = 1, f.attrs.hysteresis = 1, f.attrs.min_scale = 1;
  f.state.lossScale = 4;
  f.partial[0] = 64, f.partial[2] = 1;
  f.finish();
  EXPECT_EQ(f.state.skip, 1);
  EXPECT_EQ(f.state.lossScale, 8);
}

TEST(StepState, NormAndUpdateDivideByTheLossScale) {
  for (int scaling : {ConstantScale, DynamicScale}) {
    Fixture f;
    f.attrs.scaling = scaling, f.attrs.clip = 0.25, f.attrs.per_token = true;
    f.attrs.growth_interval = 10, f.attrs.hysteresis = 1, f.attrs.min_scale = 1;
    f.state.lossScale = 1024;
    f.partial[0] = 64.0 * 1024 * 1024, f.partial[2] = 16;
    f.finish();
    EXPECT_EQ(f.state.gradNorm, 0.5f);
    EXPECT_EQ(f.state.gradScale, static_cast<float>(0.25 / (0.5 + 1e-6) / 16 / 1024));
    EXPECT_EQ(f.state.lossScale, 1024);
  }
}

TEST(StepState, AConstantLossScaleStaysAndAnOverflowEndsTheRun) {
  Fixture f;
  f.attrs.scaling = ConstantScale;
  f.state.lossScale = 1024;
  f.partial[0] = std::numeric_limits<double>::infinity();
  f.finish();
  EXPECT_EQ(f.state.halt, 1);
  EXPECT_EQ(f.state.lossScale, 1024);
}

TEST(StepState, AnOverflowOfADynamicLossScaleSkipsTheStepOnly) {
  for (int which : {0, 1}) {
    Fixture f;
    f.attrs.scaling = DynamicScale;
    f.attrs.growth_interval = 2, f.attrs.hysteresis = 1, f.attrs.min_scale = 1;
    f.state.lossScale = 4;
    f.partial[which] = std::numeric_limits<double>::quiet_NaN();
    f.finish();
    EXPECT_EQ(f.state.nonfinite & f.state.skip, 1);
    EXPECT_EQ(f.state.halt, 0);
    EXPECT_EQ(f.state.applied, 0);
    EXPECT_EQ(f.state.lossScale, 2);
    f.partial[which] = 1;
    f.finish();
    EXPECT_EQ(f.state.nonfinite, 0);
    EXPECT_EQ(f.state.applied, 1);
  }
}

/// Compares 200 steps with PyTorch's GradScaler, and with Megatron's scaler with hysteresis.
TEST(StepState, TheLossScaleHasThePeersHistory) {
  std::ifstream file(SHARDC_LOSS_SCALES);
  ASSERT_TRUE(file);
  std::string word, overflows;
  int histories = 0;
  for (; file >> word && word == "history"; ++histories) {
    Fixture f;
    f.attrs.scaling = DynamicScale;
    file >> f.state.lossScale >> f.attrs.min_scale >> f.attrs.growth_interval >>
        f.attrs.hysteresis >> overflows;
    f.state.hysteresisTracker = static_cast<int32_t>(f.attrs.hysteresis);
    ASSERT_EQ(overflows.size(), 200u);
    int64_t applied = 0;
    for (char overflow : overflows) {
      f.partial[0] = overflow == '1' ? std::numeric_limits<double>::infinity() : 1.0;
      applied += overflow == '0';
      f.finish();
      float scale = 0;
      file >> scale;
      ASSERT_EQ(f.state.lossScale, scale) << "history " << histories << ", update " << applied;
    }
    EXPECT_EQ(f.state.applied, applied);
  }
  EXPECT_EQ(histories, 6);
}

TEST(StepState, AStepWithoutTokensHasNoLoss) {
  Fixture f;
  f.finish();
  EXPECT_EQ(f.state.loss, 0);
  EXPECT_EQ(f.state.nonfinite, 0);
}

TEST(StepState, AnEvaluationGoesThroughItsOps) {
  Fixture f;
  f.state.evalLossSum = f.state.evalTokens = 7;
  f.state.lossSum = 3;
  f.run("eval.begin", {});
  f.add("eval.add", {1, 2}, 2);
  f.add("eval.add", {3}, 1);
  double partial[2];
  Tensor tensor = vectorOf(DType::F64, partial, kEvalPartialCount);
  f.run("eval.pack", {}, tensor);
  EXPECT_EQ(partial[0], 6);
  EXPECT_EQ(partial[1], 3);
  f.run("eval.finish", {tensor});
  EXPECT_EQ(f.state.evalLoss, 2);
  EXPECT_EQ(f.state.lossSum, 3) << "training's sums are not touched";
}

enum Style { Constant, Linear, Cosine, InverseSquareRoot, Wsd };

Attrs schedule(Style style) {
  Attrs attrs;
  attrs.lr = 1.0;
  attrs.min_lr = 0.1;
  attrs.warmup_init_lr = 0.2;
  attrs.warmup_steps = 10;
  attrs.decay_steps = 110;
  attrs.decay_style = style;
  return attrs;
}

double rateAt(const Attrs &attrs, int64_t counted) {
  return step::learningRate(attrs, attrs.lr, attrs.min_lr, counted);
}

/// Why step.begin refuses these attributes; null if it does not.
const char *refusalOf(const Attrs &attrs) {
  Fixture f;
  Call call;
  call.attrs = attrs;
  call.in[call.inCount++] = call.out[call.outCount++] = f.stateTensor();
  return findHostKernel("step.begin")->accepts(call);
}

TEST(Schedule, WarmsUpFromTheFirstStepOn) {
  for (Style style : {Constant, Linear, Cosine, InverseSquareRoot, Wsd}) {
    Attrs attrs = schedule(style);
    EXPECT_DOUBLE_EQ(rateAt(attrs, 0), 0.2);
    EXPECT_DOUBLE_EQ(rateAt(attrs, 5), 0.6);
    EXPECT_DOUBLE_EQ(rateAt(attrs, 10), 1.0);
  }
}

TEST(Schedule, Decays) {
  EXPECT_EQ(rateAt(schedule(Constant), 1000), 1.0);
  EXPECT_DOUBLE_EQ(rateAt(schedule(Linear), 60), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(rateAt(schedule(Linear), 110), 0.1);
  EXPECT_DOUBLE_EQ(rateAt(schedule(Cosine), 35),
                   0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * 0.25)));
  EXPECT_DOUBLE_EQ(rateAt(schedule(InverseSquareRoot), 40), 0.5);
  EXPECT_DOUBLE_EQ(rateAt(schedule(InverseSquareRoot), 110), std::sqrt(1.0 / 11));
  for (Style style : {Linear, Cosine, InverseSquareRoot, Wsd}) {
    Attrs attrs = schedule(style);
    attrs.wsd_decay_steps = 20;
    EXPECT_EQ(rateAt(attrs, 111), 0.1);
  }
}

TEST(Schedule, InverseSquareRootStopsAtTheSmallestRate) {
  Attrs attrs = schedule(InverseSquareRoot);
  attrs.min_lr = 0.45;
  EXPECT_EQ(rateAt(attrs, 100), 0.45);
  attrs.warmup_steps = 0;
  EXPECT_EQ(rateAt(attrs, 0), 1.0);
}

TEST(Schedule, WarmupStableDecayEndsInItsOwnStyle) {
  Attrs attrs = schedule(Wsd);
  attrs.wsd_decay_steps = 20;
  EXPECT_DOUBLE_EQ(rateAt(attrs, 90), 1.0);
  const double wanted[] = {2 * std::pow(0.5, 0.25) - 1, 0.75,
                           0.5 * (1 + std::cos(std::numbers::pi * 0.25)), 0.5};
  for (int style = 0; style < 4; ++style) {
    attrs.wsd_decay_style = style;
    EXPECT_DOUBLE_EQ(rateAt(attrs, 95), 0.1 + 0.9 * wanted[style]) << style;
    EXPECT_NEAR(rateAt(attrs, 110), 0.1, 1e-12) << style;
  }
}

/// Weight decay follows Megatron's get_wd.
TEST(Schedule, WeightDecayGrowsOverTheRun) {
  Attrs attrs;
  attrs.start_weight_decay = 0.1, attrs.end_weight_decay = 0.5;
  attrs.weight_decay_steps = 20;
  EXPECT_EQ(step::weightDecay(attrs, 10), 0) << "it does not change";
  attrs.weight_decay_style = Linear;
  EXPECT_DOUBLE_EQ(step::weightDecay(attrs, 0), 0.1);
  EXPECT_DOUBLE_EQ(step::weightDecay(attrs, 5), 0.2);
  EXPECT_DOUBLE_EQ(step::weightDecay(attrs, 20), 0.5);
  EXPECT_EQ(step::weightDecay(attrs, 21), 0.5);
  attrs.weight_decay_style = Cosine;
  EXPECT_DOUBLE_EQ(step::weightDecay(attrs, 0), 0.1);
  EXPECT_DOUBLE_EQ(step::weightDecay(attrs, 5),
                   0.1 + 0.4 * 0.5 * (1 + std::cos(std::numbers::pi * 0.75)));
  EXPECT_DOUBLE_EQ(step::weightDecay(attrs, 20), 0.5);
  attrs.weight_decay_steps = 20.5; // a run in samples may end inside a step
  EXPECT_LT(step::weightDecay(attrs, 20), 0.5);
  attrs.weight_decay_steps = 0;
  EXPECT_STREQ(refusalOf(attrs), "weight_decay_steps is not positive");
}

TEST(Schedule, ADecoupledRateHasItsOwnBoundsAndTheSameShape) {
  for (Style style : {Constant, Linear, Cosine, InverseSquareRoot}) {
    Fixture f;
    f.attrs = schedule(style);
    f.attrs.decoupled_lr = 3.0, f.attrs.decoupled_min_lr = 0.7;
    Attrs same = f.attrs;
    same.lr = 3.0, same.min_lr = 0.7;
    for (int64_t applied : {0, 5, 10, 60, 110, 111}) {
      f.state.applied = applied;
      f.run("step.begin", {});
      EXPECT_EQ(f.state.decoupledLr, static_cast<float>(rateAt(same, applied))) << applied;
    }
  }
}

TEST(StepState, AStepBeginsWithItsRatesAndWeightDecay) {
  Fixture f;
  f.attrs = schedule(Linear);
  f.attrs.decoupled_lr = 3.0, f.attrs.decoupled_min_lr = 0.7;
  f.attrs.start_weight_decay = 0.1, f.attrs.end_weight_decay = 0.5;
  f.attrs.weight_decay_steps = 80, f.attrs.weight_decay_style = Linear;
  f.state.applied = 60;
  f.run("step.begin", {});
  EXPECT_EQ(f.state.lr, static_cast<float>(rateAt(f.attrs, 60)));
  EXPECT_EQ(f.state.decoupledLr, static_cast<float>(step::learningRate(f.attrs, 3.0, 0.7, 60)));
  EXPECT_EQ(f.state.weightDecay, 0.4f);
}

TEST(Schedule, RefusesADecayThatEndsBeforeItBegins) {
  Attrs attrs = schedule(Linear);
  attrs.decay_steps = 10;
  EXPECT_STREQ(refusalOf(attrs), "decay_steps is not above warmup_steps");
  attrs.decay_style = Constant;
  EXPECT_EQ(refusalOf(attrs), nullptr);
}

} // namespace
} // namespace shardc::kernels::test
