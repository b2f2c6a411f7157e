// NCCL's configuration for a channel's communicators.
#pragma once

#include <nccl.h>

#include "runtime/backend/cuda/Options.h"

namespace shardc::cuda {

/// The result refers to the name of `desc`, which must outlive it.
ncclConfig_t configOf(const hal::ChannelDesc &desc, const Options &options);

} // namespace shardc::cuda
