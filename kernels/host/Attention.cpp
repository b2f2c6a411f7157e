// o[b,s,n,:] = sum over visible keys j of dropout(P[j])·v[b,j,g,:], P = softmax(scale·q·k_j), with
// g = n/(N/G); lse[b,n,s] = log of the sum of exp(scale·q·k_j). With a soft cap c, a score x
// becomes c·tanh(x/c). q[B,S,N,D], k[B,S,G,D], v[B,S,G,E], o[B,S,N·E] are f32, bf16 or f16 each,
// lse is f32. If causal, a query sees no key after its own position; with `window`, no key further
// before it; with `chunk`, only keys of its own chunk; and with reset_mask, only keys of its own
// document. Products are fp32 through BLAS, sums of exponentials fp64. Limited by exp at small D
// and by BLAS at large D.
#include "kernels/host/Attention.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Dropout.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {

void capScores(float *scores, int64_t n, float cap, float *slopes) {
  for (int64_t i = 0; i < n; ++i) {
    float share = std::tanh(scores[i] / cap);
    scores[i] = cap * share;
    if (slopes)
      slopes[i] = 1.0f - share * share;
  }
}

KeySpan visibleKeys(const Attrs &attrs, const int32_t *docs, int64_t positions, int64_t query) {
  KeySpan span = {0, attrs.causal ? query + 1 : positions};
  const int64_t first = attrs.reset_mask ? std::clamp<int64_t>(docs[query], 0, query) : 0;
  span.begin = first;
  if (attrs.window >= 0)
    span.begin = std::max(span.begin, query - attrs.window);
  if (attrs.chunk > 0) // chunks count from the beginning of the document
    span.begin = std::max(span.begin, query - (query - first) % attrs.chunk);
  if (attrs.reset_mask && !attrs.causal)
    for (span.end = query + 1; span.end < positions && docs[span.end] == docs[query];)
      ++span.end;
  return span;
}

KeySpan visibleKeys(const Attrs &attrs, const int32_t *docs, int64_t positions, int64_t begin,
                    int64_t end) {
  KeySpan all = visibleKeys(attrs, docs, positions, begin);
  for (int64_t query = begin + 1; query < end; ++query) {
    KeySpan span = visibleKeys(attrs, docs, positions, query);
    all = {std::min(all.begin, span.begin), std::max(all.end, span.end)};
  }
  return all;
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

const char *checkAttention(const Call &call, const Tensor &q, const Tensor &v) {
  AttentionExtents extents(q, v);
  SHARDC_REQUIRE(call.groupSize * extents.heads * extents.positions < (int64_t{1} << 32) &&
                     extents.heads * std::max(extents.channels, extents.values) <
                         (int64_t{1} << 31),
                 "heads times positions or channels are too many");
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE((attrs.window < 0 && attrs.chunk == 0) || attrs.causal,
                 "a window or a chunk has no causal mask");
  SHARDC_REQUIRE((attrs.num_heads == 0 || attrs.num_heads == extents.heads) &&
                     (attrs.num_groups == 0 || attrs.num_groups == extents.groups) &&
                     (attrs.head_dim == 0 || attrs.head_dim == extents.channels),
                 "heads or channels are not those of the attributes");
  return checkDropout(attrs);
}

namespace {

struct Buffers {
  float *q, *k, *v, *o, *scores, *factors;

  Buffers(const Call &call, Scratch &scratch) {
    AttentionExtents extents(call.in[0], call.in[2]);
    int64_t block = std::min(kQueryBlock, extents.positions);
    q = scratch.takeUnlessF32(call.in[0], block * extents.channels);
    k = scratch.takeUnlessF32(call.in[1], extents.positions * extents.channels);
    v = scratch.takeUnlessF32(call.in[2], extents.positions * extents.values);
    o = scratch.takeUnlessF32(call.out[0], block * extents.values);
    scores = scratch.take<float>(block * extents.positions);
    factors = scratch.take<float>(extents.positions);
  }
};

const char *acceptsAttention(const Call &call) {
  return checkAttention(call, call.in[0], call.in[2]);
}

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

/// One sample and query head: its operands, with the keys and values of its group.
struct Task {
  const Call &call;
  const AttentionExtents &extents;
  const Buffers &buffers;
  Head q, o;
  Factor k, v;
  const int32_t *docs;
  int64_t sample; ///< number of the sample in the training run
  float *lse;
};

/// Replaces the scores of queries [begin, end) against `keys` by probabilities after dropout.
void probabilities(const Task &task, const Dropout &dropout, int64_t begin, int64_t end,
                   KeySpan keys) {
  int64_t width = keys.end - keys.begin;
  for (int64_t query = begin; query < end; ++query) {
    float *row = task.buffers.scores + (query - begin) * width;
    KeySpan seen = visibleKeys(task.call.attrs, task.docs, task.extents.positions, query);
    float *first = row + (seen.begin - keys.begin), *last = row + (seen.end - keys.begin);
    std::fill(row, first, 0.0f);
    std::fill(last, row + width, 0.0f);
    if (task.call.attrs.soft_cap > 0)
      capScores(first, last - first, static_cast<float>(task.call.attrs.soft_cap));
    task.lse[query] = softmax(first, last - first);
    if (!dropout.isOn())
      continue;
    dropout.factors(task.sample, dropoutRow(task.call, task.extents, task.q.head, query),
                    seen.begin, last - first, task.buffers.factors);
    for (int64_t i = 0; i < last - first; ++i)
      first[i] *= task.buffers.factors[i];
  }
}

/// Attends a block of queries at a time, to the keys between the first and last that any of them
/// sees.
void attendHead(const Task &task, const Dropout &dropout) {
  int64_t channels = task.extents.channels, values = task.extents.values;
  float scale = static_cast<float>(task.call.attrs.scale);
  for (int64_t begin = 0; begin < task.extents.positions; begin += kQueryBlock) {
    int64_t end = std::min(begin + kQueryBlock, task.extents.positions);
    KeySpan keys = visibleKeys(task.call.attrs, task.docs, task.extents.positions, begin, end);
    int64_t width = keys.end - keys.begin;
    Factor k = {task.k.data + keys.begin * task.k.stride, task.k.stride, true};
    Factor v = {task.v.data + keys.begin * task.v.stride, task.v.stride};
    gemm(end - begin, width, channels, scale, task.q.read(begin, end, task.buffers.q), k, 0.0f,
         task.buffers.scores, width);
    probabilities(task, dropout, begin, end, keys);
    float *to = task.o.target(begin, task.buffers.o);
    gemm(end - begin, values, width, 1.0f, {task.buffers.scores, width}, v, 0.0f, to,
         task.o.targetStride());
    task.o.write(begin, end, to, task.o.targetStride());
  }
}

/// Keys and values of a group are converted to fp32 once for all its heads.
void runAttention(const Call &call, const Buffers &buffers) {
  AttentionExtents extents(call.in[0], call.in[2]);
  Dropout dropout(call.attrs);
  const int32_t *docs = static_cast<const int32_t *>(call.in[3].data);
  const int64_t *samples = static_cast<const int64_t *>(call.in[4].data);
  int64_t positions = extents.positions, perGroup = extents.heads / extents.groups;
  auto headOf = [&](const Tensor &tensor, int64_t b, int64_t head, int64_t heads) {
    int64_t channels = tensor.numel() / extents.batch / positions / heads;
    return Head{tensor, b, head, positions, heads, channels};
  };
  for (int64_t b = 0; b < extents.batch; ++b)
    for (int64_t group = 0; group < extents.groups; ++group) {
      Factor k = headOf(call.in[1], b, group, extents.groups).read(0, positions, buffers.k);
      Factor v = headOf(call.in[2], b, group, extents.groups).read(0, positions, buffers.v);
      for (int64_t head = group * perGroup; head < (group + 1) * perGroup; ++head)
        attendHead(
            {call, extents, buffers, headOf(call.in[0], b, head, extents.heads),
             headOf(call.out[0], b, head, extents.heads), k, v, docs + b * positions, samples[b],
             static_cast<float *>(call.out[1].data) + (b * extents.heads + head) * positions},
            dropout);
    }
}

} // namespace

const Kernel kAttention = kernelOf<OpKind::Attention, acceptsAttention>(withBuffers<runAttention>);

} // namespace shardc::kernels::host
