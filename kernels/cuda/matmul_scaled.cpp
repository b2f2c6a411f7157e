// c[M,N] (+)= (ascale·a[M,K])·(bscale·b[N,K])ᵀ + bias[N]. Operands are e4m3 or e5m2, but not both
// e5m2; both are contiguous along K, as Hopper's tensor cores require. c is f32, bf16 or f16.
// cuBLASLt reads the scales from device memory and accumulates in fp32; with `fast_accum`, each
// step of the tensor cores accumulates with 14 bits of mantissa. A bias of c's type is part of the
// epilogue, except if c is f32 or the scales belong to blocks, which the library does not support;
// then a separate kernel adds it. Scales of square blocks are copied if their rows are not aligned
// to 16 bytes.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {
namespace {

/// Whether the product is written to fp32 scratch first, and a separate kernel adds the bias.
bool isViaFloats(const Call &call) {
  return call.inCount > 4 && (call.in[4].dtype != call.out[0].dtype ||
                              call.out[0].dtype == DType::F32 || call.in[2].rank == 2);
}

/// The shape of the blocks of an operand that share a scale; empty if the operand has one scale.
std::optional<ScaleBlocks> blocksOf(const Call &call, int operand) {
  const Tensor &matrix = call.in[operand], &scale = call.in[operand + 2];
  if (scale.rank != 2)
    return std::nullopt;
  return shardc::blocksOf(scale.dtype == DType::U8, {scale.rows(), scale.cols()},
                          {matrix.rows(), matrix.cols()});
}

/// Whether the library cannot read the operand's scales in place.
bool needsCopy(const Call &call, int operand) {
  return blocksOf(call, operand) == ScaleBlocks::Squares128 &&
         call.in[operand + 2].cols() != strideOfSquares(call.in[operand].cols());
}

struct Buffers {
  float *product = nullptr;
  float *scales[2] = {}; ///< aligned copies
  std::byte *gemm;

  Buffers(const Call &call, Scratch &scratch) {
    if (isViaFloats(call))
      product = scratch.take<float>(call.out[0].numel());
    for (int operand = 0; operand < 2; ++operand)
      if (needsCopy(call, operand))
        scales[operand] = scratch.take<float>(call.in[operand + 2].rows() *
                                              strideOfSquares(call.in[operand].cols()));
    gemm = scratch.take<std::byte>(kGemmWorkspace);
  }
};

Gemm gemmOf(const Call &call, const Buffers &buffers) {
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  Gemm gemm;
  gemm.a = a.data, gemm.b = b.data;
  auto scalesOf = [&](int operand) {
    return buffers.scales[operand] ? buffers.scales[operand]
                                   : static_cast<const float *>(call.in[operand + 2].data);
  };
  gemm.scaleA = scalesOf(0), gemm.scaleB = scalesOf(1);
  gemm.blocksA = blocksOf(call, 0), gemm.blocksB = blocksOf(call, 1);
  gemm.transB = true;
  gemm.m = c.rows(), gemm.n = c.cols(), gemm.k = a.cols();
  gemm.in = a.dtype, gemm.inB = b.dtype;
  gemm.isScaled = true, gemm.fastAccum = call.attrs.fast_accum;
  gemm.out = buffers.product ? DType::F32 : c.dtype;
  gemm.c = buffers.product ? buffers.product : c.data;
  gemm.bias = call.inCount > 4 && !buffers.product ? call.in[4].data : nullptr;
  gemm.accumulate = c.accumulate && !buffers.product;
  gemm.multiprocessors = call.multiprocessors;
  return gemm;
}

/// Copies scales of 128 by 128 blocks to rows with the stride that cuBLAS requires.
void alignScales(const Call &call, const Buffers &buffers) {
  Queue &queue = queueOf(call);
  for (int operand = 0; operand < 2; ++operand) {
    const Tensor &scale = call.in[operand + 2];
    size_t row = static_cast<size_t>(scale.cols()) * sizeof(float);
    if (!buffers.scales[operand])
      continue;
    size_t stride = static_cast<size_t>(strideOfSquares(call.in[operand].cols())) * sizeof(float);
    static_cast<void>(cudaMemcpy2DAsync(buffers.scales[operand], stride, scale.data, row, row,
                                        static_cast<size_t>(scale.rows()), cudaMemcpyDeviceToDevice,
                                        queue));
    queue.noteOther();
  }
}

void run(const Call &call, const Buffers &buffers) {
  alignScales(call, buffers);
  runGemm(gemmOf(call, buffers), buffers.gemm, queueOf(call));
  if (buffers.product)
    launchFinishProduct(buffers.product, &call.in[4], call.out[0], queueOf(call));
}

const char *accepts(const Call &call) {
  if (const char *reason = host::kMatMulScaled.accepts(call))
    return reason;
  return call.in[2].dtype == DType::U8 ? "GPUs have no kernel for scales of e8m0 yet" : nullptr;
}

void tuneProduct(const Call &call, const Buffers &buffers) {
  tuneGemm(gemmOf(call, buffers), buffers.gemm, queueOf(call));
}

} // namespace

void tuneMatMulScaled(const Call &call) { runWithBuffers<tuneProduct>(call); }

const Kernel kMatMulScaled = kernelOf("matmul_scaled_cublaslt", accepts, withBuffers<run>);

} // namespace shardc::kernels::cuda
