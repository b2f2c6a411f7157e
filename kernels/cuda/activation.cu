// gelu: y = x·Phi(x), by erf or by its tanh approximation. squared_relu: y = max(x, 0)². swiglu and
// geglu: x[T,2F] holds gate then up, y[T,F] = silu(gate)·up or gelu(gate)·up. Backward: dx =
// dy·gelu'(x), dx = dy·2·max(x, 0); dgate = dy·up·s·(1 + gate·(1 - s)), dup = dy·gate·s with s =
// sigmoid(gate); dgate = dy·up·gelu'(gate), dup = dy·gelu(gate). Data are f32, bf16 or f16 each,
// computed in fp32 and rounded once. Mapping: a thread moves one chunk of 8 elements of each
// tensor; gelu and squared_relu flat, the gated ones one block column a row. Limited by memory:
// swiglu 4.0, swiglu_bwd 3.6, gelu 3.2 and gelu_bwd 3.7 of a copy's 4.24 TB/s on an H200, 2026-11
// (gelu by erff).
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/swiglu.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr float kRootHalf = 0.70710678118654752f;
constexpr float kRootTwoOverPi = 0.79788456080286536f;
constexpr float kInvRootTwoPi = 0.39894228040143268f;
constexpr float kCubic = 0.044715f;

/// How gelu is computed. fp32 results use the library's functions. 16-bit ones have (1 + tanh(u))/2
/// as a sigmoid, and those of bf16 the error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26)
/// from the exponential that its slope needs too: below -3.8 that is more than a unit of f16.
enum class Gelu { Erf, Tanh, FastErf, FastTanh };

/// Phi(x), and exp(-x²/2).
__device__ __forceinline__ float fastNormal(float x, float &bell) {
  float z = fabsf(x) * kRootHalf;
  float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
  float sum = 1.061405429f;
  sum = sum * t - 1.453152027f;
  sum = sum * t + 1.421413741f;
  sum = sum * t - 0.284496736f;
  sum = sum * t + 0.254829592f;
  bell = __expf(-z * z);
  float beyond = 0.5f * sum * t * bell;
  return x >= 0.0f ? 1.0f - beyond : beyond;
}

template <Gelu kBy> __device__ __forceinline__ float gelu(float x) {
  if (kBy == Gelu::FastErf) {
    float bell;
    return x * fastNormal(x, bell);
  }
  if (kBy == Gelu::FastTanh)
    return x * sigmoid(2.0f * kRootTwoOverPi * (x + kCubic * x * x * x));
  if (kBy == Gelu::Tanh)
    return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * (x + kCubic * x * x * x)));
  return 0.5f * x * (1.0f + erff(x * kRootHalf));
}

template <Gelu kBy> __device__ __forceinline__ float geluSlope(float x) {
  if (kBy == Gelu::FastErf) {
    float bell, phi = fastNormal(x, bell);
    return phi + x * kInvRootTwoPi * bell;
  }
  if (kBy == Gelu::Erf)
    return 0.5f * (1.0f + erff(x * kRootHalf)) + x * kInvRootTwoPi * expf(-0.5f * x * x);
  float inner = kRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x);
  if (kBy == Gelu::FastTanh) {
    float s = sigmoid(2.0f * kRootTwoOverPi * (x + kCubic * x * x * x));
    return s + 2.0f * x * s * (1.0f - s) * inner;
  }
  float t = tanhf(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

/// Calls use.operator()<kBy>().
template <Mode M, typename Use> __device__ __forceinline__ void byGelu(bool tanhApprox, Use use) {
  if (tanhApprox)
    use.template operator()<kIsNarrow<M> ? Gelu::FastTanh : Gelu::Tanh>();
  else
    use.template operator()<M == Mode::Bf16 ? Gelu::FastErf : Gelu::Erf>();
}

struct GeluOp {
  Data x, y;
  bool tanhApprox;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk];
    load8<M>(x, i, n, v);
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] = gelu<kBy>(v[j]);
    });
    store8<M>(y, i, n, v);
  }
};

void runGelu(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  GeluOp op = {dataOf(x), dataOf(y), call.attrs.tanh_approx};
  launchFlat(call, modeOf({&x, &y}, 0), op, y.numel());
}

struct GeluBwdOp {
  Data dy, x, dx;
  bool tanhApprox;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float d[kChunk], v[kChunk];
    load8<M>(dy, i, n, d);
    load8<M>(x, i, n, v);
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        d[j] *= geluSlope<kBy>(v[j]);
    });
    store8<M>(dx, i, n, d);
  }
};

void runGeluBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  GeluBwdOp op = {dataOf(dy), dataOf(x), dataOf(dx), call.attrs.tanh_approx};
  launchFlat(call, modeOf({&dy, &x, &dx}, 0), op, dx.numel());
}

/// max(x, 0), and NaN of a NaN.
__device__ __forceinline__ float relu(float x) { return x <= 0.0f ? 0.0f : x; }

struct SquaredReluOp {
  Data x, y;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float v[kChunk];
    load8<M>(x, i, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = relu(v[j]) * relu(v[j]);
    store8<M>(y, i, n, v);
  }
};

void runSquaredRelu(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  SquaredReluOp op = {dataOf(x), dataOf(y)};
  launchFlat(call, modeOf({&x, &y}, 0), op, y.numel());
}

struct SquaredReluBwdOp {
  Data dy, x, dx;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float d[kChunk], v[kChunk];
    load8<M>(dy, i, n, d);
    load8<M>(x, i, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      d[j] *= 2.0f * relu(v[j]);
    store8<M>(dx, i, n, d);
  }
};

void runSquaredReluBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  SquaredReluBwdOp op = {dataOf(dy), dataOf(x), dataOf(dx)};
  launchFlat(call, modeOf({&dy, &x, &dx}, 0), op, dx.numel());
}

/// As SwiGlu.
struct GeGlu {
  template <Mode M>
  static __device__ void forward(float (&gate)[kChunk], const float (&up)[kChunk],
                                 bool tanhApprox) {
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        gate[j] = gelu<kBy>(gate[j]) * up[j];
    });
  }
  template <Mode M>
  static __device__ void backward(const float (&d)[kChunk], float (&gate)[kChunk],
                                  float (&up)[kChunk], float (&y)[kChunk], bool tanhApprox) {
    byGelu<M>(tanhApprox, [&]<Gelu kBy>() {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        float activated = gelu<kBy>(gate[j]);
        y[j] = activated * up[j];
        gate[j] = d[j] * up[j] * geluSlope<kBy>(gate[j]);
        up[j] = d[j] * activated;
      }
    });
  }
};

template <typename Gated> struct GatedOp {
  Data x, y;
  int64_t cols; ///< of y
  bool tanhApprox;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float gate[kChunk], up[kChunk];
    load8<M>(x, row * 2 * cols + c, n, gate);
    load8<M>(x, row * 2 * cols + cols + c, n, up);
    Gated::template forward<M>(gate, up, tanhApprox);
    store8<M>(y, row * cols + c, n, gate);
  }
};

template <typename Gated> void runGated(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  GatedOp<Gated> op = {dataOf(x), dataOf(y), y.cols(), call.attrs.tanh_approx};
  launchRows(call, modeOf({&x, &y}, y.cols()), op, y.rows(), y.cols());
}

template <typename Gated> struct GatedBwdOp {
  Data dy, x, dx, y;
  int64_t cols; ///< of dy
  bool hasY, tanhApprox;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float d[kChunk], gate[kChunk], up[kChunk], again[kChunk];
    int64_t offset = row * 2 * cols + c;
    load8<M>(dy, row * cols + c, n, d);
    load8<M>(x, offset, n, gate);
    load8<M>(x, offset + cols, n, up);
    Gated::template backward<M>(d, gate, up, again, tanhApprox);
    store8<M>(dx, offset, n, gate);
    store8<M>(dx, offset + cols, n, up);
    if (hasY)
      store8<M>(y, row * cols + c, n, again);
  }
};

template <typename Gated> void runGatedBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  bool hasY = call.outCount > 1;
  const Tensor &y = hasY ? call.out[1] : dx;
  GatedBwdOp<Gated> op = {
      dataOf(dy), dataOf(x), dataOf(dx), dataOf(y), dy.cols(), hasY, call.attrs.tanh_approx};
  launchRows(call, modeOf({&dy, &x, &dx, &y}, dy.cols()), op, dy.rows(), dy.cols());
}

} // namespace

const Kernel kGelu = {"gelu_cuda", runGelu, acceptsAs<&host::kGelu>};
const Kernel kGeluBwd = {"gelu_bwd_cuda", runGeluBwd, acceptsAs<&host::kGeluBwd>};
const Kernel kSquaredRelu = {"squared_relu_cuda", runSquaredRelu, acceptsAs<&host::kSquaredRelu>};
const Kernel kSquaredReluBwd = {"squared_relu_bwd_cuda", runSquaredReluBwd,
                                acceptsAs<&host::kSquaredReluBwd>};
const Kernel kSwiGlu = {"swiglu_cuda", runGated<SwiGlu>, acceptsAs<&host::kSwiGlu>};
const Kernel kSwiGluBwd = {"swiglu_bwd_cuda", runGatedBwd<SwiGlu>, acceptsAs<&host::kSwiGluBwd>};
const Kernel kGeGlu = {"geglu_cuda", runGated<GeGlu>, acceptsAs<&host::kGeGlu>};
const Kernel kGeGluBwd = {"geglu_bwd_cuda", runGatedBwd<GeGlu>, acceptsAs<&host::kGeGluBwd>};

} // namespace shardc::kernels::cuda
