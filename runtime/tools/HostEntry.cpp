// The host backend: this machine's processor.
#include <algorithm>
#include <thread>

#include "kernels/host/Blas.h"
#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#include "runtime/base/Io.h"
#include "runtime/tools/BackendEntry.h"

namespace shardc::tools {
namespace {

/// Returns the processor's name as the system reports it: `Intel(R) Xeon(R) Processor`.
std::string processorName() {
  constexpr std::string_view kKey = "model name";
  Result<std::string> text = readSystemFile("/proc/cpuinfo");
  size_t at = text.isOk() ? text->find(kKey) : std::string::npos;
  if (at == std::string::npos)
    return "processor";
  at = text->find_first_not_of(" \t:", at + kKey.size());
  return text->substr(at, text->find('\n', at) - at);
}

class HostSession final : public BackendSession {
public:
  HostSession(const plan::Plan &plan, const RunToolOptions &options)
      : plan_(plan), options_(options) {}

  Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) override {
    host::Options out;
    out.ranks = static_cast<int>(std::min<int64_t>(plan_.worldSize(), 1 << 20));
    out.peers = peers;
    out.workers = options_.workers;
    if (peers && options_.workers == 0) // the ranks share the cores
      out.workers =
          std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / peers->localSize());
    out.scheduleSeed = options_.scheduleSeed;
    out.poison = options_.scheduleSeed.has_value();
    out.guards = options_.check || options_.scheduleSeed.has_value();
    if (options_.scheduleSeed && options_.workers == 0)
      out.workers = 1; // with one worker, the seed determines the schedule
    return host::makeBackend(out);
  }
  std::string deviceName(int) override { return processorName(); }

private:
  const plan::Plan &plan_;
  const RunToolOptions &options_;
};

std::unique_ptr<BackendSession> beginHostSession(const plan::Plan &plan,
                                                 const RunToolOptions &options, ReportSink) {
  return std::make_unique<HostSession>(plan, options);
}

} // namespace

extern const BackendEntry hostBackend;
const BackendEntry hostBackend = {
    .name = "host",
    .traits = {},
    .findKernel = kernels::findHostKernel,
    .libraryVersions = kernels::host::blasVersion,
    .refusal = kernels::host::blasRefusal,
    .countDevices = nullptr,
    .setVariables = nullptr,
    .beginSession = beginHostSession,
};

} // namespace shardc::tools
