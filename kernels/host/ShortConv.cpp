// short_conv: y[s,c] = x1[s,c]·sum over j of w[c,W-1-j]·x0[s-j,c]·x2[s-j,c], of rows x[B,S,3C] of
// three parts x0, x1, x2, over the W positions s-j from the sequence's begin on, or from docs[b,s]
// on with reset_mask. short_conv_bwd, with g = dy·x1 and the sum r[t,c] of w[c,W-1-j]·g[t+j,c] of
// the positions that read t: dx0 = r·x2, dx2 = r·x0, dx1 = dy·(the sum of y), and dw[c,W-1-j] =
// sum over s of g[s,c]·x0[s-j,c]·x2[s-j,c], in fp64, which may accumulate. Data are f32, bf16 or
// f16 each, computed in fp32 and rounded once. Limited by memory.
#include "kernels/host/Check.h"
#include "kernels/host/ColumnSums.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

/// to[c] = a[c]·b[c], or to[c] += a[c]·b[c].
SHARDC_CLONES void multiply(const float *a, const float *b, int64_t n, float *to, bool isSum) {
  for (int64_t c = 0; c < n; ++c)
    to[c] = (isSum ? to[c] : 0.0f) + a[c] * b[c];
}

/// A sequence in fp32: its rows x, x0·x2 of each, and the filter, of which a row has the numbers of
/// all channels for the position `j` before.
template <int kFirst> struct Sequence {
  int64_t length, channels, taps;
  bool isReset;
  float *x, *products, *filter, *sum, *row;

  Sequence(const Call &call, Scratch &scratch)
      : length(call.in[kFirst].shape[1]), channels(call.in[kFirst + 1].shape[0]),
        taps(call.in[kFirst + 1].shape[1]), isReset(call.attrs.reset_mask) {
    x = scratch.take<float>(length * channels * 3);
    products = scratch.take<float>(length * channels);
    filter = scratch.take<float>(taps * channels);
    sum = scratch.take<float>(channels), row = scratch.take<float>(3 * channels);
  }

  const float *part(int64_t s, int64_t index) const { return x + (s * 3 + index) * channels; }
  void read(const Tensor &from, const Tensor &w, int64_t sample) const {
    const int64_t size = length * channels * 3;
    std::copy_n(readF32(from, sample * size, size, x), size, x);
    for (int64_t s = 0; s < length; ++s)
      multiply(part(s, 0), part(s, 2), channels, products + s * channels, false);
    for (int64_t i = 0; i < channels * taps; ++i)
      filter[(taps - 1 - i % taps) * channels + i / taps] = *readF32(w, i, 1, sum);
  }
  /// How many positions the convolution at position s adds.
  int64_t reach(const int32_t *docs, int64_t s) const {
    int64_t first = isReset ? std::clamp<int64_t>(docs[s], 0, s) : 0;
    return std::min(taps, s - first + 1);
  }
  const float *convolve(const int32_t *docs, int64_t s) const {
    std::fill_n(sum, channels, 0.0f);
    for (int64_t j = reach(docs, s); j-- > 0;)
      multiply(filter + j * channels, products + (s - j) * channels, channels, sum, true);
    return sum;
  }
};

void runConv(const Call &call, const Sequence<0> &b) {
  for (int64_t sample = 0; sample < call.in[0].shape[0]; ++sample) {
    b.read(call.in[0], call.in[1], sample);
    const int32_t *docs = static_cast<const int32_t *>(call.in[2].data) + sample * b.length;
    for (int64_t s = 0; s < b.length; ++s) {
      multiply(b.part(s, 1), b.convolve(docs, s), b.channels, b.row, false);
      writeF32(call.out[0], (sample * b.length + s) * b.channels, b.channels, b.row);
    }
  }
}

struct BwdBuffers : Sequence<1> {
  float *dy, *gradients, *reads, *dw;
  double *sums;
  BwdBuffers(const Call &call, Scratch &scratch) : Sequence(call, scratch) {
    for (float **buffer : {&dy, &gradients})
      *buffer = scratch.take<float>(length * channels);
    reads = scratch.take<float>(channels), dw = scratch.take<float>(channels * taps);
    sums = scratch.take<double>(channels * taps);
  }
};

/// Adds a sequence's terms of dw, and writes its dx.
void differentiate(const Call &call, const BwdBuffers &b, int64_t sample) {
  const int64_t n = b.channels, size = b.length * n;
  const int32_t *docs = static_cast<const int32_t *>(call.in[3].data) + sample * b.length;
  const float *dy = readF32(call.in[0], sample * size, size, b.dy);
  b.read(call.in[1], call.in[2], sample);
  for (int64_t s = 0; s < b.length; ++s) {
    multiply(dy + s * n, b.part(s, 1), n, b.gradients + s * n, false);
    for (int64_t j = b.reach(docs, s); j-- > 0;)
      addProducts(b.gradients + s * n, b.products + (s - j) * n, n, b.sums + j * n);
  }
  for (int64_t s = 0; s < b.length; ++s) {
    multiply(dy + s * n, b.convolve(docs, s), n, b.row + n, false);
    std::fill_n(b.reads, n, 0.0f);
    for (int64_t j = 0; j < std::min(b.taps, b.length - s); ++j)
      if (j < b.reach(docs, s + j))
        multiply(b.filter + j * n, b.gradients + (s + j) * n, n, b.reads, true);
    multiply(b.reads, b.part(s, 2), n, b.row, false);
    multiply(b.reads, b.part(s, 0), n, b.row + 2 * n, false);
    writeF32(call.out[0], (sample * b.length + s) * 3 * n, 3 * n, b.row);
  }
}

void runConvBwd(const Call &call, const BwdBuffers &b) {
  const int64_t count = b.channels * b.taps;
  std::fill_n(b.sums, count, 0.0);
  for (int64_t sample = 0; sample < call.in[1].shape[0]; ++sample)
    differentiate(call, b, sample);
  for (int64_t i = 0; i < count; ++i)
    b.dw[i] = static_cast<float>(b.sums[(b.taps - 1 - i % b.taps) * b.channels + i / b.taps]);
  writeF32(call.out[1], 0, count, b.dw);
}

} // namespace

const Kernel kShortConv = kernelOf<OpKind::ShortConv>(withBuffers<runConv>);
const Kernel kShortConvBwd = kernelOf<OpKind::ShortConvBwd, nullptr, 2>(withBuffers<runConvBwd>);

} // namespace shardc::kernels::host
