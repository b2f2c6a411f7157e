// Counts roles that send to each other as stages.
#include "runtime/plan/Coordinates.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardc::plan {

bool isPipeline(const Plan &plan) {
  return plan.roles.size() > 1 && std::ranges::any_of(plan.channels, &Channel::isPair);
}

std::string stageOf(const Plan &plan, uint32_t role) {
  return isPipeline(plan) ? fmt::format(", stage {} of {}", role + 1, plan.roles.size()) : "";
}

} // namespace shardc::plan
