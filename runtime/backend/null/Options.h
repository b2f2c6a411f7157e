// The null backend: it runs nothing, and checks that the interface of hal/ is used as it says.
// Every call's arguments, the order in which objects are made and destroyed, ranges inside of
// buffers, captures, and that the members of a channel issue the same collectives. Nothing has
// values: device memory has addresses that no processor can access. It is the smallest complete
// backend.
#pragma once

#include <functional>
#include <memory>

#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"

namespace shardc::null {

struct Options {
  int ranks = 1; ///< of the whole job
  /// Most ranks in this process. Beyond them some are left out: those that are here begin with the
  /// first, end with the last, and are spread evenly.
  int ranksHereMax = 64;
  /// Set: this process has one rank, and these have the others. Outlives the backend.
  hal::Peers *peers = nullptr;
  /// Called with a breach that no status can tell of, because it happened in a destructor: also
  /// after the backend was destroyed. Those before that are also what `synchronize` returns.
  std::function<void(const Status &)> onBreach;
};

/// InvalidInput for numbers of ranks that are out of range.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::null
