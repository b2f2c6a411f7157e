// Groups of NCCL calls are closed on every exit path.
#include <gtest/gtest.h>

#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/GroupCall.h"

namespace shardc::cuda {
namespace {

Status leaveEarly() {
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  RETURN_IF_CUDA_ERROR(ncclInvalidArgument);
  RETURN_IF_CUDA_ERROR(group.end());
  return Status::ok();
}

TEST(GroupCall, AnErrorInsideLeavesNoneOpen) {
  EXPECT_FALSE(leaveEarly().isOk());
  EXPECT_NE(ncclGroupEnd(), ncclSuccess) << "there is none to end";
}

TEST(GroupCall, EndsOnce) {
  {
    GroupCall group;
    EXPECT_EQ(group.begin(), ncclSuccess);
    EXPECT_EQ(group.end(), ncclSuccess);
  }
  EXPECT_NE(ncclGroupEnd(), ncclSuccess);
}

} // namespace
} // namespace shardc::cuda
