// The null backend: runs nothing. Its kernels are the host's, which say what they accept and are
// never called.
#include <algorithm>

#include <fmt/format.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/null/Options.h"
#include "runtime/tools/BackendEntry.h"

namespace shardc::tools {
namespace {

class NullSession final : public BackendSession {
public:
  explicit NullSession(const plan::Plan &plan) : plan_(plan) {}

  Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) override {
    null::Options options;
    options.ranks = static_cast<int>(std::min<int64_t>(plan_.worldSize(), 1 << 20));
    options.peers = peers;
    return null::makeBackend(options);
  }
  std::string deviceName(int) override { return "nothing"; }

private:
  const plan::Plan &plan_;
};

std::unique_ptr<BackendSession> beginNullSession(const plan::Plan &plan, const RunToolOptions &,
                                                 ReportSink) {
  return std::make_unique<NullSession>(plan);
}

std::string noLibraries() { return ""; }

} // namespace

extern const BackendEntry nullBackend;
const BackendEntry nullBackend = {
    .name = "null",
    .traits = {.computes = false, .runsAnyPlan = true},
    .findKernel = kernels::findHostKernel,
    .libraryVersions = noLibraries,
    .countDevices = nullptr,
    .setVariables = nullptr,
    .beginSession = beginNullSession,
};

} // namespace shardc::tools
