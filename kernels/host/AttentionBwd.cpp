// Gradients of attention (Attention.cpp). With P = exp(scale·q·kᵀ - lse) over visible keys, M the
// factors of dropout and dP = M·(do·vᵀ):
//   dv += (M·P)ᵀ·do, dS = scale·P·(dP - sum_j P_j·dP_j), dq = dS·k, dk += dSᵀ·q,
// added over the queries of a group. With a soft cap c of scores x, dS is also multiplied by 1 -
// tanh(x/c)². The sum over j is computed from the probabilities and not as do·o, so that the
// rounding of o does not affect it. Data are f32, bf16 or f16 each. Products are fp32 through BLAS;
// dk and dv are added in fp32 in the order of queries and rounded once. Limited like attention.
#include "kernels/host/Attention.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Dropout.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

enum Operand { Do, Q, K, V, O, Lse, Docs, Samples, Operands };

struct Buffers {
  float *dOut, *q, *k, *v, *dq, *dk, *dv, *p, *dProbs, *factors, *slopes;

  Buffers(const Call &call, Scratch &scratch) {
    AttentionExtents extents(call.in[Q], call.in[V]);
    int64_t block = std::min(kQueryBlock, extents.positions);
    int64_t keys = extents.positions * extents.channels;
    int64_t values = extents.positions * extents.values;
    dOut = scratch.takeUnlessF32(call.in[Do], block * extents.values);
    q = scratch.takeUnlessF32(call.in[Q], block * extents.channels);
    k = scratch.takeUnlessF32(call.in[K], keys);
    v = scratch.takeUnlessF32(call.in[V], values);
    dq = scratch.takeUnlessF32(call.out[0], block * extents.channels);
    dk = scratch.take<float>(keys);
    dv = scratch.take<float>(values);
    p = scratch.take<float>(block * extents.positions);
    dProbs = scratch.take<float>(block * extents.positions);
    factors = scratch.take<float>(extents.positions);
    slopes = call.attrs.soft_cap > 0 ? scratch.take<float>(extents.positions) : nullptr;
  }
};

const char *acceptsAttentionBwd(const Call &call) {
  return checkAttention(call, call.in[Q], call.in[V]);
}

/// One sample and query head: its operands, with the keys and values of its group.
struct Task {
  const Call &call;
  const AttentionExtents &extents;
  const Buffers &buffers;
  Head dOut, q, dq;
  Factor k, v;
  const int32_t *docs;
  int64_t sample; ///< number of the sample in the training run
  const float *lse;
};

/// Replaces scores in `p` by probabilities after dropout, and do·vᵀ in `dProbs` by gradients of
/// scores.
void differentiateRow(const Task &task, const Dropout &dropout, int64_t query, KeySpan seen,
                      float *p, float *dProbs) {
  int64_t n = seen.end - seen.begin;
  float lse = task.lse[query], scale = static_cast<float>(task.call.attrs.scale);
  const auto cap = static_cast<float>(task.call.attrs.soft_cap);
  const float *slopes = task.buffers.slopes;
  if (cap > 0)
    capScores(p, n, cap, task.buffers.slopes);
  for (int64_t i = 0; i < n; ++i)
    p[i] = std::exp(p[i] - lse);
  const float *factors = task.buffers.factors;
  if (dropout.isOn()) {
    dropout.factors(task.sample, dropoutRow(task.call, task.extents, task.q.head, query),
                    seen.begin, n, task.buffers.factors);
    for (int64_t i = 0; i < n; ++i)
      dProbs[i] *= factors[i];
  }
  float mean = static_cast<float>(dot(p, dProbs, n));
  for (int64_t i = 0; i < n; ++i)
    dProbs[i] = scale * p[i] * (dProbs[i] - mean);
  if (cap > 0)
    for (int64_t i = 0; i < n; ++i)
      dProbs[i] *= slopes[i];
  if (dropout.isOn())
    for (int64_t i = 0; i < n; ++i)
      p[i] *= factors[i];
}

/// Gradients of a block of queries of one head. Scores outside of a query's visible keys are set to
/// 0 after the products, which always have the full width.
void differentiateBlock(const Task &task, const Dropout &dropout, int64_t begin, int64_t end) {
  const Buffers &buffers = task.buffers;
  int64_t positions = task.extents.positions, rows = end - begin;
  int64_t channels = task.extents.channels, values = task.extents.values;
  KeySpan keys = visibleKeys(task.call.attrs, task.docs, positions, begin, end);
  int64_t width = keys.end - keys.begin;
  Factor k = {task.k.data + keys.begin * task.k.stride, task.k.stride};
  Factor vT = {task.v.data + keys.begin * task.v.stride, task.v.stride, true};
  Factor q = task.q.read(begin, end, buffers.q), dOut = task.dOut.read(begin, end, buffers.dOut);
  gemm(rows, width, channels, static_cast<float>(task.call.attrs.scale), q,
       {k.data, k.stride, true}, 0.0f, buffers.p, width);
  gemm(rows, width, values, 1.0f, dOut, vT, 0.0f, buffers.dProbs, width);
  for (int64_t query = begin; query < end; ++query) {
    KeySpan seen = visibleKeys(task.call.attrs, task.docs, positions, query);
    int64_t first = seen.begin - keys.begin, last = seen.end - keys.begin;
    for (float *matrix : {buffers.p, buffers.dProbs}) {
      float *row = matrix + (query - begin) * width;
      std::fill(row, row + first, 0.0f);
      std::fill(row + last, row + width, 0.0f);
    }
    int64_t offset = (query - begin) * width + first;
    differentiateRow(task, dropout, query, seen, buffers.p + offset, buffers.dProbs + offset);
  }
  float *dk = buffers.dk + keys.begin * channels, *dv = buffers.dv + keys.begin * values;
  float *dq = task.dq.target(begin, buffers.dq);
  gemm(width, values, rows, 1.0f, {buffers.p, width, true}, dOut, 1.0f, dv, values);
  gemm(width, channels, rows, 1.0f, {buffers.dProbs, width, true}, q, 1.0f, dk, channels);
  gemm(rows, channels, width, 1.0f, {buffers.dProbs, width}, k, 0.0f, dq, task.dq.targetStride());
  task.dq.write(begin, end, dq, task.dq.targetStride());
}

/// dk and dv of a group are summed in fp32 over all query heads of the group before they are
/// rounded once.
void runAttentionBwd(const Call &call, const Buffers &buffers) {
  AttentionExtents extents(call.in[Q], call.in[V]);
  Dropout dropout(call.attrs);
  const int32_t *docs = static_cast<const int32_t *>(call.in[Docs].data);
  const int64_t *samples = static_cast<const int64_t *>(call.in[Samples].data);
  const float *lse = static_cast<const float *>(call.in[Lse].data);
  int64_t positions = extents.positions, perGroup = extents.heads / extents.groups;
  auto headOf = [&](const Tensor &tensor, int64_t b, int64_t head, int64_t heads) {
    int64_t channels = tensor.numel() / extents.batch / positions / heads;
    return Head{tensor, b, head, positions, heads, channels};
  };
  for (int64_t b = 0; b < extents.batch; ++b)
    for (int64_t group = 0; group < extents.groups; ++group) {
      Factor k = headOf(call.in[K], b, group, extents.groups).read(0, positions, buffers.k);
      Factor v = headOf(call.in[V], b, group, extents.groups).read(0, positions, buffers.v);
      std::fill_n(buffers.dk, positions * extents.channels, 0.0f);
      std::fill_n(buffers.dv, positions * extents.values, 0.0f);
      for (int64_t head = group * perGroup; head < (group + 1) * perGroup; ++head) {
        Task task = {call,
                     extents,
                     buffers,
                     headOf(call.in[Do], b, head, extents.heads),
                     headOf(call.in[Q], b, head, extents.heads),
                     headOf(call.out[0], b, head, extents.heads),
                     k,
                     v,
                     docs + b * positions,
                     samples[b],
                     lse + (b * extents.heads + head) * positions};
        for (int64_t begin = 0; begin < positions; begin += kQueryBlock)
          differentiateBlock(task, dropout, begin, std::min(begin + kQueryBlock, positions));
      }
      headOf(call.out[1], b, group, extents.groups)
          .write(0, positions, buffers.dk, extents.channels);
      headOf(call.out[2], b, group, extents.groups).write(0, positions, buffers.dv, extents.values);
    }
}

} // namespace

const Kernel kAttentionBwd =
    kernelOf<OpKind::AttentionBwd, acceptsAttentionBwd>(withBuffers<runAttentionBwd>);

} // namespace shardc::kernels::host
