#include <gtest/gtest.h>

#include "runtime/backend/cuda/Versions.h"
#include "test/unit/base/Told.h"

namespace shardc::cuda {
namespace {

using test::said;

TEST(Versions, DriversOfAnEarlierMajorVersionDoNot) {
  EXPECT_EQ(
      said(checkDriver(12080, 13000)),
      "error: the driver supports CUDA 12.8; this program needs a driver for CUDA 13.0 or later "
      "[driver-too-old]");
  EXPECT_EQ(said(checkDriver(13000, 13010)), "");
  EXPECT_EQ(said(checkDriver(13010, 13000)), "");
  EXPECT_EQ(said(checkDriver(0, 13000)), "") << "there is none";
}

TEST(Versions, NcclHasToBeAsNewButForPatches) {
  EXPECT_EQ(said(checkNccl(22605, 22809)),
            "error: NCCL 2.26.5 was found; this program needs 2.28 or later [nccl-too-old]");
  EXPECT_EQ(said(checkNccl(22803, 22809)), "");
  EXPECT_EQ(said(checkNccl(22902, 22809)), "");
}

TEST(Versions, WhatThisProgramIsTestedWithDoes) { EXPECT_EQ(said(checkVersions()), ""); }

} // namespace
} // namespace shardc::cuda
