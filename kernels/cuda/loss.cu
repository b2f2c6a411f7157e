// Cross entropy of rows of logits.
//  cross_entropy: lse[t] = log(sum over the valid columns of exp(logits[t,:])), losses[t] =
//    mask[t]·(lse[t] - logits[t,labels[t]])
//  cross_entropy_bwd: dlogits = loss_scale·mask/max(n,1)·(softmax - onehot), times the step state's
//    loss scale if the call has a state; without the division if per_token; 0 in padded columns
//  vocab_stats, vocab_loss, and cross_entropy_bwd of a group: the same if the ranks of a group have
//    equal parts of the columns (kernels/host/VocabLoss.cpp)
// Logits are f32, bf16 or f16, labels i32, everything else f32. If a label is outside the valid
// columns, the row's loss is 0 if its mask is 0, and NaN otherwise.
//
// Mapping: one block of up to 1024 threads per row. Each thread keeps a running maximum and sum
// over its chunks of 8 columns; then the block combines them. A row of 16-bit logits without soft
// cap stays in shared memory: that of one block, of which two fit on a multiprocessor, or that of a
// cluster of eight blocks, of which four to eight fit. Then some blocks read columns and some write
// gradients while others compute exponentials. For other rows, a thread keeps its first eight
// chunks in registers, and the remaining chunks are read a second time. Limited by memory, if
// logits are read once and dlogits written once: 2.8 TB/s, 2.5 with gradients, of a copy's 4.24 on
// an H200, 2026-11, for rows of one block.
#include "kernels/cuda/loss.cuh"

#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/hopper.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr float kNan = __builtin_nanf("");

__device__ __forceinline__ int countAt(int64_t c, int64_t cols) { return upToChunk(cols - c); }

/// The logit after the soft cap, if there is one.
__device__ __forceinline__ float capped(const LossRows &p, float logit) {
  return p.cap > 0.0f ? p.cap * tanhf(logit / p.cap) : logit;
}

__device__ __forceinline__ void capChunk(const LossRows &p, float (&v)[kChunk]) {
  if (p.cap > 0.0f)
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = capped(p, v[j]);
}

/// The derivative of the soft cap at a capped logit.
__device__ __forceinline__ float slopeOfCap(const LossRows &p, float logit) {
  float share = p.cap > 0.0f ? logit / p.cap : 0.0f;
  return 1.0f - share * share;
}

constexpr int kHeld = 8; ///< chunks of a 16-bit row that a thread keeps for the gradient

/// A thread's first chunks, in their memory format.
struct Held {
  uint4 chunk[kHeld];
};

/// The maximum of a row, and the sum of exp(logit - maximum).
struct RowSum {
  float largest, total;
  __device__ __forceinline__ float lse() const { return largest + logf(total); }
};

/// Returns the row's statistics in all threads. If kHolds, `held` receives the thread's first
/// chunks.
template <Mode M, bool kHolds>
__device__ __forceinline__ RowSum sumOfRow(const LossRows &p, int64_t base, Held &held) {
  __shared__ float warpLargest[kWarp];
  float largest = -INFINITY, v[kChunk], total[1] = {0.0f};
  int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  auto add = [&](int n) {
    float chunk = -INFINITY;
    capChunk(p, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      chunk = j < n ? fmaxf(chunk, v[j]) : chunk;
    if (chunk > largest) {
      total[0] *= __expf(largest - chunk); // the first time, exp(-inf) = 0
      largest = chunk;
    }
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      total[0] += j < n ? __expf(v[j] - largest) : 0.0f;
  };
  int64_t c = static_cast<int64_t>(threadIdx.x) * kChunk;
  if (kHolds) {
    // All loads precede the first use.
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (c + k * stride < p.cols)
        held.chunk[k] = *chunkOf(p.logits, base + c + k * stride);
#pragma unroll
    for (int k = 0; k < kHeld; ++k, c += stride)
      if (c < p.valid) {
        unpack<M>(p.logits, held.chunk[k], v);
        add(countAt(c, p.valid));
      }
  }
  for (; c < p.valid; c += stride) {
    int n = countAt(c, p.valid);
    load8<M>(p.logits, base + c, n, v);
    add(n);
  }
  float mine = largest;
  largest = warpMax(largest);
  if (threadIdx.x % kWarp == 0)
    warpLargest[threadIdx.x / kWarp] = largest;
  __syncthreads();
  int warps = static_cast<int>(blockDim.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  largest = warpMax(lane < warps ? warpLargest[lane] : -INFINITY);
  // A thread without columns has no sum. Without this case, its exp(-inf - largest) would be 0, or
  // NaN if all logits of the row are infinite.
  total[0] = mine == -INFINITY && total[0] == 0.0f ? 0.0f : total[0] * __expf(mine - largest);
  blockSum(total);
  return {largest, total[0]};
}

/// The column of a row's label among this rank's columns.
struct Label {
  int64_t column;
  bool isValid, isHere;
};

__device__ __forceinline__ Label labelOf(const LossRows &p, int64_t row) {
  int64_t label = p.labels[row], column = label - p.first;
  bool isValid = label >= 0 && label < p.vocabulary;
  return {column, isValid, isValid && column >= 0 && column < p.valid};
}

/// Writes a row's loss and lse. One thread of the row calls it. `target` is the label's logit.
__device__ void writeLoss(const LossRows &p, int64_t row, float lse, float mask, float target) {
  if (p.lse)
    p.lse[row] = lse;
  if (p.losses)
    p.losses[row] = mask * (lse - target);
}

/// The factor of the row's gradients. NaN if the mask is not 0 and the label is invalid.
__device__ float factorOf(const LossRows &p, float mask, bool inside) {
  float factor = p.lossScale * (p.state ? p.state->lossScale : 1.0f) * mask;
  if (!p.perToken)
    factor /= fmaxf(*p.n, 1.0f);
  return factor != 0.0f && !inside ? kNan : factor;
}

/// A row with a NaN must not yield a loss. fmaxf drops NaN, but the sum does not: the exponential
/// of a NaN logit is NaN.
template <Mode M> __global__ void __launch_bounds__(1024) lossRows(const LossRows p) {
  awaitPrevious();
  int64_t row = blockIdx.x, base = row * p.cols;
  Label label = labelOf(p, row);
  bool inside = label.isValid;
  float mask = p.mask[row];
  float target = label.isHere ? capped(p, element(p.logits, base + label.column)) : 0.0f;
  constexpr bool kHolds = kIsNarrow<M>;
  Held held;
  bool isHeld = kHolds && !p.lseIn;
  float lse = p.lseIn ? p.lseIn[row] : sumOfRow<M, kHolds>(p, base, held).lse();
  __syncthreads(); // the label's logit has been read; a gradient may replace it
  if (threadIdx.x == 0)
    writeLoss(p, row, lse, mask, inside ? target : mask == 0.0f ? lse : kNan);
  if (!p.gradients)
    return;
  float factor = factorOf(p, mask, inside);
  int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  int64_t c = static_cast<int64_t>(threadIdx.x) * kChunk;
  float v[kChunk];
  auto differentiate = [&](int n) {
    capChunk(p, v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      float d = factor * __expf(v[j] - lse) - (c + j == label.column ? factor : 0.0f);
      v[j] = c + j < p.valid ? d * slopeOfCap(p, v[j]) : 0.0f;
    }
    store8<M>(p.dlogits, base + c, n, v);
  };
  if (isHeld) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k, c += stride)
      if (c < p.cols) {
        unpack<M>(p.logits, held.chunk[k], v);
        differentiate(kChunk);
      }
  }
  for (; c < p.cols; c += stride) {
    int n = countAt(c, p.cols);
    load8<M>(p.logits, base + c, n, v);
    differentiate(n);
  }
}

/// Computes vocab_stats of one row.
template <Mode M>
__global__ void __launch_bounds__(1024) statsOfRows(const LossRows p, float *stats) {
  awaitPrevious();
  int64_t row = blockIdx.x, base = row * p.cols;
  Held held;
  RowSum sum = sumOfRow<M, false>(p, base, held);
  if (threadIdx.x != 0)
    return;
  Label label = labelOf(p, row);
  stats[row] = sum.largest, stats[p.rows + row] = sum.total;
  stats[2 * p.rows + row] = label.isHere    ? capped(p, element(p.logits, base + label.column))
                            : label.isValid ? -INFINITY
                                            : kNan;
}

/// Computes vocab_loss with one thread per row.
__global__ void __launch_bounds__(256)
    joinStats(const float *stats, const float *mask, int64_t rows, int members, float *losses,
              float *lse) {
  awaitPrevious();
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows)
    return;
  float largest = -INFINITY, target = -INFINITY;
  for (int m = 0; m < members; ++m) {
    const float *member = stats + 3 * m * rows + row;
    largest = fmaxf(largest, member[0]);
    float other = member[2 * rows];
    target = other > target || isnan(other) ? other : target;
  }
  double total = 0;
  for (int m = 0; m < members; ++m) {
    const float *member = stats + 3 * m * rows + row;
    if (member[rows] != 0.0f) // otherwise the member has no valid columns, and its maximum is -inf
      total += member[rows] * exp(static_cast<double>(member[0]) - static_cast<double>(largest));
  }
  float sum = static_cast<float>(largest + log(total));
  lse[row] = sum;
  losses[row] = mask[row] * (sum - (mask[row] == 0.0f && isnan(target) ? sum : target));
}

// ---- rows of 16-bit numbers in shared memory ----

constexpr int kParts = 4; ///< parts of a row: the first is summed while the others arrive
constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float powerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Maximum and sum of exponentials of a thread's chunks.
struct Exponentials {
  float largest = -INFINITY, total = 0;

  template <Mode M> __device__ __forceinline__ void add(const Data &logits, uint4 raw, int n) {
    float v[kChunk], chunk = -INFINITY;
    unpack<M>(logits, raw, v);
    if (n < kChunk)
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        v[j] = j < n ? v[j] : -INFINITY;
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      chunk = fmaxf(chunk, v[j]);
    if (chunk > largest) {
      total *= powerOfTwo((largest - chunk) * kLog2E); // the first time, exp(-inf) = 0
      largest = chunk;
    }
    float shift = largest * kLog2E;
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      total += powerOfTwo(v[j] * kLog2E - shift); // 0 for -inf
  }
};

/// Starts copies of the row's chunks, with one group of copies for each part.
template <int kThreads>
__device__ __forceinline__ void copyRow(const uint4 *logits, int chunks, int perPart, uint4 *held) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    int end = min((part + 1) * perPart, chunks);
    for (int k = part * perPart + static_cast<int>(threadIdx.x); k < end; k += kThreads)
      copyAhead(held + k, logits + k);
    endCopies();
  }
}

/// Returns the statistics of the block's columns in all threads.
template <int kThreads>
__device__ __forceinline__ RowSum joinExponentials(const Exponentials &mine) {
  __shared__ float warpLargest[kWarp];
  float largest = warpMax(mine.largest);
  if (threadIdx.x % kWarp == 0)
    warpLargest[threadIdx.x / kWarp] = largest;
  __syncthreads();
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  largest = warpMax(lane < kThreads / kWarp ? warpLargest[lane] : -INFINITY);
  float total[1] = {mine.largest == -INFINITY && mine.total == 0.0f
                        ? 0.0f
                        : mine.total * __expf(mine.largest - largest)};
  blockSum(total);
  return {largest, total[0]};
}

/// Combines the statistics of all blocks of a cluster, in a fixed order, so that all blocks get
/// equal results. When it returns, blocks may overwrite the logits that they have read.
template <int kBlocks> __device__ __forceinline__ RowSum joinBlocks(const RowSum &own) {
  RowSum row = own;
  if constexpr (kBlocks > 1) {
    __shared__ float ofBlock[2];
    if (threadIdx.x == 0)
      ofBlock[0] = own.largest, ofBlock[1] = own.total;
    hopper::syncCluster();
    float largest[kBlocks], total[kBlocks];
    row = {-INFINITY, 0.0f};
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) {
      largest[block] = hopper::readFrom(hopper::sharedAddress(&ofBlock[0]), block);
      total[block] = hopper::readFrom(hopper::sharedAddress(&ofBlock[1]), block);
      row.largest = fmaxf(row.largest, largest[block]);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      if (largest[block] != -INFINITY || total[block] != 0.0f) // the block has valid columns
        row.total += total[block] * __expf(largest[block] - row.largest);
  }
  return row;
}

/// Returns when the other blocks of the cluster have finished reading this block's shared memory.
template <int kBlocks> __device__ __forceinline__ void leaveBlocks() {
  if constexpr (kBlocks > 1)
    hopper::syncCluster();
}

/// Processes one row of whole chunks with kBlocks blocks. The results are those of lossRows. Until
/// the sums are complete, a thread reads only what it has copied itself.
template <Mode M, int kBlocks, int kThreads>
__global__ void __launch_bounds__(kThreads, kBlocks == 1 ? 2 : 8) lossRowsShared(const LossRows p) {
  awaitPrevious();
  extern __shared__ uint4 held[];
  int64_t row = blockIdx.x / kBlocks, ofRow = row * p.cols;
  int chunksOfRow = static_cast<int>(p.cols / kChunk);
  int perBlock = (chunksOfRow + kBlocks - 1) / kBlocks;
  int first = static_cast<int>(blockIdx.x % kBlocks) * perBlock; // first of this block's chunks
  int chunks = max(min(perBlock, chunksOfRow - first), 0);
  int64_t base = ofRow + int64_t{first} * kChunk;
  const uint4 *logits = chunkOf(p.logits, base);
  int valid = static_cast<int>(p.valid) - first * kChunk;
  int perPart = (chunks + kParts - 1) / kParts;
  copyRow<kThreads>(logits, chunks, perPart, held);
  int32_t label = p.labels[row];
  bool inside = label >= 0 && label < p.valid;
  float mask = p.mask[row];
  float target = inside ? element(p.logits, ofRow + label) : 0.0f;
  Exponentials mine;
  auto addPart = [&](int part) {
    int end = min((part + 1) * perPart, chunks);
    for (int k = part * perPart + static_cast<int>(threadIdx.x); k < end; k += kThreads)
      if (k * kChunk < valid)
        mine.add<M>(p.logits, held[k], valid - k * kChunk);
  };
  waitForCopies<3>(), addPart(0);
  waitForCopies<2>(), addPart(1);
  waitForCopies<1>(), addPart(2);
  waitForCopies<0>(), addPart(3);
  float lse = joinBlocks<kBlocks>(joinExponentials<kThreads>(mine)).lse();
  // A gradient replaces the label's logit, but the sums above contain a barrier after reading it.
  if (threadIdx.x == 0 && first == 0)
    writeLoss(p, row, lse, mask, inside ? target : mask == 0.0f ? lse : kNan);
  if (!p.gradients)
    return leaveBlocks<kBlocks>();
  float factor = factorOf(p, mask, inside);
  float shift = lse * kLog2E;
  int labelHere = inside ? label - first * kChunk : -1;
  int labelChunk = labelHere >= 0 ? labelHere / kChunk : -1;
  // All copies are complete: each thread waited for its own ones before the barriers of the sums.
  for (int k = static_cast<int>(threadIdx.x); k < chunks; k += kThreads) {
    float v[kChunk];
    unpack<M>(p.logits, held[k], v);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
      v[j] = factor * powerOfTwo(v[j] * kLog2E - shift);
    if (k == labelChunk || (k + 1) * kChunk > valid)
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        v[j] -= k * kChunk + j == labelHere ? factor : 0.0f;
        v[j] = k * kChunk + j < valid ? v[j] : 0.0f;
      }
    store8<M>(p.dlogits, base + static_cast<int64_t>(k) * kChunk, kChunk, v);
  }
  leaveBlocks<kBlocks>();
}

/// Launches the kernel with rows in shared memory. Returns false and enqueues nothing if a row does
/// not fit into the shared memory of kBlocks blocks.
template <Mode M, int kBlocks, int kThreads> bool launchShared(const LossRows &rows, Queue &queue) {
  constexpr int64_t kBytesMax = 112 << 10; // so that two blocks fit into a multiprocessor's 227 KiB
  int64_t bytes = ceilDiv(rows.cols / kChunk, kBlocks) * kChunk * 2;
  bool fits = !rows.lseIn && rows.cap == 0.0f && bytes <= kBytesMax &&
              rows.cols >= kThreads * kChunk && !rows.dlogits.accumulate &&
              (kBlocks == 1 || hasClusters(queue));
  if (!fits || cudaFuncSetAttribute(lossRowsShared<M, kBlocks, kThreads>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)) != cudaSuccess)
    return false;
  launchClusters(lossRowsShared<M, kBlocks, kThreads>, kBlocks,
                 static_cast<unsigned>(rows.rows) * kBlocks, kThreads, static_cast<size_t>(bytes),
                 queue, rows);
  return true;
}

/// Launches one block per row if its shared memory can hold the row; otherwise eight small blocks.
/// A multiprocessor has many of these, so that some read and others write while the rest compute
/// exponentials.
template <Mode M> bool launchShared(const LossRows &rows, Queue &queue) {
  return launchShared<M, 1, 512>(rows, queue) || launchShared<M, 8, 256>(rows, queue);
}

} // namespace

void launchLossRows(const LossRows &rows, Mode mode, Queue &queue) {
  if (mode == Mode::Bf16 && launchShared<Mode::Bf16>(rows, queue))
    return;
  if (mode == Mode::F16 && launchShared<Mode::F16>(rows, queue))
    return;
  int threads = threadsForRow(rows.cols, 1024);
  auto blocks = static_cast<unsigned>(rows.rows);
  forMode(mode, [&]<Mode M>() { launchKernel(lossRows<M>, blocks, threads, 0, queue, rows); });
}

namespace {

LossRows rowsOf(const Call &call) {
  LossRows rows = {};
  const Tensor &logits = call.in[0];
  rows.logits = dataOf(logits);
  rows.rows = logits.rows();
  setColumns(rows, call, logits.cols());
  rows.lossScale = static_cast<float>(call.attrs.loss_scale);
  rows.perToken = call.attrs.per_token;
  return rows;
}

void runCrossEntropy(const Call &call) {
  LossRows rows = rowsOf(call);
  rows.labels = static_cast<const int32_t *>(call.in[1].data);
  rows.mask = static_cast<const float *>(call.in[2].data);
  rows.losses = static_cast<float *>(call.out[0].data);
  rows.lse = static_cast<float *>(call.out[1].data);
  launchLossRows(rows, modeOf({&call.in[0]}, rows.cols), queueOf(call));
}

void runCrossEntropyBwd(const Call &call) {
  LossRows rows = rowsOf(call);
  rows.lseIn = static_cast<const float *>(call.in[1].data);
  rows.labels = static_cast<const int32_t *>(call.in[2].data);
  rows.mask = static_cast<const float *>(call.in[3].data);
  rows.n = static_cast<const float *>(call.in[4].data);
  rows.state = call.inCount > 5 ? static_cast<const StepState *>(call.in[5].data) : nullptr;
  rows.dlogits = dataOf(call.out[0]);
  rows.gradients = true;
  launchLossRows(rows, modeOf({&call.in[0], &call.out[0]}, rows.cols), queueOf(call));
}

void runVocabStats(const Call &call) {
  LossRows rows = rowsOf(call);
  rows.labels = static_cast<const int32_t *>(call.in[1].data);
  auto *stats = static_cast<float *>(call.out[0].data);
  int threads = threadsForRow(rows.cols, 1024);
  forMode(modeOf({&call.in[0]}, rows.cols), [&]<Mode M>() {
    launchKernel(statsOfRows<M>, static_cast<unsigned>(rows.rows), threads, 0, queueOf(call), rows,
                 stats);
  });
}

void runVocabLoss(const Call &call) {
  int64_t rows = call.in[0].cols();
  launchKernel(joinStats, static_cast<unsigned>(ceilDiv(rows, 256)), 256, 0, queueOf(call),
               static_cast<const float *>(call.in[0].data),
               static_cast<const float *>(call.in[1].data), rows,
               static_cast<int>(call.in[0].shape[0] / 3), static_cast<float *>(call.out[0].data),
               static_cast<float *>(call.out[1].data));
}

} // namespace

SHARDC_KERNEL(CrossEntropy, acceptsAs, runCrossEntropy);
SHARDC_KERNEL(CrossEntropyBwd, acceptsAs, runCrossEntropyBwd);
SHARDC_KERNEL(VocabStats, acceptsAs, runVocabStats);
SHARDC_KERNEL(VocabLoss, acceptsAs, runVocabLoss);

} // namespace shardc::kernels::cuda
