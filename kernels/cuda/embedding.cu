// embedding: x[t,:] = table[ids[t],:]; a row whose id is not in the table becomes NaN, so that bad
// data stop the run. embedding_bwd: dtable[v,:] (+)= sum of dx[t,:] over the rows t with ids[t] =
// v, in row order; rows with ids outside of the table add nothing. Tables and rows f32 or bf16
// each, ids i32. Mapping: forward one block a row, one chunk of 8 elements a thread. Backward sorts
// (id, row) pairs with a stable radix sort, so that rows of one id follow each other in row order;
// a block that stands at the first of them adds them all in fp32 and writes the table's row once:
// no atomics, the same bits in every run. Limited by memory.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda {
namespace {

struct LookupOp {
  const int32_t *ids;
  Data table, x;
  int64_t vocabulary, cols;

  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    int64_t id = ids[row];
    float v[kChunk];
    if (id >= 0 && id < vocabulary) {
      load8<M>(table, id * cols + c, n, v);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] = __int_as_float(0x7fc00000);
    }
    store8<M>(x, row * cols + c, n, v);
  }
};

void runEmbedding(const Call &call) {
  const Tensor &table = call.in[1], &x = call.out[0];
  LookupOp op = {static_cast<const int32_t *>(call.in[0].data), dataOf(table), dataOf(x),
                 table.shape[0], x.cols()};
  launchRows(call, modeOf({&table, &x}, x.cols()), op, x.rows(), x.cols());
}

/// Keys that sort: an id of the table, or `vocabulary` for one that is not in it.
__global__ void __launch_bounds__(256)
    makeKeys(const int32_t *ids, int rows, uint32_t vocabulary, uint32_t *keys, int32_t *order) {
  int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows)
    return;
  int32_t id = ids[row];
  keys[row] =
      id >= 0 && static_cast<uint32_t>(id) < vocabulary ? static_cast<uint32_t>(id) : vocabulary;
  order[row] = row;
}

struct Scatter {
  const uint32_t *keys; ///< sorted
  const int32_t *order;
  Data dx, dtable;
  int64_t rows, vocabulary, cols;
};

template <Mode M> __global__ void __launch_bounds__(256) addRows(const Scatter p) {
  int64_t at = blockIdx.x;
  uint32_t key = p.keys[at];
  if (key >= p.vocabulary || (at > 0 && p.keys[at - 1] == key))
    return;
  int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kChunk;
  if (c >= p.cols)
    return;
  int n = static_cast<int>(p.cols - c < kChunk ? p.cols - c : kChunk);
  float sum[kChunk] = {};
#pragma unroll 4
  for (; at < p.rows && p.keys[at] == key; ++at) {
    float v[kChunk];
    load8<M>(p.dx, p.order[at] * p.cols + c, n, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum[j] += v[j];
  }
  store8<M>(p.dtable, key * p.cols + c, n, sum);
}

int bitsOf(int64_t vocabulary) {
  int bits = 1;
  while ((int64_t{1} << bits) <= vocabulary)
    ++bits;
  return bits;
}

struct Buffers {
  uint32_t *keys, *sortedKeys;
  int32_t *order, *sortedOrder;
  std::byte *temporary;
  size_t temporaryBytes = 0;

  Buffers(const Call &call, Scratch &scratch) {
    int64_t rows = call.in[1].numel();
    keys = scratch.take<uint32_t>(rows), sortedKeys = scratch.take<uint32_t>(rows);
    order = scratch.take<int32_t>(rows), sortedOrder = scratch.take<int32_t>(rows);
    sort(nullptr, rows, call.out[0].shape[0], nullptr);
    temporary = scratch.take<std::byte>(static_cast<int64_t>(temporaryBytes));
  }

  /// Sorts, or only sets temporaryBytes without `memory`.
  void sort(void *memory, int64_t rows, int64_t vocabulary, cudaStream_t stream) {
    cub::DeviceRadixSort::SortPairs(memory, temporaryBytes, keys, sortedKeys, order, sortedOrder,
                                    static_cast<int>(rows), 0, bitsOf(vocabulary), stream);
  }
};

void runEmbeddingBwd(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &dx = call.in[0], &ids = call.in[1], &dtable = call.out[0];
  cudaStream_t stream = streamOf(call);
  auto rows = static_cast<int>(ids.numel());
  if (!dtable.accumulate)
    cudaMemsetAsync(dtable.data, 0, static_cast<size_t>(dtable.numel() * dtypeBytes(dtable.dtype)),
                    stream);
  makeKeys<<<static_cast<unsigned>(ceilDiv(rows, 256)), 256, 0, stream>>>(
      static_cast<const int32_t *>(ids.data), rows, static_cast<uint32_t>(dtable.shape[0]),
      buffers.keys, buffers.order);
  buffers.sort(buffers.temporary, rows, dtable.shape[0], stream);
  Scatter p = {buffers.sortedKeys, buffers.sortedOrder, dataOf(dx), dataOf(dtable), rows,
               dtable.shape[0],    dtable.cols()};
  int threads = threadsForRow(p.cols, 256);
  dim3 grid(static_cast<unsigned>(rows),
            static_cast<unsigned>(ceilDiv(p.cols, static_cast<int64_t>(threads) * kChunk)));
  forMode(modeOf({&dx, &dtable}, p.cols),
          [&]<Mode M>() { addRows<M><<<grid, threads, 0, stream>>>(p); });
}

} // namespace

const Kernel kEmbedding = {"embedding_cuda", runEmbedding, acceptsAs<&host::kEmbedding>};
const Kernel kEmbeddingBwd = {"embedding_bwd_cuda", runEmbeddingBwd,
                              acceptsAs<&host::kEmbeddingBwd>, workspaceOf<Buffers>};

} // namespace shardc::kernels::cuda
