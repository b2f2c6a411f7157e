// Predictions from measured rates: a file's entries replace those of the tables; other entries
// remain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/predict/Expected.h"
#include "compiler/predict/MeasuredRates.h"
#include "compiler/predict/Transfers.h"

namespace shardc::predict {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kRatedBytes = 64 << 20;

const std::vector<std::string> kWords = {"product matmul bf16 1024 1024 1024 0.001",
                                         "product matmul bf16 4096 4096 4096 0.01",
                                         "attention attention bf16 2 2048 8 2 128 0.001",
                                         "attention attention_bwd bf16 2 2048 8 2 128 0.004",
                                         "memory copy bf16 1048576 1e-7",
                                         "memory copy bf16 268435456 0.1",
                                         "memory to_host bf16 1000000000 0.1",
                                         "collective all_gather bf16 8 8 1048576 0.001",
                                         "collective all_gather bf16 8 8 67108864 0.01",
                                         "collective all_gather bf16 4 1 67108864 0.1",
                                         "collective send bf16 2 2 67108864 0.02"};

TEST(MeasuredRates, AreLinearInTheLogarithmOfSizes) {
  auto rates = MeasuredRates::ofPlan(kWords);
  double low = 2.0 * 1024 * 1024 * 1024 / 0.001 * 1e-12;
  double high = 2.0 * 4096 * 4096 * 4096 / 0.01 * 1e-12;
  EXPECT_DOUBLE_EQ(*rates->productTflops(DType::BF16, 10), low);
  EXPECT_DOUBLE_EQ(*rates->productTflops(DType::BF16, 1024), low);
  EXPECT_DOUBLE_EQ(*rates->productTflops(DType::BF16, 2048), (low + high) / 2);
  EXPECT_DOUBLE_EQ(*rates->productTflops(DType::BF16, 1e6), high);
  EXPECT_FALSE(rates->productTflops(DType::F32, 1024));
  EXPECT_TRUE(rates->attentionTflops(DType::BF16, 64, 512, false)); // nearest measured head size
  EXPECT_FALSE(rates->attentionTflops(DType::F16, 128, 512, false));
}

TEST(MeasuredRates, TakeLargeCopiesOnly) {
  Device h200 = device(Gpu::H200);
  MeasuredRates::ofPlan(kWords)->applyTo(h200);
  EXPECT_NEAR(h200.sustained.memoryGBs, 268435456 / 0.1 * 1e-9, 1e-9);
  EXPECT_NEAR(h200.sustained.hostGBs, 10, 1e-9);
}

TEST(MeasuredRates, FindGroupsThatArePlacedAlike) {
  auto rates = MeasuredRates::ofPlan(kWords);
  using enum CollectiveKind;
  EXPECT_EQ(rates->link(AllGather, 2, 2)->points.size(), 2u);
  EXPECT_EQ(rates->link(AllGather, 4, 1)->points.size(), 1u);
  EXPECT_DOUBLE_EQ(rates->link(AllGather, 16, 8)->faster, 8); // each of a node's 8 GPUs has its own
  EXPECT_FALSE(rates->link(ReduceScatter, 8, 8));
  EXPECT_TRUE(rates->link(Shift, 8, 8)); // from the rates of sends
  EXPECT_FALSE(rates->link(Shift, 8, 1));
}

TEST(MeasuredRates, GiveTimesOfCollectives) {
  Device h200 = device(Gpu::H200);
  Team node = {8, 8, 8};
  auto seconds = [&](CollectiveKind kind) {
    return collectiveSeconds(h200, kind, plan::Transport::Nccl, kRatedBytes, node);
  };
  double table = seconds(CollectiveKind::AllGather);
  double reduction = seconds(CollectiveKind::ReduceScatter);
  h200.rates = MeasuredRates::ofPlan(kWords);
  EXPECT_NEAR(seconds(CollectiveKind::AllGather), 0.01, 1e-9);
  EXPECT_GT(0.01, table);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::ReduceScatter), reduction);
}

TEST(MeasuredRates, ComeWithThePlan) {
  plan::Plan plan;
  plan.needsGpu = "host";
  EXPECT_FALSE(plannedDevice(plan)->isPredicted());
  EXPECT_EQ(deviceOf(plan).gpu, Gpu::H200);
  plan.job.put(plan::JobField::derived_rates, kWords);
  EXPECT_TRUE(plannedDevice(plan)->isPredicted());
  EXPECT_EQ(deviceOf(plan).gpu, Gpu::Host);
  plan.needsGpu = "";
  EXPECT_FALSE(plannedDevice(plan));
}

TEST(MeasuredRates, SayWhatIsLacking) {
  auto rates = MeasuredRates::ofPlan(kWords);
  EXPECT_THAT(rates->lacking(DType::BF16, false, 1, 1), IsEmpty());
  EXPECT_THAT(rates->lacking(DType::BF16, true, 1, 1), ElementsAre("products of 8 bits"));
  EXPECT_THAT(rates->lacking(DType::BF16, false, 8, 1),
              ElementsAre("reduce_scatter inside a node", "all_reduce inside a node",
                          "all_to_all inside a node"));
  EXPECT_THAT(rates->lacking(DType::F32, false, 1, 1),
              ElementsAre("products of f32", "attention of f32", "gradients of attention of f32"));
}

/// doctor expects the rates with which the tables predict.
TEST(ExpectedRates, AreThoseOfTheTable) {
  const Device &h200 = device(Gpu::H200);
  std::vector<Rate> expected = expectedRates(h200, 8);
  auto of = [&](std::string_view words) {
    for (const Rate &rate : expected)
      if (rate.text() == words)
        return rate.rate();
    return 0.0;
  };
  EXPECT_NEAR(of("product matmul bf16 4096 4096 4096"), 668, 1e-6);
  EXPECT_NEAR(of("memory copy bf16 268435456"), 4270, 1e-6);
  double seconds = collectiveSeconds(h200, CollectiveKind::AllGather, plan::Transport::Nccl,
                                     kRatedBytes, {8, 8, 8});
  EXPECT_NEAR(of("collective all_gather bf16 8 8 67108864"), 7.0 / 8 * kRatedBytes / seconds * 1e-9,
              1e-6);
  EXPECT_GT(of("collective all_reduce bf16 2 1 67108864"), 0);
}

TEST(Devices, SayWhatIsAssumed) {
  EXPECT_EQ(assumedFigures(device(Gpu::H200)).size(), 1u);
  EXPECT_EQ(assumedFigures(device(Gpu::H100)).size(), 2u);
  for (const Device &each : devices())
    EXPECT_FALSE(each.source.empty()) << each.name.str();
}

} // namespace
} // namespace shardc::predict
