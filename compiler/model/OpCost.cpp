#include "compiler/model/OpCost.h"

#include "runtime/plan/Summary.h"

namespace shardc::model {
namespace {

using plan::Op;
using plan::OpKind;
using plan::Segment;
using Key = plan::AttrKey;

double numel(const Segment &segment, plan::ValueId value) {
  return static_cast<double>(segment.values[value].type.numel());
}

double lastExtent(const Segment &segment, plan::ValueId value) {
  const plan::Type &type = segment.values[value].type;
  return static_cast<double>(type.shape[type.rank - 1u]);
}

/// Every operand is read and every result written once; an accumulated result is read as well.
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

/// 2·m·n·k with m·n the result's elements and k the common extent of both factors.
double productFlops(const Segment &segment, const Op &op) {
  double k = op.getBool(Key::trans_a)
                 ? numel(segment, op.operands[0]) / lastExtent(segment, op.operands[0])
                 : lastExtent(segment, op.operands[0]);
  return 2 * numel(segment, op.results[0]) * k;
}

/// Scores and weighted values: 4·B·N·S²·D, half of it under a causal mask.
double attentionFlops(const Segment &segment, plan::ValueId query, bool causal) {
  const plan::Type &q = segment.values[query].type; // [B,S,N,D]
  return 4 * numel(segment, query) * static_cast<double>(q.shape[1]) * (causal ? 0.5 : 1.0);
}

/// The same for rows of queries, keys and values, whose heads are in the attributes.
double attentionFlops(const Segment &segment, plan::ValueId qkv, const Op &op) {
  const plan::Type &rows = segment.values[qkv].type; // [B,S,(N+2G)·D]
  auto positions = static_cast<double>(rows.shape[1]);
  double queries = static_cast<double>(rows.shape[0]) * positions *
                   static_cast<double>(op.getInt(Key::num_heads)) *
                   static_cast<double>(op.getInt(Key::head_dim));
  return 4 * queries * positions * (op.getBool(Key::causal) ? 0.5 : 1.0);
}

/// x·wᵀ once: logits of all rows.
double headFlops(const Segment &segment, const Op &op) {
  double rows = numel(segment, op.operands[0]) / lastExtent(segment, op.operands[0]);
  return 2 * rows * numel(segment, op.operands[1]);
}

/// Operations per element of the first result, for elementwise ops.
double flopsPerElement(OpKind kind) {
  switch (kind) {
  case OpKind::BiasAdd:
  case OpKind::Add:
  case OpKind::Dropout:
  case OpKind::Cast:
    return 1;
  case OpKind::Rope:
  case OpKind::SplitQkvRope:
  case OpKind::MergeQkvRope:
    return 3;
  case OpKind::RmsNorm:
  case OpKind::LayerNorm:
    return 6;
  case OpKind::AddRmsNorm:
  case OpKind::AddLayerNorm:
    return 7;
  case OpKind::Gelu:
  case OpKind::MatMulGelu:
  case OpKind::SwiGlu:
    return 8;
  case OpKind::GeluBwd:
  case OpKind::MatMulGeluBwd:
  case OpKind::SwiGluBwd:
  case OpKind::RmsNormBwd:
  case OpKind::LayerNormBwd:
    return 12;
  default:
    return 0;
  }
}

/// Operations per element of the operands, for ops that reduce or update.
double flopsPerOperandElement(OpKind kind) {
  switch (kind) {
  case OpKind::EmbeddingBwd:
  case OpKind::EmbeddingShardBwd:
  case OpKind::ReduceRows:
  case OpKind::TokenCount:
  case OpKind::ReduceScatter:
  case OpKind::AllReduce:
    return 1;
  case OpKind::SumSquares:
    return 2;
  case OpKind::CrossEntropy:
  case OpKind::CrossEntropyBwd:
  case OpKind::Sgd:
  case OpKind::SgdMomentum:
    return 4;
  case OpKind::AdamW:
    return 16;
  default:
    return 0; // moves, sources, and the few scalars of the step state
  }
}

double flopsOf(const Segment &segment, const Op &op) {
  switch (op.kind) {
  case OpKind::MatMul:
    return productFlops(segment, op);
  case OpKind::MatMulGelu:
  case OpKind::MatMulGeluBwd:
    return productFlops(segment, op) + flopsPerElement(op.kind) * numel(segment, op.results[0]);
  case OpKind::AttentionQkv:
    return attentionFlops(segment, op.operands[0], op);
  case OpKind::AttentionQkvBwd:
    return 2.5 * attentionFlops(segment, op.operands[1], op);
  case OpKind::Attention:
    return attentionFlops(segment, op.operands[0], op.getBool(Key::causal));
  case OpKind::AttentionBwd: // recomputed scores, then four products of the same size
    return 2.5 * attentionFlops(segment, op.operands[1], op.getBool(Key::causal));
  case OpKind::LmLoss:
    return headFlops(segment, op);
  case OpKind::LmLossGrad:
    return 3 * headFlops(segment, op);
  case OpKind::ReduceScatter: { // optionally with the squares of its result
    double squares = op.results.size() > 1 ? 2 * numel(segment, op.results[0]) : 0;
    return flopsPerOperandElement(op.kind) * numel(segment, op.operands[0]) + squares;
  }
  case OpKind::SumSquares: {
    double flops = 0;
    for (plan::ValueId value : op.operands)
      flops += flopsPerOperandElement(op.kind) * numel(segment, value);
    return flops;
  }
  default:
    break;
  }
  double flops = flopsPerElement(op.kind) * numel(segment, op.results[0]);
  if (!op.operands.empty())
    flops += flopsPerOperandElement(op.kind) * numel(segment, op.operands[0]);
  return flops;
}

double bytesOf(const Segment &segment, const Op &op) {
  switch (op.kind) {
  case OpKind::View:
  case OpKind::Pack:
    return 0;
  case OpKind::Embedding: // only the rows that are looked up, not the table
  case OpKind::EmbeddingShard:
    return 2 * static_cast<double>(segment.values[op.results[0]].type.bytes());
  case OpKind::BatchLoad: { // one entry of the ring
    double bytes = 0;
    for (plan::ValueId value : op.results)
      bytes += 2 * static_cast<double>(segment.values[value].type.bytes());
    return bytes;
  }
  default:
    return trafficOf(segment, op);
  }
}

template <typename Visit>
void forEachOpOfStep(const plan::Plan &plan, const plan::Role &role, Visit visit) {
  int64_t microbatches = plan.job.derived.numMicrobatches;
  for (const Segment &segment : role.segments) {
    if (segment.kind != plan::SegmentKind::Train && segment.kind != plan::SegmentKind::Update)
      continue;
    for (const Op &op : segment.ops)
      visit(segment, op,
            static_cast<double>(segment.body ? plan::timesOf(op.pred, microbatches) : 1));
  }
}

} // namespace

OpCost costOf(const Segment &segment, const Op &op) {
  return {flopsOf(segment, op), bytesOf(segment, op)};
}

OpCost costOfStep(const plan::Plan &plan, const plan::Role &role) {
  OpCost sum;
  forEachOpOfStep(plan, role, [&](const Segment &segment, const Op &op, double times) {
    OpCost cost = costOf(segment, op);
    sum.flops += times * cost.flops;
    sum.bytes += times * cost.bytes;
  });
  return sum;
}

double modelFlopsOfStep(const plan::Plan &plan, const plan::Role &role) {
  double flops = 0;
  forEachOpOfStep(plan, role, [&](const Segment &segment, const Op &op, double times) {
    if (op.isRecomputed)
      return;
    switch (op.kind) {
    case OpKind::MatMul:
    case OpKind::MatMulGelu:
    case OpKind::MatMulGeluBwd:
      flops += times * productFlops(segment, op);
      break;
    case OpKind::Attention:
    case OpKind::AttentionQkv:
    case OpKind::LmLoss:
    case OpKind::LmLossGrad:
      flops += times * flopsOf(segment, op);
      break;
    case OpKind::AttentionBwd:
    case OpKind::AttentionQkvBwd: // twice the forward; recomputed scores do not count for the model
      flops += times * flopsOf(segment, op) * 2 / 2.5;
      break;
    default:
      break;
    }
  });
  return flops;
}

} // namespace shardc::model
