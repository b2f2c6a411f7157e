// Internals of the verifier: Inspection, which collects findings and caches facts about the plan,
// helpers for checks, and the phases in the order in which Verify.cpp calls them. A phase may rely
// on what earlier phases have checked, and is not called if they found an error.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
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

/// Required alignment of offsets into arenas and blocks, in bytes.
constexpr int64_t kAlignmentBytes = 16;

class HappensBefore;
class RoleRings;

/// The rows of VerifyFindings.def. `add(finding::NoContent, ...)` makes a finding with the row's
/// rule and text. Number and types of arguments are checked at compile time; named parts such as
/// `{op}` are not arguments.
namespace finding {
#define FINDING(enumerator, rule, text)                                                            \
  inline constexpr struct enumerator##Row {                                                        \
    static constexpr Rule kRule = Rule::rule;                                                      \
    static constexpr std::string_view kText = text;                                                \
  } enumerator{};
#include "runtime/verify/VerifyFindings.def"
} // namespace finding

/// A row of VerifyFindings.def.
template <typename T>
concept FindingRow = requires {
  T::kRule;
  T::kText;
};
/// Named parts of a text: op, segment and role of the finding's location, and its subject.
struct TextNames {
  std::string_view op, segment, role, name;
};
inline constexpr std::array<std::string_view, 4> kTextNames = {"op", "segment", "role", "name"};

/// How many arguments a row's text takes besides its named parts.
consteval size_t countArguments(std::string_view text) {
  size_t count = 0;
  for (size_t at = text.find('{'); at != text.npos; at = text.find('{', at + 1)) {
    std::string_view word = text.substr(at + 1, text.find('}', at) - at - 1);
    if (word.empty())
      ++count;
    else if (std::ranges::find(kTextNames, word) == kTextNames.end())
      throw "a text names something else"; // does not compile
  }
  return count;
}

/// The row's text with its named parts and arguments.
template <FindingRow Row, typename... Args>
std::string textOf(Row, const TextNames &names, Args &&...args) {
  static_assert(countArguments(Row::kText) == sizeof...(Args));
  return fmt::format(fmt::runtime(Row::kText), std::forward<Args>(args)...,
                     fmt::arg("op", names.op), fmt::arg("segment", names.segment),
                     fmt::arg("role", names.role), fmt::arg("name", names.name));
}

/// Collects findings up to the limit, one per op, rule and value; caches facts about the plan that
/// several phases need.
class Inspection {
public:
  /// The plan must outlive the object. `visitsMax` limits the work: see spend().
  Inspection(const Plan &plan, size_t findingsMax, uint64_t visitsMax);

  const Plan &plan() const { return plan_; }
  /// Adds a finding, unless an equal one exists or the limit is reached; the returned object is
  /// then a dummy. The reference is valid until the next call.
  Finding &add(Rule rule, Spot at, std::string message, std::string value = {});
  Finding &add(Finding finding);
  template <FindingRow Row, typename... Args> Finding &add(Row row, Spot at, Args &&...args) {
    return add(Row::kRule, at, textOf(row, namesAt(at, {}), std::forward<Args>(args)...));
  }
  /// Like add() above, for a finding about a named value or cell. Findings about different names
  /// are different findings.
  template <FindingRow Row, typename... Args>
  Finding &addAbout(Row row, Spot at, const std::string &name, Args &&...args) {
    return add(Row::kRule, at, textOf(row, namesAt(at, name), std::forward<Args>(args)...), name);
  }
  /// Parameters of a block by offset; cached.
  const std::vector<const Param *> &paramsOf(int32_t block);
  /// Variants of the segment that the role's program executes, or all variants without a program.
  /// Background segments are always executed. Cached.
  const std::vector<Variant> &variantsOf(uint32_t role, uint32_t segment);
  /// Variant tables of the role's segments. Cached.
  const std::vector<VariantTable> &variantTablesOf(uint32_t role);
  /// VerifyOrder.cpp: the happens-before relation of the segment's ops. Cached.
  const HappensBefore &orderOf(uint32_t role, uint32_t segment);
  /// VerifyContents.cpp: for each executed variant, a representative that executes the same.
  /// Cached.
  const std::vector<std::pair<Variant, Variant>> &representativesOf(uint32_t role,
                                                                    uint32_t segment);
  /// VerifyRings.h: ring slots among the cells of a role. The rings must outlive this object.
  void setRings(const std::vector<RoleRings> &rings) { rings_ = &rings; }
  const RoleRings &ringsOf(uint32_t role) const;
  /// Whether all iterations of loops are analysed, even equal ones.
  void setIterations(Iterations iterations) { iterations_ = iterations; }
  bool followsAllIterations() const { return iterations_ == Iterations::All; }
  /// Whether the limit of findings is reached; checks may then stop.
  bool isFull() const { return findings_.size() >= findingsMax_; }
  /// Counts work that the size of the plan's text does not bound, in visits of a few nanoseconds.
  /// Returns false, and adds a last finding, if the limit is exceeded; the caller then stops its
  /// analysis.
  bool spend(uint64_t visits) {
    visitsLeft_ -= std::min(visits, visitsLeft_);
    return visitsLeft_ > 0 || refuseWork();
  }
  size_t size() const { return findings_.size(); }
  std::vector<Finding> take() { return std::move(findings_); }

private:
  bool refuseWork();
  TextNames namesAt(const Spot &at, std::string_view name) const;

  const Plan &plan_;
  size_t findingsMax_;
  uint64_t visitsMax_, visitsLeft_;
  std::vector<Finding> findings_;
  Finding lost_; ///< a dummy for findings that are dropped
  std::vector<std::vector<const Param *>> paramsOf_;
  const std::vector<RoleRings> *rings_ = nullptr; ///< by role
  Iterations iterations_ = Iterations::Different;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::pair<Variant, Variant>>>
      representatives_;
  std::vector<std::vector<std::vector<Variant>>> variants_; ///< by role and segment
  std::vector<std::vector<VariantTable>> variantTables_;    ///< by role and segment
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const HappensBefore>> orders_;
  std::set<std::tuple<Rule, uint32_t, uint32_t, uint32_t, std::string>> seen_;
};

/// Entries of the plan's tables; earlier phases have checked the indices.
inline const Block &blockAt(const Plan &plan, int64_t index) {
  return plan.blocks[static_cast<size_t>(index)];
}
inline const Group &groupAt(const Plan &plan, int64_t index) {
  return plan.groups[static_cast<size_t>(index)];
}
inline const Channel &channelAt(const Plan &plan, int64_t index) {
  return plan.channels[static_cast<size_t>(index)];
}

/// The op that defines a value; null if it is a live-in.
inline const Op *producerOf(const Segment &segment, ValueId value) {
  uint32_t def = segment.values[value].def;
  return def == kNone ? nullptr : &segment.ops[def];
}

/// Whether the condition holds for a node or one of its descendants.
template <typename Is> bool hasNode(const std::vector<ProgramNode> &nodes, const Is &is) {
  return std::ranges::any_of(
      nodes, [&](const ProgramNode &node) { return is(node) || hasNode(node.children, is); });
}

/// One segment of one role, with helpers for messages.
struct Scope {
  Inspection &inspection;
  const Role &role;
  const Segment &segment;
  uint32_t roleIndex, segmentIndex;

  const Plan &plan() const { return inspection.plan(); }
  Spot spot(uint32_t op = kNone) const { return {roleIndex, segmentIndex, op}; }
  const Value &value(ValueId id) const { return segment.values[id]; }
  const std::string &nameOf(ValueId id) const { return segment.values[id].name; }
  /// The op that a message about the value shows: its definition or, for a live-in, its first user;
  /// kNone if there is neither.
  uint32_t opOf(ValueId id) const;
  template <FindingRow Row, typename... Args>
  Finding &add(Row row, uint32_t op, Args &&...args) const {
    return inspection.add(row, spot(op), std::forward<Args>(args)...);
  }
  /// Like add() above, for a finding about one value.
  template <FindingRow Row, typename... Args>
  Finding &addValue(Row row, uint32_t op, ValueId id, Args &&...args) const {
    return inspection.addAbout(row, spot(op), nameOf(id), std::forward<Args>(args)...);
  }
};

/// Adds a note about the conflicting op and its location to a finding.
inline void note(Finding &finding, std::string text, Spot at) {
  finding.note = std::move(text);
  finding.noteAt = at;
}

/// The op that a message about a cell shows: the first that writes or reads it.
Spot spotOfCell(Inspection &inspection, uint32_t role, uint32_t cell);

/// Base of checks of one role.
class RoleCheck {
protected:
  RoleCheck(Inspection &inspection, uint32_t roleIndex)
      : report_(inspection), plan_(inspection.plan()), roleIndex_(roleIndex),
        role_(plan_.roles[roleIndex]) {}
  ~RoleCheck() = default;

  Scope scope(uint32_t segment) const {
    return {report_, role_, role_.segments[segment], roleIndex_, segment};
  }
  /// Adds a finding about a cell.
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

/// `work [0, 256) at index 2`; without the index where that is 0.
std::string toString(const ByteRange &range);
/// The intersection at some index, if there is one.
std::optional<ByteRange> commonBytes(const Range &a, const Range &b, const Indices &indices);

/// Calls use(spot, segment, op) for all ops of the plan, role by role.
template <typename Use> void forEachOp(const Plan &plan, const Use &use) {
  for (uint32_t r = 0; r < plan.roles.size(); ++r)
    for (uint32_t s = 0; s < plan.roles[r].segments.size(); ++s)
      for (uint32_t i = 0; i < plan.roles[r].segments[s].ops.size(); ++i)
        use(Spot{r, s, i}, plan.roles[r].segments[s], plan.roles[r].segments[s].ops[i]);
}

/// The role's coordinates on a mesh axis.
AxisRange extentOf(const Plan &plan, const Role &role, uint16_t axis);
/// Whether two roles have ranks that differ at most in the coordinates of a group.
bool haveRanksInCommon(const Plan &plan, const Role &a, const Role &b, int16_t butOf = -1);
/// Whether the places are equal on every rank of the role, apart from a distance of `apart` bytes.
bool liesAt(const Plan &plan, const Role &role, const Place &a, const Place &b,
            const Moving &apart = {});

/// Whether the op executes in the variant and writes something: it is not an alias and its
/// predicate holds.
bool executes(const Op &op, const Variant &variant);

/// The block of the op's attribute; -1 without one.
inline int32_t blockNamedBy(const Op &op) {
  return op.attrs.empty() ? -1 : static_cast<int32_t>(op.getInt(AttrKey::block));
}

/// Limit of distinct steps of a loop, where steps differ in which `every` nodes are due.
inline constexpr size_t kStepsMax = 256;
/// Representative steps of the loop: in every other step, the same `every` nodes are due as in one
/// of these. A set of nodes that is ever due together is first due in the step that is the least
/// common multiple of their counts. The result has more than kStepsMax entries if there are too
/// many.
std::set<int64_t> stepsThatDiffer(const ProgramNode &steps);

// Phases over the whole plan
/// VerifyTables.cpp: groups, blocks, parameters, roles and programs are consistent.
void checkTables(Inspection &inspection);
/// VerifySplits.cpp: the rank's part of a parameter has the shape that its splits imply, and copies
/// lie along axes that do not split it.
void checkSplits(Inspection &inspection, const Param &param);
/// VerifySplits.cpp: ranks along splits and copies of a parameter have the same role.
void checkSplitRoles(Inspection &inspection);
/// VerifySplits.cpp: all members of a block's groups have the block, so that saves are complete.
void checkHolders(Inspection &inspection);
/// VerifyTables.cpp: cells that a checkpoint contains have types that it can store.
void checkStates(Inspection &inspection);
/// VerifyRings.cpp: the bytes of a ring belong to it alone, so that each slot may be treated as a
/// cell.
void checkRings(Inspection &inspection);
/// VerifyCollectives.cpp: roles that meet issue the same collectives in the same order.
void checkCollectives(Inspection &inspection);
/// VerifyTables.cpp: schedules and skipped steps are those of the job's options.
void checkJob(Inspection &inspection);
/// VerifyPlaces.cpp: each cell has a place, aligned and inside the arena that it names.
void checkCells(Inspection &inspection);
/// VerifyHost.cpp: only one op reads a cell that the host writes at any time; all ranks end after
/// the same step.
void checkHostCells(Inspection &inspection, uint32_t role);
/// VerifyBackground.cpp: background segments contain only ops that they may contain.
void checkBackgroundForm(Inspection &inspection, uint32_t role);
/// VerifyPlaces.cpp: the graphs of a role have at most as many nodes as CUDA can hold.
void checkGraphs(Inspection &inspection);
/// VerifyProgram.cpp: no read of undefined or overwritten bytes in any run of the role's program,
/// and none that a background segment accesses at the same time.
void checkPrograms(Inspection &inspection, uint32_t role);

// Phases over one segment
/// VerifyForm.cpp: numbers of operands, attributes, ties and boundaries.
void checkForm(const Scope &scope);
/// VerifyShapes.cpp: extents, element types and attributes of each op.
void checkShapes(const Scope &scope);
/// VerifyPlaces.cpp: each place is aligned and inside its arena on every rank.
void checkPlaces(const Scope &scope);
/// VerifyOrder.cpp: collectives of a channel are ordered, and their kernels fit the device
/// together.
void checkOrder(const Scope &scope);

} // namespace shardc::plan::verifier
