// c[M,N] (+)= op(a)·op(b) + bias[N]: leading dimensions of a, b and c are rows. Operands and result
// are f32 or bf16 each, sums fp32. Factors of one type go to cuBLASLt as they lie, with bias and
// accumulation in its epilogue; where types are mixed, bf16 factors are widened and a bf16 result
// rounded in passes of their own, so that the product is fp32 as on the host.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {
namespace {

/// How the call's types are served.
struct Route {
  bool widenA = false, widenB = false;
  bool viaFloats = false; ///< the product is fp32 scratch first

  explicit Route(const Call &call) {
    const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
    if (a.dtype != b.dtype) {
      widenA = a.dtype == DType::BF16;
      widenB = b.dtype == DType::BF16;
    }
    bool narrowResult = c.dtype == DType::BF16 && (a.dtype == DType::F32 || b.dtype == DType::F32);
    bool foreignBias = call.inCount > 2 && call.in[2].dtype != c.dtype;
    viaFloats = narrowResult || foreignBias;
  }
};

struct Buffers {
  float *a = nullptr, *b = nullptr, *product = nullptr;
  std::byte *gemm;

  Buffers(const Call &call, Scratch &scratch) {
    Route route(call);
    if (route.widenA)
      a = scratch.take<float>(call.in[0].numel());
    if (route.widenB)
      b = scratch.take<float>(call.in[1].numel());
    if (route.viaFloats)
      product = scratch.take<float>(call.out[0].numel());
    gemm = scratch.take<std::byte>(kGemmWorkspace);
  }
};

/// The product inside of the call.
Gemm gemmOf(const Call &call, const Buffers &buffers) {
  Route route(call);
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const Tensor *bias = call.inCount > 2 ? &call.in[2] : nullptr;
  Gemm gemm;
  gemm.a = route.widenA ? buffers.a : a.data;
  gemm.b = route.widenB ? buffers.b : b.data;
  gemm.transA = call.attrs.trans_a, gemm.transB = call.attrs.trans_b;
  gemm.m = c.rows(), gemm.n = c.cols();
  gemm.k = gemm.transA ? a.rows() : a.cols();
  gemm.in = a.dtype == b.dtype ? a.dtype : DType::F32;
  gemm.out = route.viaFloats ? DType::F32 : c.dtype;
  gemm.c = route.viaFloats ? buffers.product : c.data;
  gemm.bias = bias && !route.viaFloats ? bias->data : nullptr;
  gemm.accumulate = c.accumulate && !route.viaFloats;
  return gemm;
}

void runMatMul(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  Route route(call);
  auto stream = static_cast<cudaStream_t>(call.stream);
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const Tensor *bias = call.inCount > 2 ? &call.in[2] : nullptr;
  if (route.widenA)
    launchToFloats(a, 0, a.numel(), buffers.a, stream);
  if (route.widenB)
    launchToFloats(b, 0, b.numel(), buffers.b, stream);
  runGemm(gemmOf(call, buffers), buffers.gemm, stream);
  if (route.viaFloats)
    launchFinishProduct(buffers.product, bias, c, stream);
}

} // namespace

void tuneMatMul(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  tuneGemm(gemmOf(call, buffers), buffers.gemm, static_cast<cudaStream_t>(call.stream));
}

const Kernel kMatMul = {"matmul_cublaslt", runMatMul, acceptsAs<&host::kMatMul>,
                        workspaceOf<Buffers>};

} // namespace shardc::kernels::cuda
