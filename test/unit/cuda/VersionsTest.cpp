#include <gtest/gtest.h>

#include "runtime/backend/cuda/Versions.h"

namespace shardc::cuda {
namespace {

TEST(Versions, DriversOfAnEarlierMajorVersionDoNot) {
  EXPECT_EQ(driverProblem(12080, 13000),
            "the driver is for CUDA 12.8; this program needs one for CUDA 13.0 or later");
  EXPECT_EQ(driverProblem(13000, 13010), "");
  EXPECT_EQ(driverProblem(13010, 13000), "");
  EXPECT_EQ(driverProblem(0, 13000), "") << "there is none";
}

TEST(Versions, NcclHasToBeAsNewButForPatches) {
  EXPECT_EQ(ncclProblem(22605, 22809), "NCCL 2.26.5 was found; this program needs 2.28 or later");
  EXPECT_EQ(ncclProblem(22803, 22809), "");
  EXPECT_EQ(ncclProblem(22902, 22809), "");
}

TEST(Versions, WhatThisProgramIsTestedWithDoes) { EXPECT_EQ(versionProblem(), ""); }

} // namespace
} // namespace shardc::cuda
