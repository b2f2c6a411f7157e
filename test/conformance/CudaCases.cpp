// The CUDA backend's cases: one device per rank in this process. Cases that need more devices than
// the machine has are skipped, and all cases unless SHARDC_GPU is 1.
#include <cstdlib>
#include <string_view>

#include "runtime/backend/cuda/Options.h"
#include "test/conformance/Conformance.h"
#include "test/conformance/CudaKernels.h"

namespace shardc::conformance {
namespace {

Result<std::unique_ptr<hal::Backend>> makeCuda(int ranks, bool guards) {
  const char *wanted = std::getenv("SHARDC_GPU");
  if (!wanted || std::string_view(wanted) != "1")
    return Status(StatusCode::Unavailable, "SHARDC_GPU is not 1");
  // One thread enqueues for all ranks. Therefore NCCL must not use an algorithm that connects ranks
  // at its first use, as NVLS does, since a rank would wait for the others.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/1);
  cuda::Options options;
  options.worldSize = ranks;
  options.timeoutSeconds = 60;
  options.guards = guards;
  return cuda::makeBackend(options);
}

BackendCase cudaCase() {
  return {"cuda", [](int ranks) { return makeCuda(ranks, false); }, addValueOnDevice,
          writeStepOnDevice, [](int ranks) { return makeCuda(ranks, true); }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, Conformance, ::testing::Values(cudaCase()),
                         [](const auto &info) { return info.param.name; });

} // namespace
} // namespace shardc::conformance
