#include "kernels/host/Blas.h"

#include <blis.h>

namespace shardc::kernels::host {
namespace {

/// How BLIS is to compute, the same for each call.
rntm_t initialised() {
  bli_init();
  rntm_t runtime;
  bli_rntm_init(&runtime);
  // A build with threads would otherwise ask the environment for their number.
  bli_rntm_set_num_threads(1, &runtime);
  // Small products would go by kernels that take other rows otherwise, chosen by the number of
  // rows.
  bli_rntm_set_l3_sup(false, &runtime);
  return runtime;
}

const rntm_t &runtimeOfAll() {
  static const rntm_t runtime = initialised();
  return runtime;
}

/// Elements from row to row and from column to column of op(factor).
struct Strides {
  inc_t row, column;

  explicit Strides(const Factor &factor)
      : row(factor.transposed ? 1 : factor.stride), column(factor.transposed ? factor.stride : 1) {}
};

} // namespace

void initBlas() { runtimeOfAll(); }

void gemm(int64_t m, int64_t n, int64_t k, float alpha, Factor a, Factor b, float beta, float *c,
          int64_t stride) {
  rntm_t runtime = runtimeOfAll(); // a call writes into its own
  Strides ofA(a), ofB(b);
  // BLIS 0.9 takes pointers to factors that it only reads without const.
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &alpha, const_cast<float *>(a.data),
               ofA.row, ofA.column, const_cast<float *>(b.data), ofB.row, ofB.column, &beta, c,
               stride, 1, nullptr, &runtime);
}

std::string blasVersion() {
  initBlas(); // which BLIS_ARCH_TYPE needs to be known
  std::string kernels = bli_arch_string(bli_arch_query_id());
  return std::string("BLIS ") + bli_info_get_version_str() + " (" + kernels + ")";
}

} // namespace shardc::kernels::host
