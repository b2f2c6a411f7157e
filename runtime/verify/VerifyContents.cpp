// Computes the content of each value, op by op, and finds variants of a segment that execute the
// same ops.
#include "runtime/verify/VerifyContents.h"

#include <algorithm>

namespace shardc::plan::verifier {
namespace {

constexpr uint8_t kDepthMax = 4;

/// The distinct predicates of the segment's ops and ties.
std::vector<Pred> predsOf(const Segment &segment) {
  std::vector<Pred> preds;
  auto add = [&](const Pred &pred) {
    if (pred != Pred::Always && std::ranges::find(preds, pred) == preds.end())
      preds.push_back(pred);
  };
  for (const Op &op : segment.ops) {
    add(op.pred);
    for (const Tie &tie : op.ties)
      add(tie.pred);
  }
  return preds;
}

std::vector<std::pair<Variant, Variant>> findRepresentatives(Inspection &inspection, uint32_t role,
                                                             uint32_t segment) {
  std::vector<Pred> preds = predsOf(inspection.plan().roles[role].segments[segment]);
  auto isAlike = [&](const Variant &a, const Variant &b) {
    return std::ranges::all_of(preds,
                               [&](const Pred &pred) { return holds(pred, a) == holds(pred, b); });
  };
  std::vector<std::pair<Variant, Variant>> standing;
  for (const Variant &variant : inspection.variantsOf(role, segment)) {
    auto at = std::ranges::find_if(
        standing, [&](const auto &entry) { return isAlike(entry.second, variant); });
    standing.emplace_back(variant, at == standing.end() ? variant : at->second);
  }
  return standing;
}

} // namespace

const std::vector<std::pair<Variant, Variant>> &Inspection::representativesOf(uint32_t role,
                                                                              uint32_t segment) {
  auto [at, isNew] = representatives_.try_emplace({role, segment});
  if (isNew)
    at->second = findRepresentatives(*this, role, segment);
  return at->second;
}

bool gathersInPlace(const Plan &plan, const Role &role, const Segment &segment, const Op &op) {
  if (op.kind != OpKind::AllGather)
    return false;
  const Value &shard = segment.values[op.operands[0]], &full = segment.values[op.results[0]];
  return liesAt(plan, role, shard.place, full.place, {0, shard.type.bytes(), op.group});
}

Contents::Contents(const Scope &scope, Variant variant)
    : report_(scope.inspection), plan_(scope.plan()), role_(scope.role), segment_(scope.segment),
      variant_(variant), indices_(scope.plan(), scope.role),
      contents_(scope.segment.values.size()) {
  for (const Segment::Boundary &in : segment_.ins)
    contents_[in.value] = {Kind::Leaf, false, 0, in.value};
  for (uint32_t i = 0; i < segment_.ops.size(); ++i)
    define(i);
}

/// Undefined if any part is undefined, since then no op can read the whole.
Contents::Content Contents::composite(const Op &op) {
  Content content{Kind::Composite, false, 1, op.results[0]};
  for (ValueId part : op.operands) {
    if (!isDefined(part))
      return {};
    content.depth = std::max<uint8_t>(content.depth, contents_[part].depth + 1);
  }
  // Visits multiply with depth. Compiled plans nest at most twice.
  if (content.depth > kDepthMax) {
    tooDeep_ = true;
    return {};
  }
  return content;
}

void Contents::define(uint32_t opIndex) {
  const Op &op = segment_.ops[opIndex];
  if (op.kind == OpKind::View) {
    Content content = contents_[op.operands[0]];
    content.isNarrow |=
        segment_.values[op.results[0]].type.numel() != segment_.values[op.operands[0]].type.numel();
    contents_[op.results[0]] = content;
  } else if (op.kind == OpKind::Pack) {
    contents_[op.results[0]] = composite(op);
  } else if (!holds(op.pred, variant_)) {
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Else)
        contents_[op.results[tie.result]] = contents_[tie.value];
  } else if (gathersInPlace(plan_, role_, segment_, op)) {
    contents_[op.results[0]] = composite(op);
  } else {
    for (ValueId result : op.results)
      contents_[result] = {Kind::Leaf, false, 0, result};
  }
}

} // namespace shardc::plan::verifier
