// Positions of heads of queries, keys and values, in rows of packed QKV and in the separate
// tensors. Shared by the ops that split, merge, rotate and normalise heads.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rotary.cuh"

namespace shardc::kernels::cuda {

/// The packed tensor `whole`, with `perRow` heads per row, and the separate tensors to which its
/// heads belong. For rope, `whole` is x, `q` is y, and every head is a query.
struct Qkv {
  Data whole, q, k, v;
  int64_t positions;
  const int32_t *given; ///< position of each row; null: counted from 0
  int perRow, groups, queries, channels;
  int all, before; ///< query heads per key head of all members, and of those before this one
  Rotation rotation;
  bool split;
};

/// The position of a packed row's head in its separate tensor.
struct HeadLocation {
  const Data *part; ///< null: the head belongs to another member
  int64_t offset;
  bool rotated;
};

/// Finds the separate tensor of a packed row's head, and whether the head is rotated there.
__device__ __forceinline__ HeadLocation locationOf(const Qkv &p, int64_t row, int head) {
  int group = head / (p.all + 2), place = head % (p.all + 2), query = place - p.before;
  int64_t ofGroup = row * p.groups + group;
  if (place >= p.all)
    return {place == p.all ? &p.k : &p.v, ofGroup * p.channels,
            p.rotation.pairs > 0 && place == p.all};
  if (query < 0 || query >= p.queries)
    return {nullptr, 0, false};
  return {&p.q, (ofGroup * p.queries + query) * p.channels, p.rotation.pairs > 0};
}

/// Cosine and sine of a pair's angle in a row.
__device__ __forceinline__ float2 angleOf(const Qkv &p, int64_t row, float frequency) {
  return angleAt(p.rotation, p.given ? p.given[row] : row % p.positions, frequency);
}

/// Computes the cosines and sines of a group of rows with all threads of a block, from the pairs'
/// frequencies.
template <int kThreads>
__device__ __forceinline__ void anglesOfGroup(const Qkv &p, int64_t group, int perGroup,
                                              int64_t rows, const float *frequencies, float2 *to) {
  for (int i = static_cast<int>(threadIdx.x); i < perGroup * p.rotation.pairs; i += kThreads)
    if (int64_t row = group * perGroup + i / p.rotation.pairs; row < rows)
      to[i] = angleOf(p, row, frequencies[i % p.rotation.pairs]);
}

/// A chunk of a head and the chunk half a head later, which rotation combines with it. The
/// positions are those in the first group of rows; steps lead to the next group.
struct Pair {
  const uint4 *from;        ///< null: no chunk, or another member has the head
  uint4 *to;                ///< null: no chunk
  int64_t fromStep, toStep; ///< to the next group of rows
  int row, angle;           ///< index of the row in its group, and of its angle
  bool isRotated;
};

/// The pair of chunks of number `item` in a group of perGroup rows; empty beyond the last pair.
__device__ __forceinline__ Pair pairAt(const Qkv &p, int item, int perGroup) {
  int mates = p.channels / (2 * kChunk), perRow = p.perRow * mates;
  if (item >= perGroup * perRow)
    return {};
  int row = item / perRow, head = item % perRow / mates, channel = item % mates * kChunk;
  HeadLocation location = locationOf(p, row, head);
  int64_t ofWhole = (static_cast<int64_t>(row) * p.perRow + head) * p.channels + channel;
  int64_t wholeStep = static_cast<int64_t>(perGroup) * p.perRow * p.channels / kChunk;
  uint4 *whole = chunkOf(p.whole, ofWhole), *part = nullptr;
  int64_t partStep = 0;
  if (location.part) {
    part = chunkOf(*location.part, location.offset + channel);
    partStep = static_cast<int64_t>(perGroup) * p.groups * p.channels / kChunk *
               (location.part == &p.q ? p.queries : 1);
  }
  Pair pair =
      p.split ? Pair{whole, part, wholeStep, partStep} : Pair{part, whole, partStep, wholeStep};
  if (!pair.to) // another member has the head
    return {};
  pair.row = row;
  pair.angle = row * p.rotation.pairs + channel;
  pair.isRotated = location.rotated;
  return pair;
}

/// Describes the tensors of a call. `split`: from `whole` to q, k and v; otherwise the other way.
inline Qkv partsOf(const Call &call, const Tensor &whole, const Tensor &q, const Tensor &k,
                   const Tensor &v, bool split) {
  Qkv p = {dataOf(whole), dataOf(q), dataOf(k), dataOf(v)};
  p.positions = q.shape[1];
  p.groups = static_cast<int>(k.shape[2]);
  p.queries = static_cast<int>(q.shape[2] / k.shape[2]);
  p.all = static_cast<int>(call.groupSize) * p.queries;
  p.before = static_cast<int>(call.index) * p.queries;
  p.perRow = p.groups * (p.all + 2);
  p.channels = static_cast<int>(q.cols());
  p.split = split;
  return p;
}

/// Sets the positions of rows, if the call has an operand after the first `operands` ones.
inline void setPositions(Qkv &p, const Call &call, int operands) {
  p.given =
      call.inCount > operands ? static_cast<const int32_t *>(call.in[operands].data) : nullptr;
}

} // namespace shardc::kernels::cuda
