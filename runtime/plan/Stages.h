// What people call the roles of a pipeline.
#pragma once

#include <string>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Roles send to each other: they are stages, in the plan's order.
bool isPipeline(const Plan &plan);
/// `, stage 2 of 4` of a role of a pipeline, to stand behind a rank; empty of other roles.
std::string stageOf(const Plan &plan, uint32_t role);

} // namespace shardc::plan
