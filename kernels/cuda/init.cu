// init_block: initial values of a shard. Element i of a tensor is std·normalAt(key, i), a constant
// or zero, by its row of the parameter table; elements outside of all ranges are zero. f32, bf16 or
// f16, rounded once; or in bf16 with remainders (remainder.cuh); or records of 64 numbers
// (runtime/base/Nf4Scales.h), one a thread. The numbers are those of
// runtime/base/Philox.h: Box-Muller in fp64 on the words of one Philox block for two elements.
// Mapping: a thread draws one pair; one launch a range. Limited by fp64 functions: 0.34 TB/s,
// 0.17e12 numbers a second, on an H200, 2026-11; runs once.
#include "kernels/api/StepFormulas.h"
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/remainder.cuh"
#include "kernels/host/Ranges.h"
#include "runtime/base/Nf4Scales.h"

namespace shardc::kernels::cuda {
namespace {

constexpr double kTwoPi = 6.283185307179586476925;

struct Draw {
  Data x;
  uint16_t *remainders; ///< null: x is rounded
  int64_t begin, end, globalBegin;
  int64_t columns, stride; ///< elements of a piece of a row, and between the starts of two pieces
  uint64_t key;
  float std;
  ParamRange::Init init;
};

/// Upper bound of the number of pairs that overlap `columns` consecutive elements.
__host__ __device__ int64_t pairsOf(int64_t columns) { return columns / 2 + 1; }

__device__ __forceinline__ void setValue(const Draw &p, int64_t i, float value) {
  if (p.remainders == nullptr)
    return setElement(p.x, i, value);
  MasterBits halves = splitMaster(value);
  static_cast<uint16_t *>(p.x.p)[i] = static_cast<uint16_t>(halves.weight);
  p.remainders[i] = static_cast<uint16_t>(halves.remainder);
}

/// Two consecutive numbers of a parameter's random sequence.
__device__ __forceinline__ float2 drawPair(const Draw &p, int64_t pair) {
  if (p.init == ParamRange::Constant)
    return {p.std, p.std};
  auto index = static_cast<uint64_t>(pair);
  if (p.init != ParamRange::Normal) {
    const uint64_t quad = index / 2;
    uint4 bits =
        philox({static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 1, 0}, p.key);
    auto valueOf = [&](uint32_t word) {
      return step::initialValue(p.init, p.std, static_cast<double>(word) * 0x1p-32);
    };
    return index % 2 == 0 ? float2{valueOf(bits.x), valueOf(bits.y)}
                          : float2{valueOf(bits.z), valueOf(bits.w)};
  }
  uint4 bits =
      philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}, p.key);
  double u1 = (static_cast<double>(bits.x) + 1.0) * 0x1p-32;
  double u2 = static_cast<double>(bits.y) * 0x1p-32;
  double radius = sqrt(-2.0 * log(u1)), sine, cosine;
  sincos(kTwoPi * u2, &sine, &cosine);
  return {p.std * static_cast<float>(radius * cosine), p.std * static_cast<float>(radius * sine)};
}

__global__ void __launch_bounds__(256) drawPairs(const Draw p) {
  awaitPrevious();
  int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  int64_t row = thread / pairsOf(p.columns), begin = p.begin + row * p.columns;
  int64_t end = begin + p.columns, globalBegin = p.globalBegin + row * p.stride;
  int64_t pair = globalBegin / 2 + thread % pairsOf(p.columns);
  int64_t at = begin + 2 * pair - globalBegin; // first element of the pair; may be begin - 1
  if (begin >= p.end || at >= end)
    return;
  const float2 values = drawPair(p, pair);
  if (at >= begin)
    setValue(p, at, values.x);
  if (at + 1 < end)
    setValue(p, at + 1, values.y);
}

constexpr int kBounds = static_cast<int>(kNf4Bounds.size());
struct Nf4Bounds {
  float of[kBounds];
};

__device__ __forceinline__ uint32_t codeOf(const Nf4Bounds &bounds, float x) {
  uint32_t code = 0;
#pragma unroll
  for (int i = 0; i < kBounds; ++i)
    code += x > bounds.of[i] ? 1 : 0;
  return code;
}

/// Draws records of 64 numbers. All extents count records.
__global__ void __launch_bounds__(256) drawBlocks(const Draw p, const Nf4Bounds bounds) {
  awaitPrevious();
  constexpr int kPairs = Nf4Block::kNumbers / 2;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.end - p.begin)
    return;
  int64_t first = (p.globalBegin + i / p.columns * p.stride + i % p.columns) * kPairs;
  float2 pairs[kPairs];
  float scale = 0;
  for (int k = 0; k < kPairs; ++k) {
    pairs[k] = drawPair(p, first + k);
    scale = fmaxf(scale, fmaxf(fabsf(pairs[k].x), fabsf(pairs[k].y)));
  }
  float inverse = __fdiv_rn(1.0f, scale);
  Nf4Block &block = static_cast<Nf4Block *>(p.x.p)[p.begin + i];
  block.scale = scale;
  for (int k = 0; k < kPairs; ++k)
    block.codes[k] = static_cast<uint8_t>(codeOf(bounds, __fmul_rn(pairs[k].x, inverse)) << 4 |
                                          codeOf(bounds, __fmul_rn(pairs[k].y, inverse)));
}

constexpr int kScaleBounds = static_cast<int>(kDynamicMap.size()) - 1;
struct ScaleBounds {
  float of[kScaleBounds];
};

/// Draws records of 512 numbers, once for their scales, and once more for their codes. All extents
/// count records.
__global__ void __launch_bounds__(256)
    drawRecords(const Draw p, const Nf4Bounds bounds,
                const __grid_constant__ ScaleBounds scaleBounds) {
  awaitPrevious();
  constexpr int kBlocks = Nf4Record::kBlocks, kPairs = Nf4Block::kNumbers / 2;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.end - p.begin)
    return;
  const int64_t first =
      (p.globalBegin + i / p.columns * p.stride + i % p.columns) * kBlocks * kPairs;
  float scales[kBlocks], most = 0;
  double sum = 0;
  for (int b = 0; b < kBlocks; ++b) {
    scales[b] = 0;
    for (int k = 0; k < kPairs; ++k) {
      const float2 pair = drawPair(p, first + b * kPairs + k);
      scales[b] = fmaxf(scales[b], fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
    sum += static_cast<double>(scales[b]);
  }
  Nf4Record &record = static_cast<Nf4Record *>(p.x.p)[p.begin + i];
  record.offset = static_cast<float>(sum / kBlocks);
  for (float scale : scales)
    most = fmaxf(most, fabsf(__fsub_rn(scale, record.offset)));
  record.group = most;
  for (int b = 0; b < kBlocks; ++b) {
    const float x = __fmul_rn(__fsub_rn(scales[b], record.offset), __fdiv_rn(1.0f, most));
    uint32_t code = 0;
    for (int at = 128; at > 0; at /= 2) // the number of bounds below x
      code += x > scaleBounds.of[code + at - 1] ? at : 0;
    record.scales[b] = static_cast<uint8_t>(code);
    const float inverse = __fdiv_rn(1.0f, scales[b]);
    for (int k = 0; k < kPairs; ++k) {
      const float2 pair = drawPair(p, first + b * kPairs + k);
      record.codes[b][k] = static_cast<uint8_t>(codeOf(bounds, __fmul_rn(pair.x, inverse)) << 4 |
                                                codeOf(bounds, __fmul_rn(pair.y, inverse)));
    }
  }
}

__global__ void __launch_bounds__(256) clearHalves(uint16_t *x, uint16_t *remainders, int64_t n) {
  awaitPrevious();
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n)
    x[i] = remainders[i] = 0;
}

/// Clears a tensor by one graph node, as the op's row says: a kernel, or a memset.
void clear(const Call &call, const Tensor &x) {
  if (call.outCount > 1) {
    launchKernel(clearHalves, static_cast<unsigned>(ceilDiv(x.numel(), 256)), 256, 0, queueOf(call),
                 static_cast<uint16_t *>(x.data), static_cast<uint16_t *>(call.out[1].data),
                 x.numel());
    return;
  }
  cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.numel() * dtypeBytes(x.dtype)),
                  streamOf(queueOf(call)));
  noteOther(queueOf(call));
}

/// Launches a thread for each of `count` records.
void launchRecords(const Call &call, const Draw &p, int64_t count) {
  const auto blocks = static_cast<unsigned>(ceilDiv(count, 256));
  Nf4Bounds bounds = {};
  std::copy(kNf4Bounds.begin(), kNf4Bounds.end(), bounds.of);
  if (call.out[0].dtype == DType::NF4x64) {
    launchKernel(drawBlocks, blocks, 256, 0, queueOf(call), p, bounds);
    return;
  }
  ScaleBounds scaleBounds = {};
  for (size_t i = 0; i + 1 < kDynamicMap.size(); ++i)
    scaleBounds.of[i] = (kDynamicMap[i] + kDynamicMap[i + 1]) / 2;
  launchKernel(drawRecords, blocks, 256, 0, queueOf(call), p, bounds, scaleBounds);
}

/// One launch per range with random values; constants and zeros were written before by `clear`.
/// Weights in NF4 are drawn and quantised block by block.
void runInitBlock(const Call &call) {
  const Tensor &x = call.out[0];
  clear(call, x);
  for (const ParamRange &range : host::rangesOfShard(call, 0)) {
    if (range.init == ParamRange::Zeros || range.begin == range.end)
      continue;
    int64_t columns = range.columns > 0 ? range.columns : range.end - range.begin;
    int64_t rows = (range.end - range.begin) / columns;
    Draw p = {dataOf(x),
              call.outCount > 1 ? static_cast<uint16_t *>(call.out[1].data) : nullptr,
              range.begin,
              range.end,
              range.globalBegin,
              columns,
              range.stride,
              range.key,
              static_cast<float>(range.initStd),
              range.init};
    if (isRecord(x.dtype)) {
      launchRecords(call, p, rows * columns);
      continue;
    }
    auto blocks = static_cast<unsigned>(ceilDiv(rows * pairsOf(columns), 256));
    launchKernel(drawPairs, blocks, 256, 0, queueOf(call), p);
  }
}

} // namespace

SHARDC_KERNEL(InitBlock, acceptsAs, runInitBlock);

} // namespace shardc::kernels::cuda
