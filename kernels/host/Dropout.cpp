// dropout: y = x·factor for x with B·S rows. The factor is 0 with probability p and 1/(1-p)
// otherwise; with jitter, it is a uniform random number around 1. It is a function of (seed, salt,
// sample, position, channel); see Dropout.h. In a group, x is this member's part of the rows,
// of which all members have equal parts. If positions i32[B,S] are an operand, they give the
// positions of rows. The same op, applied to dy, gives dx. Data are f32, bf16 or f16 each. Limited
// by the generator: ten rounds for four elements.
#include "kernels/host/Dropout.h"

#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Philox.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {

const char *checkDropout(const Attrs &attrs) {
  SHARDC_REQUIRE(attrs.p >= 0 && attrs.p <= 1, "the dropout probability is not in [0, 1]");
  SHARDC_REQUIRE(attrs.jitter >= 0 && std::isfinite(attrs.jitter), "the jitter is not 0 or more");
  SHARDC_REQUIRE(attrs.p == 0 || attrs.jitter == 0, "dropout has a probability and jitter");
  return nullptr;
}

Dropout::Dropout(const Attrs &attrs) : jitter_(attrs.jitter) {
  uint64_t salt = static_cast<uint64_t>(attrs.salt);
  PhiloxBlock block =
      philox4x32({static_cast<uint32_t>(salt), static_cast<uint32_t>(salt >> 32), 0, 0},
                 streamKey(static_cast<uint64_t>(attrs.seed), "dropout"));
  key_ = static_cast<uint64_t>(block[1]) << 32 | block[0];
  threshold_ = static_cast<uint64_t>(std::llround(attrs.p * 0x1p32));
  scale_ = dropoutScale(attrs.p);
}

void Dropout::factors(int64_t sample, int64_t position, int64_t channelBegin, int64_t n,
                      float *factors) const {
  uint64_t bits = static_cast<uint64_t>(sample);
  for (int64_t i = 0; i < n;) {
    int64_t channel = channelBegin + i;
    PhiloxBlock block =
        philox4x32({static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32),
                    static_cast<uint32_t>(position), static_cast<uint32_t>(channel / 4)},
                   key_);
    for (int64_t word = channel % 4; word < 4 && i < n; ++word, ++i) {
      uint32_t drawn = block[static_cast<size_t>(word)];
      factors[i] = jitter_.isOn() ? jitter_.of(drawn) : drawn < threshold_ ? 0.0f : scale_;
    }
  }
}

namespace {

const char *acceptsDropout(const Call &call) {
  const Tensor &x = call.in[0], &samples = call.in[1];
  SHARDC_REQUIRE(call.groupSize > 1 || x.rank != 3 || x.shape[0] == samples.shape[0],
                 "x has not as many samples");
  return checkDropout(call.attrs);
}

void runDropout(const Call &call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  const int64_t *samples = static_cast<const int64_t *>(call.in[1].data);
  int64_t rows = x.rows(), cols = x.cols(), first = call.index * rows;
  int64_t positions = rows * call.groupSize / call.in[1].shape[0];
  const auto *given = call.inCount > 2 ? static_cast<const int32_t *>(call.in[2].data) : nullptr;
  Dropout dropout(call.attrs);
  float buffer[kBlock], factors[kBlock], to[kBlock];
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < cols; begin += kBlock) {
      int64_t n = std::min(kBlock, cols - begin), offset = row * cols + begin;
      const float *from = readF32(x, offset, n, buffer);
      int64_t ofAll = first + row;
      dropout.factors(samples[ofAll / positions], given ? given[ofAll] : ofAll % positions, begin,
                      n, factors);
      // A dropped element becomes 0 even if x is not finite.
      for (int64_t i = 0; i < n; ++i)
        to[i] = factors[i] == 0.0f ? 0.0f : from[i] * factors[i];
      writeF32(y, offset, n, to);
    }
}

} // namespace

SHARDC_HOST_KERNEL(Dropout, runDropout, acceptsDropout);

} // namespace shardc::kernels::host
