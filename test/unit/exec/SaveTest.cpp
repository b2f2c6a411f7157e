// A checkpoint's description of its run, and the messages of a run about a checkpoint that does not
// match.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/plan/Builder.h"
#include "runtime/save/Loader.h"
#include "runtime/save/Saver.h"
#include "runtime/save/TorchDistWriter.h"
#include "test/unit/base/Told.h"
#include "test/unit/exec/SavedPlan.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::test {
namespace {

using save::StatePiece;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CheckpointOptions, GoWithTheFormat) {
  plan::Plan plan = makePlan(2);
  set(plan, "checkpoint.ckpt_format", std::string("zarr"));
  EXPECT_EQ(said(save::checkCheckpointOptions(plan)), ""); // neither saves nor loads
  set(plan, "checkpoint.load", std::string("x"));
  EXPECT_THAT(
      said(save::checkCheckpointOptions(plan)),
      AllOf(HasSubstr("format 'zarr' cannot be written"), HasSubstr("[save-format-refused]")));
  for (bool isFsdp : {true, false})
    for (std::string format : {"fsdp_dtensor", "torch_dist", "torch_dcp"}) {
      set(plan, "checkpoint.ckpt_format", format);
      set(plan, "ddp.use_megatron_fsdp", isFsdp);
      EXPECT_EQ(said(save::checkCheckpointOptions(plan)),
                isFsdp == (format == "fsdp_dtensor") ? ""
                : isFsdp ? "error: Megatron FSDP only supports fsdp_dtensor checkpoint format "
                           "[fsdp-checkpoint-format]"
                         : "error: fsdp_dtensor checkpoint format only supports Megatron FSDP "
                           "[checkpoint-format-needs-fsdp]");
    }
}

TEST(TorchDist, StacksLayersThatAreAlike) {
  plan::Plan plan = makePlan(1);
  plan.params = {param("decoder.layers.0.a", plan::Type::of(DType::F32, {2}), 0),
                 param("decoder.layers.1.a", plan::Type::of(DType::F32, {2}), 2),
                 param("mtp.layers.0.a", plan::Type::of(DType::F32, {2}), 4),
                 param("mtp.layers.1.a", plan::Type::of(DType::F32, {3}), 6)};
  EXPECT_THAT(save::TorchDistWriter(plan).layout().layersOf,
              ElementsAre(::testing::Pair("decoder", 2)));
  plan.params[1].name = "decoder.layers.2.a";
  EXPECT_THAT(save::TorchDistWriter(plan).layout().layersOf, IsEmpty());
}

// Under plain DDP, the count of updates is stored where the chosen Adam looks for it.
TEST(SaveTorchDist, CountsUpdatesForTheChosenAdam) {
  plan::Plan plan = makePlan(2, /*isSharded=*/false);
  auto isWithMoments = [&](const char *adam, const char *backend) {
    set(plan, "checkpoint.torch_dist_adam", std::string(adam));
    plan.needsBackend = backend;
    std::string file =
        save::TorchDistWriter(plan).common(save::Progress()).file; // nothing is compressed
    return file.find(checkpoint::kCommonStep) != std::string::npos;
  };
  EXPECT_TRUE(isWithMoments("auto", "host"));
  EXPECT_FALSE(isWithMoments("auto", "cuda"));
  EXPECT_TRUE(isWithMoments("torch", "cuda"));
  EXPECT_FALSE(isWithMoments("fused", "host"));
  set(plan, "ddp.use_distributed_optimizer", true);
  EXPECT_FALSE(isWithMoments("torch", "host"));
}

TEST(RunState, CountsSamplesAndUpdates) {
  plan::Plan plan = makePlan(2);
  save::Progress begin;
  begin.step = 10;
  begin.consumedTrainSamples = 100;
  StepState state{};
  state.step = 15;
  state.applied = 14;
  state.lr = 0.125F;
  save::Progress now = save::progressAfter(plan, begin, state);
  EXPECT_EQ(now.consumedTrainSamples, 130);
  checkpoint::RunState run = save::runStateOf(plan, now);
  EXPECT_EQ(run.iteration, 15);
  auto steps =
      std::ranges::find(run.scheduler, "num_steps", &checkpoint::PlainEntries::value_type::first);
  ASSERT_NE(steps, run.scheduler.end());
  EXPECT_EQ(*steps->second.as<int64_t>(), 14 * 6);
  checkpoint::GroupMeta meta = save::groupMetaOf(plan, 1, now);
  EXPECT_EQ(meta.step, 14);
  EXPECT_EQ(meta.lr, 0.125);
  EXPECT_EQ(meta.weightDecay, 0);
  EXPECT_EQ(meta.beta1, 0.8);
  EXPECT_FALSE(meta.defaultConfig);
}

TEST(RunState, KeepsScheduleAndRatesThatHoldForSomeParameters) {
  plan::Plan plan = makePlan(2);
  plan.params[0].isDecoupled = true;
  set(plan, "optimizer.decoupled_lr", 0.75);
  set(plan, "optimizer.min_lr", 0.125);
  set(plan, "scheduler.start_weight_decay", 0.0);
  set(plan, "scheduler.end_weight_decay", 0.5);
  set(plan, "scheduler.weight_decay_incr_style", std::string("linear"));
  set(plan, "train.train_iters", int64_t{20});
  set(plan, "train.iterations_to_skip", std::vector<std::string>{"12", "3", "14", "99"});
  save::Progress begin;
  begin.step = 10;
  begin.consumedTrainSamples = 60, begin.skippedTrainSamples = 6;
  StepState state{};
  state.step = 15;
  state.lr = 0.25F, state.decoupledLr = 0.375F, state.weightDecay = 0.125F;
  save::Progress now = save::progressAfter(plan, begin, state);
  checkpoint::RunState run = save::runStateOf(plan, now);
  EXPECT_EQ(run.consumedTrainSamples, 90);
  EXPECT_EQ(run.skippedTrainSamples, 6 + 2 * 6);
  auto scheduled = [&](const char *name) {
    return checkpoint::textOf(*checkpoint::findEntry(run.scheduler, name));
  };
  EXPECT_EQ(scheduled("start_wd"), "0");
  EXPECT_EQ(scheduled("end_wd"), "0.5");
  EXPECT_EQ(scheduled("wd_incr_style"), "'linear'");
  EXPECT_EQ(scheduled("wd_incr_steps"), "120");
  checkpoint::GroupMeta own = save::groupMetaOf(plan, 0, now),
                        other = save::groupMetaOf(plan, 2, now);
  EXPECT_EQ(own.lr, 0.375);
  EXPECT_EQ(own.maxLr, 0.75);
  EXPECT_EQ(own.minLr, 0.125) << "that of all";
  EXPECT_FALSE(own.defaultConfig);
  EXPECT_EQ(own.weightDecay, 0.125);
  EXPECT_EQ(other.lr, 0.25);
  EXPECT_EQ(other.maxLr, 0.5);
  EXPECT_TRUE(other.defaultConfig);
}

/// Saves zeros as the plan's state after `step`, for all ranks; with the optimizer's settings if
/// hasSettings.
void saveZeros(const plan::Plan &plan, const std::string &root, int64_t step,
               bool hasSettings = false) {
  auto target = checkpoint::SaveTarget::iteration(root, step);
  auto layout = save::StateLayout::create(plan);
  ASSERT_TRUE(layout.isOk());
  ASSERT_TRUE(checkpoint::beginSave(target).isOk());
  save::Progress progress;
  progress.step = progress.applied = step;
  progress.consumedTrainSamples = 6 * step;
  std::vector<float> zeros(48);
  for (int rank = 0; rank < plan.mesh[0].size; ++rank) {
    std::vector<checkpoint::TensorSlice> slices;
    std::vector<checkpoint::BytesItem> items;
    for (const StatePiece &piece : piecesOf(plan, rank, true)) {
      checkpoint::TensorSlice slice{plan.params[piece.param].name, checkpoint::Element::F32,
                                    layout->shapeOf(piece.param), piece.box, zeros.data()};
      ASSERT_TRUE(
          checkpoint::addParamSlices(slice, piece.part, layout->isGated(piece.param), slices)
              .isOk());
    }
    if (rank == 0)
      items = checkpoint::runStateItems(save::runStateOf(plan, progress));
    for (size_t i = 0; rank == 0 && hasSettings && i < plan.params.size(); ++i) {
      checkpoint::GroupMeta meta = save::groupMetaOf(plan, i, progress);
      for (checkpoint::BytesItem &item : checkpoint::groupMetaItems(plan.params[i].name, meta))
        items.push_back(std::move(item));
    }
    ASSERT_TRUE(checkpoint::writeRank(target, rank, slices, items).isOk());
  }
  ASSERT_TRUE(checkpoint::commitSave(target, static_cast<int>(plan.mesh[0].size)).isOk());
}

// Megatron-FSDP's names contain every wrapper module around the model, one fewer in fp32. The count
// of updates is stored where its Adam keeps it.
TEST(RankSave, NamesOfTheOptimizersStateAreMegatronFsdps) {
  for (bool isHalf : {true, false}) {
    std::string wrappers = isHalf ? "module.module.module." : "module.module.";
    TempFolder folder;
    plan::Plan plan = makePlan(1);
    set(plan, "model.bf16", isHalf);
    auto layout = save::StateLayout::create(plan);
    auto job = save::SaveJob::of(plan, *layout);
    ASSERT_TRUE(job.isOk()) << job.status().message();
    auto target = checkpoint::SaveTarget::iteration(folder.path(), 7);
    ASSERT_TRUE(checkpoint::beginSave(target).isOk());
    save::Progress progress;
    progress.step = progress.applied = 7;
    auto save = save::RankSave::begin(*job, target, 0, progress);
    ASSERT_TRUE(save.isOk()) << save.status().message();
    std::vector<float> zeros(48);
    for (uint32_t cell : layout->cells())
      ASSERT_TRUE(
          save->addCell(cell, 0, reinterpret_cast<const uint8_t *>(zeros.data()), 48 * 4).isOk());
    ASSERT_TRUE(save->finish().isOk());
    Status copied;
    ASSERT_TRUE(save::commitRun(*job, target, progress, copied).isOk());
    auto reader = checkpoint::CheckpointReader::open(target.path());
    ASSERT_TRUE(reader.isOk()) << reader.status().message();
    for (const char *part : {"_w.exp_avg", "_v.exp_avg_sq", "_w.step", "_v.step"})
      EXPECT_NE(reader->findTensor("optimizer.state." + wrappers + kFc1 + part), nullptr)
          << wrappers << part;
    for (const char *field : {".step", ".bias_correction", ".amsgrad"})
      EXPECT_NE(reader->findObject("optimizer.param_to_group_meta." + wrappers + kFc1 + field),
                nullptr)
          << wrappers << field;
    float step = 0;
    ASSERT_TRUE(reader
                    ->read("optimizer.state." + wrappers + kNorm + ".step", {},
                           checkpoint::Element::F32, &step)
                    .isOk());
    EXPECT_EQ(step, 7);
  }
}

/// A loader, and the reports of opening it.
class Opening {
public:
  explicit Opening(const plan::Plan &plan) : loader_(save::Loader::open(plan, reported_.sink())) {}
  bool isOk() const { return loader_.isOk(); }
  const Status &status() const { return loader_.status(); }
  std::unique_ptr<save::Loader> &operator*() { return *loader_; }
  const std::vector<std::string> &remarks() const { return reported_.lines; }
  std::string begin() const { return reported_.notes.empty() ? "" : reported_.notes[0]; }

private:
  Reported reported_;
  Result<std::unique_ptr<save::Loader>> loader_;
};

TEST(Loader, SaysWhereARunBegins) {
  TempFolder folder;
  plan::Plan plan = makePlan(2);
  EXPECT_EQ(*Opening(plan), nullptr);
  set(plan, "checkpoint.load", folder / "saved");
  Opening none(plan);
  ASSERT_TRUE(none.isOk()) << none.status().message();
  EXPECT_FALSE((*none)->hasCheckpoint());
  EXPECT_THAT(none.begin(), HasSubstr("step 0: there is no checkpoint in"));
  set(plan, "checkpoint.exit_on_missing_checkpoint", true);
  EXPECT_EQ(Opening(plan).status().code(), StatusCode::NotFound);
  std::filesystem::create_directory(folder / "saved");
  saveZeros(makePlan(3), folder / "saved", 5);
  saveZeros(makePlan(4), folder / "saved", 7);
  Opening newest(plan);
  ASSERT_TRUE(newest.isOk()) << newest.status().message();
  EXPECT_EQ((*newest)->progress().step, 7);
  EXPECT_EQ((*newest)->batchesConsumed(), 7);
  EXPECT_TRUE((*newest)->isWhole());
  EXPECT_THAT(newest.remarks(), IsEmpty());
  EXPECT_THAT(newest.begin(), HasSubstr("continuing after step 7"));
  EXPECT_THAT(newest.begin(), HasSubstr("latest_checkpointed_iteration.txt"));
  set(plan, "checkpoint.ckpt_step", int64_t{5});
  EXPECT_EQ((*Opening(plan))->progress().step, 5);
  set(plan, "checkpoint.ckpt_step", int64_t{6});
  EXPECT_THAT(said(Opening(plan).status()),
              AllOf(HasSubstr("of step 6"), HasSubstr("[checkpoint-not-found]")));
}

TEST(Loader, TakesACheckpointsOwnFolder) {
  TempFolder folder;
  saveZeros(makePlan(3), folder / "saved", 5);
  saveZeros(makePlan(3), folder / "saved", 7);
  plan::Plan plan = makePlan(2);
  set(plan, "checkpoint.load", folder / "saved/iter_0000005/");
  Opening named(plan);
  ASSERT_TRUE(named.isOk()) << named.status().message();
  EXPECT_EQ((*named)->progress().step, 5);
  EXPECT_THAT(named.begin(), HasSubstr("which checkpoint.load names"));
  std::filesystem::rename(folder / "saved/iter_0000005", folder / "saved/iter_0000009");
  set(plan, "checkpoint.load", folder / "saved/iter_0000009");
  EXPECT_THAT(Opening(plan).begin(), HasSubstr("continuing after step 5"));
  set(plan, "checkpoint.load",
      folder / "saved/iter_0000005"); // the run must not start afresh instead
  EXPECT_EQ(Opening(plan).status().code(), StatusCode::NotFound);
  set(plan, "checkpoint.load", std::string());
  set(plan, "checkpoint.pretrained_checkpoint", folder / "saved/iter_0000009");
  Opening pretrained(plan);
  ASSERT_TRUE(pretrained.isOk()) << pretrained.status().message();
  EXPECT_THAT(pretrained.begin(), HasSubstr("starting at step 0 with the weights"));
  set(plan, "checkpoint.pretrained_checkpoint", folder / "nowhere");
  EXPECT_THAT(Opening(plan).status().message(),
              HasSubstr("checkpoint.pretrained_checkpoint: there is no checkpoint in"));
}

TEST(Loader, ListsWhatDoesNotFit) {
  TempFolder folder;
  saveZeros(makePlan(3), folder.path(), 5);
  plan::Plan plan = makePlan(2);
  set(plan, "checkpoint.load", folder.path());
  plan.params[1].name = "decoder.final_layernorm.weight";
  plan.params[2].type = plan::Type::of(DType::BF16, {4, 4});
  std::string message = Opening(plan).status().message();
  EXPECT_THAT(message, HasSubstr("3 tensors are missing:\n  model.module.decoder.final_layernorm"));
  EXPECT_THAT(said(Opening(plan).status()),
              HasSubstr("does not fit this run [checkpoint-mismatch]\n"));
  EXPECT_THAT(message, HasSubstr("3 tensors have another shape"));
  EXPECT_THAT(message, HasSubstr("[6, 4]"));
  EXPECT_THAT(message, HasSubstr("3 tensors are in the checkpoint but not needed"));
}

TEST(Loader, LoadsInPartWhereOptionsSaySo) {
  TempFolder folder;
  plan::Plan saved = makePlan(3);
  saved.roles[0].cells.resize(2); // without moments
  saveZeros(saved, folder.path(), 5);
  plan::Plan plan = makePlan(2);
  set(plan, "checkpoint.load", folder.path());
  Opening partial(plan);
  ASSERT_TRUE(partial.isOk()) << partial.status().message();
  EXPECT_FALSE((*partial)->isWhole());
  ASSERT_THAT(partial.remarks(), SizeIs(1));
  EXPECT_THAT(partial.remarks()[0],
              AllOf(HasSubstr("6 tensors are missing"), HasSubstr("[loaded-in-part]")));
  set(plan, "checkpoint.strict_fsdp_dtensor_load", true);
  EXPECT_THAT(Opening(plan).status().message(), HasSubstr("Missing key"));
  set(plan, "checkpoint.load_optim", false);
  Opening weights(plan);
  ASSERT_TRUE(weights.isOk()) << weights.status().message();
  EXPECT_FALSE((*weights)->isWhole());
  EXPECT_EQ((*weights)->progress().step, 5);
  EXPECT_EQ((*weights)->progress().applied, 0);
  set(plan, "checkpoint.finetune", true);
  EXPECT_EQ((*Opening(plan))->progress().step, 0);
  EXPECT_THAT(Opening(plan).begin(), HasSubstr("starting at step 0 with the weights"));
}

using checkpoint::PlainEntries;
using checkpoint::PlainValue;

/// A checkpoint whose run state was changed by `change`. Tensors whose names end in `without` are
/// missing.
void saveState(const plan::Plan &plan, const std::string &root,
               const std::function<void(PlainEntries &args, PlainEntries &scheduler)> &change,
               const std::string &without = "nothing") {
  saveZeros(plan, root, 5);
  auto reader = checkpoint::CheckpointReader::open(root + "/iter_0000005");
  ASSERT_TRUE(reader.isOk());
  auto state = checkpoint::readRunState(*reader);
  ASSERT_TRUE(state.isOk());
  change(state->args, state->scheduler);
  auto target = checkpoint::SaveTarget::iteration(root, 6);
  std::vector<checkpoint::BytesItem> items;
  items.push_back(checkpoint::objectItem({"args"}, checkpoint::PlainNamespace{state->args}));
  items.push_back(checkpoint::objectItem({"iteration"}, int64_t{5}));
  for (const auto &[field, value] : state->scheduler)
    items.push_back(checkpoint::objectItem({"opt_param_scheduler", field}, value));
  std::vector<checkpoint::TensorSlice> slices;
  std::vector<float> zeros(64);
  for (const checkpoint::TensorMeta &tensor : reader->metadata().tensors)
    if (!tensor.name.ends_with(without))
      slices.push_back({tensor.name, tensor.type, tensor.shape,
                        checkpoint::Box::whole(tensor.shape), zeros.data(),
                        reader->metadata().paths.at(tensor.name)});
  ASSERT_TRUE(checkpoint::save(target, 0, 1, slices, items).isOk());
}

void setEntry(PlainEntries &entries, const std::string &key, PlainValue value) {
  std::erase_if(entries, [&](const auto &entry) { return entry.first == key; });
  entries.emplace_back(key, std::move(value));
}

// If one of Adam's moments is missing, both begin at zero, and the parameter's update count begins
// at that step.
TEST(Loader, CountsUpdatesWithTheMoments) {
  TempFolder folder;
  plan::Plan plan = makePlan(2);
  auto unchanged = [](PlainEntries &, PlainEntries &) {};
  saveState(plan, folder / "whole", [](PlainEntries &args, PlainEntries &) {
    args.emplace_back(save::kKernelsArgument, std::string("9.0: attention cudnn"));
  });
  set(plan, "checkpoint.load", folder / "whole");
  Opening whole(plan);
  ASSERT_TRUE(whole.isOk()) << whole.status().message();
  EXPECT_EQ((*whole)->progress().kernels, "9.0: attention cudnn");
  EXPECT_EQ(*checkpoint::findEntry(save::runStateOf(plan, (*whole)->progress()).args,
                                   save::kKernelsArgument)
                 ->as<std::string>(),
            "9.0: attention cudnn");
  EXPECT_THAT((*whole)->progress().countOffsets, IsEmpty());
  EXPECT_THAT(whole.remarks(), IsEmpty());
  saveState(plan, folder / "partial", unchanged, kWords + ".exp_avg_sq");
  set(plan, "checkpoint.load", folder / "partial");
  Opening partial(plan);
  ASSERT_TRUE(partial.isOk()) << partial.status().message();
  const save::Progress &progress = (*partial)->progress();
  EXPECT_EQ(progress.applied, 5);
  EXPECT_THAT(progress.countOffsets, ElementsAre(-5, 0, 0));
  EXPECT_EQ(save::groupMetaOf(plan, 0, progress).step, 0);
  EXPECT_EQ(save::groupMetaOf(plan, 1, progress).step, 5);
  ASSERT_THAT(partial.remarks(), SizeIs(1));
  EXPECT_THAT(partial.remarks()[0], HasSubstr("missing moments start to count updates from zero"));
  set(plan, "checkpoint.load_optim", false);
  EXPECT_THAT((*Opening(plan))->progress().countOffsets, IsEmpty());
}

// Norms under their names in Megatron's local layer specification.
TEST(Loader, TakesNormsByTheirLocalNames) {
  TempFolder folder;
  plan::Plan saved = makePlan(3), plan = makePlan(2);
  saved.params[1].name = "decoder.layers.0.pre_mlp_layernorm.weight";
  saveZeros(saved, folder.path(), 5);
  set(plan, "checkpoint.load", folder.path());
  Opening loader(plan);
  ASSERT_TRUE(loader.isOk()) << loader.status().message();
  EXPECT_TRUE((*loader)->isWhole());
  EXPECT_THAT(loader.remarks(), IsEmpty());
}

TEST(Loader, RefusesCountersThatAreNoNumbers) {
  for (const PlainValue &bad :
       {PlainValue(std::nan("")), PlainValue("30"), PlainValue(-6),
        PlainValue(checkpoint::PlainBigInt{"1180591620717411303424"}), PlainValue(1.5)}) {
    TempFolder folder;
    plan::Plan plan = makePlan(2);
    saveState(plan, folder.path(), [&](PlainEntries &args, PlainEntries &) {
      setEntry(args, "consumed_train_samples", bad);
    });
    set(plan, "checkpoint.load", folder.path());
    EXPECT_THAT(Opening(plan).status().message(),
                HasSubstr(fmt::format("is {}, not a number of samples", textOf(bad))));
  }
}

TEST(Loader, TellsWhichSettingsItDoesNotFollow) {
  TempFolder folder;
  plan::Plan plan = makePlan(2);
  saveState(plan, folder / "counted", [](PlainEntries &, PlainEntries &scheduler) {
    setEntry(scheduler, "num_steps", int64_t{12});
  });
  set(plan, "checkpoint.load", folder / "counted");
  Opening counted(plan);
  ASSERT_TRUE(counted.isOk()) << counted.status().message();
  EXPECT_EQ((*counted)->progress().applied, 2);
  ASSERT_THAT(counted.remarks(), SizeIs(1));
  EXPECT_THAT(
      counted.remarks()[0],
      HasSubstr(
          "continues after 2 updates, because its num_steps in the checkpoint is 12 samples in "
          "batches of 6; the checkpoint's iteration is 5 [schedule-continues]"));
  saveState(plan, folder / "broken", [](PlainEntries &, PlainEntries &scheduler) {
    setEntry(scheduler, "num_steps", std::nan(""));
  });
  set(plan, "checkpoint.load", folder / "broken");
  Opening broken(plan);
  ASSERT_TRUE(broken.isOk()) << broken.status().message();
  EXPECT_EQ((*broken)->progress().applied, 5);
  EXPECT_THAT(broken.remarks()[0], AllOf(HasSubstr("num_steps is nan in the checkpoint"),
                                         HasSubstr("[schedule-unknown]")));
  saveState(plan, folder / "padded", [](PlainEntries &args, PlainEntries &) {
    setEntry(args, "padded_vocab_size", int64_t{8});
  });
  set(plan, "checkpoint.load", folder / "padded");
  set(plan, "model.vocab_size", int64_t{6});
  set(plan, "derived.padded_vocab_size", int64_t{8});
  Opening padded(plan);
  ASSERT_TRUE(padded.isOk()) << padded.status().message();
  EXPECT_THAT(padded.remarks(), ::testing::Contains(HasSubstr(
                                    "'model.mask_padded_vocab = false' restores the former setting "
                                    "[padding-mask-changed]")));
}

TEST(Loader, TellsEachDifferenceByItsId) {
  struct Row {
    const char *id;
    std::function<void(PlainEntries &args, PlainEntries &scheduler)> change;
  };
  const std::vector<Row> rows = {
      {"[schedule-changed]",
       [](PlainEntries &, PlainEntries &scheduler) { setEntry(scheduler, "max_lr", 0.25); }},
      {"[vocabulary-changed]",
       [](PlainEntries &args, PlainEntries &) { setEntry(args, "vocab_size", int64_t{2}); }},
      {"[batch-changed]",
       [](PlainEntries &args, PlainEntries &) { setEntry(args, "global_batch_size", int64_t{3}); }},
      {"[samples-assumed]", [](PlainEntries &args, PlainEntries &) {
         std::erase_if(args,
                       [](const auto &entry) { return entry.first == "consumed_train_samples"; });
       }}};
  for (const Row &row : rows) {
    TempFolder folder;
    plan::Plan plan = makePlan(2);
    set(plan, "model.vocab_size", int64_t{3});
    saveState(plan, folder.path(), row.change);
    set(plan, "checkpoint.load", folder.path());
    Opening opened(plan);
    ASSERT_TRUE(opened.isOk()) << opened.status().message();
    EXPECT_THAT(opened.remarks(), ::testing::Contains(HasSubstr(row.id)));
  }
}

TEST(Loader, TellsThatALossScaleBeginsAnew) {
  TempFolder folder;
  plan::Plan plan = makePlan(2);
  saveState(plan, folder.path(), [](PlainEntries &, PlainEntries &) {});
  set(plan, "checkpoint.load", folder.path());
  set(plan, "model.fp16", true);
  set(plan, "optimizer.initial_loss_scale", 1024.0);
  Opening opened(plan);
  ASSERT_TRUE(opened.isOk()) << opened.status().message();
  EXPECT_THAT(opened.remarks(),
              ::testing::Contains(
                  HasSubstr("does not contain the state of the loss scale; it begins at 1024, as "
                            "in a new run [loss-scale-unknown]")));
}

TEST(Loader, TellsThatAmaxesBeginAnew) {
  TempFolder folder;
  plan::Plan plan = makePlan(2);
  saveState(plan, folder.path(), [](PlainEntries &, PlainEntries &) {});
  set(plan, "checkpoint.load", folder.path());
  plan::addCell(plan.roles[0], "history", plan::CellKind::AmaxHistory,
                plan::Type::of(DType::F32, {16, 3}), plan::Arena::State, plan::Purpose::Step);
  Opening opened(plan);
  EXPECT_THAT(opened.remarks(), ::testing::Contains(HasSubstr("16 steps of 3 tensors")));
  EXPECT_THAT(opened.remarks(), ::testing::Contains(HasSubstr("[amax-history-unknown]")));
}

// Megatron continues with the checkpoint's betas and eps; shardc uses the recipe's.
TEST(Loader, TellsWhichSettingsOfAdamItDoesNotFollow) {
  TempFolder folder;
  plan::Plan plan = makePlan(2);
  set(plan, "optimizer.adam_beta2", 0.95);
  set(plan, "optimizer.adam_eps", 0.125);
  saveZeros(plan, folder.path(), 5, /*hasSettings=*/true);
  set(plan, "checkpoint.load", folder.path());
  Opening same(plan);
  ASSERT_TRUE(same.isOk()) << same.status().message();
  EXPECT_THAT(same.remarks(), IsEmpty());
  set(plan, "optimizer.adam_beta1", 0.75);
  set(plan, "optimizer.adam_eps", 0.25);
  Opening other(plan);
  ASSERT_TRUE(other.isOk()) << other.status().message();
  EXPECT_THAT(
      other.remarks(),
      ElementsAre("remark: the optimizer's betas is (0.8, 0.95) in the checkpoint and (0.75, 0.95) "
                  "in the recipe; the recipe's is used; Megatron would use the "
                  "checkpoint's [optimizer-changed]",
                  "remark: the optimizer's eps is 0.125 in the checkpoint and 0.25 in the "
                  "recipe; the recipe's is used; Megatron would use the checkpoint's "
                  "[optimizer-changed]"));
}

// The differences that each value of dist_ckpt_strictness refuses: missing moments, missing
// weights, and unexpected tensors. All values refuse differing sizes.
TEST(Loader, EachStrictnessRefusesWhatItSays) {
  TempFolder folder;
  plan::Plan bare = makePlan(3);
  bare.roles[0].cells.resize(2); // without moments
  saveZeros(bare, folder / "bare", 5);
  saveZeros(makePlan(3), folder / "whole", 5);
  plan::Plan moments = makePlan(2), weights = makePlan(2), surplus = makePlan(2),
             sizes = makePlan(2);
  weights.params[1].name = "decoder.final_layernorm.weight";
  surplus.roles[0].cells.resize(2);
  sizes.params[2].type = plan::Type::of(DType::BF16, {4, 4});
  set(moments, "checkpoint.load", folder / "bare");
  for (plan::Plan *plan : {&weights, &surplus, &sizes})
    set(*plan, "checkpoint.load", folder / "whole");

  struct Row {
    const char *strictness;
    bool moments, weights, surplus; ///< whether they are refused
  };
  for (const Row &row :
       {Row{"assume_ok_unexpected", false, true, false}, Row{"log_unexpected", false, true, false},
        Row{"log_all", false, true, false}, Row{"raise_unexpected", true, true, false},
        Row{"raise_all", true, true, true}, Row{"return_unexpected", false, true, false},
        Row{"return_all", false, true, false}, Row{"ignore_all", false, false, false}}) {
    auto isRefused = [&](plan::Plan plan) {
      set(plan, "checkpoint.dist_ckpt_strictness", std::string(row.strictness));
      Opening loader(plan);
      if (loader.isOk()) { // a difference that is not refused is reported
        EXPECT_THAT(loader.remarks(), SizeIs(1)) << row.strictness;
      }
      return !loader.isOk();
    };
    EXPECT_EQ(isRefused(moments), row.moments) << row.strictness;
    EXPECT_EQ(isRefused(weights), row.weights) << row.strictness;
    EXPECT_EQ(isRefused(surplus), row.surplus) << row.strictness;
    EXPECT_TRUE(isRefused(sizes)) << row.strictness;
  }
}

TEST(Loader, RefusesAnotherModelAndAnotherBatch) {
  TempFolder folder;
  saveZeros(makePlan(3), folder.path(), 5);
  plan::Plan plan = makePlan(2);
  set(plan, "checkpoint.load", folder.path());
  set(plan, "train.global_batch_size", int64_t{4});
  EXPECT_THAT(Opening(plan).status().message(),
              AllOf(HasSubstr("consumed 30 samples"), HasSubstr("'train.global_batch_size = 6'"),
                    HasSubstr("checkpoint.finetune = true")));
  set(plan, "train.global_batch_size", int64_t{10});
  Opening larger(plan);
  ASSERT_TRUE(larger.isOk()) << larger.status().message();
  EXPECT_EQ((*larger)->batchesConsumed(), 3);
  set(plan, "model.num_layers", int64_t{2});
  EXPECT_THAT(
      Opening(plan).status().message(),
      HasSubstr(
          "num_layers value from checkpoint (1) is not equal to the input argument value (2)."));
}

TEST(Loader, TakesVocabulariesPaddedOtherwise) {
  TempFolder folder;
  saveZeros(makePlan(3), folder.path(), 5);
  plan::Plan plan = makePlan(1);
  set(plan, "checkpoint.load", folder.path());
  plan.blocks[0] = {"all", -1, 52, 52, 0, 52, 0};
  for (plan::Cell &cell : plan.roles[0].cells)
    cell.type.shape[0] = 52;
  plan.params[0].type = plan::Type::of(DType::BF16, {4, 4});
  plan.params[1].offset = 16;
  plan.params[2].offset = 20;
  Opening loader(plan);
  ASSERT_TRUE(loader.isOk()) << loader.status().message();
  EXPECT_TRUE((*loader)->isWhole());
  ASSERT_THAT(loader.remarks(), SizeIs(1));
  EXPECT_THAT(loader.remarks()[0], AllOf(HasSubstr("has 3 rows in the checkpoint and 4 here"),
                                         HasSubstr("[padding-rows]")));
  set(plan, "model.vocab_size", int64_t{4});
  EXPECT_THAT(Opening(plan).status().message(), HasSubstr("3 tensors have another shape"));
}

} // namespace
} // namespace shardc::test
