// Fuses split_qkv with two ropes of equal attributes if these are the only readers of q and k. Two
// norms of equal attributes between the split and the ropes are fused as well.
#include <algorithm>

#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Op;
using plan::OpKind;
using Key = plan::AttrKey;

/// Whether both ops have equal operands after x (positions, if any).
bool samePositions(const Op &a, const Op &b) {
  return std::equal(a.operands.begin() + 1, a.operands.end(), b.operands.begin() + 1,
                    b.operands.end());
}

bool sameAttr(const plan::Attr &a, const plan::Attr &b) {
  bool isFloat = plan::attrInfo(a.key).type == plan::AttrInfo::Float;
  return a.key == b.key && (isFloat ? a.f == b.f : a.i == b.i);
}

bool sameAttrs(const Op &a, const Op &b) { return std::ranges::equal(a.attrs, b.attrs, sameAttr); }

bool sameRotation(const Op &a, const Op &b) {
  return samePositions(a, b) && sameAttrs(a, b) && !a.getBool(Key::inverse);
}

bool isBefore(const plan::Segment &segment, plan::ValueId value, size_t op) {
  uint32_t def = segment.values[value].def;
  return def == plan::kNone || def < op;
}

uint32_t onlyUser(const plan::Users &users, plan::ValueId value) {
  return users.count(value) == 1 ? *users.begin(value) : plan::kNone;
}

/// The ops on q or k that can be fused, because nothing else reads their operands.
struct Rotated {
  uint32_t norm = plan::kNone,
           rope = plan::kNone; ///< kNone: the heads are not normalised, or not rotated
};

/// Follows heads through a norm and a rotation, either of which may be missing. Each of them must
/// be the only use of its operand.
Rotated rotatedFrom(const plan::Segment &segment, const plan::Users &users, plan::ValueId heads) {
  Rotated rotated;
  uint32_t user = onlyUser(users, heads);
  if (user != plan::kNone && segment.ops[user].kind == OpKind::RmsNorm) {
    const Op &norm = segment.ops[user];
    bool isHeads = plan::operandNamed<OpKind::RmsNorm>(norm, "x") == heads;
    if (!isHeads || users.count(plan::resultNamed<OpKind::RmsNorm>(norm, "rstd")) != 0)
      return {};
    rotated.norm = user;
    user = onlyUser(users, plan::resultNamed<OpKind::RmsNorm>(norm, "y"));
  }
  if (user != plan::kNone && segment.ops[user].kind == OpKind::Rope)
    rotated.rope = user;
  return rotated;
}

/// Adds the norms' weights and attributes to the split.
void addNorms(plan::Segment &segment, Op &split, const Op &q, const Op &k) {
  split.kind = OpKind::SplitQkvNormRope;
  for (const Op *norm : {&q, &k}) {
    plan::ValueId rstd = plan::resultNamed<OpKind::RmsNorm>(*norm, "rstd");
    plan::Type heads = segment.values[norm->results[0]].type;
    segment.values[rstd].type =
        plan::Type::of(DType::F32, {heads.shape[0], heads.shape[1], heads.shape[2]});
    split.operands.push_back(plan::operandNamed<OpKind::RmsNorm>(*norm, "w"));
    split.results.push_back(rstd);
  }
  split.attrs.insert(split.attrs.end(), q.attrs.begin(), q.attrs.end());
}

/// The view that defines the value behind op `at`, but whose operand is defined before it; kNone if
/// there is none. Ranks that share a norm's weight have such a view of it before the norm.
uint32_t viewBehind(const plan::Segment &segment, plan::ValueId value, size_t at) {
  uint32_t def = segment.values[value].def;
  bool isView = !isBefore(segment, value, at) && segment.ops[def].kind == OpKind::View &&
                isBefore(segment, segment.ops[def].operands[0], at);
  return isView ? def : plan::kNone;
}

/// Removes the ops of `dead`, and moves the views of each op's list before the op.
void rebuild(plan::Segment &segment, const std::vector<uint8_t> &dead,
             const std::vector<std::vector<uint32_t>> &views) {
  std::vector<uint8_t> isDone = dead;
  std::vector<Op> ops;
  auto take = [&](uint32_t op) {
    if (!isDone[op])
      ops.push_back(std::move(segment.ops[op]));
    isDone[op] = 1;
  };
  for (uint32_t i = 0; i < segment.ops.size(); ++i) {
    std::ranges::for_each(views[i], take);
    take(i);
  }
  plan::replaceOps(segment, std::move(ops));
}

/// The fused op takes the position of the split, so all further operands of ropes and norms must be
/// defined before it. Views of weights that stand behind the split move before it.
void fuseQkvRope(plan::Segment &segment) {
  plan::Users users(segment);
  std::vector<uint8_t> dead(segment.ops.size(), 0);
  std::vector<std::vector<uint32_t>> views(segment.ops.size());
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    Op &split = segment.ops[i];
    if (split.kind != OpKind::SplitQkv)
      continue;
    constexpr size_t kQueries = plan::resultIndex<OpKind::SplitQkv>("q"),
                     kKeys = plan::resultIndex<OpKind::SplitQkv>("k");
    Rotated q = rotatedFrom(segment, users, split.results[kQueries]),
            k = rotatedFrom(segment, users, split.results[kKeys]);
    if (q.rope == plan::kNone || k.rope == plan::kNone ||
        !sameRotation(segment.ops[q.rope], segment.ops[k.rope]))
      continue;
    bool hasNorms = q.norm != plan::kNone;
    if (hasNorms != (k.norm != plan::kNone) ||
        (hasNorms && (split.group >= 0 || !sameAttrs(segment.ops[q.norm], segment.ops[k.norm]))))
      continue;
    const Op &rope = segment.ops[q.rope];
    std::vector<uint32_t> moved;
    auto isThere = [&](plan::ValueId id) {
      uint32_t view = viewBehind(segment, id, i);
      if (view != plan::kNone)
        moved.push_back(view);
      return view != plan::kNone || isBefore(segment, id, i);
    };
    auto areThere = [&](uint32_t user) {
      const std::vector<plan::ValueId> &operands = segment.ops[user].operands;
      return std::all_of(operands.begin() + 1, operands.end(), isThere);
    };
    if (!areThere(q.rope) || (hasNorms && !(areThere(q.norm) && areThere(k.norm))))
      continue;
    views[i] = std::move(moved);
    split.kind = OpKind::SplitQkvRope;
    if (hasNorms)
      addNorms(segment, split, segment.ops[q.norm], segment.ops[k.norm]);
    split.operands.insert(split.operands.end(), rope.operands.begin() + 1, rope.operands.end());
    split.attrs.insert(split.attrs.end(), rope.attrs.begin(), rope.attrs.end());
    std::ranges::sort(split.attrs, {}, &plan::Attr::key); // split_qkv had attributes, too
    split.results[kQueries] = plan::resultNamed<OpKind::Rope>(rope, "y");
    split.results[kKeys] = plan::resultNamed<OpKind::Rope>(segment.ops[k.rope], "y");
    for (uint32_t gone : {q.rope, k.rope, q.norm, k.norm})
      if (gone != plan::kNone)
        dead[gone] = 1;
  }
  rebuild(segment, dead, views);
}

} // namespace

void runFuseQkvRope(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      fuseQkvRope(segment);
}

} // namespace shardc::passes
