// Backward rules of attention and of the split of its rows.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "compiler/passes/Gradients.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::ValueId;

void splitQkv(Gradients &gradients, const Op &op, OpKind kind) {
  ValueId dq = gradients.of(op.results[0]), dk = gradients.of(op.results[1]),
          dv = gradients.of(op.results[2]);
  if (dq == kNone)
    return;
  Op merge = gradients.makeOp(kind, {dq, dk, dv});
  merge.attrs = op.attrs;
  merge.group = op.group;
  merge.operands.insert(merge.operands.end(), op.operands.begin() + 1, op.operands.end());
  gradients.emitFor(op.operands[0], std::move(merge));
}

/// Queries, keys and values, as the backward op reads them.
using Heads = std::array<ValueId, 3>;

/// What an op's keys add to the gradients of what it took, from the gradient, the output and the
/// statistics of the attention that it is, or is a part of.
void attention(Gradients &gradients, OpKind kind, const Op &op, const Heads &heads, ValueId dout,
               const Op &whole) {
  Op back = gradients.makeOp(kind, {dout});
  back.attrs = op.attrs;
  back.group = op.group;
  back.operands.insert(back.operands.end(), heads.begin(), heads.end());
  back.operands.insert(back.operands.end(), whole.results.begin(), whole.results.end());
  back.operands.insert(back.operands.end(), op.operands.begin() + 3, op.operands.end());
  ValueId d[3];
  for (size_t i = 0; i < 3; ++i)
    d[i] = gradients.contribute(back, op.operands[i]);
  gradients.append(std::move(back));
  for (size_t i = 0; i < 3; ++i)
    gradients.settle(op.operands[i], d[i]);
}

Heads headsOf(const Op &op) { return {op.operands[0], op.operands[1], op.operands[2]}; }

/// The parts that were joined, in order.
void collectParts(const Gradients &gradients, const Op &join, std::vector<Op> &parts) {
  for (ValueId output : {join.operands[0], join.operands[2]}) {
    const Op maker = gradients.makerOf(output);
    if (maker.kind == OpKind::AttentionJoin)
      collectParts(gradients, maker, parts);
    else
      parts.push_back(maker);
  }
}

/// Keys and values that have come around a ring are not kept: the backward pass brings them again,
/// from the other side, and their gradients go on to where they came from. A member is one further
/// while attention of the one before is computed.
class RingBack {
public:
  explicit RingBack(Gradients &gradients) : gradients_(gradients) {}

  /// What the part reads.
  Heads bring(const Op &part) {
    return {part.operands[0], again(part.operands[1]), again(part.operands[2])};
  }

  /// Gradients of what the part took from a ring.
  void giveBack(const Op &part) {
    for (size_t operand : {size_t{1}, size_t{2}}) {
      std::optional<Op> shift = shiftOf(part.operands[operand]);
      ValueId gradient = shift ? gradients_.take(part.operands[operand]) : kNone;
      if (gradient == kNone)
        continue;
      Op back = gradients_.makeOp(OpKind::Shift, {gradient});
      back.group = shift->group;
      back.set(plan::AttrKey::by, -shift->getInt(plan::AttrKey::by));
      gradients_.emitFor(shift->operands[0], std::move(back));
    }
  }

  bool isShifted(const Op &part) const { return shiftOf(part.operands[1]).has_value(); }

private:
  /// Of a value, how far it has gone.
  struct Brought {
    ValueId value;
    int64_t by;
  };

  std::optional<Op> shiftOf(ValueId value) const {
    std::optional<Op> maker = gradients_.findMaker(value);
    return maker && maker->kind == OpKind::Shift ? maker : std::nullopt;
  }

  ValueId again(ValueId value) {
    int64_t by = 0;
    ValueId origin = value;
    int16_t group = -1;
    while (std::optional<Op> shift = shiftOf(origin)) {
      by += shift->getInt(plan::AttrKey::by);
      group = shift->group;
      origin = shift->operands[0];
    }
    if (group < 0)
      return value;
    auto before = brought_.find(origin);
    int64_t members = gradients_.groupSize(group);
    Op shift = gradients_.makeOp(OpKind::Shift, {origin});
    shift.group = group;
    if (before != brought_.end()) {
      shift.operands = {before->second.value};
      shift.set(plan::AttrKey::by, by - before->second.by);
    } else {
      shift.set(plan::AttrKey::by, 2 * by > members ? by - members : by);
    }
    ValueId result = gradients_.makeAgain(value, std::move(shift));
    brought_[origin] = {result, by};
    return result;
  }

  Gradients &gradients_;
  std::map<ValueId, Brought> brought_; ///< the last one of each origin
};

/// The gradient goes to all parts that were joined, each with what `whole` has made of all: first
/// to that of the rank's own keys, then to those that have come the longest way.
void joined(Gradients &gradients, const Op &join, ValueId dout, const Op &whole) {
  std::vector<Op> parts;
  collectParts(gradients, join, parts);
  RingBack ring(gradients);
  auto others = std::stable_partition(parts.begin(), parts.end(),
                                      [&](const Op &part) { return !ring.isShifted(part); });
  std::reverse(others, parts.end());
  std::optional<Heads> next;
  for (size_t i = 0; i < parts.size(); ++i) {
    Heads heads = next ? *next : ring.bring(parts[i]);
    if (i + 1 < parts.size())
      next = ring.bring(parts[i + 1]);
    attention(gradients, OpKind::AttentionPartBwd, parts[i], heads, dout, whole);
    ring.giveBack(parts[i]);
  }
}

} // namespace

void backAttentionPart(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(op.results[0]); dout != kNone)
    attention(gradients, OpKind::AttentionPartBwd, op, headsOf(op), dout, op);
}

void backAttentionJoin(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(op.results[0]); dout != kNone)
    joined(gradients, op, dout, op);
}

/// A sink changes outputs and statistics, and with these alone what gradients of attention follow
/// from: its own value is 0.
void backAttentionSink(Gradients &gradients, const Op &op) {
  ValueId dout = gradients.of(op.results[0]);
  if (dout == kNone)
    return;
  constexpr size_t kSink = 2;
  if (op.operands.size() > kSink) {
    Op back = gradients.makeOp(OpKind::AttentionSinkBwd,
                               {dout, op.results[0], op.results[1], op.operands[kSink]});
    back.group = op.group;
    gradients.emitFor(op.operands[kSink], std::move(back));
  }
  const Op maker = gradients.makerOf(op.operands[0]);
  if (maker.kind == OpKind::AttentionJoin)
    joined(gradients, maker, dout, op);
  else
    attention(gradients,
              maker.kind == OpKind::Attention ? OpKind::AttentionBwd : OpKind::AttentionPartBwd,
              maker, headsOf(maker), dout, op);
}

void backSplitQkv(Gradients &gradients, const Op &op) { splitQkv(gradients, op, OpKind::MergeQkv); }

void backSplitQkvRope(Gradients &gradients, const Op &op) {
  splitQkv(gradients, op, OpKind::MergeQkvRope);
}

void backSplitColumns(Gradients &gradients, const Op &op) {
  ValueId da = gradients.of(op.results[0]), db = gradients.of(op.results[1]);
  if (da != kNone && db != kNone)
    gradients.emitFor(op.operands[0], gradients.makeOp(OpKind::JoinColumns, {da, db}));
}

void backLatentHeads(Gradients &gradients, const Op &op) {
  ValueId dq = gradients.of(op.results[0]), dk = gradients.of(op.results[1]),
          dv = gradients.of(op.results[2]);
  if (dq == kNone)
    return;
  constexpr size_t kRows = 3; // operands that have a gradient
  Op back = gradients.makeOp(OpKind::LatentHeadsBwd, {dq, dk, dv});
  back.attrs = op.attrs;
  back.operands.insert(back.operands.end(), op.operands.begin() + kRows, op.operands.end());
  ValueId d[kRows];
  for (size_t i = 0; i < kRows; ++i)
    d[i] = gradients.contribute(back, op.operands[i]);
  gradients.append(std::move(back));
  for (size_t i = 0; i < kRows; ++i)
    gradients.settle(op.operands[i], d[i]);
}

void backAttention(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(op.results[0]); dout != kNone)
    attention(gradients, OpKind::AttentionBwd, op, headsOf(op), dout, op);
}

} // namespace shardc::passes
