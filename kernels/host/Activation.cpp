// gelu: y = x·Phi(x), by erf or by its tanh approximation. swiglu: x[T,2F] holds gate then up,
// y[T,F] = silu(gate)·up. Operands and results are f32 or bf16 each, computed in fp32 and rounded
// once. Limited by exp, erf and tanh.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Gelu.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

const char *acceptsGelu(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  SHARDC_REQUIRE(isData(call.in[0]) && isData(call.out[0]), "gelu takes f32 and bf16");
  SHARDC_REQUIRE(call.in[0].numel() == call.out[0].numel(), "x and y differ in size");
  return nullptr;
}

void runGelu(const Call &call) {
  float buffer[kBlock], y[kBlock];
  auto function = geluOf(call.attrs);
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    const float *x = readF32(call.in[0], begin, n, buffer);
    for (int64_t i = 0; i < n; ++i)
      y[i] = function(x[i]);
    writeF32(call.out[0], begin, n, y);
  }
}

const char *acceptsGeluBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 1}));
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  SHARDC_REQUIRE(isData(dy) && isData(x) && isData(dx), "gelu_bwd takes f32 and bf16");
  SHARDC_REQUIRE(dy.numel() == x.numel() && dx.numel() == x.numel(), "dy, x and dx differ in size");
  return nullptr;
}

void runGeluBwd(const Call &call) {
  float dyBuffer[kBlock], xBuffer[kBlock], dx[kBlock];
  auto slope = geluSlopeOf(call.attrs);
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    const float *dy = readF32(call.in[0], begin, n, dyBuffer);
    const float *x = readF32(call.in[1], begin, n, xBuffer);
    for (int64_t i = 0; i < n; ++i)
      dx[i] = dy[i] * slope(x[i]);
    writeF32(call.out[0], begin, n, dx);
  }
}

const char *acceptsSwiGlu(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {1, 1, 1, 1}));
  const Tensor &x = call.in[0], &y = call.out[0];
  SHARDC_REQUIRE(isData(x) && isData(y), "swiglu takes f32 and bf16");
  SHARDC_REQUIRE(x.cols() == 2 * y.cols() && x.rows() == y.rows(),
                 "a row of x is not a gate and an up of y's length");
  return nullptr;
}

void runSwiGlu(const Call &call) {
  float gateBuffer[kBlock], upBuffer[kBlock], y[kBlock];
  int64_t rows = call.out[0].rows(), cols = call.out[0].cols();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * 2 * cols + begin;
      const float *gate = readF32(call.in[0], offset, n, gateBuffer);
      const float *up = readF32(call.in[0], offset + cols, n, upBuffer);
      for (int64_t i = 0; i < n; ++i)
        y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
      writeF32(call.out[0], row * cols + begin, n, y);
    }
}

const char *acceptsSwiGluBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 2, 1, 2}));
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  SHARDC_REQUIRE(isData(dy) && isData(x) && isData(dx), "swiglu_bwd takes f32 and bf16");
  SHARDC_REQUIRE(x.cols() == 2 * dy.cols() && x.rows() == dy.rows(),
                 "a row of x is not a gate and an up of dy's length");
  SHARDC_REQUIRE(sameMatrix(x, dx), "x and dx differ in shape");
  if (call.outCount > 1)
    SHARDC_REQUIRE(isData(call.out[1]) && sameMatrix(dy, call.out[1]),
                   "y does not have the shape of dy");
  return nullptr;
}

void runSwiGluBwd(const Call &call) {
  float dyBuffer[kBlock], gateBuffer[kBlock], upBuffer[kBlock];
  float dGate[kBlock], dUp[kBlock], y[kBlock];
  int64_t rows = call.in[0].rows(), cols = call.in[0].cols();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * 2 * cols + begin;
      const float *dy = readF32(call.in[0], row * cols + begin, n, dyBuffer);
      const float *gate = readF32(call.in[1], offset, n, gateBuffer);
      const float *up = readF32(call.in[1], offset + cols, n, upBuffer);
      for (int64_t i = 0; i < n; ++i) {
        float sigmoid = 1.0f / (1.0f + std::exp(-gate[i]));
        dGate[i] = dy[i] * up[i] * sigmoid * (1.0f + gate[i] * (1.0f - sigmoid));
        dUp[i] = dy[i] * gate[i] * sigmoid;
        y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
      }
      writeF32(call.out[0], offset, n, dGate);
      writeF32(call.out[0], offset + cols, n, dUp);
      if (call.outCount > 1)
        writeF32(call.out[1], row * cols + begin, n, y);
    }
}

} // namespace

const Kernel kGelu = {"gelu_host", runGelu, acceptsGelu};
const Kernel kGeluBwd = {"gelu_bwd_host", runGeluBwd, acceptsGeluBwd};
const Kernel kSwiGlu = {"swiglu_host", runSwiGlu, acceptsSwiGlu};
const Kernel kSwiGluBwd = {"swiglu_bwd_host", runSwiGluBwd, acceptsSwiGluBwd};

} // namespace shardc::kernels::host
