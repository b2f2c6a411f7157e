// Limits NCCL to the multiprocessors for which the plan was made. Channels that only transfer small
// messages get a single CTA.
#include "runtime/backend/cuda/Config.h"

#include "runtime/backend/channels/Uses.h"
#include "runtime/base/SmallCollectives.h"

namespace shardc::cuda {

ncclConfig_t configOf(const hal::ChannelDesc &desc, const Options &options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 0;
  config.commName = desc.name.c_str();
  if (desc.registration == hal::Registration::Windows)
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  if (desc.multiprocessors > 0)
    config.maxCTAs = desc.multiprocessors;
  if (!desc.uses.empty() && channels::bytesMaxOf(desc) <= kSmallCollectiveBytes)
    config.minCTAs = config.maxCTAs = 1; // each CTA costs memory for its connections
  if (options.collectiveNetwork)
    config.collnetEnable = 1;
  return config;
}

} // namespace shardc::cuda
