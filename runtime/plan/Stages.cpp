// Numbers the roles that send to each other as pipeline stages, and orders channels.
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

std::vector<ChannelId> channelOrder(const Plan &plan, std::span<const uint32_t> roles) {
  std::vector<bool> isUsed(plan.channels.size());
  for (uint32_t role : roles)
    for (const Segment &segment : plan.roles[role].segments)
      for (const Op &op : segment.ops)
        if (op.channel >= 0)
          isUsed[static_cast<size_t>(op.channel)] = true;
  std::vector<ChannelId> order;
  for (size_t channel = 0; channel < isUsed.size(); ++channel)
    if (isUsed[channel])
      order.push_back(static_cast<ChannelId>(channel));
  return order;
}

} // namespace shardc::plan
