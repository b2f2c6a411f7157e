#include "compiler/model/OpCost.h"

#include <algorithm>
#include <cmath>

#include "runtime/plan/Factors.h"
#include "runtime/plan/Summary.h"

namespace shardc::model {
namespace {

using plan::CostClass;
using plan::Op;
using plan::Segment;
using Key = plan::AttrKey;

/// Operations for each element whose square is added to a sum.
constexpr double kFlopsPerSquare = 2;

double numel(const Segment &segment, plan::ValueId value) {
  return static_cast<double>(segment.values[value].type.numel());
}

double lastExtent(const Segment &segment, plan::ValueId value) {
  const plan::Type &type = segment.values[value].type;
  return static_cast<double>(type.shape[type.rank - 1u]);
}

/// Bytes of memory traffic if every operand is read once and every result written once. An
/// accumulated result is also read.
double trafficOf(const Segment &segment, const Op &op) {
  double bytes = 0;
  for (plan::ValueId value : op.operands)
    bytes += static_cast<double>(segment.values[value].type.bytes());
  for (plan::ValueId value : op.results)
    bytes += static_cast<double>(segment.values[value].type.bytes());
  for (const plan::Tie &tie : op.ties)
    if (tie.kind == plan::Tie::Acc)
      bytes += static_cast<double>(segment.values[tie.value].type.bytes());
  return bytes;
}

/// 2·m·k·n: m·k is the number of elements of the first operand, n the number of the result's
/// columns. If rows are counted, the expected `share` of m.
double productFlops(const Segment &segment, const Op &op, double share) {
  bool isCounted = segment.values[op.operands[0]].counts != plan::kNone;
  return 2 * numel(segment, op.operands[0]) * lastExtent(segment, op.results[0]) *
         (isCounted ? share : 1);
}

/// The mean number of keys that a query attends to: all; half of them under a causal mask; fewer
/// with a window or in chunks. Mirrored slices of a sequence have the same mean as the whole
/// sequence.
double visibleKeys(const Op &op, double positions) {
  if (!op.getBool(Key::causal))
    return positions;
  int64_t window = op.getInt(Key::window), chunk = op.getInt(Key::chunk);
  if (chunk > 0)
    positions = std::min(positions, static_cast<double>(chunk));
  double reach = window < 0 ? positions : std::min(static_cast<double>(window) + 1, positions);
  return reach - reach * reach / (2 * positions);
}

/// Operations of the two products of attention: queries with keys, and probabilities with values.
struct AttentionFlops {
  double scores = 0, values = 0;
};

/// Counts 2·B·N·S·(D + E) for each visible key, with D channels of keys and E channels of values.
/// For packed QKV rows, the numbers of heads are attributes.
AttentionFlops attentionFlops(const Segment &segment, const Op &op) {
  const plan::OpInfo &info = plan::opInfo(op);
  plan::ValueId query = op.operands[static_cast<size_t>(info.queries)];
  plan::ValueId key = op.operands[static_cast<size_t>(info.keys)];
  const plan::Type &q = segment.values[query].type; // [B,S,N,D] or [B,S,(N+2G)·D]
  auto positions = static_cast<double>(q.shape[1]);
  double queries = info.hasPackedHeads ? static_cast<double>(q.shape[0]) * positions *
                                             static_cast<double>(op.getInt(Key::num_heads)) *
                                             static_cast<double>(op.getInt(Key::head_dim))
                                       : numel(segment, query);
  double each =
      2 * queries * visibleKeys(op, static_cast<double>(segment.values[key].type.shape[1]));
  if (info.hasPackedHeads)
    return {each, each};
  plan::ValueId value = op.operands[static_cast<size_t>(info.values)];
  return {each, each * lastExtent(segment, value) / lastExtent(segment, query)};
}

/// Operations of one product x·wᵀ, the logits of all rows.
double headFlops(const Segment &segment, const Op &op) {
  double rows = numel(segment, op.operands[0]) / lastExtent(segment, op.operands[0]);
  return 2 * rows * numel(segment, op.operands[1]);
}

/// Operations of an op of this cost class, for one of its products.
double classFlops(const Segment &segment, const Op &op, double share) {
  switch (plan::opInfo(op).work.cost) {
  case CostClass::Product:
    return productFlops(segment, op, share);
  case CostClass::Attention:
    return attentionFlops(segment, op).scores + attentionFlops(segment, op).values;
  case CostClass::Head:
    return headFlops(segment, op);
  case CostClass::Nothing:
  case CostClass::Memory:
  case CostClass::Transfer:
    return 0;
  }
  return 0;
}

/// The number of products that the op computes. `times`: that of its table row; a head whose weight
/// is not trained computes no weight gradient.
double timesOf(const Op &op, double times) {
  const plan::OpInfo &info = plan::opInfo(op);
  bool isHead = info.work.cost == CostClass::Head;
  return isHead ? times - static_cast<double>(info.resultsMax - op.results.size()) : times;
}

double flopsOf(const Segment &segment, const Op &op, double share) {
  const plan::OpInfo &info = plan::opInfo(op);
  double times = timesOf(op, info.work.times);
  double flops = times > 0 ? times * classFlops(segment, op, share) : 0;
  double rows = plan::leavesRowsOut(op) ? share : 1;
  if (info.work.scores > 0)
    flops += info.work.scores * attentionFlops(segment, op).scores;
  if (info.work.perResult > 0)
    flops += rows * info.work.perResult * numel(segment, op.results[0]);
  size_t counted = info.operandsMax == plan::kAnyNumber ? op.operands.size() : 1;
  for (size_t i = 0; i < std::min(counted, op.operands.size()); ++i)
    flops += info.work.perOperand * numel(segment, op.operands[i]);
  if (op.results.size() > 1 && info.traits == plan::OpTraits::Collective)
    flops += kFlopsPerSquare * numel(segment, op.results[0]); // the second result sums the squares
  return flops;
}

double bytesOf(const Segment &segment, const Op &op, double share) {
  switch (plan::opInfo(op).traffic) {
  case plan::OpTraffic::Nothing:
    return 0;
  case plan::OpTraffic::Results: {
    double bytes = 0;
    for (plan::ValueId value : op.results)
      bytes += 2 * static_cast<double>(segment.values[value].type.bytes());
    return bytes;
  }
  case plan::OpTraffic::All:
    return trafficOf(segment, op) * (plan::leavesRowsOut(op) ? share : 1);
  }
  return 0;
}

bool isOfStep(plan::SegmentKind kind) {
  switch (kind) {
  case plan::SegmentKind::Train:
  case plan::SegmentKind::Forward:
  case plan::SegmentKind::Backward:
  case plan::SegmentKind::Steady:
  case plan::SegmentKind::Begin:
  case plan::SegmentKind::Update:
    return true;
  case plan::SegmentKind::Other:
  case plan::SegmentKind::Eval:
  case plan::SegmentKind::Init:
  case plan::SegmentKind::Prologue:
  case plan::SegmentKind::Stage:
  case plan::SegmentKind::Snapshot:
    return false;
  }
  return false;
}

template <typename Visit>
void forEachOpOfStep(const plan::Plan &plan, const plan::Role &role, Visit visit) {
  int64_t microbatches = plan.job.derived.numMicrobatches;
  for (const Segment &segment : role.segments) {
    if (!isOfStep(segment.kind))
      continue;
    for (const Op &op : segment.ops)
      visit(segment, op,
            static_cast<double>(segment.body ? plan::timesOf(op.pred, microbatches) : 1));
  }
}

} // namespace

/// topk / (ranks·min(topk, experts per rank)); if a slot has capacity for f times an even share, at
/// least 1/f.
double expectedShareOfRows(const plan::Plan &plan) {
  const plan::Job::Model &model = plan.job.model;
  if (model.numMoeExperts == 0)
    return 1;
  auto ranks = static_cast<double>(std::max<int64_t>(model.expertModelParallelSize, 1));
  auto topk = static_cast<double>(model.moeRouterTopk);
  double kept =
      model.moeExpertCapacityFactor > 0 ? std::min(model.moeExpertCapacityFactor, 1.0) : 1;
  double ofMost = topk / (ranks * std::min(topk, static_cast<double>(model.numMoeExperts) / ranks));
  double ofAsked =
      model.moeExpertRankCapacityFactor > 0 ? 1 / model.moeExpertRankCapacityFactor : 0;
  return kept * std::min(std::max(ofMost, ofAsked), 1.0);
}

namespace {

/// The expected maximum of n independent standard normal variables, by Blom's approximation: 4.5 %
/// too large for n = 2, 2 % for 4, within 1 % from 8 on.
double expectedMaximum(double n) {
  // Blom's plotting position of the largest value, and a rational approximation of the upper
  // quantile (Abramowitz and Stegun 26.2.23).
  double tail = 1 - (n - 0.375) / (n + 0.25);
  double t = std::sqrt(-2 * std::log(tail));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                 (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

OpCost costAt(const Segment &segment, const Op &op, double share) {
  return {flopsOf(segment, op, share), bytesOf(segment, op, share)};
}

} // namespace

/// Assumes that loads of experts are independent except for their fixed sum. The largest of n equal
/// parts is then the mean times 1 + spread(n), because the deviation of a part is inversely
/// proportional to the square root of the number of experts in it.
double busiestShareOfRows(const plan::Plan &plan) {
  const plan::Job::Model &model = plan.job.model;
  double share = expectedShareOfRows(plan);
  auto ranks = static_cast<double>(model.expertModelParallelSize);
  auto experts = static_cast<double>(model.numMoeExperts);
  if (ranks < 2 || experts < ranks)
    return share;
  auto spread = [](double parts) { return expectedMaximum(parts) * std::sqrt(parts - 1); };
  double given = plan.job.model.moePredictedImbalance;
  double imbalance = given > 0 ? given : kMeasuredImbalance;
  return std::min(share * (1 + (imbalance - 1) * spread(ranks) / spread(experts)), 1.0);
}

OpCost costOf(const plan::Plan &plan, const Segment &segment, const Op &op) {
  return costAt(segment, op, expectedShareOfRows(plan));
}

OpCost costOnBusiestRank(const plan::Plan &plan, const Segment &segment, const Op &op) {
  return costAt(segment, op, busiestShareOfRows(plan));
}

OpCost costOfStep(const plan::Plan &plan, const plan::Role &role) {
  OpCost sum;
  forEachOpOfStep(plan, role, [&](const Segment &segment, const Op &op, double times) {
    OpCost cost = costOf(plan, segment, op);
    sum.flops += times * cost.flops;
    sum.bytes += times * cost.bytes;
  });
  return sum;
}

double modelFlopsOfStep(const plan::Plan &plan, const plan::Role &role) {
  double flops = 0, share = expectedShareOfRows(plan);
  forEachOpOfStep(plan, role, [&](const Segment &segment, const Op &op, double times) {
    double model = timesOf(op, plan::opInfo(op).work.modelTimes);
    if (model > 0 && !op.isRecomputed)
      flops += times * model * classFlops(segment, op, share);
  });
  return flops;
}

} // namespace shardc::model
