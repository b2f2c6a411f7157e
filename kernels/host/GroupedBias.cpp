// Biases of groups of rows (kernels/host/RowGroups.h); x[n,m], bias[E,m], weights[n,1], y[n,m]. Row
// r belongs to group e.
//  grouped_bias: y[r,:] = x[r,:] + bias[e,:] (·weights[r])
//  grouped_bias_bwd: dbias[e,:] = sum over the rows r of group e in all slots of dy[r,:]
//    (·weights[r]); may accumulate
//  grouped_bias_dot: dweights[r] = dy[r,:]·bias[e,:]
// Rows beyond the counts are neither read nor written. Data are f32, bf16 or f16 each. Sums over
// rows and columns are fp64, everything else is fp32, rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/RowGroups.h"
#include "kernels/host/Rows.h"

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

/// Calls `fn(group, row)` for each valid row, group by group.
template <typename Fn> void forRows(const RowGroups &groups, const Fn &fn) {
  for (int64_t group = 0; group < groups.groups; ++group)
    for (int64_t slot = 0; slot < groups.slots; ++slot)
      for (int64_t i = 0; i < groups.rows(slot, group); ++i)
        fn(group, groups.begin(slot, group) + i);
}

struct GroupBuffers {
  RowGroups groups;

  GroupBuffers(const Call &call, Scratch &scratch)
      : groups(call.in[2], call.in[0].shape[0], scratch) {}
};

void runGroupedBias(const Call &call, GroupBuffers &buffers) {
  buffers.groups.read();
  addBiases(buffers.groups, call.in[0], call.in[1], weightsOf(call, 3), call.out[0]);
}

struct SumBuffers {
  RowGroups groups;
  float *dy, *rounded;
  double *sums;

  SumBuffers(const Call &call, Scratch &scratch)
      : groups(call.in[1], call.in[0].shape[0], scratch) {
    int64_t cols = call.in[0].cols();
    dy = scratch.takeUnlessF32(call.in[0], cols);
    rounded = scratch.take<float>(cols);
    sums = scratch.take<double>(cols);
  }
};

/// A group's gradient is the sum of its rows in all slots, each times its weight if there are
/// weights.
void runGroupedBiasBwd(const Call &call, SumBuffers &buffers) {
  RowGroups &groups = buffers.groups;
  groups.read();
  const Tensor *weights = weightsOf(call, 2);
  int64_t cols = call.in[0].cols();
  for (int64_t group = 0; group < groups.groups; ++group) {
    std::fill_n(buffers.sums, cols, 0.0);
    for (int64_t slot = 0; slot < groups.slots; ++slot)
      for (int64_t i = 0; i < groups.rows(slot, group); ++i) {
        int64_t row = groups.begin(slot, group) + i;
        addProducts(readF32(call.in[0], row * cols, cols, buffers.dy), weightOf(weights, row), cols,
                    buffers.sums);
      }
    writeSums(call.out[0], group * cols, cols, buffers.sums, buffers.rounded);
  }
}

/// The bias's part of the gradient of a row's weight: the dot product of dy and the bias of the
/// row's group.
void runGroupedBiasDot(const Call &call, GroupBuffers &buffers) {
  buffers.groups.read();
  int64_t cols = call.in[0].cols();
  float dy[kBlock], bias[kBlock];
  forRows(buffers.groups, [&](int64_t group, int64_t row) {
    double sum = 0;
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin);
      sum += dot(readF32(call.in[0], row * cols + begin, n, dy),
                 readF32(call.in[1], group * cols + begin, n, bias), n);
    }
    auto product = static_cast<float>(sum);
    writeF32(call.out[0], row, 1, &product);
  });
}

} // namespace

void addBiases(const RowGroups &groups, const Tensor &x, const Tensor &bias, const Tensor *weights,
               const Tensor &y) {
  int64_t cols = y.cols();
  float ofRow[kBlock], ofGroup[kBlock], sum[kBlock];
  forRows(groups, [&](int64_t group, int64_t row) {
    float weight = weightOf(weights, row);
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * cols + begin;
      float *to = targetF32(y, offset, sum);
      addScaled(readF32(x, offset, n, ofRow), readF32(bias, group * cols + begin, n, ofGroup),
                weight, n, to);
      writeF32(y, offset, n, to);
    }
  });
}

SHARDC_HOST_KERNEL(GroupedBias, withBuffers<runGroupedBias>, acceptsCounts<2>);
SHARDC_HOST_KERNEL(GroupedBiasBwd, withBuffers<runGroupedBiasBwd>, acceptsCounts<1>, 1);
SHARDC_HOST_KERNEL(GroupedBiasDot, withBuffers<runGroupedBiasDot>, acceptsCounts<2>);

} // namespace shardc::kernels::host
