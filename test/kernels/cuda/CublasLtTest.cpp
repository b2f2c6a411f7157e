// Tests cuBLASLt's functions that are loaded at run time, as far as this needs no GPU.
#include <gtest/gtest.h>

#include "kernels/cuda/CublasLt.h"

namespace shardc::kernels::cuda {
namespace {

TEST(CublasLt, IsTheOneOfTheHeaders) {
  const CublasLt &library = cublasLt();
  ASSERT_EQ(library.failure, "");
  EXPECT_EQ(library.GetVersion(), size_t{CUBLAS_VERSION});
}

TEST(CublasLt, DescribesProducts) {
  const CublasLt &library = cublasLt();
  ASSERT_EQ(library.failure, "");
  cublasLtMatmulDesc_t product = nullptr;
  ASSERT_EQ(library.MatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(library.MatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(library.MatmulDescDestroy(product), CUBLAS_STATUS_SUCCESS);
  EXPECT_STREQ(library.GetStatusString(CUBLAS_STATUS_SUCCESS), "success");
}

} // namespace
} // namespace shardc::kernels::cuda
