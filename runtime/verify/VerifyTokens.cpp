// Follows which values are computed of tokens, and how far these are rolled. No op takes them where
// it takes weights. Multi-token prediction losses take labels and masks that are rolled as far as
// the tokens that their layers have seen.
#include <algorithm>
#include <array>

#include "runtime/plan/Factors.h"
#include "runtime/verify/VerifyFlow.h"

namespace shardc::plan::verifier {
namespace {

struct Tokens {
  bool isOf = false;   ///< the value is computed of tokens
  int64_t by = 0;      ///< by how many places the furthest of them are rolled
  bool isKnown = true; ///< they are on all ways to the value

  bool operator==(const Tokens &) const = default;
  void join(const Tokens &more) {
    isKnown = isKnown && more.isKnown && by == more.by;
    isOf |= more.isOf;
  }
};

/// Operands of an op, -1 where it has none of the name.
struct TokenOperands {
  std::array<int, 6> weights = {};
  std::array<int, 7> ofLoss = {}; ///< all -1 if the op makes no loss
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
      result = {}; // weights, although their gradients are of tokens
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
    // The second factor, unless the product is a sum over rows.
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
