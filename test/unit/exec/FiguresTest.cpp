// Figures of a run besides its losses: memory by arena and purpose, operations of the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/Links.h"
#include "runtime/run/MemoryTable.h"
#include "runtime/run/ModelFlops.h"
#include "test/unit/base/Told.h"

namespace shardc::run {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

plan::Cell cellAt(plan::Arena arena, int64_t offset, int64_t floats, plan::Purpose purpose) {
  plan::Cell cell;
  cell.type.dtype = DType::F32;
  cell.type.rank = 1;
  cell.type.shape[0] = floats;
  cell.arena = arena;
  cell.purpose = purpose;
  cell.place.placed = true;
  cell.place.arena = arena;
  cell.place.offset = offset;
  return cell;
}

TEST(MemoryTable, HasArenasByPurpose) {
  plan::Role role;
  role.arenaBytes = {2048, 4096, 0, 0};
  role.cells = {cellAt(plan::Arena::State, 0, 256, plan::Purpose::Params),
                cellAt(plan::Arena::State, 1024, 256, plan::Purpose::OptimizerState),
                cellAt(plan::Arena::Work, 0, 512, plan::Purpose::Grads),
                cellAt(plan::Arena::Work, 0, 256, plan::Purpose::Comm)}; // shares its bytes
  std::string table = memoryTable(role, 256, 256);
  EXPECT_THAT(table, HasSubstr("memory per rank: 6.0 KiB planned, plus 512 B kernel scratch\n"));
  EXPECT_THAT(table, HasSubstr("params 1.0 KiB, optimizer_state 1.0 KiB\n"));
  EXPECT_THAT(table,
              HasSubstr("grads 2.0 KiB, comm 1.0 KiB, temporary tensors and padding 2.0 KiB\n"));
  EXPECT_THAT(table, HasSubstr("workspaces"));
  EXPECT_THAT(table, HasSubstr("receive buffers      256 B"));
  EXPECT_THAT(table, Not(HasSubstr("sym")));
}

/// Memory that background saves write is not counted as data.
TEST(MemoryTable, NamesCopiesForSaves) {
  plan::Role role;
  role.arenaBytes = {0, 0, 0, 1024};
  role.cells = {cellAt(plan::Arena::Host, 0, 128, plan::Purpose::Data),
                cellAt(plan::Arena::Host, 512, 128, plan::Purpose::SaveCopies)};
  EXPECT_THAT(memoryTable(role, 0, 0), HasSubstr("data 512 B, save_copies 512 B\n"));
}

/// The table shows the memory in use beside the plan's figure for each part.
TEST(MemoryTable, ComparesTheDeviceWithThePlan) {
  constexpr int64_t kMiB = 1 << 20;
  plan::Role role;
  role.arenaBytes = {100 * kMiB, 200 * kMiB, 50 * kMiB, 7 * kMiB}; // the last is the host's
  plan::Plan plan;
  exec::MemoryStages stages{1000 * kMiB,
                            500 * kMiB,
                            850 * kMiB,
                            868 * kMiB,
                            892 * kMiB,
                            900 * kMiB,
                            {{"dp gather", 10 * kMiB}},
                            8 * kMiB};
  std::string table = deviceMemoryTable(plan, role, stages);
  EXPECT_THAT(table, HasSubstr("device memory: 900.0 of 1000.0 MiB in use\n"));
  EXPECT_THAT(table, HasSubstr("arenas               350.0      350.0\n"));
  plan.job = {{"derived.memory.context", int64_t{490 * kMiB}},
              {"derived.memory.libraries", int64_t{4 * kMiB}}};
  role.besideBytes = {20 * kMiB, 7 * kMiB, 32 * kMiB};
  table = deviceMemoryTable(plan, role, stages);
  EXPECT_THAT(table,
              HasSubstr("device memory: 900.0 of 1000.0 MiB in use; 903.0 predicted, -3.0\n"));
  EXPECT_THAT(table, HasSubstr("communicators         10.0       20.0\n"));
  EXPECT_THAT(table, HasSubstr("    dp gather           10.0\n"));
  EXPECT_THAT(table, HasSubstr("receive buffers        8.0        7.0\n"));
  EXPECT_EQ(deviceMemoryTable(plan, role, {}), "") << "the host has no memory of a device";
}

TEST(Links, SlowGathersAreReportedBesideThePrediction) {
  plan::Plan plan;
  plan.job = {{"derived.predicted.gather_gbs", 348.25}};
  EXPECT_EQ(linkText(plan, "18 NVLinks, PCIe 5 x16; no network adapters", 340),
            "links: 18 NVLinks, PCIe 5 x16; no network adapters\n"
            "all-gather: 340.0 GB/s; 348.2 predicted\n");
  EXPECT_EQ(linkText(plan, "", 0), "") << "the host";
  test::Reported reported;
  judgeLinks(plan, 0, reported.sink()); // nothing was measured
  judgeLinks(plan, 320, reported.sink());
  EXPECT_THAT(reported.lines, ::testing::IsEmpty());
  judgeLinks(plan, 200, reported.sink());
  EXPECT_THAT(reported.lines,
              ::testing::ElementsAre("warning: all-gathers run at 200.0 GB/s, but the prediction "
                                     "assumes 348.2; steps with exposed communication will take "
                                     "longer [slow-gathers]"));
}

plan::Param paramOf(const char *name, int64_t rows, int64_t cols) {
  plan::Param param;
  param.name = name;
  param.type.dtype = DType::F32;
  param.type.rank = cols > 0 ? 2 : 1;
  param.type.shape[0] = rows;
  param.type.shape[1] = cols;
  return param;
}

/// GPT-2 of 124M parameters: 0.80 GFLOP a token with the causal half of attention.
TEST(ModelFlops, FollowsTheUsualConvention) {
  plan::Plan plan;
  plan.params = {paramOf("embedding.word_embeddings.weight", 50304, 768),
                 paramOf("embedding.position_embeddings.weight", 1024, 768),
                 paramOf("decoder.layers", 12 * 12 * 768, 768),
                 paramOf("decoder.final_layernorm.weight", 768, 0)};
  plan.units = {{"tables", plan::UnitKind::Embedding}, {"all others", plan::UnitKind::Layer}};
  plan.blocks.resize(2);
  for (int32_t unit : {0, 1})
    plan.blocks[static_cast<size_t>(unit)].unit = unit;
  for (size_t p = 0; p < plan.params.size(); ++p)
    plan.params[p].block = p < 2 ? 0 : 1;
  plan.job = {{"derived.peak_tflops", 989.4},
              {"derived.padded_vocab_size", int64_t{50304}},
              {"model.hidden_size", int64_t{768}},
              {"model.kv_channels", int64_t{64}},
              {"model.num_attention_heads", int64_t{12}},
              {"model.num_layers", int64_t{12}},
              {"model.seq_length", int64_t{1024}},
              {"model.share_embeddings_and_output_weights", true}};
  EXPECT_NEAR(modelFlopsPerToken(plan), 0.80e9, 0.005e9);
  EXPECT_DOUBLE_EQ(peakFlops(plan), 989.4e12);
  plan.job.model.shareEmbeddingsAndOutputWeights =
      false; // an output layer of its own is among the parameters
  EXPECT_NEAR(modelFlopsPerToken(plan), 0.566e9, 0.005e9);
}

/// A token goes to two of eight experts; keys have 192 channels and values 128.
TEST(ModelFlops, CountsTheExpertsOfATokenAndLatentHeads) {
  plan::Plan plan;
  plan.params = {paramOf("decoder.layers.0.mlp.router.weight", 8, 64),
                 paramOf("decoder.layers.0.mlp.experts.linear_fc1.weight", 8, 0)};
  plan::Param &experts = plan.params[1];
  experts.type.rank = 3;
  experts.type.shape[1] = 256, experts.type.shape[2] = 64;
  experts.stackedRow = 64;
  plan.job = {{"model.hidden_size", int64_t{64}},        {"model.multi_latent_attention", true},
              {"model.num_attention_heads", int64_t{4}}, {"model.num_layers", int64_t{1}},
              {"model.num_moe_experts", int64_t{8}},     {"model.moe_router_topk", int64_t{2}},
              {"model.seq_length", int64_t{32}}};
  EXPECT_DOUBLE_EQ(modelFlopsPerToken(plan), 6.0 * (8 * 64 + 2 * 256 * 64 + 32 * 4 * 160));
}

/// For a frozen layer at the bottom, only forward products count; for the lowest trained matrix
/// also its gradient; for later layers all three products.
TEST(ModelFlops, CountsGradientsOfWhatIsTrainedAlone) {
  plan::Plan plan;
  plan.classes.push_back({"frozen", /*isTrained=*/false});
  plan.units = {{"tables", plan::UnitKind::Embedding},
                {"layers.0", plan::UnitKind::Layer},
                {"layers.1", plan::UnitKind::Layer}};
  plan.params = {paramOf("table", 512, 64), paramOf("0.qkv", 64, 64), paramOf("0.fc", 64, 64),
                 paramOf("1.qkv", 64, 64), paramOf("1.fc", 64, 64)};
  for (int32_t unit : {0, 1, 2}) {
    plan.blocks.emplace_back().unit = unit;
    plan.blocks.back().paramClass = unit < 2 ? 1 : 0;
  }
  for (size_t p = 0; p < plan.params.size(); ++p)
    plan.params[p].block = static_cast<int32_t>((p + 1) / 2);
  plan.job = {{"model.hidden_size", int64_t{64}},
              {"model.kv_channels", int64_t{16}},
              {"model.num_attention_heads", int64_t{4}},
              {"model.num_layers", int64_t{2}},
              {"model.seq_length", int64_t{32}}};
  double matrix = 64 * 64, attention = 32 * 4 * 16;
  EXPECT_DOUBLE_EQ(modelFlopsPerToken(plan), 2 * matrix * (1 + 1 + 2 + 3) + (2 + 6) * attention);
  plan.blocks[0].paramClass = 0; // gradients of all inputs, and of the weights of the second layer
  EXPECT_DOUBLE_EQ(modelFlopsPerToken(plan), 2 * matrix * (2 + 2 + 3 + 3) + (6 + 6) * attention);
}

} // namespace
} // namespace shardc::run
