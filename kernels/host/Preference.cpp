// preference_loss: token losses f32[T], mask f32[B,S], docs i32[B,S], reference f32[B,S]? -> pairs
// f32[B], weights f32[T], n f32[1], metrics f32[B,8]. A document ends where the next number in docs
// differs. Sums are fp64, rounded once. Limited by memory.
#include "kernels/api/PairLoss.h"
#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"

#include <algorithm>

namespace shardc::kernels::host {
namespace {

const char *acceptsPreferenceLoss(const Call &call) {
  SHARDC_REQUIRE(call.attrs.preference >= kSigmoid && call.attrs.preference <= kHinge,
                 "preference is none of its losses");
  SHARDC_REQUIRE(call.attrs.beta > 0, "beta is not above 0");
  SHARDC_REQUIRE(call.attrs.label_smoothing >= 0 && call.attrs.label_smoothing < 0.5,
                 "label_smoothing is not from 0 to less than 0.5");
  return nullptr;
}

/// A sequence's arrays.
struct Sequence {
  const float *losses, *mask, *reference; ///< reference: null if the loss has none
  const int32_t *docs;
  float *weights;
  int64_t size;

  int64_t endOf(int64_t begin) const {
    return std::find_if(docs + begin, docs + size,
                        [&](int32_t doc) { return doc != docs[begin]; }) -
           docs;
  }
  Answer answer(int64_t begin, int64_t end) const {
    Answer sum;
    for (int64_t t = begin; t < end; ++t) {
      bool counts = mask[t] != 0.0f;
      sum.loss += counts ? static_cast<double>(losses[t]) : 0;
      sum.tokens += counts ? 1 : 0;
      sum.lossOfAll += static_cast<double>(losses[t]);
      sum.tokensOfAll += 1;
      sum.reference += reference == nullptr ? 0 : static_cast<double>(reference[t]);
    }
    return sum;
  }
  void weigh(int64_t begin, int64_t end, double counted, double all) const {
    for (int64_t t = begin; t < end; ++t)
      weights[t] = static_cast<float>(all + (mask[t] != 0.0f ? counted : 0));
  }
};

/// Adds the metrics of all pairs, and returns the sum of their losses.
double addPairs(const Sequence &s, const PairSettings &settings, double *metrics) {
  double loss = 0;
  for (int64_t begin = 0; begin < s.size;) {
    int64_t middle = s.endOf(begin), end = middle < s.size ? s.endOf(middle) : middle;
    Answer chosen = s.answer(begin, middle), rejected = s.answer(middle, end);
    PairLoss pair;
    if (chosen.tokens > 0 && rejected.tokens > 0)
      pair = pairLossOf(settings, chosen, rejected);
    s.weigh(begin, middle, pair.chosen, pair.all);
    s.weigh(middle, end, pair.rejected, 0);
    loss += pair.loss;
    for (int i = 0; i < kPairMetrics; ++i)
      metrics[i] += pair.metrics[i];
    begin = end;
  }
  return loss;
}

void runPreferenceLoss(const Call &call) {
  const Tensor &mask = call.in[1];
  auto at = [&](const Tensor &tensor, int64_t row) {
    return static_cast<float *>(tensor.data) + row * mask.shape[1];
  };
  float *pairs = static_cast<float *>(call.out[0].data);
  float *metrics = static_cast<float *>(call.out[3].data);
  double count = 0;
  for (int64_t row = 0; row < mask.shape[0]; ++row) {
    Sequence sequence = {at(call.in[0], row),
                         at(mask, row),
                         call.inCount > 3 ? at(call.in[3], row) : nullptr,
                         static_cast<const int32_t *>(call.in[2].data) + row * mask.shape[1],
                         at(call.out[1], row),
                         mask.shape[1]};
    double sums[kPairMetrics] = {};
    pairs[row] = static_cast<float>(addPairs(sequence, pairSettingsOf(call), sums));
    std::transform(sums, sums + kPairMetrics, metrics + row * kPairMetrics,
                   [](double sum) { return static_cast<float>(sum); });
    count += sums[kPairs];
  }
  *static_cast<float *>(call.out[2].data) = static_cast<float>(count);
}

} // namespace

SHARDC_HOST_KERNEL(PreferenceLoss, runPreferenceLoss, acceptsPreferenceLoss);

} // namespace shardc::kernels::host
