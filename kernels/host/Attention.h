// Shared by attention and its gradient: extents, the keys that a query sees, and heads as matrices.
// Queries are processed in blocks of rows. Scores of a block cover all keys that any of its queries
// sees.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"
#include "kernels/host/Blas.h"

namespace shardc::kernels::host {

/// Number of queries whose scores exist at the same time.
inline constexpr int64_t kQueryBlock = 64;

struct AttentionExtents {
  int64_t batch, positions, heads, groups;
  int64_t channels, values; ///< channels of a head's q and k, and of its v

  /// The extents of q[B,S,N,D], k[B,S,G,D] and v[B,S,G,E].
  AttentionExtents(const Tensor &q, const Tensor &v)
      : batch(q.shape[0]), positions(q.shape[1]), heads(q.shape[2]), groups(v.shape[2]),
        channels(q.shape[3]), values(v.shape[3]) {}
};

/// Row of a query in dropout's mask. call.index selects this rank's heads among those of all ranks.
inline int64_t dropoutRow(const Call &call, const AttentionExtents &extents, int64_t head,
                          int64_t query) {
  return (call.index * extents.heads + head) * extents.positions + query;
}

/// scores = cap·tanh(scores/cap). If `slopes` is given, it receives the derivatives.
void capScores(float *scores, int64_t n, float cap, float *slopes = nullptr);

/// Keys [begin, end).
struct KeySpan {
  int64_t begin, end;
};

/// The keys that query `query` sees. `docs` has, for each position of the sample, the first
/// position of its document. The span is never empty: a query sees its own key whatever `docs`
/// contains.
KeySpan visibleKeys(const Attrs &attrs, const int32_t *docs, int64_t positions, int64_t query);

/// The smallest span that contains the keys of queries [begin, end).
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

  /// Returns rows [begin, end) as a matrix: in place if the tensor is f32, otherwise in `buffer`.
  Factor read(int64_t begin, int64_t end, float *buffer) const;
  /// The address at which a kernel computes rows from `begin` on, and the stride of these rows: in
  /// place, or in `buffer`.
  float *target(int64_t begin, float *buffer) const;
  int64_t targetStride() const;
  /// Writes rows [begin, end) from `values`, `stride` apart. Does nothing if they are already in
  /// place.
  void write(int64_t begin, int64_t end, const float *values, int64_t stride) const;
};

/// Null, or the reason why the attributes do not match q and v, or why these are too large.
const char *checkAttention(const Call &call, const Tensor &q, const Tensor &v);

} // namespace shardc::kernels::host
