// Matrix products by cuBLASLt: row-major operands, fp32 accumulation, optional bias per row,
// accumulation into the result, and GELU or its gradient as an epilogue. The algorithm is the first
// deterministic one of the library's heuristic, unless tuneGemm() has chosen another one.
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

/// Workspace in bytes for every product: NVIDIA's recommendation for Hopper, plus padding for the
/// alignment to 256 bytes that cuBLASLt requires.
inline constexpr int64_t kGemmWorkspace = (int64_t{32} << 20) + 256;

/// Epilogue of a product besides bias and accumulation. GELU uses the tanh approximation.
enum class Epilogue : uint8_t {
  Plain,
  Gelu,    ///< other[m,n] = the product, c = gelu of it
  GeluBwd, ///< c = product·gelu'(other[m,n])
};

/// c[m,n] = op(a)[m,k]·op(b)[k,n] + bias[n], added to c if `accumulate`. Unless scaled, both
/// operands have one type; c may be fp32 with 16-bit operands; the bias has c's type. Rows are
/// contiguous.
struct Gemm {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void *c = nullptr;
  void *other = nullptr; ///< the epilogue's second operand or result, in c's type
  int64_t m = 0, n = 0, k = 0;
  bool transA = false, transB = false, accumulate = false;
  DType in = DType::F32, out = DType::F32;
  /// The operands are 8-bit numbers, each with its own type (`in` is that of a), multiplied by
  /// scales in device memory. b is transposed, a is not.
  bool isScaled = false;
  DType inB = DType::F32;
  const float *scaleA = nullptr, *scaleB = nullptr;
  /// Shape of the blocks, in rows along k, that share a scale. Empty: one scale per operand.
  std::optional<ScaleBlocks> blocksA, blocksB;
  bool fastAccum = false; ///< accumulation with reduced precision is allowed
  Epilogue epilogue = Epilogue::Plain;
  /// If set, replaces `accumulate`: c = alpha·product + beta·added, all in c's type. Otherwise
  /// alpha is 1.
  const void *added = nullptr;
  float alpha = 1.0f, beta = 0.0f;
  /// Batch size: number of consecutive matrices of each operand, of c and of `added`.
  int64_t batches = 1;
  /// Distance in elements between rows, and between matrices of a batch. 0: rows and matrices are
  /// contiguous. Other values select parts of larger matrices, which only library kernels support.
  struct Steps {
    int64_t row = 0, matrix = 0;
  };
  Steps stepsA, stepsB, stepsC;
  bool tf32 = false;           ///< fp32 operands may be rounded to TF32
  int32_t multiprocessors = 0; ///< SMs that it may use; 0: all
};

/// Length of a row of scales of square blocks in cuBLASLt's layout: rows are 16-byte aligned.
inline int64_t strideOfSquares(int64_t k) { return (k + 511) / 512 * 4; }

/// Makes a context's cuBLASLt state: handles, known products and chosen algorithms.
std::shared_ptr<GemmLibrary> makeGemmLibrary();

/// Loads the library on the device, so that the first product does not wait for it.
void prepareGemm(Context &context, int device);

/// Chooses the algorithm of such products by timing the library's candidates. Does nothing if the
/// choice is known, or if another rank times the product (shareTuning). Overwrites the operands
/// with random numbers. For a product with an epilogue, the fused candidates compete with `apart`,
/// which enqueues a plain product and a separate kernel.
void tuneGemm(const Gemm &gemm, void *workspace, Queue &queue,
              const std::function<void()> &apart = nullptr);

/// Enqueues the product; `workspace` has kGemmWorkspace bytes. A hand-written kernel handles
/// extents that the library does not support. Failures are reported to the queue.
void runGemm(const Gemm &gemm, void *workspace, Queue &queue);

/// Like runGemm(), for a product with an epilogue. Returns false and enqueues nothing if the
/// library does not support the epilogue, or if two separate kernels are faster.
bool runGemmWithEpilogue(const Gemm &gemm, void *workspace, Queue &queue);

} // namespace shardc::kernels::cuda
