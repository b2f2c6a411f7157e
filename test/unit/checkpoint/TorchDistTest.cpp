// Megatron's torch_dist: every form of key is read by parameter name, and converted both ways.
#include <thread>

#include <gtest/gtest.h>

#include "runtime/checkpoint/Convert.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

/// A torch_dist folder of whole tensors. Element i of a tensor is i plus a number that is different
/// for each tensor.
class Source {
public:
  explicit Source(const std::string &root) : target_{root, "in"} {}

  void add(const std::string &key, Shape shape, float first, Element type = Element::F32) {
    std::string &bytes =
        storage_.emplace_back(static_cast<size_t>(*tensorBytes(type, shape)), '\0');
    int64_t count = *elementCount(shape);
    for (int64_t i = 0; i < count; ++i) {
      float value = first + static_cast<float>(i);
      convertElements(Element::F32, reinterpret_cast<const uint8_t *>(&value), type,
                      reinterpret_cast<uint8_t *>(bytes.data()) + i * elementBits(type) / 8, 1);
    }
    slices_.push_back({key, type, shape, Box::whole(shape), bytes.data()});
  }
  void add(BytesItem item) { items_.push_back(std::move(item)); }

  std::string finish(const char *backend = "torch_dist") {
    EXPECT_OK(beginSave(target_));
    EXPECT_OK(writeRank(target_, 0, slices_, items_));
    EXPECT_OK(
        addFile(target_, "metadata.json", fmt::format("{{\"sharded_backend\": \"{}\"}}", backend)));
    EXPECT_OK(commitSave(target_, 1));
    return target_.path();
  }

private:
  SaveTarget target_;
  std::deque<std::string> storage_;
  std::vector<TensorSlice> slices_;
  std::vector<BytesItem> items_;
};

std::vector<float> counted(size_t count, float first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = first + static_cast<float>(i);
  return values;
}

std::vector<float> readParam(const TorchDistCheckpoint &checkpoint, const std::string &name,
                             StoredPart part) {
  const StoredParam *param = checkpoint.find(name, part);
  EXPECT_NE(param, nullptr) << name;
  Shape shape = param->shape();
  std::vector<float> values(static_cast<size_t>(*elementCount(shape)));
  EXPECT_OK(checkpoint.read(name, part, Box::whole(shape), Element::F32, values.data()));
  return values;
}

BytesItem sampleCommon(int groups) {
  RunState state;
  state.iteration = 100;
  state.args = {{"num_layers", 2}};
  state.scheduler = {{"max_lr", 1e-3}};
  std::vector<GroupMeta> metas(static_cast<size_t>(groups));
  for (int i = 0; i < groups; ++i) {
    metas[static_cast<size_t>(i)].lr = 0.25 * (i + 1);
    metas[static_cast<size_t>(i)].step = 100;
  }
  return torchDistCommon(state, {metas}).item;
}

/// Two equal dense layers, with the optimizer state in each form.
std::string denseSource(const std::string &root, const std::string &master = "param") {
  Source source(root);
  source.add("embedding.word_embeddings.weight", {6, 2}, 0, Element::BF16);
  source.add("decoder.layers.mlp.linear_fc1.weight", {2, 4, 3}, 0, Element::BF16);
  source.add("optimizer.state." + master + ".embedding.word_embeddings.weight", {6, 2}, 0.5);
  for (const char *state : {master.c_str(), "exp_avg", "exp_avg_sq"})
    source.add(fmt::format("optimizer.state.{}.decoder.layers.mlp.linear_fc1.weight", state),
               {2, 4, 3}, 0.5);
  source.add("decoder.layers.mlp._extra_state", {1}, 0);
  source.add(objectItem({"rng_state/shard_0.0_1.1"}, PlainValue(1)));
  source.add(sampleCommon(2));
  return source.finish();
}

TEST(TorchDist, LayersComeApart) {
  TempFolder folder;
  Result<TorchDistCheckpoint> checkpoint = TorchDistCheckpoint::open(denseSource(folder.path()));
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  EXPECT_EQ(readParam(*checkpoint, "decoder.layers.1.mlp.linear_fc1.weight", StoredPart::Weight),
            counted(12, 12));
  EXPECT_EQ(readParam(*checkpoint, "decoder.layers.0.mlp.linear_fc1.weight", StoredPart::Master),
            counted(12, 0.5));
  EXPECT_EQ(checkpoint->find("decoder.layers.2.mlp.linear_fc1.weight", StoredPart::Weight),
            nullptr);
  EXPECT_EQ(checkpoint->paramGroups().size(), 2u);
}

TEST(TorchDist, ExpertsOfAlikeLayersComeApartTwice) {
  TempFolder folder;
  Source source(folder.path());
  source.add("decoder.layers.mlp.experts.experts.linear_fc1.weight", {2, 3, 4, 1}, 0);
  source.add("decoder.layers.mlp.experts.experts.linear_fc1.bias", {2, 3, 4}, 100);
  source.add("optimizer.state.exp_avg.decoder.layers.mlp.experts.experts.linear_fc1.bias",
             {2, 3, 4}, 200);
  Result<TorchDistCheckpoint> checkpoint = TorchDistCheckpoint::open(source.finish());
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  EXPECT_EQ(
      readParam(*checkpoint, "decoder.layers.1.mlp.experts.linear_fc1.weight2", StoredPart::Weight),
      counted(4, 20));
  EXPECT_EQ(
      readParam(*checkpoint, "decoder.layers.0.mlp.experts.linear_fc1.bias1", StoredPart::Weight),
      counted(4, 104));
  EXPECT_EQ(
      readParam(*checkpoint, "decoder.layers.1.mlp.experts.linear_fc1.bias0", StoredPart::ExpAvg),
      counted(4, 212));
}

TEST(TorchDist, UnalikeLayersAndSingleExpertsKeepTheirNumbers) {
  TempFolder folder;
  Source source(folder.path());
  source.add("decoder.layers.0.mlp.linear_fc1.weight", {4, 2}, 0);
  source.add("decoder.layers.1.mlp.experts.experts.linear_fc2.weight", {2, 3}, 10);
  source.add("decoder.layers.2.mlp.experts.experts.5.linear_fc1.weight_w", {2, 2}, 20);
  source.add("mtp.layers.0.transformer_layer.mlp.linear_fc2.weight", {2, 2}, 30);
  Result<TorchDistCheckpoint> checkpoint = TorchDistCheckpoint::open(source.finish());
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  EXPECT_EQ(
      readParam(*checkpoint, "decoder.layers.1.mlp.experts.linear_fc2.weight1", StoredPart::Weight),
      counted(3, 13));
  EXPECT_EQ(readParam(*checkpoint, "decoder.layers.2.mlp.experts.linear_fc1.weight5_w",
                      StoredPart::Weight),
            counted(4, 20));
  EXPECT_EQ(readParam(*checkpoint, "mtp.layers.0.mtp_model_layer.mlp.linear_fc2.weight",
                      StoredPart::Weight),
            counted(4, 30));
}

/// Element order of a [4, 6] tensor cut into 2 x 3 fragments that were flattened one by one.
TEST(TorchDist, FlattenedFragmentsBecomeTensorsAgain) {
  TempFolder folder;
  Source source(folder.path());
  source.add("w", {4, 6}, 0);
  source.add("chained_0.optimizer.state.exp_avg.w", {2, 3, 4}, 0);
  Result<TorchDistCheckpoint> checkpoint = TorchDistCheckpoint::open(source.finish());
  ASSERT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  std::vector<float> got = readParam(*checkpoint, "w", StoredPart::ExpAvg);
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 6; ++j)
      EXPECT_EQ(got[6 * i + j],
                static_cast<float>(((i / 2) * 3 + j / 2) * 4 + (i % 2) * 2 + j % 2));
  std::vector<float> box(4);
  ASSERT_OK(checkpoint->read("w", StoredPart::ExpAvg, {{1, 1}, {2, 2}}, Element::F32, box.data()));
  EXPECT_EQ(box, (std::vector<float>{got[7], got[8], got[13], got[14]}));
}

TEST(TorchDist, FragmentsThatDoNotFitAreRefused) {
  TempFolder folder;
  Source source(folder.path());
  source.add("w", {4, 6}, 0);
  source.add("optimizer.state.exp_avg.w", {3, 2, 4}, 0);
  EXPECT_FAILS(TorchDistCheckpoint::open(source.finish()).status(),
               "is not a flattened form of the shape [4, 6]");
}

TEST(TorchDist, OptimizersWithoutLayoutAreRefusedWithTheWayOut) {
  TempFolder folder;
  Source source(folder.path());
  source.add("w", {2}, 0);
  source.add("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, "
             "torch.float32).bucket_idx_0.param",
             {2}, 0);
  std::string in = source.finish();
  EXPECT_FAILS(TorchDistCheckpoint::open(in).status(),
               "optimizer state is dp_reshardable; resave with --dist-ckpt-optim-fully-reshardable "
               "or convert weights only");
  EXPECT_TRUE(TorchDistCheckpoint::open(in, /*weightsOnly=*/true).isOk());
  Source gathered(folder / "x");
  gathered.add("w", {2}, 0);
  gathered.add(objectItem({"optimizer.distributed.dp_group_idx_0.param_state"}, PlainValue(1)));
  EXPECT_FAILS(TorchDistCheckpoint::open(gathered.finish()).status(), "dp_zero_gather_scatter");
}

TEST(TorchDist, OtherFormatsAreNamed) {
  TempFolder folder;
  EXPECT_FAILS(detectFormat(Source(folder / "z").finish("zarr")).status(),
               "sharded backend 'zarr', which is not supported");
  std::filesystem::create_directories(folder / "t/mp_rank_00");
  EXPECT_FAILS(detectFormat(folder / "t").status(), "legacy 'torch' checkpoint");
  EXPECT_FAILS(detectFormat(folder / "none").status(), "is not a folder");
  EXPECT_EQ(*detectFormat(fixture("B")), CheckpointFormat::FsdpDtensor);
  EXPECT_EQ(*detectFormat(fixture("A")), CheckpointFormat::TorchDcp);
  EXPECT_FAILS(TorchDistCheckpoint::open(fixture("A")).status(),
               "is torch_dcp; torch_dist is needed");
}

GroupMap denseGroups() {
  return {{"embedding.word_embeddings.weight", 0},
          {"decoder.layers.0.mlp.linear_fc1.weight", 1},
          {"decoder.layers.1.mlp.linear_fc1.weight", 1}};
}

TEST(Convert, DenseWithEveryPart) {
  for (const char *master : {"param", "fp32_param"}) {
    TempFolder folder;
    ConvertOptions options;
    options.isSwiglu = true;
    options.groups = denseGroups();
    options.pieceBytes = 20; // many pieces
    SaveTarget out = SaveTarget::iteration(folder.path(), 100);
    ASSERT_OK(convertTorchDistToFsdp(denseSource(folder.path(), master), out, options));
    EXPECT_EQ(contentsOf(folder / "latest_checkpointed_iteration.txt"), "100");
    Result<CheckpointReader> reader = CheckpointReader::open(out.path(), Verify::Whole);
    ASSERT_TRUE(reader.isOk()) << reader.status().message();
    const std::string kName = "decoder.layers.1.mlp.linear_fc1.weight";
    EXPECT_EQ(readBox<float>(*reader, "model.module." + kName + "_v", {0, 0}, {2, 3}, Element::F32),
              counted(6, 18.5));
    EXPECT_EQ(reader->findTensor("model.module." + kName + "_w")->type, Element::F32);
    EXPECT_EQ(readBox<float>(*reader,
                             "optimizer.state.module.module.module." + kName + "_w.exp_avg_sq",
                             {0, 0}, {2, 3}, Element::F32),
              counted(6, 12.5));
    EXPECT_EQ(reader->findTensor("optimizer.state.module.module.module." + kName + "_w.param"),
              nullptr);
    EXPECT_EQ(
        objectText(*reader, "optimizer.param_to_group_meta.module.module.module." + kName + ".lr"),
        "0.5");
    // Settings that the fused Adam does not store but torch's Adam requires.
    const std::string kMeta = "optimizer.param_to_group_meta.module.module.module." + kName;
    EXPECT_EQ(objectText(*reader, kMeta + ".amsgrad"), "False");
    EXPECT_EQ(readBox<float>(*reader, "optimizer.state.module.module.module." + kName + "_v.step",
                             {}, {}, Element::F32),
              std::vector<float>{100});
    EXPECT_EQ(objectText(*reader, "optimizer.param_groups.0.lr"), "0.25");
    EXPECT_EQ(objectText(*reader, "opt_param_scheduler.max_lr"), "0.001");
    EXPECT_EQ(objectText(*reader, "iteration"), "100");
    EXPECT_EQ(objectText(*reader, "checkpoint_version"), "3");
    EXPECT_EQ(reader->findObject("rng_state/shard_0.0_1.1"), nullptr);
    EXPECT_OK(reader->verifyFiles());
  }
}

// The model of an fp32 run has no bf16 wrapper, whose name the optimizer's entries would contain.
TEST(Convert, NamesOfTheOptimizersStateFollowTheRunsPrecision) {
  const std::string kName = "decoder.layers.1.mlp.linear_fc1.weight";
  auto isThere = [&](PlainEntries args, const std::string &prefix, const std::string &wrappers) {
    TempFolder folder;
    Source source(folder.path());
    source.add("decoder.layers.mlp.linear_fc1.weight", {2, 4, 3}, 0);
    source.add("optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight", {2, 4, 3}, 0.5);
    RunState state;
    state.args = std::move(args);
    source.add(torchDistCommon(state, {{GroupMeta()}}).item);
    ConvertOptions options;
    options.optimizerPrefix = prefix;
    options.groups = GroupMap{{"decoder.layers.0.mlp.linear_fc1.weight", 0}, {kName, 0}};
    EXPECT_OK(convertTorchDistToFsdp(source.finish(), {folder.path(), "out"}, options));
    Result<CheckpointReader> reader = CheckpointReader::open(folder / "out");
    EXPECT_TRUE(reader.isOk()) << reader.status().message();
    return reader->findTensor("optimizer.state." + wrappers + kName + ".exp_avg") != nullptr &&
           reader->findObject("optimizer.param_to_group_meta." + wrappers + kName + ".lr") !=
               nullptr;
  };
  const PlainEntries fp32 = {{"bf16", false}, {"fp16", false}},
                     bf16 = {{"bf16", true}, {"fp16", false}};
  EXPECT_TRUE(isThere(fp32, "", "module.module."));
  EXPECT_TRUE(isThere(bf16, "", "module.module.module."));
  EXPECT_TRUE(isThere({}, "", "module.module.module."));
  EXPECT_TRUE(isThere(fp32, "optimizer.state.module.module.module", "module.module.module."));
  EXPECT_TRUE(isThere(bf16, "optimizer.state.module.module", "module.module."));
}

TEST(Convert, RanksTogetherGiveTheSameTensors) {
  TempFolder folder;
  std::string in = denseSource(folder.path());
  ConvertOptions options;
  options.pieceBytes = 24;
  ASSERT_OK(convertTorchDistToFsdp(in, {folder.path(), "one"}, options));
  constexpr int kRanks = 8;
  ThreadBarrier barrier(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      EXPECT_OK(convertTorchDistToFsdp(in, {folder.path(), "eight"}, options,
                                       {rank, kRanks, 2, std::ref(barrier)}));
    });
  for (std::thread &thread : threads)
    thread.join();
  Result<CheckpointReader> one = CheckpointReader::open(folder / "one"),
                           eight = CheckpointReader::open(folder / "eight");
  ASSERT_TRUE(one.isOk() && eight.isOk());
  ASSERT_EQ(one->metadata().tensors.size(), eight->metadata().tensors.size());
  for (const TensorMeta &tensor : one->metadata().tensors) {
    Shape origin(tensor.shape.size(), 0);
    EXPECT_EQ(readBox<float>(*one, tensor.name, origin, tensor.shape, Element::F32),
              readBox<float>(*eight, tensor.name, origin, tensor.shape, Element::F32));
  }
  EXPECT_EQ(one->metadata().objects.size(), eight->metadata().objects.size());
}

TEST(Convert, ModulesModelDtypesAndPrefixesAsAsked) {
  TempFolder folder;
  Source source(folder.path());
  source.add("decoder.layers.mlp.linear_fc1.weight", {2, 4, 3}, 0, Element::BF16);
  source.add("encoder.layers.mlp.linear_fc1.weight", {1, 4, 3}, 0, Element::BF16);
  source.add(sampleCommon(2));
  std::string in = source.finish();
  ConvertOptions options;
  options.swigluModules = {"encoder"};
  options.keepsModelDtype = true;
  options.weightsOnly = true;
  options.modelPrefix = "net";
  ASSERT_OK(convertTorchDistToFsdp(in, {folder.path(), "out"}, options));
  Result<CheckpointReader> reader = CheckpointReader::open(folder / "out");
  ASSERT_TRUE(reader.isOk()) << reader.status().message();
  const TensorMeta *weight = reader->findTensor("net.decoder.layers.0.mlp.linear_fc1.weight");
  ASSERT_NE(weight, nullptr); // not gated
  EXPECT_EQ(weight->type, Element::BF16);
  EXPECT_NE(reader->findTensor("net.encoder.layers.0.mlp.linear_fc1.weight_w"), nullptr);
  EXPECT_EQ(reader->metadata().tensors.size(), 4u);
  EXPECT_EQ(reader->findObject("optimizer.param_groups.0.lr"), nullptr);
}

TEST(Convert, ModulesThatAreNotThereAreRefusedWithThoseThatAre) {
  TempFolder folder;
  std::string in = denseSource(folder.path());
  ConvertOptions options;
  options.swigluModules = {"mlp", "decodr"};
  EXPECT_FAILS(convertTorchDistToFsdp(in, {folder.path(), "out"}, options),
               "no first layer of an MLP is below 'decodr'; modules with one: decoder, layers, "
               "linear_fc1, mlp");
}

TEST(Convert, LayersThatAreNotGatedAreNotCut) {
  TempFolder folder;
  Source source(folder.path());
  source.add("decoder.layers.0.mlp.linear_fc1.weight", {4, 2}, 0);
  source.add("decoder.layers.0.mlp.linear_fc2.weight", {2, 4}, 0);
  source.add("vision.layers.0.mlp.linear_fc1.weight", {4, 2}, 0);
  source.add("vision.layers.0.mlp.linear_fc2.weight", {2, 2}, 0);
  source.add(sampleCommon(0));
  std::string in = source.finish();
  ConvertOptions options;
  options.isSwiglu = true;
  EXPECT_FAILS(convertTorchDistToFsdp(in, {folder.path(), "out"}, options),
               "'decoder.layers.0.mlp.linear_fc1.weight' is not gated: it has 4 rows where "
               "'decoder.layers.0.mlp.linear_fc2.weight' has 4 columns, and 8 are needed");
  options.isSwiglu = false;
  options.swigluModules = {"vision"};
  EXPECT_OK(convertTorchDistToFsdp(in, {folder.path(), "out"}, options));
}

TEST(Convert, GroupsMustBeThere) {
  TempFolder folder;
  std::string in = denseSource(folder.path());
  ConvertOptions options;
  options.groups = denseGroups();
  options.groups->erase("embedding.word_embeddings.weight");
  EXPECT_FAILS(convertTorchDistToFsdp(in, {folder.path(), "out"}, options),
               "Missing param group for model.module.embedding.word_embeddings.weight");
  options.groups = denseGroups();
  (*options.groups)["embedding.word_embeddings.weight"] = 2;
  EXPECT_FAILS(convertTorchDistToFsdp(in, {folder.path(), "out"}, options),
               "Invalid param group id 2 for model.module.embedding.word_embeddings.weight");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_FALSE(std::filesystem::exists(folder / ".out.saving"));
}

TEST(Convert, CollidingKeysAreRefused) {
  TempFolder folder;
  Source source(folder.path());
  source.add("w", {2}, 0);
  source.add(objectItem({"iteration"}, PlainValue(1)));
  source.add(sampleCommon(0));
  EXPECT_FAILS(convertTorchDistToFsdp(source.finish(), {folder.path(), "out"}, {}),
               "Key 'iteration' already exists in fsdp_dtensor_state_dict. [cannot-convert]");
}

TEST(Convert, ThereAndBackAgain) {
  TempFolder folder;
  std::string in = denseSource(folder.path());
  ConvertOptions options;
  options.isSwiglu = true;
  options.groups = denseGroups();
  ASSERT_OK(convertTorchDistToFsdp(in, {folder.path(), "fsdp"}, options));
  ConvertBackOptions back;
  back.weightType = Element::BF16;
  back.pieceBytes = 16;
  ASSERT_OK(convertFsdpToTorchDist(folder / "fsdp", {folder.path(), "back"}, back));
  Result<TorchDistCheckpoint> before = TorchDistCheckpoint::open(in),
                              after = TorchDistCheckpoint::open(folder / "back");
  ASSERT_TRUE(after.isOk()) << after.status().message();
  EXPECT_EQ(after->reader().findTensor("decoder.layers.mlp.linear_fc1.weight")->shape,
            (Shape{2, 4, 3}));
  for (const auto &[key, box] : before->params()) {
    if (key.second == StoredPart::Weight || after->find(key.first, key.second) == nullptr)
      continue; // the model's own tensors were converted from bf16
    EXPECT_EQ(readParam(*before, key.first, key.second), readParam(*after, key.first, key.second))
        << key.first;
  }
  EXPECT_NE(after->find("decoder.layers.1.mlp.linear_fc1.weight", StoredPart::Master), nullptr);
  EXPECT_EQ(after->reader().findTensor("embedding.word_embeddings.weight")->type, Element::BF16);
  EXPECT_EQ(after->paramGroups().size(), 2u);
}

/// Multipliers of weight decay by group, in the order of a checkpoint's list.
std::vector<double> decaysOf(const std::string &folder) {
  Result<TorchDistCheckpoint> checkpoint = TorchDistCheckpoint::open(folder);
  EXPECT_TRUE(checkpoint.isOk()) << checkpoint.status().message();
  std::vector<double> decays;
  for (const auto &group : checkpoint->paramGroups())
    decays.push_back(
        plainValueOf(checkpoint->commonGraph(), group.at("wd_mult"))->number().value_or(-1));
  return decays;
}

TEST(Convert, GroupsWithWeightDecayComeFirstAndThoseOfDividedExpertsLast) {
  const std::pair<const char *, double> params[] = {
      {"decoder.final_layernorm.weight", 0},
      {"decoder.layers.0.mlp.experts.linear_fc1.weight0", 1},
      {"embedding.word_embeddings.weight", 1},
  };
  for (bool areDivided : {false, true}) {
    TempFolder folder;
    SaveTarget target{folder.path(), "fsdp"};
    std::vector<TensorSlice> slices;
    std::vector<BytesItem> items;
    const float values[] = {1, 2};
    for (const auto &[name, decay] : params) {
      ASSERT_OK(addParamSlices({name, Element::F32, {2}, Box::whole({2}), values},
                               ParamPart::Weight, /*isGated=*/false, slices));
      GroupMeta meta;
      meta.weightDecayMult = decay;
      meta.isExpertParallel =
          areDivided && std::string_view(name).find(".experts.") != std::string_view::npos;
      for (BytesItem &item : groupMetaItems(name, meta))
        items.push_back(std::move(item));
    }
    ASSERT_OK(save(target, 0, 1, slices, items));
    ASSERT_OK(convertFsdpToTorchDist(target.path(), {folder.path(), "dist"}, {}));
    EXPECT_EQ(decaysOf(folder / "dist"),
              areDivided ? (std::vector<double>{1, 0, 1}) : (std::vector<double>{1, 0}));
  }
}

TEST(Convert, HalvesThatLackTheOtherAreRefused) {
  TempFolder folder;
  SaveTarget target{folder.path(), "fsdp"};
  std::vector<TensorSlice> slices;
  const float values[] = {1, 2};
  ASSERT_OK(addParamSlices(
      {"decoder.layers.0.mlp.linear_fc1.weight_w", Element::F32, {2}, Box::whole({2}), values},
      ParamPart::Weight, /*isGated=*/false, slices));
  ASSERT_OK(save(target, 0, 1, slices, {}));
  EXPECT_FAILS(convertFsdpToTorchDist(target.path(), {folder.path(), "dist"}, {}),
               "'decoder.layers.0.mlp.linear_fc1.weight_w' and "
               "'decoder.layers.0.mlp.linear_fc1.weight_v' are not two halves of one shape");
}

TEST(Convert, WhatHoldsNoParametersIsRefused) {
  TempFolder folder;
  Source source(folder.path());
  source.add("decoder.layers.mlp._extra_state", {1}, 0);
  source.add(sampleCommon(0));
  EXPECT_FAILS(convertTorchDistToFsdp(source.finish(), {folder.path(), "out"}, {}),
               "in' contains no parameters");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Convert, ReshardingKeepsEverything) {
  TempFolder folder;
  for (int ranks : {1, 3, 7}) {
    ASSERT_OK(reshard(fixture("B"), {folder.path(), "out"}, {ranks, 2, 16}));
    Result<CheckpointReader> before = CheckpointReader::open(fixture("B")),
                             after = CheckpointReader::open(folder / "out");
    ASSERT_TRUE(after.isOk()) << after.status().message();
    for (const TensorMeta &tensor : before->metadata().tensors) {
      auto bytes = static_cast<size_t>(*tensorBytes(tensor.type, tensor.shape));
      std::string a(bytes, '\0'), b(bytes, '\1');
      ASSERT_OK(before->read(tensor.name, Box::whole(tensor.shape), tensor.type, a.data()));
      ASSERT_OK(after->read(tensor.name, Box::whole(tensor.shape), tensor.type, b.data()));
      EXPECT_EQ(a, b) << tensor.name;
    }
    EXPECT_EQ(before->metadata().paths, after->metadata().paths);
    EXPECT_EQ(before->metadata().objects.size(), after->metadata().objects.size());
  }
}

TEST(GroupMap, FolderJsonAndBack) {
  TempFolder folder;
  GroupMap groups = denseGroups();
  ASSERT_OK(writeGroupMapFolder(folder / "map", groups));
  ASSERT_OK(writeGroupMapJson(folder / "map"));
  EXPECT_EQ(contentsOf(folder / "map/param_to_param_group_map.json"),
            "{\n  \"model.module.decoder.layers.0.mlp.linear_fc1.weight\": 1,\n"
            "  \"model.module.decoder.layers.1.mlp.linear_fc1.weight\": 1,\n"
            "  \"model.module.embedding.word_embeddings.weight\": 0\n}");
  Result<GroupMap> read = readGroupMapJson(folder / "map/param_to_param_group_map.json");
  ASSERT_TRUE(read.isOk()) << read.status().message();
  EXPECT_EQ(*read, groups);
  putContents(folder / "bad.json", R"({"a": "x"})");
  EXPECT_FAILS(readGroupMapJson(folder / "bad.json").status(),
               "something other than a group's number");
}

} // namespace
} // namespace shardc::checkpoint
