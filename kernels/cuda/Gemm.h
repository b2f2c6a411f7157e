// Matrix products through cuBLASLt: row-major factors, fp32 accumulation, a bias on each row and
// accumulation into the result in the epilogue, an algorithm by the library's heuristic among those
// that give the same bits in every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc::kernels::cuda {

/// Scratch that every product may use: what NVIDIA recommends for Hopper, and room to begin it at a
/// multiple of 256 bytes, without which cuBLASLt refuses.
inline constexpr int64_t kGemmWorkspace = (int64_t{32} << 20) + 256;

/// c[m,n] = op(a)[m,k]·op(b)[k,n] + bias[n], added to c if `accumulate`. The factors have one type;
/// c may be fp32 beside bf16 factors; the bias has c's type. Rows lie one behind the other.
struct Gemm {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void *c = nullptr;
  int64_t m = 0, n = 0, k = 0;
  bool transA = false, transB = false, accumulate = false;
  DType in = DType::F32, out = DType::F32;
};

/// Chooses the algorithm of such products by timing the library's candidates, unless it is known or
/// runs are to be the same in every environment. Fills the factors with random numbers.
void tuneGemm(const Gemm &gemm, void *workspace, cudaStream_t stream);

/// Queues the product; `workspace` has kGemmWorkspace bytes. Failures are reported (Errors.h).
void runGemm(const Gemm &gemm, void *workspace, cudaStream_t stream);

} // namespace shardc::kernels::cuda
