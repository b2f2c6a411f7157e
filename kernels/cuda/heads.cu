// What a call of attention means to kernels on tensor cores, whatever the architecture, and the
// kernel of delta, which their gradients share.
#include "kernels/cuda/heads.cuh"
#include "kernels/host/Slices.h"

namespace shardc::kernels::cuda::heads {
namespace {

/// The operands of a call by name. `words` is the index of the operand with documents, which the
/// samples follow.
struct Roles {
  const Tensor *dOut = nullptr, *q, *k, *v, *out = nullptr, *lse;
  int words, samples;

  Roles(const Call &call, const AttentionOp &op) {
    const Tensor *in = call.in + (op.backward ? 1 : 0);
    int parts = op.packed ? 1 : 3, positions = op.hasSlices ? 2 : 0; ///< not read
    q = in, k = op.packed ? in : in + 1, v = op.packed ? in : in + 2;
    if (op.backward)
      dOut = call.in, out = in + parts, lse = in + parts + 1, words = parts + 3 + positions;
    else
      lse = call.out + 1, words = parts + positions;
    samples = words + (op.hasSlices ? 2 : 1); // slices have the documents of queries and of keys
  }
};

constexpr int kDeltaThreads = 256;

/// A thread processes 8 channels; kLanes threads have a row.
template <int kLanes, Mode kMode>
__global__ void __launch_bounds__(kDeltaThreads) rowProducts(const Params p, int64_t rows) {
  awaitPrevious();
  int64_t row = (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kLanes;
  int channel = static_cast<int>(threadIdx.x) % kLanes * kChunk;
  float sum[1] = {};
  if (row < rows && channel < p.values) {
    int64_t at = row * p.values + channel;
    float a[kChunk], b[kChunk];
    unpack<kMode>(p.dOut.data, *chunkOf(p.dOut.data, at), a);
    unpack<kMode>(p.out.data, *chunkOf(p.out.data, at), b);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      sum[0] = fmaf(a[j], b[j], sum[0]);
  }
  laneSums(sum, kLanes);
  int64_t query = row / p.heads;
  if (channel == 0 && row < rows)
    p.delta[p.statistics(static_cast<int>(query / p.queries), static_cast<int>(row % p.heads)) +
            query % p.queries] = sum[0];
}

} // namespace

/// Derives strides and masks from the call. A rank with slices has two chunks of the sequence,
/// chunk `index` and its mirror image from the end.
Operands::Operands(const Call &call, const AttentionOp &op) {
  Roles roles(call, op);
  AttentionKind kind = attentionKindOf(call, op);
  samples = static_cast<int>(roles.q->shape[0]), isF16 = kind.type == DType::F16;
  p = {};
  p.channels = static_cast<int>(kind.channels), p.values = static_cast<int>(kind.values);
  p.queries = static_cast<int>(roles.q->shape[1]), p.heads = static_cast<int>(kind.heads);
  p.keys = static_cast<int>(roles.k->shape[1]);
  p.chunks[0] = {0, p.queries, 0}, p.chunkCount = 1;
  if (op.hasSlices &&
      call.attrs.slices > 0) { // a rank has two chunks of the sequence, one from each end
    host::Slices slices(call, *roles.q);
    int half = p.queries / 2, count = static_cast<int>(slices.count);
    int index = static_cast<int>(slices.index);
    p.chunks[0] = {0, half, index * half};
    p.chunks[1] = {half, half, (2 * count - 1 - index) * half}, p.chunkCount = 2;
  }
  p.perGroup = static_cast<int>(kind.heads / kind.groups);
  int ofQ = p.perGroup * p.channels, packed = op.packed ? ofQ + p.channels + p.values : 0;
  p.q = {op.packed ? packed : ofQ, 0}, p.o = {p.perGroup * p.values, 0};
  p.k = {op.packed ? packed : p.channels, op.packed ? ofQ : 0};
  p.v = {op.packed ? packed : p.values, op.packed ? ofQ + p.channels : 0};
  const int64_t rowOfPacked = kind.groups * packed, rowOfO = kind.heads * kind.values;
  const int64_t rows[3] = {op.packed ? rowOfPacked : kind.heads * kind.channels,
                           op.packed ? rowOfPacked : kind.groups * kind.channels,
                           op.packed ? rowOfPacked : kind.groups * kind.values};
  p.from[0] = {dataOf(*roles.q), rows[0]}, p.from[1] = {dataOf(*roles.k), rows[1]};
  p.from[2] = {dataOf(*roles.v), rows[2]};
  for (int i = 0; i < (op.backward ? 3 : 1); ++i)
    p.to[i] = {dataOf(call.out[op.packed || !op.backward ? 0 : i]), op.backward ? rows[i] : rowOfO};
  if (op.backward)
    p.dOut = {dataOf(*roles.dOut), rowOfO}, p.out = {dataOf(*roles.out), rowOfO};
  p.lse = static_cast<float *>(roles.lse->data);
  p.docs = static_cast<const int32_t *>(call.in[roles.words].data);
  p.samples = static_cast<const int64_t *>(call.in[roles.samples].data);
  p.window = static_cast<int>(std::clamp<int64_t>(call.attrs.window, -1, INT32_MAX / 2));
  p.chunk = static_cast<int>(std::min<int64_t>(call.attrs.chunk, INT32_MAX / 2));
  p.scale = static_cast<float>(call.attrs.scale), p.cap = static_cast<float>(call.attrs.soft_cap);
  p.causal = call.attrs.causal, p.resetMask = call.attrs.reset_mask;
  p.positions = static_cast<uint32_t>(op.hasSlices ? call.attrs.positions : p.queries);
  p.firstHead = static_cast<uint32_t>(host::Slices::headPart(call) * p.heads);
  p.mask = dropoutMask(call.attrs);
}

bool haveTiles(const Call &call, const AttentionOp &op) {
  Roles roles(call, op);
  auto isServed = [&](const Tensor &t) {
    return t.dtype == roles.q->dtype && !t.accumulate &&
           reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  bool all = isServed(*roles.q) && isServed(*roles.k) && isServed(*roles.v);
  if (op.backward)
    all = all && isServed(*roles.dOut) && isServed(*roles.out);
  for (int i = 0; i < (op.backward && !op.packed ? 3 : 1); ++i)
    all = all && isServed(call.out[i]);
  return all;
}

void launchDelta(const Operands &of, Queue &queue) {
  const Params &p = of.p;
  int64_t rows = int64_t{of.samples} * p.queries * p.heads;
  auto start = [&]<int kLanes>() {
    auto blocks = static_cast<unsigned>(ceilDiv(rows, kDeltaThreads / kLanes));
    of.isF16
        ? launchKernel(rowProducts<kLanes, Mode::F16>, blocks, kDeltaThreads, 0, queue, p, rows)
        : launchKernel(rowProducts<kLanes, Mode::Bf16>, blocks, kDeltaThreads, 0, queue, p, rows);
  };
  if (p.values <= 8 * kChunk)
    start.operator()<8>();
  else if (p.values <= 16 * kChunk)
    start.operator()<16>();
  else
    start.operator()<32>();
}

} // namespace shardc::kernels::cuda::heads
