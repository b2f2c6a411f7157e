// Checks products with frozen weights. These have no weight gradient that would show for how many
// rows the forward pass used them. Instead, if the input of a product has a gradient, the backward
// pass must have a product with the same weights for as many rows.
#include <algorithm>
#include <array>
#include <map>

#include "runtime/plan/FactorExtents.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

class FrozenUses : RoleCheck {
public:
  FrozenUses(Inspection &inspection, uint32_t roleIndex) : RoleCheck(inspection, roleIndex) {}

  void run() {
    findWanted();
    const std::vector<bool> isOfMicrobatch = segmentsOfMicrobatches(role_);
    std::map<int32_t, Rows> rows;
    for (const WeightUse &use : report_.weightUses) {
      if (use.at.role != roleIndex_ || use.operand != kWeight || !isOfMicrobatch[use.at.segment] ||
          plan_.classOf(blockAt(plan_, use.block)).isTrained)
        continue;
      const Segment &segment = role_.segments[use.at.segment];
      const Op &op = segment.ops[use.at.op];
      if (!isProductWithWeight(op.kind))
        continue;
      uint8_t wanted = isWanted_[use.at.segment][op.operands[0]];
      Rows &of = rows[use.block];
      if (use.isGradient || wanted != 0)
        (use.isGradient ? of.backward : of.forward) +=
            rowsOfOperand(plan_, segment, op, use.operand);
      of.at = use.at;
    }
    for (const auto &[block, of] : rows)
      if (of.backward != of.forward)
        report_.add(finding::FrozenRows, of.at, blockAt(plan_, block).name, of.forward,
                    of.backward);
  }

private:
  static constexpr size_t kWeight = 1; ///< operand index of a product's weights
  struct Rows {
    int64_t forward = 0, backward = 0;
    Spot at;
  };

  /// Finds the values of the forward pass that have gradients: those computed from trained weights
  /// or from other such values. A received value has a gradient if the stage sends one back.
  void findWanted() {
    std::vector<std::vector<uint8_t>> takesTrained;
    for (const Segment &segment : role_.segments) {
      isWanted_.emplace_back(segment.values.size());
      takesTrained.emplace_back(segment.ops.size());
    }
    const uint8_t received = sendsGradients() ? 1 : 0;
    for (const WeightUse &use : report_.weightUses)
      if (use.at.role == roleIndex_ && plan_.classOf(blockAt(plan_, use.block)).isTrained)
        takesTrained[use.at.segment][use.at.op] = 1;
    std::vector<uint8_t> cells(role_.cells.size());
    for (bool isNew = true; isNew && report_.spend(role_.cells.size());) {
      isNew = false;
      for (uint32_t s = 0; s < role_.segments.size(); ++s)
        isNew |= follow(s, takesTrained[s], received, cells);
    }
  }

  /// Whether the role sends a result of the backward pass, from the same segment or an earlier one.
  bool sendsGradients() const {
    std::vector<uint8_t> cells(role_.cells.size());
    auto isOfBackward = [&](const Segment &segment, ValueId value) {
      uint32_t def = segment.values[value].def;
      if (def != kNone)
        return segment.ops[def].phase == plan::Phase::Backward;
      auto in = std::ranges::find(segment.ins, value, &Segment::Boundary::value);
      return in != segment.ins.end() && cells[in->cell] != 0;
    };
    for (const Segment &segment : role_.segments)
      for (const Segment::Boundary &out : segment.outs)
        cells[out.cell] |= isOfBackward(segment, out.value) ? 1 : 0;
    return std::ranges::any_of(role_.segments, [&](const Segment &segment) {
      return std::ranges::any_of(segment.ops, [&](const Op &op) {
        return op.kind == OpKind::Send && isOfBackward(segment, op.operands[0]);
      });
    });
  }

  /// Follows one segment. Returns whether it adds a cell whose content has a gradient.
  bool follow(uint32_t s, const std::vector<uint8_t> &takesTrained, uint8_t received,
              std::vector<uint8_t> &cells) {
    const Segment &segment = role_.segments[s];
    std::vector<uint8_t> &wanted = isWanted_[s];
    if (!report_.spend(segment.ops.size()))
      return false;
    for (const Segment::Boundary &in : segment.ins)
      wanted[in.value] = std::max(wanted[in.value], cells[in.cell]);
    for (uint32_t i = 0; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i];
      if (op.phase != plan::Phase::Forward)
        continue;
      uint8_t made = takesTrained[i] != 0 ? 1 : op.kind == OpKind::Recv ? received : uint8_t{0};
      for (ValueId operand : op.operands)
        made = std::max(made, wanted[operand]);
      for (ValueId result : op.results)
        wanted[result] = std::max(wanted[result], made);
    }
    bool isNew = false;
    for (const Segment::Boundary &out : segment.outs)
      if (wanted[out.value] > cells[out.cell]) {
        cells[out.cell] = wanted[out.value];
        isNew = true;
      }
    return isNew;
  }

  std::vector<std::vector<uint8_t>> isWanted_; ///< by segment and value
};

} // namespace

bool isProductWithWeight(OpKind kind) {
  using enum OpKind;
  constexpr std::array kProducts = {
      MatMul,        MatMulAdd,     MatMulScaled,      MatMulGelu,
      MatMulGeluBwd, GroupedMatMul, GroupedMatMulBias, GroupedMatMulScaled};
  return std::ranges::find(kProducts, kind) != kProducts.end();
}

std::vector<bool> segmentsOfMicrobatches(const Role &role) {
  std::vector<bool> isOfMicrobatch(role.segments.size());
  bool hasRing = false;
  for (uint32_t s = 0; s < role.segments.size(); ++s) {
    SegmentKind kind = role.segments[s].kind;
    if (kind == SegmentKind::Forward || kind == SegmentKind::Backward ||
        kind == SegmentKind::Steady)
      hasRing = isOfMicrobatch[s] = true;
    for (const Segment::Boundary &in : role.segments[s].ins)
      if (role.cells[in.cell].kind == CellKind::Feed)
        hasRing = isOfMicrobatch[s] = true;
  }
  if (!hasRing)
    for (uint32_t s = 0; s < role.segments.size(); ++s)
      isOfMicrobatch[s] = role.segments[s].body;
  return isOfMicrobatch;
}

void checkFrozenUses(Inspection &inspection, uint32_t role) {
  // Two cases are not analysed: virtual stages, where a value that has a gradient may go to either
  // chunk, and fp8, where values with and without gradients share scales.
  const Job::Model &model = inspection.plan().job.model;
  if (model.virtualPipelineModelParallelSize <= 1 && !model.fp8 &&
      !std::ranges::all_of(inspection.plan().classes, &ParamClass::isTrained))
    FrozenUses(inspection, role).run();
}

} // namespace shardc::plan::verifier
