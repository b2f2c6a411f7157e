// Reads the settings from environment variables, and creates the libraries' state.
#include "kernels/cuda/Context.h"

#include <cstdlib>
#include <string_view>

#include <cuda_runtime.h>

#include "kernels/cuda/CudnnAttention.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/PlainAttention.h"
#include "kernels/cuda/Symmetric.h"
#include "kernels/cuda/TileAttention.h"
#include "runtime/base/Status.h"

namespace shardc::kernels::cuda {
namespace {

std::string_view variable(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

} // namespace

ContextOptions ContextOptions::fromEnvironment() {
  ContextOptions options;
  options.ownKernels = variable("SHARDC_OWN_KERNELS") == "1";
  options.paths = variable("SHARDC_KERNEL_PATH");
  std::string_view dependent = variable("SHARDC_DEPENDENT_LAUNCHES");
  options.dependentLaunches = dependent == "1"   ? DependentLaunches::AfterOwn
                              : dependent == "2" ? DependentLaunches::AfterKernels
                                                 : DependentLaunches::Never;
  return options;
}

Context::Context(const ContextOptions &options)
    : options_(options), gemm_(makeGemmLibrary()), attention_(makeAttentionLibrary()) {}

/// A library is there if it loads. Ordinary kernels are all compiled for the same architectures.
const GpuTraits &Context::gpu() const {
  std::call_once(isFound_, [this] {
    constexpr int kOfH200 = 132;
    int device = 0, major = 9, minor = 0, shared = 0, all = kOfH200;
    const bool isThere =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
            cudaSuccess;
    static_cast<void>(cudaGetLastError());
    multiprocessors_ = options_.multiprocessors > 0 ? options_.multiprocessors : all;
    gpu_ = packagedTraits(10 * major + minor);
    gpu_.cudnn = options_.ownKernels ? 0 : cudnnVersion();
    if (isThere) {
      gpu_.sharedKiB = shared >> 10;
      gpu_.code.fill(ordinaryCode());
      auto codeOf = [&](KernelPath path) -> int & { return gpu_.code[static_cast<size_t>(path)]; };
      codeOf(KernelPath::AttentionWgmma) = tileAttentionCode();
      codeOf(KernelPath::GroupedWgmma) = groupedTilesCode();
      codeOf(KernelPath::SymmetricWgmma) = symmetricTilesCode();
    }
    forcePaths(options_.paths, gpu_);
  });
  return gpu_;
}

int multiprocessorsOf(const Call &call) { return contextOf(call).multiprocessors(); }

Context &contextOf(const Call &call) {
  SHARDC_CHECK(call.context, "a call of a CUDA kernel carries no context");
  return static_cast<Context &>(*call.context);
}

} // namespace shardc::kernels::cuda
