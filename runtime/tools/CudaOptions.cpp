#include "runtime/tools/CudaOptions.h"

#include <algorithm>

namespace shardc::tools {

cuda::Options cudaOptionsOf(const plan::Plan &plan, const RunToolOptions &options, int rank) {
  constexpr int64_t kRanksMax = 1 << 20;
  cuda::Options out;
  out.worldSize = static_cast<int>(std::min(plan.worldSize(), kRanksMax));
  out.firstRank = rank;
  out.collectiveNetwork = plan.job.dist.useSharp;
  out.guards = options.check;
  out.canTrace = !traceFileOf(options, rank).empty();
  return out;
}

} // namespace shardc::tools
