// Checks the tables of the plan: mesh, groups, units, blocks, parameters, roles and programs.
#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

#include "runtime/plan/HostCells.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {
namespace {

template <typename T> bool isIndex(int64_t index, const std::vector<T> &table) {
  return index >= 0 && index < static_cast<int64_t>(table.size());
}

/// Whether the table has an entry with this index. Negative indices from `least` on mean none.
template <typename T>
bool needEntry(Inspection &inspection, std::string_view owner, std::string_view name,
               std::string_view names, int64_t index, const std::vector<T> &table,
               int64_t least = 0) {
  if (isIndex(index, table) || (least <= index && index < 0))
    return true;
  inspection.add(finding::NoSuchEntry, Spot{}, owner, name, names, index, table.size());
  return false;
}

void needRange(Inspection &inspection, Spot at, std::string_view owner, int64_t value,
               std::string_view unit, int64_t most) {
  if (value < 0 || value > most)
    inspection.add(finding::OutOfRange, at, owner, value, unit, most);
}

template <typename T>
void checkNames(Inspection &inspection, const std::vector<T> &table, int64_t countMax,
                std::string_view what) {
  needAtMost(inspection, {}, "the plan", table.size(), fmt::format("{}s", what), countMax);
  std::unordered_set<std::string_view> names;
  for (const T &entry : table) {
    checkNameLength(inspection, {}, what, entry.name);
    if (!names.insert(entry.name).second)
      inspection.addAbout(finding::DeclaredTwice, {}, entry.name, what);
  }
}

void checkChannel(Inspection &inspection, const Channel &channel) {
  const Plan &plan = inspection.plan();
  needEntry(inspection, "channel", channel.name, "names group", channel.group, plan.groups);
  needEntry(inspection, "channel", channel.name, "names stream", channel.stream, plan.streams);
  if (channel.pair != std::array<int32_t, 2>{-1, -1} && isIndex(channel.group, plan.groups)) {
    int64_t size = plan.groupSize(channel.group);
    auto [first, second] = channel.pair;
    if (first < 0 || second < 0 || first >= size || second >= size || first == second)
      inspection.add(finding::PairOutOfRange, Spot{}, channel.name, first, second, size);
  }
  needRange(inspection, {}, fmt::format("channel '{}' takes", channel.name),
            channel.multiprocessors, "multiprocessors", limits::kMultiprocessorsMax);
}

bool isGroup(const Plan &plan, int16_t group) {
  return group >= -1 && group < static_cast<int64_t>(plan.groups.size());
}

bool hasAxis(const Group &group, uint16_t axis) {
  return std::ranges::find(group.axes, axis) != group.axes.end();
}

/// Groups of two kinds that divide the same thing must not share an axis: along an axis, ranks
/// differ in one respect only.
void checkApart(Inspection &inspection, GroupKind a, GroupKind b) {
  const Plan &plan = inspection.plan();
  using enum GroupKindInfo::Division;
  GroupKindInfo::Division first = groupKindInfo(a).division, second = groupKindInfo(b).division;
  bool areApart = first == second || first == Both || second == Both;
  if (first == Inside || second == Inside || !areApart)
    return;
  const Group &one = groupAt(plan, groupOfKind(plan, a));
  const Group &other = groupAt(plan, groupOfKind(plan, b));
  for (uint16_t axis : one.axes)
    if (hasAxis(other, axis))
      inspection.add(finding::GroupsShareAxis, Spot{}, one.name, groupKindInfo(a).word, other.name,
                     groupKindInfo(b).word, axis);
}

void checkGroupKinds(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  std::vector<GroupKind> kinds;
  for (size_t k = 0; k < kGroupKindCount; ++k) {
    auto kind = static_cast<GroupKind>(k);
    int16_t group = groupOfKind(plan, kind);
    if (needEntry(inspection, "kind", groupKindInfo(kind).word, "names group", group, plan.groups,
                  -1) &&
        group >= 0)
      kinds.push_back(kind);
  }
  for (size_t i = 0; i < kinds.size(); ++i)
    for (size_t j = i + 1; j < kinds.size(); ++j)
      checkApart(inspection, kinds[i], kinds[j]);
  int16_t outer = groupOfKind(plan, GroupKind::Outer), data = groupOfKind(plan, GroupKind::Data);
  if (!isGroup(plan, outer) || !isGroup(plan, data) || outer < 0)
    return;
  const Group &inside = groupAt(plan, outer);
  for (uint16_t axis : inside.axes)
    if (data < 0 || !hasAxis(groupAt(plan, data), axis))
      inspection.add(finding::OuterOutsideOfData, Spot{}, inside.name, axis);
}

void checkMesh(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  checkNames(inspection, plan.mesh, limits::kMeshAxesMax, "mesh axis");
  int64_t world = 1;
  for (const MeshAxis &axis : plan.mesh) {
    bool fits =
        axis.size >= 1 && axis.size <= limits::kWorldSizeMax && world <= limits::kWorldSizeMax;
    if (fits)
      world *= axis.size;
    if (!fits || world > limits::kWorldSizeMax)
      inspection.add(finding::MeshTooLarge, Spot{}, axis.name, axis.size, limits::kWorldSizeMax);
  }
  checkNames(inspection, plan.groups, limits::kGroupsMax, "group");
  for (const Group &group : plan.groups) {
    std::set<uint16_t> seen;
    for (uint16_t axis : group.axes) {
      needEntry(inspection, "group", group.name, "names mesh axis", axis, plan.mesh);
      if (!seen.insert(axis).second)
        inspection.add(finding::GroupAxisTwice, Spot{}, group.name, axis);
    }
  }
  checkGroupKinds(inspection);
  checkNames(inspection, plan.streams, static_cast<int64_t>(kStreamsMax), "stream");
  if (plan.streams.empty())
    inspection.add(finding::NoStreams, {});
  checkNames(inspection, plan.channels, limits::kChannelsMax, "channel");
  for (const Channel &channel : plan.channels)
    checkChannel(inspection, channel);
  needRange(inspection, {}, "the device has", plan.multiprocessors, "multiprocessors",
            limits::kMultiprocessorsMax);
  needRange(inspection, {}, "the device has", plan.deviceBytes, "bytes", limits::kBytesMax);
}

/// Checks parts of a block: either equal parts, one for each rank of the group, or the whole block.
bool checkPart(Inspection &inspection, const Block &block, std::string_view what, int64_t numel,
               int16_t group) {
  const Plan &plan = inspection.plan();
  if (!needEntry(inspection, "block", block.name, fmt::format("has {} over group", what), group,
                 plan.groups, -1))
    return false;
  if (numel >= 1 && numel <= block.numel &&
      (numel == block.numel ||
       (block.numel % numel == 0 && block.numel / numel == plan.groupSize(group))))
    return true;
  inspection.add(finding::UnequalShards, Spot{}, block.name, block.numel, what, numel,
                 plan.groupSize(group), group < 0 ? "" : groupAt(plan, group).name);
  return false;
}

/// Ranks that share the state of a block must share its gradient.
bool checkSumGroup(Inspection &inspection, const Block &block) {
  const Plan &plan = inspection.plan();
  if (!needEntry(inspection, "block", block.name, "has gradients summed over group", block.sumGroup,
                 plan.groups, -1))
    return false;
  if (block.sumGroup < 0 || !isGroup(plan, block.stateGroup) || block.stateGroup < 0)
    return true;
  const Group &sum = groupAt(plan, block.sumGroup);
  const Group &state = groupAt(plan, block.stateGroup);
  for (uint16_t axis : state.axes)
    if (!hasAxis(sum, axis))
      inspection.add(finding::StateOutsideOfSum, Spot{}, block.name, state.name, sum.name, axis);
  return true;
}

/// A rank's part of the state must lie inside its part of the block.
void checkNested(Inspection &inspection, const Block &block) {
  const Plan &plan = inspection.plan();
  if (block.stateShard > block.shard)
    inspection.add(finding::StateLargerThanShard, Spot{}, block.name, block.shard,
                   block.stateShard);
  else if (block.shard < block.numel && !isExtendedBy(plan, block.group, block.stateGroup))
    inspection.add(finding::StateNotNested, Spot{}, block.name, groupAt(plan, block.group).name,
                   block.stateGroup < 0 ? "" : groupAt(plan, block.stateGroup).name);
}

void checkBlocks(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  checkNames(inspection, plan.units, limits::kUnitsMax, "unit");
  checkNames(inspection, plan.classes, limits::kClassesMax, "class");
  checkNames(inspection, plan.blocks, limits::kBlocksMax, "block");
  for (const Block &block : plan.blocks) {
    needEntry(inspection, "block", block.name, "names unit", block.unit, plan.units, -1);
    needEntry(inspection, "block", block.name, "names class", block.paramClass, plan.classes, 0);
    if (block.numel < 1 || block.numel > limits::kElementsMax)
      inspection.add(finding::BlockNumel, Spot{}, block.name, block.numel, limits::kElementsMax);
    else if (checkSumGroup(inspection, block) &&
             checkPart(inspection, block, "shards", block.shard, block.group) &&
             checkPart(inspection, block, "shards of state", block.stateShard, block.stateGroup))
      checkNested(inspection, block);
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
  if (!isTypeSane(param.type))
    return broken(finding::ParameterNotSane);
  if (!isComputeType(param.type.dtype) && !plan::isKeptIn8Bits(param) &&
      !isRecord(param.type.dtype))
    return broken(finding::ParameterType, dtypeName(param.type.dtype));
  checkSplits(inspection, param);
  if (param.block == -1 && plan.level == Level::Placed)
    return broken(finding::ParameterInNoBlock);
  if (param.block == -1)
    return;
  if (!isIndex(param.block, plan.blocks))
    return broken(finding::ParameterBlock, param.block, plan.blocks.size());
  const Block &block = blockAt(plan, param.block);
  if (param.offset < 0 || param.offset > block.numel ||
      param.type.numel() > block.numel - param.offset)
    return broken(finding::ParameterBeyondBlock, param.type.numel(), param.offset, block.name,
                  block.numel);
  if (int64_t byte = param.offset * dtypeBytes(param.type.dtype); byte % kAlignmentBytes != 0)
    broken(finding::ParameterUnaligned, param.offset, byte, kAlignmentBytes);
  if (cutsRow(block, param))
    broken(finding::ShardCutsRow, block.name, block.stateShard, param.rowSize(), param.offset);
}

void checkParams(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  checkNames(inspection, plan.params, limits::kParamsMax, "parameter");
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
    for (const ProgramNode &node : nodes) {
      if (++count_ > limits::kProgramNodesMax || depth > limits::kNestingMax)
        return fail(finding::ProgramTooLarge, limits::kProgramNodesMax, limits::kNestingMax);
      checkNode(node, parent, depth);
      if (report_.isFull())
        return;
    }
  }

private:
  static constexpr int64_t kIterationsMax = int64_t{1} << 20;

  void checkNode(const ProgramNode &node, ProgramNode::Kind parent, int depth) {
    if (node.count < 1 || node.count > limits::kCountMax)
      fail(finding::NodeCount, node.count, limits::kCountMax);
    if (node.kind == ProgramNode::Start || node.kind == ProgramNode::Run) {
      if (!isIndex(node.segment, role_.segments))
        fail(finding::NodeSegment, node.segment, role_.segments.size());
      if (!node.children.empty())
        fail(finding::NodeChildren);
      checkMicrobatch(node, parent);
      if (node.kind == ProgramNode::Start && (depth > 0 || node.count != 1 || begun_))
        fail(finding::NodeNeeds, "'start'",
             "come before everything else in the program and run once");
      begun_ |= node.kind == ProgramNode::Run;
      return;
    }
    begun_ = true;
    if (node.kind == ProgramNode::Steps && stepsThatDiffer(node).size() > kStepsMax)
      fail(finding::TooManySteps, kStepsMax);
    if (node.kind == ProgramNode::Steps && depth > 0)
      fail(finding::NodeNeeds, "'steps'", "be at the top level of the program");
    if (node.kind == ProgramNode::Every && parent != ProgramNode::Steps)
      fail(finding::NodeNeeds, "'every'", "be directly inside 'steps'");
    if (node.kind == ProgramNode::Loop && depth == 0)
      fail(finding::NodeNeeds, "'loop'", "be inside 'steps'");
    if (node.microbatch)
      fail(finding::NodeMicrobatch);
    check(node.children, node.kind, depth + 1);
    if (node.kind != ProgramNode::Loop && report_.size() == 0)
      checkNumbers(node);
  }

  void checkMicrobatch(const ProgramNode &node, ProgramNode::Kind parent) {
    if (!isIndex(node.segment, role_.segments))
      return;
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

  /// If runs name their microbatch, each number below their count must appear once.
  void checkNumbers(const ProgramNode &parent) {
    if (turnsOf(parent.children) >= kIterationsMax)
      return fail(finding::TooManyIterations, kIterationsMax);
    std::vector<int64_t> counts = namedRuns(role_, parent.children);
    std::vector<std::vector<bool>> isTaken(counts.size());
    for (size_t s = 0; s < counts.size(); ++s)
      isTaken[s].resize(static_cast<size_t>(counts[s]));
    forEachRun(parent.children, [&](const ProgramNode &node, int64_t turn) {
      std::vector<bool> &taken = isTaken[node.segment];
      int64_t number = node.microbatch ? node.microbatch->at(turn) : 0;
      bool isWrong = node.microbatch ? number < 0 || number >= counts[node.segment] ||
                                           taken[static_cast<size_t>(number)]
                                     : !taken.empty();
      if (isWrong && node.microbatch)
        scope(node.segment)
            .add(finding::RunNumber, kNone, number, counts[node.segment], counts[node.segment] - 1);
      else if (isWrong)
        scope(node.segment).add(finding::RunNumbersMixed, kNone);
      else if (node.microbatch)
        taken[static_cast<size_t>(number)] = true;
      return !isWrong;
    });
  }

  template <FindingRow Row, typename... Args> void fail(Row row, Args &&...args) {
    report_.add(row, {roleIndex_, kNone, kNone}, std::forward<Args>(args)...);
  }

  int64_t count_ = 0;
  bool begun_ = false;
};

/// A cell must name a block or a parameter exactly if its kind belongs to one.
void checkSubject(Inspection &inspection, Spot spot, const Cell &cell) {
  const CellKindInfo &info = cellKindInfo(cell.kind);
  bool isOfBlock = info.of == CellKindInfo::Block;
  size_t count = isOfBlock ? inspection.plan().blocks.size() : inspection.plan().params.size();
  if (info.of == CellKindInfo::Nothing ? cell.of != -1
                                       : cell.of < 0 || static_cast<size_t>(cell.of) >= count)
    inspection.addAbout(finding::CellSubject, spot, cell.name, info.word,
                        isOfBlock ? "block" : "parameter", cell.of,
                        info.of == CellKindInfo::Nothing ? 0 : count);
}

void checkRole(Inspection &inspection, uint32_t index) {
  const Role &role = inspection.plan().roles[index];
  Spot spot{index, kNone, kNone};
  checkNames(inspection, role.cells, limits::kCellsMax, "cell");
  checkNames(inspection, role.segments, limits::kSegmentsMax, "segment");
  if (static_cast<int64_t>(role.cells.size() * role.segments.size()) > limits::kCellsBySegmentsMax)
    inspection.add(finding::TooManyCells, spot, role.cells.size(), role.segments.size(),
                   limits::kCellsBySegmentsMax);
  for (const Cell &cell : role.cells)
    checkSubject(inspection, spot, cell);
  for (const Cell &cell : role.cells)
    if (!isTypeSane(cell.type))
      inspection.addAbout(finding::CellTypeNotSane, spot, cell.name);
  for (int64_t bytes : role.arenaBytes)
    needRange(inspection, spot, "an arena has", bytes, "bytes", limits::kBytesMax);
  for (const AxisRange &range : role.where)
    if (!isIndex(range.axis, inspection.plan().mesh) || range.begin < 0 ||
        range.begin >= range.end || range.end > inspection.plan().mesh[range.axis].size)
      inspection.add(finding::RoleRange, spot);
  ProgramFormCheck(inspection, index).check(role.program, ProgramNode::Run, 0);
}

/// A cell in a checkpoint must be this rank's shard of the state in f32, or one of two halves of
/// such a shard. Moments and frozen weights may also have 16-bit types.
void checkState(Inspection &inspection, uint32_t index) {
  const Plan &plan = inspection.plan();
  const Role &role = plan.roles[index];
  const std::vector<const Block *> &blocks = inspection.loaded(index).blocks;
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

void checkJobValue(Inspection &inspection, const std::string &path, const JobValue &value) {
  checkNameLength(inspection, {}, "option", path);
  auto checkText = [&](const std::string &text) {
    if (static_cast<int64_t>(text.size()) > limits::kStringBytesMax)
      inspection.addAbout(finding::OptionTooLong, {}, path, text.size(), limits::kStringBytesMax);
  };
  if (const std::string *text = std::get_if<std::string>(&value))
    return checkText(*text);
  const auto *list = std::get_if<std::vector<std::string>>(&value);
  if (list == nullptr)
    return;
  if (static_cast<int64_t>(list->size()) > limits::kJobListMax)
    inspection.addAbout(finding::ListTooLong, {}, path, list->size(), limits::kJobListMax);
  for (const std::string &text : *list)
    checkText(text);
}

void checkJobAndLocs(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  needAtMost(inspection, {}, "the plan", plan.sources.size(), "sources", limits::kSourcesMax);
  needAtMost(inspection, {}, "the plan", plan.locs.size(), "recipe locations", limits::kLocsMax);
  needAtMost(inspection, {}, "the job", plan.job.environment.size(), "variables",
             limits::kVariablesMax);
  for (const auto &[path, value] : plan.job.entries())
    checkJobValue(inspection, path, value);
}

} // namespace

bool needAtMost(Inspection &inspection, Spot at, std::string_view owner, size_t count,
                std::string_view what, int64_t most) {
  if (static_cast<int64_t>(count) <= most)
    return true;
  inspection.add(finding::TooMany, at, owner, count, what, most);
  return false;
}

void checkNameLength(Inspection &inspection, Spot at, std::string_view what,
                     std::string_view name) {
  if (static_cast<int64_t>(name.size()) > limits::kNameBytesMax)
    inspection.add(finding::NameTooLong, at, what, name.substr(0, 40), name.size(),
                   limits::kNameBytesMax);
}

bool isTypeSane(const Type &type) {
  if (type.rank < 1 || type.rank > type.shape.size())
    return false;
  int64_t bytes = dtypeBytes(type.dtype);
  for (size_t d = 0; d < type.rank; ++d)
    if (type.shape[d] < 1 || type.shape[d] > limits::kExtentMax ||
        __builtin_mul_overflow(bytes, type.shape[d], &bytes) || bytes > limits::kBytesMax)
      return false;
  return true;
}

void checkTables(Inspection &inspection) {
  const Plan &plan = inspection.plan();
  checkMesh(inspection);
  if (inspection.size() != 0)
    return;
  checkBlocks(inspection);
  if (inspection.size() == 0)
    checkParams(inspection);
  checkJobAndLocs(inspection);
  checkNames(inspection, plan.roles, limits::kRolesMax, "role");
  for (uint32_t i = 0; i < plan.roles.size() && !inspection.isFull(); ++i)
    checkRole(inspection, i);
  if (inspection.size() == 0)
    checkRolesDivideMesh(inspection);
  if (inspection.size() == 0)
    checkSplitRoles(inspection);
}

void checkStates(Inspection &inspection) {
  for (uint32_t i = 0; i < inspection.plan().roles.size() && !inspection.isFull(); ++i)
    checkState(inspection, i);
}

} // namespace shardc::plan::verifier
