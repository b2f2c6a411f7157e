// A backend as shardc-run sees it. Each backend has one object of this kind, named after it
// (`hostBackend`, `cudaBackend`), in a file of its own; CMakeLists.txt lists those that are built.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"
#include "runtime/plan/Plan.h"
#include "runtime/tools/Options.h"

namespace shardc::tools {

/// State and services of a backend during one run, in addition to hal/. It outlives the backend
/// that it creates.
class BackendSession {
public:
  /// Returns once nothing that the session began runs concurrently with the caller.
  virtual ~BackendSession() = default;

  /// Holds this machine's devices against the plan: InvalidInput or Unavailable if it cannot run on
  /// them. `peers` is null where one process has all ranks.
  virtual Status judgeDevices(hal::Peers * /*peers*/) { return Status::ok(); }
  /// Makes the backend with all of the plan's ranks in this process or, with `peers`, which outlive
  /// it, with the one rank that they name. Called once.
  virtual Result<std::unique_ptr<hal::Backend>> makeBackend(hal::Peers *peers) = 0;
  /// Work to do before anything is captured; empty if there is none. The session outlives the
  /// function.
  virtual std::function<Status(exec::Executable &)> beforeCapture() { return nullptr; }
  /// Returns a function that tunes a call, which has its memory and the backend's context, before
  /// it is timed by itself; empty if there is nothing to choose.
  virtual std::function<void(std::string_view op, const kernels::Call &)> chooser() {
    return nullptr;
  }
  /// The name of the device of a rank with this number on its node, as the driver or the system has
  /// it.
  virtual std::string deviceName(int localRank) = 0;
};

/// The properties in which backends differ for their callers.
struct BackendTraits {
  bool computes = true;     ///< results, losses among them, have values
  bool runsAnyPlan = false; ///< also plans that were compiled for another backend
  bool isOnGpus = false;    ///< a GPU and a process of its own for each rank, joined by NCCL
  bool queuesNodes = false; ///< graphs take room in a queue that can be full
};

struct BackendEntry {
  std::string_view name; ///< as --backend and a plan's `needs` have it
  BackendTraits traits;
  exec::FindKernel findKernel;
  /// The libraries that it uses, with their versions, as part of a line.
  std::string (*libraryVersions)();
  /// The reason in this machine's environment why the backend cannot compute, as part of a message;
  /// empty if there is none. Null: nothing can prevent it. First called before there are threads.
  const std::string &(*refusal)();
  /// Devices that this process sees; null: the backend has none of its own. Called in a process
  /// that uses no device otherwise.
  int (*countDevices)();
  /// Sets environment variables for the plan that are not set yet. Called before anything reads
  /// them and before there are threads; null if there are none.
  void (*setVariables)(const plan::Plan &plan);
  /// Plan and options must outlive the session. `emit` receives the warnings of the backend and its
  /// kernels on this rank, from any thread.
  std::unique_ptr<BackendSession> (*beginSession)(const plan::Plan &plan,
                                                  const RunToolOptions &options, ReportSink emit);
};

} // namespace shardc::tools
