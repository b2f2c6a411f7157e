// Fuses ops that cost no more than a store into the epilogue of a product: GELU (tanh
// approximation) after the product of its operand, GELU's gradient after the product of its
// output's gradient, and biases of experts after their products. Runs after Recompute, which
// selects products and activations individually, and after Quantize, because 8-bit products take no
// bias.
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;
using Key = plan::AttrKey;

class EpilogueFuser {
public:
  explicit EpilogueFuser(plan::Segment &segment)
      : segment_(segment), users_(segment), dead_(segment.ops.size(), 0) {}

  void run() {
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (dead_[i] != 0)
        continue;
      if (op.kind == OpKind::Gelu && op.getBool(Key::tanh_approx))
        fuseGelu(i);
      else if (op.kind == OpKind::GeluBwd && op.getBool(Key::tanh_approx))
        fuseGeluBwd(i);
      else if (op.kind == OpKind::GroupedBias)
        fuseGroupedBias(i);
    }
    plan::eraseOps(segment_, dead_);
  }

private:
  /// The product whose only result is the value, or kNone.
  uint32_t productOf(ValueId value) const {
    uint32_t def = segment_.values[value].def;
    if (def == kNone || dead_[def] != 0)
      return kNone;
    const Op &op = segment_.ops[def];
    return op.kind == OpKind::MatMul && op.results.size() == 1 && op.ties.empty() ? def : kNone;
  }

  /// Moves the activation to its product. If the activation has two copies (one recomputed for the
  /// backward pass), fuses only the first reader of the product; the copies stay separate.
  void fuseGelu(size_t index) {
    const Op &gelu = segment_.ops[index];
    ValueId x = gelu.operands[0];
    uint32_t def = productOf(x);
    if (def == kNone || *users_.begin(x) != index || !sameUnit(def, index))
      return;
    Op &product = segment_.ops[def];
    product.kind = OpKind::MatMulGelu;
    product.set(Key::tanh_approx, int64_t{1});
    product.results.insert(product.results.begin(), gelu.results[0]);
    dead_[index] = 1;
  }

  /// Moves the product to the position of the gradient, where x is defined.
  void fuseGeluBwd(size_t index) {
    Op &gradient = segment_.ops[index];
    ValueId dy = gradient.operands[0];
    uint32_t def = productOf(dy);
    if (def == kNone || users_.count(dy) != 1 || segment_.ops[def].operands.size() != 2)
      return;
    const Op &product = segment_.ops[def];
    Op fused = product;
    fused.kind = OpKind::MatMulGeluBwd;
    fused.set(Key::tanh_approx, int64_t{1});
    fused.operands.push_back(gradient.operands[1]);
    fused.results = gradient.results;
    gradient = std::move(fused);
    dead_[def] = 1;
  }

  /// Moves the product to the position of the sum, where bias and weights are defined.
  void fuseGroupedBias(size_t index) {
    constexpr size_t kX = plan::operandIndex<OpKind::GroupedBias>("x"),
                     kBias = plan::operandIndex<OpKind::GroupedBias>("bias"),
                     kCounts = plan::operandIndex<OpKind::GroupedBias>("counts");
    static_assert(kCounts == plan::operandIndex<OpKind::GroupedMatMul>("counts"));
    Op &sum = segment_.ops[index];
    uint32_t def = segment_.values[sum.operands[kX]].def;
    if (def == kNone || users_.count(sum.operands[kX]) != 1)
      return;
    const Op &product = segment_.ops[def];
    auto typeOf = [&](ValueId value) { return segment_.values[value].type.dtype; };
    if (product.kind != OpKind::GroupedMatMul || product.getInt(Key::fp8_recipe) != 0 ||
        !product.ties.empty() || product.operands[kCounts] != sum.operands[kCounts] ||
        typeOf(product.results[0]) != typeOf(sum.results[0])) // the product has a type of its own
      return;
    Op fused = product;
    fused.kind = OpKind::GroupedMatMulBias;
    fused.operands.insert(fused.operands.end(), {sum.operands[kBias]});
    fused.operands.insert(fused.operands.end(), sum.operands.begin() + kCounts + 1,
                          sum.operands.end()); // the weights, if the op has any
    fused.results = sum.results;
    sum = std::move(fused);
    dead_[def] = 1;
  }

  bool sameUnit(size_t a, size_t b) const { return segment_.ops[a].unit == segment_.ops[b].unit; }

  plan::Segment &segment_;
  plan::Users users_; ///< before any change
  std::vector<uint8_t> dead_;
};

} // namespace

void runFuseEpilogues(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      EpilogueFuser(segment).run();
}

} // namespace shardc::passes
