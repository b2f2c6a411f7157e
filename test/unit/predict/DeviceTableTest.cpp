// The device table: every row is complete, and lookups find existing rows.
#include <set>

#include <gtest/gtest.h>

#include "compiler/basic/Suggest.h"
#include "compiler/predict/DeviceTable.h"

namespace shardc::predict {
namespace {

TEST(DeviceTable, RowsAreInOrderAndNamedOnce) {
  std::set<std::string> names;
  for (size_t i = 0; i < devices().size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(devices()[i].gpu), i);
    EXPECT_EQ(&device(devices()[i].gpu), &devices()[i]);
    EXPECT_TRUE(names.insert(devices()[i].name.str()).second) << devices()[i].name.str();
  }
}

TEST(DeviceTable, GpusHaveAllFigures) {
  for (const Device &gpu : devices()) {
    if (gpu.isHost())
      continue;
    SCOPED_TRACE(gpu.name.str());
    EXPECT_GE(gpu.memoryBytes, int64_t{20} << 30);
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_GE(gpu.watts, 72);
    EXPECT_GT(gpu.peak.bf16Tflops, gpu.peak.fp32Tflops);
    EXPECT_GT(gpu.peak.memoryGBs, gpu.peak.nvlinkGBs);
    EXPECT_GT(gpu.peak.hostGBs, 0);
    EXPECT_GT(gpu.networkGBs, 0);
    EXPECT_EQ(gpu.nvlinkDomain > 1, gpu.peak.nvlinkGBs > 0);
  }
}

/// This includes GPUs without measurements: if predictions used the peaks, no run would reach them,
/// and each run would warn of slow links.
TEST(DeviceTable, SustainedRatesOfGpusAreBelowThePeaks) {
  unsigned measured = 0;
  for (const Device &gpu : devices()) {
    SCOPED_TRACE(gpu.name.str());
    EXPECT_LE(gpu.sustained.bf16Tflops, gpu.peak.bf16Tflops);
    EXPECT_LE(gpu.sustained.memoryGBs, gpu.peak.memoryGBs);
    EXPECT_LE(gpu.sustained.nvlinkGBs, gpu.peak.nvlinkGBs);
    EXPECT_TRUE(gpu.isHost() || gpu.sustained.hostGBs < gpu.peak.hostGBs);
    EXPECT_EQ(gpu.sustained.bf16Tflops < gpu.peak.bf16Tflops, !gpu.isHost());
    EXPECT_EQ(gpu.sustained.nvlinkGBs<gpu.peak.nvlinkGBs, gpu.peak.nvlinkGBs> 0);
    measured += gpu.measured;
  }
  EXPECT_GE(measured, 1u);
}

/// Cards with less power than their units could draw sustain less: an RTX PRO 6000 at 300 W reaches
/// 229 TFLOP/s of bf16 by cuBLAS. GeForce cards sum in fp32 at half the rate, and have no peers.
TEST(DeviceTable, PowerAndFp32SumsLimitCards) {
  EXPECT_NEAR(device(Gpu::L4).sustained.bf16Tflops, 72 * 0.763, 0.1);
  EXPECT_NEAR(device(Gpu::H100Pcie).sustained.bf16Tflops, 350 * 0.9543, 0.1);
  EXPECT_NEAR(device(Gpu::Rtx4090).sustained.bf16Tflops, 165.2 * 668 / 989.4, 0.1);
  EXPECT_EQ(device(Gpu::Rtx4090).peak.bf16Tflops, 165.2);
  EXPECT_FALSE(device(Gpu::Rtx4090).hasPeers);
  EXPECT_TRUE(device(Gpu::L40s).hasPeers);
}

TEST(DeviceTable, KnowsWhatIsBeforeBlackwellAndWhatHasFp8) {
  EXPECT_TRUE(device(Gpu::H200).isBeforeBlackwell());
  EXPECT_FALSE(device(Gpu::B200).isBeforeBlackwell());
  EXPECT_FALSE(device(Gpu::Host).isBeforeBlackwell());
  EXPECT_FALSE(device(Gpu::A100).hasFp8());
  EXPECT_TRUE(device(Gpu::L40s).hasFp8());
}

TEST(DeviceTable, FindsByNameAndSuggestsNearOnes) {
  EXPECT_EQ(findDevice("gb200"), Gpu::Gb200);
  EXPECT_EQ(findDevice("gb20"), std::nullopt);
  EXPECT_EQ(suggest("a100_40g", deviceNames()).theOne(), llvm::StringRef("a100_40gb"));
}

} // namespace
} // namespace shardc::predict
