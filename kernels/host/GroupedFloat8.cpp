// grouped_matmul and its gradient with factors of 8 bits. Rows of a run, of all slots one behind
// the other, are a matrix that is quantised by itself, and so is each matrix that runs are
// multiplied with, as Transformer Engine's grouped linear layers have it. Tensorwise, each has one
// scale by its largest magnitude. Blockwise, 128 numbers along the sum have one, or 128 by 128 of a
// matrix that is not rows; mxfp8, 32 along the sum. These are powers of two, so a number times its
// scale is exact.
#include "kernels/host/GroupedFloat8.h"

#include <algorithm>
#include <bit>

#include "kernels/host/Blas.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Float8Scales.h"
#include "runtime/base/Float8.h"

namespace shardc::kernels::host {
namespace {

/// A matrix in fp32 that is to be quantised.
struct Factor {
  float *numbers;
  Extents extents;
  bool isSummedDown; ///< the sum of the product runs along its columns
  bool isRows;       ///< of a run
  DType type;
};

void roundBlock(const Factor &factor, int64_t row, int64_t col, Extents block, bool isE8M0) {
  int64_t rowEnd = std::min(row + block.rows, factor.extents.rows);
  int64_t colEnd = std::min(col + block.cols, factor.extents.cols);
  uint32_t most = 0;
  for (int64_t r = row; r < rowEnd; ++r)
    for (int64_t c = col; c < colEnd; ++c)
      most = std::max(most, magnitudeBits(factor.numbers[r * factor.extents.cols + c]));
  BlockScale scale = blockScaleOf(std::bit_cast<float>(most), factor.type, isE8M0);
  for (int64_t r = row; r < rowEnd; ++r)
    for (int64_t c = col; c < colEnd; ++c) {
      float &number = factor.numbers[r * factor.extents.cols + c];
      number = ofBits(toBits(number * scale.multiplier, factor.type), factor.type) * scale.scale;
    }
}

float roundWhole(const Factor &factor) {
  int64_t count = factor.extents.rows * factor.extents.cols;
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, magnitudeBits(factor.numbers[i]));
  float multiplier = multiplierOf(std::bit_cast<float>(most), factor.type);
  for (int64_t i = 0; i < count; ++i)
    factor.numbers[i] = ofBits(toBits(factor.numbers[i] * multiplier, factor.type), factor.type);
  return 1.0f / multiplier;
}

/// Rounds the numbers, and gives what their product is to be multiplied with.
float quantize(const Factor &factor, Fp8Factors recipe) {
  if (recipe == Fp8Factors::Tensorwise)
    return roundWhole(factor);
  bool isE8M0 = recipe == Fp8Factors::Mxfp8;
  Extents block = blockOf(isE8M0          ? ScaleBlocks::Rows32
                          : factor.isRows ? ScaleBlocks::Rows128
                                          : ScaleBlocks::Squares128);
  if (factor.isSummedDown)
    std::swap(block.rows, block.cols);
  for (int64_t row = 0; row < factor.extents.rows; row += block.rows)
    for (int64_t col = 0; col < factor.extents.cols; col += block.cols)
      roundBlock(factor, row, col, block, isE8M0);
  return 1.0f;
}

void copyF32(const Tensor &from, int64_t offset, int64_t count, float *to) {
  const float *numbers = readF32(from, offset, count, to);
  if (numbers != to)
    std::copy_n(numbers, count, to);
}

/// The run's rows of all slots, and how many there are.
int64_t gatherRun(const Tensor &from, const Runs &runs, int64_t run, float *to) {
  int64_t cols = from.cols(), found = 0;
  for (int64_t slot = 0; slot < runs.slots; ++slot) {
    int64_t rows = runs.rows(slot, run);
    copyF32(from, runs.begin(slot, run) * cols, rows * cols, to + found * cols);
    found += rows;
  }
  return found;
}

void scaleAll(float *numbers, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i)
    numbers[i] *= scale;
}

DType typeOfFirst(const Call &call) { return call.attrs.e5m2 ? DType::F8E5M2 : DType::F8E4M3; }
Fp8Factors recipeOf(const Call &call) { return static_cast<Fp8Factors>(call.attrs.fp8_recipe); }

} // namespace

Float8Buffers::Float8Buffers(const Call &call, Scratch &scratch)
    : runs(call.in[2], call.in[0].shape[0], scratch) {
  const Tensor &second = call.in[1], &result = call.out[0];
  a = scratch.take<float>(call.in[0].numel());
  b = scratch.take<float>(second.rank == 3 ? second.shape[1] * second.shape[2] : second.numel());
  c = scratch.take<float>(result.rank == 3 ? result.shape[1] * result.shape[2] : result.numel());
}

const char *checkFloat8(const Call &call) {
  SHARDC_REQUIRE(call.attrs.fp8_recipe <= static_cast<int64_t>(Fp8Factors::Mxfp8),
                 "there is no such recipe of 8-bit factors");
  return nullptr;
}

void runGroupedFloat8(const Call &call) {
  Scratch scratch(call);
  Float8Buffers buffers(call, scratch);
  Runs &runs = buffers.runs;
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  bool isTurned = call.attrs.trans_b;
  int64_t k = a.cols(), m = c.cols();
  runs.read();
  for (int64_t run = 0; run < runs.runs; ++run) {
    int64_t rows = gatherRun(a, runs, run, buffers.a);
    if (rows == 0)
      continue;
    copyF32(b, run * k * m, k * m, buffers.b);
    Fp8Factors recipe = recipeOf(call);
    float scale =
        quantize({buffers.a, {rows, k}, false, true, typeOfFirst(call)}, recipe) *
        quantize({buffers.b, {k * m / b.cols(), b.cols()}, !isTurned, false, DType::F8E4M3},
                 recipe);
    gemm(rows, m, k, 1.0f, {buffers.a, k}, {buffers.b, b.cols(), isTurned}, 0.0f, buffers.c, m);
    scaleAll(buffers.c, rows * m, scale);
    for (int64_t slot = 0, done = 0; slot < runs.slots; done += runs.rows(slot++, run))
      writeF32(c, runs.begin(slot, run) * m, runs.rows(slot, run) * m, buffers.c + done * m);
  }
}

void runGroupedFloat8Bwd(const Call &call) {
  Scratch scratch(call);
  Float8Buffers buffers(call, scratch);
  Runs &runs = buffers.runs;
  const Tensor &a = call.in[0], &b = call.in[1], &dw = call.out[0];
  int64_t k = a.cols(), m = b.cols();
  runs.read();
  for (int64_t run = 0; run < runs.runs; ++run) {
    int64_t rows = gatherRun(a, runs, run, buffers.a);
    gatherRun(b, runs, run, buffers.b);
    std::fill_n(buffers.c, k * m, 0.0f);
    if (rows > 0) {
      Fp8Factors recipe = recipeOf(call);
      float scale = quantize({buffers.a, {rows, k}, true, true, typeOfFirst(call)}, recipe) *
                    quantize({buffers.b, {rows, m}, true, true, DType::F8E4M3}, recipe);
      gemm(k, m, rows, 1.0f, {buffers.a, k, true}, {buffers.b, m}, 0.0f, buffers.c, m);
      scaleAll(buffers.c, k * m, scale);
    }
    writeF32(dw, run * k * m, k * m, buffers.c);
  }
}

} // namespace shardc::kernels::host
