// Checks parameters that are split among ranks: the part's shape against the whole, the mesh axes
// that divide it, and that a save finds each element of each tensor once.
#include <set>
#include <string>

#include "runtime/plan/Text.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

/// Axes of the mesh with more than one rank, a bit each.
using Axes = uint16_t;

/// The axes of the group; none for group -1.
Axes axesOf(const Plan &plan, int16_t group) {
  Axes axes = 0;
  if (group >= 0)
    for (uint16_t axis : groupAt(plan, group).axes)
      axes |= static_cast<Axes>(plan.mesh[axis].size > 1 ? 1u << axis : 0);
  return axes;
}

/// `'tp'`, `'tp' and 'cp'`, or `no axis`.
std::string namesOf(const Plan &plan, Axes axes) {
  std::string names;
  for (size_t axis = 0; axis < plan.mesh.size(); ++axis)
    if ((axes >> axis & 1) != 0)
      names += fmt::format("{}'{}'", names.empty() ? "" : " and ", plan.mesh[axis].name);
  return names.empty() ? "no axis" : names;
}

/// The cost of comparing a name with others, in counted visits.
constexpr uint64_t kVisitsOfName = 64;

class SplitCheck {
public:
  SplitCheck(Inspection &inspection, const Param &param)
      : report_(inspection), plan_(inspection.plan()), param_(param) {}

  void run() {
    if (param_.isStacked())
      checkStack();
    if (param_.isUncut())
      checkUncut();
    else if (!param_.splits.empty())
      checkWhole();
    checkDims();
    checkAxes();
  }

private:
  void checkStack() {
    const Type &type = param_.type;
    int64_t row = 1;
    for (size_t d = 2; d < type.rank; ++d)
      row *= type.shape[d];
    if (type.rank < 2)
      broken("is stacked and has {} dimension; it needs one for tensors and one for rows",
             type.rank);
    else if (param_.stackedRow != row)
      broken("of shape {} is stacked with rows of {} elements; each row of its tensors has {}",
             shapeText(type), param_.stackedRow, row);
  }

  /// Checks a parameter that a later pass will split.
  void checkUncut() {
    if (plan_.level != Level::Logical)
      broken(
          "has splits without 'of'; only logical plans have parameters that are still to be cut");
    for (const Split &split : param_.splits) {
      int64_t extent = param_.type.shape[split.dim], ranks = plan_.groupSize(split.group);
      if (split.parts > 0 && (extent % split.parts != 0 || extent / split.parts % ranks != 0))
        broken("has {} elements in dimension {}, which {} ranks cannot cut in {} equal parts",
               extent, split.dim, ranks, split.parts);
    }
  }

  void checkWhole() {
    const Type &type = param_.type, &whole = param_.whole;
    if (whole.rank != type.rank || whole.dtype != type.dtype)
      return broken("has the type {} of {}; both need the same number of dimensions",
                    printType(type), printType(whole));
    for (uint8_t d = 0; d < type.rank; ++d) {
      int64_t ranks = 1;
      for (const Split &split : param_.splits)
        ranks *= split.dim == d ? plan_.groupSize(split.group) : 1;
      if (whole.shape[d] % type.shape[d] != 0 || whole.shape[d] / type.shape[d] != ranks)
        broken("has {} of {} elements in dimension {}, which is cut among {} ranks", type.shape[d],
               whole.shape[d], d, ranks);
    }
  }

  /// Only the row dimension may have splits into several parts, since a rank's elements are stored
  /// row by row.
  void checkDims() {
    std::set<uint8_t> dims;
    int columns = 0;
    for (const Split &split : param_.splits) {
      if (!dims.insert(split.dim).second)
        broken("has two splits of dimension {}", split.dim);
      columns += split.dim > param_.rowDim();
      int64_t extent = param_.type.shape[split.dim];
      if (split.parts < 1 || extent % split.parts != 0)
        broken("has {} elements in dimension {}, which are not {} equal parts", extent, split.dim,
               split.parts);
      else if (split.parts != 1 && split.dim != param_.rowDim())
        broken("has a split of dimension {} in {} parts; only dimension {}, of its rows, can have "
               "several",
               split.dim, split.parts, param_.rowDim());
    }
    if (columns > 1)
      broken("has {} splits inside of a row; there can be one", columns);
  }

  /// A mesh axis may distribute a parameter in one way only: by a split, by other copies, or by
  /// dividing its block.
  void checkAxes() {
    Axes taken = 0;
    auto take = [&](int16_t group, std::string_view what) {
      Axes axes = axesOf(plan_, group);
      if (Axes twice = taken & axes; twice != 0)
        broken("uses the mesh axis {} for {}, and for a split, for other copies or to divide its "
               "block, too",
               namesOf(plan_, twice), what);
      taken |= axes;
    };
    if (param_.block >= 0) {
      const Block &block = blockAt(plan_, param_.block);
      taken = axesOf(plan_, block.group) | axesOf(plan_, block.stateGroup);
    }
    for (const Split &split : param_.splits)
      take(split.group, "a split");
    for (int16_t group : param_.copies)
      take(group, "copies");
  }

  static std::string shapeText(const Type &type) {
    std::string text = printType(type);
    return text.substr(text.find('['));
  }

  template <typename... Args> void broken(fmt::format_string<Args...> text, Args &&...args) {
    report_.addAbout(finding::SplitBroken, {}, param_.name,
                     fmt::format(text, std::forward<Args>(args)...));
  }

  Inspection &report_;
  const Plan &plan_;
  const Param &param_;
};

/// Parts of the mesh's ranks: between the coordinates on these axes at which a role begins or ends.
std::vector<Role> partsAlong(Inspection &inspection, Axes axes) {
  const Plan &plan = inspection.plan();
  std::vector<Role> parts(1);
  for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis) {
    if ((axes >> axis & 1) == 0)
      continue;
    std::set<int64_t> cuts = {0, plan.mesh[axis].size};
    for (const Role &role : plan.roles) {
      AxisRange own = extentOf(plan, role, axis);
      cuts.insert({own.begin, own.end});
    }
    if (!inspection.spend(parts.size() * cuts.size()))
      break;
    std::vector<Role> finer;
    for (const Role &part : parts)
      for (auto begin = cuts.begin(), end = std::next(begin); end != cuts.end(); ++begin, ++end) {
        finer.push_back(part);
        finer.back().where.push_back({axis, *begin, *end});
      }
    parts = std::move(finer);
  }
  return parts;
}

/// Whether each coordinate of these axes has ranks of one of the roles.
bool isCovered(Inspection &inspection, const std::vector<uint32_t> &roles, Axes axes) {
  const Plan &plan = inspection.plan();
  return std::ranges::all_of(partsAlong(inspection, axes), [&](const Role &part) {
    return inspection.spend(roles.size()) && std::ranges::any_of(roles, [&](uint32_t role) {
             return haveRanksInCommon(plan, plan.roles[role], part);
           });
  });
}

/// Checks that tensors of a stack have unique names.
void checkTensorNames(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (std::ranges::none_of(plan.params, &Param::isStacked))
    return;
  std::set<std::string> names;
  for (const Param &param : plan.params)
    for (int64_t number = 0; number < param.tensorCount() && inspection.spend(kVisitsOfName);
         ++number)
      if (std::string name = param.tensorName(number); !names.insert(name).second)
        inspection.addAbout(finding::TensorNamedTwice, {}, param.name, name);
}

/// Axes along which a parameter is split, and axes along which ranks have copies of the same
/// elements.
Axes splitAxesOf(const Plan &plan, const Param &param) {
  Axes axes = 0;
  for (const Split &split : param.splits)
    axes |= axesOf(plan, split.group);
  return axes;
}

Axes copyAxesOf(const Plan &plan, const Param &param) {
  Axes axes = 0;
  for (int16_t group : param.copies)
    axes |= axesOf(plan, group);
  return axes;
}

} // namespace

void checkSplits(Inspection &inspection, const Param &param) {
  if (param.isStacked() || !param.splits.empty() || !param.copies.empty())
    SplitCheck(inspection, param).run();
}

void checkSplitRoles(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (plan.roles.size() < 2)
    return;
  for (const Param &param : plan.params) {
    Axes axes = splitAxesOf(plan, param) | copyAxesOf(plan, param);
    for (uint16_t axis = 0; axes >> axis != 0; ++axis)
      for (uint32_t r = 0; (axes >> axis & 1) != 0 && r < plan.roles.size(); ++r)
        if (AxisRange own = extentOf(plan, plan.roles[r], axis);
            inspection.spend(1) && own.end - own.begin < plan.mesh[axis].size)
          inspection.addAbout(finding::RoleCutAlongSplit, {r, kNone, kNone}, param.name,
                              own.end - own.begin, plan.mesh[axis].size, plan.mesh[axis].name);
  }
}

void checkSaved(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (plan.job.checkpoint.save.empty())
    return;
  checkTensorNames(inspection);
  std::set<std::pair<int32_t, Axes>> seen;
  for (const Param &param : plan.params) {
    const auto index = static_cast<size_t>(param.block);
    const Block &block = plan.blocks[index];
    Axes axes = splitAxesOf(plan, param) |
                (block.stateShard < block.numel ? axesOf(plan, block.stateGroup) : Axes{0});
    if (seen.emplace(param.block, axes).second &&
        !isCovered(inspection, inspection.rolesThatLoad(index), axes))
      inspection.addAbout(finding::StateMissing, {}, param.name);
  }
}

} // namespace shardc::plan::verifier
