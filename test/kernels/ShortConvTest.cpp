// Compares short_conv with a convolution of each document by itself in double, and its gradients
// with differences.
#include "test/kernels/Harness.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

constexpr int64_t kBatch = 2, kPositions = 9, kChannels = 3;

struct Inputs {
  Array x, w, dy, docs;

  Inputs(DType dtype, int64_t taps)
      : x(randoms(dtype, {kBatch, kPositions, 3 * kChannels}, 1)),
        w(randoms(dtype, {kChannels, taps}, 2)),
        dy(randoms(dtype, {kBatch, kPositions, kChannels}, 3)),
        docs(array(DType::I32, {kBatch, kPositions},
                   {0, 0, 0, 3, 4, 4, 4, 4, 8, 0, 1, 1, 1, 1, 1, 1, 7, 7})) {}
};

/// Reads only the positions from `docs` on if there are documents.
std::vector<double> convolve(const std::vector<double> &x, const std::vector<double> &w,
                             const Array *docs) {
  const int64_t taps = std::ssize(w) / kChannels;
  std::vector<double> y;
  for (int64_t row = 0; row < kBatch * kPositions; ++row)
    for (int64_t c = 0; c < kChannels; ++c) {
      auto at = [&](int64_t of, int64_t part) {
        return x[static_cast<size_t>((of * 3 + part) * kChannels + c)];
      };
      const int64_t s = row % kPositions, first = docs ? static_cast<int64_t>((*docs)[row]) : 0;
      double sum = 0;
      for (int64_t j = 0; j < taps && s - j >= first; ++j)
        sum += w[static_cast<size_t>(c * taps + taps - 1 - j)] * at(row - j, 0) * at(row - j, 2);
      y.push_back(at(row, 1) * sum);
    }
  return y;
}

Tolerance toleranceOf(DType dtype) {
  return {dtype == DType::BF16 ? 2e-2 : dtype == DType::F16 ? 2.5e-3 : 2e-6, 8};
}

TEST(ShortConv, ConvolvesEachDocumentByItself) {
  for (DType dtype : kDataTypes)
    for (int64_t taps : {1, 3, 4, 12})
      for (bool isReset : {false, true}) {
        Inputs in(dtype, taps);
        KernelRun run("short_conv");
        run.attrs.reset_mask = isReset;
        run.in(in.x).in(in.w).in(in.docs).out(dtype, in.dy.shape);
        expectClose(run.run()[0], convolve(in.x.values, in.w.values, isReset ? &in.docs : nullptr),
                    toleranceOf(dtype), "y");
      }
}

TEST(ShortConv, GradientsAreDifferences) {
  using Values = std::vector<double>;
  for (DType dtype : kDataTypes)
    for (int64_t taps : {1, 3, 12})
      for (bool isReset : {false, true}) {
        Inputs in(dtype, taps);
        const Array *docs = isReset ? &in.docs : nullptr;
        KernelRun run("short_conv_bwd");
        run.attrs.reset_mask = isReset;
        run.in(in.dy).in(in.x).in(in.w).in(in.docs);
        std::vector<Array> d = run.out(dtype, in.x.shape).out(DType::F32, in.w.shape).run();
        expectGradient(
            d[0], in.x.values,
            [&](const Values &x) { return inner(in.dy.values, convolve(x, in.w.values, docs)); },
            toleranceOf(dtype), "dx");
        expectGradient(
            d[1], in.w.values,
            [&](const Values &w) { return inner(in.dy.values, convolve(in.x.values, w, docs)); },
            toleranceOf(dtype), "dw");
      }
}

} // namespace
} // namespace shardc::kernels::test
