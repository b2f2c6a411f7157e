// Waits for queued work with a time limit: polls NCCL's communicators for errors meanwhile, and
// gives up after the backend's time limit.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "runtime/base/Status.h"

namespace shardc::cuda {

class CommunicatorWatch {
public:
  /// `report`, which may be empty, is called with an error before anything else happens: ending
  /// communicators takes long if a device does not respond, and the other ranks should know before.
  CommunicatorWatch(double timeoutSeconds, std::function<void(const Status &)> report)
      : timeoutSeconds_(timeoutSeconds), report_(std::move(report)) {}

  void add(ncclComm_t communicator, std::string name);
  void remove(ncclComm_t communicator);
  /// A word that kernels of our own look at while they wait for other ranks: 1 ends that.
  void addStop(uint32_t *stop);
  void removeStop(uint32_t *stop);

  /// Blocks until `query` is no longer cudaErrorNotReady. Aborted if a communicator failed or the
  /// time is over; all communicators are aborted then, so that what waits in them ends.
  Status wait(const std::function<cudaError_t()> &query, const std::string &what);
  /// Aborts all communicators, so that what waits in them ends. Any thread may call it.
  void abort();
  bool hasFailed() const { return failed_; }
  /// For tests: from here on the communicators of that name have failed.
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
  std::mutex mutex_; ///< for the lists, and what is injected
  std::vector<Named> communicators_;
  std::vector<uint32_t *> stops_;
  std::string injected_;
  std::atomic<bool> failed_ = false;
};

} // namespace shardc::cuda
