// Matrix products of warps by mma.sync, on every GPU since Ampere (compute capability 8.0): tiles
// in shared memory that cp.async fills and ldmatrix reads, and m16n8k16 products of bf16 or f16
// with fp32 sums. A tile has rows of kColumns elements of 16 bits; its 16-byte pieces are permuted
// by the row, so that the eight rows of a matrix lie in different banks.
//
// Fragments of lane 4·g + t, as PTX defines them: of sums c[16×8], elements 0 and 1 are row g,
// columns 2t and 2t + 1, and elements 2 and 3 are row g + 8. Two neighbouring tiles of sums,
// rounded to 16 bits, are a fragment a[16×16] of a first operand.
#pragma once

#include <cstdint>

#include "kernels/cuda/common.cuh"

namespace shardc::kernels::cuda::mma {

constexpr uint32_t kPieceBytes = 16; ///< what one thread copies at a time
constexpr int kPiece = 8;            ///< its elements

__device__ __forceinline__ uint32_t sharedAddress(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- copies from global to shared memory, in groups ----

/// Copies 16 bytes, or writes zeros if `isThere` is false.
__device__ __forceinline__ void copyPiece(uint32_t to, const void *from, bool isThere) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(isThere ? 16 : 0));
}
/// The same for 4 bytes.
__device__ __forceinline__ void copyWord(uint32_t to, const void *from, bool isThere) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(isThere ? 4 : 0));
}
/// Ends a group of this thread's copies.
__device__ __forceinline__ void endCopies() { asm volatile("cp.async.commit_group;"); }
/// Returns when all but the latest kPending groups of this thread's copies have arrived.
template <int kPending> __device__ __forceinline__ void awaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- tiles ----

/// Address of a piece of a row of a tile with kColumns columns.
template <int kColumns>
__device__ __forceinline__ uint32_t pieceOf(uint32_t tile, int row, int piece) {
  return tile + static_cast<uint32_t>(row * kColumns * 2) +
         (static_cast<uint32_t>(piece ^ (row & 7)) * kPieceBytes);
}

/// Starts the block's copies of kRows rows, from row `first` on, of a matrix whose rows are `pitch`
/// elements apart. Rows from `end` on and columns from `columns` on, a multiple of 8, become zero.
template <int kColumns, int kRows, int kThreads>
__device__ __forceinline__ void copyRows(uint32_t tile, const uint16_t *from, int64_t pitch,
                                         int first, int end, int columns) {
  constexpr int kPieces = kColumns / kPiece;
#pragma unroll
  for (int i = 0; i < (kRows * kPieces + kThreads - 1) / kThreads; ++i) {
    int at = i * kThreads + static_cast<int>(threadIdx.x);
    if (kRows * kPieces % kThreads != 0 && at >= kRows * kPieces)
      break;
    int row = at / kPieces, piece = at % kPieces;
    bool isThere = first + row < end && piece * kPiece < columns;
    copyPiece(pieceOf<kColumns>(tile, row, piece),
              from + (isThere ? (first + row) * pitch + piece * kPiece : 0), isThere);
  }
}

/// A lane's row of a tile from which it loads matrices, at pieces 0 or 1 of the row. piece() is the
/// address of another piece of the row: a constant away but for one exclusive or.
struct LaneRow {
  uint32_t address;

  /// First operand, or second operand along rows: 16 rows from `first` on.
  template <int kColumns>
  __device__ __forceinline__ static LaneRow ofRows(uint32_t tile, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return {pieceOf<kColumns>(tile, first + lane % 16, lane / 16)};
  }
  /// Second operand whose rows are along its columns: two of its 8-row matrices from `first` on.
  template <int kColumns>
  __device__ __forceinline__ static LaneRow ofColumns(uint32_t tile, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return {pieceOf<kColumns>(tile, first + lane / 16 * 8 + lane % 8, lane / 8 % 2)};
  }
  /// The piece that is `pieces` further, an even number, in the row that is `rows` further, a
  /// multiple of 8.
  template <int kColumns>
  __device__ __forceinline__ uint32_t piece(int pieces, int rows = 0) const {
    return (address ^ (static_cast<uint32_t>(pieces % 8) * kPieceBytes)) +
           static_cast<uint32_t>(pieces / 8 * 8) * kPieceBytes +
           static_cast<uint32_t>(rows * kColumns * 2);
  }
};

/// Four 8×8 matrices, one for each word; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void loadMatrices(uint32_t (&words)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row));
}
__device__ __forceinline__ void loadTransposed(uint32_t (&words)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row));
}

// ---- products ----

/// sums += a·b, for 16 rows, 8 columns and 16 elements along k.
template <bool kIsF16>
__device__ __forceinline__ void multiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  if constexpr (kIsF16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounds sums of 16 rows to first operands.
template <bool kIsF16, int kTiles>
__device__ __forceinline__ void pack(const float (&sums)[kTiles][4], uint32_t (&a)[kTiles / 2][4]) {
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&of)[4] = sums[2 * i + half];
      a[i][2 * half] = packed<kIsF16>(of[0], of[1]);
      a[i][2 * half + 1] = packed<kIsF16>(of[2], of[3]);
    }
}

/// A warp's rows of a tile as first operands: kParts times 16 rows from row `first` on, either
/// loaded once to registers, or again for each product.
template <int kColumns, int kParts, bool kIsHeld> struct FirstRows {
  uint32_t held[kIsHeld ? kColumns / 16 : 1][kParts][4];
  LaneRow row;

  /// With kIsHeld, only after the tile has arrived.
  __device__ __forceinline__ FirstRows(uint32_t tile, int first)
      : row(LaneRow::ofRows<kColumns>(tile, first)) {}
  __device__ __forceinline__ void hold() {
    if constexpr (kIsHeld)
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k)
        load(held[k], k);
  }
  /// Fragments of 16 columns.
  __device__ __forceinline__ void get(uint32_t (&words)[kParts][4], int k) const {
    if constexpr (kIsHeld) {
#pragma unroll
      for (int m = 0; m < kParts; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[m][i] = held[k][m][i];
    } else {
      load(words, k);
    }
  }

private:
  __device__ __forceinline__ void load(uint32_t (&words)[kParts][4], int k) const {
#pragma unroll
    for (int m = 0; m < kParts; ++m)
      loadMatrices(words[m], row.template piece<kColumns>(2 * k, 16 * m));
  }
};

/// sums[m] += a·bᵀ over kColumns columns, with the rows of tile b from a lane's row `b` on.
template <int kColumns, bool kIsF16, int kParts, int kTiles, bool kIsHeld>
__device__ __forceinline__ void addAlongRows(float (&sums)[kParts][kTiles][4],
                                             const FirstRows<kColumns, kParts, kIsHeld> &a,
                                             const LaneRow &b) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    uint32_t ofA[kParts][4];
    a.get(ofA, k);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t ofB[4];
      loadMatrices(ofB, b.piece<kColumns>(2 * k, 8 * n));
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
        multiplyAdd<kIsF16>(sums[m][n], ofA[m], ofB[0], ofB[1]);
        multiplyAdd<kIsF16>(sums[m][n + 1], ofA[m], ofB[2], ofB[3]);
      }
    }
  }
}

/// sums[m] += a[m]·b: a is in registers, the rows of tile b from a lane's row `b` on lie along k,
/// and the sums have all kColumns columns.
template <int kColumns, bool kIsF16, int kParts, int kSteps>
__device__ __forceinline__ void addAcrossRows(float (&sums)[kParts][kColumns / 8][4],
                                              const uint32_t (&a)[kParts][kSteps][4],
                                              const LaneRow &b) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 2) {
      uint32_t ofB[4];
      loadTransposed(ofB, b.piece<kColumns>(n, 16 * k));
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
        multiplyAdd<kIsF16>(sums[m][n], a[m][k], ofB[0], ofB[1]);
        multiplyAdd<kIsF16>(sums[m][n + 1], a[m][k], ofB[2], ofB[3]);
      }
    }
}

/// Exchanges words among four lanes that are kStride lanes apart: word j of lane i becomes word i
/// of lane j.
template <int kStride> __device__ __forceinline__ void transposeWords(uint32_t (&words)[4]) {
  const bool isOdd = threadIdx.x / kStride & 1, isUpper = threadIdx.x / kStride & 2;
  auto exchange = [](uint32_t &low, uint32_t &high, bool keepsHigh, int distance) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, keepsHigh ? low : high, distance);
    (keepsHigh ? low : high) = other;
  };
  exchange(words[0], words[1], isOdd, kStride);
  exchange(words[2], words[3], isOdd, kStride);
  exchange(words[0], words[2], isUpper, 2 * kStride);
  exchange(words[1], words[3], isUpper, 2 * kStride);
}

/// Rounds a warp's sums of 16 rows and stores them 16 bytes at a time; `to` is the first element of
/// row 0, rows are `pitch` elements apart. Rows from `rows` on and columns from `columns` on, a
/// multiple of 8, are not stored.
template <bool kIsF16, int kTiles>
__device__ __forceinline__ void storeRows(uint16_t *to, int64_t pitch, int rows, int columns,
                                          const float (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < kTiles; n += 4) { // lane t of four stores the tile n + t of its row
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = packed<kIsF16>(sums[n + i][2 * half], sums[n + i][2 * half + 1]);
      transposeWords<1>(words);
      int row = lane / 4 + 8 * half, column = (n + lane % 4) * 8;
      if (row < rows && column < columns)
        *reinterpret_cast<uint4 *>(to + row * pitch + column) = {words[0], words[1], words[2],
                                                                 words[3]};
    }
}

} // namespace shardc::kernels::cuda::mma
