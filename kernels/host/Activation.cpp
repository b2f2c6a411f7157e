// gelu: y = x·Phi(x), by erf or by the tanh approximation. squared_relu: y = max(x, 0)². Gated
// activations, where a row of x[T,2F] holds gate, then up, and y is [T,F]: swiglu is silu(gate)·up,
// geglu is gelu(gate)·up, and quick_geglu is g·sigmoid(1.702·g)·(u + offset), where g is gate with
// an upper clamp and u is up clamped on both sides. weighted_swiglu and weighted_quick_geglu
// multiply row r of y by weights[r], weights[T,1]; with counts (kernels/host/RowGroups.h), they
// neither read nor write rows that are not valid. Sums for gradients of weights are fp64. Operands
// and results are f32, bf16 or f16 each, computed in fp32 and rounded once. Limited by exp, erf and
// tanh; squared_relu by memory.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Gelu.h"
#include "kernels/host/RowGroups.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

/// y = function(x).
template <typename Function> void runPointwise(const Call &call, Function function) {
  float buffer[kBlock], y[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    const float *x = readF32(call.in[0], begin, n, buffer);
    for (int64_t i = 0; i < n; ++i)
      y[i] = function(x[i]);
    writeF32(call.out[0], begin, n, y);
  }
}

/// dx = dy·slope(x).
template <typename Slope> void runPointwiseBwd(const Call &call, Slope slope) {
  float dyBuffer[kBlock], xBuffer[kBlock], dx[kBlock];
  for (int64_t begin = 0, numel = call.out[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    const float *dy = readF32(call.in[0], begin, n, dyBuffer);
    const float *x = readF32(call.in[1], begin, n, xBuffer);
    for (int64_t i = 0; i < n; ++i)
      dx[i] = dy[i] * slope(x[i]);
    writeF32(call.out[0], begin, n, dx);
  }
}

void runGelu(const Call &call) { runPointwise(call, geluOf(call.attrs)); }
void runGeluBwd(const Call &call) { runPointwiseBwd(call, geluSlopeOf(call.attrs)); }

/// max(x, 0); NaN for NaN.
float relu(float x) { return x <= 0.0f ? 0.0f : x; }
float squaredRelu(float x) { return relu(x) * relu(x); }
float squaredReluSlope(float x) { return 2.0f * relu(x); }

void runSquaredRelu(const Call &call) { runPointwise(call, squaredRelu); }
void runSquaredReluBwd(const Call &call) { runPointwiseBwd(call, squaredReluSlope); }

/// y = combine(gate, up) for each valid row, where combineOf(row) returns combine.
template <typename CombineOf>
void runGatedRows(const Call &call, const Tensor *counts, CombineOf combineOf) {
  float gateBuffer[kBlock], upBuffer[kBlock], y[kBlock];
  int64_t rows = call.out[0].rows(), cols = call.out[0].cols();
  forRowsThere(counts, rows, [&](int64_t row) {
    auto combine = combineOf(row);
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * 2 * cols + begin;
      const float *gate = readF32(call.in[0], offset, n, gateBuffer);
      const float *up = readF32(call.in[0], offset + cols, n, upBuffer);
      for (int64_t i = 0; i < n; ++i)
        y[i] = combine(gate[i], up[i]);
      writeF32(call.out[0], row * cols + begin, n, y);
    }
  });
}

template <typename Combine> void runGated(const Call &call, Combine combine) {
  runGatedRows(call, nullptr, [&](int64_t) { return combine; });
}

/// The gradients of one element, and the recomputed activation.
struct GatedGradient {
  float dGate, dUp, y;
};

/// A block of a row while its gradients are computed.
struct GatedBlock {
  float dyBuffer[kBlock], gateBuffer[kBlock], upBuffer[kBlock];
  float dGate[kBlock], dUp[kBlock], y[kBlock];
  const float *dy = nullptr;

  /// Reads n elements and applies gradient(dy, gate, up) to each, which also returns the activation
  /// y.
  template <typename Gradient>
  void run(const Call &call, int64_t row, int64_t begin, int64_t n, Gradient gradient) {
    int64_t cols = call.in[0].cols(), offset = row * 2 * cols + begin;
    dy = readF32(call.in[0], row * cols + begin, n, dyBuffer);
    const float *gate = readF32(call.in[1], offset, n, gateBuffer);
    const float *up = readF32(call.in[1], offset + cols, n, upBuffer);
    for (int64_t i = 0; i < n; ++i) {
      GatedGradient g = gradient(dy[i], gate[i], up[i]);
      dGate[i] = g.dGate, dUp[i] = g.dUp, y[i] = g.y;
    }
    writeF32(call.out[0], offset, n, dGate);
    writeF32(call.out[0], offset + cols, n, dUp);
  }
};

/// The second result, if any, is the activation itself, computed again.
template <typename Gradient> void runGatedBwd(const Call &call, Gradient gradient) {
  GatedBlock block;
  int64_t rows = call.in[0].rows(), cols = call.in[0].cols();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      block.run(call, row, begin, n, gradient);
      if (call.outCount > 1)
        writeF32(call.out[1], row * cols + begin, n, block.y);
    }
}

float swiglu(float gate, float up) { return gate / (1.0f + std::exp(-gate)) * up; }

GatedGradient swigluGradient(float dy, float gate, float up) {
  float sigmoid = 1.0f / (1.0f + std::exp(-gate));
  return {dy * up * sigmoid * (1.0f + gate * (1.0f - sigmoid)), dy * gate * sigmoid,
          swiglu(gate, up)};
}

void runSwiGlu(const Call &call) { runGated(call, swiglu); }
void runSwiGluBwd(const Call &call) { runGatedBwd(call, swigluGradient); }

/// The counts of rows, if operand `index` exists; otherwise null.
const Tensor *countsOf(const Call &call, int index) {
  return call.inCount > index ? &call.in[index] : nullptr;
}

/// y = combine(gate, up)·weights[row].
template <typename Combine> void runWeighted(const Call &call, Combine combine) {
  runGatedRows(call, countsOf(call, 2), [&](int64_t row) {
    float buffer, weight = *readF32(call.in[1], row, 1, &buffer);
    return [weight, &combine](float gate, float up) { return combine(gate, up) * weight; };
  });
}

void runWeightedSwiGlu(const Call &call) { runWeighted(call, swiglu); }

/// The forward op multiplies the activation of a row by the row's weight. The gradient of the
/// weight is the sum of dy times the activation, which is computed again; the third result, if any,
/// is the forward op's result.
template <typename Gradient> void runWeightedBwd(const Call &call, Gradient gradient) {
  GatedBlock block;
  int64_t rows = call.in[0].rows(), cols = call.in[0].cols();
  forRowsThere(countsOf(call, 3), rows, [&](int64_t row) {
    float buffer, weight = *readF32(call.in[2], row, 1, &buffer);
    double sum = 0;
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      block.run(call, row, begin, n, [weight, &gradient](float dy, float gate, float up) {
        return gradient(dy * weight, gate, up);
      });
      sum += dot(block.dy, block.y, n);
      if (call.outCount <= 2)
        continue;
      for (int64_t i = 0; i < n; ++i)
        block.y[i] *= weight;
      writeF32(call.out[2], row * cols + begin, n, block.y);
    }
    auto dweight = static_cast<float>(sum);
    writeF32(call.out[1], row, 1, &dweight);
  });
}

void runWeightedSwiGluBwd(const Call &call) { runWeightedBwd(call, swigluGradient); }

void runGeGlu(const Call &call) {
  runGated(call, [f = geluOf(call.attrs)](float gate, float up) { return f(gate) * up; });
}

void runGeGluBwd(const Call &call) {
  auto gradient = [f = geluOf(call.attrs), slope = geluSlopeOf(call.attrs)](float dy, float gate,
                                                                            float up) {
    float activated = f(gate);
    return GatedGradient{dy * up * slope(gate), dy * activated, activated * up};
  };
  runGatedBwd(call, gradient);
}

/// Quick GELU is x·sigmoid(kQuick·x).
constexpr float kQuick = 1.702f;

/// Clamp x from above, and on both sides. NaN stays NaN.
float below(float x, float limit) { return limit > 0 && x > limit ? limit : x; }
float within(float x, float limit) { return limit > 0 && x < -limit ? -limit : below(x, limit); }

/// gate · sigmoid(1.702 · gate) · (up + offset), with both inputs clamped. The gradient is 0 where
/// the clamp changes the input.
class QuickGeGlu {
public:
  explicit QuickGeGlu(const Attrs &attrs)
      : limit_(static_cast<float>(attrs.clamp)), offset_(static_cast<float>(attrs.linear_offset)) {}

  float operator()(float gate, float up) const {
    float g = below(gate, limit_);
    return g / (1.0f + std::exp(-kQuick * g)) * (within(up, limit_) + offset_);
  }

  GatedGradient gradient(float dy, float gate, float up) const {
    float g = below(gate, limit_), u = within(up, limit_);
    float sigmoid = 1.0f / (1.0f + std::exp(-kQuick * g));
    float slope = sigmoid * (1.0f + kQuick * g * (1.0f - sigmoid));
    return {g < gate ? 0.0f : dy * (u + offset_) * slope,
            u < up || u > up ? 0.0f : dy * g * sigmoid, (*this)(gate, up)};
  }

private:
  float limit_, offset_;
};

/// QuickGeGlu::gradient as a function.
auto quickGradientOf(const Call &call) {
  return [unit = QuickGeGlu(call.attrs)](float dy, float gate, float up) {
    return unit.gradient(dy, gate, up);
  };
}

void runQuickGeGlu(const Call &call) { runGated(call, QuickGeGlu(call.attrs)); }
void runQuickGeGluBwd(const Call &call) { runGatedBwd(call, quickGradientOf(call)); }
void runWeightedQuickGeGlu(const Call &call) { runWeighted(call, QuickGeGlu(call.attrs)); }
void runWeightedQuickGeGluBwd(const Call &call) { runWeightedBwd(call, quickGradientOf(call)); }

const char *acceptsClamp(const Call &call) {
  SHARDC_REQUIRE(call.attrs.clamp >= 0, "the clamp is negative");
  return nullptr;
}

template <int kCounts, int kRows> const char *acceptsClampAndCounts(const Call &call) {
  SHARDC_REQUIRE_OK(acceptsClamp(call));
  return acceptsCounts<kCounts, kRows>(call);
}

} // namespace

SHARDC_HOST_KERNEL(Gelu, runGelu);
SHARDC_HOST_KERNEL(GeluBwd, runGeluBwd);
SHARDC_HOST_KERNEL(SquaredRelu, runSquaredRelu);
SHARDC_HOST_KERNEL(SquaredReluBwd, runSquaredReluBwd);
SHARDC_HOST_KERNEL(SwiGlu, runSwiGlu);
SHARDC_HOST_KERNEL(SwiGluBwd, runSwiGluBwd);
SHARDC_HOST_KERNEL(WeightedSwiGlu, runWeightedSwiGlu, acceptsCounts<2>);
SHARDC_HOST_KERNEL(WeightedSwiGluBwd, runWeightedSwiGluBwd, acceptsCounts<3, 1>);
SHARDC_HOST_KERNEL(GeGlu, runGeGlu);
SHARDC_HOST_KERNEL(GeGluBwd, runGeGluBwd);
SHARDC_HOST_KERNEL(QuickGeGlu, runQuickGeGlu, acceptsClamp);
SHARDC_HOST_KERNEL(QuickGeGluBwd, runQuickGeGluBwd, acceptsClamp);
SHARDC_HOST_KERNEL(WeightedQuickGeGlu, runWeightedQuickGeGlu, acceptsClampAndCounts<2, 0>);
SHARDC_HOST_KERNEL(WeightedQuickGeGluBwd, runWeightedQuickGeGluBwd, acceptsClampAndCounts<3, 1>);

} // namespace shardc::kernels::host
