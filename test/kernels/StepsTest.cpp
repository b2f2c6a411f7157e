// Ops that the host runs by their steps give the bytes that kernels of their own gave before:
// golden/steps.txt has a hash of the results of each, from commit fe69f535, whose kernels were
// written without steps.
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/host/Registry.h"
#include "runtime/plan/OpInfo.h"
#include "test/kernels/Harness.h"
#include "test/kernels/bench/Cases.h"

namespace shardc::kernels::test {
namespace {

constexpr std::string_view kFused[] = {
#define FUSED(op, name, ...) name,
#include "runtime/plan/Ops.def"
};

/// FNV-1a of the bytes of all results.
uint64_t hashOf(const Call &call) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int r = 0; r < call.outCount; ++r) {
    const auto *bytes = static_cast<const unsigned char *>(call.out[r].data);
    for (int64_t i = 0; i < call.out[r].numel() * dtypeBytes(call.out[r].dtype); ++i)
      hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return hash;
}

/// A line with the op's name, the type of its data, and the hash; with other attributes than the
/// case has if `isOther`.
std::string lineOf(std::string_view op, DType data, bool isOther) {
  std::unique_ptr<bench::Case> work = bench::makeCase(op, data, bench::kTinyModel);
  if (isOther) {
    Attrs &attrs = work->call.attrs;
    attrs.zero_centered = !attrs.zero_centered, attrs.tanh_approx = !attrs.tanh_approx;
    attrs.soft_cap = 3, attrs.eps = 0.125, attrs.rotary_base = 100;
  }
  if (op == "rmsnorm_dx") // the statistics of the case are not those of x, so y is another value
    work->call.outCount = 1;
  const Kernel *kernel = findHostKernel(op);
  if (const char *reason = kernel->accepts(work->call))
    return std::string(op) + ": " + reason + '\n';
  std::vector<std::byte> workspace(kernel->workspaceBytes ? kernel->workspaceBytes(work->call) : 0);
  work->call.workspace = workspace.data(), work->call.workspaceBytes = workspace.size();
  kernel->run(work->call);
  std::ostringstream line;
  line << op << ' ' << dtypeName(data) << (isOther ? " other " : " ") << std::hex
       << hashOf(work->call) << '\n';
  return line.str();
}

TEST(Steps, GiveTheBytesThatKernelsGave) {
  std::string got;
  for (std::string_view op : kFused)
    for (DType data : kDataTypes)
      for (bool isOther : {false, true})
        got += lineOf(op, data, isOther);
  std::ifstream file(SHARDC_STEPS);
  std::ostringstream want;
  want << file.rdbuf();
  EXPECT_EQ(got, want.str());
}

/// What no step of an op checks.
TEST(Steps, RefuseWhatTheOpDoesNotHave) {
  auto refusal = [](std::string_view op, auto change) {
    std::unique_ptr<bench::Case> work = bench::makeCase(op, DType::BF16, bench::kTinyModel);
    change(work->call);
    return findHostKernel(op)->accepts(work->call);
  };
  EXPECT_STREQ(refusal("rmsnorm.amax", [](Call &call) { call.attrs.transposed = true; }),
               "the result is never transposed");
  EXPECT_STREQ(refusal("add_rmsnorm", [](Call &call) { call.out[0].accumulate = true; }),
               "a result that cannot accumulate is asked to");
  EXPECT_STREQ(refusal("lm_loss", [](Call &call) { --call.inCount; }),
               "wrong number of operands or results");
  EXPECT_STREQ(refusal("split_qkv_rope", [](Call &call) { call.out[0].shape[3] += 1; }),
               "extents of operands and results do not fit each other");
}

} // namespace
} // namespace shardc::kernels::test
