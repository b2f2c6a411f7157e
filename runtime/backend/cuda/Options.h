// How the CUDA backend runs: which ranks of the job this process holds, on which devices, how
// processes find each other, and how sums over ranks are formed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/Context.h"
#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Rendezvous.h"

namespace shardc::cuda {

struct Options {
  int worldSize = 1;
  int firstRank = 0; ///< of this process; the others follow
  std::vector<int>
      devices; ///< CUDA device of each rank of this process; empty: as many as ranks, from 0
  /// Needed where not all ranks are in this process; outlives the backend.
  hal::Rendezvous *rendezvous = nullptr;
  /// The kernels' context; null: the backend creates one from the environment.
  std::shared_ptr<kernels::cuda::Context> kernels;
  const Refusals *refusals = nullptr; ///< what a test has NCCL refuse; outlives the backend
  /// Sums over machines are formed in the network, where NCCL finds one that can.
  bool collectiveNetwork = false;
  /// Takes warnings: once per channel and process the reason why less is registered than requested.
  ReportSink emit;
  /// Called with an error of a device or a channel before communicators are ended, which takes long
  /// if the device does not respond.
  std::function<void(const Status &)> failed;
  bool guards = false;       ///< zones around every buffer that checkGuards() looks at
  bool canTrace = false;     ///< loads what traces need, which costs some speed
  double timeoutSeconds = 0; ///< longest wait for queued work; 0 is for ever
};

/// Sets the environment variables that configure NCCL for this backend and, if the ranks form
/// pipelines, CUDA's number of hardware queues; variables that the user has set keep their values.
/// CUDA reads its own when it starts. Threads may read the environment at any time, and no thread
/// may change it concurrently. So a program that starts threads before it makes a backend calls
/// this before that.
void setVariables(bool hasPipelines);

/// Makes the backend, and sets those variables if nobody has. Unavailable if there are fewer
/// devices than ranks or one cannot be used; InvalidInput for ranks that do not fit the world.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::cuda
