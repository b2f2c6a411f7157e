// Checks which block each value holds. Ops such as casts, gathers and reductions keep a value's
// block. Values that such ops connect, across all segments of a role and its cells, form a class.
// Ops that work on a block name it, and so name the block of the class. Three errors are refused,
// since each would put parameters in the wrong place: a class that is named as two blocks; a view
// that is neither the whole block nor this rank's shard; and a collective over ranks other than
// those that share the block. This file also checks that layers read parameters in their types, and
// that no op computes with padding. Padding is the elements of a block that belong to no parameter;
// nothing writes meaningful values to them. Ops that carry padding either copy it or work on
// parameters only.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Whether each member holds its own part of a block before or after the collective.
bool movesShards(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
  case CollectiveKind::ReduceScatter:
    return true;
  case CollectiveKind::AllReduce:
  case CollectiveKind::Send:
  case CollectiveKind::Recv:
  case CollectiveKind::AllReduceMax: // these have no block
  case CollectiveKind::AllToAll:
  case CollectiveKind::Shift:
    return false;
  }
  return false;
}

/// Costs in counted visits: of finding the parameters in a part of a block, and of looking for
/// padding at one index.
constexpr uint64_t kVisitsOfPart = 16, kVisitsOfGap = 4;

class BlockCheck : RoleCheck {
public:
  BlockCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), indices_(plan_, role_) {
    size_t nodes = role_.cells.size();
    for (const Segment &segment : role_.segments) {
      firstOf_.push_back(static_cast<uint32_t>(nodes));
      nodes += segment.values.size();
    }
    parent_.resize(nodes);
    std::iota(parent_.begin(), parent_.end(), 0u);
    claims_.resize(nodes);
    cuts_.resize(nodes);
    findTypes();
    findDivisions();
    for (size_t block = 0; block < plan_.blocks.size(); ++block)
      if (firstGap({static_cast<int32_t>(block), Moving()}, plan_.blocks[block].numel, {}))
        padded_.insert(static_cast<int32_t>(block));
  }

  void run() {
    // Classes are complete before ops name their blocks: an op may name the block of a value that
    // joins the class through a later op.
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      joinSegment(s);
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      claimCell(c);
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i)
        claimBlocks(s, i);
    for (const Part &part : parts_)
      checkPart(part);
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i) {
        checkGroup(s, i);
        checkResults(s, i);
        checkWeights(s, i);
        checkSquares(s, i);
      }
    findUses();
    if (report_.size() == 0 && !padded_.empty())
      checkPadding();
  }

private:
  /// The content of the values of a class, as a part of a block.
  enum class Content : uint8_t { Unclear, Weights, Gradient, Moments };

  /// The content of a class, and the op or cell that determines it.
  struct Claim {
    int32_t block = -1;
    Content content = Content::Unclear;
    uint32_t segment = kNone, op = kNone;
    uint32_t cell = kNone; ///< the cell whose kind determines the block, if no op does
  };

  static std::string_view toString(Content content) {
    constexpr std::array<std::string_view, 4> kNames = {"values", "weights", "gradients",
                                                        "moments"};
    return kNames[static_cast<size_t>(content)];
  }

  static Content contentOf(CellKind kind) {
    switch (kind) {
    case CellKind::Weight:
    case CellKind::WeightShard:
    case CellKind::GatheredWeight:
    case CellKind::Master:
      return Content::Weights;
    case CellKind::Gradient:
    case CellKind::GradientShard:
    case CellKind::ReducedGradient:
      return Content::Gradient;
    case CellKind::FirstMoment:
    case CellKind::SecondMoment:
      return Content::Moments;
    default:
      return Content::Unclear;
    }
  }

  /// The elements of a block that a value holds.
  struct Elements {
    int32_t block = -1;          ///< -1: of no block
    std::optional<Moving> first; ///< the first one; none if unknown
    bool operator==(const Elements &) const = default;
  };

  /// A view of a block that is neither the whole value nor this rank's shard of it.
  struct Part {
    uint32_t segment, op;
    ValueId whole;          ///< the value from which it is cut; not itself a view
    Elements elements = {}; ///< see checkPadding()
  };

  /// Where a view lies: the value of which it is a part, which is itself no view, and the element
  /// at which it begins. No `begin` if the element moves with the indices of several groups.
  struct Cut {
    ValueId whole = kNone;
    std::optional<Moving> begin;
  };

  static uint32_t rootOf(std::vector<uint32_t> &parent, uint32_t node) {
    while (parent[node] != node)
      node = parent[node] = parent[parent[node]];
    return node;
  }
  uint32_t find(uint32_t node) { return rootOf(parent_, node); }
  uint32_t node(uint32_t segment, ValueId value) const { return firstOf_[segment] + value; }
  void join(uint32_t a, uint32_t b) { parent_[find(a)] = find(b); }
  const Value &value(uint32_t segment, ValueId id) const {
    return role_.segments[segment].values[id];
  }

  void joinSegment(uint32_t s) {
    const Segment &segment = role_.segments[s];
    for (const auto *boundaries : {&segment.ins, &segment.outs})
      for (const Segment::Boundary &boundary : *boundaries)
        join(node(s, boundary.value), boundary.cell);
    for (uint32_t i = 0; i < segment.ops.size(); ++i)
      if (segment.ops[i].kind == OpKind::View)
        joinView(s, i);
      else
        joinOp(s, segment.ops[i]);
  }

  void joinView(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    ValueId result = op.results[0], from = op.operands[0];
    Cut own{from, beginOf(op)}, cut = own;
    if (const Cut &before = cuts_[node(s, from)]; before.whole != kNone)
      cut = {before.whole, before.begin ? sumOf(plan_, *before.begin, *own.begin) : std::nullopt};
    cuts_[node(s, result)] = cut;
    if (keepsBlock(s, result, own))
      join(node(s, result), node(s, from));
    else if (keepsBlock(s, result, cut))
      join(node(s, result), node(s, cut.whole));
    else
      parts_.push_back({s, i, cut.whole});
  }

  bool keepsBlock(uint32_t s, ValueId result, const Cut &cut) const {
    int64_t part = value(s, result).type.numel(), whole = value(s, cut.whole).type.numel();
    return part == whole || std::ranges::any_of(divisions_, [&](int16_t group) {
             return part * plan_.groupSize(group) == whole && cut.begin &&
                    areSame(plan_, role_, *cut.begin, {0, part, group});
           });
  }

  /// Finds the groups over whose ranks blocks or shards are divided.
  void findDivisions() {
    std::set<int16_t> found;
    for (const Block &block : plan_.blocks) {
      if (block.shard < block.numel)
        found.insert(block.group);
      if (block.stateShard < block.numel)
        found.insert(block.stateGroup);
      if (block.stateShard < block.shard && block.shard < block.numel)
        for (size_t group = 0; group < plan_.groups.size(); ++group)
          if (auto index = static_cast<int16_t>(group);
              isComposedOf(plan_, block.stateGroup, block.group, index))
            found.insert(index);
    }
    divisions_.assign(found.begin(), found.end());
  }

  void joinOp(uint32_t s, const Op &op) {
    for (const Tie &tie : op.ties)
      join(node(s, op.results[tie.result]), node(s, tie.value));
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = inPlaceOperand(op, r); operand >= 0)
        join(node(s, op.results[r]), node(s, op.operands[static_cast<size_t>(operand)]));
    if (opInfo(op).keepsBlock() || isCopy(s, op))
      join(node(s, op.results[0]), node(s, op.operands[0]));
  }

  /// Whether the op names no block and keeps the positions of all elements, padding included.
  bool isCopy(uint32_t s, const Op &op) const {
    return opInfo(op).padding == Padding::Carried && op.operands.size() == 1 &&
           blockNamedBy(op) < 0 &&
           value(s, op.operands[0]).type.numel() == value(s, op.results[0]).type.numel();
  }

  void claimBlocks(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    const OpInfo &info = opInfo(op);
    if (info.block == BlockUse::List)
      return claimList(s, i);
    const int32_t block = blockNamedBy(op);
    if (block < 0)
      return;
    for (size_t operand = 0; operand < op.operands.size(); ++operand)
      if (info.isBlockOperand(operand))
        claim(s, i, op.operands[operand], block, info.isWeightOperand(operand));
    for (size_t r = 0; r < op.results.size(); ++r)
      if (info.isBlockResult(r))
        claim(s, i, op.results[r], block, info.isWeightResult(r));
  }

  /// A cell's kind determines its content, and so the content of all values that are stored to it
  /// or read from it.
  void claimCell(uint32_t c) {
    Claim &claim = claims_[find(c)];
    const Cell &cell = role_.cells[c];
    bool isOfBlock = cellKindInfo(cell.kind).of == CellKindInfo::Block;
    if (isOfBlock && claim.block == -1)
      claim.block = static_cast<int32_t>(cell.of), claim.cell = c;
    if (isOfBlock && claim.block != cell.of)
      addCell(finding::CellOfOtherBlock, c, cell.of, blockAt(plan_, cell.of).name, claim.block,
              blockAt(plan_, claim.block).name);
    Content content = contentOf(cell.kind);
    if (content == Content::Unclear)
      return;
    if (claim.content == Content::Unclear)
      claim.content = content;
    if (claim.content != content)
      addCell(finding::CellHoldsOther, c, toString(content), toString(claim.content));
  }

  /// An op with a list takes sums of squares, or parts of blocks: one operand for each block in the
  /// list.
  void claimList(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    for (size_t p = 0; p < op.operands.size(); ++p) {
      const Block &block = blockAt(plan_, op.blocks[p].block);
      const Type &type = value(s, op.operands[p]).type;
      bool isSum = type.dtype == DType::F64; // the operand is already a sum of the block's squares
      if (isSum || partOf(block, type.numel()))
        claim(s, i, op.operands[p], op.blocks[p].block);
    }
  }

  void claim(uint32_t s, uint32_t i, ValueId id, int32_t block, bool isWeights = false) {
    Claim &claim = claims_[find(node(s, id))];
    if (claim.block == -1)
      claim = {block, claim.content, s, i};
    if (isWeights && claim.content == Content::Unclear)
      claim.content = Content::Weights;
    if (isWeights && claim.content != Content::Weights)
      report_.addAbout(finding::WeightsExpected, {roleIndex_, s, i}, value(s, id).name,
                       blockAt(plan_, block).name, toString(claim.content));
    if (claim.block == block)
      return;
    Finding &finding =
        report_.addAbout(finding::BlockExpected, {roleIndex_, s, i}, value(s, id).name, block,
                         blockAt(plan_, block).name, claim.block, blockAt(plan_, claim.block).name);
    if (claim.cell == kNone)
      return note(finding, "the other block is named here", {roleIndex_, claim.segment, claim.op});
    note(finding,
         fmt::format("cell '@{}' is of the other block by its kind", role_.cells[claim.cell].name),
         spotOfCell(report_, roleIndex_, claim.cell));
  }

  void checkPart(const Part &part) {
    const Op &view = role_.segments[part.segment].ops[part.op];
    const Claim &claim = claims_[find(node(part.segment, view.results[0]))];
    const Claim &whole = claims_[find(node(part.segment, part.whole))];
    if (claim.block < 0 || whole.block < 0)
      return;
    const Value &result = value(part.segment, view.results[0]);
    Spot taken = {roleIndex_, part.segment, part.op};
    Spot named = claim.op == kNone ? taken : Spot{roleIndex_, claim.segment, claim.op};
    Finding &finding = report_.addAbout(finding::PartOfBlock, named, result.name, claim.block,
                                        blockAt(plan_, claim.block).name, whole.block,
                                        blockAt(plan_, whole.block).name);
    note(finding, "the view is taken here", taken);
  }

  /// The block whose elements the op moves, all or some; -1 if it moves activations.
  int32_t blockMovedBy(uint32_t s, const Op &op) {
    if (int32_t held = claims_[find(node(s, op.results[0]))].block; held >= 0)
      return held;
    ValueId whole = cuts_[node(s, op.operands[0])].whole;
    return whole == kNone ? -1 : claims_[find(node(s, whole))].block;
  }

  /// A collective that moves parts of a block must run over the group that divides the block, so
  /// that each part is on the rank whose index it has.
  void checkGroup(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    if (!opInfo(op).collective || !movesShards(collectiveKindOf(op)))
      return;
    int32_t held = blockMovedBy(s, op);
    if (held < 0)
      return;
    const Block &block = blockAt(plan_, held);
    const Group &group = groupAt(plan_, op.group);
    int64_t a = value(s, op.operands[0]).type.numel(), b = value(s, op.results[0]).type.numel();
    std::optional<BlockPart> small = partOf(block, std::min(a, b)),
                             big = partOf(block, std::max(a, b));
    if (block.stateShard == block.numel && a == b)
      return;
    bool isOver = small && big ? isComposedOf(plan_, small->group, big->group, op.group)
                               : isComposedOf(plan_, block.group, -1, op.group);
    int16_t needed = small ? small->group : block.group;
    if (!isOver)
      report_.add(finding::ShardsOverOtherGroup, {roleIndex_, s, i}, held, block.name, group.name,
                  needed < 0 ? "" : groupAt(plan_, needed).name);
  }

  /// Checks ops that square a part of a block without naming the block. Such an op squares all
  /// elements of the part, and cannot know which copies of a parameter count in the norm.
  void checkSquares(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    // -1 becomes an index beyond all results.
    auto squares = static_cast<size_t>(opInfo(op).squares);
    if (squares >= op.results.size() || blockNamedBy(op) >= 0)
      return;
    int32_t block = claims_[find(node(s, op.results[squares]))].block;
    if (block < 0)
      return;
    const Segment &segment = role_.segments[s];
    ValueId squared = op.results[static_cast<size_t>(opInfo(op).squared)];
    auto packs = [&](const Op &other) {
      return other.kind == OpKind::Pack && blockNamedBy(other) == block &&
             std::ranges::find(other.operands, squared) != other.operands.end();
    };
    if (report_.spend(segment.ops.size()) && std::ranges::none_of(segment.ops, packs))
      scope(s).addValue(finding::SquaresOfNoPart, i, squared, blockAt(plan_, block).name);
    for (const Param *param : report_.paramsOf(block))
      if (!param->copies.empty())
        report_.addAbout(finding::SquaresOfAllCopies, {roleIndex_, s, i}, param->name,
                         blockAt(plan_, block).name);
  }

  /// An op that names a block, such as an update, must not write its other results in place of the
  /// block's weights, which have as many elements.
  void checkResults(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    const OpInfo &info = opInfo(op);
    const int32_t block = blockNamedBy(op);
    for (size_t r = 0; block >= 0 && !info.keepsBlock() && r < op.results.size(); ++r) {
      const Claim &claim = claims_[find(node(s, op.results[r]))];
      if (claim.content != Content::Unclear && !info.isBlockResult(r) && info.inPlace[r] < 0)
        report_.addAbout(finding::MadeOfBlock, {roleIndex_, s, i}, value(s, op.results[r]).name,
                         blockAt(plan_, block).name, toString(claim.content));
    }
  }

  /// A layer must read one whole parameter in its own type. Ops that keep or move a block, or that
  /// name the block on which they work, may read other elements, or another type.
  void checkWeights(uint32_t s, uint32_t i) {
    const Op &op = role_.segments[s].ops[i];
    const OpInfo &info = opInfo(op);
    if (info.padding == Padding::Carried || info.traits == OpTraits::Alias)
      return;
    for (size_t k = 0; k < op.operands.size() && info.block != BlockUse::List; ++k) {
      ValueId operand = op.operands[k];
      const Cut &cut = cuts_[node(s, operand)];
      ValueId whole = cut.whole == kNone ? operand : cut.whole;
      const Claim &claim = claims_[find(node(s, whole))];
      if (claim.content == Content::Moments && isUsed(s, op))
        report_.addAbout(finding::TakesMoments, {roleIndex_, s, i}, value(s, operand).name);
      bool takesMaster = info.isWeightOperand(k); // in any type
      if (claim.content == Content::Weights && claim.block >= 0 && !takesMaster)
        checkWeight(s, i, operand, claim.block, info.isBlockOperand(k));
    }
  }

  // ---- padding: elements of a block that belong to no parameter ----

  struct Gap {
    int64_t begin, end; ///< elements of the value
    int64_t member;
  };

  /// Finds reads of padding. Views do not read elements, and neither do packs of a background
  /// segment's copies.
  void checkPadding() {
    for (const Part &part : parts_)
      partsOf_[find(node(part.segment, resultOf(part)))].push_back(&part);
    // Repeats until nothing changes, since parts may be views of values that are computed from
    // other parts.
    for (bool isNew = true; isNew && report_.spend(parts_.size());) {
      isNew = false;
      for (Part &part : parts_) {
        Elements elements = elementsOf(part.segment, resultOf(part));
        isNew |= elements != part.elements;
        part.elements = elements;
      }
    }
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i) {
        const Op &op = role_.segments[s].ops[i];
        bool isCopied = op.kind == OpKind::Pack && role_.segments[s].before != kNone;
        if (opInfo(op).padding != Padding::Refused || op.kind == OpKind::View || isCopied)
          continue;
        for (ValueId operand : op.operands)
          checkRead(s, i, operand);
        for (const Tie &tie : op.ties)
          if (tie.kind == Tie::Acc)
            checkRead(s, i, tie.value);
      }
  }

  ValueId resultOf(const Part &part) const {
    return role_.segments[part.segment].ops[part.op].results[0];
  }

  Elements elementsOf(uint32_t s, ValueId id) {
    if (const Cut &cut = cuts_[node(s, id)]; cut.whole != kNone) {
      Elements whole = elementsOf(s, cut.whole);
      bool isKnown = whole.first && cut.begin;
      return {whole.block, isKnown ? sumOf(plan_, *whole.first, *cut.begin) : std::nullopt};
    }
    uint32_t root = find(node(s, id));
    if (int32_t block = claims_[root].block; block >= 0) {
      std::optional<BlockPart> part = partOf(blockAt(plan_, block), value(s, id).type.numel());
      return part ? Elements{block, beginOf(*part)} : Elements();
    }
    auto parts = partsOf_.find(root);
    return parts == partsOf_.end() || !report_.spend(parts->second.size())
               ? Elements()
               : ofParts(parts->second, value(s, id).type.numel());
  }

  /// The elements of a value that an op computes from parts of a block without naming the block. If
  /// the value is larger or smaller than a part, it was gathered or scattered. It then contains
  /// padding if a part does on any rank, at an unknown position.
  Elements ofParts(const std::vector<const Part *> &parts, int64_t numel) {
    Elements all;
    for (const Part *part : parts) {
      Elements own = part->elements;
      int64_t count = value(part->segment, resultOf(*part)).type.numel();
      int16_t group = groupOf(own);
      if (numel != count && !firstGap(own, count, {0, group < 0 ? 0 : plan_.groupSize(group) - 1}))
        continue;
      if (numel != count)
        own.first.reset();
      if (all.block < 0)
        all = own;
      else if (own.block >= 0 && own != all)
        all.first.reset();
    }
    return all;
  }

  /// The group with whose index the elements move; -1 if they do not move.
  static int16_t groupOf(const Elements &held) {
    return held.first && !held.first->isFixed() ? held.first->group : int16_t{-1};
  }

  /// The first parameter with an element at or after this element of the block.
  static std::vector<const Param *>::const_iterator
  firstFrom(const std::vector<const Param *> &params, int64_t element) {
    return std::ranges::partition_point(
        params, [&](const Param *param) { return param->offset + param->type.numel() <= element; });
  }

  /// The first run of padding in a value, at any of the indices.
  std::optional<Gap> firstGap(const Elements &held, int64_t numel, IndexRange indices) const {
    if (held.block < 0)
      return std::nullopt;
    if (!held.first)
      return Gap{0, numel, 0};
    const std::vector<const Param *> &params = report_.paramsOf(held.block);
    for (int64_t member = indices.first; member <= indices.last; ++member) {
      int64_t begin = held.first->at(member), at = begin, end = begin + numel;
      auto next = firstFrom(params, begin);
      for (; next != params.end() && (*next)->offset <= at && at < end; ++next)
        at = (*next)->offset + (*next)->type.numel();
      if (!report_.spend(kVisitsOfGap))
        return std::nullopt;
      if (at < end)
        return Gap{at - begin,
                   (next == params.end() ? end : std::min(end, (*next)->offset)) - begin, member};
    }
    return std::nullopt;
  }

  void checkRead(uint32_t s, uint32_t i, ValueId id) {
    const Value &read = value(s, id);
    Elements held = elementsOf(s, id);
    if (!padded_.contains(held.block))
      return;
    int16_t along = groupOf(held);
    std::optional<Gap> gap = firstGap(held, read.type.numel(), indices_.of(along));
    if (!gap)
      return;
    int64_t each = dtypeBytes(read.type.dtype);
    // If the value moves with another group, the message shows the bytes on the role's first rank.
    int16_t group = read.place.group;
    int64_t member = group == along ? gap->member : indices_.of(group).first;
    int64_t base = read.place.offset + read.place.coef * member;
    ByteRange bytes{read.place.arena, base + gap->begin * each, base + gap->end * each,
                    gap->member};
    bool isPlaced = plan_.level == Level::Placed;
    std::string where = isPlaced ? plan::verifier::toString(bytes)
                                 : fmt::format("elements [{}, {}) of it", gap->begin, gap->end);
    Finding &finding =
        scope(s).addValue(finding::ReadsPadding, i, id, where, blockAt(plan_, held.block).name);
    if (isPlaced)
      finding.bytes = bytes;
  }

  // ---- uses of weights in the forward pass ----

  /// Records the origin of derived weights: parts, transposes and quantised copies count as the
  /// weights from which they are made.
  void findOrigins() {
    origin_ = parent_;
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      for (const Op &op : role_.segments[s].ops) {
        bool isPart =
            op.kind == OpKind::View || op.kind == OpKind::Transpose || plan::isDequantize(op.kind);
        for (size_t r = 0; r < op.results.size(); ++r)
          if (isPart || (changesForm(op) && opInfo(op).scaleOf[r] >= 0))
            origin_[rootOf(origin_, node(s, op.results[r]))] =
                rootOf(origin_, node(s, op.operands[0]));
      }
    weightsOf_.assign(origin_.size(), -1);
    for (uint32_t node = 0; node < parent_.size(); ++node)
      if (const Claim &claim = claims_[find(node)];
          claim.content == Content::Weights && claim.block >= 0)
        weightsOf_[rootOf(origin_, node)] = claim.block;
  }

  void findUses() {
    findOrigins();
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      for (uint32_t i = 0; i < role_.segments[s].ops.size(); ++i)
        if (const Op &op = role_.segments[s].ops[i]; isUse(op) || isInputGradient(op))
          for (size_t k = 0; k < op.operands.size(); ++k)
            if (int32_t block = weightsOf_[rootOf(origin_, node(s, op.operands[k]))]; block >= 0)
              report_.weightUses.push_back({{roleIndex_, s, i}, k, block, !isUse(op)});
    for (uint32_t s = 0; s < role_.segments.size(); ++s)
      checkUnread(s);
  }

  /// Refuses views and dequantised copies of frozen weights that no op reads. For trained weights,
  /// the gradient would show that an op used them.
  void checkUnread(uint32_t s) {
    if (!hasFrozen_ || !report_.spend(role_.segments[s].ops.size()))
      return;
    const Segment &segment = role_.segments[s];
    std::vector<uint8_t> isRead(segment.values.size());
    for (const Segment::Boundary &out : segment.outs)
      isRead[out.value] = 1;
    for (const Op &op : segment.ops) {
      for (ValueId operand : op.operands)
        isRead[operand] = 1;
      for (const Tie &tie : op.ties)
        isRead[tie.value] = 1;
    }
    for (uint32_t i = 0; i < segment.ops.size(); ++i)
      if (const Op &op = segment.ops[i]; op.kind == OpKind::View || plan::isDequantize(op.kind))
        if (int32_t block = weightsOf_[rootOf(origin_, node(s, op.operands[0]))];
            block >= 0 && isRead[op.results[0]] == 0 &&
            !plan_.classOf(blockAt(plan_, block)).isTrained)
          scope(s).addValue(finding::FrozenUnread, i, op.operands[0], blockAt(plan_, block).name);
  }

  /// Whether the op is a product of the backward pass that computes the gradient of its input.
  /// Gradients of weights read no weights.
  static bool isInputGradient(const Op &op) {
    return op.phase == plan::Phase::Backward && !op.isRecomputed && isProductWithWeight(op.kind);
  }

  /// Whether the op only quantises a value or finds its amax.
  static bool changesForm(const Op &op) {
    return op.epilogue == Epilogue::None && epilogueOf(op.kind).has_value();
  }
  static bool makesAgain(OpKind kind) {
    return std::ranges::any_of(
        kOpInfos, [&](const OpInfo &info) { return info.again && info.again->by == kind; });
  }
  /// Whether the op computes new values from its operands. Losses come with their gradients, and
  /// weights that are added to the losses of a step have none. Norms of DoRA have no gradient.
  static bool isUse(const Op &op) {
    SumRole sum = opInfo(op).sum;
    bool computes = sum == SumRole::Computes || sum == SumRole::ComputesShard;
    return op.phase == Phase::Forward && !op.isRecomputed && op.role == ProductRole::Forward &&
           (computes || sum == SumRole::AddsLosses) && !changesForm(op) &&
           op.kind != OpKind::Transpose && op.kind != OpKind::AdapterSquares &&
           !makesAgain(op.kind);
  }

  /// Whether an op reads a result of this op, or the segment stores one to a cell.
  bool isUsed(uint32_t s, const Op &op) {
    const Segment &segment = role_.segments[s];
    auto isResult = [&](ValueId id) {
      return std::ranges::find(op.results, id) != op.results.end();
    };
    return report_.spend(segment.ops.size()) &&
           (std::ranges::any_of(segment.outs, isResult, &Segment::Boundary::value) ||
            std::ranges::any_of(segment.ops, [&](const Op &each) {
              return std::ranges::any_of(each.operands, isResult) ||
                     std::ranges::any_of(each.ties, isResult, &Tie::value);
            }));
  }

  /// Checks a read of weights. `isNamed`: the op names the block, so it may read any part of it.
  void checkWeight(uint32_t s, uint32_t i, ValueId operand, int32_t block, bool isNamed) {
    const Value &taken = value(s, operand);
    const Elements held = {block, elementsOf(s, operand).first};
    if (const Param *param = findOfOtherType(held, taken.type))
      report_.addAbout(finding::WeightOfOtherType, {roleIndex_, s, i}, taken.name, param->name,
                       dtypeName(taken.type.dtype), dtypeName(param->type.dtype));
    else if (!isNamed && !isParameter(held, taken.type) && isUsed(s, role_.segments[s].ops[i]))
      report_.addAbout(finding::NotOneParameter, {roleIndex_, s, i}, taken.name, taken.type.numel(),
                       blockAt(plan_, block).name);
  }

  /// Whether these elements are exactly one parameter, and the same one on each rank of the role.
  bool isParameter(const Elements &held, const Type &type) {
    IndexRange own = indices_.of(groupOf(held));
    if (!held.first || !own.isSole())
      return false;
    const std::vector<const Param *> &params = report_.paramsOf(held.block);
    int64_t begin = held.first->at(own.first);
    auto at = std::ranges::lower_bound(params, begin, {}, &Param::offset);
    return at != params.end() && (*at)->offset == begin && (*at)->type.numel() == type.numel();
  }

  /// A parameter among these elements whose type differs from the value's; null if there is none.
  const Param *findOfOtherType(const Elements &held, const Type &type) {
    if (types_[static_cast<size_t>(held.block)] == type.dtype)
      return nullptr; // nearly always
    const std::vector<const Param *> &params = report_.paramsOf(held.block);
    auto isOther = [&](const Param *param) { return param->type.dtype != type.dtype; };
    if (!held.first) { // anywhere in the block
      auto at = std::ranges::find_if(params, isOther);
      return at == params.end() ? nullptr : *at;
    }
    IndexRange own = indices_.of(groupOf(held));
    for (int64_t member = own.first; member <= own.last && report_.spend(kVisitsOfPart); ++member) {
      int64_t begin = held.first->at(member);
      auto at = firstFrom(params, begin);
      for (; at != params.end() && (*at)->offset < begin + type.numel(); ++at)
        if (isOther(*at))
          return *at;
    }
    return nullptr;
  }

  void findTypes() {
    for (size_t block = 0; block < plan_.blocks.size(); ++block) {
      const std::vector<const Param *> &params = report_.paramsOf(static_cast<int32_t>(block));
      auto isFirst = [&](const Param *param) {
        return param->type.dtype == params.front()->type.dtype;
      };
      bool hasOne = !params.empty() && std::ranges::all_of(params, isFirst);
      types_.push_back(hasOne ? std::optional(params.front()->type.dtype) : std::nullopt);
    }
  }

  const bool hasFrozen_ = !std::ranges::all_of(plan_.classes, &ParamClass::isTrained);
  Indices indices_;
  std::vector<int16_t> divisions_; ///< groups
  std::set<int32_t> padded_;       ///< blocks with elements of no parameter
  std::vector<Part> parts_;
  std::map<uint32_t, std::vector<const Part *>> partsOf_; ///< by root of their class
  std::vector<uint32_t> firstOf_;  ///< node of each segment's first value, after all cells
  std::vector<uint32_t> parent_;   ///< union-find over cells, then values
  std::vector<uint32_t> origin_;   ///< as parent_, with the classes joined by findOrigins()
  std::vector<int32_t> weightsOf_; ///< block of each root in origin_; -1: no weights
  std::vector<Claim> claims_;      ///< claim of each class, at its root
  std::vector<Cut> cuts_;          ///< cuts by values that are views
  std::vector<std::optional<DType>> types_; ///< the common type of each block's parameters
};

} // namespace

void checkBlockUses(Inspection &inspection, uint32_t role) {
  if (!inspection.plan().blocks.empty())
    BlockCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
