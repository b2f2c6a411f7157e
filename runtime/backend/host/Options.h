// Options of the host backend: the number of ranks and workers, and the checks that it makes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"

namespace shardc::host {

/// The defaults run one rank on all cores without checks.
struct Options {
  int ranks = 1; ///< ranks of the whole job
  /// If set, this process has one rank, and `peers` are the others. Must outlive the backend.
  hal::Peers *peers = nullptr;
  int workers = 0; ///< threads that execute ops; 0: one per core
  /// Stress mode: the next op is drawn at random among all that may run. With one worker, the seed
  /// determines the schedule.
  std::optional<uint64_t> scheduleSeed;
  bool poison = false; ///< fills new memory with 0xff, which is NaN in every float format
  bool guards = false; ///< adds guard zones around every buffer, for checkGuards()
};

/// Creates the backend and its workers. InvalidInput for a rank or worker count that is out of
/// range.
Result<std::unique_ptr<hal::Backend>> makeBackend(const Options &options);

} // namespace shardc::host
