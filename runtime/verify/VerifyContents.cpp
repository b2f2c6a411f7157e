#include "runtime/verify/VerifyContents.h"

#include <algorithm>

namespace shardc::plan::verifier {
namespace {

constexpr uint8_t kDepthMax = 4;

struct PredUse {
  bool first = false, last = false;
  void add(Pred pred) {
    first |= pred == Pred::First || pred == Pred::NotFirst;
    last |= pred == Pred::Last || pred == Pred::NotLast;
  }
};

PredUse predsOf(const Segment &segment) {
  PredUse use;
  for (const Op &op : segment.ops) {
    use.add(op.pred);
    for (const Tie &tie : op.ties)
      use.add(tie.pred);
  }
  return use;
}

bool executeAlike(PredUse use, Variant a, Variant b) {
  return (!use.first || holds(Pred::First, a) == holds(Pred::First, b)) &&
         (!use.last || holds(Pred::Last, a) == holds(Pred::Last, b));
}

} // namespace

std::vector<Variant> distinctVariants(const Role &role, uint32_t segment) {
  if (!role.segments[segment].body)
    return variantsOf(role, segment);
  PredUse use = predsOf(role.segments[segment]);
  std::vector<Variant> distinct;
  for (Variant variant : variantsOf(role, segment))
    if (std::none_of(distinct.begin(), distinct.end(),
                     [&](Variant v) { return executeAlike(use, v, variant); }))
      distinct.push_back(variant);
  return distinct;
}

std::array<Variant, 4> representatives(const Segment &segment,
                                       const std::vector<Variant> &distinct) {
  std::array<Variant, 4> all = {Variant::First, Variant::Middle, Variant::Last, Variant::Only};
  if (!segment.body)
    return all;
  PredUse use = predsOf(segment);
  for (Variant &variant : all)
    for (Variant v : distinct)
      if (executeAlike(use, v, variant)) {
        variant = v;
        break;
      }
  return all;
}

bool gathersInPlace(const Plan &plan, const Role &role, const Segment &segment, const Op &op) {
  if (op.kind != OpKind::AllGather)
    return false;
  const Value &shard = segment.values[op.operands[0]], &full = segment.values[op.results[0]];
  if (!shard.place.placed || !full.place.placed)
    return false;
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

const Contents &Inspection::contentsOf(uint32_t role, uint32_t segment, Variant variant) {
  std::shared_ptr<const Contents> &contents = contents_[{role, segment, variant}];
  if (!contents) {
    Scope scope{*this, plan_.roles[role], plan_.roles[role].segments[segment], role, segment};
    contents = std::make_shared<Contents>(scope, variant);
  }
  return *contents;
}

/// Undefined if a part is: nothing can read the whole then.
Contents::Content Contents::composite(const Op &op) {
  Content content{Kind::Composite, false, 1, op.results[0]};
  for (ValueId part : op.operands) {
    if (!isDefined(part))
      return {};
    content.depth = std::max<uint8_t>(content.depth, contents_[part].depth + 1);
  }
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
