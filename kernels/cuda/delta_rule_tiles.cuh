// What the kernels of delta_rule_tiles.cu share: a warp's part of a product of tiles in shared
// memory, and the numbers of a chunk's positions.
#pragma once

#include "kernels/cuda/DeltaRule.h"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/mma.cuh"

namespace shardc::kernels::cuda::delta {

using heads::exp2Of, heads::kLog2e;
using mma::awaitCopies, mma::copyRows, mma::endCopies, mma::kPiece, mma::LaneRow, mma::loadMatrices,
    mma::loadTransposed, mma::multiplyAdd, mma::pieceOf, mma::sharedAddress;

constexpr int kC = kRuleChunk;
constexpr int kThreads = 256, kMoreThreads = 512; ///< the latter in differentiateChunks
constexpr int kSquare = kC * kC * 2;              ///< bytes of a tile of 64 columns of 16 bits
constexpr int kPitch = kC + 8;                    ///< of a matrix of floats

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

/// The numbers of a chunk's positions. Those beyond the sequence belong to its last document and
/// change nothing.
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
        log = -rate * (x > 20.0f ? x : log1pf(expf(x)));
        slope = -rate / (1.0f + expf(-x));
        beta = 1.0f / (1.0f + expf(-element(p.b, at(p, i))));
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

} // namespace shardc::kernels::cuda::delta
