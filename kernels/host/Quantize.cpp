// Quantisation to 8-bit floats, and products of them.
//  amax: m = the amax of x
//  quantize: q = x·m rounded to nearest even and saturated, as GPUs convert, with m = limit/amax in
//    fp32, where limit is the largest number of q's type; m = 1 if amax is 0, the largest f32 if
//    the quotient overflows, and NaN if amax is not finite, so that infinities and NaNs do not get
//    lost. scale = 1/m. NaNs become 0x7f. t = qᵀ; with `transposed`, q itself is transposed
//  quantize_blocks: the same for each block, where m is rounded down to a power of two, or, for
//    e8m0, 1/m is rounded up to one
//  quantize_delayed: q as in quantize, but NaN where x is not finite; and seen[slot] =
//    max(seen[slot], |x|), where NaN is the largest
//  amax_shard, quantize_shard, weight_scales: amax and quantize for each parameter in a shard, and
//    the scales
//  amax.update: Transformer Engine's update of an amax history, except that the first row has the
//    expected amaxes, and not those of the current step
//  matmul_scaled: c[M,N] (+)= ascale·bscale·(a[M,K]·b[N,K]ᵀ) + bias[N], summed in fp32, scaled and
//    rounded once; operands are e4m3 or e5m2, but not both e5m2, as on GPUs
#include "kernels/host/Blas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Float8Scales.h"
#include "kernels/host/Ranges.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "runtime/base/Float8.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::host {
namespace {

// amax

SHARDC_CLONES uint32_t largestBits(const float *x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i)
    most = std::max(most, magnitudeBits(x[i]));
  return most;
}

void runAmax(const Call &call) {
  float buffer[kBlock];
  uint32_t most = 0;
  for (int64_t begin = 0, numel = call.in[0].numel(); begin < numel; begin += kBlock) {
    int64_t n = std::min(kBlock, numel - begin);
    most = std::max(most, largestBits(readF32(call.in[0], begin, n, buffer), n));
  }
  *static_cast<float *>(call.out[0].data) = floatOfLargest(most);
}

// quantize

const char *acceptsScaled(const Call &call, int copy) {
  SHARDC_REQUIRE(call.in[0].rank >= 2, "what is quantised is not a matrix");
  SHARDC_REQUIRE(call.attrs.slot >= 0 && call.attrs.slot < call.in[1].numel(),
                 "the slot is beyond the amaxes");
  SHARDC_REQUIRE(call.outCount <= copy || !call.attrs.transposed,
                 "a transposed result has no transposed copy");
  return nullptr;
}

const char *acceptsQuantize(const Call &call) { return acceptsScaled(call, 2); }

/// Writes q, its scale and its transposed copy. Returns the amax of x as bits.
template <bool kMarksNonfinite> uint32_t quantizeScaled(const Call &call, int copy) {
  const Tensor &x = call.in[0], &q = call.out[0];
  float amax = static_cast<const float *>(call.in[1].data)[call.attrs.slot];
  float multiplier = multiplierOf(amax, q.dtype);
  auto *plain = call.attrs.transposed ? nullptr : static_cast<uint8_t *>(q.data);
  auto *transposed = call.attrs.transposed  ? static_cast<uint8_t *>(q.data)
                     : call.outCount > copy ? static_cast<uint8_t *>(call.out[copy].data)
                                            : nullptr;
  int64_t rows = x.rows(), cols = x.cols();
  uint32_t most = 0;
  float buffer[kBlock];
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      const float *from = readF32(x, row * cols + begin, n, buffer);
      if (kMarksNonfinite)
        most = std::max(most, largestBits(from, n));
      for (int64_t i = 0; i < n; ++i) {
        bool isLost = kMarksNonfinite && !std::isfinite(from[i]);
        uint8_t bits = toBits(isLost ? kNan : from[i] * multiplier, q.dtype);
        if (plain)
          plain[row * cols + begin + i] = bits;
        if (transposed)
          transposed[(begin + i) * rows + row] = bits;
      }
    }
  *static_cast<float *>(call.out[1].data) = 1.0f / multiplier;
  return most;
}

void runQuantize(const Call &call) { quantizeScaled<false>(call, 2); }

// quantize_delayed

const char *acceptsQuantizeDelayed(const Call &call) { return acceptsScaled(call, 3); }

void runQuantizeDelayed(const Call &call) {
  uint32_t most = quantizeScaled<true>(call, 3);
  float &seen = static_cast<float *>(call.out[2].data)[call.attrs.slot];
  seen = floatOfLargest(std::max(most, std::bit_cast<uint32_t>(seen)));
}

// amax.update

const char *acceptsAmaxUpdate(const Call &call) {
  SHARDC_REQUIRE(call.attrs.interval >= 1, "the interval is not positive");
  return nullptr;
}

/// Appends the amax that a step recorded for a tensor to the tensor's column of the history.
void updateColumn(const Call &call, float *column, int64_t rows, int64_t stride, float seen) {
  uint32_t most = std::bit_cast<uint32_t>(seen);
  for (int64_t row = 1; row < rows; ++row) {
    if (!call.attrs.most_recent)
      most = std::max(most, std::bit_cast<uint32_t>(column[row * stride]));
    column[row * stride] = row + 1 < rows ? column[(row + 1) * stride] : seen;
  }
  float amax = floatOfLargest(most);
  float expected = std::ldexp(amax, static_cast<int>(call.attrs.margin));
  bool isTurn = static_cast<const StepState *>(call.in[2].data)->step % call.attrs.interval == 0;
  if (isTurn && amax > 0 && std::isfinite(expected))
    column[0] = expected;
}

/// A step with gradients that are not finite leaves the history as it is. The amaxes that it has
/// seen are cleared in any case.
void runAmaxUpdate(const Call &call) {
  int64_t rows = call.in[0].rows(), n = call.in[0].cols();
  auto *history = static_cast<float *>(call.out[0].data);
  auto *seen = static_cast<float *>(call.out[1].data);
  for (int64_t i = 0; i < n; ++i) {
    if (!static_cast<const StepState *>(call.in[2].data)->nonfinite)
      updateColumn(call, history + i, rows, n, seen[i]);
    seen[i] = 0;
    static_cast<float *>(call.out[2].data)[i] = history[i];
  }
}

// quantize_blocks

bool isE8M0(const Tensor &scale) { return scale.dtype == DType::U8; }

Extents extentsOf(const Tensor &t) { return {t.rows(), t.cols()}; }

std::optional<ScaleBlocks> blocksOf(const Tensor &scale, const Tensor &operand) {
  if (scale.rank != 2 || (scale.dtype != DType::F32 && !isE8M0(scale)))
    return std::nullopt;
  return shardc::blocksOf(isE8M0(scale), extentsOf(scale), extentsOf(operand));
}

const char *acceptsQuantizeBlocks(const Call &call) {
  const Tensor &x = call.in[0], &q = call.out[0];
  SHARDC_REQUIRE(x.rank >= 2 && q.rank >= 2, "what is quantised is not a matrix");
  SHARDC_REQUIRE(blocksOf(call.out[1], q),
                 "the scales are not those of blocks of 1 by 128, 128 by 128 or 1 by 32");
  return nullptr;
}

/// Writes a block's scale and returns the block's multiplier.
float blockMultiplier(float amax, DType type, const Tensor &scale, int64_t index) {
  BlockScale block = blockScaleOf(amax, type, isE8M0(scale));
  if (isE8M0(scale))
    static_cast<uint8_t *>(scale.data)[index] = block.bits;
  else
    static_cast<float *>(scale.data)[index] = block.scale;
  return block.multiplier;
}

/// Element [row, col] of q before quantisation.
float readOf(const Call &call, int64_t row, int64_t col) {
  const Tensor &x = call.in[0], &q = call.out[0];
  float buffer;
  return *readF32(x, call.attrs.transposed ? col * q.rows() + row : row * q.cols() + col, 1,
                  &buffer);
}

/// Finds the amax of the block, then scales and rounds its numbers.
void quantizeBlock(const Call &call, int64_t row, int64_t col, Extents block, int64_t index) {
  const Tensor &q = call.out[0];
  int64_t rowEnd = std::min(row + block.rows, q.rows());
  int64_t colEnd = std::min(col + block.cols, q.cols());
  uint32_t most = 0;
  for (int64_t r = row; r < rowEnd; ++r)
    for (int64_t c = col; c < colEnd; ++c)
      most = std::max(most, magnitudeBits(readOf(call, r, c)));
  float multiplier = blockMultiplier(std::bit_cast<float>(most), q.dtype, call.out[1], index);
  for (int64_t r = row; r < rowEnd; ++r)
    for (int64_t c = col; c < colEnd; ++c)
      static_cast<uint8_t *>(q.data)[r * q.cols() + c] =
          toBits(readOf(call, r, c) * multiplier, q.dtype);
}

void runQuantizeBlocks(const Call &call) {
  const Tensor &q = call.out[0], &scale = call.out[1];
  ScaleBlocks blocks = *blocksOf(scale, q);
  Extents block = blockOf(blocks);
  for (int64_t row = 0; row < q.rows(); row += block.rows)
    for (int64_t col = 0; col < q.cols(); col += block.cols)
      quantizeBlock(call, row, col, block, scaleIndex(blocks, extentsOf(scale), row, col));
}

// amax_shard, quantize_shard, weight_scales

/// Checks that each range has an amax.
const char *acceptsNumbers(const Call &call) {
  SHARDC_REQUIRE_OK(checkRanges(call, 0, call.in[0]));
  for (const ParamRange &range : rangesOfShard(call, 0))
    SHARDC_REQUIRE(range.number >= 0 && range.number < call.in[1].numel(),
                   "a parameter has no amax");
  return nullptr;
}

void runAmaxShard(const Call &call) {
  const auto *x = static_cast<const float *>(call.in[0].data);
  auto *amax = static_cast<float *>(call.out[0].data);
  for (const ParamRange &range : rangesOfShard(call, 0)) {
    float &most = amax[range.number];
    most = floatOfLargest(std::max(largestBits(x + range.begin, range.end - range.begin),
                                   std::bit_cast<uint32_t>(most)));
  }
}

void runQuantizeShard(const Call &call) {
  const auto *x = static_cast<const float *>(call.in[0].data);
  const auto *amax = static_cast<const float *>(call.in[1].data);
  auto *q = static_cast<uint8_t *>(call.out[0].data);
  for (const ParamRange &range : rangesOfShard(call, 0)) {
    float multiplier = multiplierOf(amax[range.number], DType::F8E4M3);
    for (int64_t i = range.begin; i < range.end; ++i)
      q[i] = toBits(x[i] * multiplier, DType::F8E4M3);
  }
}

void runWeightScales(const Call &call) {
  const auto *amax = static_cast<const float *>(call.in[0].data);
  auto *scales = static_cast<float *>(call.out[0].data);
  for (int64_t i = 0, n = call.in[0].numel(); i < n; ++i)
    std::fill_n(scales + i * 4, 4, 1.0f / multiplierOf(amax[i], DType::F8E4M3));
}

// matmul_scaled

struct Buffers {
  float *a, *b, *bias, *panel;
  int64_t panelRows;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t n = call.out[0].cols();
    a = scratch.take<float>(call.in[0].numel());
    b = scratch.take<float>(call.in[1].numel());
    bias = call.inCount > 4 ? scratch.takeUnlessF32(call.in[4], n) : nullptr;
    constexpr int64_t panelElements = int64_t{1} << 22, panelRowsMin = 128;
    panelRows = std::min(call.out[0].rows(), std::max(panelRowsMin, panelElements / n));
    panel = scratch.take<float>(panelRows * n);
  }
};

const char *acceptsMatMulScaled(const Call &call) {
  const Tensor &a = call.in[0], &b = call.in[1], &c = call.out[0];
  SHARDC_REQUIRE(a.dtype == DType::F8E4M3 || b.dtype == DType::F8E4M3,
                 "both operands are f8e5m2, which no device multiplies");
  SHARDC_REQUIRE(a.rank >= 2 && b.rank >= 2 && c.rank >= 2,
                 "an operand or product is not a matrix");
  int64_t extentMax = std::max({a.rows(), b.rows(), a.cols(), b.cols()});
  SHARDC_REQUIRE(extentMax < (int64_t{1} << 31), "a matrix has 2^31 rows or more");
  bool isOfBlocks = call.in[2].rank == 2;
  for (int i = 2; i < 4; ++i)
    SHARDC_REQUIRE(isOfBlocks ? blocksOf(call.in[i], call.in[i - 2]).has_value() &&
                                    isE8M0(call.in[i]) == isE8M0(call.in[2])
                              : isScalar(call.in[i], DType::F32) && call.in[i].rank == 1,
                   "the scales are neither one f32 each nor those of blocks");
  return nullptr;
}

/// The numbers that the 256 codes of the type represent.
std::array<float, 256> numbersOf(DType type) {
  std::array<float, 256> numbers{};
  for (size_t code = 0; code < numbers.size(); ++code) {
    auto bits = static_cast<uint8_t>(code);
    numbers[code] = ofBits(bits, type);
  }
  return numbers;
}

/// Multiplies by blockwise scales. They are powers of two, so the products are exact.
void applyScales(const Tensor &scale, ScaleBlocks blocks, Extents matrix, float *to) {
  for (int64_t row = 0; row < matrix.rows; ++row)
    for (int64_t col = 0; col < matrix.cols; ++col) {
      int64_t i = scaleIndex(blocks, extentsOf(scale), row, col);
      to[row * matrix.cols + col] *= isE8M0(scale)
                                         ? toFloatE8M0(static_cast<const uint8_t *>(scale.data)[i])
                                         : static_cast<const float *>(scale.data)[i];
    }
}

const float *widen(const Tensor &t, const Tensor &scale, float *to) {
  std::array<float, 256> numbers = numbersOf(t.dtype);
  const auto *bits = static_cast<const uint8_t *>(t.data);
  for (int64_t i = 0, n = t.numel(); i < n; ++i)
    to[i] = numbers[bits[i]];
  if (std::optional<ScaleBlocks> blocks = blocksOf(scale, t))
    applyScales(scale, *blocks, extentsOf(t), to);
  return to;
}

SHARDC_CLONES void finish(float *product, int64_t n, float scale, const float *bias) {
  for (int64_t i = 0; i < n; ++i)
    product[i] = product[i] * scale + (bias ? bias[i] : 0.0f);
}

/// Operands with scales of blocks are multiplied by them as they are widened to fp32; scales of
/// whole operands are applied to the product.
void runMatMulScaled(const Call &call, const Buffers &buffers) {
  const Tensor &c = call.out[0];
  int64_t m = c.rows(), n = c.cols(), k = call.in[0].cols();
  const float *a = widen(call.in[0], call.in[2], buffers.a);
  const float *b = widen(call.in[1], call.in[3], buffers.b);
  const float *bias = call.inCount > 4 ? readF32(call.in[4], 0, n, buffers.bias) : nullptr;
  float scale = call.in[2].rank == 2 ? 1.0f
                                     : *static_cast<const float *>(call.in[2].data) *
                                           *static_cast<const float *>(call.in[3].data);
  for (int64_t row = 0; row < m; row += buffers.panelRows) {
    int64_t rows = std::min(buffers.panelRows, m - row);
    gemm(rows, n, k, 1.0f, {a + row * k, k, false}, {b, k, true}, 0.0f, buffers.panel, n);
    for (int64_t r = 0; r < rows; ++r)
      finish(buffers.panel + r * n, n, scale, bias);
    writeF32(c, row * n, rows * n, buffers.panel);
  }
}

} // namespace

SHARDC_HOST_KERNEL(Amax, runAmax);
SHARDC_HOST_KERNEL(Quantize, runQuantize, acceptsQuantize);
SHARDC_HOST_KERNEL(QuantizeDelayed, runQuantizeDelayed, acceptsQuantizeDelayed);
SHARDC_HOST_KERNEL(AmaxShard, runAmaxShard, acceptsNumbers);
SHARDC_HOST_KERNEL(QuantizeShard, runQuantizeShard, acceptsNumbers);
SHARDC_HOST_KERNEL(WeightScales, runWeightScales);
SHARDC_HOST_KERNEL(AmaxUpdate, runAmaxUpdate, acceptsAmaxUpdate);
SHARDC_HOST_KERNEL(QuantizeBlocks, runQuantizeBlocks, acceptsQuantizeBlocks);
SHARDC_HOST_KERNEL(MatMulScaled, withBuffers<runMatMulScaled>, acceptsMatMulScaled, 1);

} // namespace shardc::kernels::host
