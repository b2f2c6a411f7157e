// Checks that each element of a gradient counts once in the norm. Either all ranks have all
// elements and take their own squares, or each rank adds a part of its squares: one of as many as
// there are ranks that hold the same elements.
#include <algorithm>
#include <set>

#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

class NormCheck {
public:
  explicit NormCheck(Inspection &inspection)
      : report_(inspection), plan_(inspection.plan()),
        shardAxes_(plan_.shardGroup < 0 ? Axes{0} : axesOf(plan_, plan_.shardGroup)) {
    for (uint32_t r = 0; r < plan_.roles.size(); ++r) {
      std::vector<bool> &held = held_.emplace_back(plan_.blocks.size());
      for (const Block *block : report_.blocksInCheckpoint(r))
        if (block != nullptr)
          held[static_cast<size_t>(block - plan_.blocks.data())] = true;
    }
  }

  void run() {
    for (uint32_t r = 0; r < plan_.roles.size(); ++r)
      for (uint32_t s = 0; s < plan_.roles[r].segments.size(); ++s)
        for (uint32_t i = 0; i < plan_.roles[r].segments[s].ops.size(); ++i)
          if (plan_.roles[r].segments[s].ops[i].kind == OpKind::StepFinish && !report_.isFull())
            findPack({r, s, i});
    bool isSummed = std::ranges::any_of(norms_, [](const Norm &norm) { return !norm.isOwn; });
    for (const Norm &norm : norms_)
      checkNorm(norm, isSummed);
  }

private:
  /// How a role ends its steps.
  struct Norm {
    Spot at;
    const Op *pack;
    bool isOwn; ///< it takes this rank's squares, and not the sum over ranks
  };

  void findPack(Spot at) {
    const Segment &segment = plan_.roles[at.role].segments[at.segment];
    const Op &finish = segment.ops[at.op];
    Axes summed = 0;
    const Op *op = makerOf(segment, finish.operands[1]);
    for (; op != nullptr && op->kind == OpKind::AllReduce; op = makerOf(segment, op->operands[0])) {
      Axes over = axesOf(plan_, op->group);
      need(at, (summed & over) == 0 && !op->getBool(AttrKey::average),
           "takes an average, or sums that count what a rank has packed more than once");
      summed |= over;
    }
    if (op != nullptr && op->kind == OpKind::StepPack)
      norms_.push_back({at, op, finish.getBool(AttrKey::norm_replicated)});
  }

  static const Op *makerOf(const Segment &segment, ValueId value) {
    uint32_t def = segment.values[value].def;
    return def == kNone ? nullptr : &segment.ops[def];
  }

  /// What a role packs matters where any role takes the sum.
  void checkNorm(const Norm &norm, bool isSummed) {
    if (isSummed)
      need(norm.at, !norm.pack->getBool(AttrKey::norm_replicated),
           "sums squares over ranks, and its 'step.pack' leaves them out");
    for (size_t block = 0; block < plan_.blocks.size() && !report_.isFull(); ++block) {
      bool isHeld = held_[norm.at.role][block];
      if (isSummed && isHeld)
        checkCopies(norm.at, norm.pack->getInt(AttrKey::copies), block);
      if (norm.isOwn && isHeldByAny(block))
        need(norm.at, isHeld && !isSharded(block),
             "takes the squares of this rank's part for those of all elements");
    }
  }

  bool isHeldByAny(size_t block) const {
    return std::ranges::any_of(held_, [&](const std::vector<bool> &held) { return held[block]; });
  }
  bool isSharded(size_t block) const {
    return plan_.blocks[block].shard < plan_.blocks[block].numel;
  }

  void checkCopies(Spot at, int64_t said, size_t block) {
    for (int64_t index : indicesThatDiffer(plan_.roles[at.role], block)) {
      int64_t copies = copiesOf(block, index);
      if (!report_.spend(plan_.roles.size()) || copies == said)
        continue;
      report_.add(
          Rule::Step, at,
          fmt::format("each rank adds 1 in {} of its squares to the norm; {} ranks hold the "
                      "same part of block '{}'",
                      said, copies, plan_.blocks[block].name),
          plan_.blocks[block].name);
      return;
    }
  }

  /// Indices in the group of shards that stand for those of all of the role's ranks: how many ranks
  /// hold a part changes only where the ranks of a role begin or end.
  std::set<int64_t> indicesThatDiffer(const Role &role, size_t block) const {
    IndexRange own = indicesOf(plan_, role);
    std::set<int64_t> indices = {own.first};
    for (const Role &each : plan_.roles) {
      IndexRange other = indicesOf(plan_, each);
      for (int64_t index : {other.first, other.last + 1})
        if (isSharded(block) && own.first < index && index <= own.last)
          indices.insert(index);
    }
    return indices;
  }

  /// Ranks that hold the part of the block that belongs to the index.
  int64_t copiesOf(size_t block, int64_t index) const {
    int64_t copies = 0;
    for (size_t r = 0; r < plan_.roles.size(); ++r) {
      const Role &role = plan_.roles[r];
      IndexRange indices = indicesOf(plan_, role);
      bool hasPart = !isSharded(block) || (indices.first <= index && index <= indices.last);
      if (!hasPart || !held_[r][block])
        continue;
      int64_t ranks = 1;
      for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis)
        if (!isSharded(block) || (shardAxes_ >> axis & 1) == 0) {
          AxisRange extent = extentOf(plan_, role, axis);
          ranks *= extent.end - extent.begin;
        }
      copies += ranks;
    }
    return copies;
  }

  void need(Spot at, bool condition, std::string_view what) {
    if (!condition)
      report_.add(Rule::Step, at, fmt::format("'step.finish' {}", what));
  }

  Inspection &report_;
  const Plan &plan_;
  Axes shardAxes_;
  std::vector<std::vector<bool>> held_; ///< of each role, blocks whose state it has
  std::vector<Norm> norms_;
};

} // namespace

void checkNorms(Inspection &inspection) { NormCheck(inspection).run(); }

} // namespace shardc::plan::verifier
