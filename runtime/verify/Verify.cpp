// Calls the phases in order, renders findings with their place and op, and caches facts that
// several phases need.
#include "runtime/verify/Verify.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/base/Reports.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan {
namespace {

struct RuleInfo {
  std::string_view id, doc;
};
constexpr std::array<RuleInfo, kRuleCount> kRules = {{
#define RULE(enumerator, id, doc) {id, doc},
#include "runtime/verify/VerifyRules.def"
}};

constexpr size_t kOpTextMax = 160; ///< characters of an op that a message shows

const Op *opAt(const Plan &plan, const Spot &spot) {
  if (spot.role >= plan.roles.size() || spot.segment >= plan.roles[spot.role].segments.size())
    return nullptr;
  const std::vector<Op> &ops = plan.roles[spot.role].segments[spot.segment].ops;
  return spot.op < ops.size() ? &ops[spot.op] : nullptr;
}

/// The recipe line that caused the op at this place. Some ops have none, such as views, and some
/// findings have no op. Then the line comes from an op with which the op shares values, from an op
/// of its unit, or from the segment's first op.
uint32_t locOf(const Plan &plan, const Spot &spot) {
  const Op *own = opAt(plan, spot);
  if (own && own->loc < plan.locs.size())
    return own->loc;
  if (spot.role >= plan.roles.size() || spot.segment >= plan.roles[spot.role].segments.size())
    return kNone;
  auto hasFirst = [](const std::vector<ValueId> &values, const std::vector<ValueId> &of) {
    return !of.empty() && std::ranges::find(values, of.front()) != values.end();
  };
  auto worksWith = [&](const Op &op) {
    return hasFirst(op.results, own->operands) || hasFirst(op.operands, own->results);
  };
  uint32_t loc = kNone;
  for (int best = 0; const Op &op : plan.roles[spot.role].segments[spot.segment].ops) {
    if (op.loc >= plan.locs.size())
      continue;
    int nearness = !own ? 1 : worksWith(op) ? 3 : op.unit == own->unit ? 2 : 1;
    if (nearness > best) {
      best = nearness;
      loc = op.loc;
    }
  }
  return loc;
}

/// `file:line:col`, or `plan` where no recipe line is known.
std::string place(const Plan &plan, const Spot &spot) {
  const Loc *loc = locAt(plan, spot);
  return loc ? fmt::format("{}:{}:{}", printable(loc->file), loc->line, loc->column) : "plan";
}

/// The line below a message: role, segment, microbatch, op.
std::string context(const Plan &plan, const Spot &spot, std::optional<Variant> variant) {
  if (spot.role >= plan.roles.size())
    return "";
  const Role &role = plan.roles[spot.role];
  std::string text = fmt::format("\n  role {}", printable(role.name));
  if (spot.segment >= role.segments.size())
    return text;
  const Segment &segment = role.segments[spot.segment];
  text += fmt::format(", segment {}", printable(segment.name));
  if (variant && segment.body)
    text += fmt::format(" ({} microbatch)", toString(*variant));
  if (spot.op < segment.ops.size()) {
    std::string op = printOp(plan, segment, spot.op);
    if (op.size() > kOpTextMax)
      op = op.substr(0, kOpTextMax) + "...";
    text += fmt::format(", op {}: {}", spot.op, op);
  }
  return text;
}

} // namespace

std::string_view ruleId(Rule rule) { return kRules[static_cast<size_t>(rule)].id; }
std::string_view ruleDoc(Rule rule) { return kRules[static_cast<size_t>(rule)].doc; }

namespace verifier {
namespace {

void forEachSegment(Inspection &inspection, void (*phase)(const Scope &)) {
  const Plan &plan = inspection.plan();
  for (uint32_t r = 0; r < plan.roles.size(); ++r)
    for (uint32_t s = 0; s < plan.roles[r].segments.size() && !inspection.isFull(); ++s)
      phase(Scope{inspection, plan.roles[r], plan.roles[r].segments[s], r, s});
}

/// Runs the phase role by role, and stops after the first role with findings.
void forEachRole(Inspection &inspection, void (*phase)(Inspection &, uint32_t)) {
  for (uint32_t role = 0; role < inspection.plan().roles.size() && inspection.size() == 0; ++role)
    phase(inspection, role);
}

/// All phases after form. Each ring slot of the plan has already been replaced by a cell.
std::vector<Finding> verifyFlat(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (inspection.size() != 0)
    return inspection.take();
  forEachSegment(inspection, checkShapes);
  for (uint32_t role = 0; role < plan.roles.size() && !inspection.isFull(); ++role)
    checkBackgroundForm(inspection, role);
  checkJob(inspection);
  if (inspection.size() != 0)
    return inspection.take();
  if (plan.level == Level::Placed) {
    checkStates(inspection);
    checkCells(inspection);
    forEachSegment(inspection, checkPlaces);
    forEachRole(inspection, checkHostCells);
  }
  if (inspection.size() != 0)
    return inspection.take();
  forEachSegment(inspection, checkOrder);
  checkCollectives(inspection);
  // Bytes are checked only if values are valid: otherwise each error would be reported twice.
  if (plan.level == Level::Placed)
    forEachRole(inspection, checkPrograms);
  return inspection.take();
}

std::vector<Finding> inspect(const Plan &plan, size_t findingsMax, uint64_t visitsMax,
                             Iterations turns) {
  Inspection inspection(plan, findingsMax, visitsMax);
  inspection.setIterations(turns);
  checkTables(inspection);
  if (inspection.size() == 0)
    forEachSegment(inspection, checkForm);
  if (inspection.size() == 0)
    checkRings(inspection);
  if (inspection.size() == 0 && plan.level == Level::Placed)
    checkGraphs(inspection);
  if (inspection.size() != 0 || !hasRings(plan))
    return verifyFlat(inspection);
  FlatPlan flat = flattened(plan);
  Inspection ofSlots(flat.plan, findingsMax, visitsMax);
  ofSlots.setRings(flat.rings);
  ofSlots.setIterations(turns);
  return verifyFlat(ofSlots);
}

} // namespace
} // namespace verifier

std::vector<Finding> verify(const Plan &plan, size_t findingsMax, uint64_t visitsMax,
                            Iterations turns) {
  return verifier::inspect(plan, findingsMax, visitsMax, turns);
}

const Loc *locAt(const Plan &plan, const Spot &spot) {
  uint32_t at = locOf(plan, spot);
  return at == kNone ? nullptr : &plan.locs[at];
}

std::string render(const Plan &plan, const Finding &finding) {
  std::string text =
      fmt::format("{}: error: {} [{}]{}", place(plan, finding.at), printable(finding.message),
                  ruleId(finding.rule), context(plan, finding.at, finding.variant));
  if (!finding.note.empty())
    text +=
        fmt::format("\n{}: note: {} [{}]{}", place(plan, finding.noteAt), printable(finding.note),
                    ruleId(finding.rule), context(plan, finding.noteAt, std::nullopt));
  return text;
}

Status verified(const Plan &plan) {
  std::string text;
  for (const Finding &finding : verify(plan))
    text += (text.empty() ? "" : "\n") + render(plan, finding);
  return text.empty() ? Status::ok() : makeStatus(report::PlanRefused, text);
}

namespace verifier {

Inspection::Inspection(const Plan &plan, size_t findingsMax, uint64_t visitsMax)
    : plan_(plan), findingsMax_(findingsMax), visitsMax_(visitsMax), visitsLeft_(visitsMax) {}

TextNames Inspection::namesAt(const Spot &at, std::string_view name) const {
  TextNames names{.op = {}, .segment = {}, .role = {}, .name = name};
  if (at.role >= plan_.roles.size())
    return names;
  const Role &role = plan_.roles[at.role];
  names.role = role.name;
  if (at.segment < role.segments.size())
    names.segment = role.segments[at.segment].name;
  if (const Op *op = opAt(plan_, at))
    names.op = opInfo(*op).name;
  return names;
}

bool Inspection::refuseWork() {
  if (!isFull())
    add(finding::TooMuchWork, {}, visitsMax_);
  findingsMax_ = findings_.size();
  return false;
}

Finding &Inspection::add(Rule rule, Spot at, std::string message, std::string value) {
  Finding finding;
  finding.rule = rule;
  finding.at = at;
  finding.message = std::move(message);
  finding.value = std::move(value);
  return add(std::move(finding));
}

Finding &Inspection::add(Finding finding) {
  const Spot &at = finding.at;
  if (isFull() || !seen_.emplace(finding.rule, at.role, at.segment, at.op, finding.value).second)
    return lost_ = std::move(finding);
  return findings_.emplace_back(std::move(finding));
}

const std::vector<const Param *> &Inspection::paramsOf(int32_t block) {
  if (paramsOf_.empty()) {
    paramsOf_.resize(plan_.blocks.size());
    for (const Param &param : plan_.params)
      if (param.block >= 0)
        paramsOf_[static_cast<size_t>(param.block)].push_back(&param);
    for (std::vector<const Param *> &params : paramsOf_)
      std::sort(params.begin(), params.end(),
                [](const Param *a, const Param *b) { return a->offset < b->offset; });
  }
  return paramsOf_[static_cast<size_t>(block)];
}

namespace {

/// The range of the role's coordinates on an axis. If the range is empty, only its first
/// coordinate.
IndexRange coordinatesOf(const Plan &plan, const Role &role, uint16_t axis) {
  AxisRange own = extentOf(plan, role, axis);
  return {own.begin, std::max(own.begin, own.end - 1)};
}

/// A linear function of the coordinates. 128 bits, since a malicious plan can overflow products of
/// 64.
struct Affine {
  __int128 offset = 0;
  std::array<__int128, limits::kMeshAxesMax> coefs{};
  bool operator==(const Affine &) const = default;

  /// Adds `times` the function of a moving place. An axis with one coordinate adds nothing.
  void add(const Plan &plan, const Role &role, const Moving &moving, int64_t times) {
    offset += __int128(moving.offset) * times;
    if (moving.isFixed() || moving.group < 0)
      return;
    const std::vector<uint16_t> &axes = groupAt(plan, moving.group).axes;
    __int128 coef = __int128(moving.coef) * times;
    for (size_t i = axes.size(); i-- > 0; coef *= plan.mesh[axes[i]].size)
      if (IndexRange own = coordinatesOf(plan, role, axes[i]); own.isSole())
        offset += coef * own.first;
      else
        coefs[axes[i]] += coef;
  }
};

Moving movingOf(const Place &place) { return {place.offset, place.coef, place.group}; }

} // namespace

Indices::Indices(const Plan &plan, const Role &role) : ranges_(plan.groups.size() + 1) {
  for (size_t group = 0; group < plan.groups.size(); ++group)
    for (uint16_t axis : plan.groups[group].axes) {
      IndexRange &indices = ranges_[group + 1];
      IndexRange own = coordinatesOf(plan, role, axis);
      indices.first = indices.first * plan.mesh[axis].size + own.first;
      indices.last = indices.last * plan.mesh[axis].size + own.last;
    }
}

bool liesAt(const Plan &plan, const Role &role, const Place &a, const Place &b,
            const Moving &apart) {
  if (a.arena != b.arena)
    return false;
  if (apart == Moving() && movingOf(a) == movingOf(b))
    return true; // nearly always
  Affine difference;
  difference.add(plan, role, movingOf(a), 1);
  difference.add(plan, role, movingOf(b), -1);
  difference.add(plan, role, apart, -1);
  return difference == Affine();
}

AxisRange extentOf(const Plan &plan, const Role &role, uint16_t axis) {
  AxisRange extent{axis, 0, plan.mesh[axis].size};
  for (const AxisRange &range : role.where)
    if (range.axis == axis) {
      extent.begin = std::max(extent.begin, range.begin);
      extent.end = std::min(extent.end, range.end);
    }
  return extent;
}

bool haveRanksInCommon(const Plan &plan, const Role &a, const Role &b, int16_t butOf) {
  for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis) {
    AxisRange x = extentOf(plan, a, axis), y = extentOf(plan, b, axis);
    bool isFree = butOf >= 0 && std::ranges::count(plan.groups[size_t(butOf)].axes, axis) > 0;
    if (!isFree && std::max(x.begin, y.begin) >= std::min(x.end, y.end))
      return false;
  }
  return true;
}

std::string toString(const ByteRange &range) {
  std::string text = fmt::format("{} [{}, {})", toString(range.arena), range.begin, range.end);
  return range.member == 0 ? text : text + fmt::format(" at index {}", range.member);
}

std::optional<ByteRange> commonBytes(const Range &a, const Range &b, const Indices &indices) {
  Range common = a.intersect(b, indices);
  std::optional<int64_t> member = common.findIndex(indices);
  if (!member)
    return std::nullopt;
  return ByteRange{common.arena(), common.begin(*member), common.end(*member), *member};
}

uint32_t Scope::opOf(ValueId id) const {
  if (value(id).def != kNone)
    return value(id).def;
  for (uint32_t i = 0; i < segment.ops.size() && !inspection.isFull() && inspection.spend(1); ++i)
    if (std::ranges::find(segment.ops[i].operands, id) != segment.ops[i].operands.end())
      return i;
  return kNone;
}

bool executes(const Op &op, const Variant &variant) {
  return opInfo(op).traits != OpTraits::Alias && holds(op.pred, variant);
}

std::set<int64_t> stepsThatDiffer(const ProgramNode &steps) {
  std::set<int64_t> found = {1};
  for (const ProgramNode &node : steps.children) {
    if (node.kind != ProgramNode::Every)
      continue;
    for (int64_t step : std::vector<int64_t>(found.begin(), found.end())) {
      int64_t factor = node.count / std::gcd(step, node.count);
      if (factor <= steps.count / step)
        found.insert(step * factor);
    }
    if (found.size() > kStepsMax)
      break;
  }
  return found;
}

const std::vector<Variant> &Inspection::variantsOf(uint32_t role, uint32_t segment) {
  variants_.resize(plan_.roles.size());
  std::vector<std::vector<Variant>> &variants = variants_[role];
  const Role &of = plan_.roles[role];
  if (variants.empty() && !of.program.empty())
    variants = variantsOfProgram(of);
  if (variants.empty())
    for (const Segment &each : of.segments)
      variants.push_back(
          each.body ? std::vector{Variant::First, Variant::Middle, Variant::Last, Variant::Only}
                    : std::vector{Variant::Only});
  return variants[segment];
}

const std::vector<VariantTable> &Inspection::variantTablesOf(uint32_t role) {
  variantTables_.resize(plan_.roles.size());
  std::vector<VariantTable> &tables = variantTables_[role];
  if (tables.empty())
    for (const Segment &segment : plan_.roles[role].segments)
      tables.emplace_back(segment);
  return tables;
}

} // namespace verifier
} // namespace shardc::plan
