// c[M,N] (+)= op(a)·op(b) + bias[N]. The leading dimensions of a, b and c are flattened to rows.
// Operands and result are f32, bf16 or f16 each; sums are fp32. If a and b have one type, cuBLASLt
// multiplies them directly, with bias and accumulation in its epilogue. If types are mixed,
// separate kernels widen 16-bit operands and round a narrow result, so that the product is fp32 as
// on the host. GELU and its gradient are part of the epilogue if all types are bf16, or all f16,
// and the library supports it; otherwise gelu and gelu_bwd follow the product. The row sums of a
// bias gradient are never in the epilogue: the library (13.1) computes them in a kernel after the
// product, which took 4.8 ms where reduce_rows takes 3.7 ms.
//
// H200, 2026-11, in TFLOP/s (8192 by 8192 by 8192 in bf16 reaches 801): 4096 by 14336 by 4096 with
// bias 784, with GELU 716, with its gradient 709; GPT-2's 16384 by 3072 by 768: 639, 495 and 478;
// fp32 49.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Tuning.h"

namespace shardc::kernels::cuda {
namespace {

/// Which conversions the types of a call need.
struct Route {
  bool widenA = false, widenB = false;
  bool viaFloats = false; ///< the product is written to fp32 scratch first

  explicit Route(const Call &call) {
    const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
    if (a.dtype != b.dtype) {
      widenA = a.dtype != DType::F32;
      widenB = b.dtype != DType::F32;
    }
    DType operandType = a.dtype == b.dtype ? a.dtype : DType::F32;
    bool narrowResult = c.dtype != DType::F32 && c.dtype != operandType;
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

/// The matrix product of the call, on the converted operands, if any.
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
  gemm.multiprocessors = call.multiprocessors;
  return gemm;
}

/// Whether GELU or its gradient can be in the product's epilogue: the types are all bf16 or all
/// f16, and GELU is the tanh approximation, the only one that the library has.
bool canJoin(const Call &call) {
  bool all = call.attrs.tanh_approx;
  DType type = call.in[0].dtype;
  all &= type != DType::F32;
  for (int i = 0; i < call.inCount; ++i)
    all &= call.in[i].dtype == type;
  for (int i = 0; i < call.outCount; ++i)
    all &= call.out[i].dtype == type;
  return all;
}

/// If a and b have different types, they are widened to fp32 first. If the result has a type that
/// cuBLAS does not write for these types, or the bias has another type than the result, the product
/// is made in fp32 and converted last.
void runProduct(const Call &call, const Buffers &buffers) {
  Route route(call);
  Queue &queue = queueOf(call);
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  const Tensor *bias = call.inCount > 2 ? &call.in[2] : nullptr;
  if (route.widenA)
    launchToFloats(a, 0, a.numel(), buffers.a, queue);
  if (route.widenB)
    launchToFloats(b, 0, b.numel(), buffers.b, queue);
  runGemm(gemmOf(call, buffers), buffers.gemm, queue);
  if (route.viaFloats)
    launchFinishProduct(buffers.product, bias, c, queue);
}

/// A copy of the call with these operands and results.
Call partOf(const Call &call, std::initializer_list<Tensor> in, std::initializer_list<Tensor> out) {
  Call part = call;
  part.inCount = part.outCount = 0;
  for (const Tensor &operand : in)
    part.in[part.inCount++] = operand;
  for (const Tensor &result : out)
    part.out[part.outCount++] = result;
  return part;
}

/// The product that accumulates into its result. The result shares the buffer of the operand
/// `more`.
Call accumulating(const Call &call) {
  const Tensor *in = call.in;
  Call product = call.inCount > 3 ? partOf(call, {in[0], in[1], in[3]}, {call.out[0]})
                                  : partOf(call, {in[0], in[1]}, {call.out[0]});
  product.out[0].accumulate = true;
  return product;
}

struct AddBuffers : Buffers {
  AddBuffers(const Call &call, Scratch &scratch) : Buffers(accumulating(call), scratch) {}
};

/// A product and the op that its epilogue may include, as two separate calls and as one product.
struct Joined {
  Epilogue epilogue;
  const Kernel &rest;
  Call product, other;

  Joined(const Call &call, Epilogue what)
      : epilogue(what), rest(what == Epilogue::Gelu ? kGelu : kGeluBwd) {
    const Tensor *in = call.in, *out = call.out;
    if (what == Epilogue::Gelu) { // the product's result is x
      product = call.inCount > 2 ? partOf(call, {in[0], in[1], in[2]}, {out[1]})
                                 : partOf(call, {in[0], in[1]}, {out[1]});
      other = partOf(call, {out[1]}, {out[0]});
    } else { // the product writes to dx first
      product = partOf(call, {in[0], in[1]}, {out[0]});
      other = partOf(call, {out[0], in[2]}, {out[0]});
    }
  }

  /// The product with its epilogue.
  Gemm gemm(const Call &call, const Buffers &buffers) const {
    Gemm gemm = gemmOf(product, buffers);
    gemm.epilogue = epilogue;
    gemm.c = call.out[0].data;
    gemm.other = epilogue == Epilogue::GeluBwd ? call.in[2].data : call.out[1].data;
    return gemm;
  }
};

template <Epilogue kEpilogue> struct JoinedBuffers : Buffers {
  JoinedBuffers(const Call &call, Scratch &scratch)
      : Buffers(Joined(call, kEpilogue).product, scratch) {}
};

void runMatMulAdd(const Call &call, const AddBuffers &buffers) {
  runProduct(accumulating(call), buffers);
}

void runApart(const Joined &joined, const Buffers &buffers) {
  runProduct(joined.product, buffers);
  joined.rest.run(joined.other);
}

template <Epilogue kEpilogue> void run(const Call &call, const JoinedBuffers<kEpilogue> &buffers) {
  Joined joined(call, kEpilogue);
  Queue &queue = queueOf(call);
  if (!canJoin(call) || !runGemmWithEpilogue(joined.gemm(call, buffers), buffers.gemm, queue))
    runApart(joined, buffers);
}

template <Epilogue kEpilogue>
void tuneJoined(const Call &call, const JoinedBuffers<kEpilogue> &buffers) {
  Joined joined(call, kEpilogue);
  Queue &queue = queueOf(call);
  if (canJoin(call))
    tuneGemm(joined.gemm(call, buffers), buffers.gemm, queue, [&] { runApart(joined, buffers); });
  else
    tuneGemm(gemmOf(joined.product, buffers), buffers.gemm, queue);
}

void tuneProduct(const Call &call, const Buffers &buffers) {
  tuneGemm(gemmOf(call, buffers), buffers.gemm, queueOf(call));
}

} // namespace

void tuneMatMul(const Call &call) { runWithBuffers<tuneProduct>(call); }
void tuneMatMulAdd(const Call &call) { tuneMatMul(accumulating(call)); }
void tuneMatMulGelu(const Call &call) { runWithBuffers<tuneJoined<Epilogue::Gelu>>(call); }
void tuneMatMulGeluBwd(const Call &call) { runWithBuffers<tuneJoined<Epilogue::GeluBwd>>(call); }

const Kernel kMatMul =
    kernelOf("matmul_cublaslt", acceptsAs<&host::kMatMul>, withBuffers<runProduct>);
const Kernel kMatMulAdd =
    kernelOf("matmul_add_cublaslt", acceptsAs<&host::kMatMulAdd>, withBuffers<runMatMulAdd>);
const Kernel kMatMulGelu = kernelOf("matmul_gelu_cublaslt", acceptsAs<&host::kMatMulGelu>,
                                    withBuffers<run<Epilogue::Gelu>>);
const Kernel kMatMulGeluBwd = kernelOf("matmul_gelu_bwd_cublaslt", acceptsAs<&host::kMatMulGeluBwd>,
                                       withBuffers<run<Epilogue::GeluBwd>>);

} // namespace shardc::kernels::cuda
