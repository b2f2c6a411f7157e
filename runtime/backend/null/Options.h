// The null backend executes nothing. It checks that callers use the interface of hal/ as
// documented: the arguments of every call, the order in which objects are created and destroyed,
// ranges inside buffers, captures, and that the members of a channel issue the same collectives. If
// members of a channel are in several processes, it creates the channel like the CUDA backend,
// through a library that transfers nothing (Library.h). Values do not exist: device memory has
// addresses that no processor can access. It is the smallest complete backend.
#pragma once

#include <functional>
#include <memory>

#include "runtime/base/Refusals.h"
#include "runtime/base/Report.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Rendezvous.h"

namespace shardc::null {

struct Options {
  int ranks = 1; ///< ranks of the whole job
  /// Limit of the ranks in this process. If the job has more, some are left out; the remaining ones
  /// include the first and the last rank and are evenly spaced.
  int ranksHereMax = 64;
  /// The one rank of this process if other processes have the others; -1: this process has all.
  int rank = -1;
  /// Required if the process has one rank; must outlive the backend.
  hal::Rendezvous *rendezvous = nullptr;
  const Refusals *refusals = nullptr; ///< refusals that a test requests; must outlive the backend
  ReportSink emit;                    ///< receives the reason if less is registered than requested
  /// Called with an error that only this member of a channel has.
  std::function<void(const Status &)> failed;
  /// Called for each call of the library of communicators.
  std::function<void(std::string_view call, const hal::ChannelDesc &desc)> onCall;
  /// Called with a violation that no status can report, because it happened in a destructor,
  /// possibly after the backend was destroyed. `synchronize` also returns violations from before
  /// that.
  std::function<void(const Status &)> onBreach;
};

/// InvalidInput for numbers of ranks that are out of range.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::null
