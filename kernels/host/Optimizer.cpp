// Optimizers on a shard, range by range of the parameter table. Padding between ranges does not
// change. g = gradient·gradScale; lr = state.lr·lrMult, or state.decoupledLr·lrMult for parameters
// with their own rate; wd = (weight_decay + state.weightDecay)·wdMult; t = state.applied +
// countOffset, the number of updates in the moments, this one included:
//   adamw         m = b1·m + (1-b1)·g, v = b2·v + (1-b2)·g²,
//                 w -= lr·(m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd·w)
//   sgd           w -= lr·(g + wd·w)
//   sgd_momentum  m = momentum·m + g, w -= lr·(m + wd·w)
//   lion          w -= lr·(sign(b1·m + (1-b1)·g) + wd·w), m = b2·m + (1-b2)·g
// Unless weight decay is decoupled, it is part of the gradient: g + wd·w replaces g. The weight, if
// the call has it as a result, is w in its own type. If state.skip, only the weight is written.
// Gradient, weight, m and v are f32, bf16 or f16, w is f32; arithmetic is fp32, and moments are
// rounded to nearest when they are written. adamw also supports w in two halves, a bf16 weight and
// a remainder in u16 (runtime/base/Remainder.h); then it writes nothing if state.skip. Limited by
// memory.
#include "kernels/host/Optimizer.h"
#include "kernels/host/Check.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Ranges.h"
#include "kernels/host/Rows.h"
#include "runtime/base/Remainder.h"
#include "runtime/base/StepState.h"

#include <algorithm>
#include <cmath>

namespace shardc::kernels::host {
namespace {

/// The fp32 constants of an update.
struct Step {
  float gradScale, lr;
  float decayInGradient, decayOfWeight;
  float beta1, oneMinusBeta1, beta2, oneMinusBeta2, eps;
  float correction1, correction2; ///< 1 - beta^t
  float momentum;
};

Step makeStep(const Attrs &attrs, const StepState &state) {
  Step step = {};
  step.gradScale = state.gradScale;
  step.beta1 = static_cast<float>(attrs.beta1);
  step.beta2 = static_cast<float>(attrs.beta2);
  step.oneMinusBeta1 = static_cast<float>(1.0 - attrs.beta1);
  step.oneMinusBeta2 = static_cast<float>(1.0 - attrs.beta2);
  step.eps = static_cast<float>(attrs.eps);
  step.momentum = static_cast<float>(attrs.momentum);
  return step;
}

/// Sets the constants that depend on the parameter.
Step withRange(Step step, const Attrs &attrs, const StepState &state, const ParamRange &range) {
  double t = static_cast<double>(state.applied + range.countOffset);
  step.correction1 = static_cast<float>(1.0 - std::pow(attrs.beta1, t));
  step.correction2 = static_cast<float>(1.0 - std::pow(attrs.beta2, t));
  float decay = (static_cast<float>(attrs.weight_decay) + state.weightDecay) * range.wdMult;
  step.lr = (range.isDecoupled ? state.decoupledLr : state.lr) * range.lrMult;
  step.decayInGradient = attrs.decoupled ? 0.0f : decay;
  step.decayOfWeight = attrs.decoupled ? decay : 0.0f;
  return step;
}

/// Updates n elements: the weights, and the moments that the optimizer has.
using UpdateBlock = void (*)(const Step &step, const float *grad, int64_t n, float *w, float *m,
                             float *v);

SHARDC_CLONES void adamBlock(const Step &step, const float *grad, int64_t n, float *w, float *m,
                             float *v) {
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * step.gradScale + step.decayInGradient * w[i];
    m[i] = step.beta1 * m[i] + step.oneMinusBeta1 * g;
    v[i] = step.beta2 * v[i] + step.oneMinusBeta2 * g * g;
    float update = m[i] / step.correction1 / (std::sqrt(v[i] / step.correction2) + step.eps);
    w[i] -= step.lr * (update + step.decayOfWeight * w[i]);
  }
}

SHARDC_CLONES void sgdBlock(const Step &step, const float *grad, int64_t n, float *w, float *,
                            float *) {
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * step.gradScale + step.decayInGradient * w[i];
    w[i] -= step.lr * (g + step.decayOfWeight * w[i]);
  }
}

SHARDC_CLONES void momentumBlock(const Step &step, const float *grad, int64_t n, float *w, float *m,
                                 float *) {
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * step.gradScale + step.decayInGradient * w[i];
    m[i] = step.momentum * m[i] + g;
    w[i] -= step.lr * (m[i] + step.decayOfWeight * w[i]);
  }
}

SHARDC_CLONES void lionBlock(const Step &step, const float *grad, int64_t n, float *w, float *m,
                             float *) {
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * step.gradScale + step.decayInGradient * w[i];
    float mixed = step.beta1 * m[i] + step.oneMinusBeta1 * g;
    float sign = static_cast<float>(mixed > 0) - static_cast<float>(mixed < 0);
    w[i] -= step.lr * (sign + step.decayOfWeight * w[i]);
    m[i] = step.beta2 * m[i] + step.oneMinusBeta2 * g;
  }
}

/// Whether the masters of an optimizer with `moments` moments are remainders, and the operand after
/// the state has the weights.
bool takesHalves(const Call &call, int moments) { return call.inCount > 3 + moments; }

const char *checkHalves(const Call &call, int moments) {
  SHARDC_REQUIRE(call.outCount > 1 + moments, "the weight, an operand, is not a result");
  SHARDC_REQUIRE(call.in[1].dtype == DType::U16, "remainders are not u16");
  return nullptr;
}

/// Master weights of a block of elements as fp32 numbers: read in place, or joined from their
/// halves in a buffer.
class Masters {
public:
  Masters(const Call &call, int moments)
      : masters_(call.out[0]),
        halves_(takesHalves(call, moments) ? static_cast<BF16 *>(call.out[1 + moments].data)
                                           : nullptr) {}

  bool hasHalves() const { return halves_ != nullptr; }
  float *read(int64_t begin, int64_t n) {
    if (!hasHalves())
      return static_cast<float *>(masters_.data) + begin;
    for (int64_t i = 0; i < n; ++i)
      buffer_[i] = joinMaster(halves_[begin + i], remainders()[begin + i]);
    return buffer_;
  }
  void write(int64_t begin, int64_t n) {
    for (int64_t i = 0; hasHalves() && i < n; ++i) {
      MasterHalves halves = splitMaster(buffer_[i]);
      halves_[begin + i] = halves.weight;
      remainders()[begin + i] = halves.remainder;
    }
  }

private:
  uint16_t *remainders() const { return static_cast<uint16_t *>(masters_.data); }

  const Tensor &masters_;
  BF16 *halves_;
  float buffer_[kBlock];
};

/// Updates all ranges block by block unless the step is skipped, then writes the weight.
template <int kMoments> void updateShard(const Call &call, UpdateBlock update) {
  const StepState &state = *static_cast<const StepState *>(call.in[2 + kMoments].data);
  Masters masters(call, kMoments);
  const Tensor *weight =
      call.outCount > 1 + kMoments && !masters.hasHalves() ? &call.out[1 + kMoments] : nullptr;
  Step step = makeStep(call.attrs, state);
  float gradient[kBlock], buffers[2][kBlock];
  for (const ParamRange &range : rangesOfShard(call, 0)) {
    Step ofRange = withRange(step, call.attrs, state, range);
    for (int64_t begin = range.begin; begin < range.end; begin += kBlock) {
      int64_t n = std::min(kBlock, range.end - begin);
      if (!state.skip) {
        float *moments[2] = {};
        for (int i = 0; i < kMoments; ++i) {
          moments[i] = targetF32(call.out[1 + i], begin, buffers[i]);
          readF32(call.out[1 + i], begin, n, buffers[i]);
        }
        update(ofRange, readF32(call.in[0], begin, n, gradient), n, masters.read(begin, n),
               moments[0], moments[1]);
        masters.write(begin, n);
        for (int i = 0; i < kMoments; ++i)
          writeF32(call.out[1 + i], begin, n, moments[i]);
      }
      if (weight)
        writeF32(*weight, begin, n, static_cast<const float *>(call.out[0].data) + begin);
    }
  }
}

const char *checkBetas(const Call &call, int moments) {
  SHARDC_REQUIRE_OK(checkOptimizer(call, moments));
  const Attrs &attrs = call.attrs;
  SHARDC_REQUIRE(attrs.beta1 >= 0 && attrs.beta1 < 1 && attrs.beta2 >= 0 && attrs.beta2 < 1,
                 "beta1 or beta2 is not in [0, 1)");
  return nullptr;
}

const char *acceptsAdamW(const Call &call) {
  SHARDC_REQUIRE_OK(checkBetas(call, 2));
  SHARDC_REQUIRE(call.attrs.eps >= 0, "eps is negative");
  return nullptr;
}
const char *acceptsSgd(const Call &call) { return checkOptimizer(call, 0); }
const char *acceptsSgdMomentum(const Call &call) { return checkOptimizer(call, 1); }
const char *acceptsLion(const Call &call) { return checkBetas(call, 1); }

void runAdamW(const Call &call) { updateShard<2>(call, adamBlock); }
void runSgd(const Call &call) { updateShard<0>(call, sgdBlock); }
void runSgdMomentum(const Call &call) { updateShard<1>(call, momentumBlock); }
void runLion(const Call &call) { updateShard<1>(call, lionBlock); }

} // namespace

const char *checkOptimizer(const Call &call, int moments) {
  if (takesHalves(call, moments))
    SHARDC_REQUIRE_OK(checkHalves(call, moments));
  else
    SHARDC_REQUIRE(call.in[1].dtype == DType::F32, "master weights are not f32");
  return checkRanges(call, 0, call.in[0]);
}

SHARDC_HOST_KERNEL(AdamW, runAdamW, acceptsAdamW);
SHARDC_HOST_KERNEL(Sgd, runSgd, acceptsSgd);
SHARDC_HOST_KERNEL(SgdMomentum, runSgdMomentum, acceptsSgdMomentum);
SHARDC_HOST_KERNEL(Lion, runLion, acceptsLion);

} // namespace shardc::kernels::host
