// NCCL's configuration for a plan and channel.
#include <gtest/gtest.h>

#include "runtime/backend/channels/Uses.h"
#include "runtime/backend/cuda/Config.h"
#include "runtime/base/SmallCollectives.h"
#include "runtime/tools/CudaOptions.h"

namespace shardc::cuda {
namespace {

plan::Plan planWith(bool usesSharp) {
  plan::Plan plan;
  plan.mesh = {{"dp", 4}};
  plan.job.dist.useSharp = usesSharp;
  return plan;
}

TEST(Config, SharpReachesNccl) {
  for (bool usesSharp : {false, true}) {
    Options options = tools::cudaOptionsOf(planWith(usesSharp), {}, 1);
    EXPECT_EQ(options.worldSize, 4);
    EXPECT_EQ(options.firstRank, 1);
    hal::ChannelDesc desc{"dp reduce", {0, 1, 2, 3}};
    ncclConfig_t config = configOf(desc, options), untouched = NCCL_CONFIG_INITIALIZER;
    EXPECT_EQ(config.collnetEnable, usesSharp ? 1 : untouched.collnetEnable);
    EXPECT_STREQ(config.commName, "dp reduce");
  }
}

TEST(Config, FollowsWhatAChannelIsFor) {
  ncclConfig_t untouched = NCCL_CONFIG_INITIALIZER;
  hal::ChannelDesc desc{"dp gather", {0, 1}};
  EXPECT_EQ(configOf(desc, {}).maxCTAs, untouched.maxCTAs) << "uses are unknown";
  desc.uses = {{hal::CollectiveKind::AllGather, kSmallCollectiveBytes}};
  EXPECT_EQ(configOf(desc, {}).maxCTAs, 1);
  desc.uses.push_back({hal::CollectiveKind::AllGather, kSmallCollectiveBytes + 1});
  EXPECT_EQ(configOf(desc, {}).maxCTAs, untouched.maxCTAs);
  desc.multiprocessors = 32;
  EXPECT_EQ(configOf(desc, {}).maxCTAs, 32) << "what the plan lets the channel take";
  EXPECT_EQ(configOf(desc, {}).CTAPolicy, untouched.CTAPolicy);
  desc.registration = hal::Registration::Windows;
  EXPECT_EQ(configOf(desc, {}).CTAPolicy, NCCL_CTA_POLICY_ZERO);
}

} // namespace
} // namespace shardc::cuda
