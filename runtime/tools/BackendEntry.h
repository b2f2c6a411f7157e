// A backend from the viewpoint of shardc-run. Each backend defines one BackendEntry, named after it
// (`hostBackend`, `cudaBackend`), in a file of its own. CMakeLists.txt lists the backends that are
// built.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// State and services of a backend during one run, in addition to hal/. Must outlive the backend
/// that it creates.
class BackendSession {
public:
  /// Returns only when nothing that the session started runs any more.
  virtual ~BackendSession() = default;

  /// Checks this machine's devices against the plan: InvalidInput or Unavailable if the plan cannot
  /// run on them. `peers` is null if this process has all ranks.
  virtual Status judgeDevices(hal::Peers * /*peers*/) { return Status::ok(); }
  /// Creates the backend: with all of the plan's ranks in this process or, with `peers`, with the
  /// rank of this process. `peers` must outlive the backend. Called once.
  virtual Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) = 0;
  /// Returns work to do before anything is captured; empty if there is none. The session must
  /// outlive the function.
  virtual std::function<Status(exec::Executable &)> beforeCapture() { return nullptr; }
  /// Returns a function that tunes a call, which has its memory and the backend's context, before
  /// the call is timed separately; empty if there is nothing to choose.
  virtual std::function<void(std::string_view op, const kernels::Call &)> chooser() {
    return nullptr;
  }
  /// Returns the device name, from the driver or the system, of the rank with this number on its
  /// node.
  virtual std::string deviceName(int localRank) = 0;
};

/// The properties in which backends differ for their callers.
struct BackendTraits {
  bool computes = true;     ///< results, including losses, have values
  bool runsAnyPlan = false; ///< also plans that were compiled for other backends
  bool isOnGpus = false;    ///< a GPU and a process for each rank, connected by NCCL
  bool queuesNodes = false; ///< graphs wait in a queue that can be full
};

struct BackendEntry {
  std::string_view name; ///< name in --backend and in `needs` of a plan
  BackendTraits traits;
  exec::FindKernel findKernel;
  /// Returns the libraries that it uses, with their versions, as part of a line of output.
  std::string (*libraryVersions)();
  /// The reason in this machine's environment why the backend cannot compute, as part of a message;
  /// empty if there is none. Null: nothing can prevent it from computing. First called before
  /// threads are started.
  const std::string &(*refusal)();
  /// Returns the number of devices that this process can use. Null: the backend has no devices of
  /// its own. Called in a process that does not use devices otherwise.
  int (*countDevices)();
  /// Sets those environment variables for the plan that are not set yet. Called before anything
  /// reads them and before threads are started; null if there are none.
  void (*setVariables)(const plan::Plan &plan);
  /// Plan and options must outlive the session. `emit` is called with the warnings of the backend
  /// and its kernels on this rank, from any thread.
  std::unique_ptr<BackendSession> (*beginSession)(const plan::Plan &plan,
                                                  const RunToolOptions &options, ReportSink emit);
};

} // namespace shardc::tools
