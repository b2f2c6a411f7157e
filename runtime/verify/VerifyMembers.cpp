// Finds which roles share channels, and checks that creating channels cannot deadlock. Creating a
// channel waits for all of its members. Ranks of one role create the same channels in the same
// order, so each role is one actor here. A channel within one role blocks no other role. If the
// simulation of all actors ends, its order of creation agrees with the order on every rank. So the
// first channel in this order that is not yet created can always be created.
#include "runtime/verify/VerifyMembers.h"

#include <algorithm>
#include <set>

namespace shardc::plan::verifier {
namespace {

/// The cost of finding whether two roles share a channel, in counted visits.
constexpr uint64_t kVisitsOfPair = 64;

} // namespace

RoleMembers::RoleMembers(Inspection &inspection) : report_(inspection), plan_(inspection.plan()) {
  for (const Role &role : plan_.roles)
    indices_.emplace_back(plan_, role);
}

bool RoleMembers::isOfPair(uint32_t role, const Channel &channel) const {
  IndexRange own = indices_[role].of(channel.group);
  return own.isSole() && (own.first == channel.pair[0] || own.first == channel.pair[1]);
}

/// For each role with a rank of a group or pair, finds the roles that have members there too.
void RoleMembers::find() {
  for (int16_t group = 0; group < static_cast<int16_t>(plan_.groups.size()); ++group) {
    ofGroup_.push_back(membersOf(group, std::vector<bool>(plan_.roles.size(), true)));
    isShared_.push_back(std::ranges::any_of(
        ofGroup_.back(), [](const std::vector<uint32_t> &roles) { return roles.size() > 1; }));
    isAnyShared_ = isAnyShared_ || isShared_.back();
  }
  for (const Channel &channel : plan_.channels) {
    std::vector<bool> isOne;
    for (uint32_t r = 0; r < plan_.roles.size(); ++r)
      isOne.push_back(channel.isPair() && isOfPair(r, channel));
    ofPair_.push_back(membersOf(channel.group, isOne));
    isAnyShared_ = isAnyShared_ || channel.isPair();
  }
}

/// For each role marked in `isOne`, all marked roles that share an instance of the group with it,
/// directly or through other roles.
std::vector<std::vector<uint32_t>> RoleMembers::membersOf(int16_t group,
                                                          const std::vector<bool> &isOne) {
  std::vector<std::vector<uint32_t>> members(plan_.roles.size());
  for (uint32_t first = 0; first < plan_.roles.size(); ++first) {
    if (!isOne[first] || !members[first].empty())
      continue;
    std::set<uint32_t> all = {first};
    std::vector<uint32_t> fresh = {first};
    while (!fresh.empty() && report_.spend(plan_.roles.size() * kVisitsOfPair)) {
      uint32_t a = fresh.back();
      fresh.pop_back();
      for (uint32_t b = 0; b < plan_.roles.size(); ++b)
        if (isOne[b] && !all.contains(b) &&
            haveRanksInCommon(plan_, plan_.roles[a], plan_.roles[b], group)) {
          all.insert(b);
          fresh.push_back(b);
        }
    }
    for (uint32_t role : all)
      members[role].assign(all.begin(), all.end());
  }
  return members;
}

const std::vector<uint32_t> &RoleMembers::of(int16_t group, ChannelId channel,
                                             uint32_t role) const {
  bool isOfPair = channel >= 0 && channelAt(plan_, channel).isPair();
  return isOfPair ? ofPair_[static_cast<size_t>(channel)][role]
                  : ofGroup_[static_cast<size_t>(group)][role];
}

ChannelOrders channelOrders(const Plan &plan) {
  ChannelOrders orders;
  for (uint32_t role = 0; role < plan.roles.size(); ++role)
    orders.push_back(channelOrder(plan, {&role, 1}));
  return orders;
}

void checkCreation(Inspection &inspection, const RoleMembers &members,
                   const ChannelOrders &orders) {
  const Plan &plan = inspection.plan();
  std::vector<size_t> at(orders.size());
  auto isAt = [&](uint32_t role, ChannelId channel) {
    return at[role] < orders[role].size() && orders[role][at[role]] == channel;
  };
  auto rolesOf = [&](uint32_t role) -> const std::vector<uint32_t> & {
    ChannelId channel = orders[role][at[role]];
    return members.of(channelAt(plan, channel).group, channel, role);
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (uint32_t role = 0; role < orders.size(); ++role)
      while (at[role] < orders[role].size()) {
        const std::vector<uint32_t> &meets = rolesOf(role);
        ChannelId channel = orders[role][at[role]];
        if (!inspection.spend(meets.size() + 1))
          return;
        if (!std::ranges::all_of(meets, [&](uint32_t other) { return isAt(other, channel); }))
          break;
        for (uint32_t other : meets)
          ++at[other];
        moves = true;
      }
  }
  for (uint32_t role = 0; role < orders.size(); ++role) {
    if (at[role] == orders[role].size())
      continue;
    ChannelId channel = orders[role][at[role]];
    uint32_t other =
        *std::ranges::find_if(rolesOf(role), [&](uint32_t r) { return !isAt(r, channel); });
    bool isEnd = at[other] == orders[other].size();
    inspection.add(finding::CreationDeadlocks, {role, kNone, kNone}, channelAt(plan, channel).name,
                   plan.roles[other].name,
                   isEnd ? "creates no more channels"
                         : fmt::format("waits in the creation of channel '{}'",
                                       channelAt(plan, orders[other][at[other]]).name));
    return;
  }
}

} // namespace shardc::plan::verifier
