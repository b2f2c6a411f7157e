// Fuses split_qkv with the only readers of q and k, two ropes with equal attributes, into one op.
#include <algorithm>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;
using Key = plan::AttrKey;

/// Behind x: the positions, or nothing.
bool samePositions(const Op &a, const Op &b) {
  return std::equal(a.operands.begin() + 1, a.operands.end(), b.operands.begin() + 1,
                    b.operands.end());
}

bool sameAttr(const plan::Attr &a, const plan::Attr &b) {
  bool isFloat = plan::attrInfo(a.key).type == plan::AttrInfo::Float;
  return a.key == b.key && (isFloat ? a.f == b.f : a.i == b.i);
}

bool sameRotation(const Op &a, const Op &b) {
  return samePositions(a, b) && std::ranges::equal(a.attrs, b.attrs, sameAttr) &&
         !a.getBool(Key::inverse);
}

bool isBefore(const plan::Segment &segment, plan::ValueId value, size_t op) {
  uint32_t def = segment.values[value].def;
  return def == plan::kNone || def < op;
}

/// The rope that is the only reader of the value, or none.
uint32_t onlyRope(const plan::Segment &segment, const plan::Users &users, plan::ValueId value) {
  if (users.count(value) != 1)
    return plan::kNone;
  uint32_t user = *users.begin(value);
  return segment.ops[user].kind == OpKind::Rope ? user : plan::kNone;
}

void fuseQkvRope(plan::Segment &segment) {
  plan::Users users(segment);
  std::vector<uint8_t> dead(segment.ops.size(), 0);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    Op &split = segment.ops[i];
    if (split.kind != OpKind::SplitQkv)
      continue;
    constexpr size_t kQueries = plan::resultIndex<OpKind::SplitQkv>("q"),
                     kKeys = plan::resultIndex<OpKind::SplitQkv>("k");
    uint32_t q = onlyRope(segment, users, split.results[kQueries]),
             k = onlyRope(segment, users, split.results[kKeys]);
    if (q == plan::kNone || k == plan::kNone || !sameRotation(segment.ops[q], segment.ops[k]))
      continue;
    const Op &rope = segment.ops[q];
    if (!std::all_of(rope.operands.begin() + 1, rope.operands.end(),
                     [&](plan::ValueId id) { return isBefore(segment, id, i); }))
      continue;
    split.operands.insert(split.operands.end(), rope.operands.begin() + 1, rope.operands.end());
    split.kind = OpKind::SplitQkvRope;
    split.attrs.insert(split.attrs.end(), rope.attrs.begin(), rope.attrs.end());
    std::ranges::sort(split.attrs, {}, &plan::Attr::key); // split_qkv has others
    split.results[kQueries] = plan::resultNamed<OpKind::Rope>(rope, "y");
    split.results[kKeys] = plan::resultNamed<OpKind::Rope>(segment.ops[k], "y");
    dead[q] = dead[k] = 1;
  }
  plan::eraseOps(segment, dead);
}

} // namespace

void runFuseQkvRope(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      fuseQkvRope(segment);
}

} // namespace shardc::passes
