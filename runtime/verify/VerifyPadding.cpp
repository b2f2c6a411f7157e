// Checks that no op computes with padding: bytes of a block that belong to no parameter. They are
// never written, or not with meaningful values. Ops that carry padding copy it along or work on
// parameters only. Their results on a block have padding in the same places, and so do casts, views
// and cells of these results. Any other op that reads such bytes would compute with arbitrary
// values.
#include <algorithm>
#include <optional>
#include <string_view>

#include "runtime/verify/VerifyFlow.h"

namespace shardc::plan::verifier {
namespace {

/// What it takes to look for padding at one index, in the visits that are counted.
constexpr uint64_t kVisitsOfOp = 4;

/// Which elements of a block a value's elements are, where those outside of parameters are padding.
struct Tag {
  int32_t block = -1; ///< -1: no padding
  bool isAll = false; ///< what is padding is not known; any element may be
  Moving first;       ///< element of the block that the value begins with
  bool operator==(const Tag &) const = default;

  void join(const Tag &more) {
    if (block < 0) // padding on one way is padding
      *this = more;
    else if (more.block >= 0 && *this != more)
      *this = {block, true, {}};
  }
};

class PaddingDomain {
public:
  using State = Tag;
  using Values = SegmentValues<Tag>;
  /// Values whose buffers nobody fills are followed too: ops may still combine them with padding.
  static constexpr bool kFollowsAll = true;

  explicit PaddingDomain(Inspection &inspection)
      : report_(inspection), plan_(inspection.plan()), hasPadding_(plan_.blocks.size()) {
    for (const Role &role : plan_.roles)
      indices_.emplace_back(plan_, role);
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      hasPadding_[block] =
          firstGap({static_cast<int32_t>(block), false, {}}, plan_.blocks[block].numel, 0)
              .has_value();
  }

  bool isNeeded() const { return std::ranges::find(hasPadding_, true) != hasPadding_.end(); }

  /// A load fills parameters, and leaves the rest of a block as it is.
  State loaded(const Role &, const Cell &cell) const {
    bool isOfBlock = cellKindInfo(cell.kind).of == CellKindInfo::Block;
    return isOfBlock ? ofBlock(cell.of, cell.type.numel()) : Tag();
  }

  void follow(const Values &at, uint32_t i, const Op &op) {
    if (op.kind == OpKind::View)
      at[op.results[0]] = cutOf(at.operand(op, 0), op);
    else if (op.kind == OpKind::Pack)
      at[op.results[0]] = ofPack(at, op);
    else if (opInfo(op).padding != Padding::Refused)
      for (size_t r = 0; r < op.results.size(); ++r)
        at[op.results[r]] = ofResult(at, op, r);
    else
      for (ValueId operand : op.operands)
        checkRead(at, i, operand);
  }

  void add(const Values &at, uint32_t i, const Tie &tie) {
    const Op &op = at.scope.segment.ops[i];
    if (opInfo(op).padding == Padding::Refused)
      checkRead(at, i, tie.value);
    else
      at[op.results[tie.result]].join(at[tie.value]);
  }

  /// What a cell of a block holds has the padding of that block.
  void finish(const Values &at) {
    for (const Segment::Boundary &out : at.scope.segment.outs) {
      const Cell &cell = at.scope.role.cells[out.cell];
      const Tag &tag = at[out.value];
      if (cell.kind != CellKind::Buffer && tag != loaded(at.scope.role, cell) &&
          firstGap(tag, numel(at, out.value), at.scope.roleIndex))
        at.scope.addValue(finding::LeavesPadding, at.scope.opOf(out.value), out.value,
                          blockAt(plan_, tag.block).name, cell.name);
    }
  }

private:
  struct Gap {
    int64_t begin, end; ///< elements of the value
    int64_t member;
  };

  static int64_t numel(const Values &at, ValueId id) { return at.scope.value(id).type.numel(); }

  /// A value with so many elements that holds the block, whole or this rank's shard of it.
  Tag ofBlock(int32_t index, int64_t numel) const {
    const Block &block = blockAt(plan_, index);
    std::optional<BlockPart> part = partOf(block, numel);
    if (!hasPadding_[static_cast<size_t>(index)] || !part)
      return {};
    return {index, false, beginOf(*part)};
  }

  Tag cutOf(const Tag &whole, const Op &view) const {
    if (whole.isAll || whole.block < 0)
      return whole;
    std::optional<Moving> first = sumOf(plan_, whole.first, beginOf(view));
    return {whole.block, !first, first.value_or(Moving())};
  }

  /// A pack has the padding of its block, and must not have that of its parts.
  Tag ofPack(const Values &at, const Op &op) {
    auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
    for (ValueId part : op.operands)
      if (firstGap(at[part], numel(at, part), at.scope.roleIndex))
        return {at[part].block, true, {}};
    return block < 0 ? Tag() : ofBlock(block, numel(at, op.results[0]));
  }

  Tag ofResult(const Values &at, const Op &op, size_t r) {
    ValueId result = op.results[r];
    Tag tag;
    const OpInfo &info = opInfo(op);
    if (info.padding == Padding::Skipped) // it looks up rows, so its result has no padding
      return tag;
    if (auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
        block >= 0 && info.block != BlockUse::List)
      tag = ofBlock(block, numel(at, result));
    int taken = inPlaceOperand(op, r);
    for (size_t k = 0; k < op.operands.size() && tag.block < 0; ++k)
      if (taken < 0 || static_cast<size_t>(taken) == k)
        tag = moved(at, op, op.operands[k], result);
    return tag;
  }

  /// Padding of the operand in a result of an op that names no block.
  Tag moved(const Values &at, const Op &op, ValueId operand, ValueId result) {
    const Tag &tag = at[operand];
    const int64_t given = numel(at, operand), made = numel(at, result);
    const uint32_t role = at.scope.roleIndex;
    if (tag.block < 0 || given == made)
      return tag;
    if (!opInfo(op).keepsBlock() || result != op.results[0])
      return {};
    if (isOfRole(op.group, role) && !firstGap(tag, given, role))
      return {}; // no rank has padding in its part
    const Block &block = blockAt(plan_, tag.block);
    bool isGather = given < made;
    std::optional<BlockPart> from = partOf(block, given), to = partOf(block, made);
    bool isKnown = !tag.isAll && from && to &&
                   areSame(plan_, at.scope.role, tag.first, beginOf(*from)) &&
                   isComposedOf(plan_, isGather ? from->group : to->group,
                                isGather ? to->group : from->group, op.group);
    return {tag.block, !isKnown, isKnown ? beginOf(*to) : Moving{}};
  }

  /// Whether all members of the group are ranks of this role.
  bool isOfRole(int16_t group, uint32_t role) const {
    IndexRange own = indices_[role].of(group);
    return own.first == 0 && own.last == plan_.groupSize(group) - 1;
  }

  /// The first elements of the value that are padding, at any coordinate.
  std::optional<Gap> firstGap(const Tag &tag, int64_t numel, uint32_t role) const {
    if (tag.block < 0)
      return std::nullopt;
    if (tag.isAll)
      return Gap{0, numel, 0};
    const std::vector<const Param *> &params = report_.paramsOf(tag.block);
    IndexRange own = tag.first.isFixed() ? IndexRange{} : indices_[role].of(tag.first.group);
    for (int64_t member = own.first; member <= own.last; ++member) {
      int64_t begin = tag.first.at(member), at = begin, end = begin + numel;
      auto next = std::ranges::partition_point(
          params, [&](const Param *param) { return param->offset + param->type.numel() <= begin; });
      for (; next != params.end() && (*next)->offset <= at && at < end; ++next)
        at = (*next)->offset + (*next)->type.numel();
      if (!report_.spend(kVisitsOfOp))
        return std::nullopt;
      if (at < end)
        return Gap{at - begin,
                   (next == params.end() ? end : std::min(end, (*next)->offset)) - begin, member};
    }
    return std::nullopt;
  }

  void checkRead(const Values &at, uint32_t op, ValueId id) {
    const Tag &tag = at[id];
    if (!at.isReport || tag.block < 0)
      return;
    std::optional<Gap> gap = firstGap(tag, numel(at, id), at.scope.roleIndex);
    if (!gap)
      return;
    const Value &read = at.scope.value(id);
    const Block &block = blockAt(plan_, tag.block);
    int64_t each = dtypeBytes(read.type.dtype);
    // If the place does not move with the same group, the gap is shown on the role's first rank.
    int16_t group = read.place.group;
    int64_t member =
        group == tag.first.group ? gap->member : indices_[at.scope.roleIndex].of(group).first;
    int64_t base = read.place.offset + read.place.coef * member;
    ByteRange bytes{read.place.arena, base + gap->begin * each, base + gap->end * each,
                    gap->member};
    bool isPlaced = plan_.level == Level::Placed;
    std::string where =
        isPlaced ? toString(bytes) : fmt::format("elements [{}, {}) of it", gap->begin, gap->end);
    Finding &finding = at.scope.addValue(finding::ReadsPadding, op, id, where, block.name);
    if (isPlaced)
      finding.bytes = bytes;
  }

  Inspection &report_;
  const Plan &plan_;
  std::vector<Indices> indices_; ///< of each role
  std::vector<bool> hasPadding_; ///< of each block
};

} // namespace

std::unique_ptr<ValueDomain> makePadding(Inspection &inspection) {
  PaddingDomain domain(inspection);
  return domain.isNeeded() ? asValueDomain(std::move(domain)) : nullptr;
}

} // namespace shardc::plan::verifier
