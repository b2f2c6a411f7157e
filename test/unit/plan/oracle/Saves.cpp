#include "Saves.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Positions.h"
#include "Splits.h"
#include "runtime/plan/HostCells.h"

namespace shardc::plan::oracle {
namespace {

/// An element of a cell. Without a cell, it stands for anything else.
struct Element {
  uint32_t cell = kNone;
  int64_t index = 0;
  auto operator<=>(const Element &) const = default;
};
using Elements = std::vector<Element>;

/// The elements that one rank's background segments copy.
class RankCopies {
public:
  RankCopies(const Plan &plan, int64_t rank)
      : plan_(plan), positions_(plan), rank_(rank), role_(plan.roles[roleOf(plan, rank)]) {}

  std::string find() {
    bool isSaving = false;
    for (const Role &role : plan_.roles)
      for (const Segment &segment : role.segments)
        isSaving = isSaving || segment.before != kNone;
    std::map<uint32_t, Elements> due;
    for (uint32_t c = 0; isSaving && c < role_.cells.size(); ++c)
      addDue(c, due);
    if (due.empty())
      return {};
    std::map<uint32_t, Elements> copied;
    for (const Segment &segment : role_.segments) {
      if (segment.before == kNone)
        continue;
      for (const Element &element : copiedBy(segment))
        copied[element.cell].push_back(element);
      for (const HalfCells &halves : halvesOf(role_)) // halves are joined after each segment
        if (copied[halves.lower].size() != copied[halves.upper].size())
          return "a background segment copies one half of master weights";
    }
    for (const auto &[cell, elements] : copied)
      if (!elements.empty() && due.count(cell) == 0)
        return "a background segment copies what is not saved";
    for (const auto &[cell, elements] : due)
      if (copied[cell] != elements && !(copied[cell].empty() && hasTwins(cell)))
        return fmt::format("what the host finds of '{}' is not what rank {} saves",
                           role_.cells[cell].name, rank_);
    return {};
  }

private:
  /// Whether another role saves these elements: each rank of this role has a twin in an earlier
  /// role that has the same elements of the cell's block.
  bool hasTwins(uint32_t cell) const {
    int32_t block = blockOf(role_.cells[cell]);
    Splits splits(plan_, positions_);
    int16_t group = plan_.blocks[static_cast<size_t>(block)].stateGroup;
    auto isTwin = [&](int64_t a, int64_t b) {
      return a < b && positions_.in(group, a) == positions_.in(group, b) &&
             splits.areSame(block, a, b);
    };
    std::vector<int64_t> holders = ranksWith(plan_, block);
    auto areIn = [&](uint32_t other) {
      for (int64_t rank = 0; rank < plan_.worldSize(); ++rank)
        if (&plan_.roles[roleOf(plan_, rank)] == &role_ &&
            std::ranges::none_of(holders, [&](int64_t holder) {
              return roleOf(plan_, holder) == other && isTwin(holder, rank);
            }))
          return false;
      return true;
    };
    for (uint32_t other = 0; other < plan_.roles.size(); ++other)
      if (&plan_.roles[other] != &role_ && areIn(other))
        return true;
    return false;
  }

  void addDue(uint32_t c, std::map<uint32_t, Elements> &due) const {
    const Cell &cell = role_.cells[c];
    for (int32_t b = 0; b < static_cast<int32_t>(plan_.blocks.size()); ++b) {
      const Block &block = plan_.blocks[static_cast<size_t>(b)];
      bool isOfBase = plan_.job.peft.scheme && !isTrainedBlock(plan_, b); // loaded, but not saved
      if (!isSaved(role_, cell) || blockOf(cell) != b || isOfBase)
        continue;
      int64_t first = 0, count = cell.type.numel();
      StateShare share = stateShareOf(plan_, b);
      if (block.stateShard == block.numel && share.isShared())
        first = share.step * positions_.in(block.stateGroup, rank_), count = share.length;
      for (int64_t i = first; i < first + count; ++i)
        due[c].push_back({c, i});
    }
  }

  /// The elements that the segment copies, ordered by cell. If another segment staged them, they
  /// count as the elements from which they were staged; nothing else counts.
  Elements copiedBy(const Segment &segment) const {
    const Segment &other = role_.segments[segment.before];
    std::map<uint32_t, Elements> staged;
    if (other.before != kNone) {
      std::vector<Elements> values = valuesOf(other);
      for (const Segment::Boundary &out : other.outs)
        if (uint32_t def = other.values[out.value].def;
            def != kNone && other.ops[def].kind == OpKind::Stage)
          staged[out.cell] = values[out.value];
    }
    std::vector<Elements> values = valuesOf(segment, other.before != kNone ? &staged : nullptr);
    Elements copied;
    for (const Op &op : segment.ops)
      if (op.kind == OpKind::Snapshot) {
        const Elements &from = values[op.operands[0]];
        copied.insert(copied.end(), from.begin(), from.end());
      }
    std::sort(copied.begin(), copied.end());
    return copied;
  }

  /// The elements in each value. A cell contains its own elements, or what is staged in it.
  std::vector<Elements> valuesOf(const Segment &segment,
                                 const std::map<uint32_t, Elements> *staged = nullptr) const {
    std::vector<Elements> values(segment.values.size());
    for (size_t id = 0; id < values.size(); ++id)
      values[id].resize(static_cast<size_t>(segment.values[id].type.numel()));
    for (const Segment::Boundary &in : segment.ins)
      for (size_t i = 0; i < values[in.value].size(); ++i)
        if (staged == nullptr)
          values[in.value][i] = {in.cell, static_cast<int64_t>(i)};
        else if (auto at = staged->find(in.cell); at != staged->end() && i < at->second.size())
          values[in.value][i] = at->second[i];
    for (const Op &op : segment.ops) {
      const Elements &from = values[op.operands.empty() ? 0 : op.operands[0]];
      if (op.kind == OpKind::View) {
        int64_t first = positions_.begin(op, rank_);
        Elements &part = values[op.results[0]];
        std::copy_n(from.begin() + first, part.size(), part.begin());
      } else if (op.kind == OpKind::Stage) {
        values[op.results[0]] = from;
      }
    }
    return values;
  }

  const Plan &plan_;
  Positions positions_;
  int64_t rank_;
  const Role &role_;
};

} // namespace

namespace {

/// Finds elements of a block's parameters that no rank has, and tensors with equal names.
std::string findUnsaved(const Plan &plan) {
  Positions positions(plan);
  Splits splits(plan, positions);
  std::set<std::string> names;
  for (const Param &param : plan.params) {
    if (param.block < 0)
      continue;
    const Block &block = plan.blocks[static_cast<size_t>(param.block)];
    int64_t tensors = param.isStacked() ? param.wholeType().shape[0] : 1;
    for (int64_t i = 0; i < tensors; ++i)
      if (!names.insert(param.name + (param.isStacked() ? std::to_string(i) : "")).second)
        return param.name + " has the name of another tensor";
    for (int64_t like = 0; like < plan.worldSize(); ++like) {
      bool isThere = std::ranges::any_of(ranksWith(plan, param.block), [&](int64_t rank) {
        bool hasPart = block.stateShard == block.numel ||
                       positions.in(block.stateGroup, rank) == positions.in(block.stateGroup, like);
        return hasPart && splits.areSame(param, rank, like);
      });
      if (!isThere)
        return fmt::format("nobody saves what rank {} would have of {}", like, param.name);
    }
  }
  return {};
}

} // namespace

namespace {

/// The op of a segment that computed a cell's content, and the index of its result; null if the
/// segment did not compute it.
struct Made {
  const Op *by = nullptr;
  size_t result = 0;
};

Made madeIn(const Segment &segment, uint32_t cell) {
  for (const Segment::Boundary &out : segment.outs)
    if (out.cell == cell)
      if (uint32_t def = segment.values[out.value].def; def != kNone)
        return {&segment.ops[def], segment.values[out.value].defResult};
  return {};
}

/// Halves of master weights must stay together: one op must make both of them, from both cells or
/// from neither.
std::string findApart(const Role &role) {
  std::vector<HalfCells> all = halvesOf(role);
  for (const Segment &segment : role.segments) {
    auto isIn = [&](ValueId value, uint32_t cell) {
      return std::ranges::any_of(segment.ins, [&](const Segment::Boundary &in) {
        return in.value == value && in.cell == cell;
      });
    };
    for (const HalfCells &halves : all) {
      Made lower = madeIn(segment, halves.lower), upper = madeIn(segment, halves.upper);
      if (lower.by == nullptr && upper.by == nullptr) {
        for (const Segment::Boundary &out : segment.outs)
          if ((out.cell == halves.lower || out.cell == halves.upper) && !isIn(out.value, out.cell))
            return "a half of master weights is overwritten";
        continue;
      }
      bool updates = lower.by != nullptr && lower.by->kind == OpKind::AdamW &&
                     lower.by->operands.size() == 6 && lower.result == 0 && upper.result == 3 &&
                     isIn(lower.by->operands[1], halves.lower) &&
                     isIn(lower.by->operands[5], halves.upper);
      bool begins = lower.by != nullptr && lower.by->kind == OpKind::InitBlock &&
                    lower.result == 1 && upper.result == 0;
      if (lower.by != upper.by || (!updates && !begins) || lower.by->pred != Pred::Always ||
          lower.by->getInt(AttrKey::block) != halves.block)
        return "halves of master weights are not made together";
    }
    for (const Op &op : segment.ops) {
      if (!isUpdate(op))
        continue;
      auto own = std::ranges::find(all, op.getInt(AttrKey::block), &HalfCells::block);
      bool takesHalves = op.kind == OpKind::AdamW && op.operands.size() == 6;
      if (own == all.end() ? takesHalves : !takesHalves || madeIn(segment, own->lower).by != &op)
        return "an update of halves of master weights that are in no cells";
    }
  }
  return {};
}

} // namespace

std::string findSaveBreak(const Plan &plan) {
  for (const Role &role : plan.roles)
    if (std::string problem = findApart(role); !problem.empty())
      return problem;
  if (!plan.job.checkpoint.save.empty())
    if (std::string problem = findUnsaved(plan); !problem.empty())
      return problem;
  for (int64_t rank = 0; rank < plan.worldSize(); ++rank)
    if (std::string problem = RankCopies(plan, rank).find(); !problem.empty())
      return problem;
  return {};
}

} // namespace shardc::plan::oracle
