// Step 1: inheritance, precedence, constants, units, and where each value came from.
#include <gtest/gtest.h>

#include "compiler/basic/Format.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

std::string fileOf(const Loaded &loaded, Opt opt) {
  llvm::StringRef name = loaded.sources.lineColumn((*loaded.config)[opt].from.value.begin).file;
  return name.substr(name.rfind('/') + 1).str();
}

TEST(Resolve, LaterLevelsWinAndRememberEarlierOnes) {
  std::string folder = makeFolder("levels");
  writeText(folder + "/base.recipe", "recipe base { optimizer { lr = 1e-1  clip_grad = 0.5 } }");
  writeText(folder + "/top.recipe", "recipe top extends \"base.recipe\" { optimizer.lr = 1e-2 }");
  writeText(folder + "/over.recipe", "recipe over { optimizer.lr = 1e-3 }");
  LoadOptions options{"", {folder + "/over.recipe"}, {"optimizer.lr=1e-4"}};
  auto loaded = loadFile(folder + "/top.recipe", options);
  const Setting &lr = (*loaded->config)[Opt::OptimizerLr];
  EXPECT_EQ(*lr.value.asFloat(), 1e-4);
  EXPECT_EQ(lr.from.origin, Origin::CommandLine);
  ASSERT_EQ(lr.history.size(), 3u);
  EXPECT_EQ(*lr.history[0].first.asFloat(), 1e-1);
  EXPECT_EQ(lr.history[1].second.origin, Origin::Recipe);
  EXPECT_EQ(lr.history[2].second.origin, Origin::Overlay);
  EXPECT_EQ(fileOf(*loaded, Opt::OptimizerLr), "<--set optimizer.lr=1e-4>");
  EXPECT_EQ(fileOf(*loaded, Opt::OptimizerClipGrad), "base.recipe");
  EXPECT_EQ(loaded->config->name(), "top");
}

TEST(Resolve, ARecipeThatWasReadOnceGivesTheSameConfigurations) {
  std::string folder = makeFolder("once");
  writeText(folder + "/base.recipe", "recipe base { let n = 3  model llama { num_layers = n } }");
  writeText(folder + "/top.recipe", "recipe top extends \"base.recipe\" { train.seed = 7 }");
  writeText(folder + "/over.recipe", "recipe over { optimizer.lr = 1e-3 }");
  LoadOptions options{folder + "/top.recipe", {folder + "/over.recipe"}, {"train.train_iters=5"}};
  LoadOptions further{options.path, {}, {}};
  further.read = readRecipe(options);
  ASSERT_NE(further.read, nullptr);
  for (const char *set : {"model.num_layers=4", "model.num_layers=n", "model.num_layers=n * 2",
                          "train.seed=none", "model.sequence_parallel=true", "train.train_iters=0",
                          "model.pipeline_split=balanced", "model.pipeline_split=other",
                          "env.NCCL_ALGO=Ring", "model.num_layers=08", "optimizer.lr=2"}) {
    options.sets = {"train.train_iters=5", set};
    further.sets = {set};
    std::string texts[2];
    for (const LoadOptions *each : {&options, &further}) {
      SourceManager sources;
      DiagEngine diags(sources);
      std::optional<Config> config = loadConfig(sources, diags, *each);
      std::string &text = texts[each == &further ? 1 : 0];
      for (const Diagnostic &diagnostic : diags.pending())
        text += diagnostic.id + " ";
      if (config)
        text += printRecipe(*config, /*everything=*/true) +
                sources.lineColumn((*config)[Opt::ModelNumLayers].from.value.begin).file.str();
    }
    EXPECT_EQ(texts[0], texts[1]) << set;
  }
}

TEST(Resolve, LaterBasesWinOverEarlierOnes) {
  std::string folder = makeFolder("bases");
  writeText(folder + "/a.recipe", "recipe a { train { train_iters = 1  micro_batch_size = 2 } }");
  writeText(folder + "/b.recipe", "recipe b { train.train_iters = 3 }");
  writeText(folder + "/top.recipe", "recipe top extends \"a.recipe\", \"b.recipe\" { }");
  auto loaded = loadFile(folder + "/top.recipe");
  EXPECT_EQ(loaded->config->getInt(Opt::TrainTrainIters), 3);
  EXPECT_EQ(loaded->config->getInt(Opt::TrainMicroBatchSize), 2);
}

TEST(Resolve, ACommonBaseDoesNotUndoWhatASiblingChanged) {
  std::string folder = makeFolder("diamond");
  writeText(folder + "/root.recipe", "recipe root { train.train_iters = 1 }");
  writeText(folder + "/a.recipe", "recipe a extends \"root.recipe\" { train.train_iters = 2 }");
  writeText(folder + "/b.recipe",
            "recipe b extends \"root.recipe\" { train.micro_batch_size = 4 }");
  writeText(folder + "/top.recipe", "recipe top extends \"a.recipe\", \"b.recipe\" { }");
  auto loaded = loadFile(folder + "/top.recipe");
  EXPECT_EQ(loaded->config->getInt(Opt::TrainTrainIters), 2);
}

TEST(Resolve, BasesAreRelativeToTheFileThatNamesThem) {
  std::string folder = makeFolder("relative");
  makeFolder("relative/inner");
  writeText(folder + "/inner/base.recipe", "recipe base { train.train_iters = 7 }");
  writeText(folder + "/inner/mid.recipe", "recipe mid extends \"base.recipe\" { }");
  writeText(folder + "/top.recipe", "recipe top extends \"inner/mid.recipe\" { }");
  EXPECT_EQ(loadFile(folder + "/top.recipe")->config->getInt(Opt::TrainTrainIters), 7);
}

TEST(Resolve, ARecipeThatExtendsItselfIsRefusedWithTheWay) {
  std::string folder = makeFolder("cycle");
  writeText(folder + "/a.recipe", "recipe a extends \"b.recipe\" { }");
  writeText(folder + "/b.recipe", "recipe b extends \"a.recipe\" { train.train_iters = 5 }");
  auto loaded = loadFile(folder + "/a.recipe");
  const Diagnostic *error = loaded->find("extends-itself");
  ASSERT_NE(error, nullptr);
  ASSERT_EQ(error->notes.size(), 1u);
  EXPECT_EQ(error->notes[0].id, "extended-here");
  EXPECT_EQ(loaded->config->getInt(Opt::TrainTrainIters), 5);
}

TEST(Resolve, AMissingBaseIsAnErrorAtItsName) {
  std::string folder = makeFolder("missing");
  writeText(folder + "/a.recipe", "recipe a extends \"none.recipe\" { train.train_iters = 5 }");
  auto loaded = loadFile(folder + "/a.recipe");
  const Diagnostic *error = loaded->find("cannot-read-base");
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(loaded->sources.text(error->range), "\"none.recipe\"");
  EXPECT_EQ(loaded->config->getInt(Opt::TrainTrainIters), 5);
}

TEST(Resolve, LongChainsOfBasesAreRefused) {
  std::string folder = makeFolder("deep");
  for (unsigned i = 0; i < kExtendsDepthMax + 5; ++i)
    writeText(folder + "/r" + std::to_string(i) + ".recipe",
              "recipe r extends \"r" + std::to_string(i + 1) + ".recipe\" { }");
  auto loaded = loadFile(folder + "/r0.recipe");
  EXPECT_EQ(loaded->ids(Severity::Error), std::vector<std::string>{"extends-too-deep"});
}

TEST(Resolve, ManyBasesAreRefused) {
  std::string folder = makeFolder("many");
  std::string bases;
  for (unsigned i = 0; i < kRecipeFilesMax + 1; ++i) {
    std::string name = "b" + std::to_string(i) + ".recipe";
    writeText(folder + "/" + name, "recipe b { }");
    bases += (i ? ", \"" : "\"") + name + "\"";
  }
  writeText(folder + "/top.recipe", "recipe top extends " + bases + " { }");
  EXPECT_TRUE(loadFile(folder + "/top.recipe")->has("too-many-recipes"));
}

TEST(Resolve, AMissingOverlayIsAnErrorWithoutAPlace) {
  auto loaded = loadBody("", {"", {"/does/not/exist.recipe"}, {}});
  const Diagnostic *error = loaded->find("cannot-read-file");
  ASSERT_NE(error, nullptr);
  EXPECT_FALSE(error->range.isValid());
}

TEST(Resolve, NoneClearsWhatWasInherited) {
  std::string folder = makeFolder("none");
  writeText(folder + "/base.recipe",
            "recipe base { checkpoint.load = \"c\"  optimizer.clip_grad = 5.0 }");
  writeText(folder + "/top.recipe", "recipe top extends \"base.recipe\" { checkpoint.load = none\n"
                                    "optimizer.clip_grad = none }");
  auto loaded = loadFile(folder + "/top.recipe");
  EXPECT_FALSE(loaded->config->has(Opt::CheckpointLoad));
  EXPECT_EQ(loaded->config->getFloat(Opt::OptimizerClipGrad), 1.0); // the table's default again
}

TEST(Resolve, NoneClearsWhatTheFamilySays) {
  auto loaded =
      loadBody("model deepseek_v3 { q_lora_rank = none  vocab_size = 100\n num_layers = 2 "
               "hidden_size = 64  num_attention_heads = 4 }");
  EXPECT_FALSE(loaded->config->has(Opt::ModelQLoraRank));
}

TEST(Resolve, ConstantsAreInheritedAndUsedByOverlaysAndSettings) {
  std::string folder = makeFolder("constants");
  writeText(folder + "/base.recipe", "recipe base { let steps = 10 }");
  writeText(folder + "/top.recipe",
            "recipe top extends \"base.recipe\" { train.train_iters = steps * 2 }");
  auto loaded =
      loadFile(folder + "/top.recipe", {"", {}, {"scheduler.lr_warmup_iters = steps / 5"}});
  EXPECT_EQ(loaded->config->getInt(Opt::TrainTrainIters), 20);
  EXPECT_EQ(loaded->config->getInt(Opt::SchedulerLrWarmupIters), 2);
}

TEST(Resolve, SizesAndDurationsHaveTheirUnits) {
  auto loaded = loadBody("cluster.memory = 80GiB / 2\n dist.distributed_timeout_minutes = 90s\n"
                         "dist.distributed_timeout_seconds_after_init = 30");
  EXPECT_EQ(loaded->config->getInt(Opt::ClusterMemory), int64_t{40} << 30);
  EXPECT_EQ(loaded->config->getInt(Opt::DistDistributedTimeoutMinutes), 90'000);
  EXPECT_EQ(loaded->config->getInt(Opt::DistDistributedTimeoutSecondsAfterInit), 30'000);
  EXPECT_EQ(loadBody("dist.distributed_timeout_minutes = 30")
                ->config->getInt(Opt::DistDistributedTimeoutMinutes),
            1'800'000);
}

TEST(Resolve, ArithmeticKnowsItsBounds) {
  auto value = [](const std::string &text) { return loadBody("train.exit_interval = " + text); };
  EXPECT_EQ(value("2 + 3 * 4 - 1")->config->getInt(Opt::TrainExitInterval), 13);
  EXPECT_EQ(value("-(-7)")->config->getInt(Opt::TrainExitInterval), 7);
  EXPECT_EQ(value("8GiB / 2GiB")->config->getInt(Opt::TrainExitInterval), 4);
  EXPECT_TRUE(value("-9_223_372_036_854_775_807 - 2")->has("arithmetic-overflow"));
  EXPECT_TRUE(value("(-9_223_372_036_854_775_807 - 1) / -1")->has("arithmetic-overflow"));
  EXPECT_TRUE(value("7 / 2")->has("uneven-division"));
  EXPECT_EQ(*(*loadBody("optimizer.lr = 3 / 4.0")->config)[Opt::OptimizerLr].value.asFloat(), 0.75);
}

TEST(Resolve, KindsAndShorthandsSetTheirOptions) {
  auto loaded =
      loadBody("optimizer sgd { }\n scheduler = cosine\n model llama { activation_func = geglu }"
               "\n mixed_precision bf16_mixed { }");
  const Config &config = *loaded->config;
  EXPECT_EQ(config.getEnum<OptimizerKind>(Opt::OptimizerOptimizer), OptimizerKind::Sgd);
  EXPECT_EQ(config.getEnum<DecayStyle>(Opt::SchedulerLrDecayStyle), DecayStyle::Cosine);
  EXPECT_EQ(config.getEnum<Activation>(Opt::ModelActivationFunc), Activation::Gelu);
  EXPECT_TRUE(config.getBool(Opt::ModelGatedLinearUnit));
  EXPECT_TRUE(config.getBool(Opt::ModelBf16));
}

TEST(Resolve, OtherSpellingsOfEnumeratorsAreKnown) {
  auto loaded = loadBody("mixed_precision = \"bf16-mixed\"\n optimizer.exp_avg_dtype = float32\n"
                         "ddp.megatron_fsdp_main_grads_dtype = \"torch.bfloat16\"");
  EXPECT_TRUE(loaded->ids(Severity::Error).empty());
  EXPECT_EQ(loaded->config->getEnum<FloatTypeOrAuto>(Opt::DdpMegatronFsdpMainGradsDtype),
            FloatTypeOrAuto::Bf16);
}

TEST(Resolve, SureSlipsAreReadAsMeant) {
  auto loaded = loadBody("optimizer { wieght_decay = 0.5 }\n optimzer.lr = 0.25");
  EXPECT_EQ(loaded->config->getFloat(Opt::OptimizerWeightDecay), 0.5);
  EXPECT_EQ(loaded->config->getFloat(Opt::OptimizerLr), 0.25);
}

TEST(Resolve, VariablesOfTheEnvironmentAreText) {
  auto loaded = loadBody("env { B = 1  A = x  CUDA_DEVICE_MAX_CONNECTIONS = 8  A_FLAG = true }");
  ASSERT_EQ(loaded->config->env().size(), 3u);
  EXPECT_EQ(loaded->config->env()[0].name, "A");
  EXPECT_EQ(*loaded->config->env()[2].setting.value.asString(), "1");
  EXPECT_EQ(loaded->config->getString(Opt::EnvCudaDeviceMaxConnections), "8");
}

/// Variables are read in the order of their names, in time proportional to their number.
TEST(Resolve, VariablesAreTakenUpToALimit) {
  std::string body = "env {\n";
  for (unsigned i = kVariablesMax + 60'000; i > 0; --i)
    body += "NCCL_V" + std::to_string(i) + " = " + std::to_string(i) + "\n";
  auto loaded = loadBody(body + "}");
  EXPECT_EQ(loaded->ids(Severity::Error), std::vector<std::string>{"too-many-variables"});
  const std::vector<EnvVariable> &all = loaded->config->env();
  EXPECT_EQ(all.size(), kVariablesMax);
  EXPECT_TRUE(llvm::is_sorted(
      all, [](const EnvVariable &a, const EnvVariable &b) { return a.name < b.name; }));
}

/// Each misspelt name is compared with all known ones, up to a limit.
TEST(Resolve, SuggestionsOfConstantsHaveALimit) {
  std::string body;
  for (int i = 0; i < 3000; ++i)
    body += fmt::format("let abcdefgh{0} = {0}\n", i);
  for (int i = 0; i < 3000; ++i)
    body += fmt::format("let x{0} = abcdefgh{0}q + 1\n", i);
  auto loaded = loadBody(body);
  std::vector<std::string> ids = loaded->ids(Severity::Error);
  EXPECT_EQ(ids.size(), 3000u);
  EXPECT_EQ(ids.front(), "misspelt-constant");
  EXPECT_EQ(ids.back(), "unknown-constant");
}

TEST(Resolve, SettingsTakeWholeExpressionsAndAreTheirOwnPlace) {
  auto loaded = loadBody("", {"", {}, {"model.seq_length = 0"}});
  const Diagnostic *error = loaded->find("value-out-of-range");
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(loaded->sources.lineColumn(error->range.begin).file, "<--set model.seq_length = 0>");
}

TEST(Resolve, WhatCannotBeReadSilencesTheRules) {
  auto loaded =
      loadBody("model { num_layers = 2  hidden_size = 64  num_attention_heads = 4 "
               "tensor_model_parallel_size = x }\n cluster { nodes = 1  gpus_per_node = 3 }");
  EXPECT_EQ(loaded->ids(Severity::Error), std::vector<std::string>{"wrong-type"});
}

} // namespace
} // namespace shardc::config::test
