// Cuts sequences among context-parallel ranks. Of 2n equal chunks of each sequence the rank with
// index i has those with the numbers i and 2n-1-i, so that all have as many keys to look at under a
// causal mask. The feed writes a rank's chunks; all that works by rows does not notice. What
// depends on a token's place in its sequence takes the places as an operand.
#include "compiler/passes/Partition.h"
#include "runtime/base/BatchFields.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Rule = PartitionRule;

/// The group among whose ranks sequences are still to be cut; -1 if there is none.
int16_t groupToCut(const plan::Plan &plan) {
  auto group = static_cast<int16_t>(plan.job.derived.contextGroup);
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const Op &op : segment.ops)
        if (op.kind == OpKind::BatchLoad)
          return op.group < 0 ? group : int16_t{-1};
  return -1;
}

class SequenceCutter {
public:
  SequenceCutter(plan::Plan &plan, plan::Role &role, plan::Segment &segment, int16_t group)
      : plan_(plan), role_(role), segment_(segment), group_(group), ranks_(plan.groupSize(group)) {}

  void run() {
    std::vector<Op> old = std::move(segment_.ops);
    for (Op &op : old)
      cut(std::move(op));
    plan::replaceOps(segment_, std::move(ops_));
  }

private:
  void cut(Op op) {
    switch (partitionRuleOf(op.kind)) {
    case Rule::Lookup:
    case Rule::Product:
    case Rule::Rowwise:
    case Rule::Heads:
    case Rule::Loss:
      for (ValueId result : op.results)
        shorten(result, op.kind == OpKind::Attention && result != op.results[0] ? 2 : 1);
      if (op.kind == OpKind::Rope || op.kind == OpKind::Dropout)
        op.operands.push_back(places_);
      ops_.push_back(std::move(op));
      return;
    case Rule::Whole:
      if (op.kind == OpKind::BatchLoad)
        return cutLoad(std::move(op));
      ops_.push_back(std::move(op));
      return;
    case Rule::Later:
      break;
    }
    SHARDC_CHECK(false, "op '{}' stands before partition", plan::opInfo(op.kind).name);
  }

  /// Rows of all positions are the only dimension of what has one.
  void shorten(ValueId value, uint8_t dim) {
    Type &type = segment_.values[value].type;
    int64_t &extent = type.shape[type.rank == 1 ? 0 : dim];
    SHARDC_CHECK(extent % ranks_ == 0, "'{}' has {} positions for {} ranks",
                 segment_.values[value].name, extent, ranks_);
    extent /= ranks_;
  }

  void cutLoad(Op load) {
    for (size_t r = 0; r < load.results.size(); ++r)
      if (r != batch::Samples)
        shorten(load.results[r], 1);
    const Type tokens = segment_.values[load.results[batch::Tokens]].type;
    places_ = plan::addValue(segment_, "places", tokens, plan::Purpose::Data);
    load.results.push_back(places_);
    load.group = group_;
    for (const plan::Segment::Boundary &in : segment_.ins)
      if (in.value == load.operands[0]) {
        Type &feed = role_.cells[in.cell].type;
        feed.shape[1] = 6 * tokens.numel() + 2 * tokens.shape[0];
        segment_.values[in.value].type = feed;
      }
    ValueId mask = load.results[batch::Mask];
    const Op first = load;
    ops_.push_back(std::move(load));
    if (segment_.kind == plan::SegmentKind::Train && !plan_.job.model.calculatePerTokenLoss)
      countAll(first, mask);
  }

  /// The mean of a microbatch's losses is over the tokens of whole sequences.
  void countAll(const Op &load, ValueId mask) {
    Op count = plan::makeOp(OpKind::TokenCount, {mask}, load.unit, load.loc);
    Type one = Type::of(DType::F32, {1});
    count.results = {plan::addValue(segment_, "count.slice", one)};
    Op sum = plan::makeOp(OpKind::AllReduce, {count.results[0]}, load.unit, load.loc);
    sum.group = group_;
    sum.results = {plan::addValue(segment_, "count.all", one)};
    count.phase = sum.phase = load.phase;
    ops_.push_back(std::move(count));
    ops_.push_back(std::move(sum));
  }

  plan::Plan &plan_;
  plan::Role &role_;
  plan::Segment &segment_;
  int16_t group_;
  int64_t ranks_;
  ValueId places_ = kNone; ///< of tokens in their sequences
  std::vector<Op> ops_;
};

} // namespace

bool cutSequences(plan::Plan &plan) {
  int16_t group = groupToCut(plan);
  if (group < 0)
    return false;
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        SequenceCutter(plan, role, segment, group).run();
  return true;
}

} // namespace shardc::passes
