// Routers: which experts a row goes to, and with which weights. router_topk: logits f32[T,E], bias
// f32[E]? -> ids i32[T,K], weights f32[T,K], as Ops.def defines. The criterion is rounded to fp32
// before the choice. Larger criteria are chosen first, NaN before all others, and of equal ones the
// expert with the smaller index. Sums are fp64. router_topk_bwd: dweights f32[T,K], logits, ids ->
// dlogits f32[T,E]; ids that are not experts are skipped. router_sinkhorn: logits -> ids, weights;
// it processes rows in order, so that its factors do not depend on the number of threads. It
// subtracts the maximum of a row from the row's logits, which changes only the row's factor.
// Limited by memory, router_sinkhorn by exponentials.
#include "kernels/host/Router.h"

#include "kernels/host/Check.h"
#include "kernels/host/Rows.h"

namespace shardc::kernels::host {
namespace {

/// Moves the first `count` of n indices, in the order of choice, to the front.
void chooseFirst(const float *values, int32_t *indices, int64_t count, int64_t n) {
  std::partial_sort(indices, indices + count, indices + n,
                    [values](int32_t a, int32_t b) { return isBefore(values, a, b); });
}

RouterChoice choiceOf(const Call &call, const Tensor &logits) {
  return {.experts = logits.cols(),
          .topk = call.attrs.topk,
          .groups = call.attrs.expert_groups,
          .groupTopk = call.attrs.group_topk};
}

const char *checkRouter(const Call &call, const Tensor &logits) {
  SHARDC_REQUIRE(choiceOf(call, logits).missing() == nullptr,
                 "topk, expert_groups and group_topk do not fit the number of experts");
  SHARDC_REQUIRE(call.attrs.score >= kRouterSoftmax && call.attrs.score <= kRouterSqrtSoftplus,
                 "the score is none of the three");
  return nullptr;
}

// ---- router_topk ----

struct TopkBuffers {
  double *scores;        ///< scores of a row's experts
  float *keys, *sums;    ///< criteria of experts, and of groups
  int32_t *order, *best; ///< indices of experts, and of groups

  TopkBuffers(const Call &call, Scratch &scratch) {
    int64_t experts = call.in[0].cols();
    scores = scratch.take<double>(experts);
    keys = scratch.take<float>(experts);
    sums = scratch.take<float>(experts);
    order = scratch.take<int32_t>(experts);
    best = scratch.take<int32_t>(experts);
  }
};

const char *acceptsRouterTopk(const Call &call) {
  SHARDC_REQUIRE_OK(checkRouter(call, call.in[0]));
  SHARDC_REQUIRE(call.inCount < 2 || call.attrs.score != kRouterSoftmax, "softmax has no bias");
  return nullptr;
}

class TopkRow {
public:
  TopkRow(const Call &call, Scratch &scratch)
      : choice_(choiceOf(call, call.in[0])), score_(call.attrs.score),
        isOfAll_(call.attrs.pre_softmax), scale_(call.attrs.scale),
        bias_(call.inCount > 1 ? static_cast<const float *>(call.in[1].data) : nullptr),
        buffers_(call, scratch) {}

  /// `added` has a number for each expert that is added to its logit before the choice. Null:
  /// choose by scores.
  void run(const float *logits, const double *added, int32_t *ids, float *weights) {
    setScores(logits, added);
    int64_t candidates = choice_.groups > 0 ? listGroups() : listAll();
    chooseFirst(buffers_.keys, buffers_.order, choice_.topk, candidates);
    std::copy_n(buffers_.order, choice_.topk, ids);
    weigh(logits, ids, weights);
  }

private:
  void setScores(const float *logits, const double *added) {
    int64_t experts = choice_.experts;
    if (score_ == kRouterSoftmax && isOfAll_)
      softmax(logits, experts, buffers_.scores);
    for (int64_t e = 0; e < experts; ++e) {
      if (score_ != kRouterSoftmax)
        buffers_.scores[e] = routerScore(score_, logits[e]);
      if (added != nullptr) {
        buffers_.keys[e] = static_cast<float>(logits[e] + added[e]);
        continue;
      }
      bool isLogit = score_ == kRouterSoftmax && !isOfAll_;
      float key = isLogit ? logits[e] : static_cast<float>(buffers_.scores[e]);
      buffers_.keys[e] = bias_ == nullptr ? key : key + bias_[e];
    }
  }

  int64_t listAll() {
    for (int64_t e = 0; e < choice_.experts; ++e)
      buffers_.order[e] = static_cast<int32_t>(e);
    return choice_.experts;
  }

  /// Lists the experts of the best groups in buffers_.order. Returns their number.
  int64_t listGroups() {
    int64_t size = choice_.groupSize();
    for (int64_t group = 0; group < choice_.groups; ++group) {
      int32_t *members = buffers_.order;
      for (int64_t i = 0; i < size; ++i)
        members[i] = static_cast<int32_t>(group * size + i);
      chooseFirst(buffers_.keys, members, choice_.summed(), size);
      double total = 0;
      for (int64_t i = 0; i < choice_.summed(); ++i)
        total += buffers_.keys[members[i]];
      buffers_.sums[group] = static_cast<float>(total);
      buffers_.best[group] = static_cast<int32_t>(group);
    }
    chooseFirst(buffers_.sums, buffers_.best, choice_.groupTopk, choice_.groups);
    int64_t count = 0;
    for (int64_t i = 0; i < choice_.groupTopk; ++i)
      for (int64_t e = buffers_.best[i] * size; e < (buffers_.best[i] + 1) * size; ++e)
        buffers_.order[count++] = static_cast<int32_t>(e);
    return count;
  }

  void weigh(const float *logits, const int32_t *ids, float *weights) {
    int64_t topk = choice_.topk;
    double divisor = 1;
    if (score_ == kRouterSoftmax && !isOfAll_) {
      for (int64_t k = 0; k < topk; ++k)
        weights[k] = logits[ids[k]];
      softmax(weights, topk, buffers_.scores);
      for (int64_t k = 0; k < topk; ++k)
        weights[k] = static_cast<float>(scale_ * buffers_.scores[k]);
      return;
    }
    if (score_ != kRouterSoftmax && topk > 1) {
      divisor = kRouterEps;
      for (int64_t k = 0; k < topk; ++k)
        divisor += buffers_.scores[ids[k]];
    }
    for (int64_t k = 0; k < topk; ++k)
      weights[k] = static_cast<float>(scale_ * buffers_.scores[ids[k]] / divisor);
  }

  RouterChoice choice_;
  int64_t score_;
  bool isOfAll_;
  double scale_;
  const float *bias_;
  TopkBuffers buffers_;
};

void chooseRows(const Call &call, TopkRow &row, const double *added) {
  int64_t experts = call.in[0].cols(), topk = call.attrs.topk;
  for (int64_t t = 0, rows = call.in[0].rows(); t < rows; ++t)
    row.run(static_cast<const float *>(call.in[0].data) + t * experts, added,
            static_cast<int32_t *>(call.out[0].data) + t * topk,
            static_cast<float *>(call.out[1].data) + t * topk);
}

void runRouterTopk(const Call &call, TopkRow &row) { chooseRows(call, row, nullptr); }

// ---- router_sinkhorn ----

const char *acceptsRouterSinkhorn(const Call &call) {
  SHARDC_REQUIRE_OK(checkRouter(call, call.in[0]));
  SHARDC_REQUIRE(call.attrs.expert_groups == 0, "experts are in groups");
  return nullptr;
}

class Sinkhorn {
public:
  Sinkhorn(const Call &call, Scratch &scratch)
      : logits_(static_cast<const float *>(call.in[0].data)), rows_(call.in[0].rows()),
        experts_(call.in[0].cols()) {
    numbers_ = scratch.take<double>(rows_ * experts_);
    added_ = scratch.take<double>(rows_);
    factors_ = scratch.take<double>(experts_);
    sums_ = scratch.take<double>(experts_);
  }

  /// Returns the logarithm of each expert's factor; 0 if factors are not finite.
  const double *run() {
    takeExponentials();
    std::fill_n(factors_, experts_, 1.0);
    double change = kSinkhornTolerance + 1;
    for (int step = 0; step < kSinkhornStepsMax && change > kSinkhornTolerance; ++step)
      change = advance();
    for (int64_t e = 0; e < experts_; ++e)
      factors_[e] = std::isfinite(change) ? std::log(factors_[e]) : 0;
    return factors_;
  }

private:
  void takeExponentials() {
    for (int64_t t = 0; t < rows_; ++t) {
      const float *row = logits_ + t * experts_;
      double largest = *std::max_element(row, row + experts_);
      for (int64_t e = 0; e < experts_; ++e)
        numbers_[t * experts_ + e] = std::exp(row[e] - largest);
      added_[t] = kSinkhornEps * std::exp(-largest);
    }
  }

  /// Executes one step. Returns the mean change of the experts' factors.
  double advance() {
    auto rows = static_cast<double>(rows_), experts = static_cast<double>(experts_);
    std::fill_n(sums_, experts_, 0.0);
    for (int64_t t = 0; t < rows_; ++t) {
      const double *row = numbers_ + t * experts_;
      double sum = 0;
      for (int64_t e = 0; e < experts_; ++e)
        sum += factors_[e] * row[e];
      double factor = 1 / rows / (sum + added_[t]);
      for (int64_t e = 0; e < experts_; ++e)
        sums_[e] += factor * row[e];
    }
    double change = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      double factor = 1 / experts / (sums_[e] + kSinkhornEps);
      change += std::abs(factor - factors_[e]);
      factors_[e] = factor;
    }
    return change / experts;
  }

  const float *logits_;
  int64_t rows_, experts_;
  double *numbers_, *added_; ///< exponentials; terms added to the sums of rows
  double *factors_, *sums_;  ///< factors and sums of experts
};

struct SinkhornBuffers {
  Sinkhorn sinkhorn;
  TopkRow row;

  SinkhornBuffers(const Call &call, Scratch &scratch)
      : sinkhorn(call, scratch), row(call, scratch) {}
};

void runRouterSinkhorn(const Call &call, SinkhornBuffers &buffers) {
  chooseRows(call, buffers.row, buffers.sinkhorn.run());
}

// ---- router_topk_bwd ----

struct BwdBuffers {
  double *scores; ///< scores of the chosen experts, or of all
  double *grads;  ///< gradients of these scores
  float *logits;  ///< of the chosen experts
  int32_t *ids;   ///< valid ids of chosen experts

  BwdBuffers(const Call &call, Scratch &scratch) {
    int64_t experts = call.in[1].cols();
    scores = scratch.take<double>(experts);
    grads = scratch.take<double>(experts);
    logits = scratch.take<float>(experts);
    ids = scratch.take<int32_t>(experts);
  }
};

const char *acceptsRouterTopkBwd(const Call &call) { return checkRouter(call, call.in[1]); }

class TopkBwdRow {
public:
  TopkBwdRow(const Call &call, Scratch &scratch)
      : experts_(call.in[1].cols()), topk_(call.attrs.topk), score_(call.attrs.score),
        isOfAll_(call.attrs.pre_softmax), scale_(call.attrs.scale), buffers_(call, scratch) {}

  void run(const float *dweights, const float *logits, const int32_t *ids, float *dlogits) {
    std::fill_n(dlogits, experts_, 0.0f);
    if (score_ == kRouterSoftmax && isOfAll_)
      return ofAll(dweights, logits, ids, dlogits);
    int64_t count = 0;
    for (int64_t k = 0; k < topk_; ++k)
      if (isExpert(ids[k])) {
        buffers_.ids[count] = ids[k];
        buffers_.logits[count] = logits[ids[k]];
        buffers_.grads[count++] = scale_ * static_cast<double>(dweights[k]);
      }
    if (count == 0)
      return;
    if (score_ == kRouterSoftmax)
      softmaxBwd(buffers_.logits, count);
    else
      scoresBwd(count);
    for (int64_t k = 0; k < count; ++k)
      dlogits[buffers_.ids[k]] += static_cast<float>(buffers_.grads[k]);
  }

private:
  bool isExpert(int32_t id) const { return id >= 0 && id < experts_; }

  /// Replaces the gradients of a softmax of n logits by the gradients of the logits.
  void softmaxBwd(const float *logits, int64_t n) {
    softmax(logits, n, buffers_.scores);
    double mean = 0;
    for (int64_t i = 0; i < n; ++i)
      mean += buffers_.grads[i] * buffers_.scores[i];
    for (int64_t i = 0; i < n; ++i)
      buffers_.grads[i] = buffers_.scores[i] * (buffers_.grads[i] - mean);
  }

  void ofAll(const float *dweights, const float *logits, const int32_t *ids, float *dlogits) {
    std::fill_n(buffers_.grads, experts_, 0.0);
    for (int64_t k = 0; k < topk_; ++k)
      if (isExpert(ids[k]))
        buffers_.grads[ids[k]] += scale_ * static_cast<double>(dweights[k]);
    softmaxBwd(logits, experts_);
    for (int64_t e = 0; e < experts_; ++e)
      dlogits[e] = static_cast<float>(buffers_.grads[e]);
  }

  /// Gradients of weight = score / divisor, where the divisor is the sum of the scores.
  void scoresBwd(int64_t count) {
    double divisor = topk_ > 1 ? kRouterEps : 1, mean = 0;
    for (int64_t k = 0; k < count; ++k) {
      buffers_.scores[k] = routerScore(score_, buffers_.logits[k]);
      divisor += topk_ > 1 ? buffers_.scores[k] : 0;
    }
    for (int64_t k = 0; k < count && topk_ > 1; ++k)
      mean += buffers_.grads[k] * buffers_.scores[k] / divisor;
    for (int64_t k = 0; k < count; ++k)
      buffers_.grads[k] = (buffers_.grads[k] - mean) / divisor *
                          routerSlope(score_, buffers_.logits[k], buffers_.scores[k]);
  }

  int64_t experts_, topk_, score_;
  bool isOfAll_;
  double scale_;
  BwdBuffers buffers_;
};

void runRouterTopkBwd(const Call &call, TopkBwdRow &row) {
  int64_t experts = call.in[1].cols(), topk = call.attrs.topk;
  for (int64_t t = 0, rows = call.in[1].rows(); t < rows; ++t)
    row.run(static_cast<const float *>(call.in[0].data) + t * topk,
            static_cast<const float *>(call.in[1].data) + t * experts,
            static_cast<const int32_t *>(call.in[2].data) + t * topk,
            static_cast<float *>(call.out[0].data) + t * experts);
}

} // namespace

SHARDC_HOST_KERNEL(RouterTopk, withBuffers<runRouterTopk>, acceptsRouterTopk);
SHARDC_HOST_KERNEL(RouterSinkhorn, withBuffers<runRouterSinkhorn>, acceptsRouterSinkhorn);
SHARDC_HOST_KERNEL(RouterTopkBwd, withBuffers<runRouterTopkBwd>, acceptsRouterTopkBwd);

} // namespace shardc::kernels::host
