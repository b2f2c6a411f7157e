// Muon on a shard of whole matrices, as in Megatron-Core, which uses emerging_optimizers. With g =
// gradient·gradScale, or g + wd·w unless weight decay is decoupled:
//   m += (1 - momentum)·(g - m), u = m, or with Nesterov momentum g + momentum·(m - g)
//   w -= lr·(scale·NS(u) + wd·w)
// NS divides a matrix by its Frobenius norm, then executes steps X = a·X + (b·A + c·A²)·X with A =
// X·Xᵀ, on the transposed matrix if there are more rows than columns (runtime/base/NewtonSchulz.h).
// With bf16 products, each result is rounded to bf16, as in torch; sums are fp32. If state.skip,
// only the weight is written. Limited by arithmetic: 4·r + 2·r²/c operations per element and step,
// with the short side r and the long side c.
//
// If ranks have parts of a matrix, muon_update computes u of a shard, collectives gather these, and
// muon orthogonalises the matrices of which its shard has rows. With `divided`, the ranks have
// already executed the steps on their parts together (MuonSteps.cpp), and muon updates the rows of
// its shard.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/NewtonSchulz.h"
#include "kernels/host/Optimizer.h"
#include "kernels/host/Rows.h"
#include "runtime/base/StepState.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

enum Operand { G, Master, M, State };

/// The rates for one matrix.
struct Rates {
  float gradScale, lr, decayInGradient, decayOfWeight;
};

Rates ratesOf(const Call &call, const ParamRange &range) {
  const StepState &state = *static_cast<const StepState *>(call.in[State].data);
  float decay = (static_cast<float>(call.attrs.weight_decay) + state.weightDecay) * range.wdMult;
  return {state.gradScale, (range.isDecoupled ? state.decoupledLr : state.lr) * range.lrMult,
          call.attrs.decoupled ? 0.0f : decay, call.attrs.decoupled ? decay : 0.0f};
}

/// Offset of a matrix row in a buffer, and the distance between its elements.
struct RowPlace {
  int64_t at, step;
};
RowPlace placeOf(const Matrix &matrix, int64_t row) {
  return matrix.isTransposed() ? RowPlace{row, matrix.rows} : RowPlace{row * matrix.columns, 1};
}

/// Up to kBlock elements of a row of a shard.
struct Piece {
  int64_t at, n;
};

/// Computes the new momentum of a piece into `m`, and its update into `u`.
void updatesOf(const Call &call, const Rates &rates, Piece piece, float *m, float *u) {
  const auto momentum = static_cast<float>(call.attrs.momentum);
  const auto rest = static_cast<float>(1.0 - call.attrs.momentum);
  const float *masters = static_cast<const float *>(call.in[Master].data);
  float gradients[kBlock], moments[kBlock];
  const float *g = readF32(call.in[G], piece.at, piece.n, gradients);
  const float *old = readF32(call.in[M], piece.at, piece.n, moments);
  for (int64_t i = 0; i < piece.n; ++i) {
    float gradient = g[i] * rates.gradScale + rates.decayInGradient * masters[piece.at + i];
    m[i] = old[i] + rest * (gradient - old[i]);
    u[i] = call.attrs.nesterov ? gradient + momentum * (m[i] - gradient) : m[i];
  }
}

/// Computes the update u of each piece of the shard's parameters, and calls `take` with it. If
/// `movesMomentum`, stores the new momentum first.
template <typename Take> void takeUpdates(const Call &call, bool movesMomentum, const Take &take) {
  float moments[kBlock], updates[kBlock];
  for (const ParamRange &range : rangesOfShard(call, 0)) {
    Rates rates = ratesOf(call, range);
    for (int64_t at = range.begin; at < range.end; at += kBlock) {
      Piece piece{at, std::min(kBlock, range.end - at)};
      updatesOf(call, rates, piece, moments, updates);
      if (movesMomentum)
        writeF32(call.out[1], at, piece.n, moments);
      take(piece, updates);
    }
  }
}

double squaresOf(const float *x, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i)
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return squares;
}

/// Stores a matrix' new momentum, and its update in `x`. Returns the norm of the update.
float takeUpdate(const Call &call, const Matrix &matrix, float *x) {
  Rates rates = ratesOf(call, *matrix.range);
  float moments[kBlock], updates[kBlock];
  double squares = 0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    RowPlace place = placeOf(matrix, row);
    for (int64_t c = 0; c < matrix.columns; c += kBlock) {
      Piece piece{matrix.rowBegin(row) + c, std::min(kBlock, matrix.columns - c)};
      updatesOf(call, rates, piece, moments, updates);
      for (int64_t i = 0; i < piece.n; ++i)
        x[place.at + (c + i) * place.step] = updates[i];
      squares += squaresOf(updates, piece.n);
      writeF32(call.out[1], piece.at, piece.n, moments);
    }
  }
  return static_cast<float>(std::sqrt(squares));
}

/// Copies a matrix from operand `u` to `x`. Returns its norm.
float takeWhole(const Call &call, const Matrix &matrix, float *x) {
  const float *updates = static_cast<const float *>(call.in[kWholeUpdates].data);
  double squares = 0;
  for (int64_t part = 0; part < matrix.columnParts; ++part)
    for (int64_t row = 0; row < matrix.rows; ++row) {
      RowPlace place = placeOf(matrix, row);
      const float *u = updates + matrix.rowBegin(row, part);
      float *to = x + place.at + part * matrix.partColumns() * place.step;
      for (int64_t c = 0; c < matrix.partColumns(); ++c)
        to[c * place.step] = u[c];
      squares += squaresOf(u, matrix.partColumns());
    }
  return static_cast<float>(std::sqrt(squares));
}

/// Orthogonalises the matrix in buffers.x. Returns the address of the result: buffers.x or
/// buffers.y.
float *orthogonalize(const Call &call, const Matrix &matrix, float norm, const NsBuffers &buffers) {
  const int64_t r = matrix.shortSide(), c = matrix.longSide();
  float *x = buffers.x, *next = buffers.y;
  float divisor = std::max(norm, kNsNormMin);
  for (int64_t i = 0; i < r * c; ++i)
    x[i] /= divisor;
  roundProduct(call, x, r * c);
  for (int64_t i = 0; i < call.attrs.ns_steps; ++i) {
    NsStep step = nsStep(static_cast<NsCoefficients>(call.attrs.ns_coefficients), i);
    gemm(r, r, c, 1.0f, {x, c}, {x, c, true}, 0.0f, buffers.square, r);
    const Mixed mixed = mixOf(call, step, r, buffers);
    std::copy_n(x, r * c, next);
    gemm(r, c, r, mixed.times, {mixed.matrix, r}, {x, c}, step.a, next, c);
    roundProduct(call, next, r * c);
    std::swap(x, next);
  }
  return x;
}

float scaleOf(const Call &call, int64_t rows, int64_t columns) {
  auto kind = static_cast<UpdateScale>(call.attrs.update_scale);
  return static_cast<float>(updateScale(kind, rows, columns) * call.attrs.extra_scale);
}

/// Updates the shard's rows of a matrix from the orthogonalised update x.
void updateMatrix(const Call &call, const Matrix &matrix, OwnElements own, const float *x) {
  Rates rates = ratesOf(call, *matrix.range);
  const float scale = scaleOf(call, matrix.rows, matrix.columns);
  float *masters = static_cast<float *>(call.out[0].data);
  const int64_t part = matrix.ownColumnPart();
  for (int64_t row = 0; row < matrix.rows; ++row) {
    int64_t at = matrix.rowBegin(row, part) - matrix.part * matrix.stride;
    if (at < own.begin || at >= own.end)
      continue; // a row of another rank
    RowPlace place = placeOf(matrix, row);
    const float *from = x + place.at + part * matrix.partColumns() * place.step;
    float *w = masters + at - own.begin;
    for (int64_t c = 0; c < matrix.partColumns(); ++c)
      w[c] -= rates.lr * (from[c * place.step] * scale + rates.decayOfWeight * w[c]);
  }
}

/// Updates the shard's rows of a part from the result of the divided steps.
void updatePart(const Call &call, const MatrixPart &part, OwnElements own) {
  Rates rates = ratesOf(call, *part.place.range);
  const float scale = scaleOf(call, part.rows, part.columns());
  float *masters = static_cast<float *>(call.out[0].data);
  float values[kBlock];
  for (int64_t row = 0; row < part.place.rows; ++row) {
    int64_t at = part.place.rowBegin(row), columns = part.place.columns;
    if (at < own.begin || at >= own.end)
      continue;
    for (int64_t c = 0; c < columns; c += kBlock) {
      int64_t n = std::min(kBlock, columns - c);
      const float *x = readF32(call.in[kWholeUpdates], part.at + row * columns + c, n, values);
      float *w = masters + at - own.begin + c;
      for (int64_t i = 0; i < n; ++i)
        w[i] -= rates.lr * (x[i] * scale + rates.decayOfWeight * w[i]);
    }
  }
}

void updateDivided(const Call &call) {
  takeUpdates(call, /*movesMomentum=*/true, [](Piece, const float *) {});
  for (const MatrixPart &part : partsToUpdate(call))
    updatePart(call, part, ownElements(call));
}

void runMuon(const Call &call, const NsBuffers &buffers) {
  const StepState &state = *static_cast<const StepState *>(call.in[State].data);
  const bool isWhole = hasWholeUpdates(call);
  const OwnElements own = isWhole ? ownElements(call) : OwnElements{0, call.in[G].numel()};
  if (!state.skip && call.attrs.divided)
    updateDivided(call);
  else if (!state.skip && isWhole)
    takeUpdates(call, /*movesMomentum=*/true, [](Piece, const float *) {});
  if (!state.skip && !call.attrs.divided)
    for (const Matrix &matrix : matricesToUpdate(call)) {
      float norm =
          isWhole ? takeWhole(call, matrix, buffers.x) : takeUpdate(call, matrix, buffers.x);
      updateMatrix(call, matrix, own, orthogonalize(call, matrix, norm, buffers));
    }
  if (call.outCount < 3)
    return;
  const float *masters = static_cast<const float *>(call.out[0].data);
  for (const ParamRange &range : rangesOfShard(call, 0))
    writeF32(call.out[2], range.begin, range.end - range.begin, masters + range.begin);
}

void runMuonUpdate(const Call &call) {
  takeUpdates(call, /*movesMomentum=*/false, [&](Piece piece, const float *updates) {
    writeF32(call.out[0], piece.at, piece.n, updates);
  });
}

const char *acceptsMuonUpdate(const Call &call) {
  SHARDC_REQUIRE(call.in[Master].dtype == DType::F32 && call.in[M].dtype == DType::F32,
                 "master weights or the momentum are not f32");
  SHARDC_REQUIRE(call.attrs.momentum >= 0 && call.attrs.momentum < 1, "momentum is not in [0, 1)");
  return checkRanges(call, 0, call.in[G]);
}

/// Checks the operand with the updates of whole matrices, gathered from all tensor-parallel ranks:
/// its type, its number of parts, and that it contains this rank's elements.
const char *checkWholeUpdates(const Call &call) {
  SHARDC_REQUIRE(hasWholeUpdates(call) || !call.attrs.divided,
                 "what divided steps have left is missing");
  if (!hasWholeUpdates(call))
    return nullptr;
  const Tensor &u = call.in[kWholeUpdates];
  const int64_t ranks = call.attrs.tensor_parts;
  bool isNarrow =
      call.attrs.divided && static_cast<NsProducts>(call.attrs.products) == NsProducts::Medium;
  SHARDC_REQUIRE(u.dtype == (isNarrow ? DType::BF16 : DType::F32),
                 "the updates of matrices are not f32, or of divided steps not of their type");
  SHARDC_REQUIRE(call.rangesOf != nullptr || call.rangesCount == 0,
                 "the ranges of the updates of matrices are missing");
  SHARDC_REQUIRE(ranks >= 1 && u.numel() % ranks == 0,
                 "the updates of matrices are not of 'tensor_parts' parts");
  Tensor part = u;
  part.rank = 1, part.shape[0] = u.numel() / ranks;
  SHARDC_REQUIRE_OK(checkRanges(call, 1, part));
  OwnElements own = ownElements(call);
  SHARDC_REQUIRE(own.end == own.begin || (own.begin >= 0 && own.end <= part.numel()),
                 "the updates of matrices do not have the shard's");
  for (const ParamRange &range : rangesOfShard(call, 1))
    SHARDC_REQUIRE(range.parts >= 1 && (ranks == 1 || ranks % range.parts == 0) &&
                       range.part >= 0 && range.part < range.parts,
                   "a matrix has more parts than there are");
  return nullptr;
}

const char *acceptsMuon(const Call &call) {
  Call update = call; // without `u`, the call has the form of the other optimizers'
  if (hasWholeUpdates(call))
    update.inCount = kWholeUpdates;
  SHARDC_REQUIRE_OK(checkOptimizer(update, 1));
  SHARDC_REQUIRE_OK(checkWholeUpdates(call));
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE(call.in[Master].dtype == DType::F32 && call.in[M].dtype == DType::F32,
                 "master weights or the momentum are not f32");
  SHARDC_REQUIRE(attrs.momentum >= 0 && attrs.momentum < 1, "momentum is not in [0, 1)");
  SHARDC_REQUIRE(attrs.ns_steps >= 1, "there are no Newton-Schulz steps");
  for (const ParamRange &range : rangesOfShard(call, 0))
    SHARDC_REQUIRE(range.row > 0 && (range.end - range.begin) % range.row == 0,
                   "a range does not consist of whole rows");
  for (const Matrix &matrix : matricesToUpdate(call))
    SHARDC_REQUIRE(attrs.divided || matrix.numel() <= attrs.largest_matrix,
                   "a matrix has more elements than 'largest_matrix'");
  return nullptr;
}

} // namespace

SHARDC_HOST_KERNEL(MuonUpdate, runMuonUpdate, acceptsMuonUpdate);
SHARDC_HOST_KERNEL(Muon, withBuffers<runMuon>, acceptsMuon);

} // namespace shardc::kernels::host
