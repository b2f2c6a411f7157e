// A fault that a test injects into one rank to observe the job's reaction. SHARDC_FAULT names it:
// KIND@RANK, and for faults of a step KIND@RANK:STEP, or KIND@RANK:STEP/MOMENT. It strikes in the
// first start of the ranks alone, or with /again behind it in each. With /kept, steps whose state
// is kept in memory wait until it is. Without it this code has no effect.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::run {

enum class FaultKind : uint8_t {
  Nothing,
#define FAULT(Name, text, isOfStep) Name,
#include "runtime/run/Faults.def"
};

/// When in its step a fault strikes.
enum class FaultMoment : uint8_t {
  Begin,      ///< at its first segment
  Collective, ///< inside its first collective
  Evaluation, ///< at the first segment of the evaluation after it
  Save,       ///< in the middle of the files of the save after it
};

struct Fault {
  FaultKind kind = FaultKind::Nothing;
  int rank = -1;
  int64_t step = 0; ///< counted from 1 in this run
  FaultMoment moment = FaultMoment::Begin;
  bool strikesAgain = false; ///< in each start of the ranks
  bool awaitsKept = false;   ///< on all ranks; what it finds in memory does not depend on the clock

  /// InvalidInput unless `text` is a fault; empty text means no fault.
  static Result<Fault> parse(std::string_view text);
  bool strikes(FaultKind what, int inRank) const { return kind == what && rank == inRank; }
};

} // namespace shardc::run
