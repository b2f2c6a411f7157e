// Newton-Schulz steps on matrices of which ranks have parts; kernels/host/Muon.cpp defines a step.
// A part X has some of a matrix' rows or columns, and the whole other side. Ranks compute their
// contributions to X·Xᵀ (or Xᵀ·X) along the whole side, add them in fp32, and each updates its own
// part. muon_sums computes a rank's contributions, muon_step uses the sums. With bf16 products,
// parts are bf16, and sums are rounded to bf16 after the addition. Limited by arithmetic: 4·s
// operations per element of a part, and 2·s³ per matrix on each rank, with the side s that is not
// divided.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/NewtonSchulz.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

enum Operand { X, Momentum, Sums };

DType typeOfParts(const Call &call) { return roundsProducts(call) ? DType::BF16 : DType::F32; }

void copyFrom(const Tensor &tensor, int64_t at, int64_t n, float *to) {
  float values[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    int64_t count = std::min(kBlock, n - i);
    std::copy_n(readF32(tensor, at + i, count, values), count, to + i);
  }
}

void copyTo(const Tensor &tensor, int64_t at, int64_t n, const float *from) {
  for (int64_t i = 0; i < n; i += kBlock)
    writeF32(tensor, at + i, std::min(kBlock, n - i), from + i);
}

/// Clears the elements from `at` on, which belong to no matrix.
void clearFrom(const Tensor &tensor, int64_t at) {
  const float zeros[kBlock] = {};
  for (; at < tensor.numel(); at += kBlock)
    writeF32(tensor, at, std::min(kBlock, tensor.numel() - at), zeros);
}

/// The weight of a part in the sums: several ranks may have the same part, but it counts once.
float shareOf(const Call &call, const MatrixPart &part) {
  return static_cast<float>(part.parts) / static_cast<float>(call.attrs.sum_ranks);
}

float squaresOf(const Call &call, const Matrix &matrix) {
  float values[kBlock];
  double squares = 0;
  for (int64_t row = 0; row < matrix.rows; ++row)
    for (int64_t c = 0; c < matrix.columns; c += kBlock) {
      int64_t n = std::min(kBlock, matrix.columns - c);
      const float *x = readF32(call.in[X], matrix.rowBegin(row) + c, n, values);
      for (int64_t i = 0; i < n; ++i)
        squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
  return static_cast<float>(squares);
}

void runMuonSums(const Call &call, const NsBuffers &buffers) {
  auto *sums = static_cast<float *>(call.out[0].data);
  std::fill_n(sums, call.out[0].numel(), 0.0f);
  for (const MatrixPart &part : partsOfSteps(call)) {
    if (call.attrs.ns_step == 0) {
      *sums++ = squaresOf(call, part.place) * shareOf(call, part);
      continue;
    }
    const int64_t r = part.place.rows, c = part.place.columns, side = part.side();
    if (r == 0)
      continue;
    copyFrom(call.in[X], part.at, r * c, buffers.x);
    bool ofRows = part.isOfRows();
    gemm(side, side, ofRows ? c : r, shareOf(call, part), {buffers.x, c, !ofRows},
         {buffers.x, c, ofRows}, 0.0f, sums + part.product, side);
  }
}

/// Writes the input of the first step: the part, divided by the norm of its matrix.
void divideByNorm(const Call &call, const MatrixPart &part, float squares) {
  const float norm = std::max(std::sqrt(squares), kNsNormMin);
  float values[kBlock], divided[kBlock];
  for (int64_t row = 0; row < part.place.rows; ++row)
    for (int64_t c = 0; c < part.place.columns; c += kBlock) {
      int64_t n = std::min(kBlock, part.place.columns - c);
      const float *x = readF32(call.in[X], part.place.rowBegin(row) + c, n, values);
      for (int64_t i = 0; i < n; ++i)
        divided[i] = x[i] / norm;
      writeF32(call.out[0], part.at + row * part.place.columns + c, n, divided);
    }
}

/// One Newton-Schulz step on this rank's part: X' = a·X + (b·S + c·S²)·X with S = X·Xᵀ of the whole
/// matrix, or the same from the other side. `sums` has S, which was summed over the ranks.
void takeStep(const Call &call, const MatrixPart &part, const float *sums,
              const NsBuffers &buffers) {
  const int64_t r = part.place.rows, c = part.place.columns, side = part.side();
  NsStep step =
      nsStep(static_cast<NsCoefficients>(call.attrs.ns_coefficients), call.attrs.ns_step - 1);
  copyFrom(call.in[X], part.at, r * c, buffers.x);
  std::copy_n(buffers.x, r * c, buffers.y);
  std::copy_n(sums + part.product, side * side, buffers.square);
  const Mixed mixed = mixOf(call, step, side, buffers);
  if (part.isOfRows())
    gemm(r, c, r, mixed.times, {mixed.matrix, r}, {buffers.x, c}, step.a, buffers.y, c);
  else
    gemm(r, c, c, mixed.times, {buffers.x, c}, {mixed.matrix, c}, step.a, buffers.y, c);
  copyTo(call.out[0], part.at, r * c, buffers.y);
}

void runMuonStep(const Call &call, const NsBuffers &buffers) {
  const auto *sums = static_cast<const float *>(call.in[Sums].data);
  int64_t end = 0;
  for (const MatrixPart &part : partsOfSteps(call)) {
    if (call.attrs.ns_step == 0)
      divideByNorm(call, part, *sums++);
    else if (part.place.rows > 0)
      takeStep(call, part, sums, buffers);
    end = part.at + part.place.numel();
  }
  clearFrom(call.out[0], end);
}

/// Checks the operands of both ops, and the sums.
const char *checkParts(const Call &call, const Tensor &sums) {
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE(call.in[X].dtype == (attrs.ns_step == 0 ? DType::F32 : typeOfParts(call)),
                 "the parts of matrices do not have the type of 'products'");
  SHARDC_REQUIRE(call.in[Momentum].dtype == DType::F32, "the momentum is not f32");
  // Without ranges, only shapes are checked.
  SHARDC_REQUIRE(call.rangesOf != nullptr || call.rangesCount == 0,
                 "the ranges of the parts of matrices are missing");
  SHARDC_REQUIRE_OK(checkRanges(call, 0, call.in[X]));
  SHARDC_REQUIRE_OK(checkRanges(call, 1, call.in[Momentum]));
  int64_t needed = 0;
  for (const ParamRange &range : rangesOfShard(call, 0))
    SHARDC_REQUIRE(range.row > 0 && (range.end - range.begin) % range.row == 0 && range.parts >= 1,
                   "a range does not consist of whole rows");
  for (const MatrixPart &part : partsOfSteps(call)) {
    needed += attrs.ns_step == 0 ? 1 : part.side() * part.side();
    SHARDC_REQUIRE(std::max(part.place.numel(), part.side() * part.side()) <= attrs.largest_matrix,
                   "a matrix has more elements than 'largest_matrix'");
  }
  SHARDC_REQUIRE(needed <= sums.numel(), "there are fewer sums than matrices need");
  return nullptr;
}

const char *acceptsMuonSums(const Call &call) {
  SHARDC_REQUIRE_OK(checkParts(call, call.out[0]));
  for (const ParamRange &range : rangesOfShard(call, 0))
    SHARDC_REQUIRE(call.attrs.sum_ranks % range.parts == 0,
                   "a matrix has more parts than ranks add");
  return nullptr;
}

const char *acceptsMuonStep(const Call &call) {
  SHARDC_REQUIRE(call.out[0].numel() == call.in[X].numel() &&
                     call.out[0].dtype == typeOfParts(call),
                 "the result is not as large as the parts, or not of the type of 'products'");
  return checkParts(call, call.in[Sums]);
}

} // namespace

SHARDC_HOST_KERNEL(MuonSums, withBuffers<runMuonSums>, acceptsMuonSums);
SHARDC_HOST_KERNEL(MuonStep, withBuffers<runMuonStep>, acceptsMuonStep);

} // namespace shardc::kernels::host
