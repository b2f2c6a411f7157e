// The host backend's cases: default, with one worker and with four; and with poisoned memory and a
// random order of ops, for one seed, or three with SHARDC_LONG=1.
#include <chrono>
#include <thread>

#include "runtime/backend/host/Options.h"
#include "test/conformance/Conformance.h"
#include "test/unit/support/Long.h"

namespace shardc::conformance {
namespace {

void addValue(const kernels::Call &call) {
  auto *in = static_cast<const float *>(call.in[0].data);
  auto *out = static_cast<float *>(call.out[0].data);
  for (int64_t i = 0; i < call.out[0].numel(); ++i)
    out[i] = in[i] + static_cast<float>(call.attrs.value);
  std::this_thread::sleep_for(
      std::chrono::microseconds(20)); // so that unordered work can run in between
}

void writeStep(const kernels::Call &call) {
  auto *out = static_cast<int64_t *>(call.out[0].data);
  out[0] = call.step;
  out[1] = call.microbatch;
  out[2] = call.microbatches;
}

BackendCase hostCase(std::string name, host::Options options) {
  auto make = [options](int ranks) {
    host::Options withRanks = options;
    withRanks.ranks = ranks;
    return host::makeBackend(withRanks);
  };
  auto makeGuarded = [options](int ranks) {
    host::Options withGuards = options;
    withGuards.ranks = ranks;
    withGuards.guards = true;
    return host::makeBackend(withGuards);
  };
  return {std::move(name), make, addValue, writeStep, makeGuarded};
}

std::vector<BackendCase> hostCases() {
  std::vector<BackendCase> cases = {hostCase("host", {}),
                                    hostCase("host_one_worker", {.workers = 1}),
                                    hostCase("host_four_workers", {.workers = 4})};
  const uint64_t seeds = test::isLong() ? 3 : 1;
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    cases.push_back(hostCase("host_stress_" + std::to_string(seed),
                             {.workers = 3, .scheduleSeed = seed, .poison = true, .guards = true}));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Host, Conformance, ::testing::ValuesIn(hostCases()),
                         [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::conformance
