// Checks that no op computes with padding: bytes of a block that belong to no parameter. They are
// never written, or not with meaningful values. Ops that carry padding copy it along or work on
// parameters only. Their results on a block have padding in the same places, and so do casts, views
// and cells of these results. Any other op that reads such bytes would compute with arbitrary
// values.
#include <algorithm>
#include <optional>
#include <string_view>

#include "runtime/plan/HostCells.h"
#include "runtime/verify/VerifyContents.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// What it takes to find the tags of an op's results, in the visits that are counted.
constexpr uint64_t kVisitsOfOp = 4;

/// Which elements of a block a value's elements are, where those outside of parameters are padding.
struct Tag {
  int32_t block = -1; ///< -1: no padding
  bool isAll = false; ///< what is padding is not known; any element may be
  Moving first;       ///< element of the block that the value begins with
  bool operator==(const Tag &) const = default;
};

Tag joined(const Tag &a, const Tag &b) {
  if (a.block < 0 || a == b)
    return b;
  if (b.block < 0)
    return a;
  return {a.block, true, {}};
}

class PaddingCheck {
public:
  PaddingCheck(Inspection &inspection, uint32_t roleIndex)
      : report_(inspection), plan_(inspection.plan()), roleIndex_(roleIndex),
        role_(plan_.roles[roleIndex]), indices_(plan_, role_), cells_(role_.cells.size()),
        hasPadding_(plan_.blocks.size()) {}

  void run() {
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      hasPadding_[block] =
          firstGap({static_cast<int32_t>(block), false, {}}, plan_.blocks[block].numel).has_value();
    if (std::ranges::find(hasPadding_, true) == hasPadding_.end())
      return;
    tagLoaded();
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      variants_.push_back(distinctVariants(report_, roleIndex_, s));
    // What cells hold grows from round to round; the last one, which adds nothing, sees all of it.
    for (bool isLast = false; !isLast && !report_.isFull(); isReporting_ = true) {
      hasChanged_ = false;
      followAll();
      isLast = isReporting_ && !hasChanged_;
    }
  }

private:
  struct Gap {
    int64_t begin, end; ///< elements of the value
    int64_t member;
  };

  const Value &value(ValueId id) const { return segment_->values[id]; }
  int64_t numel(ValueId id) const { return value(id).type.numel(); }

  /// A load fills parameters, and leaves the rest of a block's state as it is.
  void tagLoaded() {
    const std::vector<const Block *> &blocks = report_.blocksInCheckpoint(roleIndex_);
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (blocks[c] != nullptr)
        cells_[c] = ofBlock(static_cast<int32_t>(blocks[c] - plan_.blocks.data()),
                            role_.cells[c].type.numel());
  }

  /// A value with so many elements that holds the block, whole or this rank's shard of it.
  Tag ofBlock(int32_t index, int64_t numel) const {
    const Block &block = plan_.blocks[static_cast<size_t>(index)];
    std::optional<BlockPart> part = partOf(block, numel);
    if (!hasPadding_[static_cast<size_t>(index)] || !part)
      return {};
    return {index, false, beginOf(*part)};
  }

  void followAll() {
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      for (Variant variant : variants_[s])
        follow(s, variant);
  }

  void follow(uint32_t s, Variant variant) {
    segment_ = &role_.segments[s];
    segmentIndex_ = s, variant_ = variant;
    tags_.assign(segment_->values.size(), {});
    if (!report_.spend(segment_->values.size() + segment_->ops.size() * kVisitsOfOp))
      return;
    for (const Segment::Boundary &in : segment_->ins)
      tags_[in.value] = cells_[in.cell];
    for (uint32_t i = 0; i < segment_->ops.size(); ++i)
      followOp(i);
    for (const Segment::Boundary &out : segment_->outs) {
      Tag tag = joined(cells_[out.cell], tags_[out.value]);
      hasChanged_ |= tag != cells_[out.cell];
      cells_[out.cell] = tag;
    }
  }

  void followOp(uint32_t i) {
    const Op &op = segment_->ops[i];
    if (op.kind == OpKind::View) {
      tags_[op.results[0]] = cutOf(tags_[op.operands[0]], op);
    } else if (op.kind == OpKind::Pack) {
      tags_[op.results[0]] = ofPack(op);
    } else if (!holds(op.pred, variant_)) {
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Else)
          tags_[op.results[tie.result]] = tags_[tie.value];
    } else if (opInfo(op).padding != Padding::Refused) {
      for (size_t r = 0; r < op.results.size(); ++r)
        tags_[op.results[r]] = ofResult(op, r);
    } else if (isReporting_) {
      for (ValueId operand : op.operands)
        if (tags_[operand].block >= 0)
          checkRead(i, operand);
      for (const Tie &tie : op.ties)
        if (tie.kind == Tie::Acc && holds(tie.pred, variant_))
          checkRead(i, tie.value);
    }
  }

  Tag cutOf(const Tag &whole, const Op &view) const {
    if (whole.isAll || whole.block < 0)
      return whole;
    std::optional<Moving> first = sumOf(plan_, whole.first, beginOf(view));
    return {whole.block, !first, first.value_or(Moving())};
  }

  /// A pack has the padding of its block, and must not have that of its parts.
  Tag ofPack(const Op &op) {
    auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
    Tag tag = block < 0 ? Tag() : ofBlock(block, numel(op.results[0]));
    for (ValueId part : op.operands)
      if (firstGap(tags_[part], numel(part)))
        return {tags_[part].block, true, {}};
    return tag;
  }

  Tag ofResult(const Op &op, size_t r) const {
    ValueId result = op.results[r];
    Tag tag;
    const OpInfo &info = opInfo(op);
    if (info.padding == Padding::Skipped) // rows that are looked up, however many elements
      return tag;
    if (auto block = static_cast<int32_t>(op.getInt(AttrKey::block));
        block >= 0 && info.block != BlockUse::List)
      tag = ofBlock(block, numel(result));
    int taken = inPlaceOperand(op, r);
    for (size_t i = 0; i < op.operands.size() && tag.block < 0; ++i)
      if (taken < 0 || static_cast<size_t>(taken) == i)
        tag = moved(op, tags_[op.operands[i]], op.operands[i], result);
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc && tie.result == r && holds(tie.pred, variant_))
        tag = joined(tag, tags_[tie.value]);
    return tag;
  }

  /// Padding of the operand in a result of an op that names no block.
  Tag moved(const Op &op, const Tag &tag, ValueId operand, ValueId result) const {
    if (tag.block < 0 || numel(operand) == numel(result))
      return tag;
    if (!opInfo(op).keepsBlock() || result != op.results[0])
      return {};
    if (isOfRole(op.group) && !firstGap(tag, numel(operand)))
      return {}; // no rank has padding in its part
    const Block &block = plan_.blocks[static_cast<size_t>(tag.block)];
    bool isGather = numel(operand) < numel(result);
    std::optional<BlockPart> from = partOf(block, numel(operand)),
                             to = partOf(block, numel(result));
    bool isKnown = !tag.isAll && from && to && areSame(plan_, role_, tag.first, beginOf(*from)) &&
                   isComposedOf(plan_, isGather ? from->group : to->group,
                                isGather ? to->group : from->group, op.group);
    return {tag.block, !isKnown, isKnown ? beginOf(*to) : Moving{}};
  }

  /// Whether all members of the group are ranks of this role.
  bool isOfRole(int16_t group) const {
    IndexRange own = indices_.of(group);
    return own.first == 0 && own.last == plan_.groupSize(group) - 1;
  }

  /// The first elements of the value that are padding, at any coordinate.
  std::optional<Gap> firstGap(const Tag &tag, int64_t numel) const {
    if (tag.block < 0)
      return std::nullopt;
    if (tag.isAll)
      return Gap{0, numel, 0};
    const std::vector<const Param *> &params = report_.paramsOf(tag.block);
    IndexRange own = tag.first.isFixed() ? IndexRange{} : indices_.of(tag.first.group);
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

  void checkRead(uint32_t op, ValueId id) {
    std::optional<Gap> gap = firstGap(tags_[id], numel(id));
    if (!gap)
      return;
    const Value &read = value(id);
    const Block &block = plan_.blocks[static_cast<size_t>(tags_[id].block)];
    int64_t each = dtypeBytes(read.type.dtype);
    int16_t group = read.place.group; // the first rank of the role has the gap, or this member
    int64_t at = group == tags_[id].first.group ? gap->member : indices_.of(group).first;
    int64_t base = read.place.offset + read.place.coef * at;
    ByteRange bytes{read.place.arena, base + gap->begin * each, base + gap->end * each,
                    gap->member};
    std::string where = plan_.level == Level::Placed
                            ? toString(bytes)
                            : fmt::format("elements [{}, {}) of it", gap->begin, gap->end);
    Finding *finding = report_.addAbout(finding::ReadsPadding, {roleIndex_, segmentIndex_, op},
                                        read.name, read.name, where, block.name);
    if (finding == nullptr)
      return;
    finding->variant = variant_;
    if (plan_.level == Level::Placed)
      finding->bytes = bytes;
  }

  Inspection &report_;
  const Plan &plan_;
  uint32_t roleIndex_;
  const Role &role_;
  Indices indices_;
  std::vector<Tag> cells_;       ///< joined over all that is left in a cell
  std::vector<bool> hasPadding_; ///< of each block
  std::vector<std::vector<Variant>> variants_;
  bool hasChanged_ = false, isReporting_ = false;
  const Segment *segment_ = nullptr; ///< under way
  uint32_t segmentIndex_ = 0;
  Variant variant_ = Variant::Only;
  std::vector<Tag> tags_;
};

} // namespace

void checkPadding(Inspection &inspection, uint32_t role) {
  if (!inspection.plan().blocks.empty())
    PaddingCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
