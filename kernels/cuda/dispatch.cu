// Dispatch of rows to groups (experts), and combination of the groups' rows.
//   make_runs: group ids i32[T,K], id = slot·groups + group -> counts i32[slots,groups], places
//     i32[T,K] among `bound` rows. A group has its rows in the order of t, then k. If a slot is too
//     small, its first groups get its rows. A choice beyond the slot's capacity gets place -2, and
//     a choice with an invalid id gets place -1. Neither is counted.
//   dispatch: y[places[t,k],:] = x[t,:] (·weights[t,k])
//   combine: x[t,:] = sum over k, in order, of y[places[t,k],:] (·weights[t,k]); NaN if a place is
//     -2
//   combine_bwd: dweights[t,k] (+)= dx[t,:]·y[places[t,k],:]
// Places outside y are skipped. Data and weights are f32, bf16 or f16 each. Sums are fp32, except
// that combine_bwd adds sums of eight fp32 products in fp64. Results are rounded once. Mapping:
// make_runs sorts ids stably and finds the first choice of each group by bisection; a choice's
// place is its distance from the slot's first choice. In dispatch and combine, a row of x has its
// own blocks, and a thread loads several chunks of 8 elements at a time; x is read once for all K.
// In combine_bwd, a warp computes one weight's gradient. Limited by memory; make_runs is limited by
// the latency of its launches.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/Sort.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/router.cuh"
#include "kernels/host/Router.h"
#include "runtime/base/Router.h"

namespace shardc::kernels::cuda {
namespace {

// ---- make_runs ----

/// Writes sort keys: the group id, or the number of groups if the id is invalid.
__global__ void __launch_bounds__(256)
    makeGroupKeys(const int32_t *ids, int64_t count, int32_t groups, uint32_t *keys,
                  int32_t *order) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count)
    return;
  int32_t id = ids[i];
  keys[i] = static_cast<uint32_t>(id >= 0 && id < groups ? id : groups);
  order[i] = static_cast<int32_t>(i);
}

struct Sorted {
  const uint32_t *keys;
  const int32_t *order;
  int64_t count, slotRows;
  int32_t groups, groupsOfSlot; ///< groups of all slots, and of one slot
  int32_t *firsts;              ///< first key of each group, and of invalid ids
  int32_t *counts, *places;
};

__global__ void __launch_bounds__(256) findFirsts(const Sorted p) {
  awaitPrevious();
  auto group = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (group > p.groups)
    return;
  int64_t from = 0, to = p.count; // finds the first key that is not below `group`
  while (from < to) {
    int64_t middle = (from + to) / 2;
    if (p.keys[middle] < static_cast<uint32_t>(group))
      from = middle + 1;
    else
      to = middle;
  }
  p.firsts[group] = static_cast<int32_t>(from);
}

__global__ void __launch_bounds__(256) givePlaces(const Sorted p) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < p.groups) {
    auto group = static_cast<int32_t>(i);
    int64_t first = p.firsts[group / p.groupsOfSlot * p.groupsOfSlot];
    int64_t begin = min(p.firsts[group] - first, p.slotRows);
    p.counts[group] = static_cast<int32_t>(min(p.firsts[group + 1] - first, p.slotRows) - begin);
  }
  if (i >= p.count)
    return;
  auto group = static_cast<int32_t>(p.keys[i]);
  int64_t place = kNoGroup;
  if (group < p.groups) {
    int32_t slot = group / p.groupsOfSlot;
    int64_t inSlot = i - p.firsts[slot * p.groupsOfSlot];
    place = inSlot < p.slotRows ? slot * p.slotRows + inSlot : int64_t{kOverCapacity};
  }
  p.places[p.order[i]] = static_cast<int32_t>(place);
}

struct Buffers {
  uint32_t *keys, *sortedKeys;
  int32_t *order, *sortedOrder, *firsts;
  std::byte *temporary;
  size_t temporaryBytes = 0;
  SortedPairs pairs;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t count = call.in[0].numel(), groups = call.out[0].numel();
    keys = scratch.take<uint32_t>(count), sortedKeys = scratch.take<uint32_t>(count);
    order = scratch.take<int32_t>(count), sortedOrder = scratch.take<int32_t>(count);
    firsts = scratch.take<int32_t>(groups + 1);
    pairs = {keys, order, sortedKeys, sortedOrder, count, bitsOfKeys(groups)};
    static_cast<void>(sortPairs(pairs, nullptr, temporaryBytes, nullptr)); // sorting reports errors
    temporary = scratch.take<std::byte>(static_cast<int64_t>(temporaryBytes));
  }
};

/// Sorts the pairs (group, position) by group with a stable radix sort, finds the first pair of
/// each group, and numbers the rows of each group from there. The order of rows within a group is
/// that of tokens.
void runMakeRuns(const Call &call, Buffers &buffers) {
  const Tensor &ids = call.in[0], &counts = call.out[0], &places = call.out[1];
  Queue &queue = queueOf(call);
  auto groups = static_cast<int32_t>(counts.numel());
  auto blocks = [](int64_t threads) { return static_cast<unsigned>(ceilDiv(threads, 256)); };
  launchKernel(makeGroupKeys, blocks(ids.numel()), 256, 0, queue,
               static_cast<const int32_t *>(ids.data), ids.numel(), groups, buffers.keys,
               buffers.order);
  cudaError_t error =
      sortPairs(buffers.pairs, buffers.temporary, buffers.temporaryBytes, streamOf(queue));
  if (error != cudaSuccess)
    reportError(queue, "cub::DeviceRadixSort::SortPairs", error);
  noteOther(queue);
  Sorted p = {buffers.sortedKeys,
              buffers.sortedOrder,
              ids.numel(),
              call.attrs.bound / counts.shape[0],
              groups,
              static_cast<int32_t>(counts.shape[1]),
              buffers.firsts,
              static_cast<int32_t *>(counts.data),
              static_cast<int32_t *>(places.data)};
  launchKernel(findFirsts, blocks(groups + 1), 256, 0, queue, p);
  launchKernel(givePlaces, blocks(std::max<int64_t>(ids.numel(), groups)), 256, 0, queue, p);
}

// ---- rows ----

/// The places of a row's choices, and their weights if there are any.
struct Choices {
  const int32_t *places;
  Data weights;
  int64_t count, rows; ///< choices per row of x; rows of y
  bool isWeighted;

  __device__ bool isIn(int64_t place) const { return place >= 0 && place < rows; }
  __device__ float weight(int64_t i) const { return isWeighted ? element(weights, i) : 1.0f; }
};

Choices choicesOf(const Call &call, const Tensor &places, const Tensor &y) {
  Choices choices = {static_cast<const int32_t *>(places.data), {}, places.shape[1], y.shape[0]};
  choices.isWeighted = call.inCount > 2;
  if (choices.isWeighted)
    choices.weights = dataOf(call.in[2]);
  return choices;
}

struct Dispatch {
  Data x, y;
  Choices choices;
  int64_t rows, cols; ///< rows and columns of x
};

/// Number of chunks of a row that a thread of dispatch loads at a time.
constexpr int kDispatchAhead = 4;

/// Each warp row of a block reads one row of x once, in kDispatchAhead chunks per thread, and
/// writes it, weighted, to the place of each of its choices.
template <Mode M> __global__ void __launch_bounds__(256, 4) dispatchRows(const Dispatch p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= p.rows)
    return;
  int64_t step = int64_t{blockDim.x} * kChunk;
  int64_t first = blockIdx.y * step * kDispatchAhead + threadIdx.x * kChunk;
  Chunk<M> chunks[kDispatchAhead];
#pragma unroll
  for (int a = 0; a < kDispatchAhead; ++a)
    if (int64_t c = first + a * step; c < p.cols)
      chunks[a] = readChunk<M>(p.x, row * p.cols + c, upToChunk(p.cols - c));
  for (int64_t i = row * p.choices.count; i < (row + 1) * p.choices.count; ++i) {
    int64_t place = p.choices.places[i];
    if (!p.choices.isIn(place))
      continue;
    float weight = p.choices.weight(i);
#pragma unroll
    for (int a = 0; a < kDispatchAhead; ++a) {
      int64_t c = first + a * step;
      if (c >= p.cols)
        continue;
      float v[kChunk];
      floatsOf<M>(chunks[a], v);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] *= weight;
      store8<M>(p.y, place * p.cols + c, upToChunk(p.cols - c), v);
    }
  }
}

void runDispatch(const Call &call) {
  const Tensor &x = call.in[0], &places = call.in[1], &y = call.out[0];
  Dispatch p = {dataOf(x), dataOf(y), choicesOf(call, places, y), x.rows(), x.cols()};
  int64_t parts = ceilDiv(ceilDiv(p.cols, kChunk), kDispatchAhead); // threads per row
  dim3 threads = threadsOfRows(parts), grid = gridOfRows(threads, p.rows, parts);
  forMode(modeOf({&x, &y}, p.cols),
          [&]<Mode M>() { launchKernel(dispatchRows<M>, grid, threads, 0, queueOf(call), p); });
}

struct Combine {
  Data y, x;
  Choices choices;
  int64_t rows, cols; ///< rows and columns of x
};

/// The places of the next choices from i on. Beyond the row's last choice, kNoGroup.
template <int kChoicesAhead> struct Taken {
  int64_t place[kChoicesAhead];

  __device__ Taken(const Choices &choices, int64_t i, int64_t end) {
#pragma unroll
    for (int k = 0; k < kChoicesAhead; ++k)
      place[k] = i + k < end ? choices.places[i + k] : int64_t{kNoGroup};
  }
};

/// A thread loads `kColsAhead` chunks of each of `kChoicesAhead` places at a time.
template <Mode M, int kColsAhead, int kChoicesAhead>
__global__ void __launch_bounds__(256, kColsAhead > 2 ? 3 : 4) combineRows(const Combine p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= p.rows)
    return;
  int64_t step = int64_t{blockDim.x} * kChunk;
  int64_t first = blockIdx.y * step * kColsAhead + threadIdx.x * kChunk;
  float sum[kColsAhead][kChunk] = {};
  bool isLacking = false; // a choice of the row exceeded a slot's capacity
  int64_t end = (row + 1) * p.choices.count;
  Taken<kChoicesAhead> next(p.choices, row * p.choices.count, end);
  for (int64_t i = row * p.choices.count; i < end; i += kChoicesAhead) {
    Taken<kChoicesAhead> now = next;
    next = Taken<kChoicesAhead>(p.choices, i + kChoicesAhead, end);
    Chunk<M> chunks[kChoicesAhead][kColsAhead];
#pragma unroll
    for (int k = 0; k < kChoicesAhead; ++k) {
      isLacking |= now.place[k] == kOverCapacity;
#pragma unroll
      for (int a = 0; a < kColsAhead; ++a)
        if (int64_t c = first + a * step; p.choices.isIn(now.place[k]) && c < p.cols)
          chunks[k][a] = readChunk<M>(p.y, now.place[k] * p.cols + c, upToChunk(p.cols - c));
    }
#pragma unroll
    for (int k = 0; k < kChoicesAhead; ++k) {
      if (!p.choices.isIn(now.place[k]))
        continue;
      float weight = p.choices.weight(i + k);
#pragma unroll
      for (int a = 0; a < kColsAhead; ++a) {
        float v[kChunk];
        floatsOf<M>(chunks[k][a], v);
#pragma unroll
        for (int j = 0; j < kChunk; ++j)
          sum[a][j] += v[j] * weight;
      }
    }
  }
#pragma unroll
  for (int a = 0; a < kColsAhead; ++a) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum[a][j] = isLacking ? __int_as_float(0x7fc00000) : sum[a][j];
    if (int64_t c = first + a * step; c < p.cols)
      store8<M>(p.x, row * p.cols + c, upToChunk(p.cols - c), sum[a]);
  }
}

void runCombine(const Call &call) {
  const Tensor &y = call.in[0], &places = call.in[1], &x = call.out[0];
  Combine p = {dataOf(y), dataOf(x), choicesOf(call, places, y), x.rows(), x.cols()};
  auto launch = [&]<int kColsAhead, int kChoicesAhead>() {
    int64_t parts = ceilDiv(ceilDiv(p.cols, kChunk), kColsAhead); // threads per row
    dim3 threads = threadsOfRows(parts), grid = gridOfRows(threads, p.rows, parts);
    forMode(modeOf({&y, &x}, p.cols), [&]<Mode M>() {
      launchKernel(combineRows<M, kColsAhead, kChoicesAhead>, grid, threads, 0, queueOf(call), p);
    });
  };
  if (p.choices.count == 1)
    launch.template operator()<4, 1>();
  else
    launch.template operator()<2, 2>();
}

struct WeightGradients {
  Data y, dx, dweights;
  const int32_t *places;
  int64_t choices, count, rows, cols;
};

constexpr int kWarps = 8; ///< warps per block

template <Mode M>
__global__ void __launch_bounds__(kWarps *kWarp) sumProducts(const WeightGradients p) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (i >= p.count)
    return;
  int64_t place = p.places[i];
  double sum = 0;
  if (place >= 0 && place < p.rows) {
    int64_t ofY = place * p.cols, ofX = i / p.choices * p.cols;
#pragma unroll 4
    for (int64_t c = threadIdx.x % kWarp * kChunk; c < p.cols; c += kWarp * kChunk) {
      float a[kChunk], b[kChunk], part = 0;
      load8<M>(p.y, ofY + c, upToChunk(p.cols - c), a);
      load8<M>(p.dx, ofX + c, upToChunk(p.cols - c), b);
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        part += a[j] * b[j];
      sum += static_cast<double>(part);
    }
  }
  sum = warpSum(sum);
  if (threadIdx.x % kWarp == 0)
    setElement(p.dweights, i, static_cast<float>(sum));
}

void runCombineBwd(const Call &call) {
  const Tensor &y = call.in[0], &dx = call.in[1], &places = call.in[2];
  WeightGradients p = {dataOf(y),           dataOf(dx),
                       dataOf(call.out[0]), static_cast<const int32_t *>(places.data),
                       places.shape[1],     places.numel(),
                       y.shape[0],          y.cols()};
  auto blocks = static_cast<unsigned>(ceilDiv(p.count, kWarps));
  forMode(modeOf({&y, &dx}, p.cols), [&]<Mode M>() {
    launchKernel(sumProducts<M>, blocks, kWarps * kWarp, 0, queueOf(call), p);
  });
}

/// y = x, each row times its weight.
struct ScaleRowsOp {
  Data x, weights, y;
  int64_t cols;
  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float v[kChunk], weight = element(weights, row);
    load8<M>(x, row * cols + c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] *= weight;
    store8<M>(y, row * cols + c, n, v);
  }
};

void runScaleRows(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  ScaleRowsOp op = {dataOf(x), dataOf(call.in[1]), dataOf(y), y.cols()};
  launchRows(call, modeOf({&x, &y}, y.cols()), op, y.rows(), y.cols());
}

// ---- router_drop ----

/// Writes keys that sort by falling weight, with NaN first.
__global__ void __launch_bounds__(256)
    makeWeightKeys(const float *weights, int64_t count, uint32_t *keys, int32_t *order) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count)
    return;
  keys[i] = ~keyOf(weights[i]);
  order[i] = static_cast<int32_t>(i);
}

/// Writes keys that sort choices by expert. `order` lists the choices by weight; null: by position.
__global__ void __launch_bounds__(256)
    makeExpertKeys(const int32_t *ids, const int32_t *order, int64_t count, int32_t experts,
                   uint32_t *keys, int32_t *values) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count)
    return;
  auto choice = static_cast<int32_t>(order == nullptr ? i : order[i]);
  int32_t id = ids[choice];
  keys[i] = static_cast<uint32_t>(id >= 0 && id < experts ? id : experts);
  values[i] = choice;
}

__global__ void __launch_bounds__(256)
    keepFirst(const Sorted p, const int32_t *ids, int64_t capacity) {
  awaitPrevious();
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count)
    return;
  auto expert = static_cast<int32_t>(p.keys[i]);
  bool isKept = expert == p.groups || i - p.firsts[expert] < capacity;
  p.places[p.order[i]] = isKept ? ids[p.order[i]] : -1;
}

/// Choices are sorted twice: by weight if asked, then stably by expert, so that the choices of an
/// expert are in order.
struct DropBuffers {
  uint32_t *keys, *sortedKeys;
  int32_t *order, *sortedOrder, *firsts;
  std::byte *temporary;
  size_t temporaryBytes = 0;

  DropBuffers(const Call &call, Scratch &scratch) {
    int64_t count = call.in[0].numel();
    keys = scratch.take<uint32_t>(count), sortedKeys = scratch.take<uint32_t>(count);
    order = scratch.take<int32_t>(count), sortedOrder = scratch.take<int32_t>(count);
    firsts = scratch.take<int32_t>(call.attrs.experts + 1);
    for (int bits : {32, bitsOfKeys(call.attrs.experts)}) {
      size_t bytes = 0;
      static_cast<void>(sortPairs(pairs(count, bits), nullptr, bytes, nullptr));
      temporaryBytes = std::max(temporaryBytes, bytes);
    }
    temporary = scratch.take<std::byte>(static_cast<int64_t>(temporaryBytes));
  }
  SortedPairs pairs(int64_t count, int bits) const {
    return {keys, order, sortedKeys, sortedOrder, count, bits};
  }
};

/// Keeps at most `capacity` choices per expert: the first by position, or those with the largest
/// weights. In the latter case a sort by weight precedes the stable sort by expert.
void runRouterDrop(const Call &call, DropBuffers &buffers) {
  int64_t count = call.in[0].numel();
  auto experts = static_cast<int32_t>(call.attrs.experts);
  const auto *ids = static_cast<const int32_t *>(call.in[0].data);
  Queue &queue = queueOf(call);
  auto blocks = [](int64_t threads) { return static_cast<unsigned>(ceilDiv(threads, 256)); };
  auto sort = [&](int bits) {
    cudaError_t error = sortPairs(buffers.pairs(count, bits), buffers.temporary,
                                  buffers.temporaryBytes, streamOf(queue));
    if (error != cudaSuccess)
      reportError(queue, "cub::DeviceRadixSort::SortPairs", error);
    noteOther(queue);
  };
  if (!call.attrs.by_position) {
    launchKernel(makeWeightKeys, blocks(count), 256, 0, queue,
                 static_cast<const float *>(call.in[1].data), count, buffers.keys, buffers.order);
    sort(32);
  }
  launchKernel(makeExpertKeys, blocks(count), 256, 0, queue, ids,
               call.attrs.by_position ? nullptr : buffers.sortedOrder, count, experts, buffers.keys,
               buffers.order);
  sort(bitsOfKeys(experts));
  Sorted p = {};
  p.keys = buffers.sortedKeys, p.order = buffers.sortedOrder, p.count = count;
  p.groups = experts, p.firsts = buffers.firsts;
  p.places = static_cast<int32_t *>(call.out[0].data);
  int64_t capacity = host::expertCapacity(count, experts, call.attrs.capacity_factor);
  launchKernel(findFirsts, blocks(experts + 1), 256, 0, queue, p);
  launchKernel(keepFirst, blocks(count), 256, 0, queue, p, ids, capacity);
}

} // namespace

SHARDC_KERNEL(MakeRuns, acceptsAs, withBuffers<runMakeRuns>);
SHARDC_KERNEL(Dispatch, acceptsAs, runDispatch);
SHARDC_KERNEL(Combine, acceptsAs, runCombine);
SHARDC_KERNEL(CombineBwd, acceptsAs, runCombineBwd);
SHARDC_KERNEL(ScaleRows, acceptsAs, runScaleRows);
SHARDC_KERNEL(RouterDrop, acceptsAs, withBuffers<runRouterDrop>);

} // namespace shardc::kernels::cuda
