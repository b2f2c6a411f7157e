// gate and its gradient as kernels/host/Gate.cpp describes them. Mapping: a thread processes one
// chunk of 8 elements. Data are f32, bf16 or f16 each. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

template <bool kSilu> struct Gate {
  template <Mode M> __device__ void apply(float (&v)[2][kChunk]) const {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float g = v[1][j], sigmoid = 1.0f / (1.0f + expf(-g));
      v[0][j] *= kSilu ? g * sigmoid : sigmoid;
    }
  }
};

void runGate(const Call &call) {
  call.attrs.silu ? launchPointwise<2>(call, Gate<true>{})
                  : launchPointwise<2>(call, Gate<false>{});
}

struct GateBwd {
  Data dy, x, g, dx, dg;
  bool isSilu;
  template <Mode M> __device__ void run(int64_t i, int n) const {
    float dys[kChunk], xs[kChunk], gs[kChunk];
    load8<M>(dy, i, n, dys);
    load8<M>(x, i, n, xs);
    load8<M>(g, i, n, gs);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float sigmoid = 1.0f / (1.0f + expf(-gs[j])), rest = 1.0f - sigmoid;
      xs[j] *= dys[j] * sigmoid * (isSilu ? 1.0f + gs[j] * rest : rest);
      dys[j] *= isSilu ? gs[j] * sigmoid : sigmoid;
    }
    store8<M>(dx, i, n, dys);
    store8<M>(dg, i, n, xs);
  }
};

void runGateBwd(const Call &call) {
  const Tensor &dy = call.in[0], &x = call.in[1], &g = call.in[2];
  const GateBwd op = {dataOf(dy),          dataOf(x),           dataOf(g),
                      dataOf(call.out[0]), dataOf(call.out[1]), call.attrs.silu};
  launchFlat(call, modeOf({&dy, &x, &g, &call.out[0], &call.out[1]}, 0), op, dy.numel());
}

} // namespace

SHARDC_KERNEL(Gate, acceptsAs, runGate);
SHARDC_KERNEL(GateBwd, acceptsAs, runGateBwd);

} // namespace shardc::kernels::cuda
