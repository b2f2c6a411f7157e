// NCCL's configuration for a channel's communicators.
#pragma once

#include <nccl.h>

#include "runtime/backend/cuda/Options.h"

namespace shardc::cuda {

/// Collectives up to this size are about latency alone.
inline constexpr int64_t kSmallBytes = 64 << 10;

/// Bytes of the channel's largest use; 0 where uses are unknown.
int64_t bytesMaxOf(const hal::ChannelDesc &desc);

/// Refers to the name of `desc`.
ncclConfig_t configOf(const hal::ChannelDesc &desc, const Options &options);

} // namespace shardc::cuda
