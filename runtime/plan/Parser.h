// Text -> plan. Accepts what Printer.h writes, comments and any layout; refuses everything else
// with `file:line:col: error: ...`. Checks form, names and limits; what a plan means is Verify.h's
// matter.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Parses a whole plan. InvalidInput with the first error, rendered with its source line and caret.
/// `fileName` is used only in messages. All indices in the plan that is returned are in range,
/// every value has its definition, and numbers keep the bounds of Limits.h.
Result<Plan> parse(std::string_view text, std::string_view fileName);

/// The plans of a text that has one or several, one after the other: the first line of each begins
/// with `shardc.plan`.
std::vector<std::string_view> plansOf(std::string_view text);

/// Parses all of them, at least one: those of a job whose batch grows have one batch size each, in
/// the order of the run (Phases.h).
Result<std::vector<Plan>> parseJob(std::string_view text, std::string_view fileName);

} // namespace shardc::plan
