// Lets backward ops write activations a second time, at the price of one store, so that the forward
// pass need not keep them. Backward ops of gated activations read gate and up, and rmsnorm_bwd
// reads its input and statistics, so each can compute the activation as a further result, bitwise
// equal. The weight gradient that reads the activation moves after that op. This halves the bytes
// that a layer keeps.
#include <algorithm>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Job;

class Reemitter {
public:
  Reemitter(plan::Segment &segment, bool keepsExperts)
      : segment_(segment), keepsExperts_(keepsExperts), users_(segment),
        forwardOps_(countForwardOps(segment)), behind_(segment.ops.size()),
        moved_(segment.ops.size(), 0) {}

  void run() {
    bool changed = false;
    for (size_t i = forwardOps_; i < segment_.ops.size(); ++i)
      if (ValueId y = activationOf(segment_.ops[i]); y != kNone && canFollow(y, i)) {
        reemit(y, i);
        changed = true;
      }
    if (changed)
      reorder();
  }

private:
  /// The forward activation that a backward op could write a second time, or kNone.
  ValueId activationOf(const Op &back) const {
    const plan::OpInfo &info = plan::opInfo(back);
    auto indexOf = [](std::string_view names, std::string_view name) {
      return static_cast<size_t>(plan::positionOf(names, name));
    };
    if (info.reemits && back.results.size() == indexOf(info.results, "y")) {
      ValueId x = back.operands[indexOf(info.operands, "x")];
      for (const uint32_t *user = users_.begin(x); user != users_.end(x); ++user)
        if (segment_.ops[*user].kind == *info.reemits)
          return segment_.ops[*user].results[0];
    }
    bool isOfNorm = back.kind == OpKind::RmsNormBwd || back.kind == OpKind::RmsNormDx;
    if (isOfNorm && back.results.size() == indexOf(info.results, "y")) {
      uint32_t def = segment_.values[back.operands[indexOf(info.operands, "rstd")]].def;
      if (def == kNone)
        return kNone;
      const Op &norm = segment_.ops[def];
      if (norm.kind == OpKind::RmsNorm)
        return norm.results[0];
      if (norm.kind == OpKind::AddRmsNorm)
        return norm.results[1];
    }
    return kNone;
  }

  /// Whether all readers of the activation in the backward pass are weight gradients that may move
  /// after the op.
  bool canFollow(ValueId y, size_t back) const {
    bool any = false;
    if (segment_.values[y].counts != kNone && !keepsExperts_)
      return false;
    for (const uint32_t *user = users_.begin(y); user != users_.end(y); ++user) {
      if (*user < forwardOps_)
        continue;
      const Op &op = segment_.ops[*user];
      bool isProduct = op.kind == OpKind::GroupedMatMulBwd ||
                       (op.kind == OpKind::MatMul && op.operands.size() == 2 &&
                        op.role == plan::ProductRole::WeightGradient);
      bool isWeightGradient = isProduct && op.operands[1] == y && op.operands[0] != y;
      if (!isWeightGradient || *user > back || moved_[*user] != 0)
        return false;
      for (ValueId result : op.results)
        for (const uint32_t *reader = users_.begin(result); reader != users_.end(result); ++reader)
          if (*reader <= back)
            return false;
      any = true;
    }
    return any;
  }

  void reemit(ValueId y, size_t back) {
    plan::Value value = segment_.values[y];
    ValueId again = plan::addValue(segment_, value.name + ".again", value.type, value.purpose);
    segment_.values[again].counts = value.counts;
    segment_.ops[back].results.push_back(again);
    for (const uint32_t *user = users_.begin(y); user != users_.end(y); ++user) {
      if (*user < forwardOps_)
        continue;
      segment_.ops[*user].operands[1] = again;
      moved_[*user] = 1;
      behind_[back].push_back(*user);
    }
  }

  void reorder() {
    std::vector<Op> ops;
    ops.reserve(segment_.ops.size());
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      if (moved_[i] != 0)
        continue;
      ops.push_back(std::move(segment_.ops[i]));
      for (uint32_t follower : behind_[i])
        ops.push_back(std::move(segment_.ops[follower]));
    }
    plan::replaceOps(segment_, std::move(ops));
  }

  plan::Segment &segment_;
  bool keepsExperts_; ///< whether the forward pass keeps activations of experts
  plan::Users users_; ///< before any change
  size_t forwardOps_;
  std::vector<std::vector<uint32_t>> behind_; ///< by op: the ops to insert after it
  std::vector<uint8_t> moved_;
};

/// Whether the forward pass would keep activations of experts. If it would not, weight gradients of
/// experts should not move: they would extend the live range of the layer's gradient, which has
/// many rows.
bool keepsExperts(const Job::Model &model) {
  if (model.recomputeGranularity != Job::RecomputeGranularity::Selective)
    return !model.recomputeGranularity;
  return std::ranges::none_of(model.recomputeModules, [](Job::RecomputeModule module) {
    return module == Job::RecomputeModule::Moe || module == Job::RecomputeModule::MoeAct;
  });
}

} // namespace

void runReemitActivations(plan::Plan &plan, Notes &) {
  bool keeps = keepsExperts(plan.job.model);
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        Reemitter(segment, keeps).run();
}

} // namespace shardc::passes
