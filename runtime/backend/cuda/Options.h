// Options of the CUDA backend: the ranks and devices of this process, how processes find each
// other, and how sums over ranks are computed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/Context.h"
#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Rendezvous.h"

namespace shardc::cuda {

struct Options {
  int worldSize = 1;
  int firstRank = 0; ///< the first rank of this process; the others follow it
  std::vector<int>
      devices; ///< device of each rank of this process; empty: devices 0 to worldSize - 1
  /// Required if some ranks are in other processes; must outlive the backend.
  hal::Rendezvous *rendezvous = nullptr;
  /// The kernels' context; null: the backend creates one from the environment.
  std::shared_ptr<kernels::cuda::Context> kernels;
  const Refusals *refusals = nullptr; ///< refusals that a test requests; must outlive the backend
  /// Whether NCCL may reduce between machines in the network, if the network supports it.
  bool collectiveNetwork = false;
  /// Receives warnings: once per channel and process, the reason why less is registered than
  /// requested.
  ReportSink emit;
  /// Called with an error of a device or a channel before communicators are aborted, which takes
  /// long if the device does not respond.
  std::function<void(const Status &)> failed;
  bool guards = false;       ///< adds guard zones around every buffer, for checkGuards()
  bool canTrace = false;     ///< loads the libraries for traces, which costs some speed
  double timeoutSeconds = 0; ///< time limit of waits for queued work; 0: none
};

/// Sets the environment variables that configure NCCL for this backend and, if the ranks form
/// pipelines, CUDA's number of hardware queues. Variables that the user has set keep their values.
/// CUDA reads its variables when it starts. No thread may change the environment while another
/// thread reads it, so a program must call this before it starts threads.
void setVariables(bool hasPipelines);

/// Creates the backend, and sets those variables if that has not been done. Unavailable if there
/// are fewer devices than ranks or one cannot be used; InvalidInput for ranks that do not fit the
/// world.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::cuda
