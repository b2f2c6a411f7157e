// Handling of an op that fails while its segment is captured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/base/Io.h"
#include "runtime/exec/Executable.h"
#include "runtime/plan/Text.h"
#include "test/unit/exec/HookedBackend.h"
#include "test/unit/exec/ToyPlan.h"

namespace shardc::test {
namespace {

using ::testing::HasSubstr;

TEST(Capture, WhatFailsInItIsTheOnlyCauseThatIsTold) {
  plan::Plan plan = toyPlan({});
  HookedBackend backend(2);
  int launchesLeft = 0, refused = 0;
  backend.hooks.onLaunch = [&](const char *label) { // cuBLAS may answer like this
    if (backend.hooks.openCaptures == 0 || launchesLeft-- > 0)
      return Status::ok();
    ++refused;
    return makeStatus(StatusCode::Internal, "{}: no room for a handle", label);
  };
  for (int before = 0; before < 5; ++before) {
    launchesLeft = before;
    auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
    ASSERT_FALSE(executable.isOk());
    EXPECT_THAT(executable.status().message(), HasSubstr(": no room for a handle"));
    EXPECT_EQ(refused, before + 1);
    EXPECT_EQ(backend.hooks.openCaptures, 0);
    EXPECT_TRUE(backend.reported.isOk()) << backend.reported.message();
  }
  launchesLeft = 1 << 20;
  auto executable = exec::Executable::create(plan, backend, kernels::findHostKernel, {});
  EXPECT_TRUE(executable.isOk()) << "the backend is as good as before";
}

/// Two of the three gathers are of one unit; there are three ranks, and three variants of the body.
TEST(Capture, GathersOfAUnitAreIssuedTogether) {
  Result<std::string> text = readFile(std::string(SHARDC_TEST_PLANS) + "/fsdp2.plan");
  ASSERT_TRUE(text.isOk());
  Result<plan::Plan> plan = plan::parse(*text, "fsdp2.plan");
  ASSERT_TRUE(plan.isOk()) << plan.status().message();
  HookedBackend backend(3);
  auto executable = exec::Executable::create(*plan, backend, kernels::findHostKernel, {});
  ASSERT_TRUE(executable.isOk()) << executable.status().message();
  EXPECT_EQ(backend.hooks.gathers, std::vector<size_t>(9, 2));
}

} // namespace
} // namespace shardc::test
