// gate: y = x·sigmoid(g), or x·silu(g) with attribute silu. gate_bwd: dx = dy times that factor, dg
// = dy·x times its slope. Data are f32, bf16 or f16 each, computed in fp32 and rounded once.
// Limited by exp.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

/// The factor of a gate, and its slope.
struct Opening {
  float factor, slope;
};

Opening openingOf(float g, bool isSilu) {
  const float sigmoid = 1.0f / (1.0f + std::exp(-g));
  if (isSilu)
    return {g * sigmoid, sigmoid * (1.0f + g * (1.0f - sigmoid))};
  return {sigmoid, sigmoid * (1.0f - sigmoid)};
}

void runGate(const Call &call) {
  float xs[kBlock], gs[kBlock], y[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    const float *x = readF32(call.in[0], begin, n, xs), *g = readF32(call.in[1], begin, n, gs);
    for (int64_t i = 0; i < n; ++i)
      y[i] = x[i] * openingOf(g[i], call.attrs.silu).factor;
    writeF32(call.out[0], begin, n, y);
  }
}

void runGateBwd(const Call &call) {
  float dys[kBlock], xs[kBlock], gs[kBlock], dx[kBlock], dg[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    const float *dy = readF32(call.in[0], begin, n, dys), *x = readF32(call.in[1], begin, n, xs),
                *g = readF32(call.in[2], begin, n, gs);
    for (int64_t i = 0; i < n; ++i) {
      const Opening opening = openingOf(g[i], call.attrs.silu);
      dx[i] = dy[i] * opening.factor, dg[i] = dy[i] * x[i] * opening.slope;
    }
    writeF32(call.out[0], begin, n, dx);
    writeF32(call.out[1], begin, n, dg);
  }
}

} // namespace

const Kernel kGate = kernelOf<OpKind::Gate>(runGate);
const Kernel kGateBwd = kernelOf<OpKind::GateBwd>(runGateBwd);

} // namespace shardc::kernels::host
