// Step 2: options that the recipe leaves unset, and the derived facts.
#include <gtest/gtest.h>

#include "compiler/config/Rules.h"
#include "test/unit/config/Cases.h"

namespace shardc::config::test {
namespace {

const char *kModel = "num_layers = 4  hidden_size = 64  num_attention_heads = 4 ";

std::string model(const std::string &more, const std::string &kind = "gpt") {
  return "model " + kind + " { " + kModel + more + " }\n";
}

/// The id of the rule that gave the option its value.
std::string ruleOf(const Loaded &loaded, Opt opt) {
  std::optional<RuleId> rule = (*loaded.config)[opt].from.rule;
  return rule ? info(*rule).id.str() : "";
}

TEST(Derived, SizesOfTheModel) {
  auto loaded = loadBody(model("", "llama") + "train.micro_batch_size = 1");
  const Derived &d = loaded->config->derived();
  EXPECT_EQ(d.headSize, 16);
  EXPECT_EQ(d.numGroups, 4);
  EXPECT_EQ(d.ffnHidden, 256);
  EXPECT_EQ(d.maxPositions, 1024);
  EXPECT_TRUE(d.gated);
  EXPECT_FALSE(d.tied);
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelKvChannels), "head-size");
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelNumQueryGroups), "query-groups");
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelFfnHiddenSize), "ffn-size");
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelMaxPositionEmbeddings), "position-table");
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelExpertTensorParallelSize), "expert-sizes");
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelEmbeddingInitMethodStd), "embedding-deviation");
}

TEST(Derived, RotationsOfLatentAttentionAndYarn) {
  auto latent = loadBody(model("multi_latent_attention = true", "llama"));
  EXPECT_EQ(latent->config->getEnum<RopeType>(Opt::ModelRopeType), RopeType::Yarn);
  EXPECT_EQ(latent->config->getFloat(Opt::ModelRotaryScalingFactor), 40);
  EXPECT_EQ(ruleOf(*latent, Opt::ModelRopeType), "latent-rotation");
  EXPECT_EQ(ruleOf(*latent, Opt::ModelRotaryScalingFactor), "latent-rotation");
  auto yarn = loadBody(model(
      "position_embedding_type = yarn  yarn_rotary_scaling_factor = 4.0  yarn_beta_slow = 2.0",
      "llama"));
  const Config &config = *yarn->config;
  EXPECT_EQ(config.getInt(Opt::ModelYarnOriginalMaxPositionEmbeddings), 4096);
  EXPECT_EQ(config.getFloat(Opt::ModelYarnBetaFast), 32);
  EXPECT_EQ(config.getFloat(Opt::ModelYarnBetaSlow), 2) << "as written";
  EXPECT_TRUE(config.getBool(Opt::ModelYarnCorrectionRangeRoundToInt));
  EXPECT_EQ(ruleOf(*yarn, Opt::ModelYarnBetaFast), "yarn-range");
  EXPECT_FALSE(loadBody(model("", "llama"))->config->has(Opt::ModelRopeType));
}

TEST(Derived, FamiliesAreDefaultsAndNothingMore) {
  auto loaded = loadBody(model("add_bias_linear = true", "qwen2"));
  const Config &config = *loaded->config;
  EXPECT_EQ(config[Opt::ModelNormalization].from.origin, Origin::Family);
  EXPECT_EQ(config.getEnum<Normalization>(Opt::ModelNormalization), Normalization::RmsNorm);
  EXPECT_TRUE(config.getBool(Opt::ModelAddQkvBias));
  EXPECT_TRUE(config.getBool(Opt::ModelAddBiasLinear)); // as written
  EXPECT_EQ(loadBody("")->config->getEnum<Normalization>(Opt::ModelNormalization),
            Normalization::LayerNorm);
}

TEST(Derived, VocabularyIsPadded) {
  auto loaded = loadBody(model("vocab_size = 50_257  tensor_model_parallel_size = 2"));
  EXPECT_EQ(loaded->config->derived().paddedVocab, 50'432);
  loaded = loadBody(model("vocab_size = 257  make_vocab_size_divisible_by = 1"));
  EXPECT_EQ(loaded->config->derived().paddedVocab, 257);
}

TEST(Derived, TheMeshFromTheCluster) {
  auto loaded = loadBody(model("tensor_model_parallel_size = 2  context_parallel_size = 2  "
                               "pipeline_model_parallel_size = 2") +
                         "cluster { gpu = h200  nodes = 4  gpus_per_node = 8 }\n"
                         "ddp.num_distributed_optimizer_instances = 2\n"
                         "train { micro_batch_size = 2  global_batch_size = 32 }");
  const Derived &d = loaded->config->derived();
  EXPECT_EQ(d.worldSize, 32);
  EXPECT_EQ(d.dataParallel, 4);
  EXPECT_EQ(d.shardGroup, 4);
  EXPECT_EQ(d.numMicrobatches, 4);
  EXPECT_EQ(d.memoryBytes, predict::device(Gpu::H200).memoryBytes);
  EXPECT_EQ(ruleOf(*loaded, Opt::ClusterMemory), "device-memory");
}

TEST(Derived, TheSmallestMeshHoldsModelInstancesAndExperts) {
  auto loaded = loadBody(model("tensor_model_parallel_size = 2  pipeline_model_parallel_size = 2"));
  EXPECT_EQ(loaded->config->derived().worldSize, 4);
  loaded = loadBody(model("num_moe_experts = 8  expert_model_parallel_size = 8"));
  EXPECT_EQ(loaded->config->derived().worldSize, 8);
  loaded = loadBody("ddp.num_distributed_optimizer_instances = 3");
  EXPECT_EQ(loaded->config->derived().worldSize, 3);
  EXPECT_EQ(loadBody("cluster.gpu = h100")->config->derived().worldSize, 1);
  loaded = loadBody(model("tensor_model_parallel_size = 4  pipeline_model_parallel_size = 4") +
                    "cluster.gpus_per_node = 8");
  EXPECT_EQ(loaded->config->derived().nodes, 2);
  loaded = loadBody(model("tensor_model_parallel_size = 4") + "cluster.nodes = 2");
  EXPECT_EQ(loaded->config->derived().gpusPerNode, 2);
}

TEST(Derived, WhichStrategyRuns) {
  auto strategy = [](const std::string &body) {
    return loadBody(body)->config->derived().strategy;
  };
  EXPECT_EQ(strategy(""), ShardingStrategy::NoShard);
  EXPECT_EQ(strategy("optimizer.use_distributed_optimizer = true"), ShardingStrategy::Optim);
  EXPECT_EQ(strategy("ddp.use_megatron_fsdp = true"), ShardingStrategy::OptimGradsParams);
  EXPECT_EQ(
      strategy("ddp { use_megatron_fsdp = true  data_parallel_sharding_strategy = optim_grads }"),
      ShardingStrategy::OptimGrads);
  EXPECT_EQ(strategy("ddp.data_parallel_sharding_strategy = optim_grads"),
            ShardingStrategy::NoShard);
  EXPECT_EQ(strategy("dist.use_torch_fsdp2 = true"), ShardingStrategy::OptimGradsParams);
  auto loaded = loadBody("");
  EXPECT_EQ(ruleOf(*loaded, Opt::DdpDataParallelShardingStrategy), "strategy-without-fsdp");
}

TEST(Derived, ElementTypes) {
  const Derived fp32 = loadBody("")->config->derived();
  EXPECT_EQ(fp32.params, DType::F32);
  EXPECT_EQ(fp32.wire, DType::F32);
  const Derived bf16 = loadBody("mixed_precision = bf16_mixed")->config->derived();
  EXPECT_EQ(bf16.params, DType::BF16);
  EXPECT_EQ(bf16.compute, DType::BF16);
  EXPECT_EQ(bf16.wire, DType::F32); // the preset reduces in fp32
  EXPECT_EQ(bf16.master, DType::F32);
  const Derived narrow =
      loadBody("mixed_precision = bf16_mixed\n ddp.grad_reduce_in_fp32 = false")->config->derived();
  EXPECT_EQ(narrow.wire, DType::BF16);
  EXPECT_EQ(narrow.mainGrads, DType::F32);
  const Derived fsdp =
      loadBody("mixed_precision = bf16_mixed\n ddp { use_megatron_fsdp = true "
               "megatron_fsdp_grad_comm_dtype = bf16 megatron_fsdp_main_grads_dtype = bf16 }")
          ->config->derived();
  EXPECT_EQ(fsdp.wire, DType::BF16);
  EXPECT_EQ(fsdp.mainGrads, DType::BF16);
}

TEST(Derived, PrecisionReachesAllItsTwins) {
  auto loaded = loadBody("model.bf16 = true");
  EXPECT_TRUE(loaded->config->getBool(Opt::OptimizerBf16));
  EXPECT_EQ(loaded->config->getEnum<FloatType>(Opt::ModelParamsDtype), FloatType::Bf16);
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelParamsDtype), "precision-twins");
  auto fp8 = loadBody("mixed_precision bf16_with_mxfp8_mixed { fp8_param = false }");
  EXPECT_FALSE(fp8->config->getBool(Opt::ModelFp8Param));
  EXPECT_EQ(fp8->config->getEnum<Fp8Recipe>(Opt::ModelFp8Recipe), Fp8Recipe::Mxfp8);
}

TEST(Derived, CheckpointFormats) {
  auto format = [](const std::string &body) {
    return loadBody(body)->config->getEnum<CkptFormat>(Opt::CheckpointCkptFormat);
  };
  EXPECT_EQ(format(""), CkptFormat::TorchDist);
  EXPECT_EQ(format("dist.use_megatron_fsdp = true"), CkptFormat::FsdpDtensor);
  EXPECT_EQ(format("dist.use_torch_fsdp2 = true"), CkptFormat::TorchDcp);
  EXPECT_EQ(ruleOf(*loadBody(""), Opt::CheckpointCkptFormat), "checkpoint-format-left-open");
}

TEST(Derived, DataAndVocabulary) {
  auto text = loadBody("dataset { data_path = \"a.txt\" }\n" + model(""));
  EXPECT_EQ(ruleOf(*text, Opt::DatasetKind), "dataset-kind");
  EXPECT_EQ(ruleOf(*text, Opt::DatasetEodToken), "dataset-details");
  EXPECT_EQ(text->config->getInt(Opt::ModelVocabSize), 257);
  EXPECT_EQ(ruleOf(*text, Opt::ModelVocabSize), "vocabulary-from-tokenizer");
  auto indexed =
      loadBody("dataset { data_path = [\"d/x_text_document\"] }\n" + model("vocab_size = 9"));
  EXPECT_EQ(indexed->config->getEnum<DatasetKind>(Opt::DatasetKind), DatasetKind::Indexed);
  auto open = loadBody("dataset indexed { data_path = \"x\" }\n" + model(""));
  EXPECT_EQ(open->ids(Severity::Error), std::vector<std::string>{"missing-option"});
}

TEST(Derived, TheSchedule) {
  auto loaded = loadBody("train.train_iters = 50");
  EXPECT_EQ(loaded->config->derived().decayLength, 50);
  EXPECT_EQ(ruleOf(*loaded, Opt::SchedulerLrDecayIters), "schedule-length");
  EXPECT_EQ(loaded->config->getFloat(Opt::OptimizerMinLr), 0);
  loaded = loadBody("train { train_samples = 60  micro_batch_size = 2 }");
  EXPECT_EQ(loaded->config->derived().trainIters, 30);
  loaded = loadBody("train.train_iters = 50\n scheduler.lr_warmup_fraction = 0.1");
  EXPECT_EQ(loaded->config->derived().warmupLength, 5);
}

TEST(Derived, SelectiveRecomputationMeansTheCore) {
  auto loaded = loadBody("model.recompute_granularity = selective");
  EXPECT_EQ(loaded->config->getEnums<RecomputeModule>(Opt::ModelRecomputeModules),
            std::vector<RecomputeModule>{RecomputeModule::CoreAttn});
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelRecomputeModules), "recompute-core-attention");
}

TEST(Derived, OffloadedLayersFollowFromUpstreamsOptions) {
  auto moved = [](const std::string &options) {
    auto loaded = loadBody(model(options, "llama"));
    if (!loaded->config->has(Opt::ModelOffloadLayers))
      return std::string();
    EXPECT_EQ(ruleOf(*loaded, Opt::ModelOffloadLayers), "offloaded-layers");
    std::string text;
    for (const Value &entry : loaded->config->getList(Opt::ModelOffloadLayers))
      text += *entry.asString() + " ";
    return text;
  };
  const std::string first = "cpu_offloading = true\n cpu_offloading_num_layers = 2\n";
  EXPECT_EQ(moved(first), "2*all 2*none ");
  EXPECT_EQ(moved(first + "cpu_offloading_activations = false"), "")
      << "model.cpu_offloading_activations";
  const std::string modules = "fine_grained_activation_offloading = true\n"
                              "offload_modules = [attn_norm, mlp_norm]\n";
  EXPECT_EQ(moved(modules), "4*attn_norm+mlp_norm ");
  EXPECT_EQ(moved(modules + "activation_offload_fraction = 0.4"),
            "attn_norm+mlp_norm attn_norm 2*none ");
}

TEST(Derived, CommOverlapTurnsItsBucketsOn) {
  auto loaded =
      loadBody("comm_overlap.tp_comm_overlap = false\n ddp.use_distributed_optimizer = true\n"
               "cluster { nodes = 1  gpus_per_node = 2 }");
  EXPECT_EQ(loaded->config->getInt(Opt::DdpBucketSize), 134'217'728);
  EXPECT_EQ(ruleOf(*loaded, Opt::DdpBucketSize), "comm-overlap-defaults");
}

/// Options under which every path names a checkpoint with these settings.
LoadOptions withCheckpoint() {
  LoadOptions options;
  options.readCheckpoint = [](const Config &) {
    CheckpointSettings saved;
    saved.folder = "saved";
    saved.model = {{Opt::ModelNumLayers, Value::ofInt(3), /*replaces=*/false},
                   {Opt::ModelRotaryBase, Value::ofFloat(500)}};
    saved.parallel = {{Opt::ModelTensorModelParallelSize, Value::ofInt(2)}};
    saved.schedule = {{Opt::OptimizerLr, Value::ofFloat(0.25)},
                      {Opt::SchedulerLrDecaySamples, Value::ofInt(90)}};
    return saved;
  };
  return options;
}

TEST(Derived, CheckpointArgsFillSizesAndReplaceKinds) {
  std::string body = "model { hidden_size = 64  num_attention_heads = 4  rotary_base = 900.0 }\n"
                     "checkpoint { load = \"saved\"  use_checkpoint_args = true";
  auto loaded = loadBody(body + " }", withCheckpoint());
  EXPECT_EQ(loaded->config->getInt(Opt::ModelNumLayers), 3);
  EXPECT_EQ(ruleOf(*loaded, Opt::ModelNumLayers), "checkpoint-args");
  EXPECT_EQ(loaded->config->getFloat(Opt::ModelRotaryBase), 500);
  EXPECT_EQ(loaded->config->getInt(Opt::ModelTensorModelParallelSize), 1);
  EXPECT_TRUE(loaded->has("taken-from-checkpoint"));
  auto own = loadBody(body + " }\n model.num_layers = 5", withCheckpoint());
  EXPECT_EQ(own->config->getInt(Opt::ModelNumLayers), 5);
  auto parallel = loadBody(body + "  use_mp_args_from_checkpoint_args = true }", withCheckpoint());
  EXPECT_EQ(parallel->config->getInt(Opt::ModelTensorModelParallelSize), 2);
  EXPECT_FALSE(
      loadBody("checkpoint.load = \"saved\"", withCheckpoint())->has("taken-from-checkpoint"));
}

TEST(Derived, CheckpointScheduleCountsSamples) {
  std::string body = "optimizer.lr = 1.0\n checkpoint.load = \"saved\"\n"
                     "scheduler.use_checkpoint_opt_param_scheduler = true\n"
                     "cluster { nodes = 1  gpus_per_node = 1 }\n";
  auto steps =
      loadBody(body + "train { global_batch_size = 8  train_iters = 20 }", withCheckpoint());
  EXPECT_EQ(steps->config->getFloat(Opt::OptimizerLr), 0.25);
  EXPECT_EQ(ruleOf(*steps, Opt::OptimizerLr), "checkpoint-schedule");
  EXPECT_EQ(steps->config->getInt(Opt::SchedulerLrDecayIters), 11) << "90 / 8, rounded";
  auto samples =
      loadBody(body + "train { global_batch_size = 8  train_samples = 160 }", withCheckpoint());
  EXPECT_EQ(samples->config->getInt(Opt::SchedulerLrDecaySamples), 90);
}

TEST(Derived, HugeNumbersDoNotOverflow) {
  std::string huge = "9_000_000_000_000_000_000";
  auto loaded =
      loadBody("model { num_layers = " + huge + "  hidden_size = " + huge +
               "  num_attention_heads = 1  vocab_size = " + huge + "  seq_length = " + huge +
               "  tensor_model_parallel_size = " + huge + "  context_parallel_size = " + huge +
               " }\n cluster { nodes = " + huge + "  gpus_per_node = " + huge +
               " }\n train { micro_batch_size = " + huge + "  global_batch_size = " + huge + " }");
  EXPECT_TRUE(loaded->diags.hasErrors());
  EXPECT_GT(loaded->config->derived().paddedVocab, 0);
}

} // namespace
} // namespace shardc::config::test
