// Which kernels serve an op on which GPU, by the rows of KernelPaths.def.
#include <gtest/gtest.h>

#include "runtime/base/KernelPath.h"

namespace shardc {
namespace {

constexpr int kAmpere = 80, kA40 = 86, kAda = 89, kHopper = 90, kB200 = 100, kRtx50 = 120;

KernelPath path(const auto &kind, int capability = kHopper) {
  return kernelPath(kind, packagedTraits(capability));
}

constexpr AttentionKind kHalf = {.type = DType::BF16};

AttentionKind with(auto change) {
  AttentionKind kind = kHalf;
  change(kind);
  return kind;
}

AttentionKind gradientOf(int64_t channels, int64_t values) {
  return {.type = DType::BF16, .channels = channels, .values = values, .isGradient = true};
}

TEST(KernelPath, CudnnServesHalvesWithoutDropoutAndDocuments) {
  EXPECT_EQ(path(kHalf), KernelPath::AttentionCudnn);
  EXPECT_EQ(path(AttentionKind{.type = DType::F32}), KernelPath::AttentionPlain);
  EXPECT_EQ(path(AttentionKind{.type = DType::F16}), KernelPath::AttentionCudnn);
  EXPECT_EQ(path(with([](auto &kind) { kind.hasWindow = true; })), KernelPath::AttentionCudnn);
  auto isBarred = [](auto change) {
    EXPECT_NE(path(with(change)), KernelPath::AttentionCudnn);
    EXPECT_EQ(path(with(change), kAmpere), KernelPath::AttentionPlain);
  };
  isBarred([](auto &kind) { kind.drops = true; });
  isBarred([](auto &kind) { kind.hasDocuments = true; });
  isBarred([](auto &kind) { kind.hasWindow = kind.hasSlices = true; });
  isBarred([](auto &kind) { kind.hasChunks = true; });
  isBarred([](auto &kind) { kind.isCapped = true; });
  isBarred([](auto &kind) { kind.hasUnknownOrder = true; });
}

TEST(KernelPath, HeadsInCommonRowsStandAtEqualDistances) {
  auto rows = [](int64_t groups, int64_t channels) {
    return path(AttentionKind{.type = DType::BF16,
                              .packed = true,
                              .heads = 12,
                              .groups = groups,
                              .channels = channels,
                              .values = channels});
  };
  EXPECT_EQ(rows(12, 64), KernelPath::AttentionCudnn);
  EXPECT_EQ(rows(1, 64), KernelPath::AttentionCudnn);
  EXPECT_EQ(rows(4, 64), KernelPath::AttentionWgmma);
  EXPECT_EQ(rows(12, 60), KernelPath::AttentionPlain);
  EXPECT_EQ(path(AttentionKind{.type = DType::BF16, .heads = 12, .groups = 4}),
            KernelPath::AttentionCudnn)
      << "apart";
}

/// cuDNN 9.19: gradients of up to 128 channels everywhere, of 192 and 128 on 10.x, of 256 on 9.0.
TEST(KernelPath, CudnnsGradientsDependOnTheArchitecture) {
  for (int capability : {kAmpere, kAda, kHopper, kB200, kRtx50}) {
    EXPECT_EQ(path(gradientOf(128, 128), capability), KernelPath::AttentionCudnn) << capability;
    EXPECT_EQ(path(AttentionKind{.type = DType::F16, .channels = 256, .values = 256}, capability),
              KernelPath::AttentionCudnn)
        << "forward, " << capability;
    EXPECT_EQ(path(gradientOf(192, 128), capability) == KernelPath::AttentionCudnn,
              capability == kHopper || capability == kB200);
    EXPECT_EQ(path(gradientOf(256, 256), capability) == KernelPath::AttentionCudnn,
              capability == kHopper);
  }
  GpuTraits newer = packagedTraits(kB200);
  newer.cudnn = 92300;
  EXPECT_EQ(kernelPath(gradientOf(256, 256), newer), KernelPath::AttentionCudnn);
  newer.cudnn = 0; // a build without it
  EXPECT_EQ(kernelPath(kHalf, newer), KernelPath::AttentionPlain);
}

/// 99 KiB of shared memory hold tiles of heads of 197 channels, and of 256 in the forward pass.
TEST(KernelPath, WideHeadsNeedSharedMemory) {
  for (int capability : {kA40, kAda, kRtx50}) {
    EXPECT_EQ(path(gradientOf(197, 197), capability), KernelPath::AttentionPlain);
    EXPECT_EQ(path(gradientOf(198, 198), capability), KernelPath::None);
    EXPECT_NE(attentionRefusal(gradientOf(256, 256), packagedTraits(capability)), nullptr);
    EXPECT_EQ(path(with([](auto &kind) {
                     kind.channels = kind.values = 256;
                     kind.drops = true;
                   }),
                   capability),
              KernelPath::AttentionPlain);
  }
  EXPECT_EQ(path(gradientOf(256, 256), kAmpere), KernelPath::AttentionPlain);
  EXPECT_EQ(path(gradientOf(264, 264)), KernelPath::None);
}

TEST(KernelPath, OnlyHopperMultipliesGroupsOnTensorCores) {
  const GroupedKind bf16 = {.type = DType::BF16}, fp8 = {.type = DType::F8E4M3};
  for (int capability : {kAmpere, kAda, kB200, kRtx50})
    for (const GroupedKind &kind : {bf16, fp8})
      EXPECT_EQ(path(kind, capability), KernelPath::GroupedPlain);
  EXPECT_EQ(path(bf16), KernelPath::GroupedWgmma);
  EXPECT_EQ(path(fp8), KernelPath::GroupedWgmma);
  for (const GroupedKind &kind :
       {GroupedKind{.type = DType::F32}, GroupedKind{.type = DType::BF16, .hasOneType = false},
        GroupedKind{.type = DType::F8E4M3, .hasSmallBlocks = true},
        GroupedKind{.type = DType::BF16, .k = 12}, GroupedKind{.type = DType::BF16, .m = 12},
        GroupedKind{.type = DType::BF16, .groups = kGroupsOfTilesMax + 1}})
    EXPECT_EQ(path(kind), KernelPath::GroupedPlain);
  EXPECT_EQ(path(GroupedKind{.type = DType::F8E4M3, .k = 12}), KernelPath::GroupedWgmma);
  EXPECT_EQ(path(SymmetricKind{64, 64}), KernelPath::SymmetricWgmma);
  EXPECT_EQ(path(SymmetricKind{64, 60}), KernelPath::SymmetricLibrary);
  EXPECT_EQ(path(SymmetricKind{64, 64}, kB200), KernelPath::SymmetricLibrary);
}

/// A device that is newer than all machine code loads what was compiled from PTX of 8.0.
TEST(KernelPath, TakesNothingThatWasNotCompiled) {
  for (int capability : {kHopper, kB200, kRtx50}) {
    GpuTraits gpu = packagedTraits(capability);
    EXPECT_EQ(kernelPath(LaunchKind(), gpu), KernelPath::LaunchClusters);
    gpu.code.fill(80);
    EXPECT_EQ(kernelPath(LaunchKind(), gpu), KernelPath::LaunchBlocks);
    EXPECT_EQ(kernelPath(GroupedKind{.type = DType::BF16}, gpu), KernelPath::GroupedPlain);
    EXPECT_EQ(kernelPath(SymmetricKind(), gpu), KernelPath::SymmetricLibrary);
  }
  EXPECT_EQ(path(LaunchKind(), kAda), KernelPath::LaunchBlocks);
  GpuTraits ampere = packagedTraits(kAmpere);
  ampere.cudnn = 0;
  EXPECT_EQ(forcePaths("attention:plain", ampere), "");
  EXPECT_EQ(offeredText(ampere), "8.0: attention plain (forced) plain, grouped plain, symmetric "
                                 "cublaslt, launch blocks");
}

TEST(KernelPath, ForcedPathsAreTakenWhereTheyServe) {
  GpuTraits gpu = packagedTraits(kHopper);
  EXPECT_EQ(forcePaths("attention:wgmma,grouped:plain", gpu), "");
  EXPECT_EQ(kernelPath(kHalf, gpu), KernelPath::AttentionWgmma);
  EXPECT_EQ(kernelPath(with([](auto &kind) { kind.channels = kind.values = 96; }), gpu),
            KernelPath::AttentionCudnn);
  EXPECT_EQ(kernelPath(GroupedKind{.type = DType::BF16}, gpu), KernelPath::GroupedPlain);
  EXPECT_EQ(forcePaths("attention:plain,grouped:cudnn", gpu), "grouped:cudnn");
  EXPECT_EQ(forcePaths("attention", gpu), "attention");
  EXPECT_EQ(forcePaths("attention-plain", gpu), "attention-plain");
}

} // namespace
} // namespace shardc
