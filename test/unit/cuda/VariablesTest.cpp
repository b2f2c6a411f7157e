// Environment variables that the CUDA backend needs are set before a run starts threads.
#include <cstdlib>

#include <gtest/gtest.h>

#include "runtime/backend/cuda/Options.h"
#include "runtime/tools/Variables.h"

namespace shardc::cuda {
namespace {

constexpr const char *kRegister = "NCCL_GRAPH_REGISTER", *kMixing = "NCCL_GRAPH_MIXING_SUPPORT",
                     *kQueues = "CUDA_DEVICE_MAX_CONNECTIONS";

class Variables : public testing::Test {
protected:
  void SetUp() override {
    unsetenv(kRegister);
    unsetenv(kMixing);
    unsetenv(kQueues);
    plan_.needsBackend = "cuda";
  }

  /// Sets variables like shardc-run. If no backend that sets variables is named, there is none.
  Status set(const tools::RunToolOptions &options = {}) {
    tools::BackendEntry cuda = {.name = "cuda", .setVariables = [](const plan::Plan &plan) {
                                  cuda::setVariables(plan.roles.size() > 1);
                                }};
    return tools::setVariables(
        plan_, tools::backendNameOf(plan_, options) == cuda.name ? &cuda : nullptr, options);
  }

  plan::Plan plan_;
};

TEST_F(Variables, AreSetWithThoseOfTheRecipe) {
  ASSERT_TRUE(set().isOk());
  EXPECT_STREQ(getenv(kRegister), "0");
  EXPECT_STREQ(getenv(kMixing), "0");
}

TEST_F(Variables, WhatOthersHaveSetStays) {
  plan_.job.environment = {{"NCCL_GRAPH_REGISTER", "1"}};
  setenv(kMixing, "2", 1);
  ASSERT_TRUE(set().isOk());
  EXPECT_STREQ(getenv(kRegister), "1");
  EXPECT_STREQ(getenv(kMixing), "2");
}

TEST_F(Variables, StagesOfPipelinesHaveMoreHardwareQueues) {
  plan_.roles.resize(1);
  ASSERT_TRUE(set().isOk());
  EXPECT_EQ(getenv(kQueues), nullptr);
  plan_.roles.resize(2);
  ASSERT_TRUE(set().isOk());
  EXPECT_STREQ(getenv(kQueues), "32");
}

TEST_F(Variables, OfGpusAreLeftAloneWithoutThem) {
  tools::RunToolOptions simulated;
  simulated.simulateRanks = 2;
  ASSERT_TRUE(set(simulated).isOk());
  EXPECT_EQ(getenv(kRegister), nullptr);
}

} // namespace
} // namespace shardc::cuda
