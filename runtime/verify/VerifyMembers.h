// Which roles meet on groups and channels.
#pragma once

#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

class RoleMembers {
public:
  explicit RoleMembers(Inspection &inspection);

  /// The role has exactly one of the two ranks of the pair.
  bool isOfPair(uint32_t role, const Channel &channel) const;
  const Indices &indices(uint32_t role) const { return indices_[role]; }

  /// Finds out what follows; once, before it is asked.
  void find();
  /// By group: it has members in several roles.
  const std::vector<bool> &isShared() const { return isShared_; }
  bool isAnyShared() const { return isAnyShared_; }
  /// The roles that this role meets on the channel, or on the group where no channel is chosen yet;
  /// the role is one of them. None where the role has no rank of a pair.
  const std::vector<uint32_t> &of(int16_t group, ChannelId channel, uint32_t role) const;

private:
  std::vector<std::vector<uint32_t>> membersOf(int16_t group, const std::vector<bool> &isOne);

  Inspection &report_;
  const Plan &plan_;
  std::vector<Indices> indices_; ///< per role
  std::vector<bool> isShared_;
  bool isAnyShared_ = false;
  std::vector<std::vector<std::vector<uint32_t>>> ofGroup_; ///< per group and role
  std::vector<std::vector<std::vector<uint32_t>>> ofPair_;  ///< per channel and role
};

/// The channels that each role's ranks create, in order.
using ChannelOrders = std::vector<std::vector<ChannelId>>;

/// As ranks create them.
ChannelOrders channelOrders(const Plan &plan);

/// Adds a finding where ranks that create channels in these orders wait for each other for ever.
void checkCreation(Inspection &inspection, const RoleMembers &members, const ChannelOrders &orders);

} // namespace shardc::plan::verifier
