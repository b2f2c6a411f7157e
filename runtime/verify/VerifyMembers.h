// Finds which roles have ranks in the same group or on the same channel; these must issue the same
// collectives. Also checks that the order in which ranks create channels cannot deadlock.
#pragma once

#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

/// Which roles meet in each group and on each channel. Refers to the inspection and its plan.
class RoleMembers {
public:
  explicit RoleMembers(Inspection &inspection);

  /// Whether the role has exactly one of the two ranks of a pair channel.
  bool isOfPair(uint32_t role, const Channel &channel) const;
  /// The indices that ranks of the role have in each group.
  const Indices &indices(uint32_t role) const { return indices_[role]; }

  /// Computes what the functions below return. Call it once, before them.
  void find();
  /// By group: whether ranks of several roles are members of one instance of it.
  const std::vector<bool> &isShared() const { return isShared_; }
  /// Whether isShared() holds for some group.
  bool isAnyShared() const { return isAnyShared_; }
  /// The roles, this one included, that have members in common with this role on the channel, or on
  /// the group if no channel is chosen yet. Empty if the role has no rank of a pair channel.
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

/// For each role, the channels that its ranks create, in order of creation.
using ChannelOrders = std::vector<std::vector<ChannelId>>;

/// The orders that the runtime uses for this plan.
ChannelOrders channelOrders(const Plan &plan);

/// Creating a communicator blocks until all members take part. Adds a finding if these orders make
/// ranks wait for each other in a cycle.
void checkCreation(Inspection &inspection, const RoleMembers &members, const ChannelOrders &orders);

} // namespace shardc::plan::verifier
