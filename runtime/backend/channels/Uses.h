// Questions about the uses of a channel, answered from its description.
#pragma once

#include "runtime/hal/Channel.h"

namespace shardc::channels {

/// Bytes of the channel's largest use; 0 if its uses are unknown.
int64_t bytesMaxOf(const hal::ChannelDesc &desc);

/// Whether the channel carries collectives of this kind. True if its uses are unknown.
bool isUsedFor(const hal::ChannelDesc &desc, hal::CollectiveKind kind, bool anyOrder);

/// Whether both ends of a transfer first wait for each other in a communicator of their own. Small
/// transfers do not, since they occupy only one multiprocessor themselves.
bool meetsBeforeTransfers(const hal::ChannelDesc &desc);

} // namespace shardc::channels
