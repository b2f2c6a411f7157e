// Matrix products through cuBLASLt: row-major factors, fp32 accumulation; a bias on each row,
// accumulation into the result, GELU or its gradient in the epilogue; an algorithm by the library's
// heuristic among those that give the same bits in every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

#include "runtime/base/DType.h"

namespace shardc::kernels::cuda {

/// Scratch that every product may use: what NVIDIA recommends for Hopper, and room to begin it at a
/// multiple of 256 bytes, without which cuBLASLt refuses.
inline constexpr int64_t kGemmWorkspace = (int64_t{32} << 20) + 256;

/// What a product's epilogue does besides bias and accumulation. GELU is the tanh approximation.
enum class Epilogue : uint8_t {
  Plain,
  Gelu,    ///< other[m,n] = the product, c = gelu of it
  GeluBwd, ///< c = product·gelu'(other[m,n])
};

/// c[m,n] = op(a)[m,k]·op(b)[k,n] + bias[n], added to c if `accumulate`. The factors have one type;
/// c may be fp32 beside bf16 factors; the bias has c's type. Rows lie one behind the other.
struct Gemm {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void *c = nullptr;
  void *other = nullptr; ///< of the epilogue, in c's type
  int64_t m = 0, n = 0, k = 0;
  bool transA = false, transB = false, accumulate = false;
  DType in = DType::F32, out = DType::F32;
  Epilogue epilogue = Epilogue::Plain;
  int32_t multiprocessors = 0; ///< that it is cut for; 0: all
};

/// Loads the library on the device, which the first product would otherwise wait for.
void prepareGemm(int device);

/// Chooses the algorithm of such products by timing the library's candidates, unless it is known or
/// runs are to be the same in every environment. Fills the factors with random numbers. A product
/// with an epilogue is timed beside `apart`, which does the same by a plain product and a kernel.
void tuneGemm(const Gemm &gemm, void *workspace, cudaStream_t stream,
              const std::function<void()> &apart = nullptr);

/// Queues the product; `workspace` has kGemmWorkspace bytes. Extents that the library does not
/// serve are left to a plain kernel. Failures are reported (Errors.h).
void runGemm(const Gemm &gemm, void *workspace, cudaStream_t stream);

/// The same for a product with an epilogue; false, and nothing queued, where the library does not
/// serve it or took longer than the product and the rest apart.
bool runGemmWithEpilogue(const Gemm &gemm, void *workspace, cudaStream_t stream);

} // namespace shardc::kernels::cuda
