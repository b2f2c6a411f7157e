// Internals of the verifier: the list of findings, and the phases that Verify.cpp calls in order. A
// phase may rely on what the phases before it have checked.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/Variants.h"
#include "runtime/verify/Verify.h"
#include "runtime/verify/VerifyRange.h"

namespace shardc::plan::verifier {

/// What an offset into an arena or a block has to be a multiple of.
constexpr int64_t kAlignmentBytes = 16;

class HappensBefore;
class Contents;
class RoleRings;

/// In place of a distance between microbatches: the value belongs to no single microbatch.
inline constexpr int64_t kOfNone = INT64_MIN;

/// The rows of VerifyFindings.def: `add(finding::NoContent, ...)` makes a finding with the row's
/// rule and text. The number and the types of its arguments are checked when compiling; what the
/// text names, as `{op}`, is no argument.
namespace finding {
#define FINDING(enumerator, rule, text)                                                            \
  inline constexpr struct enumerator##Row {                                                        \
    static constexpr Rule kRule = Rule::rule;                                                      \
    static constexpr std::string_view kText = text;                                                \
  } enumerator{};
#include "runtime/verify/VerifyFindings.def"
} // namespace finding

template <typename T>
concept FindingRow = requires {
  T::kRule;
  T::kText;
};
/// What texts may name: the op, segment and role of the finding's place, and what it is about.
struct TextNames {
  std::string_view op, segment, role, name;
};
inline constexpr std::array<std::string_view, 4> kTextNames = {"op", "segment", "role", "name"};

/// A row's text as fmt takes it, where what is named has numbers, as the arguments behind it.
template <FindingRow Row> class NumberedText {
public:
  consteval NumberedText() {
    for (std::string_view rest = Row::kText; !rest.empty();) {
      put(rest.front());
      rest.remove_prefix(1);
      if (size_ == 0 || text_[size_ - 1] != '{')
        continue;
      std::string_view word = rest.substr(0, rest.find('}'));
      auto named = static_cast<size_t>(std::ranges::find(kTextNames, word) - kTextNames.begin());
      if (!word.empty() && named == kTextNames.size())
        throw "a text names something else"; // does not compile
      size_t number = word.empty() ? kTextNames.size() + arguments_++ : named;
      if (number >= 10)
        put(static_cast<char>('0' + number / 10));
      put(static_cast<char>('0' + number % 10));
      rest.remove_prefix(word.size());
    }
  }
  constexpr operator std::string_view() const { return {text_.data(), size_}; }
  constexpr size_t countArguments() const { return arguments_; }

private:
  constexpr void put(char character) { text_[size_++] = character; }

  std::array<char, 2 * Row::kText.size()> text_{};
  size_t size_ = 0, arguments_ = 0;
};

template <FindingRow Row, typename... Args>
std::string textOf(Row, const TextNames &names, Args &&...args) {
  static constexpr NumberedText<Row> kText;
  static_assert(kText.countArguments() == sizeof...(Args));
  return fmt::format(std::string_view(kText), names.op, names.segment, names.role, names.name,
                     std::forward<Args>(args)...);
}

/// An operand of an op of the forward pass that has weights of a block.
struct WeightUse {
  Spot at;
  size_t operand;
  int32_t block;
};

/// Collects findings up to the limit, one an op, rule and value; and keeps what several phases ask
/// of the plan.
class Inspection {
public:
  Inspection(const Plan &plan, size_t findingsMax, uint64_t visitsMax);

  const Plan &plan() const { return plan_; }
  /// Keeps the finding, unless there is one like it, or no room. What callers add to the result,
  /// which is valid until the next call, is then lost.
  Finding &add(Rule rule, Spot at, std::string message, std::string value = {});
  Finding &add(Finding finding);
  template <FindingRow Row, typename... Args> Finding &add(Row row, Spot at, Args &&...args) {
    return isMuted_
               ? lost_
               : add(Row::kRule, at, textOf(row, namesAt(at, {}), std::forward<Args>(args)...));
  }
  /// The same about something with a name, so that two names give two findings.
  template <FindingRow Row, typename... Args>
  Finding &addAbout(Row row, Spot at, const std::string &name, Args &&...args) {
    return isMuted_ ? lost_
                    : add(Row::kRule, at,
                          textOf(row, namesAt(at, name), std::forward<Args>(args)...), name);
  }
  /// Parameters of a block by offset; built at the first call.
  const std::vector<const Param *> &paramsOf(int32_t block);
  /// For each cell of the role the block of whose state a checkpoint holds it, or null; and whether
  /// one holds it. Made at the first call.
  const std::vector<const Block *> &blocksInCheckpoint(uint32_t role);
  const std::vector<bool> &cellsInCheckpoint(uint32_t role);
  /// Roles of which a checkpoint holds state of the block, in order. Made at the first call.
  const std::vector<uint32_t> &rolesThatSave(size_t block);
  /// Whether ranks of the role update the block, and count its gradient in norms.
  bool updates(uint32_t role, size_t block) {
    return plan_.classOf(plan_.blocks[block]).isTrained &&
           std::ranges::binary_search(rolesThatSave(block), role);
  }
  /// Variants of the segment that the role's program takes, or all where there is no program yet. A
  /// background segment is taken always. Made at the first call.
  const std::vector<Variant> &variantsOf(uint32_t role, uint32_t segment);
  /// Which microbatches of each segment of the role execute alike. Made at the first call.
  const std::vector<VariantTable> &variantTablesOf(uint32_t role);
  /// VerifyOrder.cpp: the order of the segment's ops. Made at the first call.
  const HappensBefore &orderOf(uint32_t role, uint32_t segment);
  /// VerifyContents.cpp: what its values are made of in the variant. Made at the first call.
  const Contents &contentsOf(uint32_t role, uint32_t segment, Variant variant);
  /// VerifyContents.cpp: for each variant that the program takes, one that executes the same and
  /// stands for it. Made at the first call.
  const std::vector<std::pair<Variant, Variant>> &representativesOf(uint32_t role,
                                                                    uint32_t segment);
  /// VerifyRings.h: the slots among the cells of a role; the rings outlive it.
  void setRings(const std::vector<RoleRings> &rings) { rings_ = &rings; }
  const RoleRings &ringsOf(uint32_t role) const;
  /// Whether turns of loops are followed one by one, also where they do the same.
  void setTurns(Turns turns) { turns_ = turns; }
  bool followsAllTurns() const { return turns_ == Turns::All; }
  /// VerifyMicrobatches.cpp: how far the microbatch of each value is from the segment's own, or
  /// kOfNone. Empty where all are of the own one. Made, and checked, at the first call.
  const std::vector<int64_t> &shiftsOf(uint32_t role, uint32_t segment);
  /// The same of one value, where those of none count as of the own one.
  int64_t shiftOf(uint32_t role, uint32_t segment, ValueId value);
  /// While it is muted, nothing that has a row is kept: what is known may change.
  void setMuted(bool isMuted) { isMuted_ = isMuted; }
  bool isFull() const { return findings_.size() >= findingsMax_; }
  /// Counts work that is not bounded by the size of the plan's text, in visits of a few
  /// nanoseconds. False if it is too much for a plan: that is a finding, and the last one.
  bool spend(uint64_t visits) {
    visitsLeft_ -= std::min(visits, visitsLeft_);
    return visitsLeft_ > 0 || refuseWork();
  }
  size_t size() const { return findings_.size(); }
  /// Drops what was found, for a closer look. That the plan takes too much work remains.
  void forget() {
    if (visitsLeft_ == 0)
      return;
    findings_.clear();
    seen_.clear();
  }
  std::vector<Finding> take() { return std::move(findings_); }

  /// How many times the sum over all ranks the gradients of blocks are: the first that is taken
  /// says it for all (VerifySegmentSums.cpp).
  std::optional<float> gradientMultiple;
  std::vector<WeightUse> weightUses; ///< VerifyBlocks.cpp

private:
  bool refuseWork();
  TextNames namesAt(const Spot &at, std::string_view name) const;

  const Plan &plan_;
  size_t findingsMax_;
  uint64_t visitsMax_, visitsLeft_;
  std::vector<Finding> findings_;
  Finding lost_; ///< the last one that was not kept
  bool isMuted_ = false;
  std::vector<std::vector<const Param *>> paramsOf_;
  struct HeldCells {
    std::vector<const Block *> blocks;
    std::vector<bool> isHeld;
  };
  HeldCells &heldCells(uint32_t role);
  std::vector<std::optional<HeldCells>> held_;       ///< by role
  std::vector<std::vector<uint32_t>> rolesThatSave_; ///< by block
  const std::vector<RoleRings> *rings_ = nullptr;    ///< by role
  Turns turns_ = Turns::Different;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<int64_t>> shifts_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::pair<Variant, Variant>>>
      representatives_;
  std::vector<std::vector<std::vector<Variant>>> variants_; ///< by role and segment
  std::vector<std::vector<VariantTable>> variantTables_;    ///< by role and segment
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const HappensBefore>> orders_;
  std::map<std::tuple<uint32_t, uint32_t, Variant>, std::shared_ptr<const Contents>> contents_;
  std::set<std::tuple<Rule, uint32_t, uint32_t, uint32_t, std::string>> seen_;
};

/// Names seen so far, without an allocation each. They have to outlive the set.
class NameSet {
public:
  explicit NameSet(size_t count) : slots_(std::bit_ceil(2 * count + 1)) {}

  /// False if the name is in the set already. At most `count` names fit.
  bool insert(std::string_view name) {
    for (size_t i = std::hash<std::string_view>()(name);; ++i) {
      std::string_view &slot = slots_[i & (slots_.size() - 1)];
      if (slot.data() == nullptr) {
        slot = name;
        return true;
      }
      if (slot == name)
        return false;
    }
  }

private:
  std::vector<std::string_view> slots_; ///< no data where free
};

/// Entries of the plan's tables, by indices that phases before have checked.
inline const Block &blockAt(const Plan &plan, int64_t index) {
  return plan.blocks[static_cast<size_t>(index)];
}
inline const Group &groupAt(const Plan &plan, int64_t index) {
  return plan.groups[static_cast<size_t>(index)];
}
inline const Channel &channelAt(const Plan &plan, int64_t index) {
  return plan.channels[static_cast<size_t>(index)];
}

/// Of each cell whether a background segment fills it, for the host or for another one.
inline std::vector<bool> cellsOfSnapshots(const Role &role) {
  std::vector<bool> isSnapshot(role.cells.size());
  for (const Segment &segment : role.segments)
    for (const Segment::Boundary &out : segment.outs)
      isSnapshot[out.cell] = isSnapshot[out.cell] || segment.before != kNone;
  return isSnapshot;
}

/// The op that makes a value; null of a live-in.
inline const Op *makerOf(const Segment &segment, ValueId value) {
  uint32_t def = segment.values[value].def;
  return def == kNone ? nullptr : &segment.ops[def];
}
/// The cell of a live-in; null of other values.
inline const Cell *cellOf(const Role &role, const Segment &segment, ValueId value) {
  auto at = std::ranges::find(segment.ins, value, &Segment::Boundary::value);
  return at == segment.ins.end() ? nullptr : &role.cells[at->cell];
}

/// Whether the condition holds for some of the nodes, or of those inside them.
template <typename Is> bool hasNode(const std::vector<ProgramNode> &nodes, const Is &is) {
  return std::ranges::any_of(
      nodes, [&](const ProgramNode &node) { return is(node) || hasNode(node.children, is); });
}

/// One segment of one role, with what messages need.
struct Scope {
  Inspection &inspection;
  const Role &role;
  const Segment &segment;
  uint32_t roleIndex, segmentIndex;

  const Plan &plan() const { return inspection.plan(); }
  Spot spot(uint32_t op = kNone) const { return {roleIndex, segmentIndex, op}; }
  const Value &value(ValueId id) const { return segment.values[id]; }
  const std::string &nameOf(ValueId id) const { return segment.values[id].name; }
  /// The op that a message about the value shows: the one that makes it, for a live-in value the
  /// first that takes it; kNone if there is none.
  uint32_t opOf(ValueId id) const;
  template <FindingRow Row, typename... Args>
  Finding &add(Row row, uint32_t op, Args &&...args) const {
    return inspection.add(row, spot(op), std::forward<Args>(args)...);
  }
  /// The same for what is about one value.
  template <FindingRow Row, typename... Args>
  Finding &addValue(Row row, uint32_t op, ValueId id, Args &&...args) const {
    return inspection.addAbout(row, spot(op), nameOf(id), std::forward<Args>(args)...);
  }
};

/// Adds to a finding what the other side does, and where.
inline void note(Finding &finding, std::string text, Spot at) {
  finding.note = std::move(text);
  finding.noteAt = at;
}

/// The op that a message about a cell shows: the first that fills it, or reads it.
Spot spotOfCell(Inspection &inspection, uint32_t role, uint32_t cell);

/// What a check of one role has.
class RoleCheck {
protected:
  RoleCheck(Inspection &inspection, uint32_t roleIndex)
      : report_(inspection), plan_(inspection.plan()), roleIndex_(roleIndex),
        role_(plan_.roles[roleIndex]) {}
  ~RoleCheck() = default;

  Scope scope(uint32_t segment) const {
    return {report_, role_, role_.segments[segment], roleIndex_, segment};
  }
  /// About a cell.
  template <FindingRow Row, typename... Args>
  Finding &addCell(Row row, uint32_t cell, Args &&...args) const {
    return report_.addAbout(row, spotOfCell(report_, roleIndex_, cell), role_.cells[cell].name,
                            std::forward<Args>(args)...);
  }

  Inspection &report_;
  const Plan &plan_;
  const uint32_t roleIndex_;
  const Role &role_;
};

/// True if the type has 1 to 4 dimensions, each with elements, and a size within the limits.
bool isTypeSane(const Type &type);

/// False, with a finding, if the owner has more of something than the limit.
bool needAtMost(Inspection &inspection, Spot at, std::string_view owner, size_t count,
                std::string_view what, int64_t most);
/// Reports a name that is longer than names may be.
void checkNameLength(Inspection &inspection, Spot at, std::string_view what, std::string_view name);

/// `work [0, 256) at index 2`; without the index where that is 0.
std::string toString(const ByteRange &range);
/// What both have in common at some coordinate, if they have anything.
std::optional<ByteRange> commonBytes(const Range &a, const Range &b, const Indices &indices);

/// Calls use(spot, segment, op) for all ops of the plan, role by role.
template <typename Use> void forEachOp(const Plan &plan, const Use &use) {
  for (uint32_t r = 0; r < plan.roles.size(); ++r)
    for (uint32_t s = 0; s < plan.roles[r].segments.size(); ++s)
      for (uint32_t i = 0; i < plan.roles[r].segments[s].ops.size(); ++i)
        use(Spot{r, s, i}, plan.roles[r].segments[s], plan.roles[r].segments[s].ops[i]);
}
template <typename Is> bool hasOp(const Role &role, const Is &is) {
  return std::ranges::any_of(
      role.segments, [&](const Segment &segment) { return std::ranges::any_of(segment.ops, is); });
}
template <typename Is> bool hasOp(const Plan &plan, const Is &is) {
  return std::ranges::any_of(plan.roles, [&](const Role &role) { return hasOp(role, is); });
}

/// Coordinates of a role on an axis.
AxisRange extentOf(const Plan &plan, const Role &role, uint16_t axis);
/// Whether some ranks of both have the same coordinates on all axes but those of a group.
bool haveRanksInCommon(const Plan &plan, const Role &a, const Role &b, int16_t butOf = -1);
/// Coordinates inside of an extent of an axis where ranks of any role begin or end.
std::set<int64_t> cutsIn(const Plan &plan, const AxisRange &extent);
/// True if both are the same on each rank of the role.
bool areSame(const Plan &plan, const Role &role, const Moving &a, const Moving &b);
/// True if both places are the same bytes on each rank of the role, `apart` bytes from each other.
bool liesAt(const Plan &plan, const Role &role, const Place &a, const Place &b,
            const Moving &apart = {});

/// The element with which a part of a block begins.
Moving beginOf(const BlockPart &part);

/// True if the op takes effect in the variant and writes anything: no alias, predicate holds.
bool executes(const Op &op, const Variant &variant);

/// The block that its attribute names; -1 if it has none.
inline int32_t blockNamedBy(const Op &op) {
  return op.attrs.empty() ? -1 : static_cast<int32_t>(op.getInt(AttrKey::block));
}

/// Whether any op of the role is an optimizer.
bool updatesBlocks(const Role &role);

/// The factors of each op that is a product.
inline constexpr size_t kFirstFactor = operandIndex<OpKind::MatMul>("a"),
                        kSecondFactor = operandIndex<OpKind::MatMul>("b");
static_assert(kSecondFactor == operandIndex<OpKind::MatMulScaled>("b") &&
              kSecondFactor == operandIndex<OpKind::MatMulGelu>("b") &&
              kSecondFactor == operandIndex<OpKind::MatMulGeluBwd>("b") &&
              kSecondFactor == operandIndex<OpKind::GroupedMatMul>("b") &&
              kSecondFactor == operandIndex<OpKind::GroupedMatMulScaled>("b") &&
              kSecondFactor == operandIndex<OpKind::GroupedMatMulBias>("b"));

/// Limit of distinct steps of a loop, where steps differ in which `every` nodes are due.
inline constexpr size_t kStepsMax = 256;
/// Representative steps of the loop: in every other step, the same `every` nodes are due as in one
/// of these. A set of nodes that is ever due together is first due in the step that is the least
/// common multiple of their counts. The result has more than kStepsMax entries if there are too
/// many.
std::set<int64_t> stepsThatDiffer(const ProgramNode &steps);

// Phases over the whole plan
/// VerifyTables.cpp: mesh, groups, blocks, parameters, roles, programs.
void checkTables(Inspection &inspection);
/// VerifySplits.cpp: this rank's part of a parameter against the whole, and its copies.
void checkSplits(Inspection &inspection, const Param &param);
/// VerifySplits.cpp: that the ranks along splits and copies have one role.
void checkSplitRoles(Inspection &inspection);
/// VerifySplits.cpp: names of tensors, and that some rank has each of their elements.
void checkSaved(Inspection &inspection);
/// VerifyTables.cpp: types of cells that a checkpoint holds.
void checkStates(Inspection &inspection);
/// VerifyRings.cpp: what rings need so that their slots may be taken for cells.
void checkRings(Inspection &inspection);
void checkCollectives(Inspection &inspection); ///< VerifyCollectives.cpp: roles against each other
/// VerifyBlocks.cpp: which block values of one role hold, and that nothing reads its padding.
void checkBlockUses(Inspection &inspection, uint32_t role);
/// VerifyKinds.cpp: of cells, segments and ops.
void checkKinds(Inspection &inspection, uint32_t role);
/// VerifyFrozen.cpp: blocks that are not trained.
void checkFrozen(Inspection &inspection);
/// VerifyMatrices.cpp: the optimizers of blocks, and matrices that they update whole.
void checkMatrices(Inspection &inspection);
void checkStreamKinds(Inspection &inspection);
/// VerifyFlow.cpp: which rows of a value are there, whose they are, of which sums it has parts, and
/// which tokens its rows are of.
void checkValues(Inspection &inspection);
/// VerifyWeightScales.cpp: that weights of 8 bits are left with their scales.
void checkWeightScales(Inspection &inspection, uint32_t role);
/// VerifyRemainders.cpp: that halves of master weights stay together.
void checkRemainders(Inspection &inspection, uint32_t role);
void checkJob(Inspection &inspection, uint32_t role); ///< VerifyJob.cpp: programs against the job
void checkCells(Inspection &inspection);              ///< VerifyPlaces.cpp: places of cells
void checkHostCells(Inspection &inspection, uint32_t role); ///< VerifyHost.cpp
/// VerifyBackground.cpp: what background segments may hold, and their bytes against all beside
/// them.
void checkBackgroundForm(Inspection &inspection, uint32_t role);
void checkBackgroundBytes(Inspection &inspection, uint32_t role);
void checkSnapshots(Inspection &inspection, uint32_t role); ///< VerifySnapshots.cpp: what they copy
void checkCapacity(Inspection &inspection);                 ///< VerifyPlaces.cpp
void checkGraphs(Inspection &inspection);                   ///< VerifyPlaces.cpp
/// VerifyProgram.cpp: bytes and cells of one role.
void checkPrograms(Inspection &inspection, uint32_t role);

void checkSums(Inspection &inspection); ///< VerifySums.cpp: what steps add up and update

// Phases over one segment
void checkForm(const Scope &scope);   ///< VerifyForm.cpp: indices, names, arity, ties, boundaries
void checkShapes(const Scope &scope); ///< VerifyShapes.cpp
void checkPlaces(const Scope &scope); ///< VerifyPlaces.cpp: what a place has to be by itself
void checkMicrobatches(const Scope &scope); ///< VerifyMicrobatches.cpp: of which each value is
void checkOrder(const Scope &scope);        ///< VerifyOrder.cpp: happens-before over values

} // namespace shardc::plan::verifier
