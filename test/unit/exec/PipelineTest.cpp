// Stages that run different programs train like one role that has the whole model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Text.h"
#include "runtime/run/RunLoop.h"
#include "runtime/save/Loader.h"
#include "runtime/save/Saver.h"
#include "runtime/save/StateLayout.h"
#include "runtime/verify/Verify.h"
#include "test/unit/exec/PipelinePlan.h"
#include "test/unit/exec/ToyPlan.h"
#include "test/unit/exec/Trained.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::test {
namespace {

struct How {
  bool graphs = true;
  std::optional<uint64_t> seed; ///< seed of a random schedule
  std::string format = "torch_dist";
  std::string save, load; ///< folders of checkpoints; empty: none
};

/// Saves after every second step, and loads the last save at the start.
struct Checkpoints {
  Status open(plan::Plan &plan, const How &how) {
    plan.job.put("checkpoint.ckpt_format", how.format);
    plan.job.put("checkpoint.save", how.save);
    plan.job.put("checkpoint.save_interval", int64_t{2});
    plan.job.put("checkpoint.load", how.load);
    ReportSink emit = [this](const Report &report) { reported.push_back(report); };
    ASSIGN_OR_RETURN(saver, save::Saver::create(plan, emit));
    ASSIGN_OR_RETURN(loader, save::Loader::open(plan, emit));
    return Status::ok();
  }
  run::RunOptions connect(exec::Executable &executable) {
    run::RunOptions options;
    if (saver)
      saver->attach(executable);
    options.keeper = saver.get();
    if (loader && loader->hasCheckpoint()) {
      options.firstStep = loader->progress().step;
      options.isFreshStart = !loader->isWhole();
      options.restore = [this, &executable] { return loader->restore(executable); };
    }
    return options;
  }

  std::vector<Report> reported;
  std::unique_ptr<save::Saver> saver;
  std::unique_ptr<save::Loader> loader;
};

Trained train(const PipelineOptions &options, const How &how = {}) {
  Trained trained;
  Result<plan::Plan> plan = plan::parse(pipelinePlanText(options), "pipeline.plan");
  EXPECT_TRUE(plan.isOk()) << plan.status().message();
  if (!plan.isOk())
    return trained;
  Status verified = plan::verified(*plan);
  EXPECT_TRUE(verified.isOk()) << verified.message();
  Checkpoints checkpoints;
  if (Status opened = checkpoints.open(*plan, how); !opened.isOk()) {
    ADD_FAILURE() << opened.message();
    return trained;
  }
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
  auto result = run::runProgram(**executable, source, trained, checkpoints.connect(**executable));
  EXPECT_TRUE(result.isOk()) << result.status().message();
  for (const Report &report : checkpoints.reported)
    EXPECT_NE(report.severity, Severity::Error) << report.text;
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

/// Shows which ops have ended on which role, in order.
struct OpList : exec::OpObserver {
  Status afterOp(const Position &position) override {
    positions.push_back(position);
    return Status::ok();
  }
  std::vector<Position> positions;
};

Result<run::RunResult> runOpByOp(const plan::Plan &plan, const PipelineOptions &options,
                                 run::RunObserver &observer, OpList *list = nullptr) {
  auto backend = host::makeBackend({.ranks = static_cast<int>(plan.worldSize())});
  auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
  EXPECT_TRUE(executable.isOk()) << executable.status().message();
  ToySource source(kToyBatch * options.dp * options.microbatches, options.dp);
  run::RunOptions runOptions;
  runOptions.check = true;
  if (list) {
    runOptions.opObserver = list;
    runOptions.wantsOps = [](int64_t step) { return step == 1; };
  }
  return run::runProgram(**executable, source, observer, runOptions);
}

/// Two stages with different orders of ops wait for each other forever, if each runs its ops in the
/// plan's order. Stages with compatible orders run.
TEST(Pipeline, RunsOpByOp) {
  for (PipelineOptions options :
       {PipelineOptions{.stages = 2, .microbatches = 3}, {.stages = 3, .microbatches = 5}}) {
    plan::Plan plan = *plan::parse(pipelinePlanText(options), "pipeline.plan");
    Trained observer, want = train(options);
    OpList list;
    auto result = runOpByOp(plan, options, observer, &list);
    ASSERT_TRUE(result.isOk()) << result.status().message();
    ASSERT_EQ(observer.steps.size(), want.steps.size());
    for (size_t i = 0; i < want.steps.size(); ++i) {
      EXPECT_EQ(observer.steps[i].loss, want.steps[i].loss) << i;
      EXPECT_EQ(observer.steps[i].gradNorm, want.steps[i].gradNorm) << i;
    }
    size_t ops = 0;
    for (const plan::Role &role : plan.roles)
      for (const plan::Segment &segment : role.segments)
        ops += segment.kind == plan::SegmentKind::Init
                   ? 0
                   : segment.ops.size() * (segment.body ? options.microbatches : 1);
    EXPECT_EQ(list.positions.size(), ops);
  }
}

TEST(Pipeline, SaysWhereRolesWaitForEachOther) {
  PipelineOptions options{.stages = 2, .microbatches = 3};
  plan::Plan plan = *plan::parse(pipelinePlanText(options), "pipeline.plan");
  plan::Segment &forward =
      plan.roles[1].segments[plan::findSegment(plan.roles[1], plan::SegmentKind::Begin)];
  std::erase_if(forward.ops, [](const plan::Op &op) { return op.kind == plan::OpKind::Recv; });
  std::erase_if(forward.outs, [](const auto &out) { return out.shift != 0 || out.value == 2; });
  Trained observer;
  auto result = runOpByOp(plan, options, observer);
  ASSERT_FALSE(result.isOk());
  EXPECT_EQ(result.status().report().id, "roles-wait");
  EXPECT_THAT(result.status().message(), testing::HasSubstr("role stage0 is at 'send %x1"));
}

TEST(Pipeline, NamesTheOpAtFault) {
  PipelineOptions options{.stages = 3, .microbatches = 3};
  plan::Plan plan = *plan::parse(pipelinePlanText(options), "pipeline.plan");
  plan::Segment &forward =
      plan.roles[2].segments[plan::findSegment(plan.roles[2], plan::SegmentKind::Forward)];
  for (plan::Op &op : forward.ops)
    if (op.kind == plan::OpKind::CrossEntropyBwd)
      op.set(plan::AttrKey::loss_scale, 1e39); // of fp32 infinity
  for (bool isChecked : {true, false}) {
    auto backend = host::makeBackend({.ranks = static_cast<int>(plan.worldSize())});
    auto executable = exec::Executable::create(plan, **backend, kernels::findHostKernel, {});
    ASSERT_TRUE(executable.isOk()) << executable.status().message();
    ToySource source(kToyBatch * options.dp * options.microbatches, options.dp);
    Trained observer;
    run::RunOptions runOptions;
    runOptions.check = isChecked;
    auto result = run::runProgram(**executable, source, observer, runOptions);
    ASSERT_FALSE(result.isOk());
    EXPECT_THAT(result.status().message(),
                testing::HasSubstr(", stage 3 of 3, segment forward, microbatch 0: element "));
  }
}

class PipelineSaves : public testing::TestWithParam<const char *> {};

/// Any number of stages can load a save of any other stages, whether or not it was made in the
/// background.
TEST_P(PipelineSaves, LoadWithAnyNumberOfStages) {
  PipelineOptions options{.stages = 1, .steps = 6};
  Trained whole = train(options);
  for (bool isInBackground : {false, true})
    for (int stages : {2, 3}) {
      SCOPED_TRACE(fmt::format("{} stages, {}", stages, isInBackground));
      TempFolder folder;
      Trained saving = train({.stages = stages, .steps = 4, .snapshots = isInBackground},
                             {.format = GetParam(), .save = folder.path()});
      EXPECT_EQ(checkpoint::listIterations(folder.path())->size(), 2u);
      for (int other : {1, 2, 3}) {
        SCOPED_TRACE(other);
        Trained loaded =
            train({.stages = other, .steps = 4}, {.format = GetParam(), .load = folder.path()});
        EXPECT_TRUE(loaded.steps.empty());
        EXPECT_EQ(loaded.tensors, saving.tensors);
      }
      Trained rest =
          train({.stages = 3, .steps = 6}, {.format = GetParam(), .load = folder.path()});
      rest.steps.insert(rest.steps.begin(), whole.steps.begin(), whole.steps.begin() + 4);
      expectAlike(rest, whole);
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, PipelineSaves,
                         testing::Values("torch_dist", "torch_dcp", "fsdp_dtensor"));

/// Either all roles copy their state, or none.
TEST(Pipeline, AStageWhoseStateIsNotCopiedIsRefused) {
  plan::Plan plan =
      *plan::parse(pipelinePlanText({.stages = 2, .snapshots = true}), "pipeline.plan");
  std::erase_if(plan.roles[1].segments,
                [](const plan::Segment &segment) { return segment.before != plan::kNone; });
  plan.roles[1].cells.pop_back(); // what these filled
  plan.job.put("checkpoint.save", std::string("unused"));
  Result<save::StateLayout> layout = save::StateLayout::create(plan);
  EXPECT_THAT(save::snapshotPieces(plan, *layout).status().message(),
              testing::HasSubstr("bytes of cell @w that a rank saves"));
}

/// There is one graph for each set of microbatches that execute alike and each slot of rings.
TEST(Pipeline, BindsAnInstanceForEachSlot) {
  plan::Plan plan = *plan::parse(pipelinePlanText({.stages = 3, .microbatches = 7}), "p.plan");
  const plan::Role &role = plan.roles[0];
  std::vector<std::vector<plan::SegmentInstance>> instances = plan::instancesOfProgram(role);
  uint32_t forward = plan::findSegment(role, plan::SegmentKind::Forward);
  // The segment uses rings of 4, 3 and 2 slots, so its addresses repeat every 12 microbatches, and
  // 7 microbatches are 7 instances.
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
