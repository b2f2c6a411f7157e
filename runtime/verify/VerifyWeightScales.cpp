// Checks weights that are stored in 8 bits: one segment must compute all of them and their scales,
// from the same amaxes.
#include <set>

#include "runtime/plan/Builder.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

class WeightScaleCheck : RoleCheck {
public:
  WeightScaleCheck(Inspection &inspection, uint32_t roleIndex) : RoleCheck(inspection, roleIndex) {}

  void run() {
    if (findCell(role_, CellKind::WeightScales) == kNone)
      return;
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      checkLeft(s);
  }

private:
  /// A segment must quantise all 8-bit weights or none, and may store only weights that it has
  /// quantised or gathered.
  void checkLeft(uint32_t s) {
    const Segment &segment = role_.segments[s];
    std::set<int64_t> made; // blocks
    std::set<ValueId> amax;
    for (uint32_t i = 0; i < segment.ops.size(); ++i) {
      const Op &op = segment.ops[i];
      if (op.kind != OpKind::QuantizeShard)
        continue;
      made.insert(op.getInt(AttrKey::block));
      amax.insert(operandNamed<OpKind::QuantizeShard>(op, "amax"));
      checkShared({roleIndex_, s, i}, segment, op);
    }
    bool isOfOne = true, hasScales = false;
    for (const Segment::Boundary &out : segment.outs) {
      const Cell &cell = role_.cells[out.cell];
      const Op *op = producerOf(segment, out.value);
      if (cell.kind == CellKind::WeightScales) {
        hasScales = op != nullptr && op->kind == OpKind::WeightScales;
        isOfOne &= hasScales;
        if (hasScales)
          amax.insert(operandNamed<OpKind::WeightScales>(*op, "amax"));
      } else if (cell.of >= 0 && cell.type.dtype == DType::F8E4M3) {
        isOfOne &=
            op != nullptr && (op->kind == OpKind::QuantizeShard || op->kind == OpKind::AllGather);
      }
    }
    bool isAll = hasScales && amax.size() == 1 && made.size() == blocksOf8Bits();
    if (isOfOne && (isAll || (made.empty() && !hasScales)))
      return;
    report_.add(finding::Weights8BitsIncomplete, {roleIndex_, s, kNone});
  }

  /// Ranks with other parts of the block must quantise with the amaxes of all parts.
  void checkShared(Spot at, const Segment &segment, const Op &op) {
    const Block &block = blockAt(plan_, op.getInt(AttrKey::block));
    Axes parts = axesOf(plan_, block.group) | axesOf(plan_, block.stateGroup);
    const ValueId amax = operandNamed<OpKind::QuantizeShard>(op, "amax");
    const Op *largest = producerOf(segment, amax);
    bool isMax = largest != nullptr && largest->kind == OpKind::AllReduceMax;
    if ((parts & ~(isMax ? axesOf(plan_, largest->group) : Axes{0})) != 0)
      report_.add(finding::NotLargestOfRanks, at, segment.values[amax].name, block.name);
    if (!hasSeen(segment, op))
      report_.add(finding::NotOwnAmaxes, at, segment.values[amax].name,
                  segment.values[operandNamed<OpKind::QuantizeShard>(op, "x")].name);
  }

  /// Whether the amaxes with which the shard is quantised include its own.
  static bool hasSeen(const Segment &segment, const Op &quantize) {
    constexpr OpKind kOp = OpKind::QuantizeShard, kSeen = OpKind::AmaxShard;
    const Op *op = producerOf(segment, operandNamed<kOp>(quantize, "amax"));
    while (op != nullptr) {
      bool isShard = op->kind == kSeen;
      if (isShard &&
          areEqual(segment, operandNamed<kSeen>(*op, "x"), operandNamed<kOp>(quantize, "x")))
        return true;
      if (!isShard && op->kind != OpKind::AllReduceMax)
        return false;
      op = producerOf(segment, isShard ? operandNamed<kSeen>(*op, "amax")
                                       : operandNamed<OpKind::AllReduceMax>(*op, "x"));
    }
    return false;
  }

  /// Whether the values are the same, or the initial values of the same block.
  static bool areEqual(const Segment &segment, ValueId a, ValueId b) {
    const Op *one = producerOf(segment, a), *other = producerOf(segment, b);
    return a == b || (one != nullptr && other != nullptr && one->kind == OpKind::InitBlock &&
                      other->kind == OpKind::InitBlock &&
                      one->getInt(AttrKey::block) == other->getInt(AttrKey::block));
  }

  size_t blocksOf8Bits() const {
    size_t count = 0;
    for (const Cell &cell : role_.cells)
      count += cell.kind == CellKind::Weight && cell.type.dtype == DType::F8E4M3 ? 1 : 0;
    return count;
  }
};

} // namespace

void checkWeightScales(Inspection &inspection, uint32_t role) {
  WeightScaleCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
