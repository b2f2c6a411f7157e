// dropout: y = x·factor for x with B·S rows. The factor is 0 with probability p and 1/(1-p)
// otherwise; with jitter, it is a uniform random number around 1. Host and device draw the same
// masks, because the counters are those of kernels/host/Dropout.h. Data are f32, bf16 or f16 each.
// Mapping: a thread draws two Philox blocks for a chunk of 8 channels, with one block column per
// row. Limited by memory, closely followed by the ten Philox rounds per four elements: 2.4 of a
// copy's 4.24 TB/s on an H200, 2026-11.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/dropout.cuh"

namespace shardc::kernels::cuda {
namespace {

struct DropoutOp {
  Data x, y;
  const int64_t *samples;
  const int32_t *given; ///< positions of rows, or null
  int64_t first;        ///< index of the first row here among all ranks' rows
  int64_t positions, cols;
  DropoutMask mask;
  host::Jitter jitter;

  /// A dropped element becomes 0 even if x is not finite. The sum for jitter is not contracted to
  /// an FMA, as on the host.
  __device__ float apply(float v, uint32_t bits) const {
    if (jitter.width > 0)
      return v * __fadd_rn(jitter.least,
                           __fmul_rn(jitter.width, static_cast<float>(bits >> 8) * 0x1p-24f));
    return bits < mask.threshold ? 0.0f : v * mask.scale;
  }

  template <Mode M> __device__ void run(int64_t row, int64_t c, int n) const {
    float v[kChunk];
    load8<M>(x, row * cols + c, n, v);
    auto position = static_cast<uint32_t>(given ? given[first + row] : (first + row) % positions);
    int64_t sample = samples[(first + row) / positions];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 bits = mask.bits(sample, position, static_cast<uint32_t>(c / 4) + half);
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        v[4 * half + j] = apply(v[4 * half + j], words[j]);
    }
    store8<M>(y, row * cols + c, n, v);
  }
};

void runDropout(const Call &call) {
  const Tensor &x = call.in[0], &samples = call.in[1], &y = call.out[0];
  DropoutOp op = {dataOf(x),
                  dataOf(y),
                  static_cast<const int64_t *>(samples.data),
                  call.inCount > 2 ? static_cast<const int32_t *>(call.in[2].data) : nullptr,
                  call.index * x.rows(),
                  x.rows() * call.groupSize / samples.shape[0],
                  x.cols(),
                  dropoutMask(call.attrs),
                  host::Jitter(call.attrs.jitter)};
  launchRows(call, modeOf({&x, &y}, x.cols()), op, x.rows(), x.cols());
}

} // namespace

SHARDC_KERNEL(Dropout, acceptsAs, runDropout);

} // namespace shardc::kernels::cuda
