// short_conv: y[s,c] = x1[s,c]·sum over j of w[c,W-1-j]·x0[s-j,c]·x2[s-j,c], of rows x[B,S,3C] of
// three parts x0, x1, x2, over the W positions s-j from the sequence's begin on, or from docs[b,s]
// on with reset_mask. short_conv_bwd, with g = dy·x1 and the sum r[t,c] of w[c,W-1-j]·g[t+j,c] of
// the positions that read t: dx0 = r·x2, dx2 = r·x0, dx1 = dy·(the sum of y), and dw[c,W-1-j] =
// sum over s of g[s,c]·x0[s-j,c]·x2[s-j,c], in fp64, which may accumulate. causal_conv has rows of
// one part, which it convolves instead of x0·x2, and y = silu(the sum), to which it may add a bias:
// g = dy·silu'(the sum), dx = r, and dbias is the sum of g. Data are f32, bf16 or f16 each,
// computed in fp32 and rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

/// to[c] = a[c]·b[c], or to[c] += a[c]·b[c].
SHARDC_CLONES void multiply(const float *a, const float *b, int64_t n, float *to, bool isSum) {
  for (int64_t c = 0; c < n; ++c)
    to[c] = (isSum ? to[c] : 0.0f) + a[c] * b[c];
}

/// to[c] = a[c]·silu(x[c]), or a[c] times the slope of silu; a is 1 if it is null.
void multiplySilu(const float *a, const float *x, int64_t n, float *to, bool isSlope) {
  for (int64_t c = 0; c < n; ++c) {
    const float sigmoid = 1.0f / (1.0f + std::exp(-x[c]));
    to[c] = (a ? a[c] : 1.0f) * sigmoid * (isSlope ? 1.0f + x[c] * (1.0f - sigmoid) : x[c]);
  }
}

/// A sequence in fp32: its rows x of `kParts` parts, what is convolved of each, the filter, of
/// which a row has the numbers of all channels for the position `j` before, and where sums begin.
/// Operands x, w, docs and bias are at `kFirst`.
template <int kFirst, int kParts> struct Sequence {
  int64_t length, channels, taps;
  bool isReset;
  float *x, *products, *filter, *bias, *sum, *row;

  Sequence(const Call &call, Scratch &scratch)
      : length(call.in[kFirst].shape[1]), channels(call.in[kFirst + 1].shape[0]),
        taps(call.in[kFirst + 1].shape[1]), isReset(call.attrs.reset_mask) {
    x = scratch.take<float>(length * channels * kParts);
    products = kParts == 1 ? x : scratch.take<float>(length * channels);
    filter = scratch.take<float>(taps * channels), bias = scratch.take<float>(channels);
    sum = scratch.take<float>(channels), row = scratch.take<float>(kParts * channels);
  }

  const float *part(int64_t s, int64_t index) const { return x + (s * kParts + index) * channels; }
  const int32_t *read(const Call &call, int64_t sample) const {
    const int64_t size = length * channels * kParts;
    std::copy_n(readF32(call.in[kFirst], sample * size, size, x), size, x);
    for (int64_t s = 0; kParts > 1 && s < length; ++s)
      multiply(part(s, 0), part(s, 2), channels, products + s * channels, false);
    for (int64_t i = 0; i < channels * taps; ++i)
      filter[(taps - 1 - i % taps) * channels + i / taps] =
          *readF32(call.in[kFirst + 1], i, 1, sum);
    std::fill_n(bias, channels, 0.0f);
    if (call.inCount > kFirst + 3)
      std::copy_n(readF32(call.in[kFirst + 3], 0, channels, bias), channels, bias);
    return static_cast<const int32_t *>(call.in[kFirst + 2].data) + sample * length;
  }
  /// How many positions the convolution at position s adds.
  int64_t reach(const int32_t *docs, int64_t s) const {
    int64_t first = isReset ? std::clamp<int64_t>(docs[s], 0, s) : 0;
    return std::min(taps, s - first + 1);
  }
  const float *convolve(const int32_t *docs, int64_t s) const {
    std::copy_n(bias, channels, sum);
    for (int64_t j = reach(docs, s); j-- > 0;)
      multiply(filter + j * channels, products + (s - j) * channels, channels, sum, true);
    return sum;
  }
};

template <int kParts> void runConv(const Call &call, const Sequence<0, kParts> &b) {
  for (int64_t sample = 0; sample < call.in[0].shape[0]; ++sample) {
    const int32_t *docs = b.read(call, sample);
    for (int64_t s = 0; s < b.length; ++s) {
      if constexpr (kParts == 1)
        multiplySilu(nullptr, b.convolve(docs, s), b.channels, b.row, false);
      else
        multiply(b.part(s, 1), b.convolve(docs, s), b.channels, b.row, false);
      writeF32(call.out[0], (sample * b.length + s) * b.channels, b.channels, b.row);
    }
  }
}

template <int kParts> struct BwdBuffers : Sequence<1, kParts> {
  float *dy, *gradients, *reads, *dw;
  double *sums, *biasSums;
  BwdBuffers(const Call &call, Scratch &scratch) : Sequence<1, kParts>(call, scratch) {
    for (float **buffer : {&dy, &gradients})
      *buffer = scratch.take<float>(this->length * this->channels);
    reads = scratch.take<float>(this->channels);
    dw = scratch.take<float>(this->channels * this->taps);
    sums = scratch.take<double>(this->channels * this->taps);
    biasSums = scratch.take<double>(this->channels);
  }
};

/// Adds a sequence's terms of dw and dbias, and writes its dx.
template <int kParts>
void differentiate(const Call &call, const BwdBuffers<kParts> &b, int64_t sample) {
  const int64_t n = b.channels, size = b.length * n;
  const float *dy = readF32(call.in[0], sample * size, size, b.dy);
  const int32_t *docs = b.read(call, sample);
  for (int64_t s = 0; s < b.length; ++s) {
    float *gradient = b.gradients + s * n;
    if constexpr (kParts == 1)
      multiplySilu(dy + s * n, b.convolve(docs, s), n, gradient, true);
    else
      multiply(dy + s * n, b.part(s, 1), n, gradient, false);
    for (int64_t j = b.reach(docs, s); j-- > 0;)
      addProducts(gradient, b.products + (s - j) * n, n, b.sums + j * n);
    addTerms(gradient, n, b.biasSums);
  }
  for (int64_t s = 0; s < b.length; ++s) {
    float *reads = kParts == 1 ? b.row : b.reads;
    std::fill_n(reads, n, 0.0f);
    for (int64_t j = 0; j < std::min(b.taps, b.length - s); ++j)
      if (j < b.reach(docs, s + j))
        multiply(b.filter + j * n, b.gradients + (s + j) * n, n, reads, true);
    if constexpr (kParts > 1) {
      multiply(dy + s * n, b.convolve(docs, s), n, b.row + n, false);
      multiply(reads, b.part(s, 2), n, b.row, false);
      multiply(reads, b.part(s, 0), n, b.row + 2 * n, false);
    }
    writeF32(call.out[0], (sample * b.length + s) * kParts * n, kParts * n, b.row);
  }
}

template <int kParts> void runConvBwd(const Call &call, const BwdBuffers<kParts> &b) {
  const int64_t count = b.channels * b.taps;
  std::fill_n(b.sums, count, 0.0), std::fill_n(b.biasSums, b.channels, 0.0);
  for (int64_t sample = 0; sample < call.in[1].shape[0]; ++sample)
    differentiate(call, b, sample);
  for (int64_t i = 0; i < count; ++i)
    b.dw[i] = static_cast<float>(b.sums[(b.taps - 1 - i % b.taps) * b.channels + i / b.taps]);
  writeF32(call.out[1], 0, count, b.dw);
  if (call.outCount > 2)
    writeSums(call.out[2], 0, b.channels, b.biasSums, b.row);
}

} // namespace

SHARDC_HOST_KERNEL(ShortConv, withBuffers<runConv<3>>);
SHARDC_HOST_KERNEL(ShortConvBwd, withBuffers<runConvBwd<3>>, nullptr, 2);
SHARDC_HOST_KERNEL(CausalConv, withBuffers<runConv<1>>);
SHARDC_HOST_KERNEL(CausalConvBwd, withBuffers<runConvBwd<1>>, nullptr, 2 | 4);

} // namespace shardc::kernels::host
