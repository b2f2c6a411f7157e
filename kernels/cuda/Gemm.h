// Matrix products through cuBLASLt: row-major factors and fp32 accumulation. Supports a bias on
// each row, accumulation into the result, and GELU or its gradient in the epilogue. The library's
// heuristic selects the algorithm among those that are deterministic.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/cuda/Queue.h"
#include "runtime/base/DType.h"
#include "runtime/base/Float8.h"

namespace shardc::kernels::cuda {

/// Scratch that every product may use: NVIDIA's recommendation for Hopper, plus room to align it to
/// 256 bytes, which cuBLASLt requires.
inline constexpr int64_t kGemmWorkspace = (int64_t{32} << 20) + 256;

/// Operations of a product's epilogue in addition to bias and accumulation. GELU is by tanh.
enum class Epilogue : uint8_t {
  Plain,
  Gelu,    ///< other[m,n] = the product, c = gelu of it
  GeluBwd, ///< c = product·gelu'(other[m,n])
};

/// c[m,n] = op(a)[m,k]·op(b)[k,n] + bias[n], added to c if `accumulate`. The factors have one type
/// unless they are scaled; c may be fp32 with factors of 16 bits; the bias has c's type. Rows are
/// contiguous.
struct Gemm {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void *c = nullptr;
  void *other = nullptr; ///< operand of the epilogue, in c's type
  int64_t m = 0, n = 0, k = 0;
  bool transA = false, transB = false, accumulate = false;
  DType in = DType::F32, out = DType::F32;
  /// Factors of 8 bits, each of a type of its own (`in` is a's) and with scales in device memory,
  /// by which its numbers are multiplied. a is not transposed, b is.
  bool isScaled = false;
  DType inB = DType::F32;
  const float *scaleA = nullptr, *scaleB = nullptr;
  /// What of a factor, in rows along k, has a scale; nothing: all of it.
  std::optional<ScaleBlocks> blocksA, blocksB;
  bool fastAccum = false; ///< products may be added with fewer bits
  Epilogue epilogue = Epilogue::Plain;
  /// If there is one, in place of `accumulate`: c = alpha·product + beta·added, all in c's type;
  /// without it alpha is 1.
  const void *added = nullptr;
  float alpha = 1.0f, beta = 0.0f;
  /// Matrices of each factor, and of c and `added`, which lie one behind the other.
  int64_t batches = 1;
  bool tf32 = false; ///< factors of fp32 may be rounded to TF32
  int32_t multiprocessors = 0; ///< the number that it may use; 0: all
};

/// Scales of squares as cuBLASLt reads them: rows of scales begin at multiples of 16 bytes.
inline int64_t strideOfSquares(int64_t k) { return (k + 511) / 512 * 4; }

/// A context's part of cuBLASLt: its handles, the products that it knows, the algorithms chosen.
std::shared_ptr<GemmLibrary> makeGemmLibrary();

/// Loads the library on the device, so that the first product does not wait for it.
void prepareGemm(Context &context, int device);

/// Chooses the algorithm of such products by timing the library's candidates, unless it is known or
/// runs must be deterministic everywhere. Fills the factors with random numbers. A product with an
/// epilogue is compared with `apart`: a plain product and a kernel.
void tuneGemm(const Gemm &gemm, void *workspace, Queue &queue,
              const std::function<void()> &apart = nullptr);

/// Enqueues the product; `workspace` has kGemmWorkspace bytes. A plain kernel computes extents that
/// the library does not support. Failures are reported to the queue.
void runGemm(const Gemm &gemm, void *workspace, Queue &queue);

/// The same for a product with an epilogue. Returns false, and enqueues nothing, if the library
/// does not support it or the two separate steps are faster.
bool runGemmWithEpilogue(const Gemm &gemm, void *workspace, Queue &queue);

} // namespace shardc::kernels::cuda
