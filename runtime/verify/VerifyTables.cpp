// Checks the tables of the plan: groups, blocks, parameters, roles, programs, kinds, and numbers of
// the job that ops repeat.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/plan/HostCells.h"
#include "runtime/plan/JobFacts.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

bool hasAxis(const Group &group, uint16_t axis) {
  return std::ranges::find(group.axes, axis) != group.axes.end();
}

/// Groups of two kinds that divide the same thing must not share an axis: along an axis, ranks
/// differ in one respect only.
void checkGroupKinds(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  for (auto division : {GroupKindInfo::Dense, GroupKindInfo::Experts}) {
    std::map<uint16_t, GroupKind> kindOf; // of each axis
    for (size_t k = 0; k < kGroupKindCount; ++k) {
      auto kind = static_cast<GroupKind>(k);
      const GroupKindInfo &info = groupKindInfo(kind);
      int16_t group = groupOfKind(plan, kind);
      if (group < 0 || (info.division != division && info.division != GroupKindInfo::Both))
        continue;
      for (uint16_t axis : groupAt(plan, group).axes)
        if (auto [at, isNew] = kindOf.try_emplace(axis, kind); !isNew)
          inspection.add(
              finding::GroupsShareAxis, Spot{}, groupAt(plan, groupOfKind(plan, at->second)).name,
              groupKindInfo(at->second).word, groupAt(plan, group).name, info.word, axis);
    }
  }
  int16_t outer = groupOfKind(plan, GroupKind::Outer), data = groupOfKind(plan, GroupKind::Data);
  if (outer < 0)
    return;
  const Group &inside = groupAt(plan, outer);
  for (uint16_t axis : inside.axes)
    if (data < 0 || !hasAxis(groupAt(plan, data), axis))
      inspection.add(finding::OuterOutsideOfData, Spot{}, inside.name, axis);
}

/// Checks parts of a block: either equal parts, one for each rank of the group, or the whole block.
void checkPart(Inspection &inspection, const Block &block, std::string_view what, int64_t numel,
               int16_t group) {
  const Plan &plan = inspection.plan();
  if (numel < 1 || numel > block.numel ||
      (numel != block.numel &&
       (block.numel % numel != 0 || block.numel / numel != plan.groupSize(group))))
    inspection.add(finding::UnequalShards, Spot{}, block.name, block.numel, what, numel,
                   plan.groupSize(group), group < 0 ? "" : groupAt(plan, group).name);
}

void checkBlocks(Inspection &inspection) {
  for (const Block &block : inspection.plan().blocks) {
    checkPart(inspection, block, "shards", block.shard, block.group);
    checkPart(inspection, block, "shards of state", block.stateShard, block.stateGroup);
  }
}

/// True if a shard boundary of the block falls inside a row. Boundaries are multiples of the shard,
/// so it is enough to check the first one and, if there are more, that a shard consists of whole
/// rows.
bool cutsRow(const Block &block, const Param &param) {
  int64_t end = param.offset + param.type.numel();
  int64_t row = param.rowSize();
  int64_t shard = block.stateShard;
  int64_t first = (param.offset / shard + 1) * shard;
  if (first >= end)
    return false;
  return (first - param.offset) % row != 0 || (first + shard < end && shard % row != 0);
}

void checkParam(Inspection &inspection, const Param &param) {
  const Plan &plan = inspection.plan();
  auto broken = [&](auto row, const auto &...args) {
    inspection.addAbout(row, {}, param.name, args...);
  };
  if (!isComputeType(param.type.dtype) && !plan::isKeptIn8Bits(param) &&
      !isRecord(param.type.dtype))
    return broken(finding::ParameterType, dtypeName(param.type.dtype));
  checkSplits(inspection, param);
  if (param.block == -1 && plan.level == Level::Placed)
    return broken(finding::ParameterInNoBlock);
  if (param.block == -1)
    return;
  const Block &block = blockAt(plan, param.block);
  if (param.type.numel() > block.numel - param.offset)
    return broken(finding::ParameterBeyondBlock, param.type.numel(), param.offset, block.name,
                  block.numel);
  if (int64_t byte = param.offset * dtypeBytes(param.type.dtype); byte % kAlignmentBytes != 0)
    broken(finding::ParameterUnaligned, param.offset, byte, kAlignmentBytes);
  if (cutsRow(block, param))
    broken(finding::ShardCutsRow, block.name, block.stateShard, param.rowSize(), param.offset);
}

void checkParams(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  size_t before = inspection.size();
  for (const Param &param : plan.params)
    checkParam(inspection, param);
  if (inspection.size() != before)
    return;
  std::vector<const Param *> sorted;
  for (const Param &param : plan.params)
    if (param.block >= 0)
      sorted.push_back(&param);
  std::sort(sorted.begin(), sorted.end(), [](const Param *a, const Param *b) {
    return std::pair(a->block, a->offset) < std::pair(b->block, b->offset);
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const Param &a = *sorted[i - 1], &b = *sorted[i];
    if (a.block == b.block && a.offset + a.type.numel() > b.offset)
      inspection.addAbout(finding::ParametersOverlap, {}, b.name, a.name, a.offset + a.type.numel(),
                          b.offset, blockAt(plan, a.block).name);
  }
}

/// Checks the form of a program: starts, runs, and one loop of steps that contains runs, loops and
/// `every` nodes.
class ProgramFormCheck : RoleCheck {
public:
  ProgramFormCheck(Inspection &inspection, uint32_t roleIndex) : RoleCheck(inspection, roleIndex) {}

  void check(const std::vector<ProgramNode> &nodes, ProgramNode::Kind parent, int depth) {
    for (size_t n = 0; n < nodes.size() && !report_.isFull(); ++n)
      checkNode(nodes[n], parent, depth);
  }

private:
  static constexpr int64_t kIterationsMax = int64_t{1} << 20;

  void checkNode(const ProgramNode &node, ProgramNode::Kind parent, int depth) {
    const bool isFirst = !std::exchange(begun_, true);
    if (node.kind == ProgramNode::Start || node.kind == ProgramNode::Run) {
      checkMicrobatch(node, parent);
      if (node.kind == ProgramNode::Start && (depth > 0 || node.count != 1 || !isFirst))
        fail(finding::NodeNeeds, "'start'",
             "come before everything else in the program and run once");
      return;
    }
    if (node.kind == ProgramNode::Steps && stepsThatDiffer(node).size() > kStepsMax)
      fail(finding::TooManySteps, kStepsMax);
    if (node.kind == ProgramNode::Steps && depth > 0)
      fail(finding::NodeNeeds, "'steps'", "be at the top level of the program");
    if (node.kind == ProgramNode::Every && parent != ProgramNode::Steps)
      fail(finding::NodeNeeds, "'every'", "be directly inside 'steps'");
    auto isRun = [](const ProgramNode &each) { return each.kind == ProgramNode::Run; };
    if (node.kind == ProgramNode::Every && !hasNode(node.children, isRun)) // its loss is reported
      fail(finding::NodeNeeds, "'every'", "run a segment");
    if (node.kind == ProgramNode::Steps) { // a step ends, and is reported, where the first begins
      auto first = std::ranges::find(node.children, ProgramNode::Every, &ProgramNode::kind);
      if (!std::all_of(first, node.children.end(),
                       [](const ProgramNode &child) { return child.kind == ProgramNode::Every; }))
        fail(finding::NodeNeeds, "'every'", "come after all runs of a step");
    }
    if (node.kind == ProgramNode::Loop && depth == 0)
      fail(finding::NodeNeeds, "'loop'", "be inside 'steps'");
    check(node.children, node.kind, depth + 1);
    if (node.kind != ProgramNode::Loop && report_.size() == 0)
      checkNumbers(node);
  }

  void checkMicrobatch(const ProgramNode &node, ProgramNode::Kind parent) {
    const Segment &segment = role_.segments[node.segment];
    bool isInside = parent != ProgramNode::Run; // 'steps', a loop or an 'every'
    if (node.microbatch &&
        (!segment.body || node.count != 1 || !isInside || node.kind == ProgramNode::Start))
      fail(finding::RunMicrobatch, segment.name);
    if (!node.microbatch && parent == ProgramNode::Loop)
      fail(finding::LoopMicrobatch, segment.name);
  }

  /// The number of runs and loop iterations, nested ones multiplied; at most kIterationsMax.
  static int64_t turnsOf(const std::vector<ProgramNode> &nodes) {
    int64_t turns = 0;
    for (const ProgramNode &node : nodes) {
      int64_t own = node.kind == ProgramNode::Run ? 1 : 0;
      if (node.kind == ProgramNode::Loop &&
          __builtin_mul_overflow(turnsOf(node.children) + 1, node.count, &own))
        own = kIterationsMax;
      turns = std::min(turns + own, kIterationsMax);
    }
    return turns;
  }

  /// If runs name their microbatch, they must name each number below the count of all numbers, and
  /// a segment none of them twice.
  void checkNumbers(const ProgramNode &parent) {
    if (turnsOf(parent.children) >= kIterationsMax)
      return fail(finding::TooManyIterations, kIterationsMax);
    std::set<int64_t> numbers;
    std::set<uint32_t> named;
    forEachRun(parent.children, [&](const ProgramNode &node, int64_t turn) {
      if (node.microbatch)
        numbers.insert(node.microbatch->at(turn)), named.insert(node.segment);
      return true;
    });
    std::set<std::pair<uint32_t, int64_t>> taken;
    const int64_t count = std::ssize(numbers);
    forEachRun(parent.children, [&](const ProgramNode &node, int64_t turn) {
      int64_t number = node.microbatch ? node.microbatch->at(turn) : 0;
      bool isWrong = node.microbatch ? number < 0 || number >= count ||
                                           !taken.emplace(node.segment, number).second
                                     : named.contains(node.segment);
      if (isWrong && node.microbatch)
        scope(node.segment).add(finding::RunNumber, kNone, number, count, count - 1);
      else if (isWrong)
        scope(node.segment).add(finding::RunNumbersMixed, kNone);
      return !isWrong;
    });
  }

  template <FindingRow Row, typename... Args> void fail(Row row, Args &&...args) {
    report_.add(row, {roleIndex_, kNone, kNone}, std::forward<Args>(args)...);
  }

  bool begun_ = false;
};

/// A cell in a checkpoint must be this rank's shard of the state in f32, or one of two halves of
/// such a shard. Moments and frozen weights may also have 16-bit types.
void checkState(Inspection &inspection, uint32_t index) {
  const Plan &plan = inspection.plan();
  const Role &role = plan.roles[index];
  const std::vector<const Block *> blocks = loadedBlocks(plan, role);
  std::vector<bool> isHalf(role.cells.size());
  for (auto [lower, upper] : halvedMasters(role))
    isHalf[lower] = isHalf[upper] = true;
  for (size_t c = 0; c < blocks.size(); ++c) {
    if (blocks[c] == nullptr)
      continue;
    const Cell &cell = role.cells[c];
    bool isMoment = cell.kind == CellKind::FirstMoment || cell.kind == CellKind::SecondMoment;
    bool isOther = isMoment || !plan.classOf(*blocks[c]).isTrained;
    bool isSaved = cell.type.dtype == DType::F32 || isHalf[c] ||
                   (isOther && isComputeType(cell.type.dtype)) ||
                   (isOfBase(plan, *blocks[c]) &&
                    (isRecord(cell.type.dtype) || cell.type.dtype == DType::F8E4M3)); // by loads
    if (!isSaved || cell.type.numel() != blocks[c]->stateShard)
      inspection.addAbout(finding::CheckpointType,
                          spotOfCell(inspection, index, static_cast<uint32_t>(c)), cell.name,
                          printType(cell.type), blocks[c]->stateShard, blocks[c]->name);
  }
}

/// Checks that roles divide the mesh: disjoint boxes with as many ranks as the mesh cover it.
void checkRolesDivideMesh(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  int64_t ranks = 0;
  for (uint32_t i = 0; i < plan.roles.size(); ++i) {
    int64_t volume = 1;
    for (uint16_t axis = 0; axis < plan.mesh.size(); ++axis) {
      AxisRange extent = extentOf(plan, plan.roles[i], axis);
      volume *= std::max<int64_t>(extent.end - extent.begin, 0);
    }
    ranks += volume;
    for (uint32_t j = 0; j < i; ++j)
      if (haveRanksInCommon(plan, plan.roles[i], plan.roles[j]))
        inspection.add(finding::RolesOverlap, {i, kNone, kNone}, plan.roles[j].name,
                       plan.roles[i].name);
  }
  // Overlapping roles would be counted twice here.
  if (inspection.size() == 0 && ranks != plan.worldSize())
    inspection.add(finding::RolesCover, Spot{}, ranks, plan.worldSize());
}

} // namespace

void checkTables(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  checkGroupKinds(inspection);
  checkBlocks(inspection);
  if (inspection.size() == 0)
    checkParams(inspection);
  for (uint32_t i = 0; i < plan.roles.size() && !inspection.isFull(); ++i) {
    const Role &role = plan.roles[i];
    if (static_cast<int64_t>(role.cells.size() * role.segments.size()) >
        limits::kCellsBySegmentsMax)
      inspection.add(finding::TooManyCells, {i, kNone, kNone}, role.cells.size(),
                     role.segments.size(), limits::kCellsBySegmentsMax);
    ProgramFormCheck(inspection, i).check(role.program, ProgramNode::Run, 0);
  }
  if (inspection.size() == 0)
    checkRolesDivideMesh(inspection);
  if (inspection.size() == 0) {
    checkSplitRoles(inspection);
    checkHolders(inspection);
  }
}

void checkStates(Inspection &inspection) {
  for (uint32_t i = 0; i < inspection.plan().roles.size() && !inspection.isFull(); ++i)
    checkState(inspection, i);
}

void checkJob(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  int64_t needed = plan.job.derived.stepSamples;
  forEachOp(plan, [&](Spot at, const Segment &, const Op &op) {
    if (op.kind != OpKind::StepBegin && op.kind != OpKind::StepFinish)
      return;
    if (int64_t counted = op.getInt(AttrKey::step_samples); counted != needed)
      inspection.add(finding::StepSamples, at, counted, needed);
  });
  if (!skippedSteps(plan.job))
    inspection.add(finding::StepsToSkip, {});
}

} // namespace shardc::plan::verifier
