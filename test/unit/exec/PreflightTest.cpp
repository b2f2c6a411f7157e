// Compares GPUs with those that a plan was made for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/run/Preflight.h"
#include "test/unit/base/Told.h"
#include "test/unit/exec/ToldPeers.h"

namespace shardc::run {
namespace {

using test::Reported;
using test::said;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

plan::Plan planFor(const char *gpu) {
  plan::Plan plan;
  plan.needsGpu = gpu;
  return plan;
}

std::vector<std::string> kindWarnings(const char *needed, const VisibleGpus &gpus) {
  Reported reported;
  judgeGpuKind(planFor(needed), gpus, reported.sink());
  return reported.lines;
}

TEST(Gpus, TooFewAreRefusedWithWhatMakesAPlanForThem) {
  EXPECT_EQ(said(checkGpuCount(planFor("h200"), {4, "NVIDIA H200"}, 8)),
            "error: the plan has 8 ranks on this machine and 4 GPUs are visible; '--set "
            "cluster.gpus_per_node=4' compiles the recipe for them [too-few-gpus]");
  EXPECT_EQ(
      said(checkGpuCount(planFor("a100"), {1, "NVIDIA H200"}, 8)),
      "error: the plan has 8 ranks on this machine and 1 GPU is visible; '--set "
      "cluster.gpus_per_node=1 --set cluster.gpu=h200' compiles the recipe for it [too-few-gpus]");
  EXPECT_EQ(said(checkGpuCount(planFor("h200"), {8, "NVIDIA H200"}, 8)), "");
  EXPECT_EQ(said(checkGpuCount(planFor("h200"), {8, "NVIDIA H200"}, 4)), "") << "some stay idle";
}

TEST(Gpus, AnotherKindIsWarnedOf) {
  EXPECT_THAT(kindWarnings("a100", {8, "NVIDIA H200"}),
              ElementsAre("warning: the plan was compiled for a100, but this GPU is NVIDIA H200: "
                          "predictions of memory and time do not apply to it; '--set "
                          "cluster.gpu=h200' compiles the recipe for it [other-gpu-kind]"));
  EXPECT_THAT(kindWarnings("b200", {1, "NVIDIA GB200"}), ElementsAre(HasSubstr("=gb200'")));
  EXPECT_THAT(kindWarnings("h200", {1, "NVIDIA GeForce RTX 5090"}),
              ElementsAre(HasSubstr("=rtx5090'")));
  EXPECT_THAT(kindWarnings("a10", {1, "NVIDIA A10G"}), ElementsAre(HasSubstr("=a10g'")));
  EXPECT_THAT(kindWarnings("a100_40gb", {1, "NVIDIA A100-SXM4-80GB"}),
              ElementsAre(HasSubstr("=a100'")));
}

TEST(Gpus, TheSameKindIsFoundInTheDriversName) {
  for (auto [kind, name] : {std::pair("h200", "NVIDIA H200"),
                            {"h100", "NVIDIA H100 80GB HBM3"},
                            {"a100", "NVIDIA A100-SXM4-80GB"},
                            {"a100_40gb", "NVIDIA A100-SXM4-40GB"},
                            {"gb200", "NVIDIA GB200"},
                            {"l40s", "NVIDIA L40S"},
                            {"rtx4090", "NVIDIA GeForce RTX 4090"},
                            {"rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
                            {"rtx6000ada", "NVIDIA RTX 6000 Ada Generation"},
                            {"a6000", "NVIDIA RTX A6000"},
                            {"h100_pcie", "NVIDIA H100 PCIe"}})
    EXPECT_THAT(kindWarnings(kind, {1, name}), IsEmpty()) << name;
  EXPECT_THAT(kindWarnings("", {1, "NVIDIA H200"}), IsEmpty()) << "made for no GPU";
  EXPECT_THAT(kindWarnings("h200", {1, ""}), IsEmpty()) << "the driver does not say";
}

TEST(Kernels, AreTheSameOnAllRanks) {
  Reported reported;
  test::ToldPeers peers;
  peers.others = {"9.0: attention cudnn"};
  EXPECT_EQ(said(compareKernels(&peers, "9.0: attention cudnn", reported.sink())), "");
  EXPECT_EQ(said(compareKernels(nullptr, "8.0: attention plain", reported.sink())), "");
  EXPECT_THAT(reported.lines,
              ElementsAre("remark: kernels: 9.0: attention cudnn [kernels-of-run]",
                          "remark: kernels: 8.0: attention plain [kernels-of-run]"));
  EXPECT_EQ(said(compareKernels(&peers, "8.0: attention plain", reported.sink())),
            "error: rank 0 has kernels 9.0: attention cudnn; rank 1 has 8.0: attention plain "
            "[other-kernels]");
}

TEST(Kernels, AChangeSinceTheCheckpointIsReported) {
  Reported reported;
  judgeKernels("", "9.0: attention cudnn", reported.sink());
  judgeKernels("9.0: attention cudnn", "9.0: attention cudnn", reported.sink());
  EXPECT_THAT(reported.lines, IsEmpty());
  judgeKernels("9.0: attention cudnn", "8.0: attention plain", reported.sink());
  judgeKernels("9.0: attention cudnn", "", reported.sink());
  EXPECT_THAT(reported.lines,
              ElementsAre(HasSubstr("by a run with kernels 9.0: attention cudnn; this run has 8.0: "
                                    "attention plain [kernels-changed]"),
                          HasSubstr("this run has those of the host")));
}

TEST(Traces, NeedGraphsOnGpus) {
  EXPECT_THAT(said(checkTrace("cuda", true, true, false)),
              HasSubstr("but --no-graph runs without graphs; use only one of the two "
                        "[trace-without-graphs]"));
  EXPECT_THAT(said(checkTrace("cuda", true, false, true)),
              HasSubstr("but --check runs without graphs"));
  EXPECT_EQ(said(checkTrace("cuda", true, false, false)), "");
  EXPECT_EQ(said(checkTrace("cuda", false, true, true)), "");
  EXPECT_EQ(said(checkTrace("host", true, true, true)), "")
      << "there each op says itself what it is";
}

} // namespace
} // namespace shardc::run
