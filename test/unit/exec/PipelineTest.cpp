// Stages that run different programs train like one role that has the whole model.
#include <map>

#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Parser.h"
#include "runtime/plan/Printer.h"
#include "runtime/run/RunLoop.h"
#include "runtime/save/StateLayout.h"
#include "runtime/verify/Verify.h"
#include "test/unit/exec/PipelinePlan.h"
#include "test/unit/exec/ToyPlan.h"

namespace shardc::test {
namespace {

struct Trained : run::RunObserver {
  void begin(int64_t, int64_t) override {}
  void step(const StepState &state) override { steps.push_back(state); }
  void evaluated(const StepState &) override {}

  std::vector<StepState> steps;
  std::map<std::string, std::vector<float>> tensors;
};

/// Puts what each rank has of the tensors in its place; their rows are divided.
void readTensors(exec::Executable &executable, Trained &trained) {
  Result<save::StateLayout> layout = save::StateLayout::create(executable.plan());
  ASSERT_TRUE(layout.isOk()) << layout.status().message();
  for (size_t rank = 0; rank < executable.rankCount(); ++rank) {
    Result<std::vector<save::StatePiece>> pieces = layout->pieces(executable.worldRank(rank));
    ASSERT_TRUE(pieces.isOk()) << pieces.status().message();
    for (const save::StatePiece &piece : *pieces) {
      const plan::Cell &cell = layout->cellOf(piece);
      std::vector<float> values(static_cast<size_t>(piece.bytes / 4));
      uint8_t *address = *executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name);
      ASSERT_TRUE(
          executable.read(rank, address + piece.byteBegin, piece.bytes, values.data()).isOk());
      std::vector<float> &tensor = trained.tensors[layout->nameOf(piece)];
      checkpoint::Shape whole = layout->shapeOf(piece.param);
      tensor.resize(static_cast<size_t>(whole[0] * whole[1]));
      std::ranges::copy(values, tensor.begin() + piece.box.offset[0] * whole[1]);
    }
  }
}

struct How {
  bool graphs = true;
  std::optional<uint64_t> seed; ///< of a random schedule
};

Trained train(const PipelineOptions &options, const How &how = {}) {
  Trained trained;
  Result<plan::Plan> plan = plan::parse(pipelinePlanText(options), "pipeline.plan");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  if (!plan.isOk())
    return trained;
  Status verified = plan::verified(*plan);
  EXPECT_TRUE(verified.isOk()) << verified.message();
  host::Options host{.ranks = static_cast<int>(plan->worldSize())};
  host.scheduleSeed = how.seed;
  auto backend = host::makeBackend(host);
  exec::ExecutableOptions executableOptions;
  executableOptions.graphs = how.graphs;
  executableOptions.poisonBetweenSegments = how.seed.has_value();
  auto executable =
      exec::Executable::create(*plan, **backend, kernels::findHostKernel, executableOptions);
  EXPECT_TRUE(executable.isOk()) << executable.status().message();
  if (!executable.isOk())
    return trained;
  ToySource source(kToyBatch * options.dp * options.microbatches, options.dp);
  auto result = run::runProgram(**executable, source, trained, {});
  EXPECT_TRUE(result.isOk()) << result.status().message();
  readTensors(**executable, trained);
  return trained;
}

void expectAlike(const Trained &got, const Trained &want) {
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t i = 0; i < want.steps.size(); ++i) {
    EXPECT_NEAR(got.steps[i].loss, want.steps[i].loss, 1e-6 * want.steps[i].loss) << i;
    EXPECT_NEAR(got.steps[i].gradNorm, want.steps[i].gradNorm, 1e-5 * want.steps[i].gradNorm) << i;
  }
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto &[name, tensor] : want.tensors) {
    auto at = got.tensors.find(name);
    ASSERT_NE(at, got.tensors.end()) << name;
    ASSERT_EQ(at->second.size(), tensor.size()) << name;
    for (size_t i = 0; i < tensor.size(); ++i)
      ASSERT_NEAR(at->second[i], tensor[i], 1e-5) << name << " " << i;
  }
}

TEST(Pipeline, StagesTrainLikeOneRole) {
  for (int microbatches : {1, 3, 5}) {
    PipelineOptions options{.stages = 1, .microbatches = microbatches};
    Trained one = train(options);
    ASSERT_EQ(one.steps.size(), static_cast<size_t>(options.steps));
    EXPECT_GT(one.steps.front().gradNorm, 0);
    for (int stages : {2, 3}) {
      SCOPED_TRACE(fmt::format("{} stages, {} microbatches", stages, microbatches));
      options.stages = stages;
      expectAlike(train(options), one);
    }
  }
}

/// Ops of several roles wait for each other.
TEST(Pipeline, IsNotRunOpByOp) {
  plan::Plan plan = *plan::parse(pipelinePlanText({}), "pipeline.plan");
  auto backend = host::makeBackend({.ranks = static_cast<int>(plan.worldSize())});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk()) << executable.status().message();
  ToySource source(12, 2);
  Trained observer;
  run::RunOptions options;
  options.check = true;
  auto result = run::runProgram(**executable, source, observer, options);
  ASSERT_FALSE(result.isOk());
  EXPECT_EQ(result.status().report().id, "several-roles");
}

/// One graph for each microbatches that execute alike, and each slot of rings.
TEST(Pipeline, BindsAnInstanceForEachSlot) {
  plan::Plan plan = *plan::parse(pipelinePlanText({.stages = 3, .microbatches = 7}), "p.plan");
  const plan::Role &role = plan.roles[0];
  std::vector<std::vector<plan::SegmentInstance>> instances = plan::instancesOfProgram(role);
  uint32_t forward = plan::findSegment(role, plan::SegmentKind::Forward);
  // Rings of 4, 3 and 2 slots: 7 microbatches fall on 7 of 12 places.
  EXPECT_EQ(plan::slotsOf(role, role.segments[forward]), 12);
  EXPECT_EQ(instances[forward].size(), 7u);
  EXPECT_EQ(instances[plan::findSegment(role, plan::SegmentKind::Update)].size(), 1u);
}

TEST(Pipeline, RunsWithoutGraphs) {
  PipelineOptions options{.stages = 3, .microbatches = 4};
  Trained captured = train(options);
  Trained enqueued = train(options, {.graphs = false});
  expectAlike(enqueued, captured);
}

TEST(Pipeline, AnyScheduleGivesTheSameLosses) {
  PipelineOptions options{.stages = 3, .microbatches = 4, .steps = 2};
  Trained want = train(options);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Trained got = train(options, {.seed = seed});
    ASSERT_EQ(got.steps.size(), want.steps.size());
    for (size_t i = 0; i < want.steps.size(); ++i)
      EXPECT_EQ(got.steps[i].loss, want.steps[i].loss) << i;
  }
}

} // namespace
} // namespace shardc::test
