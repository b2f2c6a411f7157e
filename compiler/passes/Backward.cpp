// Appends the backward ops of every training body, in reverse order, with one rule per op. A
// parameter's gradient is one value into which later contributions accumulate; it leaves the body
// through the cell `grad.<parameter>`. An activation's gradient is summed if it has several users.
// Norms take the residual's gradient as an operand and add it themselves.
#include <algorithm>

#include "compiler/passes/Passes.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

class BackwardWriter {
public:
  BackwardWriter(plan::Plan &plan, plan::Role &role, plan::Segment &segment)
      : plan_(plan), role_(role), segment_(segment), grads_(segment.values.size(), kNone),
        contributions_(segment.values.size(), 0), paramOf_(segment.values.size(), -1) {
    for (const plan::Segment::Boundary &in : segment.ins)
      if (in.cell < plan.params.size())
        paramOf_[in.value] = static_cast<int32_t>(in.cell);
  }

  void run() {
    // The ops after the losses (sums into the step state) have no gradient and stay before the
    // backward ops.
    size_t forwardOps = segment_.ops.size();
    for (size_t i = forwardOps; i-- > 0;) {
      // The op is copied, since rules append to the list that contains it.
      const Op op = segment_.ops[i];
      unit_ = op.unit;
      loc_ = op.loc;
      if (op.kind == OpKind::LmLoss)
        turnIntoLossGrad(i);
      else
        applyRule(op);
    }
    for (size_t p = 0; p < plan_.params.size(); ++p)
      exportGrad(p);
    plan::renumber(segment_);
  }

private:
  const Type &type(ValueId value) const { return segment_.values[value].type; }
  ValueId grad(ValueId value) const { return value < grads_.size() ? grads_[value] : kNone; }

  /// A new value for one more contribution to the gradient of `of`.
  ValueId newGrad(ValueId of) {
    int n = contributions_[of]++;
    std::string name = "d." + segment_.values[of].name;
    if (n > 0)
      name += fmt::format(".{}", n + 1);
    return plan::addValue(segment_, std::move(name), type(of), plan::Purpose::Activations);
  }

  Op makeOp(OpKind kind, std::initializer_list<ValueId> operands) const {
    return plan::makeOp(kind, operands, unit_, loc_);
  }

  /// The result of an op that is one contribution to the gradient of `of`. Later contributions to a
  /// parameter's gradient accumulate; those of an activation are added by `settle`.
  ValueId contribute(Op &op, ValueId of) {
    ValueId value = newGrad(of);
    auto result = static_cast<uint8_t>(op.results.size());
    op.results.push_back(value);
    if (paramOf_[of] < 0)
      return value;
    segment_.values[value].purpose = plan::Purpose::Grads;
    if (grads_[of] != kNone)
      op.ties.push_back({plan::Tie::Acc, result, grads_[of], plan::Pred::Always});
    grads_[of] = value;
    return value;
  }

  /// Makes `contribution` the gradient of an activation, or adds it to the contributions so far.
  void settle(ValueId of, ValueId contribution) {
    if (grads_[of] == kNone) {
      grads_[of] = contribution;
      return;
    }
    Op add = makeOp(OpKind::Add, {grads_[of], contribution});
    add.results = {newGrad(of)};
    grads_[of] = add.results[0];
    plan::append(segment_, std::move(add));
  }

  /// An op with one result, the gradient of one activation.
  void emitFor(ValueId of, Op op) {
    ValueId value = contribute(op, of);
    plan::append(segment_, std::move(op));
    settle(of, value);
  }

  void emitForParam(ValueId of, Op op) {
    SHARDC_CHECK(paramOf_[of] >= 0, "'{}' is not a parameter", segment_.values[of].name);
    contribute(op, of);
    plan::append(segment_, std::move(op));
  }

  void applyRule(const Op &op) {
    switch (op.kind) {
    case OpKind::Embedding:
      if (ValueId dx = grad(op.results[0]); dx != kNone)
        emitForParam(op.operands[1], makeOp(OpKind::EmbeddingBwd, {dx, op.operands[0]}));
      return;
    case OpKind::MatMul:
      return matMul(op);
    case OpKind::BiasAdd:
      if (ValueId dy = grad(op.results[0]); dy != kNone) {
        emitForParam(op.operands[1], makeOp(OpKind::ReduceRows, {dy}));
        settle(op.operands[0], dy);
      }
      return;
    case OpKind::Add:
      if (ValueId dc = grad(op.results[0]); dc != kNone) {
        settle(op.operands[0], dc);
        settle(op.operands[1], dc);
      }
      return;
    case OpKind::Gelu:
    case OpKind::SwiGlu:
    case OpKind::Dropout:
    case OpKind::Rope:
      return pointwise(op);
    case OpKind::RmsNorm:
    case OpKind::AddRmsNorm:
    case OpKind::LayerNorm:
    case OpKind::AddLayerNorm:
      return norm(op);
    case OpKind::SplitQkv:
    case OpKind::SplitQkvRope:
      return splitQkv(op);
    case OpKind::Attention:
      return attention(op);
    case OpKind::CrossEntropy:
      return crossEntropy(op);
    case OpKind::BatchLoad:
    case OpKind::TokenCount:
    case OpKind::LossAdd:
    case OpKind::StepBegin:
      return; // no gradient flows through them
    default:
      SHARDC_CHECK(false, "op '{}' has no backward rule", plan::opInfo(op.kind).name);
    }
  }

  /// c = a·bᵀ (+ bias): weight gradient first, to end the live range of `a` as early as possible.
  void matMul(const Op &op) {
    ValueId dc = grad(op.results[0]);
    if (dc == kNone)
      return;
    ValueId a = op.operands[0], b = op.operands[1];
    SHARDC_CHECK(op.getBool(Key::trans_b) && !op.getBool(Key::trans_a),
                 "forward products are x·wᵀ");
    if (op.operands.size() == 3)
      emitForParam(op.operands[2], makeOp(OpKind::ReduceRows, {dc}));
    Op weight = makeOp(OpKind::MatMul, {dc, a});
    weight.set(Key::trans_a, int64_t{1});
    emitForParam(b, std::move(weight));
    emitFor(a, makeOp(OpKind::MatMul, {dc, b}));
  }

  void pointwise(const Op &op) {
    ValueId dy = grad(op.results[0]);
    if (dy == kNone)
      return;
    Op back = op;
    back.results.clear();
    if (op.kind == OpKind::Gelu || op.kind == OpKind::SwiGlu) {
      back.kind = op.kind == OpKind::Gelu ? OpKind::GeluBwd : OpKind::SwiGluBwd;
      back.operands = {dy, op.operands[0]};
    } else {
      back.operands[0] = dy;
      if (op.kind == OpKind::Rope)
        back.set(Key::inverse, int64_t{1});
    }
    emitFor(op.operands[0], std::move(back));
  }

  void norm(const Op &op) {
    bool fused = op.kind == OpKind::AddRmsNorm || op.kind == OpKind::AddLayerNorm;
    bool layerNorm = op.kind == OpKind::LayerNorm || op.kind == OpKind::AddLayerNorm;
    size_t firstOperand = fused ? 2 : 1, firstResult = fused ? 1 : 0;
    ValueId dy = grad(op.results[firstResult]);
    if (dy == kNone)
      return;
    ValueId x = fused ? op.results[0] : op.operands[0], w = op.operands[firstOperand];
    Op back = makeOp(layerNorm ? OpKind::LayerNormBwd : OpKind::RmsNormBwd, {dy, x, w});
    back.attrs = op.attrs;
    for (size_t r = firstResult + 1; r < op.results.size(); ++r)
      back.operands.push_back(op.results[r]);
    if (grads_[x] != kNone)
      back.operands.push_back(grads_[x]); // dres: the op adds it
    grads_[x] = kNone;
    ValueId dx = contribute(back, x);
    contribute(back, w);
    if (layerNorm)
      contribute(back, op.operands[firstOperand + 1]);
    plan::append(segment_, std::move(back));
    grads_[x] = dx;
    if (fused) {
      settle(op.operands[0], dx);
      settle(op.operands[1], dx);
    }
  }

  void splitQkv(const Op &op) {
    ValueId dq = grad(op.results[0]), dk = grad(op.results[1]), dv = grad(op.results[2]);
    if (dq == kNone)
      return;
    Op merge = op;
    merge.kind = op.kind == OpKind::SplitQkv ? OpKind::MergeQkv : OpKind::MergeQkvRope;
    merge.operands = {dq, dk, dv};
    merge.results.clear();
    emitFor(op.operands[0], std::move(merge));
  }

  void attention(const Op &op) {
    ValueId dout = grad(op.results[0]);
    if (dout == kNone)
      return;
    Op back = op;
    back.kind = OpKind::AttentionBwd;
    back.operands = {dout,          op.operands[0], op.operands[1], op.operands[2],
                     op.results[0], op.results[1],  op.operands[3], op.operands[4]};
    back.results.clear();
    ValueId d[3];
    for (int i = 0; i < 3; ++i)
      d[i] = contribute(back, op.operands[static_cast<size_t>(i)]);
    plan::append(segment_, std::move(back));
    for (int i = 0; i < 3; ++i)
      settle(op.operands[static_cast<size_t>(i)], d[i]);
  }

  void crossEntropy(const Op &op) {
    Op back = makeOp(OpKind::CrossEntropyBwd,
                     {op.operands[0], op.results[1], op.operands[1], op.operands[2], tokenCount()});
    back.attrs = op.attrs;
    emitFor(op.operands[0], std::move(back));
  }

  /// Forward and gradient of the fused head are one op: it replaces the forward op in its place.
  void turnIntoLossGrad(size_t index) {
    Op op = segment_.ops[index];
    op.kind = OpKind::LmLossGrad;
    op.operands.push_back(tokenCount());
    ValueId x = op.operands[0], w = op.operands[1];
    ValueId dx = contribute(op, x);
    contribute(op, w);
    segment_.ops[index] = std::move(op);
    grads_[x] = dx;
  }

  ValueId tokenCount() const {
    for (const Op &op : segment_.ops)
      if (op.kind == OpKind::TokenCount)
        return op.results[0];
    SHARDC_CHECK(false, "a training body counts its tokens");
  }

  void exportGrad(size_t param) {
    ValueId weight = plan::liveInOf(segment_, static_cast<uint32_t>(param));
    if (weight == kNone || grad(weight) == kNone)
      return;
    plan::Cell cell;
    cell.name = "grad." + plan_.params[param].name;
    cell.type = type(grad(weight));
    cell.arena = plan::Arena::Work;
    cell.purpose = plan::Purpose::Grads;
    role_.cells.push_back(std::move(cell));
    segment_.outs.push_back({grad(weight), static_cast<uint32_t>(role_.cells.size()) - 1});
  }

  plan::Plan &plan_;
  plan::Role &role_;
  plan::Segment &segment_;
  std::vector<ValueId> grads_;     ///< gradient of each forward value so far
  std::vector<int> contributions_; ///< number of values created for it
  std::vector<int32_t> paramOf_;   ///< parameter whose content a live-in value is, or -1
  int32_t unit_ = -1;
  uint32_t loc_ = kNone;
};

bool isTraining(const plan::Segment &segment) {
  return std::any_of(segment.ops.begin(), segment.ops.end(),
                     [](const Op &op) { return op.kind == OpKind::LossAdd; });
}

} // namespace

void runBackward(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body && isTraining(segment))
        BackwardWriter(plan, role, segment).run();
}

} // namespace shardc::passes
