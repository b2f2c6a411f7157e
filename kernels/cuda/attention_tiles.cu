// attention, attention_qkv and attention_part on Hopper's tensor cores: o = softmax(scale·q·kᵀ)·v
// over the keys that a query sees; lse = log of the softmax's sum. A block processes 128 queries of
// one head: two warpgroups compute 64 queries each, and a third one copies tiles of 128 keys and
// values through a ring of two stages. Scores and outputs stay in registers. Probabilities, rounded
// to 16 bits, are the first operand of their product directly from registers. The exponentials of
// the next tile are computed while the products of the current one run. H100, in TFLOP/s over
// visible pairs only, for 16,384 tokens in rows of 4,096, 32 heads of 128, 8 groups: 560 with one
// document per row, 330 with documents of 1,024, 71 with documents of 128.
#include "kernels/cuda/TileAttention.h"
#include "kernels/cuda/attention_tiles.cuh"

namespace shardc::kernels::cuda {
namespace heads {
namespace {

constexpr int kStages = 2;

template <int kChannels> struct Shared {
  using Tile = TileOf<kTileRows, kChannels>;
  uint8_t q[Tile::kBytes], k[kStages][Tile::kBytes], v[kStages][Tile::kBytes];
  uint64_t hasQ, hasK[kStages], hasV[kStages], freeK[kStages], freeV[kStages];
};

/// The range of keys that the queries of a block, or of a warpgroup, see.
struct Range {
  int begin, end;

  __device__ static Range of(const Sight &sight, int query, int rows) {
    return {sight.begin(query), sight.end(query + rows - 1)};
  }
  __device__ int tiles() const { return (end - begin + kTileRows - 1) / kTileRows; }
};

template <int kChannels>
__device__ void copyTiles(const Maps &maps, const Sight &sight, Shared<kChannels> &shared,
                          int query, int head, int sample) {
  const Params &p = sight.p;
  using Tile = TileOf<kTileRows, kChannels>;
  int group = head / p.perGroup;
  uint32_t hasQ = hopper::sharedAddress(&shared.hasQ);
  hopper::expectBytes(hasQ, Tile::kBytes);
  Tile::load(maps.q, hopper::sharedAddress(shared.q), hasQ,
             p.q.at(group, head % p.perGroup, kChannels), sight.chunk.row + query, sample);
  Range range = Range::of(sight, query, kTileRows);
  RingPosition<kStages> inRing;
  for (int key = range.begin; key < range.end; key += kTileRows, ++inRing.count) {
    uint32_t stage = stageOf(inRing), hasK = barrier(shared.hasK, stage);
    uint32_t hasV = barrier(shared.hasV, stage);
    hopper::waitFor(barrier(shared.freeK, stage), inRing.parity() ^ 1);
    hopper::expectBytes(hasK, Tile::kBytes);
    Tile::load(maps.k, hopper::sharedAddress(shared.k[stage]), hasK, p.k.at(group, 0, kChannels),
               key, sample);
    hopper::waitFor(barrier(shared.freeV, stage), inRing.parity() ^ 1);
    hopper::expectBytes(hasV, Tile::kBytes);
    Tile::load(maps.v, hopper::sharedAddress(shared.v[stage]), hasV, p.v.at(group, 0, kChannels),
               key, sample);
  }
}

/// A thread's part of the computation: two of its warpgroup's queries, 8 rows apart.
template <int kChannels, bool kIsF16> class Queries {
  using Tile = TileOf<kTileRows, kChannels>;

public:
  __device__ Queries(const Sight &sight, Shared<kChannels> &shared, int query, int head, int sample)
      : p_(sight.p), chunk_(sight.chunk), shared_(shared), head_(head), sample_(sample),
        group_(tiles::groupOfWarp()), first_(query + group_ * kGroupRows) {
    block_ = Range::of(sight, query, kTileRows);
    all_ = Range::of(sight, first_, kGroupRows);
    lastBegin_ = sight.begin(first_ + kGroupRows - 1), firstEnd_ = sight.end(first_);
    int lane = static_cast<int>(threadIdx.x) % kWarp;
    row_ = first_ + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      begins_[i] = sight.begin(row_ + 8 * i), ends_[i] = sight.end(row_ + 8 * i);
    }
    factor_ = (p_.cap > 0.0f ? p_.cap : p_.scale) * kLog2e;
  }

  __device__ void run() {
    int from = (all_.begin - block_.begin) / kTileRows;
    int to = (all_.end - block_.begin + kTileRows - 1) / kTileRows;
    for (int i = 0; i < from; ++i)
      skip(i);
    hopper::waitFor(hopper::sharedAddress(&shared_.hasQ), 0);
    multiplyKeys(from);
    hopper::waitForProducts<0>();
    hopper::settle(s_);
    release(barrier(shared_.freeK, stageOf(from)));
    float shrink[2];
    soften(from, shrink);
    pack<kIsF16>(s_, probs_);
#pragma unroll 1
    for (int i = from + 1; i < to; ++i) {
      multiplyKeys(i);
      multiplyValues(i - 1);
      hopper::waitForProducts<1>();
      hopper::settle(s_);
      release(barrier(shared_.freeK, stageOf(i)));
      soften(i, shrink);
      hopper::waitForProducts<0>();
      hopper::settle(o_);
      release(barrier(shared_.freeV, stageOf(i - 1)));
#pragma unroll
      for (int j = 0; j < kChannels / 2; ++j)
        o_[j] *= shrink[j / 2 % 2];
      pack<kIsF16>(s_, probs_);
    }
    multiplyValues(to - 1);
    hopper::waitForProducts<0>();
    hopper::settle(o_);
    release(barrier(shared_.freeV, stageOf(to - 1)));
    for (int i = to; i < block_.tiles(); ++i)
      skip(i);
    write();
  }

private:
  __device__ static uint32_t stageOf(int tile) { return static_cast<uint32_t>(tile) % kStages; }
  __device__ static uint32_t parityOf(int tile) {
    return static_cast<uint32_t>(tile) / kStages % 2;
  }

  /// Releases a tile that none of the warpgroup's queries sees.
  __device__ void skip(int tile) {
    uint32_t stage = stageOf(tile);
    hopper::waitFor(barrier(shared_.hasK, stage), parityOf(tile));
    release(barrier(shared_.freeK, stage));
    hopper::waitFor(barrier(shared_.hasV, stage), parityOf(tile));
    release(barrier(shared_.freeV, stage));
  }

  __device__ void multiplyKeys(int tile) {
    uint32_t stage = stageOf(tile);
    hopper::waitFor(barrier(shared_.hasK, stage), parityOf(tile));
    hopper::Factor q = Tile::rows(hopper::sharedAddress(shared_.q), group_ * kGroupRows);
    hopper::Factor k = Tile::rows(hopper::sharedAddress(shared_.k[stage]), 0);
    hopper::settle(s_);
    hopper::beginProducts();
    multiplyRows<Tile, Tile, kIsF16>(s_, q, k);
  }

  __device__ void multiplyValues(int tile) {
    uint32_t stage = stageOf(tile);
    hopper::waitFor(barrier(shared_.hasV, stage), parityOf(tile));
    hopper::Factor v = Tile::rows(hopper::sharedAddress(shared_.v[stage]), 0);
    addProducts<kIsF16>(o_, probs_, v);
  }

  /// Replaces scores by exp(score - row maximum). `shrink` is the factor by which the earlier sums
  /// of each row must be multiplied because the maximum grew.
  __device__ void soften(int tile, float (&shrink)[2]) {
    int key0 = block_.begin + tile * kTileRows;
    bool seesAll = key0 >= lastBegin_ && key0 + kTileRows <= firstEnd_;
    if (p_.cap > 0.0f) {
#pragma unroll
      for (int j = 0; j < kTileRows / 2; ++j)
        s_[j] = tanhOf(s_[j] * (p_.scale / p_.cap));
    }
    if (!seesAll) {
      int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
      for (int j = 0; j < kTileRows / 2; ++j) {
        int key = key0 + j / 4 * 8 + lane % 4 * 2 + j % 2, i = j / 2 % 2;
        if (key < begins_[i] || key >= ends_[i])
          s_[j] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = largest_[i];
#pragma unroll
      for (int j = 0; j < kTileRows / 2; j += 4)
        largest = fmaxf(largest, fmaxf(s_[j + 2 * i], s_[j + 2 * i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      // A row that has not seen a key yet has only zeros.
      float top = largest == -INFINITY ? 0.0f : largest * factor_;
      shrink[i] = exp2Of(largest_[i] * factor_ - top);
      largest_[i] = largest;
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < kTileRows / 2; j += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &score = s_[j + 2 * i + e];
          score = exp2Of(fmaf(score, factor_, -top));
          total += score;
        }
      total_[i] = total_[i] * shrink[i] + total;
    }
  }

  __device__ void write() {
    int64_t statistics = p_.statistics(sample_, head_) + chunk_.row;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total_[i] += __shfl_xor_sync(0xffffffffu, total_[i], 1);
      total_[i] += __shfl_xor_sync(0xffffffffu, total_[i], 2);
      if (threadIdx.x % 4 == 0 && row_ + 8 * i < chunk_.rows)
        p_.lse[statistics + row_ + 8 * i] = (largest_[i] * factor_ + __log2f(total_[i])) * kLn2;
    }
#pragma unroll
    for (int j = 0; j < kChannels / 2; ++j)
      o_[j] /= total_[j / 2 % 2];
    tiles::syncGroup(group_); // all warps of the group have read their queries
    writeRows<kChannels, kIsF16>(p_.to[0], shared_.q + group_ * kGroupRows * kRowBytes,
                                 int64_t{sample_} * p_.queries + chunk_.row, first_, chunk_.rows,
                                 p_.o.at(head_ / p_.perGroup, head_ % p_.perGroup, kChannels), o_);
  }

  const Params &p_;
  const Chunk &chunk_;
  Shared<kChannels> &shared_;
  const int head_, sample_, group_, first_; ///< first_: the group's first query in the chunk
  Range block_, all_;
  int lastBegin_, firstEnd_, row_, begins_[2], ends_[2];
  float factor_; ///< converts scores to exponents of 2
  float s_[kTileRows / 2], o_[kChannels / 2] = {};
  uint32_t probs_[kTileRows / 4];
  float largest_[2] = {-INFINITY, -INFINITY}, total_[2] = {};
};

template <int kChannels, bool kIsF16>
__global__ void __launch_bounds__(kThreads)
    attentionTiles(const __grid_constant__ Maps maps, const __grid_constant__ Params p) {
  awaitPrevious();
  extern __shared__ __align__(1024) uint8_t memory[];
  auto &shared = *reinterpret_cast<Shared<kChannels> *>(memory);
  if (threadIdx.x == 0) {
    hopper::initBarrier(hopper::sharedAddress(&shared.hasQ), 1);
    for (uint32_t i = 0; i < kStages; ++i) {
      hopper::initBarrier(barrier(shared.hasK, i), 1);
      hopper::initBarrier(barrier(shared.hasV, i), 1);
      hopper::initBarrier(barrier(shared.freeK, i), tiles::kWarpsThatMultiply);
      hopper::initBarrier(barrier(shared.freeV, i), tiles::kWarpsThatMultiply);
    }
    hopper::fenceBarriers();
  }
  __syncthreads();
  QueryTile<kTileRows> tile(p);
  int head = static_cast<int>(blockIdx.y), sample = static_cast<int>(blockIdx.z);
  Sight sight(p, tile.chunk, sample);
  if (threadIdx.x < 128) {
    hopper::giveRegisters<24>();
    if (threadIdx.x == 0)
      copyTiles<kChannels>(maps, sight, shared, tile.query, head, sample);
  } else {
    hopper::takeRegisters<240>();
    Queries<kChannels, kIsF16>(sight, shared, tile.query, head, sample).run();
  }
}

template <int kChannels, bool kIsF16>
void launch(const Maps &maps, const Params &p, int samples, Queue &queue) {
  auto kernel = attentionTiles<kChannels, kIsF16>;
  constexpr int kBytes = sizeof(Shared<kChannels>);
  static_cast<void>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  dim3 grid(QueryTile<kTileRows>::ofAll(p), static_cast<unsigned>(p.heads),
            static_cast<unsigned>(samples));
  launchKernel(kernel, grid, kThreads, kBytes, queue, maps, p);
}

} // namespace

TileOperands::TileOperands(const Call &call, const AttentionOp &op) : Operands(call, op) {
  auto describe = [&](const HeadRows &of, int rows, uint32_t tileRows, CUtensorMap &map) {
    return encodeTensorMap({of.data.p,
                            isF16 ? DType::F16 : DType::BF16,
                            {of.row, rows, samples},
                            {kBlockCols, tileRows}},
                           map);
  };
  // Tiles of queries have kTileRows rows; the kernel for gradients of keys reads half as many.
  isThere = describe(p.from[0], p.queries, kTileRows, maps.q) &&
            describe(p.from[1], p.keys, kTileRows, maps.k) &&
            describe(p.from[2], p.keys, kTileRows, maps.v);
  if (op.backward)
    isThere = isThere && describe(p.dOut, p.queries, kTileRows, maps.dOut) &&
              describe(p.from[0], p.queries, kGroupRows, maps.halfQ) &&
              describe(p.dOut, p.queries, kGroupRows, maps.halfDOut);
}

} // namespace heads

int tileAttentionCode() { return ptxVersionOf(heads::attentionTiles<128, false>); }

bool hasTileAttention(const Call &call, const AttentionOp &op) {
  return heads::haveTiles(call, op);
}

void launchTileAttention(const Call &call, const AttentionOp &op) {
  heads::TileOperands operands(call, op);
  if (!operands.isThere)
    return reportError(queueOf(call), "cuTensorMapEncodeTiled", cudaErrorInvalidValue);
  heads::forHeads(operands, [&]<int kChannels, bool kIsF16>() {
    heads::launch<kChannels, kIsF16>(operands.maps, operands.p, operands.samples, queueOf(call));
  });
}

} // namespace shardc::kernels::cuda
