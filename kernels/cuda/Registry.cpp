#include "kernels/cuda/Registry.h"

#include <atomic>
#include <cstdlib>

#include "kernels/cuda/Rows.h"

namespace shardc::kernels {
namespace {

struct Row {
  std::string_view op;
  const Kernel *kernel;
};

constexpr Row kRows[] = {
#define SHARDC_ROW_Cuda(enumerator, op) {op, &cuda::k##enumerator},
#define KERNEL(enumerator, op, backend, family, dtypes) SHARDC_ROW_##backend(enumerator, op)
#include "kernels/Kernels.def"
};

std::atomic<bool> deterministicRuns{true};

} // namespace

const Kernel *findCudaKernel(std::string_view opName) {
  for (const Row &row : kRows)
    if (row.op == opName)
      return row.kernel;
  return nullptr;
}

void setCudaDeterministic(bool deterministic) { deterministicRuns = deterministic; }
bool isCudaDeterministic() { return deterministicRuns; }

bool takesOwnKernels() {
  static const bool isAsked = [] {
    const char *value = std::getenv("SHARDC_OWN_KERNELS");
    return value && std::string_view(value) == "1";
  }();
  return isAsked;
}

} // namespace shardc::kernels
