// Muon on a shard of whole matrices, as Megatron-Core has it of emerging_optimizers. With
// g = gradient·gradScale, and g + wd·w in its place unless decay is decoupled:
//   m += (1 - momentum)·(g - m), u = m, or of Nesterov's g + momentum·(m - g)
//   w -= lr·(scale·NS(u) + wd·w)
// NS divides a matrix by its Frobenius norm, then takes steps X = a·X + (b·A + c·A²)·X with
// A = X·Xᵀ, of the transpose if there are more rows than columns (runtime/base/NewtonSchulz.h). Of
// products in bf16 each result is rounded to bf16, as torch does it; sums are fp32. While
// state.skip nothing but the weight is written. Limited by arithmetic: 4·r + 2·r²/c operations an
// element and step, of the short side r and the long side c.
#include "kernels/host/Blas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Matrices.h"
#include "kernels/host/Optimizer.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Scratch.h"
#include "runtime/base/NewtonSchulz.h"
#include "runtime/base/StepState.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

enum Operand { G, Master, M, State };

struct Buffers {
  Buffers(const Call &call, Scratch &scratch)
      : x(scratch.take<float>(call.attrs.largest_matrix)),
        y(scratch.take<float>(call.attrs.largest_matrix)),
        square(scratch.take<float>(call.attrs.largest_matrix)),
        mixed(scratch.take<float>(call.attrs.largest_matrix)) {}

  float *x, *y;          ///< short side by long side
  float *square, *mixed; ///< short side by short side: A, and b·A + c·A²
};

/// Rates of one matrix.
struct Rates {
  float gradScale, lr, decayInGradient, decayOfWeight;
};

Rates ratesOf(const Call &call, const ParamRange &range) {
  const StepState &state = *static_cast<const StepState *>(call.in[State].data);
  float decay = (static_cast<float>(call.attrs.weight_decay) + state.weightDecay) * range.wdMult;
  return {state.gradScale, (range.isDecoupled ? state.decoupledLr : state.lr) * range.lrMult,
          call.attrs.decoupled ? 0.0f : decay, call.attrs.decoupled ? decay : 0.0f};
}

/// Where row `row` of the matrix lies in a buffer, and the distance of its elements.
struct RowPlace {
  int64_t at, step;
};
RowPlace placeOf(const Matrix &matrix, int64_t row) {
  return matrix.isTurned() ? RowPlace{row, matrix.rows} : RowPlace{row * matrix.columns, 1};
}

/// Moves the momentum, and leaves the update in `x`. Returns its norm.
float takeUpdate(const Call &call, const Matrix &matrix, float *x) {
  Rates rates = ratesOf(call, *matrix.range);
  const auto momentum = static_cast<float>(call.attrs.momentum);
  const auto rest = static_cast<float>(1.0 - call.attrs.momentum);
  const float *masters = static_cast<const float *>(call.in[Master].data);
  float gradients[kBlock], moments[kBlock];
  double squares = 0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    RowPlace place = placeOf(matrix, row);
    for (int64_t c = 0; c < matrix.columns; c += kBlock) {
      int64_t n = std::min(kBlock, matrix.columns - c), at = matrix.rowBegin(row) + c;
      const float *g = readF32(call.in[G], at, n, gradients);
      const float *old = readF32(call.in[M], at, n, moments);
      float *m = targetF32(call.out[1], at, moments);
      for (int64_t i = 0; i < n; ++i) {
        float gradient = g[i] * rates.gradScale + rates.decayInGradient * masters[at + i];
        m[i] = old[i] + rest * (gradient - old[i]);
        float update = call.attrs.nesterov ? gradient + momentum * (m[i] - gradient) : m[i];
        x[place.at + (c + i) * place.step] = update;
        squares += static_cast<double>(update) * static_cast<double>(update);
      }
      writeF32(call.out[1], at, n, m);
    }
  }
  return static_cast<float>(std::sqrt(squares));
}

SHARDC_CLONES void roundToBF16(float *x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    x[i] = toFloat(toBF16(x[i]));
}

/// Orthogonalises what is in buffers.x, and returns where the result is: in buffers.x or buffers.y.
float *orthogonalize(const Call &call, const Matrix &matrix, float norm, const Buffers &buffers) {
  const int64_t r = matrix.shortSide(), c = matrix.longSide();
  const bool isRounded = static_cast<NsProducts>(call.attrs.products) == NsProducts::Medium;
  auto round = [&](float *x, int64_t n) {
    if (isRounded)
      roundToBF16(x, n);
  };
  float *x = buffers.x, *next = buffers.y;
  float divisor = std::max(norm, kNsNormMin);
  for (int64_t i = 0; i < r * c; ++i)
    x[i] /= divisor;
  round(x, r * c);
  for (int64_t i = 0; i < call.attrs.ns_steps; ++i) {
    NsStep step = nsStep(static_cast<NsCoefficients>(call.attrs.ns_coefficients), i);
    gemm(r, r, c, 1.0f, {x, c}, {x, c, true}, 0.0f, buffers.square, r);
    round(buffers.square, r * r);
    const float *mixed = buffers.square;
    float factor = step.b;
    if (step.c != 0) {
      std::copy_n(buffers.square, r * r, buffers.mixed);
      gemm(r, r, r, step.c, {buffers.square, r}, {buffers.square, r}, step.b, buffers.mixed, r);
      round(buffers.mixed, r * r);
      mixed = buffers.mixed, factor = 1;
    }
    std::copy_n(x, r * c, next);
    gemm(r, c, r, factor, {mixed, r}, {x, c}, step.a, next, c);
    round(next, r * c);
    std::swap(x, next);
  }
  return x;
}

void updateMatrix(const Call &call, const Matrix &matrix, const float *x) {
  Rates rates = ratesOf(call, *matrix.range);
  auto kind = static_cast<UpdateScale>(call.attrs.update_scale);
  auto scale =
      static_cast<float>(updateScale(kind, matrix.rows, matrix.columns) * call.attrs.extra_scale);
  float *masters = static_cast<float *>(call.out[0].data);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    RowPlace place = placeOf(matrix, row);
    float *w = masters + matrix.rowBegin(row);
    for (int64_t c = 0; c < matrix.columns; ++c)
      w[c] -= rates.lr * (x[place.at + c * place.step] * scale + rates.decayOfWeight * w[c]);
  }
}

void runMuon(const Call &call) {
  const StepState &state = *static_cast<const StepState *>(call.in[State].data);
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  if (!state.skip)
    for (const Matrix &matrix : matricesOfShard(call)) {
      float norm = takeUpdate(call, matrix, buffers.x);
      updateMatrix(call, matrix, orthogonalize(call, matrix, norm, buffers));
    }
  if (call.outCount < 3)
    return;
  const float *masters = static_cast<const float *>(call.out[0].data);
  for (const ParamRange &range : rangesOfShard(call, 0))
    writeF32(call.out[2], range.begin, range.end - range.begin, masters + range.begin);
}

const char *acceptsMuon(const Call &call) {
  SHARDC_REQUIRE_OK(checkOptimizer(call, 1));
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE(call.in[Master].dtype == DType::F32 && call.in[M].dtype == DType::F32,
                 "master weights or the momentum are not f32");
  SHARDC_REQUIRE(attrs.momentum >= 0 && attrs.momentum < 1, "momentum is not in [0, 1)");
  SHARDC_REQUIRE(attrs.ns_steps >= 1, "there are no Newton-Schulz steps");
  for (const ParamRange &range : rangesOfShard(call, 0))
    SHARDC_REQUIRE(range.row > 0 && (range.end - range.begin) % range.row == 0,
                   "a range does not consist of whole rows");
  for (const Matrix &matrix : matricesOfShard(call))
    SHARDC_REQUIRE(matrix.numel() <= attrs.largest_matrix,
                   "a matrix has more elements than 'largest_matrix'");
  return nullptr;
}

} // namespace

const Kernel kMuon = {"muon_host", runMuon, acceptsMuon, workspaceOf<Buffers>};

} // namespace shardc::kernels::host
