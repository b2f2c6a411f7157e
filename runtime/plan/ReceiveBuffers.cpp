// Computes the sizes of receive buffers, one per channel, from the reductions of
// runtime/base/Reduction.h.
#include "runtime/plan/Execution.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/Reduction.h"

namespace shardc::plan {

namespace {

/// The reduction that an op performs; nothing if it is not a sum over ranks.
std::optional<Reduction> reductionOf(const Plan &plan, const Segment &segment, const Op &op) {
  const std::optional<CollectiveInfo> &collective = opInfo(op).collective;
  if (op.group < 0 || !collective || !isSum(collective->kind))
    return std::nullopt;
  bool scatters = collective->kind == CollectiveKind::ReduceScatter;
  const Type &in = segment.values[op.operands[0]].type, &out = segment.values[op.results[0]].type;
  Reduction reduction;
  reduction.scatters = scatters;
  reduction.members = plan.groupSize(op.group);
  reduction.count = out.numel();
  reduction.inType = in.dtype, reduction.outType = out.dtype;
  reduction.accumulates = std::any_of(op.ties.begin(), op.ties.end(), [](const Tie &tie) {
    return tie.kind == Tie::Acc && tie.result == 0;
  });
  reduction.anyOrder = sumsInAnyOrder(plan, op);
  reduction.sumsSquares = scatters && op.results.size() > 1;
  return reduction;
}

} // namespace

int64_t receiveBufferBytes(const Plan &plan, const Segment &segment, const Op &op) {
  std::optional<Reduction> reduction = reductionOf(plan, segment, op);
  return reduction ? shardc::receiveBufferBytes(*reduction) : 0;
}

bool isExchanged(const Plan &plan, const Segment &segment, const Op &op) {
  std::optional<Reduction> reduction = reductionOf(plan, segment, op);
  return reduction && reduction->members > 1 && wayOf(*reduction) == ReductionWay::Exchange;
}

int64_t receiveBufferBytes(const Plan &plan, const Role &role, ChannelId channel) {
  int64_t most = 0;
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops)
      if (op.group >= 0 && op.channel == channel)
        most = std::max(most, receiveBufferBytes(plan, segment, op));
  return most;
}

int64_t receiveBufferBytes(const Plan &plan, const Role &role) {
  std::map<std::pair<int16_t, ChannelId>, int64_t> most; // largest size per channel
  for (const Segment &segment : role.segments)
    for (const Op &op : segment.ops)
      if (opInfo(op).collective) {
        int64_t &bytes = most[{op.group, op.channel}];
        bytes = std::max(bytes, receiveBufferBytes(plan, segment, op));
      }
  int64_t sum = 0;
  for (const auto &[channel, bytes] : most)
    sum += bytes;
  return sum;
}

} // namespace shardc::plan
