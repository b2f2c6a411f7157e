#include "kernels/host/Blas.h"

#include <cblas.h>

namespace shardc::kernels::host {

void initBlas() {
  [[maybe_unused]] static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
}

void gemm(int64_t m, int64_t n, int64_t k, float alpha, Factor a, Factor b, float beta, float *c,
          int64_t stride) {
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
              b.transposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a.data,
              static_cast<blasint>(a.stride), b.data, static_cast<blasint>(b.stride), beta, c,
              static_cast<blasint>(stride));
}

std::string blasVersion() {
  std::string text = openblas_get_config(); // `OpenBLAS 0.3.21 NO_AFFINITY ...`
  return text.substr(0, text.find(' ', text.find(' ') + 1));
}

} // namespace shardc::kernels::host
