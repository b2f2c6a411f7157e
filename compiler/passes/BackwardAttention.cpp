// Backward rules of attention, and of the ops that split QKV rows into heads.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "compiler/passes/Gradients.h"
#include "compiler/passes/PlanNames.h"

namespace shardc::passes {
namespace {

using plan::operandNamed;
using plan::resultNamed;

/// Queries, keys and values as the backward op reads them, or the gradients of the three.
using Heads = std::array<ValueId, 3>;

template <OpKind kOp> Heads gradientsOfHeads(const Gradients &gradients, const Op &op) {
  return {gradients.of(resultNamed<kOp>(op, "q")), gradients.of(resultNamed<kOp>(op, "k")),
          gradients.of(resultNamed<kOp>(op, "v"))};
}

/// Emits the gradient of QKV rows. Op `merge` joins the gradients of the heads; its other operands
/// are those that follow the rows in the split.
template <OpKind split> void splitQkv(Gradients &gradients, const Op &op, OpKind merge) {
  auto [dq, dk, dv] = gradientsOfHeads<split>(gradients, op);
  if (dq == kNone)
    return;
  constexpr size_t kRows = plan::operandIndex<split>("qkv");
  Op back = gradients.makeOp(merge, {dq, dk, dv});
  back.attrs = op.attrs;
  back.group = op.group;
  back.operands.insert(back.operands.end(), op.operands.begin() + kRows + 1, op.operands.end());
  gradients.emitFor(op.operands[kRows], std::move(back));
}

Heads headsOf(const Op &op) {
  const plan::OpInfo &info = plan::opInfo(op);
  auto at = [&](int8_t operand) { return op.operands[static_cast<size_t>(operand)]; };
  return {at(info.queries), at(info.keys), at(info.values)};
}

/// Adds the backward op of attention. `whole` is the complete attention, of which `op` is all or
/// one part; the backward op reads the output, its gradient and the statistics of `whole`. The
/// first operands of `op` are queries, keys and values.
void attention(Gradients &gradients, OpKind kind, const Op &op, const Heads &heads, ValueId dout,
               const Op &whole) {
  Op back = gradients.makeOp(kind, {dout});
  back.attrs = op.attrs;
  back.group = op.group;
  back.operands.insert(back.operands.end(), heads.begin(), heads.end());
  back.operands.insert(back.operands.end(), whole.results.begin(), whole.results.end());
  back.operands.insert(back.operands.end(), op.operands.begin() + heads.size(), op.operands.end());
  gradients.emitForEach(headsOf(op), std::move(back));
}

/// Collects the attention parts that the joins combine, in the order of the joins.
void collectParts(const Gradients &gradients, const Op &join, std::vector<Op> &parts) {
  for (ValueId output : {operandNamed<OpKind::AttentionJoin>(join, "o"),
                         operandNamed<OpKind::AttentionJoin>(join, "more")}) {
    const Op producer = gradients.producerOf(output);
    if (producer.kind == OpKind::AttentionJoin)
      collectParts(gradients, producer, parts);
    else
      parts.push_back(producer);
  }
}

/// Keys and values that travel around a ring are not kept. The backward pass sends them around
/// again in the other direction, and their gradients continue to their origin. While one member's
/// attention is computed, the next one's keys and values are on their way.
class RingBack {
public:
  explicit RingBack(Gradients &gradients) : gradients_(gradients) {}

  /// The queries, keys and values that the part reads, after keys and values were sent around the
  /// ring again.
  Heads bring(const Op &part) {
    return {operandNamed<kPart>(part, "q"), again(operandNamed<kPart>(part, "k")),
            again(operandNamed<kPart>(part, "v"))};
  }

  /// Sends the gradients of keys and values that the part received from the ring back to their
  /// origin.
  void giveBack(const Op &part) {
    for (ValueId taken : {operandNamed<kPart>(part, "k"), operandNamed<kPart>(part, "v")}) {
      std::optional<Op> shift = shiftOf(taken);
      ValueId gradient = shift ? gradients_.take(taken) : kNone;
      if (gradient == kNone)
        continue;
      Op back = gradients_.makeOp(OpKind::Shift, {gradient});
      back.group = shift->group;
      back.set(plan::AttrKey::by, -shift->getInt(plan::AttrKey::by));
      gradients_.emitFor(operandNamed<OpKind::Shift>(*shift, "x"), std::move(back));
    }
  }

  bool isShifted(const Op &part) const {
    return shiftOf(operandNamed<kPart>(part, "k")).has_value();
  }

private:
  static constexpr OpKind kPart = OpKind::AttentionPart;
  /// A value that has been shifted around the ring again, and by how many positions.
  struct Brought {
    ValueId value;
    int64_t by;
  };

  std::optional<Op> shiftOf(ValueId value) const {
    std::optional<Op> producer = gradients_.findProducer(value);
    return producer && producer->kind == OpKind::Shift ? producer : std::nullopt;
  }

  /// Recomputes keys or values of other ranks for the backward pass. A value that was shifted
  /// several times is shifted from the nearest version that was brought already, in the shorter
  /// direction around the ring.
  ValueId again(ValueId value) {
    int64_t by = 0;
    ValueId origin = value;
    int16_t group = -1;
    while (std::optional<Op> shift = shiftOf(origin)) {
      by += shift->getInt(plan::AttrKey::by);
      group = shift->group;
      origin = operandNamed<OpKind::Shift>(*shift, "x");
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
  std::map<ValueId, Brought> brought_; ///< by origin: its most recent shift
};

/// Emits the backward op of each joined part. Its output counts with the weight that it has in
/// `whole`. The part with the rank's own keys comes first, then the parts in order of decreasing
/// shift.
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
  ValueId dout = gradients.of(resultNamed<OpKind::AttentionPart>(op, "o"));
  if (dout != kNone)
    attention(gradients, OpKind::AttentionPartBwd, op, headsOf(op), dout, op);
}

void backAttentionJoin(Gradients &gradients, const Op &op) {
  if (ValueId dout = gradients.of(resultNamed<OpKind::AttentionJoin>(op, "all")); dout != kNone)
    joined(gradients, op, dout, op);
}

/// A sink changes outputs and statistics, on which attention's gradients depend. Its value is 0, so
/// it has no other effect on them.
void backAttentionSink(Gradients &gradients, const Op &op) {
  constexpr OpKind kOp = OpKind::AttentionSink;
  const ValueId all = resultNamed<kOp>(op, "all"), lse = resultNamed<kOp>(op, "alllse");
  ValueId dout = gradients.of(all);
  if (dout == kNone)
    return;
  if (op.operands.size() > plan::operandIndex<kOp>("sink")) {
    const ValueId sink = operandNamed<kOp>(op, "sink");
    Op back = gradients.makeOp(OpKind::AttentionSinkBwd, {dout, all, lse, sink});
    back.group = op.group;
    gradients.emitFor(sink, std::move(back));
  }
  const Op producer = gradients.producerOf(operandNamed<kOp>(op, "o"));
  if (producer.kind == OpKind::AttentionJoin)
    joined(gradients, producer, dout, op);
  else
    attention(gradients,
              producer.kind == OpKind::Attention ? OpKind::AttentionBwd : OpKind::AttentionPartBwd,
              producer, headsOf(producer), dout, op);
}

void backSplitQkv(Gradients &gradients, const Op &op) {
  splitQkv<OpKind::SplitQkv>(gradients, op, OpKind::MergeQkv);
}

void backSplitQkvRope(Gradients &gradients, const Op &op) {
  splitQkv<OpKind::SplitQkvRope>(gradients, op, OpKind::MergeQkvRope);
}

/// One op computes the gradients of the rows and of the norms' weights.
void backSplitQkvNormRope(Gradients &gradients, const Op &op) {
  constexpr OpKind kOp = OpKind::SplitQkvNormRope;
  auto [dq, dk, dv] = gradientsOfHeads<kOp>(gradients, op);
  if (dq == kNone)
    return;
  ValueId rows = operandNamed<kOp>(op, "qkv"), wq = operandNamed<kOp>(op, "wq"),
          wk = operandNamed<kOp>(op, "wk");
  Op back = gradients.makeOp(
      OpKind::MergeQkvNormRope,
      {dq, dk, dv, rows, wq, wk, resultNamed<kOp>(op, "qrstd"), resultNamed<kOp>(op, "krstd")});
  back.attrs = op.attrs;
  constexpr size_t kPositions = plan::operandIndex<kOp>("positions");
  back.operands.insert(back.operands.end(), op.operands.begin() + kPositions, op.operands.end());
  ValueId drows = gradients.contribute(back, rows);
  if (gradients.isWanted(wq) || gradients.isWanted(wk)) {
    gradients.contribute(back, wq);
    gradients.contribute(back, wk);
  }
  gradients.append(std::move(back));
  gradients.settle(rows, drows);
}

void backSplitColumns(Gradients &gradients, const Op &op) {
  constexpr OpKind kOp = OpKind::SplitColumns;
  ValueId da = gradients.of(resultNamed<kOp>(op, "a")),
          db = gradients.of(resultNamed<kOp>(op, "b"));
  if (da != kNone && db != kNone)
    gradients.emitFor(operandNamed<kOp>(op, "x"), gradients.makeOp(OpKind::JoinColumns, {da, db}));
}

void backExpandParts(Gradients &gradients, const Op &op) {
  ValueId dw = gradients.of(op.results[0]);
  if (dw == kNone)
    return;
  Op back = gradients.makeOp(OpKind::ContractParts, {dw});
  back.attrs = op.attrs;
  gradients.emitFor(op.operands[0], std::move(back));
}

void backJoinColumns(Gradients &gradients, const Op &op) {
  constexpr OpKind kOp = OpKind::JoinColumns;
  ValueId dx = gradients.of(resultNamed<kOp>(op, "x"));
  if (dx == kNone)
    return;
  const std::array<ValueId, 2> both = {operandNamed<kOp>(op, "a"), operandNamed<kOp>(op, "b")};
  gradients.emitForEach(both, gradients.makeOp(OpKind::SplitColumns, {dx}));
}

void backLatentHeads(Gradients &gradients, const Op &op) {
  constexpr OpKind kOp = OpKind::LatentHeads;
  auto [dq, dk, dv] = gradientsOfHeads<kOp>(gradients, op);
  if (dq == kNone)
    return;
  constexpr size_t kPositions = plan::operandIndex<kOp>("positions"); // positions have no gradient
  Op back = gradients.makeOp(OpKind::LatentHeadsBwd, {dq, dk, dv});
  back.attrs = op.attrs;
  back.operands.insert(back.operands.end(), op.operands.begin() + kPositions, op.operands.end());
  Heads rows = {operandNamed<kOp>(op, "qrows"), operandNamed<kOp>(op, "kvrows"),
                operandNamed<kOp>(op, "krot")};
  gradients.emitForEach(rows, std::move(back));
}

void backAttention(Gradients &gradients, const Op &op) {
  ValueId dout = gradients.of(resultNamed<OpKind::Attention>(op, "o"));
  if (dout != kNone)
    attention(gradients, OpKind::AttentionBwd, op, headsOf(op), dout, op);
}

/// Emits the gradients of all operands but documents, which are the last one.
static void mixer(Gradients &gradients, const Op &op, OpKind kind) {
  ValueId dy = gradients.of(op.results[0]);
  if (dy == kNone)
    return;
  Op back = gradients.makeOp(kind, {dy});
  back.operands.insert(back.operands.end(), op.operands.begin(), op.operands.end());
  back.attrs = op.attrs;
  gradients.emitForEach(std::span(op.operands).first(op.operands.size() - 1), std::move(back));
}

void backShortConv(Gradients &gradients, const Op &op) {
  mixer(gradients, op, OpKind::ShortConvBwd);
}

void backCausalConv(Gradients &gradients, const Op &op) {
  mixer(gradients, op, OpKind::CausalConvBwd);
}

void backDeltaRule(Gradients &gradients, const Op &op) {
  mixer(gradients, op, OpKind::DeltaRuleBwd);
}

} // namespace shardc::passes
