// Grouped matrix products on tensor cores by mma.sync, on every GPU since Ampere. grouped_matmul.cu
// defines the ops. Operands are bf16 or f16; sums are fp32 in the order of k, rounded once.
//
// Mapping: a block of four warps computes 128 by 128 elements of one group, 64 by 64 a warp, from a
// ring of three stages of 64 along k in shared memory. Blocks of a product are ordered in bands of
// eight tiles, one below the other, so that a and b stay in the L2 cache. A block finds its group
// by bisection in the list of groups; blocks beyond its end do nothing. A gradient sums the rows of
// its group, slot after slot, in one order, and writes zeros for a group without rows.
#include "kernels/cuda/grouped_plain.cuh"
#include "kernels/cuda/mma.cuh"

namespace shardc::kernels::cuda {
namespace {

constexpr int kTile = kMmaRows, kDepth = 64, kStages = 3, kThreads = 128;
constexpr int kOfWarp = 64, kBand = 8;
constexpr int kBytesOfTile = kTile * kDepth * 2;
constexpr int kBytes = kStages * 2 * kBytesOfTile;

enum class MmaForm : uint8_t {
  AlongK,   ///< a product with b[E,m,k]
  AcrossK,  ///< a product with b[E,k,m]
  Gradient, ///< the rows of both operands are along k
};

/// A block's place in the result, and the sums of one of its warps.
template <MmaForm kForm, bool kIsF16> class Block {
  static constexpr bool kIsGradient = kForm == MmaForm::Gradient;

public:
  __device__ Block(uint32_t memory, int row, int col) : memory_(memory), row_(row), col_(col) {}

  /// Starts the copies of a stage: its 64 elements along k begin at `a` and `b`, which have rows of
  /// `pitchOfA` and `pitchOfB` elements. Of rows along k, `depth` are valid.
  __device__ __forceinline__ void copy(int stage, const uint16_t *a, int64_t pitchOfA, int rowsOfA,
                                       const uint16_t *b, int64_t pitchOfB, int rowsOfB,
                                       int depth) const {
    const uint32_t tile = tileOf(stage), tileOfB = tile + kBytesOfTile;
    if constexpr (kIsGradient)
      mma::copyRows<kTile, kDepth, kThreads>(tile, a + row_, pitchOfA, 0, depth, rowsOfA - row_);
    else
      mma::copyRows<kDepth, kTile, kThreads>(tile, a, pitchOfA, row_, rowsOfA, depth);
    if constexpr (kForm == MmaForm::AlongK)
      mma::copyRows<kDepth, kTile, kThreads>(tileOfB, b, pitchOfB, col_, rowsOfB, depth);
    else
      mma::copyRows<kTile, kDepth, kThreads>(tileOfB, b + col_, pitchOfB, 0, depth, rowsOfB - col_);
  }

  __device__ __forceinline__ void add(int stage) {
    const uint32_t tile = tileOf(stage), tileOfB = tile + kBytesOfTile;
    const mma::LaneRow rowOfA = kIsGradient ? mma::LaneRow::ofColumns<kTile>(tile, 0)
                                            : mma::LaneRow::ofRows<kDepth>(tile, warpRow());
    const mma::LaneRow rowOfB = kForm == MmaForm::AlongK
                                    ? mma::LaneRow::ofColumns<kDepth>(tileOfB, warpCol())
                                    : mma::LaneRow::ofRows<kTile>(tileOfB, 0);
    // 64 columns are 128 bytes, within which the pieces of a row are permuted.
    const mma::LaneRow a = {rowOfA.address + (kIsGradient ? 2u * warpRow() : 0u)};
    const mma::LaneRow b = {rowOfB.address + (kForm == MmaForm::AlongK ? 0u : 2u * warpCol())};
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t ofA[4][4], ofB[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m)
        if constexpr (kIsGradient)
          mma::loadTransposed(ofA[m], a.piece<kTile>(2 * m, 16 * k));
        else
          mma::loadMatrices(ofA[m], a.piece<kDepth>(2 * k, 16 * m));
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if constexpr (kForm == MmaForm::AlongK)
          mma::loadMatrices(ofB[n], b.piece<kDepth>(2 * k, 16 * n));
        else
          mma::loadTransposed(ofB[n], b.piece<kTile>(2 * n, 16 * k));
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int n = 0; n < 8; ++n)
          mma::multiplyAdd<kIsF16>(sums_[m][n], ofA[m], ofB[n / 2][n % 2 * 2],
                                   ofB[n / 2][n % 2 * 2 + 1]);
    }
  }

  /// Writes the sums to a matrix [rows, m] of c that begins at its row `before`.
  __device__ __forceinline__ void write(const Data &c, int64_t before, int rows, int m) const {
    const int row = row_ + warpRow(), col = col_ + warpCol(), lane = threadIdx.x % kWarp;
    const bool isRounded = c.format != Format::F32 && !c.accumulate;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int64_t first = (before + row + 16 * part) * m + col;
      const int left = rows - row - 16 * part;
      if (isRounded) {
        mma::storeRows<kIsF16>(static_cast<uint16_t *>(c.p) + first, m, left, m - col, sums_[part]);
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int ofRow = lane / 4 + 8 * half;
        if (ofRow >= left)
          continue;
#pragma unroll
        for (int n = 0; n < 8; ++n) { // rows have multiples of 8 elements
          const int ofCol = 8 * n + lane % 4 * 2;
          if (col + ofCol >= m)
            continue;
          const float2 sum = {sums_[part][n][2 * half], sums_[part][n][2 * half + 1]};
          const int64_t at = first + int64_t{ofRow} * m + ofCol;
          if (c.accumulate || c.format != Format::F32)
            setElement(c, at, sum.x), setElement(c, at + 1, sum.y);
          else
            __stcs(reinterpret_cast<float2 *>(static_cast<float *>(c.p) + at), sum);
        }
      }
    }
  }

private:
  __device__ __forceinline__ static int warpRow() { return threadIdx.x / kWarp / 2 * kOfWarp; }
  __device__ __forceinline__ static int warpCol() { return threadIdx.x / kWarp % 2 * kOfWarp; }
  __device__ __forceinline__ uint32_t tileOf(int stage) const {
    return memory_ + static_cast<uint32_t>(stage * 2 * kBytesOfTile);
  }

  const uint32_t memory_;
  const int row_, col_;
  float sums_[4][8][4] = {};
};

/// Calls copy(stage) for each stage while there is one, two stages ahead of add(stage). copy
/// returns whether the stage exists.
template <typename Copy, typename Add>
__device__ __forceinline__ void runStages(const Copy &copy, const Add &add) {
  int copied = 0, added = 0;
  auto copyNext = [&] {
    copied += copy(copied % kStages);
    mma::endCopies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i)
    copyNext();
#pragma unroll 1
  for (; added < copied; ++added) {
    mma::awaitCopies<kStages - 2>();
    __syncthreads();
    copyNext();
    add(added % kStages);
  }
  mma::awaitCopies<0>();
}

template <MmaForm kForm, bool kIsF16>
__global__ void __launch_bounds__(kThreads)
    groupedMma(const plain::Shape p, const uint16_t *a, const uint16_t *b) {
  awaitPrevious();
  extern __shared__ __align__(128) uint8_t memory[];
  const int k = static_cast<int>(p.k), m = static_cast<int>(p.m);
  const int cols = (m + kTile - 1) / kTile, all = static_cast<int>(p.slots * p.groups);
  if constexpr (kForm == MmaForm::Gradient) {
    const int group = static_cast<int>(blockIdx.z);
    Block<kForm, kIsF16> block(mma::sharedAddress(memory), static_cast<int>(blockIdx.x) * kTile,
                               static_cast<int>(blockIdx.y) * kTile);
    int slot = group, at = p.list.begins[slot], end = p.list.ends[slot];
    runStages(
        [&](int stage) {
          while (at >= end && slot + p.groups < all)
            slot += static_cast<int>(p.groups), at = p.list.begins[slot], end = p.list.ends[slot];
          if (at >= end)
            return false;
          block.copy(stage, a + int64_t{at} * k, k, k, b + int64_t{at} * m, m, m, end - at);
          at += kDepth;
          return true;
        },
        [&](int stage) { block.add(stage); });
    block.write(p.c, int64_t{group} * k, k, m);
  } else {
    const int inBand = static_cast<int>(blockIdx.x) % (kBand * cols);
    const int item = static_cast<int>(blockIdx.x) / (kBand * cols) * kBand + inBand % kBand;
    if (item >= p.list.firstItems[all])
      return;
    const auto group = static_cast<int>(plain::groupOf(p.list, all, item));
    const uint16_t *matrix = b + group % p.groups * p.k * p.m;
    const int row = p.list.begins[group] + (item - p.list.firstItems[group]) * kTile;
    Block<kForm, kIsF16> block(mma::sharedAddress(memory), row, inBand / kBand * kTile);
    int at = 0;
    runStages(
        [&](int stage) {
          if (at >= k)
            return false;
          if constexpr (kForm == MmaForm::AlongK)
            block.copy(stage, a + at, k, p.list.ends[group], matrix + at, k, m, k - at);
          else
            block.copy(stage, a + at, k, p.list.ends[group], matrix + int64_t{at} * m, m, m,
                       k - at);
          at += kDepth;
          return true;
        },
        [&](int stage) { block.add(stage); });
    block.write(p.c, 0, p.list.ends[group], m);
  }
}

template <MmaForm kForm, bool kIsF16>
void launch(const Grouped &g, const GroupList &list, dim3 grid, Queue &queue) {
  auto kernel = groupedMma<kForm, kIsF16>;
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  launchKernel(kernel, grid, kThreads, kBytes, queue,
               plain::Shape{dataOf(g.c), list, g.slots, g.groups, g.k, g.m},
               static_cast<const uint16_t *>(g.a.data), static_cast<const uint16_t *>(g.b.data));
}

template <bool kIsF16> void launchType(const Grouped &g, const GroupList &list, Queue &queue) {
  auto cols = static_cast<unsigned>(ceilDiv(g.m, kTile));
  if (g.isGradient)
    return launch<MmaForm::Gradient, kIsF16>(
        g, list,
        {static_cast<unsigned>(ceilDiv(g.k, kTile)), cols, static_cast<unsigned>(g.groups)}, queue);
  auto items = static_cast<unsigned>(ceilDiv(g.rows / kTile + g.allGroups(), kBand) * kBand);
  g.transB ? launch<MmaForm::AlongK, kIsF16>(g, list, items * cols, queue)
           : launch<MmaForm::AcrossK, kIsF16>(g, list, items * cols, queue);
}

} // namespace

bool hasMma(const Grouped &g) {
  bool fits = g.path == KernelPath::GroupedMma;
  for (const Tensor *t : {&g.a, &g.b, &g.c})
    fits &= reinterpret_cast<uintptr_t>(t->data) % 16 == 0;
  return fits;
}

void launchMma(const Grouped &g, const GroupList &list, Queue &queue) {
  g.a.dtype == DType::F16 ? launchType<true>(g, list, queue) : launchType<false>(g, list, queue);
}

} // namespace shardc::kernels::cuda
