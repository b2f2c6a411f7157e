// The passes of a pipeline stage in a step, from a prediction or from a trace.
#pragma once

#include <string>
#include <vector>

#include "compiler/page/Work.h"
#include "runtime/base/Json.h"

namespace shardc::page {

/// A pass of a microbatch, from its first kernel to its last one, and what the stage then keeps.
struct DrawnPass {
  uint32_t segment = 0; ///< index in the role
  int64_t microbatch = 0;
  double begin = 0, end = 0; ///< seconds
  int64_t bytes = 0;         ///< kept for later passes
  int64_t kept = 0;          ///< forward passes whose values are kept
};

/// Whether passes of different microbatches alternate, so that a drawing of their order tells more
/// than their number.
bool hasSchedule(const plan::Plan &plan);

/// The passes of the first step of a role's rank, in order.
std::vector<DrawnPass> passesOf(const plan::Role &role, const Work &work);

/// A row of the drawing; times in microseconds.
nlohmann::ordered_json scheduleRow(const plan::Role &role, const std::vector<DrawnPass> &passes,
                                   const std::string &name);

/// For how long stages do not compute, what each cause takes, and which of them keeps most.
/// `passes`: by role.
std::string idleText(const plan::Plan &plan, const std::vector<std::vector<DrawnPass>> &passes,
                     double step);

} // namespace shardc::page
