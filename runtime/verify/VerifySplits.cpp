// Checks parameters that are split among ranks: the part's shape against the whole, and the mesh
// axes that divide it.
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

} // namespace

void checkSplits(Inspection &inspection, const Param &param) {
  if (param.isStacked() || !param.splits.empty() || !param.copies.empty())
    SplitCheck(inspection, param).run();
}

/// Each member of the groups that divide a block, or its state, saves a part of it by its index. So
/// it must have the block, or another role must have the same parts.
void checkHolders(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (plan.roles.size() < 2)
    return;
  std::vector<std::set<const Role *>> holders(plan.blocks.size());
  for (const Role &role : plan.roles)
    for (const Cell &cell : role.cells)
      if (cell.kind == CellKind::Weight || cell.kind == CellKind::WeightShard ||
          cell.kind == CellKind::Master)
        holders[static_cast<size_t>(cell.of)].insert(&role);
  for (size_t b = 0; b < holders.size(); ++b) {
    const Block &block = plan.blocks[b];
    const Axes axes = axesOf(plan, block.group) | axesOf(plan, block.stateGroup);
    for (uint32_t r = 0; !holders[b].empty() && r < plan.roles.size(); ++r) {
      auto hasPartsOf = [&](const Role *holder) {
        for (uint16_t axis = 0; axes >> axis != 0; ++axis) {
          AxisRange has = extentOf(plan, *holder, axis), own = extentOf(plan, plan.roles[r], axis);
          if ((axes >> axis & 1) != 0 && (has.begin > own.begin || has.end < own.end))
            return false;
        }
        return true;
      };
      if (inspection.spend(1) && std::ranges::none_of(holders[b], hasPartsOf))
        inspection.addAbout(finding::RoleWithoutBlock, {r, kNone, kNone}, block.name);
    }
  }
}

void checkSplitRoles(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  if (plan.roles.size() < 2)
    return;
  for (const Param &param : plan.params) {
    Axes axes = 0;
    for (const Split &split : param.splits)
      axes |= axesOf(plan, split.group);
    for (int16_t group : param.copies)
      axes |= axesOf(plan, group);
    for (uint16_t axis = 0; axes >> axis != 0; ++axis)
      for (uint32_t r = 0; (axes >> axis & 1) != 0 && r < plan.roles.size(); ++r)
        if (AxisRange own = extentOf(plan, plan.roles[r], axis);
            inspection.spend(1) && own.end - own.begin < plan.mesh[axis].size)
          inspection.addAbout(finding::RoleCutAlongSplit, {r, kNone, kNone}, param.name,
                              own.end - own.begin, plan.mesh[axis].size, plan.mesh[axis].name);
  }
}

} // namespace shardc::plan::verifier
