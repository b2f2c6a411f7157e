// A fault that a test plants in one rank, to see what becomes of the job. SHARDC_FAULT names it:
// KIND@RANK, and for faults of a step KIND@RANK:STEP. Without it nothing here does anything.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::exec {

enum class FaultKind : uint8_t {
  Nothing,
#define FAULT(Name, text, isOfStep) Name,
#include "runtime/exec/Faults.def"
};

struct Fault {
  FaultKind kind = FaultKind::Nothing;
  int rank = -1;
  int64_t step = 0; ///< of this run, from 1

  /// InvalidInput unless `text` is a fault; empty text is none.
  static Result<Fault> parse(std::string_view text);
  bool strikes(FaultKind what, int inRank) const { return kind == what && rank == inRank; }
};

} // namespace shardc::exec
