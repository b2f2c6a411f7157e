// Tracks which values depend on tokens, and by how many positions these tokens are rolled. No op
// may read such values as weights. The loss of a multi-token prediction must read labels and masks
// that are rolled as far as the tokens that its layers read.
#include <algorithm>
#include <array>

#include "runtime/plan/Factors.h"
#include "runtime/verify/VerifyFlow.h"

namespace shardc::plan::verifier {
namespace {

struct Tokens {
  bool isOf = false;   ///< whether the value depends on tokens
  int64_t by = 0;      ///< the largest roll among these tokens, in positions
  bool isKnown = true; ///< the roll is equal on all paths to the value

  bool operator==(const Tokens &) const = default;
  void join(const Tokens &more) {
    isKnown = isKnown && more.isKnown && by == more.by;
    isOf |= more.isOf;
  }
};

/// Operand indices of an op; -1 for names that it lacks.
struct TokenOperands {
  std::array<int, 6> weights = {};
  std::array<int, 7> ofLoss = {}; ///< all -1 if the op computes no loss
};

const TokenOperands &operandsOf(OpKind kind) {
  static const std::vector<TokenOperands> all = [] {
    std::vector<TokenOperands> found;
    for (int each = 0; each < kOpCount; ++each) {
      const OpInfo &info = opInfo(static_cast<OpKind>(each));
      auto at = [&](std::string_view name) { return positionOf(info.operands, name); };
      TokenOperands &own = found.emplace_back();
      own.weights = {at("w"), at("wq"), at("wk"), at("bias"), at("table"), at("sink")};
      own.ofLoss = {at("x"),      at("logits"), at("stats"), at("lse"),
                    at("labels"), at("mask"),   at("n")};
      if (at("labels") < 0 && static_cast<OpKind>(each) != OpKind::VocabLoss)
        own.ofLoss.fill(-1);
    }
    return found;
  }();
  return all[static_cast<size_t>(kind)];
}

class TokenDomain {
public:
  using State = Tokens;
  using Values = SegmentValues<Tokens>;

  void follow(const Values &at, uint32_t i, const Op &op) const {
    Tokens result = {.isOf = op.kind == OpKind::BatchLoad};
    for (ValueId operand : op.operands) {
      result.isOf |= at[operand].isOf;
      result.by = std::max(result.by, at[operand].by);
      result.isKnown &= at[operand].isKnown;
    }
    if (op.kind == OpKind::Roll)
      result.by += op.getInt(AttrKey::by);
    if (opInfo(op).isOptimizer())
      result = {}; // weights do not depend on tokens, although their gradients do
    at.setAll(op, result);
    if (at.isReport)
      needWeights(at, i, op), needAlike(at, i, op);
  }

private:
  static void needWeights(const Values &at, uint32_t i, const Op &op) {
    auto need = [&](int operand) {
      auto k = static_cast<size_t>(operand);
      if (k < op.operands.size() && at.operand(op, k).isOf)
        at.scope.addValue(finding::TokensForWeights, i, op.operands[k]);
    };
    for (int operand : operandsOf(op.kind).weights)
      need(operand);
    // The second factor is a weight, unless the product sums over rows.
    if (factorsOf(op.kind).isTransposed(kSecondFactor, AttrKey::trans_b) &&
        at.operand(op, kFirstFactor).isOf && !op.getBool(AttrKey::trans_a))
      need(kSecondFactor);
  }

  static void needAlike(const Values &at, uint32_t i, const Op &op) {
    const Tokens *first = nullptr;
    for (int operand : operandsOf(op.kind).ofLoss) {
      auto k = static_cast<size_t>(operand);
      if (k >= op.operands.size())
        continue;
      const Tokens &own = at.operand(op, k);
      first = first == nullptr ? &own : first;
      if (!own.isKnown || own.by != first->by)
        at.scope.addValue(finding::RolledOtherwise, i, op.operands[k], textOf(own), textOf(*first));
    }
  }

  static std::string textOf(const Tokens &tokens) {
    return tokens.isKnown ? std::to_string(tokens.by) : "an unknown number of";
  }
};

} // namespace

std::unique_ptr<ValueDomain> makeTokens(Inspection &inspection) {
  bool isNeeded =
      hasOp(inspection.plan(), [](const Op &op) { return op.kind == OpKind::BatchLoad; });
  return isNeeded ? asValueDomain(TokenDomain()) : nullptr;
}

} // namespace shardc::plan::verifier
