// When a run's state is saved, who writes it, and what happens if that fails.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/checkpoint/TorchDist.h"
#include "runtime/plan/Builder.h"
#include "runtime/run/RunLoop.h"
#include "runtime/save/Loader.h"
#include "runtime/save/Saver.h"
#include "test/unit/base/Told.h"
#include "test/unit/checkpoint/PlantedFileFaults.h"
#include "test/unit/exec/ToyPlan.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Silent final : public run::RunObserver {
public:
  void begin(int64_t, int64_t) override {}
  void step(const StepState &) override {}
  void evaluated(const StepState &) override {}
  void saved() override { ++savedCount; }
  int savedCount = 0;
};

/// Records the requests of the step loop.
class Keeper final : public run::StateKeeper {
public:
  bool isDue(int64_t step) const override { return interval > 0 && step % interval == 0; }
  Result<bool> saveAhead(int64_t step) override {
    if (takesAhead)
      ahead.push_back(step);
    return takesAhead;
  }
  Status stepEnded(const StepState &state) override {
    ended.push_back(state.step);
    return Status::ok();
  }
  Status save(const StepState &state) override {
    saved.push_back(state.step);
    return state.step == failingStep ? makeStatus(StatusCode::Exhausted, "no room") : Status::ok();
  }
  Status finish() override {
    ++finished;
    return Status::ok();
  }

  int64_t interval = 0, failingStep = -1;
  bool takesAhead = false;
  std::vector<int64_t> ahead, ended, saved;
  int finished = 0;
};

/// A toy job on the host backend.
struct Toy {
  explicit Toy(const ToyOptions &options) : plan(toyPlan(options)), source(8, 2) {
    backend = std::move(*host::makeBackend({.ranks = 2}));
  }
  void start() {
    auto made = exec::Executable::create(plan, *backend, kernels::findHostKernel, {});
    ASSERT_TRUE(made.isOk()) << made.status().message();
    executable = std::move(*made);
  }
  void set(const std::string &path, const plan::JobValue &value) { plan.job.put(path, value); }
  Result<run::RunResult> run() { return run::runProgram(*executable, source, observer, options); }

  plan::Plan plan;
  std::unique_ptr<hal::Backend> backend;
  std::unique_ptr<exec::Executable> executable;
  ToySource source;
  Silent observer;
  run::RunOptions options;
};

/// The steps after which the toy job saves, from `firstStep` on.
std::vector<int64_t> stepsSaved(int64_t firstStep, int64_t steps, int64_t interval) {
  Toy toy({.steps = static_cast<int>(steps)});
  toy.start();
  Keeper keeper;
  keeper.interval = interval;
  toy.options.keeper = &keeper;
  toy.options.firstStep = firstStep;
  toy.options.restore = [&] {
    StepState state{};
    state.step = state.applied = firstStep;
    for (size_t r = 0; r < 2; ++r) // the toy's step state lies first
      RETURN_IF_ERROR(toy.executable->write(r, toy.executable->arenas(r).base(plan::Arena::State),
                                            sizeof state, &state));
    return Status::ok();
  };
  auto result = toy.run();
  EXPECT_TRUE(result.isOk()) << result.status().message();
  EXPECT_EQ(toy.observer.savedCount, static_cast<int>(keeper.saved.size()));
  EXPECT_EQ(toy.source.trainVisitMax, firstStep < steps ? steps - 1 : -1);
  EXPECT_EQ(keeper.finished, 1);
  return keeper.saved;
}

TEST(RunLoop, SavesWhenDueAndAtTheEndButNothingTwice) {
  EXPECT_THAT(stepsSaved(0, 7, 3), ElementsAre(3, 6, 7));
  EXPECT_THAT(stepsSaved(0, 6, 3), ElementsAre(3, 6));
  EXPECT_THAT(stepsSaved(0, 2, 0), ElementsAre(2));
  EXPECT_THAT(stepsSaved(4, 7, 3), ElementsAre(6, 7));
  EXPECT_THAT(stepsSaved(7, 7, 3), IsEmpty());
}

TEST(RunLoop, HandsOnStepsThatHaveNotEnded) {
  Toy toy({.steps = 5});
  toy.start();
  Keeper keeper;
  keeper.interval = 2;
  keeper.takesAhead = true;
  toy.options.keeper = &keeper;
  ASSERT_TRUE(toy.run().isOk());
  EXPECT_THAT(keeper.ahead, ElementsAre(2, 4));
  EXPECT_THAT(keeper.ended, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(keeper.saved, ElementsAre(5)); // the last state, which was not due
}

TEST(RunLoop, EndsWhereKeepingTheStateSaysSo) {
  Toy toy({.steps = 5});
  toy.start();
  Keeper keeper;
  keeper.interval = 2;
  keeper.failingStep = 2;
  toy.options.keeper = &keeper;
  EXPECT_THAT(toy.run().status().message(), HasSubstr("no room"));
  EXPECT_EQ(keeper.finished, 0);
}

/// A toy job that saves into a folder of its own.
class Saving : public ::testing::TestWithParam<int> {
protected:
  std::unique_ptr<Toy> makeToy(int steps, int snapshots) {
    auto toy = std::make_unique<Toy>(ToyOptions{.steps = steps, .snapshots = snapshots});
    toy->set("checkpoint.save", folder_);
    toy->set("checkpoint.save_interval", int64_t{1});
    toy->set("checkpoint.ckpt_format", std::string("torch_dist"));
    return toy;
  }
  void inject(checkpoint::FileFault fault) {
    faults_ = std::make_unique<checkpoint::InjectedFileFaults>(fault);
  }
  /// Runs and saves; keeps reports and failures.
  Status run(Toy &toy, const std::function<void()> &afterOpening = {}) {
    auto made = save::Saver::create(
        toy.plan,
        [this](const Report &report) {
          (report.severity == Severity::Error ? failed_ : said_).push_back(lineOf(report));
        },
        nullptr, {.faults = faults_.get()});
    EXPECT_TRUE(made.isOk()) << made.status().message();
    if (!made.isOk())
      return made.status();
    if (afterOpening)
      afterOpening();
    toy.start();
    saver_ = std::move(*made);
    saver_->attach(*toy.executable);
    toy.options.keeper = saver_.get();
    Status status = toy.run().status();
    saver_->abandon();
    return status;
  }
  /// Saves 32 weights as iteration 1, 16 on each of two ranks. `add` passes their bytes to the
  /// save.
  void saveByHand(Toy &toy, int64_t bytesOfRank,
                  const std::function<void(save::RankSave &, const uint8_t *bytes)> &add) {
    toy.set("checkpoint.ckpt_format", std::string("torch_dist"));
    auto layout = save::StateLayout::create(toy.plan);
    ASSERT_TRUE(layout.isOk());
    auto job = save::SaveJob::of(toy.plan, *layout);
    ASSERT_TRUE(job.isOk());
    auto target = checkpoint::SaveTarget::iteration(folder_, 1);
    ASSERT_TRUE(checkpoint::beginSave(target).isOk());
    std::vector<float> values(32);
    std::iota(values.begin(), values.end(), 0.0f);
    for (int rank = 0; rank < 2; ++rank) {
      auto save = save::RankSave::begin(*job, target, rank, {});
      ASSERT_TRUE(save.isOk()) << save.status().message();
      add(*save, reinterpret_cast<const uint8_t *>(values.data() + 16 * rank));
      ASSERT_TRUE(save->finish().isOk());
      EXPECT_EQ(save->bytesWritten(), bytesOfRank);
    }
    Status copied;
    ASSERT_TRUE(save::commitRun(*job, target, {}, copied).isOk());
    EXPECT_EQ(weightsAt(1), values);
  }
  std::vector<int64_t> stepsThere() const {
    std::vector<int64_t> steps;
    auto all = checkpoint::listIterations(folder_);
    for (const checkpoint::SavedIteration &saved : *all)
      steps.push_back(saved.iteration);
    return steps;
  }
  /// The weights that a checkpoint holds.
  std::vector<float> weightsAt(int64_t step) {
    std::vector<float> weights(32);
    auto opened =
        checkpoint::TorchDistCheckpoint::open(fmt::format("{}/iter_{:07}", folder_, step));
    EXPECT_TRUE(opened.isOk()) << opened.status().message();
    if (!opened.isOk())
      return weights;
    Status status = opened->read("embedding.word_embeddings.weight", checkpoint::StoredPart::Weight,
                                 {{0, 0}, {8, 4}}, checkpoint::Element::F32, weights.data());
    EXPECT_TRUE(status.isOk()) << status.message();
    return weights;
  }
  bool wasSaid(const std::string &text) const {
    return std::ranges::any_of(said_, [&](const std::string &sentence) {
      return sentence.find(text) != std::string::npos;
    });
  }

  shardc::test::TempFolder temporary_;
  const std::string &folder_ = temporary_.path();
  std::vector<std::string> said_, failed_;
  std::unique_ptr<checkpoint::InjectedFileFaults> faults_; ///< null: none
  std::unique_ptr<save::Saver> saver_;
};

TEST_P(Saving, KeepsTheStateOfEachStepWhicheverWayItIsCopied) {
  auto toy = makeToy(4, GetParam());
  ASSERT_TRUE(run(*toy).isOk());
  EXPECT_THAT(stepsThere(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(failed_, IsEmpty());
  for (int64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(wasSaid(fmt::format("saved step {} to", step)));
    Toy plain({.steps = static_cast<int>(step)});
    plain.start();
    ASSERT_TRUE(plain.run().isOk());
    std::vector<float> weights(32);
    for (size_t rank = 0; rank < 2; ++rank)
      ASSERT_TRUE(plain.executable
                      ->read(rank, plain.executable->arenas(rank).base(plan::Arena::State) + 256,
                             64, weights.data() + 16 * rank)
                      .isOk());
    EXPECT_EQ(weightsAt(step), weights) << "step " << step;
  }
}

TEST_P(Saving, KeepsTheMostRecent) {
  auto toy = makeToy(5, GetParam());
  toy->set("checkpoint.most_recent_k", int64_t{2});
  ASSERT_TRUE(run(*toy).isOk());
  EXPECT_THAT(stepsThere(), ElementsAre(4, 5));
}

TEST_P(Saving, TellsThatOldCheckpointsCannotBeRemoved) {
  auto toy = makeToy(3, GetParam());
  toy->set("checkpoint.most_recent_k", int64_t{1});
  ASSERT_TRUE(run(*toy,
                  [this] { // a checkpoint is renamed to this name before it is removed
                    fs::create_directories(folder_ + "/.iter_0000001.removing/in-the-way");
                  })
                  .isOk());
  EXPECT_THAT(failed_, ::testing::Contains(AllOf(HasSubstr("error: old checkpoints are kept: "),
                                                 HasSubstr("[old-checkpoints-kept]"))));
  EXPECT_TRUE(saver_->lastStatus().isOk());
}

TEST_P(Saving, TellsFailuresAndGoesOn) {
  auto toy = makeToy(3, GetParam());
  inject({checkpoint::FileFault::Kind::DiskFull, 10});
  ASSERT_TRUE(run(*toy).isOk());
  ASSERT_EQ(failed_.size(), 3u);
  EXPECT_THAT(failed_[2],
              AllOf(HasSubstr("error: step 3 is not saved: "), HasSubstr("[step-not-saved]")));
  EXPECT_THAT(failed_[2], HasSubstr("No space left on device"));
  EXPECT_FALSE(saver_->lastStatus().isOk());
  EXPECT_EQ(toy->source.trainVisitMax, 2);
  EXPECT_THAT(stepsThere(), IsEmpty());
}

TEST_P(Saving, EndsTheRunWhereTheRecipeSaysSo) {
  auto toy = makeToy(50, GetParam());
  toy->set("checkpoint.stop_on_save_error", true);
  inject({checkpoint::FileFault::Kind::Denied, 10});
  Status status = run(*toy);
  EXPECT_THAT(status.message(), HasSubstr("is not saved: "));
  EXPECT_THAT(status.message(), HasSubstr("Permission denied"));
  EXPECT_THAT(failed_, IsEmpty()); // the caller that ends the run reports it
}

TEST_P(Saving, AFailedStepIsNotKept) {
  auto toy = makeToy(4, GetParam());
  toy->source.nanStep = 2;
  EXPECT_EQ(run(*toy).code(), StatusCode::Numeric);
  EXPECT_THAT(stepsThere(), ElementsAre(1, 2));
  EXPECT_FALSE(fs::exists(folder_ + "/.iter_0000003.saving"));
}

/// A save that waits for a step that never comes would wait forever.
TEST_F(Saving, AStepThatIsNeverCountedEndsTheRun) {
  auto toy = makeToy(4, 1);
  toy->options.restore = [&] {
    StepState state{};
    state.step = state.applied = 5; // the loop begins with the first
    for (size_t r = 0; r < 2; ++r)
      RETURN_IF_ERROR(toy->executable->write(r, toy->executable->arenas(r).base(plan::Arena::State),
                                             sizeof state, &state));
    return Status::ok();
  };
  Status status = run(*toy);
  EXPECT_EQ(status.code(), StatusCode::InvalidInput);
  EXPECT_THAT(status.message(), HasSubstr("step 1 is not saved: "));
  EXPECT_THAT(test::said(status), HasSubstr("its ops do not count the steps [plan-cannot-run]"));
}

/// Test names contain the number of background segments.
std::string nameOf(const ::testing::TestParamInfo<int> &info) {
  return fmt::format("{}Pieces", info.param);
}
INSTANTIATE_TEST_SUITE_P(By, Saving, ::testing::Values(0, 1, 2), nameOf);

TEST_F(Saving, RefusesSnapshotsThatLeaveStateOut) {
  auto toy = makeToy(4, 2);
  toy->plan.roles[0].segments.pop_back();
  auto made = save::Saver::create(toy->plan, [](const Report &) {});
  EXPECT_THAT(made.status().message(), HasSubstr("copy 32 of the 64 bytes of cell @w.b"));
}

TEST_F(Saving, PlainPyTorchCheckpointsHavePyTorchsNames) {
  auto toy = makeToy(2, 1);
  toy->plan.job.unset(plan::JobField::checkpoint_saveInterval);
  toy->set("checkpoint.ckpt_format", std::string("torch_dcp"));
  ASSERT_TRUE(run(*toy).isOk());
  auto reader = checkpoint::CheckpointReader::open(folder_ + "/iter_0000002");
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  const std::string name = "embedding.word_embeddings.weight";
  EXPECT_NE(reader->findTensor("model." + name), nullptr);
  EXPECT_NE(reader->findTensor("optimizer.state." + name + ".step"), nullptr);
  for (const char *key : {"iteration", "args", "optimizer.param_groups.0.lr",
                          "optimizer.param_groups.0.params", "opt_param_scheduler.num_steps"})
    EXPECT_NE(reader->findObject(key), nullptr) << key;
  toy->set("checkpoint.load", folder_);
  auto loader = save::Loader::open(toy->plan, [](const Report &) {});
  ASSERT_TRUE(loader.isOk()) << loader.status().message();
  EXPECT_EQ((*loader)->progress().step, 2);
  EXPECT_EQ((*loader)->progress().applied, 2);
  EXPECT_TRUE((*loader)->isWhole());
  auto source = checkpoint::ParamSource::open(folder_ + "/iter_0000002", {"torch_dist"}, nullptr);
  EXPECT_THAT(source.status().message(), HasSubstr("is torch_dcp, and this run's checkpoints are "
                                                   "torch_dist"));
  auto converted = checkpoint::ParamSource::open(folder_ + "/iter_0000002",
                                                 {"torch_dist", false, true}, nullptr);
  ASSERT_TRUE(converted.isOk());
  EXPECT_EQ((*converted)->format(), "torch_dcp");
  toy->set("checkpoint.ckpt_format", std::string("torch_dist"));
  toy->set("checkpoint.convert_on_load", true);
  Reported reported;
  ASSERT_TRUE(save::Loader::open(toy->plan, reported.sink()).isOk());
  EXPECT_THAT(reported.lines, ::testing::Contains(HasSubstr("[converted-on-load]")));
}

TEST_F(Saving, RowsThatComeInPartsAreWhole) {
  Toy toy({});
  saveByHand(toy, 64, [](save::RankSave &save, const uint8_t *bytes) {
    const save::StatePiece piece = save.pieces()[0];
    int64_t at = 0;
    for (int64_t part : {4, 8, 12, 20, 4, 16}) { // rows have 16 bytes
      ASSERT_TRUE(save.addCell(piece.cell, at, bytes + at, part).isOk());
      at += part;
    }
    EXPECT_FALSE(save.addCell(piece.cell, 8, bytes, 4).isOk()); // out of order
  });
}

/// The plan decides which cell is copied first.
TEST_F(Saving, RowsOfSeveralCellsMayCross) {
  Toy toy({});
  plan::Cell momentum =
      toy.plan.roles[0].cells[plan::findCell(toy.plan.roles[0], plan::CellKind::Weight, 0)];
  momentum.name = "m.b";
  momentum.kind = plan::CellKind::FirstMoment;
  toy.plan.roles[0].cells.push_back(momentum);
  toy.plan.job.put(plan::JobField::optimizer_optimizer, std::string("sgd"));
  auto layout = save::StateLayout::create(toy.plan);
  ASSERT_TRUE(layout.isOk());
  saveByHand(toy, 128, [&](save::RankSave &save, const uint8_t *bytes) {
    int64_t at = 0;
    for (int64_t part : {20, 24, 20}) { // rows have 16 bytes
      for (uint32_t cell : layout->cells())
        ASSERT_TRUE(save.addCell(cell, at, bytes + at, part).isOk());
      at += part;
    }
  });
}

TEST_F(Saving, SnapshotsComeByTheirPlaceInTheCell) {
  auto toy = makeToy(4, 2);
  std::vector<plan::Segment> &segments = toy->plan.roles[0].segments;
  plan::Segment &piece = segments[segments.size() - 2];
  // Both halves are in one segment, the second half first.
  plan::Segment second = segments.back();
  auto offset = static_cast<uint32_t>(second.values.size());
  for (plan::Value value : piece.values)
    second.values.push_back(std::move(value));
  for (plan::Op op : piece.ops) {
    for (plan::ValueId &id : op.operands)
      id = id == piece.ins[0].value ? second.ins[0].value : id + offset;
    for (plan::ValueId &id : op.results)
      id += offset;
    for (plan::ValueId id : op.results)
      second.values[id].def = static_cast<uint32_t>(second.ops.size());
    second.ops.push_back(std::move(op));
  }
  piece = second;
  segments.pop_back();
  auto layout = save::StateLayout::create(toy->plan);
  ASSERT_TRUE(layout.isOk());
  auto pieces = save::snapshotPieces(toy->plan, *layout);
  ASSERT_TRUE(pieces.isOk()) << pieces.status().message();
  ASSERT_EQ(pieces->size(), 1u);
  ASSERT_EQ((*pieces)[0].roles[0].copies.size(), 2u);
  EXPECT_EQ((*pieces)[0].roles[0].copies[0].byteBegin.offset, 0);
  EXPECT_EQ((*pieces)[0].roles[0].copies[1].byteBegin.offset, 32);
}

} // namespace
} // namespace shardc::test
