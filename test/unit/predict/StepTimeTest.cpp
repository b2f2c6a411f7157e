// Predictions from rates: bandwidth of gathers by size, and that what is faster is predicted to be.
#include <gtest/gtest.h>

#include "compiler/predict/Overheads.h"
#include "compiler/predict/StepTime.h"

namespace shardc::predict {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// 104 MiB a shard on four devices took 939 us by copy engines and 965 us by kernels; 16 MiB 188
/// and 169 us.
TEST(Gathers, FollowWhatWasMeasured) {
  const Device &h200 = device(Gpu::H200);
  auto micros = [&](int64_t shard, bool copyEngines) {
    double received = 3.0 * static_cast<double>(shard);
    return received / gatherGBs(h200, 4 * shard, 4, copyEngines) * 1e-3;
  };
  EXPECT_NEAR(micros(104 * kMiB, true), 939, 15);
  EXPECT_NEAR(micros(104 * kMiB, false), 965, 15);
  EXPECT_NEAR(micros(16 * kMiB, true), 188, 5);
  EXPECT_NEAR(micros(16 * kMiB, false), 169, 5);
  EXPECT_EQ(gatherGBs(h200, kMiB, 1, true), 0) << "nothing is gathered";
  EXPECT_LT(gatherGBs(h200, 400 * kMiB, 16, false), 50) << "over the network";
}

TEST(Overheads, TheHostHasNone) {
  plan::Plan plan;
  plan.roles.emplace_back();
  EXPECT_EQ(overheadsOf(device(Gpu::Host), plan).total(), 0);
  EXPECT_EQ(overheadsOf(device(Gpu::H200), plan).communicators, 0) << "no collectives";
  EXPECT_EQ(overheadsOf(device(Gpu::H200), plan).context, 527 * kMiB);
  notePredictions(device(Gpu::Host), plan);
  EXPECT_TRUE(plan.job.empty());
  plan.job = {{"a", int64_t{1}}, {"z", int64_t{2}}};
  notePredictions(device(Gpu::H200), plan);
  EXPECT_EQ(plan.jobInt("derived.memory.context", 0), 527 * kMiB);
  EXPECT_TRUE(std::is_sorted(plan.job.begin(), plan.job.end(), [](const auto &a, const auto &b) {
    return a.first < b.first;
  }));
}

} // namespace
} // namespace shardc::predict
