#include "kernels/host/ColumnSums.h"

#include "kernels/host/Convert.h"

namespace shardc::kernels::host {

SHARDC_CLONES void addProducts(const float *a, const float *b, int64_t n, double *sums) {
  for (int64_t i = 0; i < n; ++i)
    sums[i] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
}

SHARDC_CLONES void addTerms(const float *a, int64_t n, double *sums) {
  for (int64_t i = 0; i < n; ++i)
    sums[i] += static_cast<double>(a[i]);
}

void writeSums(const Tensor &to, int64_t offset, int64_t n, const double *sums, float *buffer) {
  for (int64_t i = 0; i < n; ++i)
    buffer[i] = static_cast<float>(sums[i]);
  writeF32(to, offset, n, buffer);
}

} // namespace shardc::kernels::host
