// Steps 3 and 4: locations of messages, their suppression, and that adjustments converge.
#include <gtest/gtest.h>

#include "compiler/config/Rules.h"
#include "compiler/diag/Remarks.h"
#include "test/unit/config/Cases.h"
#include "test/unit/support/Long.h"

namespace shardc::config::test {
namespace {

std::string lineOf(const Loaded &loaded, SourceRange range) {
  LineColumn at = loaded.sources.lineColumn(range.begin);
  return at.file.substr(at.file.rfind('/') + 1).str() + ":" + std::to_string(at.line);
}

TEST(Rules, AConflictStandsAtTheLaterSideInOneFile) {
  auto loaded = loadBody("checkpoint.ckpt_format = torch_dist\ndist.use_megatron_fsdp = true");
  const Diagnostic *error = loaded->find("fsdp-checkpoint-format");
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(lineOf(*loaded, error->range), "test.recipe:3");
  ASSERT_EQ(error->notes.size(), 1u);
  EXPECT_EQ(lineOf(*loaded, error->notes[0].range), "test.recipe:2");
}

TEST(Rules, AConflictStandsAtTheSideOfHigherPrecedence) {
  std::string folder = makeFolder("conflict");
  writeText(folder + "/base.recipe", "recipe base {\n\n\n checkpoint.ckpt_format = zarr }");
  writeText(folder + "/top.recipe",
            "recipe top extends \"base.recipe\" {\n dist { use_megatron_fsdp = true }\n}\n");
  auto loaded = loadFile(folder + "/top.recipe");
  const Diagnostic *error = loaded->find("fsdp-checkpoint-format");
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(lineOf(*loaded, error->range), "top.recipe:2");
  ASSERT_EQ(error->notes.size(), 1u);
  EXPECT_EQ(lineOf(*loaded, error->notes[0].range), "base.recipe:4");
  // The repair overrides the inherited value; the shared file does not change.
  ASSERT_EQ(error->fixIts.size(), 1u);
  EXPECT_EQ(lineOf(*loaded, error->fixIts[0].edits[0].range), "top.recipe:3");
}

TEST(Rules, AConflictWithTheCommandLineStandsThere) {
  auto loaded =
      loadBody("dist.use_megatron_fsdp = true", {"", {}, {"dist.use_tp_pp_dp_mapping=true"}});
  const Diagnostic *error = loaded->find("fsdp-rank-order");
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(lineOf(*loaded, error->range), "<--set dist.use_tp_pp_dp_mapping=true>:1");
  EXPECT_TRUE(error->fixIts.empty());
}

TEST(Rules, AllErrorsComeInOneGo) {
  auto loaded = loadBody("dist { use_megatron_fsdp = true  use_torch_fsdp2 = true "
                         "use_tp_pp_dp_mapping = true }\n checkpoint.ckpt_format = zarr\n"
                         "env.CUDA_DEVICE_MAX_CONNECTIONS = 1");
  EXPECT_EQ(loaded->ids(Severity::Error).size(), 4u);
}

TEST(Rules, AnAdjustmentTellsOldNewAndWhy) {
  auto loaded = loadBody("dist.use_megatron_fsdp = true\nddp.average_in_collective = true");
  const Diagnostic *remark = loaded->find("fsdp-average-in-collective");
  ASSERT_NE(remark, nullptr);
  EXPECT_EQ(remark->severity, Severity::Remark);
  EXPECT_EQ(remark->text,
            "'ddp.average_in_collective' becomes false (was true): FSDP handles gradient "
            "synchronization differently");
  const Setting &setting = (*loaded->config)[Opt::DdpAverageInCollective];
  EXPECT_EQ(setting.from.origin, Origin::Rule);
  EXPECT_EQ(setting.from.cause, Opt::DistUseMegatronFsdp);
  EXPECT_TRUE(*setting.history.back().first.asBool());
}

TEST(Rules, NothingIsSaidOfWhatNobodySetAndNothingDependsOn) {
  auto loaded = loadBody("dist.use_megatron_fsdp = true");
  EXPECT_TRUE(loaded->config->getBool(Opt::DdpOverlapGradReduce));
  EXPECT_FALSE(loaded->has("fsdp-forced-overlap"));
}

TEST(Rules, SilencedGroupsAreSilentAndPromotedOnesAreErrors) {
  SourceManager sources;
  DiagEngine diags(sources);
  registerGroups(diags);
  ASSERT_TRUE(diags.flags().apply("-Wno-left-open").isOk());
  ASSERT_TRUE(diags.flags().apply("-Werror=strategy-ignored").isOk());
  BufferId buffer =
      sources.addBuffer("r", "recipe r { ddp.data_parallel_sharding_strategy = optim }");
  EXPECT_FALSE(loadConfig(sources, diags, buffer, {}).has_value());
  EXPECT_EQ(diags.pending().size(), 1u);
}

/// The switches that adjustments read or write.
std::vector<std::string> adjustedSwitches() {
  return {"dist.use_megatron_fsdp",
          "ddp.use_megatron_fsdp",
          "ddp.use_custom_fsdp",
          "ddp.average_in_collective",
          "model.gradient_accumulation_fusion",
          "ddp.reuse_grad_buf_for_mxfp8_param_ag",
          "optimizer.reuse_grad_buf_for_mxfp8_param_ag",
          "ddp.use_distributed_optimizer",
          "optimizer.use_distributed_optimizer",
          "ddp.overlap_param_gather",
          "optimizer.overlap_param_gather",
          "ddp.overlap_grad_reduce",
          "model.delay_wgrad_compute",
          "ddp.delay_wgrad_compute",
          "optimizer.use_precision_aware_optimizer",
          "ddp.megatron_fsdp_use_decoupled_grad",
          "ddp.nccl_ub",
          "ddp.fsdp_double_buffer",
          "ddp.fsdp_manual_registration",
          "ddp.megatron_fsdp_max_pool_double_buffer",
          "model.sequence_parallel",
          "model.tp_comm_overlap",
          "model.tp_comm_overlap_rs_dgrad",
          "ddp.megatron_fsdp_cuda_graph_mode",
          "ddp.fsdp_all_gather_in_start_param_sync",
          "model.overlap_p2p_comm",
          "ddp.align_param_gather",
          "dist.lazy_mpu_init",
          "model.use_cpu_initialization",
          "ddp.fp8_param_gather",
          "ddp.megatron_fsdp_enable_fine_grained_param_gather",
          "optimizer.overlap_param_gather_with_optimizer_step",
          "model.overlap_moe_expert_parallel_comm",
          "model.fp16",
          "ddp.check_for_nan_in_grad",
          "rerun_state_machine.check_for_nan_in_loss"};
}

/// Two adjustments that undo each other never end; Rules.cpp limits the number of rounds. Each pair
/// of switches is tried with other values in each context; all pairs with SHARDC_LONG=1.
TEST(Rules, AdjustmentsReachAFixedPoint) {
  std::vector<std::string> switches = adjustedSwitches();
  const std::string contexts[] = {"", "dist.use_megatron_fsdp = true\n",
                                  "ddp.use_megatron_fsdp = true\nddp.megatron_fsdp_version = 2\n",
                                  "dist.use_torch_fsdp2 = true\n"};
  constexpr const char *kValues[] = {"tt", "tf", "ft"};
  auto word = [](char c) { return c == 't' ? " = true\n" : " = false\n"; };
  for (size_t c = 0; c < std::size(contexts); ++c)
    for (size_t a = 0; a < switches.size(); ++a)
      for (size_t b = a + 1; b < switches.size(); ++b)
        for (size_t v = 0; v < std::size(kValues); ++v) {
          if (!shardc::test::isLong() && (a + b + c + v) % std::size(kValues) != 0)
            continue;
          const char *values = kValues[v];
          auto loaded =
              loadBody(contexts[c] + switches[a] + word(values[0]) + switches[b] + word(values[1]));
          ASSERT_TRUE(loaded->config.has_value());
        }
}

TEST(Rules, RemarksAreOfAKindThatIsCounted) {
  for (const RuleInfo &rule : rules()) {
    bool isCounted = rule.diagInfo().severity == Severity::Remark && !rule.group.empty();
    EXPECT_TRUE(!isCounted || findRemarkKind(rule.group))
        << "RemarkKinds.def has no " << rule.group.str();
  }
}

TEST(Rules, RecipesOfTheRepositoryAreSound) {
  std::vector<std::string> recipes = allRecipes();
  EXPECT_FALSE(recipes.empty());
  for (const std::string &path : recipes) {
    auto loaded = loadFile(path);
    EXPECT_TRUE(loaded->ids(Severity::Error).empty())
        << path << ": " << loaded->ids(Severity::Error).front();
  }
}

} // namespace
} // namespace shardc::config::test
