// Shared by attention and its gradient, of whole sequences and of slices: operands, the keys that a
// query sees, and heads as matrices. Queries are processed in blocks of rows. Scores of a block
// cover all keys that any of its queries sees.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"
#include "kernels/host/Blas.h"
#include "kernels/host/Dropout.h"

namespace shardc::kernels::host {

/// Number of queries whose scores exist at the same time.
inline constexpr int64_t kQueryBlock = 64;

/// The extents of q[B,S,N,D], k[B,K,G,D] and v[B,K,G,E].
struct AttentionExtents {
  int64_t batch, queries, keys, heads, groups;
  int64_t channels, values; ///< channels of a head's q and k, and of its v
  int64_t perGroup;         ///< query heads per group

  AttentionExtents(const Tensor &q, const Tensor &v)
      : batch(q.shape[0]), queries(q.shape[1]), keys(v.shape[1]), heads(q.shape[2]),
        groups(v.shape[2]), channels(q.shape[3]), values(v.shape[3]), perGroup(heads / groups) {}
};

/// What the four ops are: attention or its gradient, of whole sequences or of a slice of queries to
/// a slice of keys. Gradients have do before q, and o and lse behind v.
struct AttentionOp {
  bool isPart, isBackward;

  const Tensor &q(const Call &call) const { return call.in[isBackward]; }
  const Tensor &k(const Call &call) const { return call.in[1 + isBackward]; }
  const Tensor &v(const Call &call) const { return call.in[2 + isBackward]; }
  /// The operands behind these: docs and samples; of slices the positions and documents of queries
  /// and keys, and samples.
  const Tensor *others(const Call &call) const { return call.in + (isBackward ? 6 : 3); }
  AttentionExtents extents(const Call &call) const { return {q(call), v(call)}; }

  /// Null, or the reason why the call cannot be executed.
  const char *refusal(const Call &call) const;
};

/// scores = cap·tanh(scores/cap). If `slopes` is given, it receives the derivatives.
void capScores(float *scores, int64_t n, float cap, float *slopes = nullptr);

/// Keys [begin, end).
struct KeySpan {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
};

/// Which keys each query of a call sees.
class VisibleKeys {
public:
  /// The number of positions that the kernel computes itself, if ranks have mirrored slices.
  static int64_t positions(const Call &call, const AttentionExtents &e) {
    return call.attrs.slices > 0 ? e.queries + e.keys : 0;
  }
  /// `buffer` has room for positions().
  VisibleKeys(const Call &call, AttentionOp op, int32_t *buffer);

  /// The keys between the first and the last that a query sees. In whole sequences it sees all of
  /// them. The span is then never empty: a query sees its own key whatever the documents are.
  KeySpan of(int64_t sample, int64_t query) const;
  /// The smallest span that contains those of queries [begin, end).
  KeySpan of(int64_t sample, int64_t begin, int64_t end) const;
  /// Whether a query of a slice sees a key of another.
  bool sees(int64_t sample, int64_t query, int64_t key) const;
  /// Whether keys are a slice. Then spans are all of them, also those that the query does not see.
  bool isPart() const { return op_.isPart; }
  /// The factors of dropout for the keys of a span.
  void factors(const Dropout &dropout, int64_t sample, int64_t head, int64_t query, KeySpan keys,
               float *factors) const;

private:
  const Call &call_;
  AttentionOp op_;
  AttentionExtents extents_;
  const int32_t *queryAt_ = nullptr, *keyAt_ = nullptr; ///< positions; only of slices
  int64_t queryStride_ = 0, keyStride_ = 0;             ///< positions per sample
  const int32_t *queryDocs_, *keyDocs_; ///< first positions of documents, for each position
  const int64_t *samples_;              ///< numbers of samples in the training run
};

/// One head of a [B, S, heads, D] tensor.
struct Head {
  const Tensor &tensor;
  int64_t sample, head, positions, heads, channels;

  Head(const Tensor &of, int64_t b, int64_t number, int64_t perSample, int64_t all)
      : tensor(of), sample(b), head(number), positions(perSample), heads(all),
        channels(of.numel() / of.shape[0] / perSample / all) {}

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

} // namespace shardc::kernels::host
