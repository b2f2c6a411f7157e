// What the kernels of delta_rule and state_scan share: the call, and the chunks by which tensor
// cores compute it.
#pragma once

#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/common.cuh"
#include "kernels/host/Scratch.h"

namespace shardc::kernels::cuda {

/// The call. Operands q to docs begin at operand `first`. For a state scan, v is x, o is y, a is dt
/// and `direct` d; it has no b.
struct Rule {
  Data q, k, v, a, b, log, bias, direct, o, dv, da, db;
  const int32_t *docs;
  float *state, *kept, *states, *dq, *dk, *sums; ///< in the workspace
  int64_t samples, length;
  int groups, heads, keys, values;
  float eps;
  bool isReset, isScan;

  Rule(const Call &call, int first, const Tensor &o)
      : q(dataOf(call.in[first])), k(dataOf(call.in[first + 1])), v(dataOf(call.in[first + 2])),
        a(dataOf(call.in[first + 3])), o(dataOf(o)),
        docs(static_cast<const int32_t *>(call.in[first + 7].data)), samples(o.shape[0]),
        length(o.shape[1]), groups(static_cast<int>(call.in[first].shape[2])),
        heads(static_cast<int>(o.shape[2])), keys(static_cast<int>(call.in[first].shape[3])),
        values(static_cast<int>(o.shape[3])), eps(static_cast<float>(call.attrs.eps)),
        isReset(call.attrs.reset_mask), isScan(deltaKindOf(call).isScan) {
    if (isScan)
      log = dataOf(call.in[first + 4]), bias = dataOf(call.in[first + 5]),
      direct = dataOf(call.in[first + 6]);
    else
      b = dataOf(call.in[first + 4]), log = dataOf(call.in[first + 5]),
      bias = dataOf(call.in[first + 6]);
  }

  /// Gradients of numbers of a head.
  __host__ __device__ int sumCount() const { return isScan ? 3 : 2; }
  dim3 grid() const { return {static_cast<unsigned>(heads), static_cast<unsigned>(samples)}; }
  /// Threads of a block: whole warps, one for each channel of k and of v.
  unsigned threads() const {
    return static_cast<unsigned>(ceilDiv(std::max(keys, values), kWarp) * kWarp);
  }
};

/// Positions of a chunk, and heads of a group that a block of a scan's gradient goes through.
inline constexpr int kRuleChunk = 64, kScanHeads = 8;

/// What the kernels on tensor cores know of chunks, in the workspace, by sample, head and chunk: as
/// delta_rule_tiles.cu describes them. What only gradients need is null in delta_rule. state_scan
/// has but numbers and states.
struct RuleChunks {
  uint16_t *queries = nullptr, *keys = nullptr, *weights = nullptr; ///< Q', K', W: [64,K]
  uint16_t *reads = nullptr, *values = nullptr;                     ///< P: [64,64]; U: [64,V]
  float *gains = nullptr;   ///< e^{G_C}, 0 if a document begins in the chunk
  float *numbers = nullptr; ///< of state_scan: Numbers of delta_rule_tiles.cuh
  uint16_t *inverse = nullptr, *news = nullptr, *dNews = nullptr; ///< T: [64,64]; u, -du: [64,V]
  uint16_t *states = nullptr, *dStates = nullptr;                 ///< S in front, dS behind: [K,V]

  RuleChunks(const Rule &rule, bool isGradient, host::Scratch &scratch);
};

/// Runs delta_rule.
void launchRuleTiles(const Call &call, const Rule &rule, const RuleChunks &chunks);

/// Computes dv, da and db, and in the workspace dq and dk of unit queries and keys by head of v,
/// [samples,length,heads,K], and sums of dalog and dbias, [samples,chunks,2,heads].
void launchRuleTilesBwd(const Call &call, const Rule &rule, const RuleChunks &chunks);
/// Runs state_scan, or computes dx and ddt, and in the workspace dq and dk by kScanHeads heads of a
/// group, [samples,length,groups,heads of a group / kScanHeads,K], and sums of dalog, dbias and dd.
void launchScanTiles(const Call &call, const Rule &rule, const RuleChunks &chunks);

} // namespace shardc::kernels::cuda
