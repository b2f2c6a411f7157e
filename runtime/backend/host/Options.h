// Options of the host backend: the number of ranks and workers, and its checks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"

namespace shardc::host {

struct Options {
  int ranks = 1; ///< of the whole job
  /// If set: this process has one rank, and these are the others. Must outlive the backend.
  hal::Peers *peers = nullptr;
  int workers = 0; ///< threads that execute ops; 0 means one a core
  /// Stress mode: the next op is drawn at random among all that may run. With one worker the
  /// schedule is a function of the seed.
  std::optional<uint64_t> scheduleSeed;
  bool poison = false; ///< new memory is filled with 0xff: NaN in every float format
  bool guards = false; ///< zones around every buffer that checkGuards() looks at
};

/// Makes the backend with its workers. InvalidInput for a rank or worker count that is out of
/// range.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::host
