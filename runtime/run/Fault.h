// A fault that a test injects into one rank to observe the job's reaction. SHARDC_FAULT names it as
// KIND@RANK, or for faults of a step as KIND@RANK:STEP or KIND@RANK:STEP/MOMENT. It applies only to
// the first start of the ranks; with the suffix /again, to each start. With the suffix /kept, a
// step whose state is saved in memory waits until that save is complete. Without the variable, this
// code has no effect.
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

/// The time within its step at which a fault occurs.
enum class FaultMoment : uint8_t {
  Begin,      ///< at its first segment
  Collective, ///< inside its first collective
  Evaluation, ///< at the first segment of the evaluation after the step
  Save,       ///< while the files of the save after the step are written
};

struct Fault {
  FaultKind kind = FaultKind::Nothing;
  int rank = -1;
  int64_t step = 0; ///< counted from 1 in this run
  FaultMoment moment = FaultMoment::Begin;
  bool strikesAgain = false; ///< at each start of the ranks
  bool awaitsKept = false;   ///< on all ranks; makes saves in memory independent of timing

  /// InvalidInput unless `text` is a fault. Empty text means no fault.
  static Result<Fault> parse(std::string_view text);
  bool strikes(FaultKind what, int inRank) const { return kind == what && rank == inRank; }
};

} // namespace shardc::run
