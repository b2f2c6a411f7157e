// Reads the settings from environment variables, and creates the libraries' state.
#include "kernels/cuda/Context.h"

#include <cstdlib>
#include <string_view>

#include "kernels/cuda/CudnnAttention.h"
#include "kernels/cuda/Gemm.h"
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
  std::string_view dependent = variable("SHARDC_DEPENDENT_LAUNCHES");
  options.dependentLaunches = dependent == "1"   ? DependentLaunches::AfterOwn
                              : dependent == "2" ? DependentLaunches::AfterKernels
                                                 : DependentLaunches::Never;
  return options;
}

Context::Context(const ContextOptions &options)
    : options_(options), gemm_(makeGemmLibrary()), attention_(makeAttentionLibrary()) {}

Context &contextOf(const Call &call) {
  SHARDC_CHECK(call.context, "a call of a CUDA kernel carries no context");
  return static_cast<Context &>(*call.context);
}

} // namespace shardc::kernels::cuda
