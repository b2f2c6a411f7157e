// Lets attention read q, k and v from the rows of split_qkv, and write their gradients into rows
// that merge_qkv would join, so that nothing is copied. This requires equal distances between
// heads: as many groups as query heads, or one group. Runs after Recompute, which selects attention
// and its operands individually.
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::operandNamed;
using plan::OpKind;
using plan::resultNamed;
using plan::ValueId;
using Key = plan::AttrKey;

class AttentionFuser {
public:
  explicit AttentionFuser(plan::Segment &segment)
      : segment_(segment), users_(segment), dead_(segment.ops.size(), 0) {}

  void run() {
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      if (segment_.ops[i].kind == OpKind::Attention)
        fuseForward(i);
      else if (segment_.ops[i].kind == OpKind::AttentionBwd)
        fuseBackward(i);
    }
    plan::eraseOps(segment_, dead_);
    // Removes splits that no op reads any more.
    plan::removeDeadOps(segment_);
  }

private:
  /// The split whose results are the three operands from `first` on, or null.
  const Op *splitOf(const Op &op, size_t first) const {
    uint32_t def = segment_.values[op.operands[first]].def;
    if (def == kNone || segment_.ops[def].kind != kSplit)
      return nullptr;
    const Op &split = segment_.ops[def];
    if (split.group >= 0) // rows also have queries of other ranks
      return nullptr;
    for (size_t i = 0; i < split.results.size(); ++i)
      if (split.results[i] != op.operands[first + i])
        return nullptr;
    const plan::Type &q = typeOf(resultNamed<kSplit>(split, "q")),
                     &k = typeOf(resultNamed<kSplit>(split, "k"));
    bool evenly = k.shape[2] == 1 || k.shape[2] == q.shape[2];
    return evenly && typeOf(operandNamed<kSplit>(split, "qkv")).rank == 3 ? &split : nullptr;
  }

  const plan::Type &typeOf(ValueId value) const { return segment_.values[value].type; }

  void setHeads(Op &op, const Op &split) const {
    const plan::Type &q = typeOf(resultNamed<kSplit>(split, "q")),
                     &k = typeOf(resultNamed<kSplit>(split, "k"));
    op.set(Key::num_heads, q.shape[2]).set(Key::num_groups, k.shape[2]);
    op.set(Key::head_dim, q.shape[3]);
  }

  void fuseForward(size_t index) {
    Op &op = segment_.ops[index];
    constexpr OpKind kOp = OpKind::Attention;
    const Op *split = splitOf(op, plan::operandIndex<kOp>("q"));
    if (!split)
      return;
    op.kind = OpKind::AttentionQkv;
    setHeads(op, *split);
    op.operands = {operandNamed<kSplit>(*split, "qkv"), operandNamed<kOp>(op, "docs"),
                   operandNamed<kOp>(op, "samples")};
  }

  /// The merge that alone reads all results of the op, or kNone.
  uint32_t mergeOf(const Op &op) const {
    for (ValueId result : op.results)
      if (users_.count(result) != 1 || *users_.begin(result) != *users_.begin(op.results.front()))
        return kNone;
    uint32_t user = *users_.begin(op.results.front());
    const Op &merge = segment_.ops[user];
    return merge.kind == OpKind::MergeQkv && merge.operands == op.results ? user : kNone;
  }

  void fuseBackward(size_t index) {
    Op &op = segment_.ops[index];
    constexpr OpKind kOp = OpKind::AttentionBwd;
    const Op *split = splitOf(op, plan::operandIndex<kOp>("q"));
    uint32_t merge = mergeOf(op);
    if (!split || merge == kNone)
      return;
    op.kind = OpKind::AttentionQkvBwd;
    setHeads(op, *split);
    op.operands = {operandNamed<kOp>(op, "do"),   operandNamed<kSplit>(*split, "qkv"),
                   operandNamed<kOp>(op, "o"),    operandNamed<kOp>(op, "lse"),
                   operandNamed<kOp>(op, "docs"), operandNamed<kOp>(op, "samples")};
    op.results = segment_.ops[merge].results;
    dead_[merge] = 1;
  }

  static constexpr OpKind kSplit = OpKind::SplitQkv;

  plan::Segment &segment_;
  plan::Users users_; ///< before any change
  std::vector<uint8_t> dead_;
};

} // namespace

void runFuseQkvAttention(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      AttentionFuser(segment).run();
}

} // namespace shardc::passes
