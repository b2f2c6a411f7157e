// The null backend executes nothing. It uses the host's kernels, which check their calls and are
// never run.
#include <algorithm>

#include <fmt/format.h>

#include "kernels/host/Registry.h"
#include "runtime/backend/null/Options.h"
#include "runtime/run/InjectedFault.h"
#include "runtime/tools/BackendEntry.h"
#include "runtime/tools/Job.h"
#include "runtime/tools/PeerRendezvous.h"

namespace shardc::tools {
namespace {

class NullSession final : public BackendSession {
public:
  NullSession(const plan::Plan &plan, const RunToolOptions &options, ReportSink emit)
      : plan_(plan), emit_(std::move(emit)), fault_(options.fault) {}

  Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) override {
    null::Options options;
    options.ranks = static_cast<int>(std::min<int64_t>(plan_.worldSize(), 1 << 20));
    options.emit = emit_;
    if (peers) {
      rendezvous_ = std::make_unique<PeerRendezvous>(*peers);
      options.rank = peers->rank();
      options.rendezvous = rendezvous_.get();
      options.failed = [peers](const Status &status) { peers->reportFailure(status); };
    }
    refusals_ = std::make_unique<run::InjectedRefusals>(fault_, std::max(options.rank, 0));
    options.refusals = refusals_.get();
    return null::makeBackend(options);
  }
  std::string deviceName(int) override { return "nothing"; }

private:
  const plan::Plan &plan_;
  ReportSink emit_;
  run::Fault fault_;
  std::unique_ptr<run::InjectedRefusals> refusals_;
  std::unique_ptr<PeerRendezvous> rendezvous_; ///< null without other processes
};

std::unique_ptr<BackendSession> beginNullSession(const plan::Plan &plan,
                                                 const RunToolOptions &options, ReportSink emit) {
  return std::make_unique<NullSession>(plan, options, std::move(emit));
}

std::string noLibraries() { return ""; }

} // namespace

extern const BackendEntry nullBackend;
const BackendEntry nullBackend = {
    .name = "null",
    .traits = {.computes = false, .runsAnyPlan = true},
    .findKernel = kernels::findHostKernel,
    .libraryVersions = noLibraries,
    .refusal = nullptr,
    .countDevices = nullptr,
    .setVariables = nullptr,
    .beginSession = beginNullSession,
};

} // namespace shardc::tools
