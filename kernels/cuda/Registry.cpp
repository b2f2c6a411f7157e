// Builds the table from the rows of Kernels.def whose backend is CUDA. Other ops run as their
// steps.
#include "kernels/cuda/Registry.h"

#include "kernels/cuda/Rows.h"
#include "kernels/host/Steps.h"

namespace shardc::kernels {
namespace {

struct Row {
  std::string_view op;
  const Kernel *kernel;
};

constexpr Row kRows[] = {
#define CUDA_KERNEL(enumerator, op, family, dtypes) {op, &cuda::k##enumerator},
#include "kernels/Kernels.def"
};

} // namespace

const Kernel *findCudaKernel(std::string_view opName) {
  for (const Row &row : kRows)
    if (row.op == opName)
      return row.kernel;
  return stepsKernelOf<findCudaKernel>(opName);
}

} // namespace shardc::kernels
