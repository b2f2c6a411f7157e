// cuBLASLt's functions, loaded when the first product needs them. Linking the library would add 60
// ms to every program start, on every backend, since its half a million addresses are relocated
// before main().
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

/// Member X is function cublasLtX of the library version that the program was built for.
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
