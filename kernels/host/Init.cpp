// init_block: initial values of a shard. Element i of a tensor is std·normalAt(key, i) in fp32, a
// function of a uniform number (initialValue), a constant or zero, according to its row of the
// parameter table; elements outside all ranges are zero. f32, bf16 or f16, rounded once; or in bf16
// with remainders in u16 (runtime/base/Remainder.h); or records of numbers in 4 bits
// (runtime/base/Nf4Scales.h), of which all counts of elements are. Limited by the logarithm and the
// sines, two elements at a time.
#include "kernels/api/StepFormulas.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Ranges.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Nf4Scales.h"
#include "runtime/base/Philox.h"
#include "runtime/base/Remainder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace shardc::kernels::host {
namespace {

bool isOfBlocks(const Call &call) { return isRecord(call.out[0].dtype); }

const char *acceptsInitBlock(const Call &call) {
  SHARDC_REQUIRE(isData(call.out[0]) || (isOfBlocks(call) && call.outCount == 1),
                 "init_block writes f32, bf16, f16, nf4x64 and nf4x512");
  if (call.outCount > 1)
    SHARDC_REQUIRE(call.out[0].dtype == DType::BF16, "weights beside remainders are not bf16");
  SHARDC_REQUIRE_OK(checkRanges(call, 0, call.out[0]));
  for (const ParamRange &range : rangesOfShard(call, 0)) {
    SHARDC_REQUIRE(range.globalBegin >= 0, "a range begins before its parameter");
    SHARDC_REQUIRE(range.columns == 0 || (range.columns > 0 && range.columns <= range.stride &&
                                          (range.end - range.begin) % range.columns == 0),
                   "a range does not consist of equal parts of rows");
    SHARDC_REQUIRE(range.init <= ParamRange::StepBias,
                   "a parameter's kind of initial values is not known");
    SHARDC_REQUIRE(std::isfinite(range.initStd), "a standard deviation or constant is not finite");
  }
  return nullptr;
}

/// values[i] = std · the normally distributed number of element begin + i of the random sequence.
void drawNormals(uint64_t key, uint64_t begin, int64_t n, float std, float *values) {
  for (int64_t i = 0; i < n;) {
    uint64_t index = begin + static_cast<uint64_t>(i);
    std::array<float, 2> pair = normalPairAt(key, index / 2);
    for (size_t half = index % 2; half < 2 && i < n; ++half, ++i)
      values[i] = std * pair[half];
  }
}

void writeValues(const Call &call, int64_t begin, int64_t n, const float *values) {
  if (call.outCount == 1)
    return writeF32(call.out[0], begin, n, values);
  for (int64_t i = 0; i < n; ++i) {
    MasterHalves halves = splitMaster(values[i]);
    static_cast<BF16 *>(call.out[0].data)[begin + i] = halves.weight;
    static_cast<uint16_t *>(call.out[1].data)[begin + i] = halves.remainder;
  }
}

/// Fills elements [from, end) of x, which are the elements of the tensor from `globalBegin` on.
void fillRow(const Call &call, const ParamRange &range, int64_t from, int64_t end,
             int64_t globalBegin) {
  float values[kBlock];
  std::fill_n(values, kBlock, static_cast<float>(range.initStd));
  for (int64_t begin = from; begin < end; begin += kBlock) {
    int64_t n = std::min(kBlock, end - begin);
    if (range.init == ParamRange::Normal)
      drawNormals(range.key, static_cast<uint64_t>(globalBegin + begin - from), n,
                  static_cast<float>(range.initStd), values);
    for (int64_t i = 0; range.init > ParamRange::Normal && i < n; ++i)
      values[i] = step::initialValue(
          range.init, static_cast<float>(range.initStd),
          uniformAt(range.key, static_cast<uint64_t>(globalBegin + begin - from + i)));
    writeValues(call, begin, n, values);
  }
}

/// Fills the NF4 records from `from` to `end` - 1.
void fillRowOfBlocks(const Call &call, const ParamRange &range, int64_t from, int64_t end,
                     int64_t globalBegin) {
  const Tensor &x = call.out[0];
  const int64_t count = numbersIn(x.dtype);
  float numbers[Nf4Record::kNumbers];
  std::fill_n(numbers, count, static_cast<float>(range.initStd));
  for (int64_t i = from; i < end; ++i) {
    if (range.init == ParamRange::Normal)
      drawNormals(range.key, static_cast<uint64_t>((globalBegin + i - from) * count), count,
                  static_cast<float>(range.initStd), numbers);
    if (x.dtype == DType::NF4x64)
      static_cast<Nf4Block *>(x.data)[i] = toNf4(numbers);
    else
      static_cast<Nf4Record *>(x.data)[i] = toNf4Record(numbers);
  }
}

/// Clears everything first, padding included. A random number depends on the element's index in the
/// whole parameter, so sharding does not change it.
void runInitBlock(const Call &call) {
  for (int i = 0; i < call.outCount; ++i)
    std::memset(call.out[i].data, 0,
                static_cast<size_t>(call.out[i].numel() * dtypeBytes(call.out[i].dtype)));
  for (const ParamRange &range : rangesOfShard(call, 0)) {
    if (range.init == ParamRange::Zeros)
      continue;
    int64_t columns = range.columns > 0 ? range.columns : range.end - range.begin;
    for (int64_t begin = range.begin, global = range.globalBegin; begin < range.end;
         begin += columns, global += range.stride)
      (isOfBlocks(call) ? fillRowOfBlocks : fillRow)(call, range, begin, begin + columns, global);
  }
}

} // namespace

SHARDC_HOST_KERNEL(InitBlock, runInitBlock, acceptsInitBlock);

} // namespace shardc::kernels::host
