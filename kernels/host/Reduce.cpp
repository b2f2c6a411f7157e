// Reductions. reduce_rows: y[C] = sum of x's rows (may accumulate). token_count: n = sum of the
// mask. sum_squares: ss = sum of squares of the valid elements of a list of shards; a list element
// may already be such a sum. Sums are fp64 in a fixed order, so that a norm rounded to fp32 does
// not depend on how its elements are divided. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Ranges.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

struct Buffers {
  float *x, *y;
  double *sums;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t cols = call.in[0].cols();
    x = scratch.take<float>(cols);
    y = scratch.take<float>(cols);
    sums = scratch.take<double>(cols);
  }
};

void runReduceRows(const Call &call, const Buffers &buffers) {
  int64_t rows = call.in[0].rows(), n = call.in[0].cols();
  std::fill_n(buffers.sums, n, 0.0);
  for (int64_t row = 0; row < rows; ++row)
    addTerms(readF32(call.in[0], row * n, n, buffers.x), n, buffers.sums);
  writeSums(call.out[0], 0, n, buffers.sums, buffers.y);
}

void runTokenCount(const Call &call) {
  const Tensor &mask = call.in[0];
  double count = sum(static_cast<const float *>(mask.data), mask.numel());
  *static_cast<float *>(call.out[0].data) = static_cast<float>(count);
}

const char *acceptsSumSquares(const Call &call) {
  SHARDC_REQUIRE(call.listCount >= 0 && (call.listCount == 0 || call.list),
                 "the list of gradients is not given");
  SHARDC_REQUIRE(call.listCount <= 1 || call.rangesOf, "several gradients lack bounds of ranges");
  SHARDC_REQUIRE(copiesOf(call) > 0, "the copies of gradients are not positive, or have no common "
                                     "multiple of at most 2^40");
  for (int64_t i = 0; i < call.listCount; ++i) {
    SHARDC_REQUIRE_OK(checkTensor(call.list[i]));
    SHARDC_REQUIRE(isData(call.list[i]) || isScalar(call.list[i], DType::F64),
                   "sum_squares takes f32, bf16 and f16, and sums as f64[1]");
    SHARDC_REQUIRE_OK(checkRanges(call, i, call.list[i]));
    SHARDC_REQUIRE(isData(call.list[i]) || rangesOfShard(call, i).empty(),
                   "a sum of squares has ranges");
  }
  return nullptr;
}

/// A gradient that n ranks have counts as 1/n; see copiesOf(). An f64 in the list is a sum of
/// squares that another op has made.
void runSumSquares(const Call &call) {
  double total = 0;
  const int64_t copies = copiesOf(call);
  for (int64_t i = 0; i < call.listCount; ++i) {
    const auto times = static_cast<double>(timesOf(call, i, copies));
    if (!isData(call.list[i]))
      total += times * *static_cast<const double *>(call.list[i].data);
    for (const ParamRange &range : rangesOfShard(call, i))
      addSquares(call.list[i], range.begin, range.end, times, total);
  }
  *static_cast<double *>(call.out[0].data) = total / static_cast<double>(copies);
}

} // namespace

SHARDC_HOST_KERNEL(ReduceRows, withBuffers<runReduceRows>, nullptr, 1);
SHARDC_HOST_KERNEL(TokenCount, runTokenCount);
SHARDC_HOST_KERNEL(SumSquares, runSumSquares, acceptsSumSquares);

} // namespace shardc::kernels::host
