// Gradients of attention and attention_part (Attention.cpp). With P = exp(scale·q·kᵀ - lse) over
// visible keys, M the factors of dropout and dP = M·(do·vᵀ):
//   dv += (M·P)ᵀ·do, dS = scale·P·(dP - delta), dq = dS·k, dk += dSᵀ·q,
// added over the queries of a group. With a soft cap c of scores x, dS is also multiplied by 1 -
// tanh(x/c)². delta is sum_j P_j·dP_j over all keys of the query. attention_bwd computes it from
// the probabilities, so that the rounding of o does not affect it; attention_part_bwd, which has
// some of the keys, as do·o, with o and lse of all parts joined. Data are f32, bf16 or f16 each.
// Products are fp32 through BLAS; dk and dv are added in fp32 in the order of queries and rounded
// once. Limited like attention.
#include "kernels/host/Attention.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

enum Operand { Do, Q, K, V, O, Lse };

struct Buffers {
  float *dOut, *o, *q, *k, *v, *dq, *dk, *dv, *p, *dProbs, *factors, *slopes;
  int32_t *positions;
};

template <bool kIsPart> struct BuffersOf : Buffers {
  BuffersOf(const Call &call, Scratch &scratch) {
    AttentionExtents e(call.in[Q], call.in[V]);
    int64_t block = std::min(kQueryBlock, e.queries);
    int64_t keys = e.keys * e.channels, values = e.keys * e.values;
    dOut = scratch.takeUnlessF32(call.in[Do], block * e.values);
    o = kIsPart ? scratch.takeUnlessF32(call.in[O], block * e.values) : nullptr;
    q = scratch.takeUnlessF32(call.in[Q], block * e.channels);
    k = scratch.takeUnlessF32(call.in[K], keys);
    v = scratch.takeUnlessF32(call.in[V], values);
    dq = scratch.takeUnlessF32(call.out[0], block * e.channels);
    dk = scratch.take<float>(keys);
    dv = scratch.take<float>(values);
    p = scratch.take<float>(block * e.keys);
    dProbs = scratch.take<float>(block * e.keys);
    factors = scratch.take<float>(e.keys);
    slopes = call.attrs.soft_cap > 0 ? scratch.take<float>(e.keys) : nullptr;
    positions = scratch.take<int32_t>(VisibleKeys::positions(call, e));
  }
};

/// One sample and query head, with the keys and values of its group.
struct Task {
  const Call &call;
  const VisibleKeys &visible;
  const Dropout &dropout;
  const Buffers &buffers;
  Head dOut, o, q, dq;
  Factor k, v;
  const float *lse;

  /// Replaces scores in `p` by probabilities after dropout, and do·vᵀ in `dProbs` by gradients of
  /// scores. Both are 0 for keys that the query does not see.
  void differentiateRow(int64_t query, KeySpan seen, float delta, float *p, float *dProbs) const {
    const int64_t n = seen.size();
    const float scale = static_cast<float>(call.attrs.scale);
    const auto cap = static_cast<float>(call.attrs.soft_cap);
    const float *factors = buffers.factors;
    if (cap > 0)
      capScores(p, n, cap, buffers.slopes);
    for (int64_t i = 0; i < n; ++i)
      p[i] = std::exp(p[i] - lse[query]);
    if (dropout.isOn()) {
      visible.factors(dropout, q.sample, q.head, query, seen, buffers.factors);
      for (int64_t i = 0; i < n; ++i)
        dProbs[i] *= factors[i];
    }
    if (!visible.isPart())
      delta = static_cast<float>(dot(p, dProbs, n));
    for (int64_t i = 0; i < n; ++i)
      dProbs[i] = scale * p[i] * (dProbs[i] - delta);
    if (cap > 0)
      for (int64_t i = 0; i < n; ++i)
        dProbs[i] *= buffers.slopes[i];
    if (dropout.isOn())
      for (int64_t i = 0; i < n; ++i)
        p[i] *= factors[i];
    if (visible.isPart())
      for (int64_t i = 0; i < n; ++i)
        if (!visible.sees(q.sample, query, seen.begin + i))
          p[i] = dProbs[i] = 0.0f;
  }

  /// Gradients of a block of queries. Scores outside of a query's span are set to 0 after the
  /// products, which always have the full width.
  void differentiateBlock(int64_t begin, int64_t end) const {
    const int64_t rows = end - begin, channels = q.channels, values = dOut.channels;
    const KeySpan span = visible.of(q.sample, begin, end);
    const int64_t width = span.size();
    Factor keys = {k.data + span.begin * k.stride, k.stride};
    Factor qRows = q.read(begin, end, buffers.q), dRows = dOut.read(begin, end, buffers.dOut);
    Factor oRows = visible.isPart() ? o.read(begin, end, buffers.o) : Factor{};
    gemm(rows, width, channels, static_cast<float>(call.attrs.scale), qRows,
         {keys.data, keys.stride, true}, 0.0f, buffers.p, width);
    gemm(rows, width, values, 1.0f, dRows, {v.data + span.begin * v.stride, v.stride, true}, 0.0f,
         buffers.dProbs, width);
    for (int64_t row = 0; row < rows; ++row) {
      const KeySpan seen = visible.of(q.sample, begin + row);
      const int64_t first = seen.begin - span.begin, last = seen.end - span.begin;
      for (float *matrix : {buffers.p, buffers.dProbs}) {
        std::fill(matrix + row * width, matrix + row * width + first, 0.0f);
        std::fill(matrix + row * width + last, matrix + (row + 1) * width, 0.0f);
      }
      double delta = visible.isPart() ? dot(dRows.data + row * dRows.stride,
                                            oRows.data + row * oRows.stride, values)
                                      : 0;
      int64_t at = row * width + first;
      differentiateRow(begin + row, seen, static_cast<float>(delta), buffers.p + at,
                       buffers.dProbs + at);
    }
    float *to = dq.target(begin, buffers.dq);
    gemm(width, values, rows, 1.0f, {buffers.p, width, true}, dRows, 1.0f,
         buffers.dv + span.begin * values, values);
    gemm(width, channels, rows, 1.0f, {buffers.dProbs, width, true}, qRows, 1.0f,
         buffers.dk + span.begin * channels, channels);
    gemm(rows, channels, width, 1.0f, {buffers.dProbs, width}, keys, 0.0f, to, dq.targetStride());
    dq.write(begin, end, to, dq.targetStride());
  }
};

/// dk and dv of a group are summed in fp32 over all query heads of the group before they are
/// rounded once.
template <bool kIsPart> void runAttentionBwd(const Call &call, const BuffersOf<kIsPart> &buffers) {
  constexpr AttentionOp kOp = {kIsPart, true};
  const AttentionExtents e = kOp.extents(call);
  const VisibleKeys visible(call, kOp, buffers.positions);
  const Dropout dropout(call.attrs);
  const auto *lse = static_cast<const float *>(call.in[Lse].data);
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t group = 0; group < e.groups; ++group) {
      auto ofKeys = [&](const Tensor &tensor) { return Head(tensor, b, group, e.keys, e.groups); };
      Factor k = ofKeys(call.in[K]).read(0, e.keys, buffers.k);
      Factor v = ofKeys(call.in[V]).read(0, e.keys, buffers.v);
      std::fill_n(buffers.dk, e.keys * e.channels, 0.0f);
      std::fill_n(buffers.dv, e.keys * e.values, 0.0f);
      for (int64_t head = group * e.perGroup; head < (group + 1) * e.perGroup; ++head) {
        auto ofQueries = [&](const Tensor &tensor) {
          return Head(tensor, b, head, e.queries, e.heads);
        };
        Task task = {call,
                     visible,
                     dropout,
                     buffers,
                     ofQueries(call.in[Do]),
                     ofQueries(call.in[O]),
                     ofQueries(call.in[Q]),
                     ofQueries(call.out[0]),
                     k,
                     v,
                     lse + (b * e.heads + head) * e.queries};
        for (int64_t begin = 0; begin < e.queries; begin += kQueryBlock)
          task.differentiateBlock(begin, std::min(begin + kQueryBlock, e.queries));
      }
      ofKeys(call.out[1]).write(0, e.keys, buffers.dk, e.channels);
      ofKeys(call.out[2]).write(0, e.keys, buffers.dv, e.values);
    }
}

template <bool kIsPart> const char *acceptsAttentionBwd(const Call &call) {
  return AttentionOp{kIsPart, true}.refusal(call);
}

} // namespace

SHARDC_HOST_KERNEL(AttentionBwd, withBuffers<runAttentionBwd<false>>, acceptsAttentionBwd<false>);
SHARDC_HOST_KERNEL(AttentionPartBwd, withBuffers<runAttentionBwd<true>>, acceptsAttentionBwd<true>);

} // namespace shardc::kernels::host
