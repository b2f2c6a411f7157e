// The attention that cuDNN can compute.
#include <gtest/gtest.h>

#include "runtime/base/Attention.h"

namespace shardc {
namespace {

TEST(Attention, CudnnServesHalvesWithoutDropoutAndDocuments) {
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16}), CudnnBar::None);
  EXPECT_EQ(cudnnBarOf({.type = DType::F32}), CudnnBar::Type);
  EXPECT_EQ(cudnnBarOf({.type = DType::F16}), CudnnBar::None);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .drops = true}), CudnnBar::Dropout);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .hasDocuments = true}), CudnnBar::Documents);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .hasWindow = true}), CudnnBar::None);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .hasWindow = true, .hasSlices = true}),
            CudnnBar::SlidingWindow);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .isCapped = true}), CudnnBar::SoftCap);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .hasUnknownOrder = true}), CudnnBar::Positions);
}

TEST(Attention, HeadsInCommonRowsStandAtEqualDistances) {
  auto rows = [](int64_t groups, int64_t channels) {
    return cudnnBarOf(
        {.type = DType::BF16, .packed = true, .heads = 12, .groups = groups, .channels = channels});
  };
  EXPECT_EQ(rows(12, 64), CudnnBar::None);
  EXPECT_EQ(rows(1, 64), CudnnBar::None);
  EXPECT_EQ(rows(4, 64), CudnnBar::Rows);
  EXPECT_EQ(rows(12, 60), CudnnBar::Rows);
  EXPECT_EQ(cudnnBarOf({.type = DType::BF16, .heads = 12, .groups = 4}), CudnnBar::None) << "apart";
}

} // namespace
} // namespace shardc
