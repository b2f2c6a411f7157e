// Attention of a slice of queries to a slice of keys, whose positions in the sequence are operands.
//  attention_part: o and lse of attention (Attention.cpp) as if there were no other keys. A query
//    that sees none of the keys has o = 0 and lse = -inf.
//  attention_join combines two results for the same queries: lse = log(exp(a) + exp(b)), o = exp(a
//    - lse)·oa + exp(b - lse)·ob
//  attention_part_bwd: the contribution of these keys to the gradients, from o and lse of all parts
//    joined. With P = exp(scale·q·kᵀ - lse), M the factors of dropout, dP = M·(do·vᵀ) and delta =
//    do·o: dv = (M·P)ᵀ·do, dS = scale·P·(dP - delta), dq = dS·k, dk = dSᵀ·q
// Soft caps are as in attention. Dropout uses the positions, so that its masks are those of the
// whole sequence. If ranks have mirrored slices (Slices.h), positions follow from the ranks'
// indices and not from the operands. Data are f32, bf16 or f16 each, products fp32 through BLAS,
// sums of exponentials fp64. Limited like attention.
#include "kernels/host/Attention.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Dropout.h"
#include "kernels/host/Rows.h"
#include "kernels/host/Slices.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardc::kernels::host {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Operands that both ops have. The first is operand `first`; the others follow o and lse, if the
/// op has these as operands.
struct Operands {
  const Tensor &q, &k, &v, &queryPositions, &keyPositions, &queryDocs, &keyDocs, &samples;

  Operands(const Call &call, bool isBackward)
      : q(call.in[isBackward]), k(call.in[1 + isBackward]), v(call.in[2 + isBackward]),
        queryPositions(call.in[isBackward ? 6 : 3]), keyPositions(call.in[isBackward ? 7 : 4]),
        queryDocs(call.in[isBackward ? 8 : 5]), keyDocs(call.in[isBackward ? 9 : 6]),
        samples(call.in[isBackward ? 10 : 7]) {}
};

struct Extents {
  int64_t batch, queries, keys, heads, groups;
  int64_t channels, values; ///< channels of a head's q and k, and of its v

  Extents(const Tensor &q, const Tensor &v)
      : batch(q.shape[0]), queries(q.shape[1]), keys(v.shape[1]), heads(q.shape[2]),
        groups(v.shape[2]), channels(q.shape[3]), values(v.shape[3]) {}
};

/// Returns why the call cannot be executed, or null. run() relies on everything that is checked
/// here.
const char *checkPart(const Call &call, const Operands &in) {
  Extents e(in.q, in.v);
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE((attrs.window < 0 && attrs.chunk == 0) || attrs.causal,
                 "a window or a chunk has no causal mask");
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
  return checkDropout(attrs);
}

/// Positions of a call's queries and keys in the sequence.
class Positions {
public:
  static int64_t elements(const Call &call, const Extents &e) {
    return call.attrs.slices > 0 ? e.queries + e.keys : 0;
  }

  /// `buffer` has elements() entries.
  Positions(const Call &call, const Operands &in, const Extents &e, int32_t *buffer)
      : queries_(words(in.queryPositions)), keys_(words(in.keyPositions)), queryStride_(e.queries),
        keyStride_(e.keys) {
    if (call.attrs.slices == 0)
      return;
    Slices slices(call, in.q);
    bool hasAll = e.keys > e.queries;
    for (int64_t row = 0; row < e.queries; ++row)
      buffer[row] = static_cast<int32_t>(slices.positionOf(slices.index, row));
    for (int64_t key = 0; key < e.keys; ++key)
      buffer[e.queries + key] =
          static_cast<int32_t>(hasAll ? key : slices.positionOf(slices.owner(), key));
    queries_ = buffer, keys_ = buffer + e.queries;
    queryStride_ = keyStride_ = 0;
  }

  const int32_t *queries(int64_t sample) const { return queries_ + sample * queryStride_; }
  const int32_t *keys(int64_t sample) const { return keys_ + sample * keyStride_; }

  static const int32_t *words(const Tensor &t) { return static_cast<const int32_t *>(t.data); }

private:
  const int32_t *queries_, *keys_;
  int64_t queryStride_, keyStride_;
};

/// Which keys each query of one sample and head sees.
class Pairs {
public:
  Pairs(const Call &call, const Operands &in, const Positions &positions, const Extents &extents,
        int64_t sample, int64_t head)
      : attrs_(call.attrs), keys_(extents.keys), queryAt_(positions.queries(sample)),
        keyAt_(positions.keys(sample)),
        queryDoc_(Positions::words(in.queryDocs) + sample * extents.queries),
        keyDoc_(Positions::words(in.keyDocs) + sample * extents.keys),
        sample_(static_cast<const int64_t *>(in.samples.data)[sample]),
        firstRow_((Slices::headPart(call) * extents.heads + head) * call.attrs.positions) {}

  bool sees(int64_t query, int64_t key) const {
    int64_t back = int64_t{queryAt_[query]} - keyAt_[key];
    return (!attrs_.causal || back >= 0) && (attrs_.window < 0 || back <= attrs_.window) &&
           (attrs_.chunk == 0 || back <= inDocument(query) % attrs_.chunk) &&
           (!attrs_.reset_mask || queryDoc_[query] == keyDoc_[key]);
  }

  /// Position of a query in its document, from whose beginning chunks count.
  int64_t inDocument(int64_t query) const {
    return queryAt_[query] - (attrs_.reset_mask ? queryDoc_[query] : 0);
  }

  /// The factors of dropout for a query's keys, drawn for each range of keys with consecutive
  /// positions.
  void factors(const Dropout &dropout, int64_t query, float *factors) const {
    for (int64_t begin = 0, end = 0; begin < keys_; begin = end) {
      for (end = begin + 1; end < keys_ && keyAt_[end] == keyAt_[end - 1] + 1;)
        ++end;
      dropout.factors(sample_, firstRow_ + queryAt_[query], keyAt_[begin], end - begin,
                      factors + begin);
    }
  }

private:
  const Attrs &attrs_;
  int64_t keys_;
  const int32_t *queryAt_, *keyAt_, *queryDoc_, *keyDoc_;
  int64_t sample_, firstRow_;
};

Head headOf(const Tensor &tensor, int64_t sample, int64_t head, int64_t positions, int64_t heads) {
  int64_t channels = tensor.numel() / tensor.shape[0] / positions / heads;
  return {tensor, sample, head, positions, heads, channels};
}

/// One sample and query head.
struct Task {
  const Extents &extents;
  Pairs pairs;
  float scale, cap; ///< scale and soft cap of scores; cap 0: none
  Head q;
  Factor k, v;
};

// ---- forward ----

struct Buffers {
  float *q, *k, *v, *o, *scores, *factors;
  int32_t *positions;

  Buffers(const Call &call, Scratch &scratch) {
    Extents e(call.in[0], call.in[2]);
    int64_t block = std::min(kQueryBlock, e.queries);
    q = scratch.takeUnlessF32(call.in[0], block * e.channels);
    k = scratch.takeUnlessF32(call.in[1], e.keys * e.channels);
    v = scratch.takeUnlessF32(call.in[2], e.keys * e.values);
    o = scratch.takeUnlessF32(call.out[0], block * e.values);
    scores = scratch.take<float>(block * e.keys);
    factors = scratch.take<float>(e.keys);
    positions = scratch.take<int32_t>(Positions::elements(call, e));
  }
};

const char *acceptsPart(const Call &call) { return checkPart(call, Operands(call, false)); }

/// Replaces a query's scores by probabilities after dropout. Returns the log of the sum of the
/// scores' exponentials.
float makeProbabilities(const Task &task, const Dropout &dropout, int64_t query, float *scores,
                        float *factors) {
  int64_t keys = task.extents.keys;
  if (task.cap > 0)
    capScores(scores, keys, task.cap);
  float top = kNothing;
  for (int64_t key = 0; key < keys; ++key) {
    if (!task.pairs.sees(query, key))
      scores[key] = kNothing;
    top = std::isnan(scores[key]) ? scores[key] : std::max(top, scores[key]);
  }
  if (top == kNothing) {
    std::fill_n(scores, keys, 0.0f);
    return kNothing;
  }
  for (int64_t key = 0; key < keys; ++key)
    scores[key] = std::exp(scores[key] - top); // 0 for keys that the query does not see
  double total = sum(scores, keys);
  auto share = static_cast<float>(1.0 / total);
  for (int64_t key = 0; key < keys; ++key)
    scores[key] *= share;
  if (dropout.isOn()) {
    task.pairs.factors(dropout, query, factors);
    for (int64_t key = 0; key < keys; ++key)
      scores[key] *= factors[key];
  }
  return static_cast<float>(static_cast<double>(top) + std::log(total));
}

void attendHead(const Task &task, const Buffers &buffers, const Dropout &dropout, const Head &o,
                float *lse) {
  const Extents &e = task.extents;
  for (int64_t begin = 0; begin < e.queries; begin += kQueryBlock) {
    int64_t end = std::min(begin + kQueryBlock, e.queries);
    gemm(end - begin, e.keys, e.channels, task.scale, task.q.read(begin, end, buffers.q),
         {task.k.data, task.k.stride, true}, 0.0f, buffers.scores, e.keys);
    for (int64_t query = begin; query < end; ++query)
      lse[query] = makeProbabilities(task, dropout, query,
                                     buffers.scores + (query - begin) * e.keys, buffers.factors);
    float *to = o.target(begin, buffers.o);
    gemm(end - begin, e.values, e.keys, 1.0f, {buffers.scores, e.keys}, task.v, 0.0f, to,
         o.targetStride());
    o.write(begin, end, to, o.targetStride());
  }
}

void runPart(const Call &call, const Buffers &buffers) {
  Operands in(call, false);
  Extents e(in.q, in.v);
  Positions positions(call, in, e, buffers.positions);
  Dropout dropout(call.attrs);
  auto *lse = static_cast<float *>(call.out[1].data);
  auto scale = static_cast<float>(call.attrs.scale), cap = static_cast<float>(call.attrs.soft_cap);
  int64_t perGroup = e.heads / e.groups;
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t group = 0; group < e.groups; ++group) {
      Factor k = headOf(in.k, b, group, e.keys, e.groups).read(0, e.keys, buffers.k);
      Factor v = headOf(in.v, b, group, e.keys, e.groups).read(0, e.keys, buffers.v);
      for (int64_t head = group * perGroup; head < (group + 1) * perGroup; ++head) {
        Task task = {e,   Pairs(call, in, positions, e, b, head),    scale,
                     cap, headOf(in.q, b, head, e.queries, e.heads), k,
                     v};
        attendHead(task, buffers, dropout, headOf(call.out[0], b, head, e.queries, e.heads),
                   lse + (b * e.heads + head) * e.queries);
      }
    }
}

// ---- backward ----

enum BwdOperand { Do, Q, K, V, O, Lse, BwdOperands = 11 };

struct BwdBuffers {
  float *dOut, *o, *q, *k, *v, *dq, *dk, *dv, *p, *dProbs, *factors, *slopes;
  int32_t *positions;

  BwdBuffers(const Call &call, Scratch &scratch) {
    Extents e(call.in[Q], call.in[V]);
    int64_t block = std::min(kQueryBlock, e.queries);
    int64_t ofKeys = e.keys * e.channels, ofValues = e.keys * e.values;
    dOut = scratch.takeUnlessF32(call.in[Do], block * e.values);
    o = scratch.takeUnlessF32(call.in[O], block * e.values);
    q = scratch.takeUnlessF32(call.in[Q], block * e.channels);
    k = scratch.takeUnlessF32(call.in[K], ofKeys);
    v = scratch.takeUnlessF32(call.in[V], ofValues);
    dq = scratch.takeUnlessF32(call.out[0], block * e.channels);
    dk = scratch.take<float>(ofKeys);
    dv = scratch.take<float>(ofValues);
    p = scratch.take<float>(block * e.keys);
    dProbs = scratch.take<float>(block * e.keys);
    factors = scratch.take<float>(e.keys);
    slopes = call.attrs.soft_cap > 0 ? scratch.take<float>(e.keys) : nullptr;
    positions = scratch.take<int32_t>(Positions::elements(call, e));
  }
};

const char *acceptsPartBwd(const Call &call) { return checkPart(call, Operands(call, true)); }

/// Replaces scores in `p` by probabilities after dropout, and do·vᵀ in `dProbs` by gradients of
/// scores.
void differentiateRow(const Task &task, const Dropout &dropout, int64_t query, float lse,
                      float delta, const BwdBuffers &buffers, float *p, float *dProbs) {
  int64_t keys = task.extents.keys;
  if (dropout.isOn())
    task.pairs.factors(dropout, query, buffers.factors);
  if (task.cap > 0)
    capScores(p, keys, task.cap, buffers.slopes);
  for (int64_t key = 0; key < keys; ++key) {
    if (!task.pairs.sees(query, key)) {
      p[key] = dProbs[key] = 0.0f;
      continue;
    }
    float prob = std::exp(p[key] - lse), factor = dropout.isOn() ? buffers.factors[key] : 1.0f;
    float slope = task.cap > 0 ? buffers.slopes[key] : 1.0f;
    dProbs[key] = task.scale * prob * (dProbs[key] * factor - delta) * slope;
    p[key] = prob * factor;
  }
}

void differentiateHead(const Task &task, const BwdBuffers &buffers, const Dropout &dropout,
                       const Head &dOut, const Head &o, const Head &dq, const float *lse) {
  const Extents &e = task.extents;
  for (int64_t begin = 0; begin < e.queries; begin += kQueryBlock) {
    int64_t end = std::min(begin + kQueryBlock, e.queries), rows = end - begin;
    Factor q = task.q.read(begin, end, buffers.q), dRows = dOut.read(begin, end, buffers.dOut);
    Factor oRows = o.read(begin, end, buffers.o);
    gemm(rows, e.keys, e.channels, task.scale, q, {task.k.data, task.k.stride, true}, 0.0f,
         buffers.p, e.keys);
    gemm(rows, e.keys, e.values, 1.0f, dRows, {task.v.data, task.v.stride, true}, 0.0f,
         buffers.dProbs, e.keys);
    for (int64_t query = begin; query < end; ++query) {
      int64_t row = query - begin;
      auto delta = static_cast<float>(
          dot(dRows.data + row * dRows.stride, oRows.data + row * oRows.stride, e.values));
      differentiateRow(task, dropout, query, lse[query], delta, buffers, buffers.p + row * e.keys,
                       buffers.dProbs + row * e.keys);
    }
    float *to = dq.target(begin, buffers.dq);
    gemm(e.keys, e.values, rows, 1.0f, {buffers.p, e.keys, true}, dRows, 1.0f, buffers.dv,
         e.values);
    gemm(e.keys, e.channels, rows, 1.0f, {buffers.dProbs, e.keys, true}, q, 1.0f, buffers.dk,
         e.channels);
    gemm(rows, e.channels, e.keys, 1.0f, {buffers.dProbs, e.keys}, task.k, 0.0f, to,
         dq.targetStride());
    dq.write(begin, end, to, dq.targetStride());
  }
}

/// As runAttentionBwd, with queries and keys of different lengths and with positions as operands.
void runPartBwd(const Call &call, const BwdBuffers &buffers) {
  Operands in(call, true);
  Extents e(in.q, in.v);
  Positions positions(call, in, e, buffers.positions);
  Dropout dropout(call.attrs);
  const auto *lse = static_cast<const float *>(call.in[Lse].data);
  auto scale = static_cast<float>(call.attrs.scale), cap = static_cast<float>(call.attrs.soft_cap);
  int64_t perGroup = e.heads / e.groups;
  auto ofQueries = [&](const Tensor &tensor, int64_t b, int64_t head) {
    return headOf(tensor, b, head, e.queries, e.heads);
  };
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t group = 0; group < e.groups; ++group) {
      auto ofKeys = [&](const Tensor &tensor) {
        return headOf(tensor, b, group, e.keys, e.groups);
      };
      Factor k = ofKeys(in.k).read(0, e.keys, buffers.k);
      Factor v = ofKeys(in.v).read(0, e.keys, buffers.v);
      std::fill_n(buffers.dk, e.keys * e.channels, 0.0f);
      std::fill_n(buffers.dv, e.keys * e.values, 0.0f);
      for (int64_t head = group * perGroup; head < (group + 1) * perGroup; ++head) {
        Task task = {
            e, Pairs(call, in, positions, e, b, head), scale, cap, ofQueries(in.q, b, head), k, v};
        differentiateHead(task, buffers, dropout, ofQueries(call.in[Do], b, head),
                          ofQueries(call.in[O], b, head), ofQueries(call.out[0], b, head),
                          lse + (b * e.heads + head) * e.queries);
      }
      ofKeys(call.out[1]).write(0, e.keys, buffers.dk, e.channels);
      ofKeys(call.out[2]).write(0, e.keys, buffers.dv, e.values);
    }
}

// ---- joining ----

struct JoinBuffers {
  float *a, *b, *to;

  JoinBuffers(const Call &call, Scratch &scratch) {
    int64_t channels = call.in[0].numel() / call.in[1].numel();
    a = scratch.take<float>(channels);
    b = scratch.take<float>(channels);
    to = scratch.take<float>(channels);
  }
};

/// Joins two partial results of the same queries: o = sum of exp(lse_i - lse)·o_i, lse = log(sum of
/// exp(lse_i)). Weights are relative to the larger lse, so nothing overflows. A part without
/// visible keys has weight 0.
void runJoin(const Call &call, const JoinBuffers &buffers) {
  int64_t heads = call.in[1].shape[1], positions = call.in[1].shape[2];
  int64_t rows = call.in[1].numel(), channels = call.in[0].numel() / rows;
  const auto *lseA = static_cast<const float *>(call.in[1].data);
  const auto *lseB = static_cast<const float *>(call.in[3].data);
  auto *lse = static_cast<float *>(call.out[1].data);
  for (int64_t row = 0; row < rows; ++row) { // rows of [B, S, N]
    int64_t b = row / heads / positions, s = row / heads % positions, n = row % heads;
    int64_t at = (b * heads + n) * positions + s;
    float top = std::max(lseA[at], lseB[at]);
    double shareA = top == kNothing ? 0 : std::exp(double{lseA[at]} - double{top});
    double shareB = top == kNothing ? 0 : std::exp(double{lseB[at]} - double{top});
    double total = shareA + shareB;
    auto weightA = static_cast<float>(top == kNothing ? 0 : shareA / total);
    auto weightB = static_cast<float>(top == kNothing ? 0 : shareB / total);
    lse[at] = top == kNothing ? kNothing : static_cast<float>(double{top} + std::log(total));
    const float *a = readF32(call.in[0], row * channels, channels, buffers.a);
    const float *other = readF32(call.in[2], row * channels, channels, buffers.b);
    for (int64_t i = 0; i < channels; ++i)
      buffers.to[i] = weightA * a[i] + weightB * other[i];
    writeF32(call.out[0], row * channels, channels, buffers.to);
  }
}

} // namespace

const Kernel kAttentionPart = kernelOf<OpKind::AttentionPart, acceptsPart>(withBuffers<runPart>);
const Kernel kAttentionPartBwd =
    kernelOf<OpKind::AttentionPartBwd, acceptsPartBwd>(withBuffers<runPartBwd>);
const Kernel kAttentionJoin = kernelOf<OpKind::AttentionJoin>(withBuffers<runJoin>);

} // namespace shardc::kernels::host
