// Compares GPUs with those that a plan was made for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/exec/Preflight.h"

namespace shardc::exec {
namespace {

using ::testing::HasSubstr;

plan::Plan planFor(const char *gpu) {
  plan::Plan plan;
  plan.needsGpu = gpu;
  return plan;
}

TEST(Gpus, TooFewAreRefusedWithWhatMakesAPlanForThem) {
  EXPECT_EQ(checkGpuCount(planFor("h200"), {4, "NVIDIA H200"}, 8),
            "the plan has 8 ranks on this machine and 4 GPUs are visible; '--set "
            "cluster.gpus_per_node=4' compiles the recipe for them");
  EXPECT_EQ(checkGpuCount(planFor("a100"), {1, "NVIDIA H200"}, 8),
            "the plan has 8 ranks on this machine and 1 GPU is visible; '--set "
            "cluster.gpus_per_node=1 --set cluster.gpu=h200' compiles the recipe for it");
  EXPECT_EQ(checkGpuCount(planFor("h200"), {8, "NVIDIA H200"}, 8), "");
  EXPECT_EQ(checkGpuCount(planFor("h200"), {8, "NVIDIA H200"}, 4), "") << "some stay idle";
}

TEST(Gpus, AnotherKindIsWarnedOf) {
  EXPECT_EQ(
      gpuKindWarning(planFor("a100"), {8, "NVIDIA H200"}),
      "the plan was compiled for a100, but this GPU is NVIDIA H200: predictions of memory and "
      "time do not apply to it; '--set cluster.gpu=h200' compiles the recipe for it");
  EXPECT_THAT(gpuKindWarning(planFor("b200"), {1, "NVIDIA GB200"}), HasSubstr("=gb200'"));
  EXPECT_THAT(gpuKindWarning(planFor("a100_40gb"), {1, "NVIDIA A100-SXM4-80GB"}),
              HasSubstr("=a100'"));
}

TEST(Gpus, TheSameKindIsFoundInTheDriversName) {
  for (auto [kind, name] : {std::pair("h200", "NVIDIA H200"),
                            {"h100", "NVIDIA H100 80GB HBM3"},
                            {"a100", "NVIDIA A100-SXM4-80GB"},
                            {"a100_40gb", "NVIDIA A100-SXM4-40GB"},
                            {"gb200", "NVIDIA GB200"},
                            {"l40s", "NVIDIA L40S"}})
    EXPECT_EQ(gpuKindWarning(planFor(kind), {1, name}), "") << name;
  EXPECT_EQ(gpuKindWarning(planFor(""), {1, "NVIDIA H200"}), "") << "made for no GPU";
  EXPECT_EQ(gpuKindWarning(planFor("h200"), {1, ""}), "") << "the driver does not say";
}

TEST(Traces, NeedGraphsOnGpus) {
  EXPECT_THAT(checkTrace("cuda", true, true, false),
              HasSubstr("but --no-graph runs without graphs"));
  EXPECT_THAT(checkTrace("cuda", true, false, true), HasSubstr("but --check runs without graphs"));
  EXPECT_EQ(checkTrace("cuda", true, false, false), "");
  EXPECT_EQ(checkTrace("cuda", false, true, true), "");
  EXPECT_EQ(checkTrace("host", true, true, true), "") << "there each op says itself what it is";
}

} // namespace
} // namespace shardc::exec
