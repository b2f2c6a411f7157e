// c[M,N] (+)= ascale·bscale·(a[M,K]·b[N,K]ᵀ) + bias[N]: factors e4m3 or e5m2, not both e5m2, whose
// rows run along the sum as Hopper's tensor cores want them; c is f32, bf16 or f16. cuBLASLt takes
// the scales by address and adds in fp32; with `fast_accum`, products of a step of the tensor cores
// are kept in the 14 bits that they have. A bias of c's type goes into the epilogue, unless both
// are f32, which the library does not have: then a kernel adds it.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {
namespace {

/// Whether the product is fp32 scratch first, and a kernel adds the bias.
bool isViaFloats(const Call &call) {
  return call.inCount > 4 &&
         (call.in[4].dtype != call.out[0].dtype || call.out[0].dtype == DType::F32);
}

struct Buffers {
  float *product = nullptr;
  std::byte *gemm;

  Buffers(const Call &call, Scratch &scratch) {
    if (isViaFloats(call))
      product = scratch.take<float>(call.out[0].numel());
    gemm = scratch.take<std::byte>(kGemmWorkspace);
  }
};

Gemm gemmOf(const Call &call, const Buffers &buffers) {
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  Gemm gemm;
  gemm.a = a.data, gemm.b = b.data;
  gemm.scaleA = static_cast<const float *>(call.in[2].data);
  gemm.scaleB = static_cast<const float *>(call.in[3].data);
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

void run(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  runGemm(gemmOf(call, buffers), buffers.gemm, queueOf(call));
  if (buffers.product)
    launchFinishProduct(buffers.product, &call.in[4], call.out[0], queueOf(call));
}

} // namespace

void tuneMatMulScaled(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  tuneGemm(gemmOf(call, buffers), buffers.gemm, queueOf(call));
}

const Kernel kMatMulScaled = {"matmul_scaled_cublaslt", run, acceptsAs<&host::kMatMulScaled>,
                              workspaceOf<Buffers>};

} // namespace shardc::kernels::cuda
