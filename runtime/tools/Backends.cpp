#include "runtime/tools/Backends.h"

#include <algorithm>

#include "kernels/host/Registry.h"
#include "runtime/backend/host/Options.h"
#ifdef SHARDC_HAS_CUDA
#include "kernels/cuda/Registry.h"
#include "runtime/backend/cuda/Options.h"
#endif

namespace shardc::tools {
namespace {

int ranksOf(const plan::Plan &plan) {
  return static_cast<int>(std::min<int64_t>(plan.worldSize(), 1 << 20));
}

Result<std::unique_ptr<hal::Backend>> makeHost(const plan::Plan &plan,
                                               const RunToolOptions &options) {
  host::Options hostOptions;
  hostOptions.ranks = ranksOf(plan);
  hostOptions.workers = options.workers;
  hostOptions.scheduleSeed = options.scheduleSeed;
  hostOptions.poison = hostOptions.guards = options.scheduleSeed.has_value();
  if (options.scheduleSeed && options.workers == 0)
    hostOptions.workers = 1; // one worker makes the schedule a function of the seed
  return host::makeBackend(hostOptions);
}

#ifdef SHARDC_HAS_CUDA
Result<std::unique_ptr<hal::Backend>> makeCuda(const plan::Plan &plan) {
  kernels::setCudaDeterministic(plan.jobBool("train.deterministic", false));
  cuda::Options cudaOptions;
  cudaOptions.worldSize = ranksOf(plan);
  cudaOptions.timeoutSeconds = 60 * plan.jobFloat("dist.distributed_timeout_minutes", 10);
  return cuda::makeBackend(cudaOptions);
}
#endif

} // namespace

std::vector<std::string> backendNames() {
#ifdef SHARDC_HAS_CUDA
  return {"host", "cuda"};
#else
  return {"host"};
#endif
}

exec::FindKernel findKernelOf([[maybe_unused]] const std::string &backend) {
#ifdef SHARDC_HAS_CUDA
  if (backend == "cuda")
    return kernels::findCudaKernel;
#endif
  return kernels::findHostKernel;
}

Result<std::unique_ptr<hal::Backend>> makeBackend(const plan::Plan &plan,
                                                  const RunToolOptions &options) {
#ifdef SHARDC_HAS_CUDA
  if (options.backend == "cuda")
    return makeCuda(plan);
#endif
  return makeHost(plan, options);
}

} // namespace shardc::tools
