// router_topk: logits f32[T,E], bias f32[E]? -> ids i32[T,K], weights f32[T,K], as Ops.def says.
// What experts are chosen by is rounded to fp32 first; then the larger one is chosen, NaN before
// all others, and of equal ones that with the smaller index. Sums and scores are fp64.
// router_topk_bwd: dweights f32[T,K], logits, ids -> dlogits f32[T,E]; ids that are no expert are
// left out. Mapping: a warp has a row, and a lane every 32nd expert. The next expert is the first,
// in the order of choice, of those behind the last one, so that nobody keeps a list of those
// chosen. Limited by the latency of fp64 exponentials.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "runtime/base/Router.h"

namespace shardc::kernels::cuda {
namespace {

constexpr int kWarps = 4; ///< rows of a block

__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

/// An index with what it is chosen by; none: an index below 0.
struct Candidate {
  float key;
  int32_t index;

  /// Is chosen before the other. Both are there.
  __device__ bool isBefore(const Candidate &other) const {
    bool isNan = key != key, isOtherNan = other.key != other.key;
    if (isNan || isOtherNan)
      return isNan && (!isOtherNan || index < other.index);
    return key > other.key || (key == other.key && index < other.index);
  }
};

__device__ Candidate firstOf(Candidate a, Candidate b) {
  if (a.index < 0 || b.index < 0)
    return a.index < 0 ? b : a;
  return b.isBefore(a) ? b : a;
}

__device__ Candidate firstOfWarp(Candidate best) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    Candidate other = {__shfl_xor_sync(0xffffffffu, best.key, offset),
                       __shfl_xor_sync(0xffffffffu, best.index, offset)};
    best = firstOf(best, other);
  }
  return best;
}

/// The first of n indices behind `last`, in steps of the warp; of all, if there is no last one.
template <typename KeyOf, typename IsThere>
__device__ Candidate nextOf(Candidate last, int32_t n, KeyOf keyOf, IsThere isThere) {
  Candidate best = {0, -1};
  for (int32_t i = lane(); i < n; i += kWarp) {
    Candidate candidate = {keyOf(i), i};
    if ((last.index < 0 || last.isBefore(candidate)) && isThere(i))
      best = firstOf(best, candidate);
  }
  return firstOfWarp(best);
}

/// The score of a logit by itself: sigmoid or sqrt(softplus).
__device__ double scoreOf(int64_t score, double logit) {
  if (score == kRouterSigmoid)
    return 1 / (1 + exp(-logit));
  return sqrt(fmax(logit, 0.0) + log1p(exp(-fabs(logit))));
}

/// Its derivative, from the score of the logit; 0 where sqrt(softplus) is 0.
__device__ double slopeOf(int64_t score, double logit, double value) {
  if (score == kRouterSigmoid)
    return value * (1 - value);
  return value == 0 ? 0 : 0.5 / ((1 + exp(-logit)) * value);
}

/// The softmax of some logits: exp(logit - largest) / sum.
struct Softmax {
  double largest, sum;

  __device__ double of(float logit) const { return exp(logit - largest) / sum; }
};

__device__ Softmax softmaxOfRow(const float *logits, int32_t n) {
  float largest = logits[0];
  for (int32_t i = lane(); i < n; i += kWarp)
    largest = fmaxf(largest, logits[i]);
  Softmax softmax = {static_cast<double>(warpMax(largest)), 0};
  for (int32_t i = lane(); i < n; i += kWarp)
    softmax.sum += exp(logits[i] - softmax.largest);
  softmax.sum = warpSum(softmax.sum);
  return softmax;
}

/// Of those logits whose ids are experts, by one thread.
__device__ Softmax softmaxOfChosen(const float *logits, const int32_t *ids, int64_t topk,
                                   int32_t experts) {
  Softmax softmax = {-INFINITY, 0};
  bool isFirst = true;
  auto each = [&](auto take) {
    for (int64_t k = 0; k < topk; ++k)
      if (ids[k] >= 0 && ids[k] < experts)
        take(static_cast<double>(logits[ids[k]]));
  };
  each([&](double logit) {
    softmax.largest = isFirst || softmax.largest < logit ? logit : softmax.largest;
    isFirst = false;
  });
  each([&](double logit) { softmax.sum += exp(logit - softmax.largest); });
  return softmax;
}

struct Router {
  const float *logits, *bias;
  int64_t rows, experts, topk;
  int64_t groups, groupTopk, groupSize, summed; ///< 0 without groups
  int64_t score;
  double scale;
  bool isOfAll;
  float *keys, *sums; ///< scratch: of all experts of all rows, and of all groups
  int32_t *ids;
  float *weights;
};

/// Leaves in `sums` what groups are chosen by. Returns the last one that is.
__device__ Candidate chooseGroups(const Router &p, const float *keys, float *sums) {
  auto size = static_cast<int32_t>(p.groupSize);
  for (int32_t group = lane(); group < p.groups; group += kWarp) {
    double total = 0;
    Candidate last = {0, -1};
    for (int64_t i = 0; i < p.summed; ++i) {
      Candidate best = {0, -1};
      for (int32_t e = group * size; e < (group + 1) * size; ++e)
        if (Candidate candidate = {keys[e], e}; last.index < 0 || last.isBefore(candidate))
          best = firstOf(best, candidate);
      last = best;
      total += static_cast<double>(best.key);
    }
    sums[group] = static_cast<float>(total);
  }
  __syncwarp();
  Candidate last = {0, -1};
  for (int64_t i = 0; i < p.groupTopk; ++i)
    last = nextOf(
        last, static_cast<int32_t>(p.groups), [&](int32_t g) { return sums[g]; },
        [](int32_t) { return true; });
  return last;
}

/// By one thread.
__device__ void weigh(const Router &p, const float *logits, const Softmax &ofAll,
                      const int32_t *ids, float *weights) {
  int64_t topk = p.topk;
  if (p.score == kRouterSoftmax) {
    Softmax softmax =
        p.isOfAll ? ofAll : softmaxOfChosen(logits, ids, topk, static_cast<int32_t>(p.experts));
    for (int64_t k = 0; k < topk; ++k)
      weights[k] = static_cast<float>(p.scale * softmax.of(logits[ids[k]]));
    return;
  }
  double divisor = topk > 1 ? kRouterEps : 1;
  for (int64_t k = 0; k < topk && topk > 1; ++k)
    divisor += scoreOf(p.score, logits[ids[k]]);
  for (int64_t k = 0; k < topk; ++k)
    weights[k] = static_cast<float>(p.scale * scoreOf(p.score, logits[ids[k]]) / divisor);
}

__global__ void __launch_bounds__(kWarps *kWarp) chooseExperts(const Router p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= p.rows)
    return;
  auto experts = static_cast<int32_t>(p.experts);
  const float *logits = p.logits + row * experts;
  float *keys = p.keys + row * experts, *sums = p.sums + row * p.groups;
  Softmax ofAll = {};
  if (p.score == kRouterSoftmax && p.isOfAll)
    ofAll = softmaxOfRow(logits, experts);
  for (int32_t e = lane(); e < experts; e += kWarp) {
    float key = p.score != kRouterSoftmax ? static_cast<float>(scoreOf(p.score, logits[e]))
                : p.isOfAll               ? static_cast<float>(ofAll.of(logits[e]))
                                          : logits[e];
    keys[e] = p.bias == nullptr ? key : key + p.bias[e];
  }
  __syncwarp();
  Candidate lastGroup = {0, -1}, last = {0, -1};
  if (p.groups > 0)
    lastGroup = chooseGroups(p, keys, sums);
  int32_t *ids = p.ids + row * p.topk;
  for (int64_t k = 0; k < p.topk; ++k) {
    last = nextOf(
        last, experts, [&](int32_t e) { return keys[e]; },
        [&](int32_t e) {
          if (p.groups == 0)
            return true;
          Candidate group = {sums[e / p.groupSize], static_cast<int32_t>(e / p.groupSize)};
          return group.index == lastGroup.index || group.isBefore(lastGroup);
        });
    if (lane() == 0)
      ids[k] = last.index;
  }
  if (lane() == 0)
    weigh(p, logits, ofAll, ids, p.weights + row * p.topk);
}

struct Buffers {
  float *keys, *sums;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &logits = call.in[0];
    keys = scratch.take<float>(logits.numel());
    sums = scratch.take<float>(logits.rows() * call.attrs.expert_groups);
  }
};

unsigned blocksOf(int64_t rows) { return static_cast<unsigned>(ceilDiv(rows, kWarps)); }

void runRouterTopk(const Call &call) {
  Scratch scratch(call);
  Buffers buffers(call, scratch);
  const Tensor &logits = call.in[0];
  RouterChoice choice = {.experts = logits.cols(),
                         .topk = call.attrs.topk,
                         .groups = call.attrs.expert_groups,
                         .groupTopk = call.attrs.group_topk};
  bool hasGroups = choice.groups > 0;
  Router p = {static_cast<const float *>(logits.data),
              call.inCount > 1 ? static_cast<const float *>(call.in[1].data) : nullptr,
              logits.rows(),
              choice.experts,
              choice.topk,
              choice.groups,
              choice.groupTopk,
              hasGroups ? choice.groupSize() : 0,
              hasGroups ? choice.summed() : 0,
              call.attrs.score,
              call.attrs.scale,
              call.attrs.pre_softmax,
              buffers.keys,
              buffers.sums,
              static_cast<int32_t *>(call.out[0].data),
              static_cast<float *>(call.out[1].data)};
  launchKernel(chooseExperts, blocksOf(p.rows), kWarps * kWarp, 0, queueOf(call), p);
}

struct RouterBwd {
  const float *dweights, *logits;
  const int32_t *ids;
  int64_t rows, topk, score;
  int32_t experts;
  double scale;
  bool isOfAll;
  float *dlogits;

  __device__ bool isExpert(int32_t id) const { return id >= 0 && id < experts; }
  __device__ double grad(const float *dweights_, int64_t k) const {
    return scale * static_cast<double>(dweights_[k]);
  }
};

/// The gradient through a softmax of all logits.
__device__ void gradientOfAll(const RouterBwd &p, const float *dweights, const float *logits,
                              const int32_t *ids, float *dlogits) {
  Softmax softmax = softmaxOfRow(logits, p.experts);
  double mean = 0;
  for (int64_t k = 0; k < p.topk; ++k)
    if (p.isExpert(ids[k]))
      mean += p.grad(dweights, k) * softmax.of(logits[ids[k]]);
  for (int32_t e = lane(); e < p.experts; e += kWarp) {
    double grad = 0;
    for (int64_t k = 0; k < p.topk; ++k)
      grad += ids[k] == e ? p.grad(dweights, k) : 0;
    dlogits[e] = static_cast<float>(softmax.of(logits[e]) * (grad - mean));
  }
}

/// The gradient through scores of those chosen alone, by one thread: weight = score / divisor.
__device__ void gradientOfChosen(const RouterBwd &p, const float *dweights, const float *logits,
                                 const int32_t *ids, float *dlogits) {
  bool isSoftmax = p.score == kRouterSoftmax, isDivided = !isSoftmax && p.topk > 1;
  Softmax softmax = {};
  if (isSoftmax)
    softmax = softmaxOfChosen(logits, ids, p.topk, p.experts);
  auto valueOf = [&](float logit) {
    return isSoftmax ? softmax.of(logit) : scoreOf(p.score, logit);
  };
  double divisor = isDivided ? kRouterEps : 1, mean = 0;
  for (int64_t k = 0; k < p.topk && isDivided; ++k)
    if (p.isExpert(ids[k]))
      divisor += valueOf(logits[ids[k]]);
  for (int64_t k = 0; k < p.topk && (isSoftmax || isDivided); ++k)
    if (p.isExpert(ids[k]))
      mean += p.grad(dweights, k) * valueOf(logits[ids[k]]) / divisor;
  for (int64_t k = 0; k < p.topk; ++k) {
    if (!p.isExpert(ids[k]))
      continue;
    float logit = logits[ids[k]];
    double value = valueOf(logit), slope = isSoftmax ? value : slopeOf(p.score, logit, value);
    dlogits[ids[k]] += static_cast<float>((p.grad(dweights, k) - mean) / divisor * slope);
  }
}

__global__ void __launch_bounds__(kWarps *kWarp) differentiate(const RouterBwd p) {
  awaitPrevious();
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= p.rows)
    return;
  const float *dweights = p.dweights + row * p.topk, *logits = p.logits + row * p.experts;
  const int32_t *ids = p.ids + row * p.topk;
  float *dlogits = p.dlogits + row * p.experts;
  if (p.score == kRouterSoftmax && p.isOfAll)
    return gradientOfAll(p, dweights, logits, ids, dlogits);
  for (int32_t e = lane(); e < p.experts; e += kWarp)
    dlogits[e] = 0;
  __syncwarp();
  if (lane() == 0)
    gradientOfChosen(p, dweights, logits, ids, dlogits);
}

void runRouterTopkBwd(const Call &call) {
  const Tensor &logits = call.in[1];
  RouterBwd p = {static_cast<const float *>(call.in[0].data),
                 static_cast<const float *>(logits.data),
                 static_cast<const int32_t *>(call.in[2].data),
                 logits.rows(),
                 call.attrs.topk,
                 call.attrs.score,
                 static_cast<int32_t>(logits.cols()),
                 call.attrs.scale,
                 call.attrs.pre_softmax,
                 static_cast<float *>(call.out[0].data)};
  launchKernel(differentiate, blocksOf(p.rows), kWarps * kWarp, 0, queueOf(call), p);
}

} // namespace

const Kernel kRouterTopk = {"router_topk_cuda", runRouterTopk, acceptsAs<&host::kRouterTopk>,
                            workspaceOf<Buffers>};
const Kernel kRouterTopkBwd = {"router_topk_bwd_cuda", runRouterTopkBwd,
                               acceptsAs<&host::kRouterTopkBwd>};

} // namespace shardc::kernels::cuda
