#include "runtime/backend/cuda/Config.h"

#include <algorithm>

namespace shardc::cuda {

int64_t bytesMaxOf(const hal::ChannelDesc &desc) {
  int64_t most = 0;
  for (const hal::ChannelUse &use : desc.uses)
    most = std::max(most, use.bytes);
  return most;
}

ncclConfig_t configOf(const hal::ChannelDesc &desc, const Options &options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 0;
  config.commName = desc.name.c_str();
  if (desc.registration == hal::Registration::Windows)
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  if (desc.multiprocessors > 0)
    config.maxCTAs = desc.multiprocessors;
  if (!desc.uses.empty() && bytesMaxOf(desc) <= kSmallBytes)
    config.minCTAs = config.maxCTAs = 1; // each costs memory for its connections
  if (options.collectiveNetwork)
    config.collnetEnable = 1;
  return config;
}

} // namespace shardc::cuda
