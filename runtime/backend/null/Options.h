// The null backend executes nothing, and checks that the interface of hal/ is used as documented:
// the arguments of every call, the order in which objects are created and destroyed, ranges inside
// of buffers, captures, and that the members of a channel issue the same collectives. If the
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
  int ranks = 1; ///< of the whole job
  /// Most ranks in this process. Beyond them some are left out: those that are here begin with the
  /// first, end with the last, and are spread evenly.
  int ranksHereMax = 64;
  /// The one rank of this process if other processes have the others; -1: this process has all.
  int rank = -1;
  /// Required if the process has one rank; must outlive the backend.
  hal::Rendezvous *rendezvous = nullptr;
  const Refusals *refusals = nullptr; ///< what a test has the library refuse; outlives the backend
  ReportSink emit;                    ///< takes why less is registered than requested
  /// Called with an error that other members of a channel do not know of.
  std::function<void(const Status &)> failed;
  /// Called with each call of the library of communicators.
  std::function<void(std::string_view call, const hal::ChannelDesc &desc)> onCall;
  /// Called with a violation that no status can report, because it happened in a destructor,
  /// possibly after the backend was destroyed. `synchronize` also returns violations from before
  /// that.
  std::function<void(const Status &)> onBreach;
};

/// InvalidInput for numbers of ranks that are out of range.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::null
