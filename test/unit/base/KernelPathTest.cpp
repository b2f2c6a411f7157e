// Which kernels serve an op on which GPU, by the rows of KernelPaths.def.
#include <cstdlib>

#include <gtest/gtest.h>

#include "runtime/base/KernelPath.h"
#include "runtime/base/Reports.h"

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
    EXPECT_EQ(path(with(change), kAmpere), KernelPath::AttentionMma);
  };
  isBarred([](auto &kind) { kind.drops = true; });
  isBarred([](auto &kind) { kind.hasDocuments = true; });
  isBarred([](auto &kind) { kind.hasWindow = kind.hasSlices = kind.hasAllKeys = true; });
  isBarred([](auto &kind) { kind.hasChunks = true; });
  isBarred([](auto &kind) { kind.isCapped = true; });
  const auto unknown = with([](auto &kind) { kind.hasSlices = kind.hasUnknownOrder = true; });
  EXPECT_EQ(path(unknown), KernelPath::AttentionPlain);
}

/// Hopper's kernels lack dropout and heads of other sizes; those by mma.sync serve them everywhere.
TEST(KernelPath, MmaServesEveryHeadOfHalves) {
  for (int capability : {kAmpere, kAda, kHopper, kB200, kRtx50})
    for (int64_t channels : {40, 64, 96, 192, 256})
      for (bool isGradient : {false, true})
        EXPECT_EQ(path(AttentionKind{.type = DType::BF16,
                                     .drops = true,
                                     .hasDocuments = true,
                                     .channels = channels,
                                     .values = channels,
                                     .isGradient = isGradient},
                       capability),
                  KernelPath::AttentionMma);
  EXPECT_EQ(path(AttentionKind{.type = DType::BF16, .isCausal = false, .hasDocuments = true}),
            KernelPath::AttentionPlain);
  EXPECT_EQ(path(with([](auto &kind) { kind.hasDocuments = true; })), KernelPath::AttentionWgmma);
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
  EXPECT_EQ(kernelPath(kHalf, newer), KernelPath::AttentionMma);
}

/// On CUDA cores, 99 KiB of shared memory hold tiles of heads of 197 channels, and of 256 in the
/// forward pass.
TEST(KernelPath, WideHeadsNeedSharedMemory) {
  auto ofFp32 = [](int64_t channels, bool isGradient) {
    return AttentionKind{.channels = channels, .values = channels, .isGradient = isGradient};
  };
  for (int capability : {kA40, kAda, kRtx50}) {
    EXPECT_EQ(path(ofFp32(197, true), capability), KernelPath::AttentionPlain);
    EXPECT_EQ(path(ofFp32(198, true), capability), KernelPath::None);
    EXPECT_NE(attentionRefusal(ofFp32(256, true), packagedTraits(capability)), nullptr);
    EXPECT_EQ(path(ofFp32(256, false), capability), KernelPath::AttentionPlain);
    EXPECT_EQ(path(gradientOf(256, 256), capability), KernelPath::AttentionMma);
  }
  EXPECT_EQ(path(ofFp32(256, true), kAmpere), KernelPath::AttentionPlain);
  EXPECT_EQ(path(gradientOf(264, 264)), KernelPath::None);
}

TEST(KernelPath, OnlyHopperMultipliesGroupsOf8BitsOnTensorCores) {
  const GroupedKind bf16 = {.type = DType::BF16}, fp8 = {.type = DType::F8E4M3};
  for (int capability : {kAmpere, kAda, kB200, kRtx50})
    EXPECT_EQ(path(bf16, capability), KernelPath::GroupedMma);
  for (int capability : {kAmpere, kAda, kB200, kRtx50})
    EXPECT_EQ(path(fp8, capability), KernelPath::GroupedPlain);
  EXPECT_EQ(path(bf16), KernelPath::GroupedWgmma);
  EXPECT_EQ(path(fp8), KernelPath::GroupedWgmma);
  for (const GroupedKind &kind :
       {GroupedKind{.type = DType::F32}, GroupedKind{.type = DType::BF16, .hasOneType = false},
        GroupedKind{.type = DType::F8E4M3, .hasSmallBlocks = true},
        GroupedKind{.type = DType::BF16, .k = 12}, GroupedKind{.type = DType::BF16, .m = 12}})
    EXPECT_EQ(path(kind), KernelPath::GroupedPlain);
  EXPECT_EQ(path(GroupedKind{.type = DType::BF16, .groups = kGroupsOfTilesMax + 1}),
            KernelPath::GroupedMma);
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
    EXPECT_EQ(kernelPath(GroupedKind{.type = DType::BF16}, gpu), KernelPath::GroupedMma);
    EXPECT_EQ(kernelPath(SymmetricKind(), gpu), KernelPath::SymmetricLibrary);
  }
  EXPECT_EQ(path(LaunchKind(), kAda), KernelPath::LaunchBlocks);
  GpuTraits ampere = packagedTraits(kAmpere);
  ampere.cudnn = 0;
  EXPECT_EQ(forcePaths("attention:plain", ampere), "");
  EXPECT_EQ(offeredText(ampere), "8.0: attention plain (forced) mma plain, grouped mma plain, "
                                 "symmetric cublaslt, launch blocks, delta mma plain");
}

TEST(KernelPath, DeltaRulesOfBf16RunOnTensorCores) {
  for (int capability : {kAmpere, kAda, kHopper, kB200, kRtx50})
    for (const DeltaKind &kind :
         {DeltaKind{DType::BF16, 128, 192}, DeltaKind{DType::BF16, 128, 80, true}})
      EXPECT_EQ(path(kind, capability), KernelPath::DeltaMma);
  for (const DeltaKind &kind :
       {DeltaKind{DType::F16}, DeltaKind{DType::F32}, DeltaKind{DType::BF16, 96, 64},
        DeltaKind{DType::BF16, 64, 72}, DeltaKind{DType::BF16, 64, 36, true}})
    EXPECT_EQ(path(kind), KernelPath::DeltaPlain);
  EXPECT_STREQ(pathRefusal(KernelPath::DeltaMma, DeltaKind{DType::F16}, packagedTraits(kHopper)),
               "not bf16");
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
  EXPECT_TRUE(checkKernelPaths().isOk());
  ::setenv("SHARDC_KERNEL_PATH", "attention:plain,grouped:x", 1);
  EXPECT_EQ(checkKernelPaths().report().id, report::UnknownKernelPath.info().id);
  ::unsetenv("SHARDC_KERNEL_PATH");
}

} // namespace
} // namespace shardc
