// NCCL's configuration for a channel's communicators.
#pragma once

#include <nccl.h>

#include "runtime/backend/cuda/Options.h"

namespace shardc::cuda {

/// Refers to the name of `desc`.
ncclConfig_t configOf(const hal::ChannelDesc &desc, const Options &options);

} // namespace shardc::cuda
