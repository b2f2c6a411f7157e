// attention_join combines two results for the same queries: lse = log(exp(a) + exp(b)), o = exp(a -
// lse)·oa + exp(b - lse)·ob.
// attention_sink: attention with one additional key per query, whose value is 0 and whose score is
// a parameter of the head: lse' = log(exp(lse) + exp(sink)), o' = exp(lse - lse')·o. A query that
// sees no key has o' = 0. attention_sink_bwd: dsink = -sum over queries of exp(sink -
// lse')·(do·o'). In a group, a member's heads are its share of the heads in sinks. Data are f32,
// bf16 or f16 each, sums are fp64.
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardc::kernels::host {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Outputs [B, S, N·D] and the statistics [B, N, S] of their heads.
struct Extents {
  int64_t batch, heads, positions, channels;

  Extents(const Tensor &o, const Tensor &lse)
      : batch(lse.shape[0]), heads(lse.shape[1]), positions(lse.shape[2]),
        channels(o.numel() / lse.numel()) {}

  /// Index of the first channel of a query's head in the outputs; at() is its index in the
  /// statistics.
  int64_t row(int64_t b, int64_t s, int64_t n) const {
    return ((b * positions + s) * heads + n) * channels;
  }
  int64_t at(int64_t b, int64_t s, int64_t n) const { return (b * heads + n) * positions + s; }
};

struct Buffers {
  float *row, *more, *to, *sinks;

  Buffers(const Call &call, Scratch &scratch) {
    Extents e(call.in[0], call.in[1]);
    for (float **buffer : {&row, &more, &to})
      *buffer = scratch.take<float>(e.channels);
    sinks = scratch.take<float>(e.heads);
  }
};

/// The shares of two sets of keys in the attention to both, and its statistic. They are relative to
/// the larger statistic, so exp cannot overflow; a set without keys has share 0.
struct Shares {
  float first = 0, second = 0, lse = kNothing;

  Shares(float a, float b) {
    const double top = std::max(a, b);
    if (top == kNothing)
      return;
    const double ofA = a == kNothing ? 0 : std::exp(double{a} - top);
    const double ofB = b == kNothing ? 0 : std::exp(double{b} - top);
    const double total = ofA + ofB;
    first = static_cast<float>(ofA / total), second = static_cast<float>(ofB / total);
    lse = static_cast<float>(top + std::log(total));
  }
};

/// Without a second output, the other keys are a sink of each head.
template <bool kIsSink> void runJoin(const Call &call, const Buffers &buffers) {
  Extents e(call.in[0], call.in[1]);
  const float *sinks = buffers.sinks;
  if (kIsSink && call.inCount > 2)
    sinks = readF32(call.in[2], call.index * e.heads, e.heads, buffers.sinks);
  else
    std::fill_n(buffers.sinks, e.heads, 0.0f);
  const auto *lse = static_cast<const float *>(call.in[1].data);
  const auto *other = kIsSink ? nullptr : static_cast<const float *>(call.in[3].data);
  auto *all = static_cast<float *>(call.out[1].data);
  for (int64_t b = 0; b < e.batch; ++b)
    for (int64_t s = 0; s < e.positions; ++s)
      for (int64_t n = 0; n < e.heads; ++n) {
        int64_t row = e.row(b, s, n), at = e.at(b, s, n);
        const Shares shares(lse[at], kIsSink ? sinks[n] : other[at]);
        all[at] = shares.lse;
        const float *o = readF32(call.in[0], row, e.channels, buffers.row);
        for (int64_t i = 0; i < e.channels; ++i)
          buffers.to[i] = shares.first * o[i];
        if constexpr (!kIsSink) {
          const float *more = readF32(call.in[2], row, e.channels, buffers.more);
          for (int64_t i = 0; i < e.channels; ++i)
            buffers.to[i] += shares.second * more[i];
        }
        writeF32(call.out[0], row, e.channels, buffers.to);
      }
}

struct BwdBuffers {
  float *dOut, *o, *sinks, *gradient;

  BwdBuffers(const Call &call, Scratch &scratch) {
    Extents e(call.in[1], call.in[2]);
    dOut = scratch.take<float>(e.channels);
    o = scratch.take<float>(e.channels);
    sinks = scratch.take<float>(e.heads);
    gradient = scratch.take<float>(e.heads * call.groupSize);
  }
};

/// A sink adds exp(sink) to the denominator of every softmax of its head. Its gradient is the sum
/// over rows of -exp(sink - lse) · dot(dO, O). Heads of other ranks get 0.
void runSinkBwd(const Call &call, const BwdBuffers &buffers) {
  Extents e(call.in[1], call.in[2]);
  const float *sinks = readF32(call.in[3], call.index * e.heads, e.heads, buffers.sinks);
  const auto *lse = static_cast<const float *>(call.in[2].data);
  std::fill_n(buffers.gradient, e.heads * call.groupSize, 0.0f);
  for (int64_t n = 0; n < e.heads; ++n) {
    double sum = 0;
    for (int64_t b = 0; b < e.batch; ++b)
      for (int64_t s = 0; s < e.positions; ++s) {
        int64_t row = e.row(b, s, n);
        double delta = dot(readF32(call.in[0], row, e.channels, buffers.dOut),
                           readF32(call.in[1], row, e.channels, buffers.o), e.channels);
        sum -= std::exp(double{sinks[n]} - double{lse[e.at(b, s, n)]}) * delta;
      }
    buffers.gradient[call.index * e.heads + n] = static_cast<float>(sum);
  }
  writeF32(call.out[0], 0, e.heads * call.groupSize, buffers.gradient);
}

} // namespace

SHARDC_HOST_KERNEL(AttentionJoin, withBuffers<runJoin<false>>);
SHARDC_HOST_KERNEL(AttentionSink, withBuffers<runJoin<true>>);
SHARDC_HOST_KERNEL(AttentionSinkBwd, withBuffers<runSinkBwd>, nullptr, 1);

} // namespace shardc::kernels::host
