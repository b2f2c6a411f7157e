// Shared by attention and its backward: extents, the keys visible to a query, and heads as
// matrices. Queries are processed in blocks of rows, each with its scores against all keys that any
// of them sees.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"
#include "kernels/host/Blas.h"

namespace shardc::kernels::host {

/// Queries whose scores exist at a time.
inline constexpr int64_t kQueryBlock = 64;

struct AttentionExtents {
  int64_t batch, positions, heads, groups;
  int64_t channels, values; ///< of a head's queries and keys, and of its values

  /// The extents of q[B,S,N,D], k[B,S,G,D] and v[B,S,G,E].
  AttentionExtents(const Tensor &q, const Tensor &v)
      : batch(q.shape[0]), positions(q.shape[1]), heads(q.shape[2]), groups(v.shape[2]),
        channels(q.shape[3]), values(v.shape[3]) {}
};

/// Row of dropout's mask of a query of one of this rank's heads, which are those of its index.
inline int64_t dropoutRow(const Call &call, const AttentionExtents &extents, int64_t head,
                          int64_t query) {
  return (call.index * extents.heads + head) * extents.positions + query;
}

/// scores = cap·tanh(scores/cap), and with `slopes` the derivative of that.
void capScores(float *scores, int64_t n, float cap, float *slopes = nullptr);

/// Keys [begin, end).
struct KeySpan {
  int64_t begin, end;
};

/// Keys that query `query` sees; `docs` are its sample's first positions of documents. Never empty:
/// a query sees its own key whatever `docs` holds.
KeySpan visibleKeys(const Attrs &attrs, const int32_t *docs, int64_t positions, int64_t query);

/// The smallest span that holds what queries [begin, end) see.
KeySpan visibleKeys(const Attrs &attrs, const int32_t *docs, int64_t positions, int64_t begin,
                    int64_t end);

/// One head of a [B, S, heads, D] tensor.
struct Head {
  const Tensor &tensor;
  int64_t sample, head, positions, heads, channels;

  int64_t offset(int64_t position) const {
    return ((sample * positions + position) * heads + head) * channels;
  }
  int64_t stride() const { return heads * channels; }

  /// Rows [begin, end) as a matrix: in place if the tensor is f32, otherwise in `buffer`.
  Factor read(int64_t begin, int64_t end, float *buffer) const;
  /// The address where rows from `begin` on are to be computed, and their stride: in place, or
  /// `buffer`.
  float *target(int64_t begin, float *buffer) const;
  int64_t targetStride() const;
  /// Writes rows [begin, end) from `values`, `stride` apart; nothing to do if they are in place.
  void write(int64_t begin, int64_t end, const float *values, int64_t stride) const;
};

/// Null, or the reason why q, k, v, docs, samples (operands from `q` on), an output-shaped `o`, lse
/// and the attributes do not match.
const char *checkAttention(const Call &call, const Tensor &q, const Tensor &k, const Tensor &v,
                           const Tensor &o, const Tensor &lse, const Tensor &docs,
                           const Tensor &samples);

} // namespace shardc::kernels::host
