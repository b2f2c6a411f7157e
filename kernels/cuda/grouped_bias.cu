// Biases of groups of rows; x[n,m], bias[E,m], weights[n,1], y[n,m]. Row r belongs to group e.
//   grouped_bias: y[r,:] = x[r,:] + bias[e,:] (·weights[r])
//   grouped_bias_bwd: dbias[e,:] (+)= sum over the rows r of group e in all slots of dy[r,:]
//     (·weights[r])
//   grouped_bias_dot: dweights[r] = dy[r,:]·bias[e,:]
// Data are f32, bf16 or f16 each. Sums over rows are fp32, in an order that does not depend on the
// order of blocks. grouped_bias_dot adds sums of eight fp32 products in fp64. Results are rounded
// once. Rows beyond the counts are neither read nor written. Mapping: a block of grouped_bias
// processes 16 rows, a thread one chunk of 8 columns of each. A warp of grouped_bias_dot processes
// a row. Both find the group of a row by adding the counts of its slot. A block of grouped_bias_bwd
// processes 256 columns of one group, in one of up to 16 parts of its rows in each slot, so that
// many blocks share the rows of a popular expert; each of its 8 warps adds every eighth row. A
// second kernel adds the parts in order. Limited by memory.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/counts.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kRows = 16; ///< rows per block of grouped_bias
constexpr int kWarps = 8; ///< warps per block of the other kernels

struct Biased {
  Data rows, bias, weights, to;
  Counts counts;
  int64_t rowCount, cols;
  bool isWeighted;

  __device__ float weight(int64_t row) const { return isWeighted ? element(weights, row) : 1.0f; }
};

/// A block processes kRows rows and a part of the columns. The bias of a group is loaded again only
/// when the group changes, since the rows of a group are adjacent.
template <Mode M> __global__ void __launch_bounds__(256) addBiases(const Biased p) {
  awaitPrevious();
  __shared__ int32_t groups[kRows];
  int64_t first = int64_t{blockIdx.x} * kRows;
  if (threadIdx.x < kRows)
    groups[threadIdx.x] =
        first + threadIdx.x < p.rowCount ? p.counts.groupOf(first + threadIdx.x) : -1;
  __syncthreads();
  int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kChunk;
  if (c >= p.cols)
    return;
  int n = upToChunk(p.cols - c);
  float bias[kChunk] = {};
  int32_t loaded = -1;
  for (int i = 0; i < kRows; ++i) {
    int32_t group = groups[i];
    if (group < 0)
      continue;
    if (group != loaded)
      load8<M>(p.bias, group * p.cols + c, n, bias);
    loaded = group;
    int64_t row = first + i;
    float v[kChunk], weight = p.weight(row);
    load8<M>(p.rows, row * p.cols + c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] += bias[j] * weight;
    store8<M>(p.to, row * p.cols + c, n, v);
  }
}

void runGroupedBias(const Call &call) {
  launchBiases(call.in[0], call.in[1], call.in[2], call.inCount > 3 ? &call.in[3] : nullptr,
               call.out[0], queueOf(call));
}

/// Computes partials[part, group, :].
template <Mode M>
__global__ void __launch_bounds__(kWarps *kWarp) sumGroups(const Biased p, float *partials) {
  awaitPrevious();
  __shared__ float lanes[kWarps][kWarp * kChunk];
  int64_t group = blockIdx.y, c = (int64_t{blockIdx.x} * kWarp + threadIdx.x) * kChunk;
  int n = upToChunk(p.cols - c);
  float sum[kChunk] = {}, v[kChunk];
  for (int64_t slot = 0; slot < p.counts.slots; ++slot) {
    int64_t begin = 0;
    for (int64_t before = 0; before < group; ++before)
      begin += p.counts.rowsOf(slot, before, begin);
    int64_t rows = p.counts.rowsOf(slot, group, begin), offset = slot * p.counts.slotRows;
    int64_t ofPart = (rows + gridDim.z - 1) / gridDim.z;
    int64_t end = begin + min(rows, (blockIdx.z + 1) * ofPart);
    begin += blockIdx.z * ofPart;
    if (c < p.cols)
#pragma unroll 8 // so that loads of eight rows are under way
      for (int64_t row = offset + begin + threadIdx.y; row < offset + end; row += kWarps) {
        float weight = p.weight(row);
        load8<M>(p.rows, row * p.cols + c, n, v);
#pragma unroll
        for (int j = 0; j < kChunk; ++j)
          sum[j] += v[j] * weight;
      }
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j)
    lanes[threadIdx.y][threadIdx.x * kChunk + j] = sum[j];
  __syncthreads();
  int64_t column = int64_t{blockIdx.x} * kWarp * kChunk + threadIdx.y * kWarp + threadIdx.x;
  if (column >= p.cols)
    return;
  float total = 0;
#pragma unroll
  for (int lane = 0; lane < kWarps; ++lane)
    total += lanes[lane][threadIdx.y * kWarp + threadIdx.x];
  partials[(blockIdx.z * p.counts.groups + group) * p.cols + column] = total;
}

/// Number of parts into which each group's rows are divided. All groups of a layer together then
/// have a few hundred blocks per 256 columns.
int partsOf(int64_t groups) {
  constexpr int64_t kPartsMax = 16, kPartsOfAll = 256;
  return static_cast<int>(std::clamp<int64_t>(kPartsOfAll / groups, 1, kPartsMax));
}

struct SumBuffers {
  float *partials;

  SumBuffers(const Call &call, Scratch &scratch) {
    const Tensor &dbias = call.out[0];
    partials = scratch.take<float>(partsOf(dbias.shape[0]) * dbias.numel());
  }
};

void runGroupedBiasBwd(const Call &call, const SumBuffers &buffers) {
  const Tensor &dy = call.in[0], &dbias = call.out[0];
  bool isWeighted = call.inCount > 2;
  Biased p = {dataOf(dy),
              {},
              isWeighted ? dataOf(call.in[2]) : Data{},
              dataOf(dbias),
              countsOf(call.in[1], dy.rows()),
              dy.rows(),
              dy.cols(),
              isWeighted};
  int parts = partsOf(p.counts.groups);
  dim3 grid(static_cast<unsigned>(ceilDiv(p.cols, kWarp * kChunk)),
            static_cast<unsigned>(p.counts.groups), static_cast<unsigned>(parts));
  forMode(modeOf({&dy}, p.cols), [&]<Mode M>() {
    launchKernel(sumGroups<M>, grid, dim3(kWarp, kWarps), 0, queueOf(call), p, buffers.partials);
  });
  ColumnTargets targets = {};
  targets.out[0] = dataOf(dbias);
  launchAddPartials(call, buffers.partials, parts, 1, p.counts.groups * p.cols, targets);
}

template <Mode M> __global__ void __launch_bounds__(kWarps *kWarp) multiplyBiases(const Biased p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= p.rowCount)
    return;
  int64_t group = p.counts.groupOf(row);
  if (group < 0)
    return;
  double sum = 0;
  for (int64_t c = threadIdx.x % kWarp * kChunk; c < p.cols; c += kWarp * kChunk) {
    float a[kChunk], b[kChunk], part = 0;
    load8<M>(p.rows, row * p.cols + c, upToChunk(p.cols - c), a);
    load8<M>(p.bias, group * p.cols + c, upToChunk(p.cols - c), b);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      part += a[j] * b[j];
    sum += static_cast<double>(part);
  }
  sum = warpSum(sum);
  if (threadIdx.x % kWarp == 0)
    setElement(p.to, row, static_cast<float>(sum));
}

void runGroupedBiasDot(const Call &call) {
  const Tensor &dy = call.in[0], &bias = call.in[1];
  Biased p = {dataOf(dy), dataOf(bias), {},   dataOf(call.out[0]), countsOf(call.in[2], dy.rows()),
              dy.rows(),  dy.cols(),    false};
  auto blocks = static_cast<unsigned>(ceilDiv(p.rowCount, kWarps));
  forMode(modeOf({&dy, &bias}, p.cols), [&]<Mode M>() {
    launchKernel(multiplyBiases<M>, blocks, kWarps * kWarp, 0, queueOf(call), p);
  });
}

} // namespace

void launchBiases(const Tensor &x, const Tensor &bias, const Tensor &counts, const Tensor *weights,
                  const Tensor &y, Queue &queue) {
  Biased p = {dataOf(x),
              dataOf(bias),
              weights != nullptr ? dataOf(*weights) : Data{},
              dataOf(y),
              countsOf(counts, x.rows()),
              x.rows(),
              x.cols(),
              weights != nullptr};
  int threads = threadsForRow(p.cols, 256);
  dim3 grid(static_cast<unsigned>(ceilDiv(p.rowCount, kRows)),
            static_cast<unsigned>(ceilDiv(p.cols, int64_t{threads} * kChunk)));
  forMode(modeOf({&x, &bias, &y}, p.cols),
          [&]<Mode M>() { launchKernel(addBiases<M>, grid, threads, 0, queue, p); });
}

SHARDC_KERNEL(GroupedBias, acceptsAs, runGroupedBias);
SHARDC_KERNEL(GroupedBiasBwd, acceptsAs, withBuffers<runGroupedBiasBwd>);
SHARDC_KERNEL(GroupedBiasDot, acceptsAs, runGroupedBiasDot);

} // namespace shardc::kernels::cuda
