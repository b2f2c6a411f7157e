// Functions of cuBLASLt, which is loaded when the first product needs it. If the program linked the
// library, every start would take 60 ms more on any backend, because the loader relocates half a
// million addresses before main().
#pragma once

#include <string>

#include <cublasLt.h>

namespace shardc::kernels::cuda {

#define SHARDC_CUBLASLT_FUNCTIONS(F)                                                               \
  F(Create)                                                                                        \
  F(Destroy)                                                                                       \
  F(GetStatusString)                                                                               \
  F(GetVersion)                                                                                    \
  F(Matmul)                                                                                        \
  F(MatmulAlgoCheck)                                                                               \
  F(MatmulAlgoConfigGetAttribute)                                                                  \
  F(MatmulAlgoGetHeuristic)                                                                        \
  F(MatmulDescCreate)                                                                              \
  F(MatmulDescDestroy)                                                                             \
  F(MatmulDescSetAttribute)                                                                        \
  F(MatmulPreferenceCreate)                                                                        \
  F(MatmulPreferenceDestroy)                                                                       \
  F(MatmulPreferenceSetAttribute)                                                                  \
  F(MatrixLayoutCreate)                                                                            \
  F(MatrixLayoutDestroy)                                                                           \
  F(MatrixLayoutSetAttribute)

/// Member X is the function cublasLtX, with the signature of the version that we compile against.
struct CublasLt {
#define SHARDC_CUBLASLT(name) decltype(&::cublasLt##name) name = nullptr;
  SHARDC_CUBLASLT_FUNCTIONS(SHARDC_CUBLASLT)
#undef SHARDC_CUBLASLT

  /// Why the functions are unavailable; empty if they are available.
  std::string failure;
};

/// Loads the library in the first call; it stays loaded.
const CublasLt &cublasLt();

} // namespace shardc::kernels::cuda
