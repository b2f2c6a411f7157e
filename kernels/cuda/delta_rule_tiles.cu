// delta_rule and its gradient on tensor cores, for bf16: products by mma.sync with fp32 sums, in
// chunks of 64 positions (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", section 3.3). With
// G_i, the sum of log d from the chunk's begin to position i, E_ij = exp(G_i - G_j) for positions
// j <= i of one document, units q and k, and strengths β of each position:
//   A = β·kkᵀ·E below the diagonal   T = (I + A)⁻¹   U = T·β·v   W = T·β·k·e^G   P = qkᵀ·E
//   u = U - W·S   o = Q'·S + P·u   S' = e^{G_C}·S + K'ᵀ·u   Q' = q·e^G   K' = k·e^{G_C - G}
// where S is the state in front of the chunk and S' that behind it. e^G is 0 for positions whose
// document begins in the chunk, and e^{G_C - G} for those whose document ends in it, so only
// differences within documents are exponentiated. prepareChunks computes everything but u, o and S,
// all chunks in parallel. In scanChunks, a block goes through the chunks of a head with 64 columns
// of S in registers. The gradient runs both again and keeps S and u; goes back through the chunks
// with the gradient of S (scanBack); and computes the rest for all chunks in parallel
// (differentiateChunks). Sums have one order. Limited by tensor cores and the bytes of chunks.
#include "kernels/cuda/delta_rule_tiles.cuh"

namespace shardc::kernels::cuda {
namespace delta {
namespace {

/// t = (I + a)⁻¹ for the part of a below the diagonal: blocks of 16 rows on the diagonal by
/// substitution, the others from them. `sums` has room for three blocks.
__device__ void invert(const float *a, float *t, float *sums) {
  constexpr int kSide = 16, kBlocks = kC / kSide;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kSide, column = thread % kSide;
  if (thread < kC) {
    const int first = row * kSide;
    float x[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int m = 0; m < i; ++m)
        x[i] -= a[(first + i) * kPitch + first + m] * x[m];
      t[(first + i) * kPitch + first + column] = x[i];
    }
  }
#pragma unroll
  for (int away = 1; away < kBlocks; ++away) {
    __syncthreads();
    float sum[kBlocks - 1] = {};
#pragma unroll
    for (int m = 0; m < away * kSide; ++m)
#pragma unroll
      for (int block = 0; block + away < kBlocks; ++block)
        sum[block] += a[((block + away) * kSide + row) * kPitch + block * kSide + m] *
                      t[(block * kSide + m) * kPitch + block * kSide + column];
#pragma unroll
    for (int block = 0; block + away < kBlocks; ++block)
      sums[(block * kSide + row) * (kSide + 1) + column] = sum[block];
    __syncthreads();
#pragma unroll
    for (int block = 0; block + away < kBlocks; ++block) {
      const int top = (block + away) * kSide, left = block * kSide;
      float last = 0;
#pragma unroll
      for (int m = 0; m < kSide; ++m)
        last += t[(top + row) * kPitch + top + m] * sums[(left + m) * (kSide + 1) + column];
      t[(top + row) * kPitch + left + column] = -last;
      t[(left + row) * kPitch + top + column] = 0; // above the diagonal
    }
  }
  __syncthreads();
}

constexpr int kFloatsOfSums = 3 * 16 * 17;

template <int K> struct Preparing {
  static constexpr int kRows = kC * K * 2; ///< bytes of a tile
  static constexpr int kBytes =
      2 * kRows + 4 * (2 * kC * kPitch + kFloatsOfSums) + int{sizeof(Numbers)};
  static_assert(kBytes <= kBytesMax);
};

/// P of a chunk, and its A in `a`, from the tiles of units.
template <int K>
__device__ __forceinline__ void multiplyUnits(const RuleChunks &c, const Chunk &chunk,
                                              const Numbers &numbers, const Part &part, uint32_t q,
                                              uint32_t k, float *a) {
  float kk[4][4] = {}, qk[4][4] = {};
  addProduct<K, Lies::Along, K, Lies::Along, K>(kk, k, part.row, k, part.column);
  addProduct<K, Lies::Along, K, Lies::Along, K>(qk, q, part.row, k, part.column);
  const Decays<4> decays(numbers, part);
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = part.laneRow(half), j = part.laneColumn(n);
      float reads[2], strengths[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float decay = i >= j + e ? decays.get(half, n, e) : 0.0f;
        reads[e] = qk[n][2 * half + e] * decay;
        strengths[e] = i > j + e ? decays.betas[half] * kk[n][2 * half + e] * decay : 0.0f;
      }
      setPair(c.reads + (chunk.index * kC + i) * kC + j, {reads[0], reads[1]});
      *reinterpret_cast<float2 *>(a + i * kPitch + j) = {strengths[0], strengths[1]};
    }
}

/// Writes T for the gradient, and T·β to a tile; multiplies the tile of keys by e^G.
template <int K>
__device__ __forceinline__ void scaleFactors(const RuleChunks &c, const Chunk &chunk,
                                             const Numbers &numbers, const float *t,
                                             uint32_t scaled, uint32_t k) {
  for (int i = static_cast<int>(threadIdx.x); i < kC * kC / 2; i += kThreads) {
    const int row = i / (kC / 2), column = i % (kC / 2) * 2;
    const float2 x = {t[row * kPitch + column], t[row * kPitch + column + 1]};
    setPair<kC>(scaled, row, column, {x.x * numbers.beta[column], x.y * numbers.beta[column + 1]});
    if (c.inverse)
      setPair(c.inverse + (chunk.index * kC + row) * kC + column, x);
  }
  scaleRows<K, kThreads>(k, [&](int row) { return numbers.front[row]; });
}

template <int K>
__global__ void __launch_bounds__(kThreads, 3)
    prepareChunks(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t q = sharedAddress(memory), k = q + Preparing<K>::kRows;
  float *a = reinterpret_cast<float *>(memory + 2 * Preparing<K>::kRows), *t = a + kC * kPitch,
        *rest = t + kC * kPitch;
  auto &numbers = *reinterpret_cast<Numbers *>(rest + kFloatsOfSums);
  const Chunk chunk(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                    static_cast<int>(blockIdx.z));
  chunk.copyKeys<K, kThreads>(p, p.q, q);
  chunk.copyKeys<K, kThreads>(p, p.k, k);
  endCopies();
  chunk.load(p, numbers);
  awaitCopies<0>();
  __syncthreads();
  if (threadIdx.x == 0)
    c.gains[chunk.index] = numbers.front[kC - 1];
  makeUnits<K, kThreads>(q, p.eps, rsqrtf(static_cast<float>(K)), [&](int i, int piece, auto &x) {
    *reinterpret_cast<uint4 *>(c.queries + (chunk.index * kC + i) * K + piece * kPiece) =
        packedPiece(x, numbers.front[i]);
  });
  makeUnits<K, kThreads>(k, p.eps, 1.0f, [&](int i, int piece, auto &x) {
    *reinterpret_cast<uint4 *>(c.keys + (chunk.index * kC + i) * K + piece * kPiece) =
        packedPiece(x, numbers.back[i]);
  });
  __syncthreads();
  const Part part(kC / 2), wide(K / 2);
  multiplyUnits<K>(c, chunk, numbers, part, q, k, a);
  __syncthreads(); // all have read the queries, whose place values take
  const auto copyValues = [&](int from) {
    for (int i = 0; i < K / kC && from + i * kC < p.values; ++i)
      chunk.copyValues<kThreads>(p, p.v, q + i * kSquare, from + i * kC);
    endCopies();
  };
  copyValues(0);
  invert(a, t, rest);
  const uint32_t scaled = sharedAddress(a); // T·β takes the place of A
  scaleFactors<K>(c, chunk, numbers, t, scaled, k);
  __syncthreads();
  float w[K / 16][4] = {};
  addProduct<kC, Lies::Along, K, Lies::Across, kC>(w, scaled, wide.row, k, wide.column);
  forPairs(wide, w, [&](int i, int j, float2 &x) {
    setPair(c.weights + (chunk.index * kC + i) * K + j, x);
  });
  for (int from = 0; from < p.values; from += K) {
    if (from > 0)
      copyValues(from);
    awaitCopies<0>();
    __syncthreads();
    for (int i = 0; i < K / kC && from + i * kC < p.values; ++i) {
      float u[4][4] = {};
      addProduct<kC, Lies::Along, kC, Lies::Across, kC>(u, scaled, part.row, q + i * kSquare,
                                                        part.column);
      forPairs(part, u, [&](int row, int j, float2 &x) {
        setPair(c.values + (chunk.index * kC + row) * p.values + from + i * kC + j, x);
      });
    }
    __syncthreads();
  }
}

template <int K> struct Scanning {
  static constexpr int kRows = kC * K * 2;
  static constexpr int kBytes = 4 * kRows + 2 * kSquare, kBytesBack = 4 * kRows + 3 * kSquare;
  static_assert(kBytesBack <= kBytesMax);
};

/// Computes o, or with kKeeps what the gradient needs: u, and S in front of each chunk.
template <int K, bool kKeeps>
__global__ void __launch_bounds__(kThreads)
    scanChunks(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kRows = Scanning<K>::kRows;
  const uint32_t w = sharedAddress(memory), keys = w + kRows, s = keys + kRows, u = s + kRows,
                 q = u + kSquare, reads = q + kRows;
  const Part part(kC / 2);
  const int from = static_cast<int>(blockIdx.x) * kC;
  State<K> state;
  for (int i = 0; i < Chunk::ceilOf(p.length); ++i) {
    const Chunk chunk(p, i, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z));
    copyTile<K, kThreads>(w, c.weights, chunk.index);
    copyTile<K, kThreads>(keys, c.keys, chunk.index);
    if constexpr (!kKeeps) {
      copyTile<K, kThreads>(q, c.queries, chunk.index);
      copyTile<kC, kThreads>(reads, c.reads, chunk.index);
    }
    endCopies();
    const float gain = c.gains[chunk.index];
    state.write(part, s, kKeeps ? c.states + chunk.index * K * p.values + from : nullptr, p.values);
    float news[4][4] = {};
    awaitCopies<0>();
    __syncthreads();
    addProduct<K, Lies::Along, kC, Lies::Across, K>(news, w, part.row, s, part.column);
    forPairs(part, news, [&](int row, int column, float2 &x) {
      const int64_t at = (chunk.index * kC + row) * p.values + from + column;
      const float2 own = unpacked(*reinterpret_cast<const uint32_t *>(c.values + at));
      x = {own.x - x.x, own.y - x.y};
      setPair<kC>(u, row, column, x);
      if constexpr (kKeeps)
        setPair(c.news + at, x);
    });
    __syncthreads();
    if constexpr (!kKeeps) {
      float o[4][4] = {};
      addProduct<K, Lies::Along, kC, Lies::Across, K>(o, q, part.row, s, part.column);
      addProduct<kC, Lies::Along, kC, Lies::Across, kC>(o, reads, part.row, u, part.column);
      forPairs(part, o, [&](int row, int column, float2 &x) {
        if (chunk.has(p, row))
          setPair(p.o, chunk.at(p, row) * p.values + from + column, x);
      });
    }
    state.scale(gain);
    state.add(part, keys, u);
    __syncthreads();
  }
}

/// Goes back through the chunks with the gradient of the state behind each: keeps it, and -du.
template <int K>
__global__ void __launch_bounds__(kThreads)
    scanBack(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kRows = Scanning<K>::kRows;
  const uint32_t w = sharedAddress(memory), keys = w + kRows, q = keys + kRows, s = q + kRows,
                 du = s + kRows, reads = du + kSquare, dOut = reads + kSquare;
  const Part part(kC / 2);
  const int from = static_cast<int>(blockIdx.x) * kC;
  State<K> state;
  for (int i = static_cast<int>(Chunk::ceilOf(p.length)) - 1; i >= 0; --i) {
    const Chunk chunk(p, i, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z));
    copyTile<K, kThreads>(w, c.weights, chunk.index);
    copyTile<K, kThreads>(keys, c.keys, chunk.index);
    copyTile<K, kThreads>(q, c.queries, chunk.index);
    copyTile<kC, kThreads>(reads, c.reads, chunk.index);
    chunk.copyValues<kThreads>(p, p.o, dOut, from);
    endCopies();
    const float gain = c.gains[chunk.index];
    state.write(part, s, c.dStates + chunk.index * K * p.values + from, p.values);
    awaitCopies<0>();
    __syncthreads();
    float sums[4][4] = {};
    addProduct<kC, Lies::Across, kC, Lies::Across, kC>(sums, reads, part.row, dOut, part.column);
    addProduct<K, Lies::Along, kC, Lies::Across, K>(sums, keys, part.row, s, part.column);
    forPairs(part, sums, [&](int row, int column, float2 &x) {
      x = {-x.x, -x.y};
      setPair<kC>(du, row, column, x);
      setPair(c.dNews + (chunk.index * kC + row) * p.values + from + column, x);
    });
    __syncthreads();
    state.scale(gain);
    state.add(part, q, dOut);
    state.add(part, w, du);
    __syncthreads();
  }
}

template <int K> struct Differentiating {
  static constexpr int kRows = kC * K * 2;
  static constexpr int kTiles = std::max(5 * kSquare + 2 * kRows, 5 * kRows);
  static constexpr int kBytes =
      kTiles + kSquare + int{sizeof(Numbers)} + int{sizeof(Sums)} + int{sizeof(HeadSums)};
  static_assert(kBytes <= kBytesMax);
};

/// The gradients of a chunk, as a thread of differentiateChunks has them.
template <int K> struct Gradient {
  const Rule &p;
  const RuleChunks &c;
  const Chunk &chunk;
  const Numbers &numbers;
  const uint32_t tiles, inverse; ///< addresses in shared memory; the latter has T
  const Part part, wide;
  float queries[K / 32][4] = {}, keys[K / 32][4] = {}; ///< of Q' and K', then of the units
  float weights[K / 32][4] = {};                       ///< of W, then of β·k·e^G
  float reads[2][4] = {}, strengths[2][4] = {};        ///< of P, and of -A
  LaneSums sums = {};

  static constexpr int kRows = Differentiating<K>::kRows;

  /// Adds what states and values in 64 channels of v, from channel `from` on, have.
  __device__ __forceinline__ void addStates(int from) {
    const uint32_t dOut = tiles, u = dOut + kSquare, du = u + kSquare, values = du + kSquare,
                   dv = values + kSquare, s = dv + kSquare, ds = s + kRows;
    const int64_t at = chunk.index * kC * p.values + from,
                  ofState = chunk.index * K * p.values + from;
    chunk.copyValues<kMoreThreads>(p, p.o, dOut, from);
    copyRows<kC, kC, kMoreThreads>(u, c.news + at, p.values, 0, kC, kC);
    copyRows<kC, kC, kMoreThreads>(du, c.dNews + at, p.values, 0, kC, kC);
    copyRows<kC, kC, kMoreThreads>(values, c.values + at, p.values, 0, kC, kC);
    copyRows<kC, K, kMoreThreads>(s, c.states + ofState, p.values, 0, K, kC);
    copyRows<kC, K, kMoreThreads>(ds, c.dStates + ofState, p.values, 0, K, kC);
    endCopies();
    awaitCopies<0>();
    __syncthreads();
    constexpr Lies kAlong = Lies::Along;
    addProduct<kC, kAlong, kC, kAlong, kC>(queries, dOut, wide.row, s, wide.column);
    addProduct<kC, kAlong, kC, kAlong, kC>(weights, du, wide.row, s, wide.column);
    addProduct<kC, kAlong, kC, kAlong, kC>(keys, u, wide.row, ds, wide.column);
    addProduct<kC, kAlong, kC, kAlong, kC>(reads, dOut, part.row, u, part.column);
    addValues(from, du, dv);
    for (int i = static_cast<int>(threadIdx.x); i < K * kC / 2; i += kMoreThreads) {
      const float2 x = pairOf<kC>(s, i / (kC / 2), i % (kC / 2) * 2),
                   y = pairOf<kC>(ds, i / (kC / 2), i % (kC / 2) * 2);
      sums.all += numbers.front[kC - 1] * (x.x * y.x + x.y * y.y);
    }
    __syncthreads();
    addProduct<kC, kAlong, kC, kAlong, kC>(strengths, dv, part.row, values, part.column);
    __syncthreads();
  }

  /// The gradient of β·v goes to tile `dv`, and that of v is written.
  __device__ __forceinline__ void addValues(int from, uint32_t du, uint32_t dv) {
    float gradient[2][4] = {};
    addProduct<kC, Lies::Across, kC, Lies::Across, kC>(gradient, inverse, part.row, du,
                                                       part.column);
    forPairs(part, gradient, [&](int half, int i, int j, float2 &x) {
      x = {-x.x, -x.y};
      setPair<kC>(dv, i, j, x);
      if (!chunk.has(p, i))
        return;
      const int64_t of = chunk.at(p, i) * p.values + from + j;
      const float2 own =
          unpacked(*reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(p.v.p) + of));
      sums.ofBeta[half] += x.x * own.x + x.y * own.y;
      setPair(p.dv, of, {x.x * numbers.beta[i], x.y * numbers.beta[i]});
    });
  }

  /// Adds what W has, and computes the gradients of kkᵀ and qkᵀ, as tiles in the places of W and
  /// its gradient. Leaves the units in tiles `q` and `k`.
  __device__ __forceinline__ void addWeights(uint32_t q, uint32_t k) {
    const uint32_t ofW = tiles, w = ofW + kRows, ofKeys = k + kRows;
    copyTile<K, kMoreThreads>(w, c.weights, chunk.index);
    chunk.copyKeys<K, kMoreThreads>(p, p.q, q);
    chunk.copyKeys<K, kMoreThreads>(p, p.k, k);
    endCopies();
    forPairs(wide, weights, [&](int i, int j, float2 &x) {
      setPair<K>(ofW, i, j, x);
      x = {0, 0};
    });
    awaitCopies<0>();
    __syncthreads();
    makeUnits<K, kMoreThreads>(q, p.eps, rsqrtf(static_cast<float>(K)), [](int, int, auto &) {});
    makeUnits<K, kMoreThreads>(k, p.eps, 1.0f, [](int, int, auto &) {});
    addProduct<kC, Lies::Across, K, Lies::Across, kC>(weights, inverse, wide.row, ofW, wide.column);
    forPairs(wide, weights, [&](int i, int j, float2 &x) { setPair<K>(ofKeys, i, j, x); });
    __syncthreads();
    addProduct<K, Lies::Along, K, Lies::Along, K>(strengths, ofKeys, part.row, w, part.column);
    float kk[2][4] = {}, qk[2][4] = {};
    addProduct<K, Lies::Along, K, Lies::Along, K>(kk, k, part.row, k, part.column);
    addProduct<K, Lies::Along, K, Lies::Along, K>(qk, q, part.row, k, part.column);
    __syncthreads();
    differentiatePairs(kk, qk, ofW, w);
    __syncthreads();
  }

  __device__ __forceinline__ void differentiatePairs(const float (&kk)[2][4],
                                                     const float (&qk)[2][4], uint32_t ofKk,
                                                     uint32_t ofQk) {
    const Decays<2> decays(numbers, part);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = part.laneRow(half), j = part.laneColumn(n);
        float ofPair[2][2] = {};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (i < j + e)
            continue;
          const float decay = decays.get(half, n, e), beta = decays.betas[half];
          const int at = 2 * half + e;
          ofPair[1][e] = reads[n][at] * decay;
          float both = ofPair[1][e] * qk[n][at];
          if (i > j + e) {
            const float gradient = -strengths[n][at] * decay;
            ofPair[0][e] = gradient * beta;
            sums.ofBeta[half] += gradient * kk[n][at];
            both += gradient * beta * kk[n][at];
          }
          sums.ofRow[half] += both, sums.ofColumn[n][e] += both;
        }
        setPair<kC>(ofKk, i, j, {ofPair[0][0], ofPair[0][1]});
        setPair<kC>(ofQk, i, j, {ofPair[1][0], ofPair[1][1]});
      }
  }

  /// Writes the gradients of units.
  __device__ __forceinline__ void writeUnits(uint32_t q, uint32_t k) {
    const uint32_t ofKk = tiles, ofQk = tiles + kRows;
    const auto write = [&](float *to, float(&numbersOf)[K / 32][4]) {
      forPairs(wide, numbersOf, [&](int i, int j, float2 &x) {
        if (chunk.has(p, i))
          *reinterpret_cast<float2 *>(to + chunk.at(p, i) * K + j) = x;
      });
    };
    forPairs(wide, queries, [&](int half, int i, int j, float2 &x) {
      const float2 own = pairOf<K>(q, i, j);
      x = {x.x * numbers.front[i], x.y * numbers.front[i]};
      sums.ofRow[half] += x.x * own.x + x.y * own.y;
    });
    addProduct<kC, Lies::Along, K, Lies::Across, kC>(queries, ofQk, wide.row, k, wide.column);
    write(p.dq, queries);
#pragma unroll
    for (int n = 0; n < K / 32; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = wide.laneRow(half);
        const float2 own = pairOf<K>(k, i, wide.laneColumn(n));
        const float front = numbers.front[i], back = numbers.back[i], beta = numbers.beta[i];
        float(&ofW)[4] = weights[n], (&ofK)[4] = keys[n];
        const float dot = front * (ofW[2 * half] * own.x + ofW[2 * half + 1] * own.y);
        const float kept = back * (ofK[2 * half] * own.x + ofK[2 * half + 1] * own.y);
        sums.ofBeta[half] += dot, sums.ofRow[half] += beta * dot - kept, sums.all += kept;
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          ofK[e] = ofK[e] * back + beta * front * ofW[e];
      }
    addProduct<kC, Lies::Across, K, Lies::Across, kC>(keys, ofQk, wide.row, q, wide.column);
    addProduct<kC, Lies::Along, K, Lies::Across, kC>(keys, ofKk, wide.row, k, wide.column);
    addProduct<kC, Lies::Across, K, Lies::Across, kC>(keys, ofKk, wide.row, k, wide.column);
    write(p.dk, keys);
  }
};

template <int K>
__global__ void __launch_bounds__(kMoreThreads)
    differentiateChunks(const __grid_constant__ Rule p, const __grid_constant__ RuleChunks c) {
  awaitPrevious();
  extern __shared__ __align__(128) unsigned char memory[];
  constexpr int kRows = Differentiating<K>::kRows;
  const uint32_t tiles = sharedAddress(memory), inverse = tiles + Differentiating<K>::kTiles;
  auto &numbers = *reinterpret_cast<Numbers *>(memory + Differentiating<K>::kTiles + kSquare);
  auto &total = *reinterpret_cast<Sums *>(&numbers + 1);
  auto &ofHead = *reinterpret_cast<HeadSums *>(&total + 1);
  const Chunk chunk(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                    static_cast<int>(blockIdx.z));
  copyTile<kC, kMoreThreads>(inverse, c.inverse, chunk.index);
  chunk.load(p, numbers);
  Gradient<K> gradient{p, c, chunk, numbers, tiles, inverse, Part(kC / 4), Part(K / 4)};
  for (int from = 0; from < p.values; from += kC)
    gradient.addStates(from);
  const uint32_t q = tiles + 2 * kRows, k = q + kRows;
  gradient.addWeights(q, k);
  gradient.writeUnits(q, k);
  gradient.sums.write(gradient.part, total);
  __syncthreads();
  ofHead.add(total);
  __syncthreads();
  writeDecays(p, chunk, numbers, ofHead, threadIdx.x < kC);
}

/// Grids of chunks, and of blocks that go through them.
struct Grids {
  dim3 chunks, scans;
  explicit Grids(const Rule &rule)
      : chunks(static_cast<unsigned>(ceilDiv(rule.length, kC)), static_cast<unsigned>(rule.heads),
               static_cast<unsigned>(rule.samples)),
        scans(static_cast<unsigned>(rule.values / kC), chunks.y, chunks.z) {}
};

template <int K> void launchRule(const Call &call, const Rule &rule, const RuleChunks &chunks) {
  const Grids grids(rule);
  launch(prepareChunks<K>, grids.chunks, kThreads, Preparing<K>::kBytes, call, rule, chunks);
  launch(scanChunks<K, false>, grids.scans, kThreads, Scanning<K>::kBytes, call, rule, chunks);
}

template <int K> void launchRuleBwd(const Call &call, const Rule &rule, const RuleChunks &chunks) {
  const Grids grids(rule);
  launch(prepareChunks<K>, grids.chunks, kThreads, Preparing<K>::kBytes, call, rule, chunks);
  launch(scanChunks<K, true>, grids.scans, kThreads, Scanning<K>::kBytes, call, rule, chunks);
  launch(scanBack<K>, grids.scans, kThreads, Scanning<K>::kBytesBack, call, rule, chunks);
  launch(differentiateChunks<K>, grids.chunks, kMoreThreads, Differentiating<K>::kBytes, call, rule,
         chunks);
}

} // namespace
} // namespace delta

RuleChunks::RuleChunks(const Rule &rule, bool isGradient, host::Scratch &scratch) {
  const int64_t count = rule.samples * rule.heads * ceilDiv(rule.length, kRuleChunk);
  const auto rows = [&](int64_t columns) {
    return scratch.take<uint16_t>(count * kRuleChunk * columns);
  };
  if (rule.isScan) {
    numbers = scratch.take<float>(count * int64_t{sizeof(delta::Numbers) / sizeof(float)});
  } else {
    queries = rows(rule.keys), keys = rows(rule.keys), weights = rows(rule.keys);
    reads = rows(kRuleChunk), values = rows(rule.values);
    gains = scratch.take<float>(count);
  }
  if (!isGradient)
    return;
  if (!rule.isScan)
    inverse = rows(kRuleChunk), news = rows(rule.values), dNews = rows(rule.values);
  states = scratch.take<uint16_t>(count * rule.keys * rule.values);
  dStates = scratch.take<uint16_t>(count * rule.keys * rule.values);
}

void launchRuleTiles(const Call &call, const Rule &rule, const RuleChunks &chunks) {
  (rule.keys == 64 ? delta::launchRule<64> : delta::launchRule<128>)(call, rule, chunks);
}

void launchRuleTilesBwd(const Call &call, const Rule &rule, const RuleChunks &chunks) {
  (rule.keys == 64 ? delta::launchRuleBwd<64> : delta::launchRuleBwd<128>)(call, rule, chunks);
}

} // namespace shardc::kernels::cuda
