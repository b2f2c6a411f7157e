// The null backend's case: it checks every call, and computes no results.
#include "runtime/backend/null/Options.h"
#include "test/conformance/Conformance.h"

namespace shardc::conformance {
namespace {

void mustNotRun(const kernels::Call &) { FAIL() << "a kernel was run"; }

/// A breach that no status reports fails the test.
Result<std::unique_ptr<hal::Backend>> makeNull(int ranks) {
  null::Options options;
  options.ranks = ranks;
  options.onBreach = [](const Status &breach) { ADD_FAILURE() << breach.message(); };
  return null::makeBackend(options);
}

BackendCase nullCase() {
  return {.name = "null",
          .make = makeNull,
          .addValue = mustNotRun,
          .writeStep = mustNotRun,
          .makeGuarded = nullptr,
          .computes = false};
}

INSTANTIATE_TEST_SUITE_P(Null, Conformance, ::testing::Values(nullCase()),
                         [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::conformance
