// router_topk: logits f32[T,E], bias f32[E]? -> ids i32[T,K], weights f32[T,K], as Ops.def defines.
// The criterion is rounded to fp32 before the choice. Larger criteria are chosen first, NaN before
// all others, and of equal ones the expert with the smaller index. Sums and scores are fp64.
// router_topk_bwd: dweights f32[T,K], logits, ids -> dlogits f32[T,E]; ids that are not experts are
// skipped. Mapping: a warp processes a row, and a lane every 32nd expert. Each choice is the first
// expert, in the order of choice, after the previous one, so that no list of chosen experts is
// needed. Limited by the latency of fp64 exponentials.
//
// router_sinkhorn: logits -> ids, weights. One kernel computes what is added to the logits; then
// experts are chosen as above. Mapping: the rows are divided equally among the blocks of one
// cluster, or one block has all rows on GPUs without clusters. Each step reads the exponentials
// twice: warps add up rows, then lanes add up columns. Blocks exchange their sums through global
// memory, in two alternating buffers, so that one barrier per step suffices. Every block computes
// the same factors and detects convergence in the same step. All sums have a fixed order. Limited
// by the memory bandwidth of a few multiprocessors, and by the number of steps, which the logits
// determine.
#include "kernels/cuda/Accepts.h"
#include "kernels/cuda/Rows.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/router.cuh"

namespace shardc::kernels::cuda {
namespace {

/// An index and its criterion. A negative index means: no candidate.
struct Candidate {
  uint32_t key;
  int32_t index;

  /// Whether this candidate is chosen before the other one. Both must be valid.
  __device__ bool isBefore(const Candidate &other) const {
    return key > other.key || (key == other.key && index < other.index);
  }
};

/// Returns the first candidate of the warp in the order of choice.
__device__ Candidate firstOfWarp(Candidate best) {
  uint32_t key = best.index < 0 ? 0u : best.key; // 0 is the key of no number
  Candidate first = {__reduce_max_sync(0xffffffffu, key), -1};
  uint32_t index =
      best.index >= 0 && key == first.key ? static_cast<uint32_t>(best.index) : 0x7fffffffu;
  index = __reduce_min_sync(0xffffffffu, index);
  first.index = index == 0x7fffffffu ? -1 : static_cast<int32_t>(index);
  return first;
}

/// Returns the first of n candidates after `last` in the order of choice; the first of all if
/// `last` is empty.
template <typename IsThere>
__device__ Candidate nextOf(Candidate last, int32_t n, const uint32_t *keys, IsThere isThere) {
  Candidate best = {0, -1};
  for (int32_t i = lane(); i < n; i += kWarp) {
    Candidate candidate = {keys[i], i};
    if ((last.index < 0 || last.isBefore(candidate)) &&
        (best.index < 0 || candidate.isBefore(best)) && isThere(i))
      best = candidate;
  }
  return firstOfWarp(best);
}

/// The softmax over the logits of the chosen experts; ids that are not experts are skipped.
__device__ Softmax softmaxOfChosen(const float *logits, const int32_t *ids, int64_t topk,
                                   int32_t experts) {
  auto isExpert = [&](int64_t k) { return ids[k] >= 0 && ids[k] < experts; };
  float largest = -INFINITY;
  for (int64_t k = lane(); k < topk; k += kWarp)
    if (isExpert(k))
      largest = fmaxf(largest, logits[ids[k]]);
  Softmax softmax = {static_cast<double>(warpMax(largest)), 0};
  for (int64_t k = lane(); k < topk; k += kWarp)
    if (isExpert(k))
      softmax.sum += exp(logits[ids[k]] - softmax.largest);
  softmax.sum = warpSum(softmax.sum);
  return softmax;
}

struct Router {
  const float *logits, *bias;
  const double *added; ///< added to logits before the choice; null: choose by scores
  int64_t rows, experts, topk;
  int64_t groups, groupTopk, groupSize, summed; ///< 0 without groups of experts
  int64_t score;
  double scale;
  bool isOfAll;
  uint32_t *keys, *sums; ///< scratch: criteria of all experts of all rows, and of all groups
  int32_t *ids;
  float *weights;
};

/// Writes the groups' criteria to `sums`, and returns the last chosen group. `numberOf` returns the
/// criterion of an expert.
template <typename NumberOf>
__device__ Candidate chooseGroups(const Router &p, const uint32_t *keys, uint32_t *sums,
                                  NumberOf numberOf) {
  auto size = static_cast<int32_t>(p.groupSize);
  for (int32_t group = lane(); group < p.groups; group += kWarp) {
    double total = 0;
    Candidate last = {0, -1};
    for (int64_t i = 0; i < p.summed; ++i) {
      Candidate best = {0, -1};
      for (int32_t e = group * size; e < (group + 1) * size; ++e)
        if (Candidate candidate = {keys[e], e}; (last.index < 0 || last.isBefore(candidate)) &&
                                                (best.index < 0 || candidate.isBefore(best)))
          best = candidate;
      last = best;
      total += static_cast<double>(numberOf(best.index));
    }
    sums[group] = keyOf(static_cast<float>(total));
  }
  __syncwarp();
  Candidate last = {0, -1};
  for (int64_t i = 0; i < p.groupTopk; ++i)
    last = nextOf(last, static_cast<int32_t>(p.groups), sums, [](int32_t) { return true; });
  return last;
}

/// Computes the weights of the chosen experts. A lane has every 32nd one.
__device__ void weigh(const Router &p, const float *logits, const Softmax &ofAll,
                      const int32_t *ids, float *weights) {
  bool isSoftmax = p.score == kRouterSoftmax;
  Softmax softmax = ofAll;
  if (isSoftmax && !p.isOfAll)
    softmax = softmaxOfChosen(logits, ids, p.topk, static_cast<int32_t>(p.experts));
  double divisor = 0;
  auto valueOf = [&](int64_t k) {
    return isSoftmax ? softmax.of(logits[ids[k]]) : scoreOf(p.score, logits[ids[k]]);
  };
  bool isDivided = !isSoftmax && p.topk > 1;
  for (int64_t k = lane(); k < p.topk && isDivided; k += kWarp)
    divisor += valueOf(k);
  divisor = isDivided ? warpSum(divisor) + kRouterEps : 1;
  for (int64_t k = lane(); k < p.topk; k += kWarp)
    weights[k] = static_cast<float>(p.scale * valueOf(k) / divisor);
}

/// A warp has one row of logits. It chooses topk experts one after the other: each time the largest
/// criterion below the last one chosen. With groups of experts, only experts of chosen groups take
/// part.
__global__ void __launch_bounds__(kRouterWarps *kWarp) chooseExperts(const Router p) {
  awaitPrevious();
  int64_t row = rowOfWarp();
  if (row >= p.rows)
    return;
  auto experts = static_cast<int32_t>(p.experts);
  const float *logits = p.logits + row * experts;
  uint32_t *keys = p.keys + row * experts, *sums = p.sums + row * p.groups;
  Softmax ofAll = {};
  if (p.score == kRouterSoftmax && p.isOfAll)
    ofAll = softmaxOfRow(logits, experts);
  auto numberOf = [&](int32_t e) {
    if (p.added != nullptr)
      return static_cast<float>(logits[e] + p.added[e]);
    float number = p.score != kRouterSoftmax ? static_cast<float>(scoreOf(p.score, logits[e]))
                   : p.isOfAll               ? static_cast<float>(ofAll.of(logits[e]))
                                             : logits[e];
    return p.bias == nullptr ? number : number + p.bias[e];
  };
  // Larger keys are chosen first.
  for (int32_t e = lane(); e < experts; e += kWarp)
    keys[e] = keyOf(numberOf(e));
  __syncwarp();
  Candidate lastGroup = {0, -1}, last = {0, -1};
  if (p.groups > 0)
    lastGroup = chooseGroups(p, keys, sums, numberOf);
  int32_t *ids = p.ids + row * p.topk;
  for (int64_t k = 0; k < p.topk; ++k) {
    last = nextOf(last, experts, keys, [&](int32_t e) {
      if (p.groups == 0)
        return true;
      Candidate group = {sums[e / p.groupSize], static_cast<int32_t>(e / p.groupSize)};
      return group.index == lastGroup.index || group.isBefore(lastGroup);
    });
    if (lane() == 0)
      ids[k] = last.index;
  }
  __syncwarp();
  weigh(p, logits, ofAll, ids, p.weights + row * p.topk);
}

struct Buffers {
  uint32_t *keys, *sums;

  Buffers(const Call &call, Scratch &scratch) {
    const Tensor &logits = call.in[0];
    keys = scratch.take<uint32_t>(logits.numel());
    sums = scratch.take<uint32_t>(logits.rows() * call.attrs.expert_groups);
  }
};

void choose(const Call &call, const Buffers &buffers, const double *added) {
  const Tensor &logits = call.in[0];
  RouterChoice choice = {.experts = logits.cols(),
                         .topk = call.attrs.topk,
                         .groups = call.attrs.expert_groups,
                         .groupTopk = call.attrs.group_topk};
  bool hasGroups = choice.groups > 0;
  Router p = {static_cast<const float *>(logits.data),
              call.inCount > 1 ? static_cast<const float *>(call.in[1].data) : nullptr,
              added,
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
  launchKernel(chooseExperts, blocksOfRouter(p.rows), kRouterWarps * kWarp, 0, queueOf(call), p);
}

void runRouterTopk(const Call &call, const Buffers &buffers) { choose(call, buffers, nullptr); }

// ---- router_sinkhorn ----

constexpr int kSinkhornBlocks = 8, kSinkhornWarps = 32; ///< every GPU with clusters supports 8

struct Sinkhorn {
  const float *logits;
  int64_t rows;
  int32_t experts;
  double *numbers, *floors, *rowFactors; ///< by row: exponentials, and terms added to their sums
  double *factors;                       ///< by expert, for each block
  double *sums;                          ///< by expert, for each buffer and block
  double *added;                         ///< the result
};

/// The exponentials of a row, divided by the largest one. This changes only the row's factor.
__device__ void takeExponentials(const Sinkhorn &p, int64_t row) {
  const float *logits = p.logits + row * p.experts;
  float most = logits[0];
  for (int32_t e = lane(); e < p.experts; e += kWarp)
    most = fmaxf(most, logits[e]);
  double largest = warpMax(most);
  for (int32_t e = lane(); e < p.experts; e += kWarp)
    p.numbers[row * p.experts + e] = exp(logits[e] - largest);
  if (lane() == 0)
    p.floors[row] = kSinkhornEps * exp(-largest);
}

__device__ void setRowFactor(const Sinkhorn &p, int64_t row, const double *factors) {
  double sum = 0;
  for (int32_t e = lane(); e < p.experts; e += kWarp)
    sum += factors[e] * p.numbers[row * p.experts + e];
  sum = warpSum(sum);
  if (lane() == 0)
    p.rowFactors[row] = 1 / static_cast<double>(p.rows) / (sum + p.floors[row]);
}

/// Adds columns over the block's rows.
__device__ void sumColumns(const Sinkhorn &p, int64_t begin, int64_t end, double *sums) {
  __shared__ double ofWarps[kSinkhornWarps][kWarp];
  auto warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int32_t first = 0; first < p.experts; first += kWarp) {
    int32_t e = first + lane();
    double sum = 0;
    for (int64_t row = begin + warp; row < end && e < p.experts; row += kSinkhornWarps)
      sum += p.rowFactors[row] * p.numbers[row * p.experts + e];
    ofWarps[warp][lane()] = sum;
    __syncthreads();
    sum = 0;
    for (int other = 0; other < kSinkhornWarps && warp == 0; ++other)
      sum += ofWarps[other][lane()];
    if (warp == 0 && e < p.experts)
      sums[e] = sum;
    __syncthreads();
  }
}

/// Computes the experts' factors from the sums of all blocks. Returns their mean change in all
/// threads of all blocks.
__device__ double setFactors(const Sinkhorn &p, int blocks, const double *sums, double *factors) {
  double change[1] = {0};
  for (auto e = static_cast<int32_t>(threadIdx.x); e < p.experts; e += kSinkhornWarps * kWarp) {
    double sum = 0;
    for (int block = 0; block < blocks; ++block)
      sum += __ldcg(sums + int64_t{block} * p.experts + e);
    double factor = 1 / static_cast<double>(p.experts) / (sum + kSinkhornEps);
    change[0] += fabs(factor - factors[e]);
    factors[e] = factor;
  }
  blockSum(change);
  __syncthreads(); // all factors have been written
  return change[0] / p.experts;
}

/// Sinkhorn's algorithm: scales rows and columns in turn until the column factors change by less
/// than the tolerance. A cluster of kBlocks blocks divides the rows and exchanges column sums.
template <int kBlocks>
__global__ void __launch_bounds__(kSinkhornWarps *kWarp) balance(const Sinkhorn p) {
  awaitPrevious();
  auto block = static_cast<int64_t>(blockIdx.x);
  int64_t begin = p.rows * block / kBlocks, end = p.rows * (block + 1) / kBlocks;
  int64_t first = begin + threadIdx.x / kWarp;
  double *factors = p.factors + block * p.experts;
  for (int64_t row = first; row < end; row += kSinkhornWarps)
    takeExponentials(p, row);
  for (auto e = static_cast<int32_t>(threadIdx.x); e < p.experts; e += kSinkhornWarps * kWarp)
    factors[e] = 1;
  __syncthreads();
  double change = kSinkhornTolerance + 1;
  for (int step = 0; step < kSinkhornStepsMax && change > kSinkhornTolerance; ++step) {
    for (int64_t row = first; row < end; row += kSinkhornWarps)
      setRowFactor(p, row, factors);
    __syncthreads();
    double *sums = p.sums + int64_t{step % 2} * kBlocks * p.experts;
    sumColumns(p, begin, end, sums + block * p.experts);
    if constexpr (kBlocks > 1)
      hopper::syncCluster();
    change = setFactors(p, kBlocks, sums, factors);
  }
  for (auto e = static_cast<int32_t>(threadIdx.x); e < p.experts && block == 0;
       e += kSinkhornWarps * kWarp)
    p.added[e] = isfinite(change) ? log(factors[e]) : 0;
}

struct SinkhornBuffers {
  Buffers choice;
  double *numbers, *floors, *rowFactors, *factors, *sums, *added;

  SinkhornBuffers(const Call &call, Scratch &scratch) : choice(call, scratch) {
    int64_t rows = call.in[0].rows(), experts = call.in[0].cols();
    numbers = scratch.take<double>(rows * experts);
    floors = scratch.take<double>(rows);
    rowFactors = scratch.take<double>(rows);
    factors = scratch.take<double>(kSinkhornBlocks * experts);
    sums = scratch.take<double>(2 * kSinkhornBlocks * experts);
    added = scratch.take<double>(experts);
  }
};

/// All blocks must exchange column sums in each iteration, so one cluster of blocks does all
/// the work, or one block where there are no clusters.
void runRouterSinkhorn(const Call &call, const SinkhornBuffers &buffers) {
  const Tensor &logits = call.in[0];
  Sinkhorn p = {static_cast<const float *>(logits.data),
                logits.rows(),
                static_cast<int32_t>(logits.cols()),
                buffers.numbers,
                buffers.floors,
                buffers.rowFactors,
                buffers.factors,
                buffers.sums,
                buffers.added};
  constexpr int kThreads = kSinkhornWarps * kWarp;
  if (hasClusters(queueOf(call)))
    launchClusters(balance<kSinkhornBlocks>, kSinkhornBlocks, kSinkhornBlocks, kThreads, 0,
                   queueOf(call), p);
  else
    launchKernel(balance<1>, 1, kThreads, 0, queueOf(call), p);
  choose(call, buffers.choice, buffers.added);
}

// ---- router_topk_bwd ----

/// The gradient of a token's weights with respect to its logits. `isOfAll`: the softmax was over
/// all experts, not only the chosen ones.
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

/// For weights = value / divisor, where the divisor is the sum of the values: the mean of the
/// weights' gradients, weighted by the weights. The gradient of a value subtracts this mean.
/// `valueOf` returns the value of a logit.
template <typename ValueOf>
__device__ double meanOf(const RouterBwd &p, const float *dweights, const float *logits,
                         const int32_t *ids, double divisor, ValueOf valueOf) {
  double mean = 0;
  for (int64_t k = lane(); k < p.topk; k += kWarp)
    if (p.isExpert(ids[k]))
      mean += p.grad(dweights, k) * valueOf(logits[ids[k]]) / divisor;
  return warpSum(mean);
}

/// The gradient through a softmax of all logits.
__device__ void gradientOfAll(const RouterBwd &p, const float *dweights, const float *logits,
                              const int32_t *ids, float *dlogits) {
  Softmax softmax = softmaxOfRow(logits, p.experts);
  auto valueOf = [&](float logit) { return softmax.of(logit); };
  double mean = meanOf(p, dweights, logits, ids, 1, valueOf);
  for (int32_t e = lane(); e < p.experts; e += kWarp) {
    double grad = 0;
    for (int64_t k = 0; k < p.topk; ++k)
      grad += ids[k] == e ? p.grad(dweights, k) : 0;
    dlogits[e] = static_cast<float>(softmax.of(logits[e]) * (grad - mean));
  }
}

/// The gradient through the scores of the chosen experts only. If an expert was chosen several
/// times, the lane of its first choice adds the gradients in the order of choices.
__device__ void gradientOfChosen(const RouterBwd &p, const float *dweights, const float *logits,
                                 const int32_t *ids, float *dlogits) {
  bool isSoftmax = p.score == kRouterSoftmax, isDivided = !isSoftmax && p.topk > 1;
  Softmax softmax = {};
  if (isSoftmax)
    softmax = softmaxOfChosen(logits, ids, p.topk, p.experts);
  auto valueOf = [&](float logit) {
    return isSoftmax ? softmax.of(logit) : scoreOf(p.score, logit);
  };
  double divisor = 0;
  for (int64_t k = lane(); k < p.topk && isDivided; k += kWarp)
    if (p.isExpert(ids[k]))
      divisor += valueOf(logits[ids[k]]);
  divisor = isDivided ? warpSum(divisor) + kRouterEps : 1;
  double mean = 0;
  if (isSoftmax || isDivided)
    mean = meanOf(p, dweights, logits, ids, divisor, valueOf);
  for (int64_t k = lane(); k < p.topk; k += kWarp) {
    bool isFirst = p.isExpert(ids[k]);
    for (int64_t other = 0; other < k && isFirst; ++other)
      isFirst = ids[other] != ids[k];
    if (!isFirst)
      continue;
    float logit = logits[ids[k]], sum = 0;
    double value = valueOf(logit), slope = isSoftmax ? value : slopeOf(p.score, logit, value);
    for (int64_t other = k; other < p.topk; ++other)
      if (ids[other] == ids[k])
        sum += static_cast<float>((p.grad(dweights, other) - mean) / divisor * slope);
    dlogits[ids[k]] = sum;
  }
}

__global__ void __launch_bounds__(kRouterWarps *kWarp) differentiate(const RouterBwd p) {
  awaitPrevious();
  int64_t row = rowOfWarp();
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
  launchKernel(differentiate, blocksOfRouter(p.rows), kRouterWarps * kWarp, 0, queueOf(call), p);
}

} // namespace

SHARDC_KERNEL(RouterTopk, acceptsAs, withBuffers<runRouterTopk>);
SHARDC_KERNEL(RouterSinkhorn, acceptsAs, withBuffers<runRouterSinkhorn>);
SHARDC_KERNEL(RouterTopkBwd, acceptsAs, runRouterTopkBwd);

} // namespace shardc::kernels::cuda
