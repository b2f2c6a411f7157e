// attention: o[b,s,n,:] = sum over visible keys j of dropout(P[j])·v[b,j,g,:], P =
//   softmax(scale·q·k_j), with g = n/(N/G); lse[b,n,s] = log of the sum of exp(scale·q·k_j). With a
//   soft cap c, a score x becomes c·tanh(x/c). q[B,S,N,D], k[B,S,G,D], v[B,S,G,E], o[B,S,N·E] are
//   f32, bf16 or f16 each, lse is f32. If causal, a query sees no key after its own position; with
//   `window`, no key further before it; with `chunk`, only keys of its own chunk; and with
//   reset_mask, only keys of its own document.
// attention_part: the same of a slice of queries to a slice of keys, whose positions in the
//   sequence are operands, as if there were no other keys. A query that sees none of them has o = 0
//   and lse = -inf. Dropout uses the positions, so that its masks are those of the whole sequence.
//   If ranks have mirrored slices (Slices.h), positions follow from the ranks' indices and not from
//   the operands.
// Products are fp32 through BLAS, sums of exponentials fp64. Limited by exp at small D and by BLAS
// at large D.
#include "kernels/host/Attention.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Slices.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardc::kernels::host {

void capScores(float *scores, int64_t n, float cap, float *slopes) {
  for (int64_t i = 0; i < n; ++i) {
    float share = std::tanh(scores[i] / cap);
    scores[i] = cap * share;
    if (slopes)
      slopes[i] = 1.0f - share * share;
  }
}

VisibleKeys::VisibleKeys(const Call &call, AttentionOp op, int32_t *buffer)
    : call_(call), op_(op), extents_(op.extents(call)) {
  auto words = [](const Tensor &t) { return static_cast<const int32_t *>(t.data); };
  const Tensor *others = op.others(call);
  queryDocs_ = words(others[op.isPart ? 2 : 0]);
  keyDocs_ = words(others[op.isPart ? 3 : 0]);
  samples_ = static_cast<const int64_t *>(others[op.isPart ? 4 : 1].data);
  if (!op.isPart)
    return;
  if (call.attrs.slices == 0) {
    queryAt_ = words(others[0]), keyAt_ = words(others[1]);
    queryStride_ = extents_.queries, keyStride_ = extents_.keys;
    return;
  }
  const int64_t queries = extents_.queries;
  Slices slices(call, op.q(call));
  bool hasAll = extents_.keys > queries;
  for (int64_t row = 0; row < queries; ++row)
    buffer[row] = static_cast<int32_t>(slices.positionOf(slices.index, row));
  for (int64_t key = 0; key < extents_.keys; ++key)
    buffer[queries + key] =
        static_cast<int32_t>(hasAll ? key : slices.positionOf(slices.owner(), key));
  queryAt_ = buffer, keyAt_ = buffer + queries;
}

KeySpan VisibleKeys::of(int64_t sample, int64_t query) const {
  KeySpan span = {0, extents_.keys};
  if (op_.isPart)
    return span;
  const Attrs &attrs = call_.attrs;
  const int32_t *docs = queryDocs_ + sample * extents_.queries;
  if (attrs.causal)
    span.end = query + 1;
  const int64_t first = attrs.reset_mask ? std::clamp<int64_t>(docs[query], 0, query) : 0;
  span.begin = first;
  if (attrs.window >= 0)
    span.begin = std::max(span.begin, query - attrs.window);
  if (attrs.chunk > 0) // chunks count from the beginning of the document
    span.begin = std::max(span.begin, query - (query - first) % attrs.chunk);
  if (attrs.reset_mask && !attrs.causal)
    for (span.end = query + 1; span.end < extents_.keys && docs[span.end] == docs[query];)
      ++span.end;
  return span;
}

KeySpan VisibleKeys::of(int64_t sample, int64_t begin, int64_t end) const {
  KeySpan all = of(sample, begin);
  for (int64_t query = begin + 1; query < end; ++query) {
    KeySpan span = of(sample, query);
    all = {std::min(all.begin, span.begin), std::max(all.end, span.end)};
  }
  return all;
}

bool VisibleKeys::sees(int64_t sample, int64_t query, int64_t key) const {
  const Attrs &attrs = call_.attrs;
  const int64_t at = queryAt_[sample * queryStride_ + query];
  const int64_t back = at - keyAt_[sample * keyStride_ + key];
  const int32_t doc = queryDocs_[sample * extents_.queries + query];
  return (!attrs.causal || back >= 0) && (attrs.window < 0 || back <= attrs.window) &&
         (attrs.chunk == 0 || back <= (at - (attrs.reset_mask ? doc : 0)) % attrs.chunk) &&
         (!attrs.reset_mask || doc == keyDocs_[sample * extents_.keys + key]);
}

/// Draws for each range of keys with consecutive positions. call.index selects this rank's heads
/// among those of all ranks.
void VisibleKeys::factors(const Dropout &dropout, int64_t sample, int64_t head, int64_t query,
                          KeySpan keys, float *factors) const {
  const int64_t part = op_.isPart ? Slices::headPart(call_) : call_.index;
  const int64_t positions = op_.isPart ? call_.attrs.positions : extents_.queries;
  const int64_t at = op_.isPart ? queryAt_[sample * queryStride_ + query] : query;
  const int64_t row = (part * extents_.heads + head) * positions + at;
  if (!op_.isPart)
    return dropout.factors(samples_[sample], row, keys.begin, keys.size(), factors);
  const int32_t *keyAt = keyAt_ + sample * keyStride_;
  for (int64_t begin = keys.begin, end = 0; begin < keys.end; begin = end) {
    for (end = begin + 1; end < keys.end && keyAt[end] == keyAt[end - 1] + 1;)
      ++end;
    dropout.factors(samples_[sample], row, keyAt[begin], end - begin, factors + begin - keys.begin);
  }
}

Factor Head::read(int64_t begin, int64_t end, float *buffer) const {
  if (tensor.dtype == DType::F32)
    return {static_cast<const float *>(tensor.data) + offset(begin), stride()};
  for (int64_t row = begin; row < end; ++row)
    readF32(tensor, offset(row), channels, buffer + (row - begin) * channels);
  return {buffer, channels};
}

float *Head::target(int64_t begin, float *buffer) const {
  return targetF32(tensor, offset(begin), buffer);
}

int64_t Head::targetStride() const { return tensor.dtype == DType::F32 ? stride() : channels; }

void Head::write(int64_t begin, int64_t end, const float *values, int64_t stride) const {
  for (int64_t row = begin; row < end; ++row)
    writeF32(tensor, offset(row), channels, values + (row - begin) * stride);
}

const char *AttentionOp::refusal(const Call &call) const {
  const AttentionExtents e = extents(call);
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE((attrs.window < 0 && attrs.chunk == 0) || attrs.causal,
                 "a window or a chunk has no causal mask");
  SHARDC_REQUIRE_OK(checkDropout(attrs));
  if (!isPart) {
    SHARDC_REQUIRE(call.groupSize * e.heads * e.queries < (int64_t{1} << 32) &&
                       e.heads * std::max(e.channels, e.values) < (int64_t{1} << 31),
                   "heads times positions or channels are too many");
    SHARDC_REQUIRE((attrs.num_heads == 0 || attrs.num_heads == e.heads) &&
                       (attrs.num_groups == 0 || attrs.num_groups == e.groups) &&
                       (attrs.head_dim == 0 || attrs.head_dim == e.channels),
                   "heads or channels are not those of the attributes");
    return nullptr;
  }
  SHARDC_REQUIRE(attrs.p == 0 || attrs.positions > 0,
                 "dropout does not know how many positions a sequence has");
  SHARDC_REQUIRE(attrs.slices >= 0 && (attrs.slices == 0 || call.groupSize % attrs.slices == 0),
                 "the ranks with slices are not those of the group");
  SHARDC_REQUIRE(attrs.positions >= 0 &&
                     attrs.positions <= (int64_t{1} << 32) / (Slices::headParts(call) * e.heads),
                 "heads times positions are too many");
  if (attrs.slices > 0) {
    SHARDC_REQUIRE(e.keys == e.queries || e.keys == attrs.slices * e.queries,
                   "keys are neither of one slice nor of all");
    SHARDC_REQUIRE(attrs.slices == 1 || e.queries % 2 == 0, "a slice has no halves");
    SHARDC_REQUIRE(attrs.by >= 0 && attrs.by < attrs.slices,
                   "by is not below the number of slices");
  }
  return nullptr;
}

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Buffers {
  float *q, *k, *v, *o, *scores, *factors;
  int32_t *positions;

  Buffers(const Call &call, Scratch &scratch) {
    AttentionExtents e(call.in[0], call.in[2]);
    int64_t block = std::min(kQueryBlock, e.queries);
    q = scratch.takeUnlessF32(call.in[0], block * e.channels);
    k = scratch.takeUnlessF32(call.in[1], e.keys * e.channels);
    v = scratch.takeUnlessF32(call.in[2], e.keys * e.values);
    o = scratch.takeUnlessF32(call.out[0], block * e.values);
    scores = scratch.take<float>(block * e.keys);
    factors = scratch.take<float>(e.keys);
    positions = scratch.take<int32_t>(VisibleKeys::positions(call, e));
  }
};

/// Replaces n scores by their softmax. Returns the log of the sum of their exponentials.
float softmax(float *scores, int64_t n) {
  float top = largest(scores, n);
  for (int64_t i = 0; i < n; ++i)
    scores[i] = std::exp(scores[i] - top);
  double total = sum(scores, n);
  float factor = static_cast<float>(1.0 / total);
  for (int64_t i = 0; i < n; ++i)
    scores[i] *= factor;
  return static_cast<float>(static_cast<double>(top) + std::log(total));
}

/// One sample and query head, with the keys and values of its group.
struct Task {
  const Call &call;
  const VisibleKeys &visible;
  const Dropout &dropout;
  const Buffers &buffers;
  Head q, o;
  Factor k, v;
  float *lse;

  /// Replaces the scores of a query against the keys of its span by probabilities after dropout.
  /// Returns the log of the sum of the scores' exponentials.
  float makeProbabilities(int64_t query, KeySpan seen, float *scores) const {
    const int64_t n = seen.size();
    if (call.attrs.soft_cap > 0)
      capScores(scores, n, static_cast<float>(call.attrs.soft_cap));
    if (visible.isPart()) {
      bool seesAny = false;
      for (int64_t i = 0; i < n; ++i)
        if (visible.sees(q.sample, query, seen.begin + i))
          seesAny = true;
        else
          scores[i] = kNothing;
      if (!seesAny) {
        std::fill_n(scores, n, 0.0f);
        return kNothing;
      }
    }
    float all = softmax(scores, n);
    if (dropout.isOn()) {
      visible.factors(dropout, q.sample, q.head, query, seen, buffers.factors);
      for (int64_t i = 0; i < n; ++i)
        scores[i] *= buffers.factors[i];
    }
    return all;
  }

  /// A block of queries at a time, with the keys between the first and last that any of them sees.
  void attend() const {
    for (int64_t begin = 0; begin < q.positions; begin += kQueryBlock) {
      const int64_t end = std::min(begin + kQueryBlock, q.positions), rows = end - begin;
      KeySpan keys = visible.of(q.sample, begin, end);
      const int64_t width = keys.size();
      gemm(rows, width, q.channels, static_cast<float>(call.attrs.scale),
           q.read(begin, end, buffers.q), {k.data + keys.begin * k.stride, k.stride, true}, 0.0f,
           buffers.scores, width);
      for (int64_t query = begin; query < end; ++query) {
        float *row = buffers.scores + (query - begin) * width;
        KeySpan seen = visible.of(q.sample, query);
        float *first = row + (seen.begin - keys.begin), *last = row + (seen.end - keys.begin);
        std::fill(row, first, 0.0f);
        std::fill(last, row + width, 0.0f);
        lse[query] = makeProbabilities(query, seen, first);
      }
      float *to = o.target(begin, buffers.o);
      gemm(rows, o.channels, width, 1.0f, {buffers.scores, width},
           {v.data + keys.begin * v.stride, v.stride}, 0.0f, to, o.targetStride());
      o.write(begin, end, to, o.targetStride());
    }
  }
};

/// Keys and values of a group are converted to fp32 once for all its heads.
template <bool kIsPart> void runAttention(const Call &call, const Buffers &buffers) {
  constexpr AttentionOp kOp = {kIsPart, false};
  const AttentionExtents e = kOp.extents(call);
  const VisibleKeys visible(call, kOp, buffers.positions);
  const Dropout dropout(call.attrs);
  auto *lse = static_cast<float *>(call.out[1].data);
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t group = 0; group < e.groups; ++group) {
      Factor k = Head(call.in[1], b, group, e.keys, e.groups).read(0, e.keys, buffers.k);
      Factor v = Head(call.in[2], b, group, e.keys, e.groups).read(0, e.keys, buffers.v);
      for (int64_t head = group * e.perGroup; head < (group + 1) * e.perGroup; ++head)
        Task{call,
             visible,
             dropout,
             buffers,
             Head(call.in[0], b, head, e.queries, e.heads),
             Head(call.out[0], b, head, e.queries, e.heads),
             k,
             v,
             lse + (b * e.heads + head) * e.queries}
            .attend();
    }
}

template <bool kIsPart> const char *acceptsAttention(const Call &call) {
  return AttentionOp{kIsPart, false}.refusal(call);
}

} // namespace

SHARDC_HOST_KERNEL(Attention, withBuffers<runAttention<false>>, acceptsAttention<false>);
SHARDC_HOST_KERNEL(AttentionPart, withBuffers<runAttention<true>>, acceptsAttention<true>);

} // namespace shardc::kernels::host
