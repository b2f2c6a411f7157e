// Biases of runs of rows (kernels/host/Runs.h). grouped_bias: y[r,:] = x[r,:] + bias[e,:]
// (·weights[r]) of each row r of run e, x[n,m], bias[E,m], weights[n,1], y[n,m]. grouped_bias_bwd:
// dbias[e,:] = sum over the rows r of run e of all slots of dy[r,:] (·weights[r]); may accumulate.
// grouped_bias_dot: dweights[r] = dy[r,:]·bias[e,:]. Rows that are not counted are neither read nor
// written. Data are f32, bf16 or f16 each; sums over rows and columns are fp64, all else is fp32,
// rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Runs.h"
#include "kernels/host/Scratch.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

SHARDC_CLONES void addScaled(const float *x, const float *bias, float weight, int64_t n, float *y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = x[i] + bias[i] * weight;
}

SHARDC_CLONES void addProducts(const float *x, float weight, int64_t n, double *sums) {
  for (int64_t i = 0; i < n; ++i)
    sums[i] += static_cast<double>(x[i] * weight);
}

float weightOf(const Tensor *weights, int64_t row) {
  float weight = 1;
  return weights == nullptr ? weight : *readF32(*weights, row, 1, &weight);
}

const Tensor *weightsOf(const Call &call, int index) {
  return call.inCount > index ? &call.in[index] : nullptr;
}

/// Calls `fn(run, row)` for each row that is there, run by run.
template <typename Fn> void forRows(const Runs &runs, const Fn &fn) {
  for (int64_t run = 0; run < runs.runs; ++run)
    for (int64_t slot = 0; slot < runs.slots; ++slot)
      for (int64_t i = 0; i < runs.rows(slot, run); ++i)
        fn(run, runs.begin(slot, run) + i);
}

struct RunBuffers {
  Runs runs;

  RunBuffers(const Call &call, Scratch &scratch) : runs(call.in[2], call.in[0].shape[0], scratch) {}
};

const char *acceptsGroupedBias(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 4, 1, 1}));
  const Tensor &x = call.in[0], &y = call.out[0];
  SHARDC_REQUIRE_OK(checkBiases(x, call.in[1], call.in[2], weightsOf(call, 3)));
  SHARDC_REQUIRE(isData(y) && y.rank == 2 && sameMatrix(x, y), "x and y differ in shape");
  return nullptr;
}

void runGroupedBias(const Call &call) {
  Scratch scratch(call);
  RunBuffers buffers(call, scratch);
  buffers.runs.read();
  addBiases(buffers.runs, call.in[0], call.in[1], weightsOf(call, 3), call.out[0]);
}

struct SumBuffers {
  Runs runs;
  float *dy, *rounded;
  double *sums;

  SumBuffers(const Call &call, Scratch &scratch) : runs(call.in[1], call.in[0].shape[0], scratch) {
    int64_t cols = call.in[0].cols();
    dy = scratch.takeUnlessF32(call.in[0], cols);
    rounded = scratch.take<float>(cols);
    sums = scratch.take<double>(cols);
  }
};

const char *acceptsGroupedBiasBwd(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {2, 3, 1, 1, 1}));
  return checkBiases(call.in[0], call.out[0], call.in[1], weightsOf(call, 2));
}

void runGroupedBiasBwd(const Call &call) {
  Scratch scratch(call);
  SumBuffers buffers(call, scratch);
  Runs &runs = buffers.runs;
  runs.read();
  const Tensor *weights = weightsOf(call, 2);
  int64_t cols = call.in[0].cols();
  for (int64_t run = 0; run < runs.runs; ++run) {
    std::fill_n(buffers.sums, cols, 0.0);
    for (int64_t slot = 0; slot < runs.slots; ++slot)
      for (int64_t i = 0; i < runs.rows(slot, run); ++i) {
        int64_t row = runs.begin(slot, run) + i;
        addProducts(readF32(call.in[0], row * cols, cols, buffers.dy), weightOf(weights, row), cols,
                    buffers.sums);
      }
    writeSums(call.out[0], run * cols, cols, buffers.sums, buffers.rounded);
  }
}

const char *acceptsGroupedBiasDot(const Call &call) {
  SHARDC_REQUIRE_OK(checkArity(call, {3, 3, 1, 1}));
  return checkBiases(call.in[0], call.in[1], call.in[2], &call.out[0]);
}

void runGroupedBiasDot(const Call &call) {
  Scratch scratch(call);
  RunBuffers buffers(call, scratch);
  buffers.runs.read();
  int64_t cols = call.in[0].cols();
  float dy[kBlock], bias[kBlock];
  forRows(buffers.runs, [&](int64_t run, int64_t row) {
    double sum = 0;
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      sum += dot(readF32(call.in[0], row * cols + begin, n, dy),
                 readF32(call.in[1], run * cols + begin, n, bias), n);
    }
    auto product = static_cast<float>(sum);
    writeF32(call.out[0], row, 1, &product);
  });
}

} // namespace

const char *checkBiases(const Tensor &rows, const Tensor &bias, const Tensor &counts,
                        const Tensor *weights) {
  SHARDC_REQUIRE(isData(rows) && isData(bias) && (weights == nullptr || isData(*weights)),
                 "rows, biases and weights are not f32, bf16 or f16");
  SHARDC_REQUIRE(rows.rank == 2 && bias.rank == 2 && bias.cols() == rows.cols(),
                 "rows and biases are not [n, m] and [E, m]");
  SHARDC_REQUIRE_OK(checkCounts(counts, rows.rows()));
  SHARDC_REQUIRE(counts.shape[1] == bias.shape[0], "there is not one bias for each run");
  SHARDC_REQUIRE(weights == nullptr ||
                     (weights->rank == 2 && weights->cols() == 1 && weights->rows() == rows.rows()),
                 "there is not one weight for each row");
  return nullptr;
}

void addBiases(const Runs &runs, const Tensor &x, const Tensor &bias, const Tensor *weights,
               const Tensor &y) {
  int64_t cols = y.cols();
  float ofRow[kBlock], ofRun[kBlock], sum[kBlock];
  forRows(runs, [&](int64_t run, int64_t row) {
    float weight = weightOf(weights, row);
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * cols + begin;
      float *to = targetF32(y, offset, sum);
      addScaled(readF32(x, offset, n, ofRow), readF32(bias, run * cols + begin, n, ofRun), weight,
                n, to);
      writeF32(y, offset, n, to);
    }
  });
}

const Kernel kGroupedBias = {"grouped_bias_host", runGroupedBias, acceptsGroupedBias,
                             workspaceOf<RunBuffers>};
const Kernel kGroupedBiasBwd = {"grouped_bias_bwd_host", runGroupedBiasBwd, acceptsGroupedBiasBwd,
                                workspaceOf<SumBuffers>};
const Kernel kGroupedBiasDot = {"grouped_bias_dot_host", runGroupedBiasDot, acceptsGroupedBiasDot,
                                workspaceOf<RunBuffers>};

} // namespace shardc::kernels::host
