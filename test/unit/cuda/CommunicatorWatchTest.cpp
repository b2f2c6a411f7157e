// Waiting for queued work that fails: which waiters get the error, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/backend/cuda/CommunicatorWatch.h"

namespace shardc::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CommunicatorWatch, TellsOfAnErrorBeforeItEndsCommunicators) {
  std::string reported;
  const CommunicatorWatch *asked = nullptr;
  bool hadAborted = true;
  CommunicatorWatch watch(60, [&](const Status &status) {
    reported = status.message();
    hadAborted = asked->hasFailed();
  });
  asked = &watch;
  Status status = watch.wait([] { return cudaErrorLaunchFailure; }, "a step");
  EXPECT_FALSE(hadAborted);
  EXPECT_TRUE(watch.hasFailed());
  EXPECT_EQ(status.message(), reported);
  EXPECT_THAT(reported, HasSubstr("cudaErrorLaunchFailure"));
}

TEST(CommunicatorWatch, FindsWhatWasInjected) {
  CommunicatorWatch watch(60, nullptr);
  watch.add(nullptr, "dp gather");
  watch.injectError("dp gather");
  Status status = watch.wait([] { return cudaErrorNotReady; }, "a step");
  EXPECT_EQ(status.code(), StatusCode::Aborted);
  EXPECT_THAT(status.message(), HasSubstr("channel 'dp gather': remote process"));
}

TEST(CommunicatorWatch, WorkThatEndsIsNoError) {
  int turns = 0;
  CommunicatorWatch watch(60, [](const Status &status) { ADD_FAILURE() << status.message(); });
  EXPECT_TRUE(
      watch.wait([&] { return ++turns < 3 ? cudaErrorNotReady : cudaSuccess; }, "a step").isOk());
  EXPECT_FALSE(watch.hasFailed());
}

} // namespace
} // namespace shardc::cuda
