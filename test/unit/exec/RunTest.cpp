// Whole runs of the toy job. Results must not depend on how it is executed.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Text.h"
#include "runtime/run/RunLoop.h"
#include "test/unit/exec/HookedBackend.h"
#include "test/unit/exec/ToyPlan.h"
#include "test/unit/host/AllocationCount.h"

namespace shardc::test {
namespace {

using ::testing::HasSubstr;

/// Keeps the values that it receives.
class Recorder final : public run::RunObserver {
public:
  void begin(int64_t, int64_t) override {
    steps.reserve(1000);
    evaluations.reserve(1000);
    times.reserve(1000);
  }
  void step(const StepState &state) override { steps.push_back(state); }
  void evaluated(const StepState &state) override { evaluations.push_back(state); }
  void skipped(const StepState &state) override { stepsSkipped.push_back(state.step); }
  void took(double seconds) override { times.push_back(seconds); }

  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const StepState &state : steps)
      losses.push_back(state.loss);
    return losses;
  }
  std::vector<StepState> steps, evaluations;
  std::vector<int64_t> stepsSkipped;
  std::vector<double> times; ///< seconds of each step
};

struct ToyRun {
  Recorder recorder;
  Status status;
  run::RunResult result;
  int64_t trainVisitMax = 0, evalVisitMax = 0;
};

struct Setting {
  host::Options host;
  exec::ExecutableOptions executable;
  run::RunOptions run;
  int64_t nanStep = -1;
};

ToyRun runPlan(const plan::Plan &plan, const ToyOptions &toy, Setting setting = {}) {
  ToyRun run;
  setting.host.ranks = toy.dp;
  auto backend = host::makeBackend(setting.host);
  EXPECT_TRUE(backend.isOk());
  auto executable =
      exec::Executable::create(plan, **backend, kernels::findHostKernel, setting.executable);
  if (!executable.isOk()) {
    run.status = executable.status();
    return run;
  }
  ToySource source(kToyBatch * toy.dp * toy.microbatches, toy.dp);
  source.nanStep = setting.nanStep;
  auto result = run::runProgram(**executable, source, run.recorder, setting.run);
  run.status = result.status();
  if (result.isOk())
    run.result = *result;
  run.trainVisitMax = source.trainVisitMax;
  run.evalVisitMax = source.evalVisitMax;
  return run;
}

ToyRun runToy(const ToyOptions &toy, const Setting &setting = {}) {
  return runPlan(toyPlan(toy), toy, setting);
}

TEST(Run, LossFalls) {
  ToyRun run = runToy({.steps = 200});
  ASSERT_TRUE(run.status.isOk()) << run.status.message();
  ASSERT_EQ(run.recorder.steps.size(), 200u);
  EXPECT_NEAR(run.recorder.steps.front().loss, std::log(8.0), 0.5);
  EXPECT_LT(run.recorder.steps.back().loss, 0.8 * run.recorder.steps.front().loss);
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(run.recorder.steps[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(run.recorder.steps[i].totalTokens, 32);
  }
  EXPECT_EQ(run.result.state.applied, 200);
  EXPECT_FALSE(run.result.isStopped);
}

TEST(Run, RanksAndMicrobatchesDivideTheSameWork) {
  // The global batch is the same: 8 sequences.
  std::vector<double> reference =
      runToy({.dp = 1, .microbatches = 4, .steps = 10}).recorder.losses();
  ASSERT_EQ(reference.size(), 10u);
  for (auto [dp, microbatches] : {std::pair(1, 4), std::pair(2, 2), std::pair(4, 1)}) {
    std::vector<double> losses =
        runToy({.dp = dp, .microbatches = microbatches, .steps = 10}).recorder.losses();
    ASSERT_EQ(losses.size(), 10u);
    for (size_t i = 0; i < 10; ++i)
      EXPECT_NEAR(losses[i], reference[i], 1e-6 * reference[i]) << dp << " ranks, step " << i;
  }
}

TEST(Run, AllVariantsOfBodies) {
  for (int microbatches : {1, 2, 3, 5}) {
    ToyRun run = runToy({.microbatches = microbatches, .steps = 30});
    ASSERT_TRUE(run.status.isOk()) << run.status.message();
    EXPECT_LT(run.recorder.steps.back().loss, 0.8 * run.recorder.steps.front().loss);
    EXPECT_EQ(run.recorder.steps.back().totalTokens, 16 * microbatches);
  }
}

TEST(Run, SquaresMayBeSummedWhereShardsAreFormed) {
  for (int microbatches : {1, 3}) {
    ToyOptions toy{.dp = 4, .microbatches = microbatches, .steps = 10};
    ToyRun whole = runToy(toy);
    toy.squares = true;
    ToyRun run = runToy(toy);
    ASSERT_TRUE(run.status.isOk()) << run.status.message();
    EXPECT_EQ(run.recorder.losses(), whole.recorder.losses());
    for (size_t i = 0; i < 10; ++i)
      EXPECT_NEAR(run.recorder.steps[i].gradNorm, whole.recorder.steps[i].gradNorm,
                  1e-7 * whole.recorder.steps[i].gradNorm);
  }
}

TEST(Run, WaysOfExecutingGiveTheSameBits) {
  ToyOptions toy{.microbatches = 3, .steps = 6, .evalEvery = 2};
  std::vector<double> expected = runToy(toy).recorder.losses();
  ASSERT_EQ(expected.size(), 6u);
  Setting noGraph;
  noGraph.executable.graphs = false;
  Setting check;
  check.run.check = true;
  Setting workers;
  workers.host.workers = 4;
  for (const Setting &setting : {noGraph, check, workers})
    EXPECT_EQ(runToy(toy, setting).recorder.losses(), expected);
}

TEST(Run, RandomSchedulesGiveTheSameBits) {
  ToyOptions toy{.microbatches = 3, .steps = 4, .evalEvery = 2};
  std::vector<double> expected = runToy(toy).recorder.losses();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Setting stress;
    stress.host = {.workers = static_cast<int>(seed % 3) + 1,
                   .scheduleSeed = seed,
                   .poison = true,
                   .guards = true};
    stress.executable.poisonBetweenSegments = true;
    ToyRun run = runToy(toy, stress);
    ASSERT_TRUE(run.status.isOk()) << run.status.message();
    ASSERT_EQ(run.recorder.losses(), expected) << "seed " << seed;
  }
}

TEST(Run, EvaluationsComeAtTheirIntervals) {
  ToyRun run = runToy({.steps = 7, .evalEvery = 3});
  ASSERT_TRUE(run.status.isOk()) << run.status.message();
  ASSERT_EQ(run.recorder.evaluations.size(), 2u);
  EXPECT_EQ(run.recorder.evaluations[0].step, 3);
  EXPECT_EQ(run.recorder.evaluations[1].step, 6);
  EXPECT_NEAR(run.recorder.evaluations[1].evalLoss, run.recorder.steps[6].loss, 0.5);
  EXPECT_EQ(run.evalVisitMax, 1);
  EXPECT_EQ(run.trainVisitMax, 6);
  EXPECT_EQ(run.recorder.times.size(), 7u); // each by the device's clock
  EXPECT_THAT(run.recorder.times, testing::Each(testing::Ge(0.0)));
}

TEST(Run, AStepMayHoldManyEvaluations) {
  std::string text = toyPlanText({.steps = 4});
  text.insert(text.find("  program {"), "  segment idle {\n  }\n");
  for (int i = 0; i < 9; ++i)
    text.insert(text.find("run update\n") + std::string("run update\n").size(),
                "      every 1 { run idle }\n");
  ToyRun run = runPlan(*plan::parse(text, "toy.plan"), {});
  ASSERT_TRUE(run.status.isOk()) << run.status.message();
  EXPECT_EQ(run.recorder.losses(), runToy({.steps = 4}).recorder.losses());
  EXPECT_EQ(run.recorder.evaluations.size(), 36u);
}

TEST(Run, FeedsOfAnySizeGiveTheSameBits) {
  std::vector<double> expected = runToy({.steps = 6}).recorder.losses();
  for (int feedSteps : {1, 3})
    EXPECT_EQ(runToy({.steps = 6, .feedSteps = feedSteps}).recorder.losses(), expected);
}

TEST(Run, StopEndsAfterTheStepsThatAreQueued) {
  std::atomic<int> request{1};
  Setting setting;
  setting.run.stopRequest = &request;
  ToyRun run = runToy({.steps = 1000}, setting);
  ASSERT_TRUE(run.status.isOk()) << run.status.message();
  EXPECT_TRUE(run.result.isStopped);
  EXPECT_GE(run.recorder.steps.size(), 1u);
  EXPECT_LE(run.recorder.steps.size(), 3u);
  EXPECT_EQ(run.result.state.stop, 1);
}

TEST(Run, EndsWhereItIsTold) {
  Setting setting;
  setting.run.stepsEnd = 3;
  EXPECT_EQ(runToy({.steps = 10}, setting).recorder.steps.size(), 3u);
}

TEST(Run, BatchesContinueWhereAJobIs) {
  Setting setting;
  setting.run.firstStep = 4;
  ToyRun run = runToy({.steps = 6, .evalEvery = 2}, setting);
  EXPECT_EQ(run.recorder.steps.size(), 2u);
  EXPECT_EQ(run.trainVisitMax, 5);
  EXPECT_EQ(run.evalVisitMax, 2);
}

TEST(Run, StepsThatArePassedOverOnlyTakeTheirBatch) {
  Setting setting;
  setting.run.skippedSteps = {1, 4, 5, 8};
  ToyRun run = runToy({.steps = 8, .evalEvery = 4}, setting);
  ASSERT_TRUE(run.status.isOk()) << run.status.message();
  std::vector<int64_t> steps;
  for (const StepState &state : run.recorder.steps)
    steps.push_back(state.step);
  EXPECT_THAT(steps, testing::ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(run.recorder.stepsSkipped, testing::ElementsAre(1, 4, 5, 8));
  EXPECT_TRUE(run.recorder.evaluations.empty()) << "both are behind steps that are passed over";
  EXPECT_EQ(run.trainVisitMax, 6) << "the batch of step 7";
  EXPECT_EQ(run.result.state.step, 8);
  EXPECT_EQ(run.result.state.applied, 4);
  EXPECT_EQ(run::evaluationsUpTo(8, 4, 0, setting.run.skippedSteps), 0);
  EXPECT_EQ(run::evaluationsUpTo(12, 4, 8, {4, 8}), 1);
}

TEST(Run, NonFiniteStepIsExplainedBehindOneThatIsPassedOver) {
  Setting setting;
  setting.nanStep = 3;
  setting.run.skippedSteps = {2, 5};
  ToyRun run = runToy({.steps = 20}, setting);
  EXPECT_EQ(run.status.message(),
            "step 4, rank 1, segment micro, microbatch 0: element 0 of %mask, made by "
            "'batch.load', is inf");
  EXPECT_EQ(run.recorder.steps.size(), 2u);
}

TEST(Run, NonFiniteStepIsExplained) {
  for (bool check : {false, true}) {
    Setting setting;
    setting.nanStep = 3;
    setting.run.check = check;
    ToyRun run = runToy({.steps = 20}, setting);
    EXPECT_EQ(run.status.code(), StatusCode::Numeric);
    EXPECT_EQ(run.status.message(),
              "step 4, rank 1, segment micro, microbatch 0: element 0 of %mask, made by "
              "'batch.load', is inf");
    EXPECT_EQ(run.recorder.steps.size(), 3u) << "the steps before are reported";
  }
}

TEST(Run, NonFiniteResultNamesItsRecipeLine) {
  Setting setting;
  ToyRun run = runToy({.steps = 3, .initStd = 1e30}, setting);
  EXPECT_EQ(run.status.code(), StatusCode::Numeric);
  EXPECT_THAT(run.status.message(),
              HasSubstr("step 1, rank 0, segment micro, microbatch 0: element "));
  EXPECT_THAT(run.status.message(),
              HasSubstr("of %logits, made by 'matmul' (toy.recipe:3:7), is "));
}

uint8_t *behindArena = nullptr; ///< of one rank

void writeTooFar(const kernels::Call &call) {
  kernels::findHostKernel("matmul")->run(call);
  *behindArena = 1;
}

const kernels::Kernel *findWithWriteTooFar(std::string_view op) {
  static kernels::Kernel kernel = [] {
    kernels::Kernel changed = *kernels::findHostKernel("matmul");
    changed.run = writeTooFar;
    return changed;
  }();
  return op == "matmul" ? &kernel : kernels::findHostKernel(op);
}

TEST(Run, WriteOutsideOfBuffersNamesItsOp) {
  plan::Plan plan = toyPlan({.steps = 3});
  auto backend = host::makeBackend({.ranks = 2, .guards = true});
  auto executable = exec::Executable::create(plan, **backend, findWithWriteTooFar, {});
  ASSERT_TRUE(executable.isOk()) << executable.status().message();
  const exec::Arenas &arenas = (*executable)->arenas(1);
  behindArena = arenas.base(plan::Arena::Work) + arenas.bytes(plan::Arena::Work);
  ToySource source(8, 2);
  Recorder recorder;
  run::RunOptions options;
  options.check = true;
  Status status = run::runProgram(**executable, source, recorder, options).status();
  EXPECT_THAT(status.message(),
              testing::StartsWith("step 1, microbatch 0, after 'micro: matmul %"));
  EXPECT_THAT(status.message(),
              HasSubstr("(toy.recipe:3)': rank 1 work: a write 0 bytes past its "));
  EXPECT_TRUE(recorder.steps.empty());
}

/// Bytes of @w on both ranks after a run.
std::vector<float> weightsAfter(int64_t steps, int64_t nanStep, StatusCode expected) {
  plan::Plan plan = toyPlan({.steps = 20});
  auto backend = host::makeBackend({.ranks = 2});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  EXPECT_TRUE(executable.isOk());
  ToySource source(8, 2);
  source.nanStep = nanStep;
  Recorder recorder;
  run::RunOptions options;
  options.stepsEnd = steps;
  EXPECT_EQ(run::runProgram(**executable, source, recorder, options).status().code(), expected);
  std::vector<float> weights(32);
  for (size_t rank = 0; rank < 2; ++rank) {
    const uint8_t *at = (*executable)->arenas(rank).base(plan::Arena::State) + 256;
    EXPECT_TRUE((*executable)->read(rank, at, 64, weights.data() + 16 * rank).isOk());
  }
  return weights;
}

TEST(Run, NonFiniteStepLeavesTheStateAsItBegan) {
  EXPECT_EQ(weightsAfter(20, 3, StatusCode::Numeric), weightsAfter(3, -1, StatusCode::Ok))
      << "also where later steps were queued already";
}

/// Counts allocations from the third step on.
class AllocationProbe final : public run::RunObserver {
public:
  void begin(int64_t, int64_t stepsTotal) override { stepsTotal_ = stepsTotal; }
  void step(const StepState &state) override {
    if (state.step == 2)
      startCountingAllocations();
    if (state.step == stepsTotal_ - 1)
      count = stopCountingAllocations();
  }
  void evaluated(const StepState &) override {}
  size_t count = 1;

private:
  int64_t stepsTotal_ = 0;
};

TEST(Run, StepLoopAllocatesNothing) {
  ToyOptions toy{.microbatches = 3, .steps = 50, .evalEvery = 5};
  plan::Plan plan = toyPlan(toy);
  auto backend = host::makeBackend({.ranks = 2});
  ASSERT_TRUE(backend.isOk());
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk());
  ToySource source(12, 2);
  AllocationProbe probe;
  ASSERT_TRUE(run::runProgram(**executable, source, probe, {}).isOk());
  EXPECT_EQ(probe.count, 0u);
}

/// Allocates device memory after a step, which no kernel or library may do.
class Allocating final : public run::RunObserver {
public:
  Allocating(exec::Executable &executable, int64_t step) : executable_(executable), step_(step) {}
  void begin(int64_t, int64_t) override {}
  void queued(const run::HostTime &time) override { times.push_back(time); }
  void step(const StepState &state) override {
    if (state.step == step_)
      kept = std::move(*executable_.device(1).allocate(hal::MemoryKind::Work, 64, "late"));
  }
  void evaluated(const StepState &) override {}
  std::unique_ptr<hal::Buffer> kept;
  std::vector<run::HostTime> times;

private:
  exec::Executable &executable_;
  int64_t step_;
};

/// The host's part of a step ends only when all of its work has been enqueued.
TEST(Run, ReadingTheStateBackCountsAsTheHostsWork) {
  constexpr auto kPause = std::chrono::milliseconds(5);
  plan::Plan plan = toyPlan({.steps = 3});
  HookedBackend backend(2);
  auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk());
  backend.hooks.onCopy = [&](std::string_view label) {
    if (label == "read the step state back")
      std::this_thread::sleep_for(kPause);
    return Status::ok();
  };
  ToySource source(8, 2);
  Allocating observer(**executable, -1);
  ASSERT_TRUE(run::runProgram(**executable, source, observer, {}).isOk());
  ASSERT_EQ(observer.times.size(), 3u);
  for (const run::HostTime &time : observer.times)
    EXPECT_GE(time.work, std::chrono::duration<double>(kPause).count());
}

/// When a batch grows, one plan continues the state of another.
TEST(Run, AnotherExecutableGoesOnWithTheState) {
  std::vector<double> whole = runToy({.steps = 6}).recorder.losses();
  plan::Plan plan = toyPlan({.steps = 6});
  auto backend = host::makeBackend({.ranks = 2, .poison = true});
  ToySource source(8, 2);
  Recorder recorder;
  auto first = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(first.isOk());
  ASSERT_TRUE(run::runProgram(**first, source, recorder, {.stepsEnd = 3}).isOk());
  Result<exec::StateMemory> state = (*first)->takeState();
  ASSERT_TRUE(state.isOk());
  ASSERT_EQ(state->size(), 2u);
  first->reset();
  auto second =
      exec::Executable::create(plan, **backend, kernels::findHostKernel, {}, std::move(*state));
  ASSERT_TRUE(second.isOk());
  EXPECT_EQ((*second)->memoryStages().takenOver, plan.roles[0].arenaBytes[0]);
  run::RunOptions rest = {.firstStep = 3, .isFreshStart = false};
  ASSERT_TRUE(run::runProgram(**second, source, recorder, rest).isOk());
  EXPECT_EQ(recorder.losses(), whole);
  state = (*second)->takeState();
  second->reset();
  plan.roles[0].arenaBytes[0] += 256;
  EXPECT_EQ(
      exec::Executable::create(plan, **backend, kernels::findHostKernel, {}, std::move(*state))
          .status()
          .code(),
      StatusCode::InvalidInput);
}

/// Allocates device memory while a step is enqueued, as a library does on a first use.
class AllocatingSource final : public run::BatchSource {
public:
  AllocatingSource(exec::Executable &executable, int64_t visit)
      : toy_(8, 2), executable_(executable), visit_(visit) {}
  Status fill(run::FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
              int64_t dp, const run::FeedEntry &entry) override {
    if (visit == visit_ && !kept_)
      kept_ = std::move(*executable_.device(0).allocate(hal::MemoryKind::Work, 64, "late"));
    return toy_.fill(kind, visit, microbatch, microbatches, dp, entry);
  }

private:
  ToySource toy_;
  exec::Executable &executable_;
  int64_t visit_;
  std::unique_ptr<hal::Buffer> kept_;
};

TEST(Run, AllocationsWhileAnyLaterStepIsQueuedAreCounted) {
  for (int64_t visit = 0; visit < 5; ++visit) {
    plan::Plan plan = toyPlan({.steps = 5});
    auto backend = host::makeBackend({.ranks = 2});
    auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
    ASSERT_TRUE(executable.isOk());
    AllocatingSource source(**executable, visit);
    Recorder observer;
    auto result = run::runProgram(**executable, source, observer, {});
    ASSERT_TRUE(result.isOk());
    ASSERT_TRUE(result->memory.has_value());
    EXPECT_EQ(result->memory->allocations, visit == 0 ? 0 : 1) << "step " << visit + 1;
  }
}

TEST(Run, AllocationsOfDeviceMemoryAfterTheFirstStepAreCounted) {
  for (int64_t step : {-1, 1, 3}) {
    plan::Plan plan = toyPlan({.steps = 5});
    auto backend = host::makeBackend({.ranks = 2});
    auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
    ASSERT_TRUE(executable.isOk());
    ToySource source(8, 2);
    Allocating observer(**executable, step);
    auto result = run::runProgram(**executable, source, observer, {});
    ASSERT_TRUE(result.isOk());
    ASSERT_TRUE(result->memory.has_value());
    EXPECT_EQ(result->memory->allocations, step == 3 ? 1 : 0) << "after step " << step;
    EXPECT_EQ(observer.times.size(), 5u);
    for (const run::HostTime &time : observer.times) {
      EXPECT_GE(time.work, 0);
      EXPECT_GE(time.waited, 0);
    }
  }
}

TEST(Run, ARingFeedsOneSeriesOfMicrobatches) {
  ToyOptions toy{.microbatches = 3, .steps = 2, .evalEvery = 2};
  plan::Plan plan = toyPlan(toy);
  plan::Role &role = plan.roles[0];
  uint32_t eval = plan::findCell(role, plan::CellKind::EvalFeed),
           train = plan::findCell(role, plan::CellKind::Feed);
  for (plan::Segment &segment : role.segments)
    for (plan::Segment::Boundary &in : segment.ins)
      if (in.cell == eval)
        in.cell = train;
  EXPECT_THAT(runPlan(plan, toy).status.message(),
              testing::HasSubstr("segment eval takes @feed, which another segment takes too"));
  plan = toyPlan(toy);
  for (plan::Segment &segment : plan.roles[0].segments)
    for (size_t i = 0; i < segment.ops.size(); ++i)
      if (segment.name == "eval" && segment.ops[i].kind == plan::OpKind::BatchLoad) {
        segment.ops.push_back(segment.ops[i]);
        break;
      }
  EXPECT_THAT(runPlan(plan, toy).status.message(),
              testing::HasSubstr("segment eval takes more than one series of microbatches"));
}

/// Keeps the losses of all steps.
class Losses final : public run::RunObserver {
public:
  void begin(int64_t, int64_t) override {}
  void step(const StepState &state) override { losses.push_back(state.loss); }
  void evaluated(const StepState &) override {}
  std::vector<double> losses;
};

TEST(Run, HowMuchIsQueuedChangesNothing) {
  std::vector<std::vector<double>> found;
  for (int64_t nodesAhead : {0, 1, 150, 200, 300}) {
    plan::Plan plan = toyPlan({.microbatches = 4, .steps = 12, .evalEvery = 5});
    auto backend = host::makeBackend({.ranks = 2});
    auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel,
                                               {.nodesAhead = nodesAhead});
    ASSERT_TRUE(executable.isOk());
    ToySource source(8, 2);
    Losses observer;
    ASSERT_TRUE(run::runProgram(**executable, source, observer, {}).isOk());
    EXPECT_EQ(observer.losses.size(), 12u) << nodesAhead;
    found.push_back(observer.losses);
  }
  for (const std::vector<double> &losses : found)
    EXPECT_EQ(losses, found.front());
}

TEST(Run, FeedThatFailsEndsTheRun) {
  class Failing final : public run::BatchSource {
    Status fill(run::FeedKind, int64_t visit, int64_t, int64_t, int64_t,
                const run::FeedEntry &) override {
      return visit < 2
                 ? Status::ok()
                 : Status(StatusCode::InvalidInput, "tokens.bin: the file has become shorter");
    }
  } source;
  plan::Plan plan = toyPlan({});
  auto backend = host::makeBackend({.ranks = 2});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk());
  Recorder recorder;
  EXPECT_EQ(run::runProgram(**executable, source, recorder, {}).status().message(),
            "tokens.bin: the file has become shorter");
}

} // namespace
} // namespace shardc::test
