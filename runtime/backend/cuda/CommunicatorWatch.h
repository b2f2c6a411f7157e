// Waits for queued work. While it waits, it polls NCCL's communicators for errors, and it gives up
// after the backend's time limit.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Has all communicators of a backend, so that one failure ends all waits. Thread-safe.
class CommunicatorWatch {
public:
  /// Calls `report`, if it is not empty, with an error before it aborts communicators. Aborting
  /// takes long if a device does not respond, and the other ranks should know earlier.
  CommunicatorWatch(double timeoutSeconds, std::function<void(const Status &)> report)
      : timeoutSeconds_(timeoutSeconds), report_(std::move(report)) {}

  /// Polls the communicator from now on. `name` is the channel's, for messages. It must be removed
  /// before it is destroyed.
  void add(ncclComm_t communicator, std::string name);
  void remove(ncclComm_t communicator);
  /// Adds an abort flag that this backend's kernels poll while they wait for other ranks. The value
  /// 1 ends the wait.
  void addStop(uint32_t *stop);
  void removeStop(uint32_t *stop);

  /// Blocks until `query` returns something other than cudaErrorNotReady. Aborted if a communicator
  /// failed or the time limit is exceeded. In this case all communicators are aborted, which ends
  /// all waits in them.
  Status wait(const std::function<cudaError_t()> &query, const std::string &what);
  /// Aborts all communicators, which ends all waits in them. Any thread may call it.
  void abort();
  bool hasFailed() const { return failed_; }
  /// For tests: makes the communicators with this name fail from now on.
  void injectError(std::string name);

private:
  Status findError();
  Status fail(Status status);

  struct Named {
    ncclComm_t communicator;
    std::string name;
  };
  double timeoutSeconds_;
  std::function<void(const Status &)> report_;
  std::mutex mutex_; ///< guards the lists and the injected error
  std::vector<Named> communicators_;
  std::vector<uint32_t *> stops_;
  std::string injected_;
  std::atomic<bool> failed_ = false;
};

} // namespace shardc::cuda
