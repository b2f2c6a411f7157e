// Builds the table from the rows of Kernels.def whose backend is the host. Other ops run as their
// steps.
#include "kernels/host/Registry.h"

#include "kernels/host/Blas.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Steps.h"

namespace shardc::kernels {
namespace {

struct Row {
  std::string_view op;
  const Kernel *kernel;
};

constexpr Row kRows[] = {
#define HOST_KERNEL(enumerator, op, family, dtypes) {op, &host::k##enumerator},
#include "kernels/Kernels.def"
};

} // namespace

const Kernel *findHostKernel(std::string_view opName) {
  host::initBlas();
  for (const Row &row : kRows)
    if (row.op == opName)
      return row.kernel;
  return stepsKernelOf<findHostKernel>(opName);
}

} // namespace shardc::kernels
