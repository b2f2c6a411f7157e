// Megatron's names, gated layers, group metadata and the messages of incomplete loads.
#include <gtest/gtest.h>

#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

const std::string kFc1 = "decoder.layers.0.mlp.linear_fc1.weight";

TEST(FsdpNames, PathsAreMegatrons) {
  EXPECT_EQ(nameOfPath(tensorPath(kFc1, ParamPart::Weight)), "model.module." + kFc1);
  EXPECT_EQ(nameOfPath(tensorPath(kFc1, ParamPart::ExpAvgSq)),
            "optimizer.state.module.module.module." + kFc1 + ".exp_avg_sq");
  EXPECT_EQ(nameOfPath(groupMetaPath(kFc1, "lr")),
            "optimizer.param_to_group_meta.module.module.module." + kFc1 + ".lr");
  EXPECT_EQ(nameOfPath(adamStepPath(kFc1)),
            "optimizer.state.module.module.module." + kFc1 + ".step");
}

TEST(FsdpNames, WithoutTheModuleOfBf16TheOptimizersHaveOneLess) {
  constexpr FsdpPrecision kFp32 = FsdpPrecision::Fp32;
  EXPECT_EQ(nameOfPath(tensorPath(kFc1, ParamPart::Weight, kFp32)), "model.module." + kFc1);
  EXPECT_EQ(nameOfPath(tensorPath(kFc1, ParamPart::ExpAvg, kFp32)),
            "optimizer.state.module.module." + kFc1 + ".exp_avg");
  EXPECT_EQ(nameOfPath(adamStepPath(kFc1, kFp32)),
            "optimizer.state.module.module." + kFc1 + ".step");
  EXPECT_EQ(nameOfPath(groupMetaPath(kFc1, "lr", kFp32)),
            "optimizer.param_to_group_meta.module.module." + kFc1 + ".lr");
}

TEST(FsdpNames, GatedLayersAreTheFirstOfAnMlp) {
  for (const char *name :
       {"decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.bias",
        "decoder.layers.3.mlp.experts.linear_fc1.weight7",
        "decoder.layers.3.mlp.experts.linear_fc1.bias12",
        "decoder.layers.3.mlp.experts.local_experts.4.linear_fc1.weight",
        "decoder.layers.3.mlp.shared_experts.linear_fc1.weight",
        "mtp.layers.0.transformer_layer.mlp.linear_fc1.weight"})
    EXPECT_TRUE(isGateable(name)) << name;
  for (const char *name :
       {"decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc1.weight7",
        "decoder.layers.3.mlp.experts.linear_fc1.weight",
        "decoder.layers.3.mlp.experts.linear_fc1.weightx", "decoder.layers.0.linear_fc1.weight",
        "decoder.layers.3.mlp.experts.local_experts.x.linear_fc1.weight", "weight", "", "."})
    EXPECT_FALSE(isGateable(name)) << name;
  EXPECT_EQ(splitNames("mlp.experts.linear_fc1.weight7")[0], "mlp.experts.linear_fc1.weight7_w");
}

TEST(FsdpNames, OtherSpellingsMeanTheSame) {
  for (const char *key : {"model.module.decoder.x", "model.decoder.x",
                          "model.module.module.decoder.x", "model.module..decoder.x"})
    EXPECT_EQ(parseTensorKey(key)->name, "decoder.x") << key;
  for (const char *key : {"optimizer.state.module.module.module.decoder.x.exp_avg",
                          "optimizer.state.module.module.decoder.x.exp_avg",
                          "optimizer.state.module.module.module..decoder.x.exp_avg"}) {
    EXPECT_EQ(parseTensorKey(key)->name, "decoder.x") << key;
    EXPECT_EQ(parseTensorKey(key)->part, ParamPart::ExpAvg) << key;
  }
  EXPECT_EQ(plainName("mtp.layers.0.mtp_model_layer.mlp.x"),
            "mtp.layers.0.transformer_layer.mlp.x");
  EXPECT_FALSE(parseTensorKey("optimizer.state.module.x.step"));
  EXPECT_EQ(parseAdamStepKey("optimizer.state.module.module.x.step"), "x");
  for (const char *key : {"optimizer.state.step", "optimizer.state.x.exp_avg", "model.x.step"})
    EXPECT_FALSE(parseAdamStepKey(key)) << key;
  EXPECT_FALSE(parseTensorKey("rng_state.x"));
  EXPECT_FALSE(parseTensorKey("model"));
  EXPECT_EQ(
      parseGroupMetaKey("optimizer.param_to_group_meta.module.module.module..decoder.x.lr")->name,
      "decoder.x");
}

/// Saves a parameter with its moments on ranks that hold equal shares of rows; element i is i plus
/// 1000 per part.
void saveParam(const SaveTarget &target, const std::string &name, const Shape &shape, int ranks,
               bool isGated) {
  ASSERT_OK(beginSave(target));
  std::vector<float> values(static_cast<size_t>(*elementCount(shape)));
  int64_t rowSize = *elementCount(ShapeView(shape).subspan(1));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<TensorSlice> slices;
    std::vector<std::vector<float>> parts;
    for (ParamPart part : kParamParts) {
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i + 1000 * static_cast<size_t>(part));
      parts.push_back(values);
    }
    RowRange rows = shareOfRows(shape[0], rank, ranks);
    Box box = Box::rows(shape, rows.begin, rows.end - rows.begin);
    for (ParamPart part : kParamParts) {
      const float *data = parts[static_cast<size_t>(part)].data() + rows.begin * rowSize;
      ASSERT_OK(addParamSlices({name, Element::F32, shape, box, data}, part, isGated, slices));
    }
    std::vector<BytesItem> items;
    if (rank == 0) {
      GroupMeta meta;
      meta.lr = 0.5;
      meta.step = 12;
      meta.beta2 = 0.95;
      items = groupMetaItems(name, meta);
    }
    ASSERT_OK(writeRank(target, rank, slices, items));
  }
  ASSERT_OK(commitSave(target, ranks));
}

Result<FsdpCheckpoint> openFsdp(const std::string &folder) {
  Result<CheckpointReader> reader = CheckpointReader::open(folder);
  if (!reader.isOk())
    return reader.status();
  return FsdpCheckpoint::open(std::move(*reader));
}

TEST(FsdpCheckpoint, GatedLayersAreSplitAndJoinedAtAnyCut) {
  for (int ranks : {1, 2, 3, 5}) {
    TempFolder folder;
    saveParam({folder.path(), "c"}, kFc1, {12, 3}, ranks, true);
    Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
    ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->reader().findTensor("model.module." + kFc1 + "_w")->shape, (Shape{6, 3}));
    EXPECT_EQ(checkpoint->shapeOf(kFc1, ParamPart::ExpAvg), (Shape{12, 3}));
    EXPECT_EQ(checkpoint->names(), std::vector<std::string>{kFc1});
    for (int64_t begin = 0; begin < 12; ++begin)
      for (int64_t rows = 0; rows <= 12 - begin; ++rows) {
        std::vector<float> got(static_cast<size_t>(rows * 3));
        ASSERT_OK(checkpoint->read(kFc1, ParamPart::ExpAvg, {{begin, 0}, {rows, 3}}, Element::F32,
                                   got.data()));
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_EQ(got[i], static_cast<float>(1000 + begin * 3) + static_cast<float>(i));
      }
  }
}

TEST(FsdpCheckpoint, UngatedLayersStayWhole) {
  TempFolder folder;
  saveParam({folder.path(), "c"}, kFc1, {5, 2}, 2, false);
  Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
  ASSERT_TRUE(checkpoint.isOk());
  EXPECT_NE(checkpoint->reader().findTensor("model.module." + kFc1), nullptr);
  EXPECT_EQ(checkpoint->shapeOf(kFc1, ParamPart::Weight), (Shape{5, 2}));
}

TEST(FsdpCheckpoint, OddGatedLayersAreRefused) {
  float values[10] = {};
  std::vector<TensorSlice> slices;
  EXPECT_FAILS(addParamSlices({kFc1, Element::F32, {5, 2}, Box::whole({5, 2}), values},
                              ParamPart::Weight,
                              /*isGated=*/true, slices),
               "cannot be split into halves");
}

TEST(FsdpCheckpoint, GroupMetadataComeBack) {
  TempFolder folder;
  saveParam({folder.path(), "c"}, kFc1, {4, 2}, 2, true);
  Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
  ASSERT_TRUE(checkpoint.isOk());
  Result<GroupMeta> meta = checkpoint->groupMeta(kFc1);
  ASSERT_TRUE(meta.isOk()) << meta.status().message();
  EXPECT_EQ(meta->lr, 0.5);
  EXPECT_EQ(meta->step, 12);
  EXPECT_EQ(meta->beta2, 0.95);
  EXPECT_FAILS(checkpoint->groupMeta("other").status(),
               "Parameter other not found in param_to_group_meta mapping.");
}

/// Settings in the form in which torch up to 2.3 saves a dictionary without tensors: as one object.
PlainEntries wholeSettings(int64_t step) {
  return {{"lr", 0.5},    {"betas", PlainTuple{{0.9, 0.95}}},
          {"eps", 1e-8},  {"weight_decay", 0.1},
          {"step", step}, {"wd_mult", 1.0}};
}

/// Saves a gated and a plain weight, and the given objects.
void saveOldLayout(const SaveTarget &target, const std::vector<BytesItem> &items) {
  const float values[8] = {};
  std::vector<TensorSlice> slices;
  ASSERT_OK(addParamSlices({kFc1, Element::F32, {4, 2}, Box::whole({4, 2}), values},
                           ParamPart::Weight, /*isGated=*/true, slices));
  ASSERT_OK(
      addParamSlices({"decoder.final_layernorm.weight", Element::F32, {8}, Box::whole({8}), values},
                     ParamPart::Weight, /*isGated=*/false, slices));
  ASSERT_OK(save(target, 0, 1, slices, items));
}

std::string wrapped(const std::string &name) { return "module.module.module." + name; }

TEST(FsdpCheckpoint, DictionariesSavedAsOneObjectAreRead) {
  const std::string kNorm = "decoder.final_layernorm.weight",
                    kFused = "x.linear_qkv_down_proj.weight";
  TempFolder folder;
  PlainEntries scheduler = {{"max_lr", 0.25}, {"num_steps", 40}};
  BytesItem schedule = objectItem({"opt_param_scheduler"}, scheduler);
  BytesItem iteration = objectItem({"iteration"}, 5);
  const ItemPath kMeta = {"optimizer", "param_to_group_meta"};
  auto of = [&](const std::string &name, int64_t step) {
    ItemPath path = kMeta;
    path.emplace_back(wrapped(name));
    return objectItem(path, wholeSettings(step));
  };
  saveOldLayout({folder.path(), "each"},
                {schedule, iteration, of(kFc1, 7), of(kNorm, 8), of(kFused, 9)});
  saveOldLayout({folder.path(), "all"},
                {schedule, iteration,
                 objectItem(kMeta, PlainEntries{{wrapped(kFc1), wholeSettings(7)},
                                                {wrapped(kNorm), wholeSettings(8)},
                                                {wrapped(kFused), wholeSettings(9)}})});
  for (const char *name : {"each", "all"}) {
    Result<FsdpCheckpoint> checkpoint = openFsdp(folder / name);
    ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->groupMeta(kFc1)->step, 7) << name;
    EXPECT_EQ(checkpoint->groupMeta(kNorm)->beta2, 0.95) << name;
    EXPECT_EQ((*checkpoint->setting(kNorm, "step"))->wholeNumber(), 8) << name;
    // No tensor of the checkpoint has this name.
    EXPECT_EQ((*checkpoint->setting(kFused, "step"))->wholeNumber(), 9) << name;
    EXPECT_FALSE(checkpoint->setting("decoder", "step")->has_value()) << name;
    Result<RunState> state = readRunState(checkpoint->reader());
    ASSERT_TRUE(state.isOk()) << state.status().message();
    EXPECT_EQ(textOf(PlainValue(state->scheduler)), textOf(PlainValue(scheduler))) << name;
  }
}

// PyTorch's own Adam counts updates with each tensor's moments, so a gated layer, which is saved in
// halves, has two counts.
TEST(FsdpCheckpoint, UpdatesThatAreCountedWithTheMomentsAreRead) {
  for (FsdpPrecision precision : {FsdpPrecision::Half, FsdpPrecision::Fp32}) {
    TempFolder folder;
    const float step = 12, values[8] = {};
    std::vector<TensorSlice> slices = adamStepSlices(kFc1, /*isGated=*/true, step, precision);
    ASSERT_EQ(slices.size(), 2u);
    ASSERT_OK(addParamSlices({kFc1, Element::F32, {4, 2}, Box::whole({4, 2}), values},
                             ParamPart::Weight, /*isGated=*/true, slices, precision));
    for (const TensorSlice &slice : adamStepSlices("decoder.layers.0.input_layernorm.weight",
                                                   /*isGated=*/true, step, precision))
      slices.push_back(slice);
    std::vector<BytesItem> items = groupMetaItems(kFc1, {}, precision);
    EXPECT_EQ(
        std::erase_if(items, [](const BytesItem &item) { return item.name.ends_with(".step"); }),
        1u);
    EXPECT_TRUE(std::ranges::any_of(
        items, [](const BytesItem &item) { return item.name.ends_with(".amsgrad"); }));
    ASSERT_OK(save({folder.path(), "c"}, 0, 1, slices, items));
    Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
    ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->groupMeta(kFc1)->step, 12);
    for (const std::string &name :
         {kFc1, std::string("decoder.layers.0.self_attention.linear_qkv.layer_norm_weight")})
      EXPECT_EQ((*checkpoint->setting(name, "step"))->wholeNumber(), 12) << name;
    EXPECT_FALSE(checkpoint->setting("decoder.final_layernorm.weight", "step")->has_value());
    EXPECT_EQ(checkpoint->names(), std::vector<std::string>{kFc1});
  }
}

TEST(FsdpCheckpoint, ObjectsThatAreNoDictionariesAreRefusedByName) {
  TempFolder folder;
  saveOldLayout({folder.path(), "schedule"},
                {objectItem({"iteration"}, 5), objectItem({"opt_param_scheduler"}, 3)});
  EXPECT_FAILS(readRunState(openFsdp(folder / "schedule")->reader()).status(),
               "'opt_param_scheduler' in '" + folder.path() + "/schedule' is 3, not a dictionary");
  const ItemPath kOne = {"optimizer", "param_to_group_meta", wrapped(kFc1)};
  saveOldLayout({folder.path(), "one"}, {objectItem(kOne, 3)});
  EXPECT_FAILS(openFsdp(folder / "one").status(), kFc1 + "' in '");
  saveOldLayout({folder.path(), "all"},
                {objectItem({"optimizer", "param_to_group_meta"}, PlainEntries{{kFc1, 3}})});
  EXPECT_FAILS(openFsdp(folder / "all").status(), "the settings of '" + kFc1 + "' are 3");
}

TEST(FsdpCheckpoint, DamagedSettingsAreNotPassedOver) {
  TempFolder folder;
  saveOldLayout({folder.path(), "c"}, groupMetaItems(kFc1, {}));
  // Checkpoints of other programs have no such file.
  std::filesystem::remove(folder / "c/.shardc_integrity");
  std::string path = folder / "c/__0_0.distcp", bytes = contentsOf(path);
  for (size_t at = bytes.find("data.pkl"); at != std::string::npos;
       at = bytes.find("data.pkl", at + 1))
    bytes[at] = 'x';
  putContents(path, bytes);
  Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  EXPECT_FAILS(checkpoint->groupMeta(kFc1).status(), "__0_0.distcp");
  EXPECT_FAILS(checkpoint->setting(kFc1, "step").status(), "__0_0.distcp");
}

TEST(FsdpCheckpoint, TorchsOwnFixtureHasItsParameters) {
  Result<FsdpCheckpoint> checkpoint = openFsdp(fixture("B"));
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  const std::string kName = "decoder.layers.0.mlp.linear_fc2.weight";
  EXPECT_EQ(checkpoint->shapeOf(kName, ParamPart::ExpAvgSq), (Shape{6, 4}));
  Result<GroupMeta> meta = checkpoint->groupMeta(kName);
  ASSERT_TRUE(meta.isOk()) << meta.status().message();
  EXPECT_EQ(meta->step, 7);
  EXPECT_EQ(meta->beta1, 0.9);
}

TEST(FsdpCheckpoint, PaddedRowsAreZeros) {
  TempFolder folder;
  saveParam({folder.path(), "c"}, "embedding.word_embeddings.weight", {3, 2}, 1, false);
  Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
  ASSERT_TRUE(checkpoint.isOk());
  const std::string kName = "embedding.word_embeddings.weight";
  std::vector<float> got(6, 9.0f);
  ASSERT_OK(
      checkpoint->read(kName, ParamPart::Weight, {{2, 0}, {3, 2}}, Element::F32, got.data(), true));
  EXPECT_EQ(got, (std::vector<float>{4, 5, 0, 0, 0, 0}));
  ASSERT_OK(
      checkpoint->read(kName, ParamPart::Weight, {{4, 0}, {3, 2}}, Element::F32, got.data(), true));
  EXPECT_EQ(got, std::vector<float>(6, 0.0f));
  EXPECT_FAILS(
      checkpoint->read(kName, ParamPart::Weight, {{2, 0}, {3, 2}}, Element::F32, got.data()),
      "is not inside");
}

TEST(FsdpCheckpoint, ReportsAllThatDoesNotFit) {
  TempFolder folder;
  saveParam({folder.path(), "c"}, kFc1, {4, 2}, 1, true);
  Result<FsdpCheckpoint> checkpoint = openFsdp(folder / "c");
  ASSERT_TRUE(checkpoint.isOk());
  std::vector<ParamRequest> requests = {{kFc1, ParamPart::Weight, {4, 2}, true}};
  LoadDifferences fits = checkpoint->check(requests);
  EXPECT_TRUE(fits.isComplete());
  EXPECT_EQ(fits.unexpected.size(), 6u); // halves of all moments
  ASSERT_OK(loadStatus(fits, true, 0, "c"));
  requests[0].shape = {4, 3};
  EXPECT_FAILS(loadStatus(checkpoint->check(requests), false, 0, "c"),
               "Size mismatch between saved torch.Size([4, 2]) and current: torch.Size([4, 3]) for "
               "model.module." +
                   kFc1);
  requests = {{"a", ParamPart::ExpAvg, {1}, false}};
  EXPECT_FAILS(
      loadStatus(checkpoint->check(requests), true, 0, "c"),
      "Missing key in checkpoint state_dict: optimizer.state.module.module.module.a.exp_avg.");
  EXPECT_OK(loadStatus(checkpoint->check(requests), false, 0, "c"));
  for (int i = 0; i < 30; ++i)
    requests.push_back({"layer." + std::to_string(i), ParamPart::Weight, {1}, false});
  Status partial = loadStatus(checkpoint->check(requests), false, 3, "/run/c");
  EXPECT_FAILS(
      Status(partial),
      "Megatron-FSDP checkpoint load is incomplete: rank 3 requests 30 model parameter(s) not "
      "present in the checkpoint at /run/c, which would silently keep their initialized values.");
  EXPECT_FAILS(Status(partial), "\n  model.module.layer.19\n  and 10 more");
}

TEST(FsdpCheckpoint, StageLocalLayersAreRefused) {
  TempFolder folder;
  float value = 1;
  TensorSlice slice{"model0.module.decoder.x", Element::F32, {1}, {{0}, {1}}, &value};
  ASSERT_OK(save({folder.path(), "c"}, 0, 1, {&slice, 1}, {}));
  EXPECT_FAILS(openFsdp(folder / "c").status(), "virtual pipeline stages");
}

TEST(RunState, ComesBack) {
  TempFolder folder;
  RunState state;
  state.iteration = 42;
  state.consumedTrainSamples = 1000;
  state.floatingPointOperations = 1e21;
  state.args = {{"num_layers", 2}, {"params_dtype", Element::BF16}};
  state.scheduler = {{"max_lr", 1e-3}, {"lr_decay_style", "cosine"}};
  ASSERT_OK(save({folder.path(), "c"}, 0, 1, {}, runStateItems(state)));
  Result<CheckpointReader> reader = CheckpointReader::open(folder / "c");
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  Result<RunState> read = readRunState(*reader);
  ASSERT_TRUE(read.isOk()) << read.status().message();
  EXPECT_EQ(read->iteration, 42);
  EXPECT_EQ(read->consumedTrainSamples, 1000);
  EXPECT_EQ(read->floatingPointOperations, 1e21);
  EXPECT_EQ(read->checkpointVersion, 3.0);
  EXPECT_EQ(read->scheduler.size(), 2u);
  EXPECT_EQ(textOf(read->args[1].second), "torch.bfloat16");
}

/// A checkpoint of an fp16 run, whose loss scale is in one of the forms in which programs save it.
RunState runWithScale(const TempFolder &folder, const std::string &name,
                      std::vector<TensorSlice> slices, std::vector<BytesItem> scale) {
  scale.push_back(objectItem({"iteration"}, 5));
  scale.push_back(objectItem({"optimizer", "grad_scaler", "growth_tracker"}, 7));
  EXPECT_OK(save({folder.path(), name}, 0, 1, slices, scale));
  Result<CheckpointReader> reader = CheckpointReader::open(folder / name);
  EXPECT_TRUE(reader.isOk()) << reader.status().message();
  Result<RunState> state = readRunState(*reader);
  EXPECT_TRUE(state.isOk()) << state.status().message();
  return state.isOk() ? *state : RunState();
}

TEST(RunState, TheLossScaleIsReadInEveryForm) {
  TempFolder folder;
  const ItemPath path = {"optimizer", "grad_scaler", "scale"};
  float scale = 4096;
  const RunState states[] = {
      runWithScale(folder, "number", {}, {objectItem(path, 4096.0)}),
      runWithScale(folder, "object", {}, {tensorItem(path, scale)}),
      runWithScale(folder, "tensor", {{nameOfPath(path), Element::F32, {1}, {{0}, {1}}, &scale}},
                   {})};
  for (const RunState &state : states) {
    const PlainValue *read = findEntry(state.gradScaler, "scale");
    ASSERT_NE(read, nullptr);
    EXPECT_EQ(read->number(), 4096);
    EXPECT_EQ(findEntry(state.gradScaler, "growth_tracker")->wholeNumber(), 7);
  }
  // We write what Megatron's loader expects: the scale in a tensor.
  RunState state = states[0];
  for (const BytesItem &item : runStateItems(state))
    if (item.name == nameOfPath(path)) {
      EXPECT_EQ(item.record, tensorItem(path, scale).record);
    }
}

TEST(RunState, WhatIsNotPlainIsNamedWithFileAndItem) {
  TempFolder folder;
  PyGraph graph;
  Result<BytesItem> thing =
      objectItem({"opt_param_scheduler", "max_lr"}, graph, graph.call("some.module", "Thing", {}));
  ASSERT_TRUE(thing.isOk()) << thing.status().message();
  std::vector<BytesItem> items = {objectItem({"iteration"}, 5), *thing};
  ASSERT_OK(save({folder.path(), "c"}, 0, 1, {}, items));
  Result<CheckpointReader> reader = CheckpointReader::open(folder / "c");
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  Status status = readRunState(*reader).status();
  EXPECT_FAILS(Status(status),
               "'opt_param_scheduler.max_lr' in '" + folder.path() + "/c/__0_0.distcp' at byte ");
  EXPECT_FAILS(Status(status), "an object of 'some.module.Thing', which is not a plain value");
  std::vector<float> values = {1, 2};
  TensorSlice slice{"optimizer.grad_scaler.scale", Element::F32, {2}, {{0}, {2}}, values.data()};
  ASSERT_OK(save({folder.path(), "d"}, 0, 1, {&slice, 1}, {items.data(), 1}));
  Result<CheckpointReader> second = CheckpointReader::open(folder / "d");
  ASSERT_TRUE(second.isOk()) << second.status().message();
  EXPECT_FAILS(readRunState(*second).status(), "'optimizer.grad_scaler.scale' in checkpoint '" +
                                                   folder.path() +
                                                   "/d' has the shape [2]; one number is needed");
}

TEST(RunState, TrainStateIsADictOfScalars) {
  RunState state;
  state.iteration = 7;
  Result<std::string> file = trainStateFile(state);
  ASSERT_TRUE(file.isOk());
  Result<ArchiveReader> archive = ArchiveReader::open(bytesOf(*file));
  ASSERT_TRUE(archive.isOk()) << archive.status().message();
  Result<Pickle> pickle = readPickle(archive->find("data.pkl")->data, PickleContext::TensorRecord);
  ASSERT_TRUE(pickle.isOk()) << pickle.status().message();
  std::span<const PyId> pairs = pickle->graph.items(pickle->root);
  ASSERT_EQ(pairs.size(), 2 * 8u);
  EXPECT_EQ(pickle->graph.asText(pairs[0]), "step");
  Result<TensorView> step = tensorOf(*archive, pickle->graph, pairs[1]);
  ASSERT_TRUE(step.isOk()) << step.status().message();
  EXPECT_OK(archive->verify(*step->entry));
  int64_t count = 0;
  ASSERT_EQ(step->type, Element::I64);
  std::memcpy(&count, step->origin(), sizeof count);
  EXPECT_EQ(count, 7);
}

TEST(RunState, GeneratorStatesHaveTheirShapes) {
  Result<RngItems> items = rngItems(1234, 0, 1);
  ASSERT_TRUE(items.isOk()) << items.status().message();
  EXPECT_EQ(items->tensors[0].name, "rng_state.(0, 1).0.torch_rng_state");
  EXPECT_EQ(items->tensors[0].box.shape, Shape{5056});
  EXPECT_EQ(items->objects.size(), 2u);
  uint64_t words[3];
  std::memcpy(words, static_cast<const char *>(items->tensors[0].data) + 24, sizeof words);
  EXPECT_EQ(words[0], 1234u); // the values that torch gives for this seed
  EXPECT_EQ(words[1], 3159640283u);
  EXPECT_EQ(words[2], 4062961311u);
}

} // namespace
} // namespace shardc::checkpoint
