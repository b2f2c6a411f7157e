// state_scan and its gradient on tensor cores, for bf16: products by mma.sync with fp32 sums, in
// chunks of 64 positions (Dao, Gu 2024, "Transformers are SSMs", section 6). With G, E, S and S' as
// in delta_rule_tiles.cu, and u = t·x:
//   S' = e^{G_C}·S + kᵀ·(e^{G_C - G}·u)   y = e^G·(q·S) + (qkᵀ·E)·u + d·x
// writeNumbers computes the numbers of all chunks. In goThroughChunks, a block goes through the
// chunks of a head with 64 columns of S in registers, and computes y. The gradient goes through
// them twice, for S and backwards for dS, keeps both, and computes the rest for all chunks in
// parallel (differentiateScans): there a block has up to kScanHeads heads of a group, of which qkᵀ
// is one, and adds their dq and dk. Sums have one order. Limited by tensor cores and the bytes of
// states.
#include "kernels/cuda/delta_rule_tiles.cuh"

namespace shardc::kernels::cuda {
namespace delta {
namespace {

template <int K> struct Scan {
  static constexpr int kRows = kC * K * 2; ///< bytes of a tile of keys, or of 64 columns of a state
  static constexpr int kNumbers = sizeof(Numbers);
  static constexpr int kStates = kRows + kSquare + 2 * kNumbers;
  static constexpr int kResults = kStates + 2 * kRows + 2 * kSquare;
  static constexpr int kGradients = 4 * kRows + 3 * kSquare + 2 * kNumbers + int{sizeof(Sums)} +
                                    kScanHeads * int{sizeof(HeadSums)};
  static_assert(kGradients <= kBytesMax && kNumbers % kPieceBytes == 0);
};

/// Blocks of columns of values, and of heads of a group.
__host__ __device__ int columnBlocks(const Rule &p) { return (p.values + kC - 1) / kC; }
__host__ __device__ int headBlocks(const Rule &p) {
  return (p.heads / p.groups + kScanHeads - 1) / kScanHeads;
}

__global__ void __launch_bounds__(kC)
    writeNumbers(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  __shared__ __align__(16) Numbers numbers;
  const Chunk chunk(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                    static_cast<int>(blockIdx.z));
  chunk.load(p, numbers);
  __syncthreads();
  uint4 *to = reinterpret_cast<uint4 *>(c.numbers) + chunk.index * (sizeof(Numbers) / kPieceBytes);
  for (size_t i = threadIdx.x; i < sizeof(Numbers) / kPieceBytes; i += kC)
    to[i] = reinterpret_cast<const uint4 *>(&numbers)[i];
}

/// Copies columns from `from` on of rows of values or results, or of a state. Those behind the last
/// one become zero.
template <int kCount>
__device__ __forceinline__ void copyColumns(const Rule &p, const Chunk &chunk, const Data &x,
                                            uint32_t tile, int from) {
  const int64_t first = (chunk.sample * p.length * p.heads + chunk.head) * p.values + from;
  copyRows<kC, kC, kCount>(tile, static_cast<const uint16_t *>(x.p) + first,
                           int64_t{p.heads} * p.values, chunk.begin, static_cast<int>(p.length),
                           p.values - from);
}
template <int K, int kCount>
__device__ __forceinline__ void copyState(const Rule &p, const Chunk &chunk, const uint16_t *states,
                                          uint32_t tile, int from) {
  copyRows<kC, K, kCount>(tile, states + chunk.index * K * p.values + from, p.values, 0, K,
                          p.values - from);
}
template <int K>
__device__ __forceinline__ void storeState(const Rule &p, const Part &part, const State<K> &state,
                                           uint16_t *states, const Chunk &chunk, int from) {
  uint16_t *to = states + (chunk.index * K + part.row) * p.values + from + part.column;
#pragma unroll
  for (int m = 0; m < K / kC; ++m)
    mma::storeRows<false>(to + m * kC * p.values, p.values, kC, p.values - from - part.column,
                          state.sums[m]);
}
__device__ __forceinline__ void copyNumbers(const RuleChunks &c, const Chunk &chunk,
                                            Numbers *numbers) {
  constexpr int kPieces = sizeof(Numbers) / kPieceBytes, kWords = sizeof(Numbers) / 4;
  const int i = static_cast<int>(threadIdx.x);
  if (i < kPieces)
    mma::copyPiece(sharedAddress(numbers) + static_cast<uint32_t>(i) * kPieceBytes,
                   c.numbers + chunk.index * kWords + i * 4, true);
}

/// Writes the pieces of a tile of 64 columns that this thread copied, times factor(row).
template <int kCount, typename Factor>
__device__ __forceinline__ void scaleOwnPieces(uint32_t tile, uint32_t to, Factor factor) {
#pragma unroll
  for (int i = 0; i < kC * kC / kPiece / kCount; ++i) {
    const int at = i * kCount + static_cast<int>(threadIdx.x), row = at / kPiece;
    const uint4 piece = loadPiece(pieceOf<kC>(tile, row, at % kPiece));
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
    float x[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; j += 2) {
      const float2 pair = unpacked(words[j / 2]);
      x[j] = pair.x, x[j + 1] = pair.y;
    }
    storePiece(pieceOf<kC>(to, row, at % kPiece), packedPiece(x, factor(row)));
  }
}

/// Writes the decayed qkᵀ of a lane's part to a tile.
template <int kTiles, typename Factor>
__device__ __forceinline__ void writeReads(const Part &part, const Decays<kTiles> &decays,
                                           const float (&qk)[kTiles][4], uint32_t tile,
                                           Factor factor) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = part.laneRow(half), j = part.laneColumn(n);
      float reads[2];
#pragma unroll
      for (int e = 0; e < 2; ++e)
        reads[e] = i >= j + e ? qk[n][2 * half + e] * decays.get(half, n, e) * factor(j + e) : 0.0f;
      setPair<kC>(tile, i, j, {reads[0], reads[1]});
    }
}

/// Why a block goes through the chunks of a head: for y; for S in front of each; or backwards, for
/// dS behind each.
enum class Pass { Results, States, Gradients };

template <int K, Pass kPass>
__global__ void __launch_bounds__(kThreads, kPass == Pass::Results ? 2 : 4)
    goThroughChunks(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr bool kIsBack = kPass == Pass::Gradients, kHasResults = kPass == Pass::Results;
  constexpr int kRows = Scan<K>::kRows;
  const uint32_t keys = sharedAddress(memory), rows = keys + kRows, // k and x, or q and dy
      q = sharedAddress(memory) + Scan<K>::kStates, s = q + kRows, reads = s + kRows,
                 scaled = kHasResults ? reads + kSquare : rows;
  Numbers *numbersOf = reinterpret_cast<Numbers *>(memory + kRows + kSquare);
  const Part part(kC / 2);
  const int from = static_cast<int>(blockIdx.x) * kC, head = static_cast<int>(blockIdx.y),
            count = static_cast<int>(Chunk::ceilOf(p.length));
  const auto chunkAt = [&](int i) {
    return Chunk(p, kIsBack ? count - 1 - i : i, head, static_cast<int>(blockIdx.z));
  };
  [[maybe_unused]] const float direct = kHasResults ? element(p.direct, head) : 0.0f;
  copyNumbers(c, chunkAt(0), numbersOf);
  endCopies();
  awaitCopies<0>();
  State<K> state;
  for (int i = 0; i < count; ++i) {
    __syncthreads(); // numbers are there, and all have read what is in the tiles
    const Chunk chunk = chunkAt(i);
    const Numbers &numbers = numbersOf[i % 2];
    copyColumns<kThreads>(p, chunk, kIsBack ? p.o : p.v, rows, from);
    chunk.copyKeys<K, kThreads>(p, kIsBack ? p.q : p.k, keys);
    if constexpr (kHasResults)
      chunk.copyKeys<K, kThreads>(p, p.q, q);
    if (i + 1 < count)
      copyNumbers(c, chunkAt(i + 1), numbersOf + (i + 1) % 2);
    endCopies();
    if constexpr (kHasResults) {
      state.write(part, s, nullptr, 0);
    } else {
      storeState(p, part, state, kIsBack ? c.dStates : c.states, chunk, from);
    }
    awaitCopies<0>();
    scaleOwnPieces<kThreads>(rows, scaled, [&](int row) {
      return kIsBack ? numbers.front[row] : numbers.back[row] * numbers.beta[row];
    });
    __syncthreads();
    if constexpr (kHasResults) {
      float qk[4][4] = {};
      addProduct<K, Lies::Along, K, Lies::Along, K>(qk, q, part.row, keys, part.column);
      writeReads(part, Decays<4>(numbers, part), qk, reads, [&](int j) { return numbers.beta[j]; });
      __syncthreads();
      float y[4][4] = {};
      addProduct<K, Lies::Along, kC, Lies::Across, K>(y, q, part.row, s, part.column);
      forPairs(part, y, [&](int row, int, float2 &sum) {
        sum = {sum.x * numbers.front[row], sum.y * numbers.front[row]};
      });
      addProduct<kC, Lies::Along, kC, Lies::Across, kC>(y, reads, part.row, rows, part.column);
      forPairs(part, y, [&](int row, int column, float2 &sum) {
        const float2 own = pairOf<kC>(rows, row, column);
        sum = {sum.x + direct * own.x, sum.y + direct * own.y};
      });
      const int64_t pitch = int64_t{p.heads} * p.values;
      mma::storeRows<false>(static_cast<uint16_t *>(p.o.p) + chunk.at(p, part.row) * p.values +
                                from + part.column,
                            pitch, static_cast<int>(p.length) - chunk.begin - part.row,
                            p.values - from - part.column, y);
    }
    state.scale(numbers.front[kC - 1]);
    state.add(part, keys, scaled);
  }
}

/// The heads of a block: those of a group from `begin` to `end`.
struct Heads {
  int begin, end;
  __device__ explicit Heads(const Rule &p) {
    const int each = p.heads / p.groups, blocks = headBlocks(p),
              group = static_cast<int>(blockIdx.y) / blocks,
              last = static_cast<int>(blockIdx.y) % blocks * kScanHeads + kScanHeads;
    begin = group * each + last - kScanHeads, end = group * each + (last < each ? last : each);
  }
};

/// The gradients of a chunk, as a thread of differentiateScans has them.
template <int K> struct ScanGradient {
  static constexpr int kRows = Scan<K>::kRows;

  const Rule &p;
  const uint32_t q, k, s, ds, x, dOut, reads; ///< tiles; the last has qkᵀ·E
  const Part part, wide;
  float qk[2][4] = {}, ofQk[2][4] = {};                ///< qkᵀ, and its gradient
  float queries[K / 32][4] = {}, keys[K / 32][4] = {}; ///< gradients
  LaneSums sums = {};                                  ///< of one head

  __device__ ScanGradient(const Rule &p, uint32_t tiles)
      : p(p), q(tiles), k(q + kRows), s(k + kRows), ds(s + kRows), x(ds + kRows), dOut(x + kSquare),
        reads(dOut + kSquare), part(kC / 4), wide(K / 4) {}

  /// Adds what 64 columns of values of a head have, from column `from` on, and writes dx.
  __device__ __forceinline__ void addColumns(const Chunk &chunk, const Numbers &numbers, int from,
                                             float direct) {
    constexpr Lies kAlong = Lies::Along, kAcross = Lies::Across;
    float du[2][4] = {};
    addProduct<K, kAlong, kC, kAcross, K>(du, k, part.row, ds, part.column);
    forPairs(part, du, [&](int i, int, float2 &sum) {
      sum = {sum.x * numbers.back[i], sum.y * numbers.back[i]};
    });
    addProduct<kC, kAcross, kC, kAcross, kC>(du, reads, part.row, dOut, part.column);
    forPairs(part, du, [&](int half, int i, int j, float2 &sum) {
      const float2 own = pairOf<kC>(x, i, j), gradient = pairOf<kC>(dOut, i, j);
      const float beta = numbers.beta[i];
      sums.ofBeta[half] += sum.x * own.x + sum.y * own.y;
      sums.direct += gradient.x * own.x + gradient.y * own.y;
      if (chunk.has(p, i) && from + j < p.values)
        setPair(p.dv, chunk.at(p, i) * p.values + from + j,
                {beta * sum.x + direct * gradient.x, beta * sum.y + direct * gradient.y});
    });
    float pairs[2][4] = {};
    addProduct<kC, kAlong, kC, kAlong, kC>(pairs, dOut, part.row, x, part.column);
    addPairs(pairs, numbers);
    float rows[K / 32][4] = {};
    addProduct<kC, kAlong, kC, kAlong, kC>(rows, dOut, wide.row, s, wide.column);
    forPairs(wide, rows, [&](int half, int i, int j, float2 &sum) {
      const float2 own = pairOf<K>(q, i, j);
      sum = {sum.x * numbers.front[i], sum.y * numbers.front[i]};
      sums.ofRow[half] += sum.x * own.x + sum.y * own.y;
    });
    moveTo(queries, rows);
    addProduct<kC, kAlong, kC, kAlong, kC>(rows, x, wide.row, ds, wide.column);
    forPairs(wide, rows, [&](int half, int i, int j, float2 &sum) {
      const float2 own = pairOf<K>(k, i, j);
      const float factor = numbers.back[i] * numbers.beta[i];
      sum = {sum.x * factor, sum.y * factor};
      const float kept = sum.x * own.x + sum.y * own.y;
      sums.ofRow[half] -= kept, sums.all += kept;
    });
    moveTo(keys, rows);
    float both = 0;
    for (int i = static_cast<int>(threadIdx.x); i < K * kC / 2; i += kMoreThreads) {
      const float2 before = pairOf<kC>(s, i / (kC / 2), i % (kC / 2) * 2),
                   behind = pairOf<kC>(ds, i / (kC / 2), i % (kC / 2) * 2);
      both += before.x * behind.x + before.y * behind.y;
    }
    sums.all += numbers.front[kC - 1] * both;
  }

  /// Adds dy·uᵀ to the gradient of qkᵀ, and what decays have of it.
  __device__ __forceinline__ void addPairs(const float (&pairs)[2][4], const Numbers &numbers) {
    const Decays<2> decays(numbers, part);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = part.laneRow(half), j = part.laneColumn(n) + e, at = 2 * half + e;
          if (i < j)
            continue;
          const float gradient = pairs[n][at] * numbers.beta[j] * decays.get(half, n, e),
                      both = gradient * qk[n][at];
          ofQk[n][at] += gradient;
          sums.ofRow[half] += both, sums.ofColumn[n][e] += both;
        }
  }
  __device__ __forceinline__ static void moveTo(float (&to)[K / 32][4], float (&rows)[K / 32][4]) {
#pragma unroll
    for (int n = 0; n < K / 32; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        to[n][e] += rows[n][e], rows[n][e] = 0;
  }

  /// Writes the sums over the heads.
  __device__ __forceinline__ void write(const Chunk &chunk) {
    forPairs(part, ofQk, [&](int i, int j, float2 &sum) { setPair<kC>(reads, i, j, sum); });
    __syncthreads();
    addProduct<kC, Lies::Along, K, Lies::Across, kC>(queries, reads, wide.row, k, wide.column);
    addProduct<kC, Lies::Across, K, Lies::Across, kC>(keys, reads, wide.row, q, wide.column);
    const auto writeRows = [&](float *to, float(&rows)[K / 32][4]) {
      forPairs(wide, rows, [&](int i, int j, float2 &sum) {
        const int64_t token = chunk.sample * p.length + chunk.begin + i;
        if (chunk.has(p, i))
          *reinterpret_cast<float2 *>(to + (token * gridDim.y + blockIdx.y) * K + j) = sum;
      });
    };
    writeRows(p.dq, queries), writeRows(p.dk, keys);
  }
};

template <int K>
__global__ void __launch_bounds__(kMoreThreads)
    differentiateScans(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  extern __shared__ __align__(128) unsigned char memory[];
  Numbers *numbersOf = reinterpret_cast<Numbers *>(memory + 4 * Scan<K>::kRows + 3 * kSquare);
  auto &total = *reinterpret_cast<Sums *>(numbersOf + 2);
  auto *sumsOf = reinterpret_cast<HeadSums *>(&total + 1);
  ScanGradient<K> gradient(p, sharedAddress(memory));
  const Heads heads(p);
  const int blocks = columnBlocks(p), count = (heads.end - heads.begin) * blocks;
  const auto chunkAt = [&](int i) {
    return Chunk(p, static_cast<int>(blockIdx.x), heads.begin + i / blocks,
                 static_cast<int>(blockIdx.z));
  };
  const auto copy = [&](int i) {
    const Chunk chunk = chunkAt(i);
    const int from = i % blocks * kC;
    copyColumns<kMoreThreads>(p, chunk, p.v, gradient.x, from);
    copyColumns<kMoreThreads>(p, chunk, p.o, gradient.dOut, from);
    copyState<K, kMoreThreads>(p, chunk, c.states, gradient.s, from);
    copyState<K, kMoreThreads>(p, chunk, c.dStates, gradient.ds, from);
    if (from == 0)
      copyNumbers(c, chunk, numbersOf + i / blocks % 2);
    endCopies();
  };
  const Chunk first = chunkAt(0);
  first.copyKeys<K, kMoreThreads>(p, p.q, gradient.q);
  first.copyKeys<K, kMoreThreads>(p, p.k, gradient.k);
  copy(0);
  for (int i = 0; i < count; ++i) {
    const Chunk chunk = chunkAt(i);
    const Numbers &numbers = numbersOf[i / blocks % 2];
    awaitCopies<0>();
    __syncthreads();
    if (i == 0)
      addProduct<K, Lies::Along, K, Lies::Along, K>(gradient.qk, gradient.q, gradient.part.row,
                                                    gradient.k, gradient.part.column);
    if (i % blocks == 0) {
      if (i > 0)
        sumsOf[i / blocks - 1].add(total);
      writeReads(gradient.part, Decays<2>(numbers, gradient.part), gradient.qk, gradient.reads,
                 [](int) { return 1.0f; });
      __syncthreads();
    }
    gradient.addColumns(chunk, numbers, i % blocks * kC, element(p.direct, chunk.head));
    __syncthreads(); // all have read what is in the tiles
    if (i + 1 < count)
      copy(i + 1);
    if ((i + 1) % blocks == 0) {
      gradient.sums.write(gradient.part, total);
      gradient.sums = {};
    }
  }
  __syncthreads();
  sumsOf[heads.end - heads.begin - 1].add(total);
  gradient.write(first);
  const int own = static_cast<int>(threadIdx.x) / kC;
  const bool isThere = own < heads.end - heads.begin;
  const Chunk chunk = chunkAt(isThere ? own * blocks : 0);
  writeDecays(p, chunk, reinterpret_cast<const Numbers *>(c.numbers)[chunk.index], sumsOf[own],
              isThere);
}

template <int K> void launchScan(const Call &call, const Rule &p, const RuleChunks &c) {
  const auto chunks = static_cast<unsigned>(ceilDiv(p.length, kC)),
             heads = static_cast<unsigned>(p.heads), samples = static_cast<unsigned>(p.samples);
  const dim3 columns(static_cast<unsigned>(columnBlocks(p)), heads, samples);
  launch(writeNumbers, {chunks, heads, samples}, kC, 0, call, p, c);
  if (call.outCount == 1)
    return launch(goThroughChunks<K, Pass::Results>, columns, kThreads, Scan<K>::kResults, call, p,
                  c);
  launch(goThroughChunks<K, Pass::States>, columns, kThreads, Scan<K>::kStates, call, p, c);
  launch(goThroughChunks<K, Pass::Gradients>, columns, kThreads, Scan<K>::kStates, call, p, c);
  launch(differentiateScans<K>, {chunks, static_cast<unsigned>(p.groups * headBlocks(p)), samples},
         kMoreThreads, Scan<K>::kGradients, call, p, c);
}

} // namespace
} // namespace delta

void launchScanTiles(const Call &call, const Rule &rule, const RuleChunks &chunks) {
  (rule.keys == 64 ? delta::launchScan<64> : delta::launchScan<128>)(call, rule, chunks);
}

} // namespace shardc::kernels::cuda
