// What the kernels of delta_rule_tiles.cu and state_scan_tiles.cu share: a warp's part of a product
// of tiles in shared memory, the numbers of a chunk's positions, and their gradients.
#pragma once

#include "kernels/cuda/DeltaRule.h"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/mma.cuh"

namespace shardc::kernels::cuda::delta {

using heads::exp2Of, heads::kLog2e;
using mma::awaitCopies, mma::copyRows, mma::endCopies, mma::kPiece, mma::LaneRow, mma::loadMatrices,
    mma::loadTransposed, mma::multiplyAdd, mma::pieceOf, mma::kPieceBytes, mma::sharedAddress;

constexpr int kC = kRuleChunk;
constexpr int kThreads = 256, kMoreThreads = 512; ///< the latter in differentiateChunks
constexpr int kSquare = kC * kC * 2;              ///< bytes of a tile of 64 columns of 16 bits
constexpr int kPitch = kC + 8;                    ///< of a matrix of floats
constexpr int kBytesMax = 99 << 10;               ///< that blocks have on all GPUs since Ampere

// ---- pairs of neighbouring numbers ----

__device__ __forceinline__ float2 unpacked(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
template <int kColumns>
__device__ __forceinline__ uint32_t wordOf(uint32_t tile, int row, int column) {
  return pieceOf<kColumns>(tile, row, column / kPiece) + static_cast<uint32_t>(column % kPiece * 2);
}
template <int kColumns>
__device__ __forceinline__ float2 pairOf(uint32_t tile, int row, int column) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(wordOf<kColumns>(tile, row, column)));
  return unpacked(word);
}
template <int kColumns>
__device__ __forceinline__ void setPair(uint32_t tile, int row, int column, float2 x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(wordOf<kColumns>(tile, row, column)),
               "r"(packed<false>(x.x, x.y))
               : "memory");
}
__device__ __forceinline__ void setPair(uint16_t *to, float2 x) {
  *reinterpret_cast<uint32_t *>(to) = packed<false>(x.x, x.y);
}
__device__ __forceinline__ void setPair(const Data &to, int64_t i, float2 x) {
  if (to.format == Format::Bf16 && !to.accumulate)
    return setPair(static_cast<uint16_t *>(to.p) + i, x);
  setElement(to, i, x.x);
  setElement(to, i + 1, x.y);
}

// ---- a warp's part of a product ----

/// What a warp has of a matrix of 64 rows: 16 rows, and kTiles times 8 columns.
struct Part {
  int row, column; ///< the lane's first ones

  /// Warps stand in groups of four, one for each 16 rows, and divide `columns` among the groups.
  __device__ Part(int columns)
      : row(static_cast<int>(threadIdx.x) / kWarp % 4 * 16),
        column(static_cast<int>(threadIdx.x) / (4 * kWarp) * columns) {}
  __device__ int laneRow(int half) const {
    return row + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
  }
  __device__ int laneColumn(int tile) const {
    return column + 8 * tile + static_cast<int>(threadIdx.x) % 4 * 2;
  }
};

/// Calls each(row, column, pair), or each(half, row, column, pair) where rows of half 1 lie 8 below
/// those of half 0, for the lane's pairs of numbers.
template <int kTiles, typename Each>
__device__ __forceinline__ void forPairs(const Part &part, float (&sums)[kTiles][4], Each each) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 pair = {sums[n][2 * half], sums[n][2 * half + 1]};
      if constexpr (std::is_invocable_v<Each, int, int, int, float2 &>)
        each(half, part.laneRow(half), part.laneColumn(n), pair);
      else
        each(part.laneRow(half), part.laneColumn(n), pair);
      sums[n][2 * half] = pair.x, sums[n][2 * half + 1] = pair.y;
    }
}

/// How the tile of an operand lies: the first operand by its rows or by its columns, the second one
/// by the columns of the product, along k, or across.
enum class Lies { Along, Across };

/// sums += a·b over kDepth elements: rows from `row` on of a, columns from `column` on of b.
template <int kColumnsA, Lies kA, int kColumnsB, Lies kB, int kDepth, int kTiles>
__device__ __forceinline__ void addProduct(float (&sums)[kTiles][4], uint32_t a, int row,
                                           uint32_t b, int column) {
  constexpr bool kIsAlongA = kA == Lies::Along, kIsAlongB = kB == Lies::Along;
  const LaneRow ofA =
      kIsAlongA ? LaneRow::ofRows<kColumnsA>(a, row) : LaneRow::ofColumns<kColumnsA>(a, 0);
  const LaneRow ofB =
      kIsAlongB ? LaneRow::ofColumns<kColumnsB>(b, column) : LaneRow::ofRows<kColumnsB>(b, 0);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t first[4];
    if constexpr (kIsAlongA)
      loadMatrices(first, ofA.piece<kColumnsA>(2 * k));
    else
      loadTransposed(first, ofA.piece<kColumnsA>(row / kPiece, 16 * k));
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t second[4];
      if constexpr (kIsAlongB)
        loadMatrices(second, ofB.piece<kColumnsB>(2 * k, 8 * n));
      else
        loadTransposed(second, ofB.piece<kColumnsB>(column / kPiece + n, 16 * k));
      multiplyAdd<false>(sums[n], first, second[0], second[1]);
      multiplyAdd<false>(sums[n + 1], first, second[2], second[3]);
    }
  }
}

// ---- a chunk ----

/// The numbers of a chunk's positions: log d, what v is multiplied by, and the derivative of what d
/// is computed from. Those beyond the sequence belong to its last document and change nothing.
struct Numbers {
  float sum[kC], log[kC], slope[kC], beta[kC]; ///< sum: G for exponents of 2
  float front[kC], back[kC];                   ///< e^G and e^{G_C - G}
  int document[kC];                            ///< where the position's document begins
};

/// E for the pairs of positions of a lane's part, of which its registers have the sums.
template <int kTiles> struct Decays {
  float rows[2], columns[kTiles][2], betas[2];
  int rowDocuments[2], columnDocuments[kTiles][2];

  __device__ __forceinline__ Decays(const Numbers &numbers, const Part &part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = part.laneRow(half);
      rows[half] = numbers.sum[i], betas[half] = numbers.beta[i];
      rowDocuments[half] = numbers.document[i];
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = part.laneColumn(n) + e;
        columns[n][e] = numbers.sum[j], columnDocuments[n][e] = numbers.document[j];
      }
  }
  /// Of a row, and a column that is not behind it.
  __device__ __forceinline__ float get(int half, int n, int e) const {
    return rowDocuments[half] == columnDocuments[n][e] ? exp2Of(rows[half] - columns[n][e]) : 0.0f;
  }
};

struct Chunk {
  int head, sample, begin;
  int64_t index; ///< among the chunks of all heads of all samples

  __device__ Chunk(const Rule &p, int chunk, int head, int sample)
      : head(head), sample(sample), begin(chunk * kC),
        index((int64_t{sample} * p.heads + head) * ceilOf(p.length) + chunk) {}
  __device__ static int64_t ceilOf(int64_t length) { return (length + kC - 1) / kC; }

  __device__ bool has(const Rule &p, int row) const { return begin + row < p.length; }
  /// Index of a position's number of the head.
  __device__ int64_t at(const Rule &p, int row) const {
    return (sample * p.length + begin + row) * p.heads + head;
  }
  /// Copies rows of queries or keys.
  template <int K, int kCount>
  __device__ void copyKeys(const Rule &p, const Data &x, uint32_t tile) const {
    const int64_t group = sample * p.length * p.groups + head / (p.heads / p.groups);
    copyRows<K, kC, kCount>(tile, static_cast<const uint16_t *>(x.p) + group * K,
                            int64_t{p.groups} * K, begin, static_cast<int>(p.length), K);
  }
  /// Copies 64 columns from column `column` on of rows of values or results.
  template <int kCount>
  __device__ void copyValues(const Rule &p, const Data &x, uint32_t tile, int column) const {
    const int64_t first = (sample * p.length * p.heads + head) * p.values + column;
    copyRows<kC, kC, kCount>(tile, static_cast<const uint16_t *>(x.p) + first,
                             int64_t{p.heads} * p.values, begin, static_cast<int>(p.length), kC);
  }

  /// Computes the numbers. The caller synchronises.
  __device__ void load(const Rule &p, Numbers &numbers) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i < kC) {
      const int64_t last = p.length - 1, s = begin + i < last ? begin + i : last;
      float log = 0, slope = 0, beta = 0;
      if (has(p, i)) {
        const float rate = expf(element(p.log, head));
        const float x = element(p.a, at(p, i)) + element(p.bias, head);
        const float step = x > 20.0f ? x : log1pf(expf(x));
        log = -rate * step, slope = 1.0f / (1.0f + expf(-x));
        beta = p.isScan ? step : 1.0f / (1.0f + expf(-element(p.b, at(p, i))));
      }
      numbers.log[i] = log, numbers.slope[i] = slope, numbers.beta[i] = beta;
      numbers.document[i] = p.isReset ? p.docs[sample * p.length + s] : 0;
      float sum = log * kLog2e;
#pragma unroll
      for (int by = 1; by < kWarp; by *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(by));
        sum += i % kWarp >= by ? before : 0.0f;
      }
      numbers.sum[i] = sum;
    }
    __syncthreads();
    if (i >= kWarp && i < kC)
      numbers.sum[i] += numbers.sum[kWarp - 1];
    __syncthreads();
    if (i < kC) {
      numbers.front[i] = numbers.document[i] < begin ? exp2Of(numbers.sum[i]) : 0.0f;
      numbers.back[i] = numbers.document[i] == numbers.document[kC - 1]
                            ? exp2Of(numbers.sum[kC - 1] - numbers.sum[i])
                            : 0.0f;
    }
  }
};

/// A piece of a row of a tile, as four words.
__device__ __forceinline__ uint4 loadPiece(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address));
  return words;
}
__device__ __forceinline__ void storePiece(uint32_t address, const uint4 &words) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ uint4 packedPiece(const float (&x)[kPiece], float factor) {
  return {packed<false>(x[0] * factor, x[1] * factor), packed<false>(x[2] * factor, x[3] * factor),
          packed<false>(x[4] * factor, x[5] * factor), packed<false>(x[6] * factor, x[7] * factor)};
}

/// Divides the rows of a tile by their norms, and multiplies them by `factor`. Calls each(row,
/// piece, numbers) for each piece.
template <int K, int kCount, typename Each>
__device__ __forceinline__ void makeUnits(uint32_t tile, float eps, float factor, Each each) {
  constexpr int kOfRow = kCount / kC, kPieces = K / kPiece / kOfRow;
  const int row = static_cast<int>(threadIdx.x) / kOfRow,
            lane = static_cast<int>(threadIdx.x) % kOfRow;
  float x[kPieces][kPiece], squares = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint4 piece = loadPiece(pieceOf<K>(tile, row, i * kOfRow + lane));
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int j = 0; j < kPiece; j += 2) {
      const float2 pair = unpacked(words[j / 2]);
      x[i][j] = pair.x, x[i][j + 1] = pair.y;
      squares += pair.x * pair.x + pair.y * pair.y;
    }
  }
#pragma unroll
  for (int by = 1; by < kOfRow; by *= 2)
    squares += __shfl_xor_sync(0xffffffffu, squares, by);
  const float scale = rsqrtf(squares + eps) * factor;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (float &number : x[i])
      number *= scale;
    storePiece(pieceOf<K>(tile, row, i * kOfRow + lane), packedPiece(x[i], 1.0f));
    each(row, i * kOfRow + lane, x[i]);
  }
}

/// Multiplies the rows of a tile by factor(row).
template <int kColumns, int kCount, typename Factor>
__device__ __forceinline__ void scaleRows(uint32_t tile, Factor factor) {
  for (int i = static_cast<int>(threadIdx.x); i < kC * kColumns / 2; i += kCount) {
    const int row = i / (kColumns / 2), column = i % (kColumns / 2) * 2;
    const float2 x = pairOf<kColumns>(tile, row, column);
    setPair<kColumns>(tile, row, column, {x.x * factor(row), x.y * factor(row)});
  }
}

/// Copies a matrix of kC rows that lie one after the other.
template <int kColumns, int kCount>
__device__ __forceinline__ void copyTile(uint32_t tile, const uint16_t *from, int64_t index) {
  copyRows<kColumns, kC, kCount>(tile, from + index * kC * kColumns, kColumns, 0, kC, kColumns);
}

/// 64 columns of a state, or of its gradient, in the registers of a block.
template <int K> struct State {
  float sums[K / kC][4][4] = {};

  /// Writes it to a tile, and to global memory whose rows are `pitch` apart, unless that is null.
  __device__ __forceinline__ void write(const Part &part, uint32_t tile, uint16_t *to, int pitch) {
#pragma unroll
    for (int m = 0; m < K / kC; ++m)
      forPairs(part, sums[m], [&](int i, int j, float2 &x) {
        setPair<kC>(tile, m * kC + i, j, x);
        if (to)
          setPair(to + (m * kC + i) * pitch + j, x);
      });
  }
  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int m = 0; m < K / kC; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[m][n][e] *= factor;
  }
  /// Adds aᵀ·b.
  __device__ __forceinline__ void add(const Part &part, uint32_t a, uint32_t b) {
#pragma unroll
    for (int m = 0; m < K / kC; ++m)
      addProduct<K, Lies::Across, kC, Lies::Across, kC>(sums[m], a, m * kC + part.row, b,
                                                        part.column);
  }
};

/// What the threads of differentiateChunks add up: for each row, by the four groups of warps, and
/// for each column, by the four warps of a group.
struct Sums {
  float beta[4][kC], row[4][kC], column[4][kC], all[kMoreThreads / kWarp],
      direct[kMoreThreads / kWarp];
};

/// What a lane adds up of the gradients of β and G of its rows, of -G of its columns, of G_C and of
/// state_scan's d.
struct LaneSums {
  float ofBeta[2], ofRow[2], ofColumn[2][2], all, direct;

  /// Adds the lanes of warps.
  __device__ __forceinline__ void write(const Part &part, Sums &total) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp,
              warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int by = 1; by < 4; by *= 2) {
        ofBeta[half] += __shfl_xor_sync(0xffffffffu, ofBeta[half], by);
        ofRow[half] += __shfl_xor_sync(0xffffffffu, ofRow[half], by);
      }
      if (lane % 4 == 0) {
        total.beta[warp / 4][part.laneRow(half)] = ofBeta[half];
        total.row[warp / 4][part.laneRow(half)] = ofRow[half];
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int by = 4; by < kWarp; by *= 2)
          ofColumn[n][e] += __shfl_xor_sync(0xffffffffu, ofColumn[n][e], by);
        if (lane < 4)
          total.column[warp % 4][part.laneColumn(n) + e] = ofColumn[n][e];
      }
    all = warpSum(all), direct = warpSum(direct);
    if (lane == 0)
      total.all[warp] = all, total.direct[warp] = direct;
  }
};

/// The gradients of G and β of a head's positions in a chunk, of d, and room for writeDecays.
struct HeadSums {
  float sum[kC], beta[kC], direct, behind, terms[kC / kWarp][2];

  /// Adds those of all threads, with the first kC of them.
  __device__ __forceinline__ void add(const Sums &total) {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kC)
      return;
    float ofSum = 0, ofBeta = 0, ofDirect = 0;
    for (int m = 0; m < 4; ++m)
      ofSum += total.row[m][i] - total.column[m][i], ofBeta += total.beta[m][i];
    for (int m = 0; i == kC - 1 && m < kMoreThreads / kWarp; ++m)
      ofSum += total.all[m], ofDirect += total.direct[m];
    sum[i] = ofSum, beta[i] = ofBeta;
    if (i == kC - 1)
      direct = ofDirect;
  }
};

/// Writes da, db, and the chunk's terms of dalog, dbias and dd. Each kC threads of a block do that
/// for a head, with its numbers and sums, or do nothing if `isThere` is false.
__device__ __forceinline__ void writeDecays(const Rule &p, const Chunk &chunk,
                                            const Numbers &numbers, HeadSums &head, bool isThere) {
  const int i = static_cast<int>(threadIdx.x) % kC, lane = i % kWarp;
  float ofSum = isThere ? head.sum[i] : 0.0f, terms[2] = {};
#pragma unroll
  for (int by = 1; by < kWarp; by *= 2) { // a position's log is in the sums of all behind it
    const float behind = __shfl_down_sync(0xffffffffu, ofSum, static_cast<unsigned>(by));
    ofSum += lane + by < kWarp ? behind : 0.0f;
  }
  if (isThere && i == kWarp)
    head.behind = ofSum;
  __syncthreads();
  if (isThere && chunk.has(p, i)) {
    ofSum += i < kWarp ? head.behind : 0.0f;
    const float dLog = numbers.document[i] == chunk.begin + i ? 0.0f : ofSum;
    const float rate = expf(element(p.log, chunk.head)), beta = numbers.beta[i];
    const float da = ((p.isScan ? head.beta[i] : 0.0f) - rate * dLog) * numbers.slope[i];
    setElement(p.da, chunk.at(p, i), da);
    if (!p.isScan)
      setElement(p.db, chunk.at(p, i), head.beta[i] * beta * (1.0f - beta));
    terms[0] = dLog * numbers.log[i], terms[1] = da;
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    terms[m] = warpSum(terms[m]);
    if (isThere && lane == 0)
      head.terms[i / kWarp][m] = terms[m];
  }
  __syncthreads();
  if (isThere && i < p.sumCount()) {
    const int64_t of = chunk.sample * Chunk::ceilOf(p.length) + chunk.begin / kC;
    p.sums[(of * p.sumCount() + i) * p.heads + chunk.head] =
        i < 2 ? head.terms[0][i] + head.terms[1][i] : head.direct;
  }
}

template <typename Kernel>
void launch(Kernel *kernel, dim3 grid, int threads, int bytes, const Call &call, const Rule &rule,
            const RuleChunks &chunks) {
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  launchKernel(kernel, grid, static_cast<unsigned>(threads), static_cast<size_t>(bytes),
               queueOf(call), rule, chunks);
}

} // namespace shardc::kernels::cuda::delta
