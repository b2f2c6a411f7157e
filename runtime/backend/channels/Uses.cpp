// Answers questions about a channel's list of uses. An empty list means that the uses are unknown,
// as in tests.
#include "runtime/backend/channels/Uses.h"

#include <algorithm>

#include "runtime/base/SmallCollectives.h"

namespace shardc::channels {

int64_t bytesMaxOf(const hal::ChannelDesc &desc) {
  int64_t most = 0;
  for (const hal::ChannelUse &use : desc.uses)
    most = std::max(most, use.bytes);
  return most;
}

bool isUsedFor(const hal::ChannelDesc &desc, hal::CollectiveKind kind, bool anyOrder) {
  return desc.uses.empty() || std::ranges::any_of(desc.uses, [&](const hal::ChannelUse &use) {
           return use.kind == kind && use.anyOrder == anyOrder;
         });
}

bool meetsBeforeTransfers(const hal::ChannelDesc &desc) {
  using Kind = hal::CollectiveKind;
  return desc.members.size() == 2 &&
         (isUsedFor(desc, Kind::Send, false) || isUsedFor(desc, Kind::Recv, false)) &&
         (desc.uses.empty() || bytesMaxOf(desc) > kSmallCollectiveBytes);
}

} // namespace shardc::channels
