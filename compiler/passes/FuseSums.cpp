// Fuses the sum of two products, such as those of a layer and of its adapter, into the larger
// product, which adds the other product's result when it writes its own. Likewise fuses the
// corresponding sums of input gradients. This saves one pass over the sum, and one rounding.
#include <algorithm>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;
using Key = plan::AttrKey;

class SumFuser {
public:
  explicit SumFuser(plan::Segment &segment) : segment_(segment), users_(segment) {}

  void run() {
    std::vector<uint8_t> dead(segment_.ops.size(), 0);
    for (size_t i = 0; i < segment_.ops.size(); ++i)
      if (const Op &op = segment_.ops[i]; op.kind == OpKind::Add && op.ties.empty())
        fuse(i, dead);
    plan::eraseOps(segment_, dead);
  }

private:
  /// The product whose only reader is the sum; kNone if the term is not such a product.
  uint32_t productOf(ValueId term, ValueId sum) const {
    uint32_t def = segment_.values[term].def;
    if (def == kNone || users_.count(term) != 1 || isOut(term) ||
        segment_.values[term].type != segment_.values[sum].type)
      return kNone;
    const Op &op = segment_.ops[def];
    return op.kind == OpKind::MatMul && op.ties.empty() ? def : kNone;
  }

  bool isOut(ValueId value) const {
    return std::ranges::find(segment_.outs, value, &plan::Segment::Boundary::value) !=
           segment_.outs.end();
  }

  /// Length of the dimension over which the product sums.
  int64_t depthOf(uint32_t product) const {
    const Op &op = segment_.ops[product];
    const plan::Type &a = segment_.values[op.operands[0]].type;
    int64_t columns = a.shape[a.rank - 1u];
    return op.getBool(Key::trans_a) ? a.numel() / columns : columns;
  }

  void fuse(size_t sum, std::vector<uint8_t> &dead) {
    const Op &add = segment_.ops[sum];
    uint32_t first = productOf(add.operands[0], add.results[0]),
             second = productOf(add.operands[1], add.results[0]);
    if (first == kNone || second == kNone || first == second)
      return;
    uint32_t larger = depthOf(first) >= depthOf(second) ? first : second;
    ValueId more = segment_.ops[larger == first ? second : first].results[0];
    // The product moves to the position of the sum, where the other operand is defined.
    Op fused = segment_.ops[larger];
    fused.kind = OpKind::MatMulAdd;
    fused.operands.insert(fused.operands.begin() + 2, more);
    fused.results = add.results;
    segment_.ops[sum] = std::move(fused);
    dead[larger] = 1;
  }

  plan::Segment &segment_;
  plan::Users users_;
};

} // namespace

void runFuseSums(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      SumFuser(segment).run();
}

} // namespace shardc::passes
