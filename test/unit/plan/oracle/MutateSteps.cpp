#include "MutateSteps.h"

#include <set>

#include "Blocks.h"
#include "Facts.h"

namespace shardc::plan::oracle {
namespace {

/// Collects all lists of nodes of a role's program.
void collectLists(std::vector<ProgramNode> &nodes, std::vector<std::vector<ProgramNode> *> &lists) {
  lists.push_back(&nodes);
  for (ProgramNode &node : nodes)
    if (!node.children.empty())
      collectLists(node.children, lists);
}

} // namespace

/// Removes a sum: readers read its operand, or, for a scattered one, this rank's part of the
/// operand.
std::string StepMutator::doDropCollective() {
  std::vector<uint32_t> sums = opsWhere([](const Op &o) {
    return o.kind == OpKind::AllReduce ||
           (o.kind == OpKind::ReduceScatter && o.results.size() == 1);
  });
  if (sums.empty())
    return {};
  uint32_t i = pick(sums);
  ValueId operand = op(i).operands[0], result = op(i).results[0];
  std::string text = at(i, fmt::format("{} dropped", opInfo(op(i)).name));
  if (op(i).kind == OpKind::AllReduce) {
    readInstead(result, operand);
    removeOp(i);
    return text;
  }
  if (value(operand).type.dtype != value(result).type.dtype || !op(i).ties.empty())
    return {};
  int64_t part = value(result).type.numel();
  Op cast = op(i);
  cast.kind = OpKind::Cast;
  cast.group = -1, cast.channel = kNoChannel;
  cast.attrs.clear();
  Place place = value(operand).place;
  int16_t group = op(i).group;
  if (place.coef != 0 && place.group != group)
    return {};
  place.coef += value(result).type.bytes(), place.group = group;
  Op &view = insertOp(i, OpKind::View, value(result).type, place);
  view.operands = {operand};
  view.set(AttrKey::coef, part), view.group = group;
  cast.operands = {view.results[0]};
  for (uint32_t &wait : cast.waits)
    wait += wait >= i ? 1 : 0;
  op(i + 1) = cast;
  return text;
}

std::string StepMutator::doMoveTie() {
  std::vector<uint32_t> tied = opsWhere([](const Op &o) { return !o.ties.empty(); });
  if (tied.empty())
    return {};
  uint32_t i = pick(tied);
  Tie &tie = op(i).ties[below(op(i).ties.size())];
  if (below(2) == 0) {
    if (tie.kind == Tie::Else)
      return {};
    op(i).ties.erase(op(i).ties.begin() + (&tie - op(i).ties.data()));
    return at(i, "a tie dropped");
  }
  const Value &tiedTo = value(tie.value);
  std::vector<ValueId> others, inPlace;
  for (ValueId id = 0; id < segment_->values.size(); ++id)
    if (id != tie.value && value(id).type == tiedTo.type &&
        (value(id).def == kNone || value(id).def < i))
      (value(id).place == tiedTo.place ? inPlace : others).push_back(id);
  if (inPlace.empty())
    std::swap(inPlace, others);
  if (inPlace.empty())
    return {};
  tie.value = pick(inPlace);
  return at(i, fmt::format("is tied to %{}", value(tie.value).name));
}

std::string StepMutator::doChangeNode() {
  std::vector<std::vector<ProgramNode> *> lists;
  collectLists(role_->program, lists);
  std::vector<ProgramNode> &nodes = *pick(lists);
  if (nodes.empty())
    return {};
  size_t at = below(nodes.size());
  bool runs = nodes[at].kind == ProgramNode::Run || nodes[at].kind == ProgramNode::Start;
  std::string text = fmt::format("role {}: node {} of a list of the program ", role_->name, at);
  switch (below(4)) {
  case 0:
    if (nodes[at].kind == ProgramNode::Every) // change-every does this
      return {};
    nodes.erase(nodes.begin() + static_cast<int64_t>(at));
    return text + "left out";
  case 1:
    if (at + 1 >= nodes.size() || nodes[at].kind == ProgramNode::Start)
      return {};
    std::swap(nodes[at], nodes[at + 1]);
    return text + "changed places with the next";
  case 2: {
    if (!runs)
      return {};
    auto other = static_cast<uint32_t>(below(role_->segments.size()));
    if (other == nodes[at].segment || role_->segments[other].before != kNone)
      return {};
    nodes[at].segment = other;
    return text + "runs " + role_->segments[other].name;
  }
  default:
    if (!runs || nodes[at].kind == ProgramNode::Start)
      return {};
    nodes.insert(nodes.begin() + static_cast<int64_t>(at), ProgramNode(nodes[at]));
    return text + "stands twice";
  }
}

/// Changes the kind of a cell, or its block, but not its name.
std::string StepMutator::doChangeKind() {
  static const std::vector<CellKind> kOfBlocks = {CellKind::Weight,      CellKind::WeightShard,
                                                  CellKind::Gradient,    CellKind::Master,
                                                  CellKind::FirstMoment, CellKind::SecondMoment};
  static const std::vector<CellKind> kOfNothing = {
      CellKind::Buffer, CellKind::Feed, CellKind::EvalFeed, CellKind::Stop, CellKind::Step};
  if (role_->cells.empty() || plan_.blocks.empty())
    return {};
  Cell &cell = role_->cells[below(role_->cells.size())];
  CellKind before = cell.kind;
  int32_t of = cell.of;
  if (cell.of < 0 && below(2) == 0) {
    cell.kind = pick(kOfNothing);
  } else {
    cell.kind = cell.of < 0 || below(2) == 0 ? pick(kOfBlocks) : cell.kind;
    cell.of = static_cast<int32_t>(below(plan_.blocks.size()));
  }
  if (cell.kind == before && cell.of == of)
    return {};
  return fmt::format("cell @{} is {}, of block {}", cell.name, cellKindInfo(cell.kind).word,
                     cell.of);
}

std::string StepMutator::doChangeParamType() {
  if (plan_.params.empty())
    return {};
  static const std::vector<DType> kTypes = {DType::F32, DType::BF16, DType::F16, DType::F64,
                                            DType::I32, DType::I64,  DType::U8,  DType::F8E4M3};
  Param &param = plan_.params[below(plan_.params.size())];
  DType type = pick(kTypes);
  int64_t bytes = dtypeBytes(type);
  // Keep the parameter aligned to 16 bytes; another mutation changes the alignment.
  if (type == param.type.dtype || param.offset * bytes % 16 != 0)
    return {};
  param.type.dtype = type;
  return fmt::format("parameter {} is {}", param.name, dtypeName(type));
}

/// Changes divided Newton-Schulz steps: another step number, less capacity, wrong sums or other
/// products.
std::string StepMutator::doChangeStepOfMatrix() {
  std::vector<uint32_t> steps = opsWhere(
      [](const Op &o) { return o.kind == OpKind::MuonStep || o.kind == OpKind::MuonSums; });
  if (steps.empty() || below(2) == 0)
    return {};
  uint32_t i = pick(steps);
  switch (below(4)) {
  case 0:
    op(i).set(AttrKey::ns_step, (op(i).getInt(AttrKey::ns_step) + 1) % 6);
    return at(i, "is another step");
  case 1:
    op(i).set(AttrKey::largest_matrix, int64_t{8});
    return at(i, "has less room for products");
  case 2:
    if (op(i).kind != OpKind::MuonSums)
      return {};
    op(i).set(AttrKey::sum_ranks, op(i).getInt(AttrKey::sum_ranks) * 2);
    return at(i, "counts parts half");
  default:
    op(i).set(AttrKey::products, (op(i).getInt(AttrKey::products) + 1) % 3);
    return at(i, "has products of other numbers");
  }
}

std::string StepMutator::doChangeMatrix() {
  std::vector<uint32_t> updates = opsWhere([](const Op &o) { return o.kind == OpKind::Muon; });
  if (std::string changed = doChangeStepOfMatrix(); !changed.empty())
    return changed;
  if (updates.empty())
    return {};
  uint32_t i = pick(updates);
  auto block = static_cast<int32_t>(op(i).getInt(AttrKey::block));
  int64_t part = value(op(i).operands[0]).type.numel();
  std::vector<Param *> params;
  for (Param &param : plan_.params)
    if (param.block == block)
      params.push_back(&param);
  Param &param = *pick(params);
  int64_t numel = param.type.numel() / (param.isStacked() ? param.type.shape[0] : 1);
  switch (below(3)) {
  case 0:
    op(i).set(AttrKey::largest_matrix, numel - 1 - static_cast<int64_t>(below(8)));
    return at(i, "has less room for matrices");
  case 1:
    plan_.blocks[static_cast<size_t>(block)].paramClass =
        static_cast<int16_t>(plan_.classes.size() - 1);
    return at(i, "updates a block of another class");
  default:
    if (part == plan_.blocks[static_cast<size_t>(block)].numel || numel <= 8)
      return {};
    param.offset = part - numel / 2 / 8 * 8; // aligned to 16 bytes with 16-bit numbers
    return at(i, fmt::format("shares {} between ranks", param.name));
  }
}

/// Removes splits or copies, or adds copies in a group that divides neither parameter nor block.
std::string StepMutator::doChangeSplit() {
  if (plan_.params.empty() || plan_.groups.empty())
    return {};
  Param &param = plan_.params[below(plan_.params.size())];
  if (!param.splits.empty()) {
    param.splits.clear();
    return fmt::format("parameter {} is split no longer", param.name);
  }
  if (!param.copies.empty()) {
    param.copies.clear();
    return fmt::format("parameter {} has no copies", param.name);
  }
  auto group = static_cast<int16_t>(below(plan_.groups.size()));
  const std::vector<uint16_t> &axes = plan_.groups[static_cast<size_t>(group)].axes;
  auto uses = [&](int16_t other) {
    return other >= 0 &&
           std::ranges::any_of(plan_.groups[static_cast<size_t>(other)].axes,
                               [&](uint16_t axis) { return std::ranges::count(axes, axis) != 0; });
  };
  if (param.block >= 0)
    if (const Block &block = plan_.blocks[static_cast<size_t>(param.block)];
        uses(block.group) || uses(block.stateGroup))
      return {};
  param.copies = {group};
  return fmt::format("parameter {} has copies in group {}", param.name, group);
}

std::string StepMutator::doChangeClass() {
  if (plan_.blocks.empty())
    return {};
  Block &block = plan_.blocks[below(plan_.blocks.size())];
  if (plan_.classes.size() == 1)
    plan_.classes.push_back({"frozen", /*isTrained=*/false});
  auto other = static_cast<int16_t>(below(plan_.classes.size()));
  if (other == block.paramClass)
    return {};
  block.paramClass = other;
  return fmt::format("block {} is of class {}", block.name,
                     plan_.classes[static_cast<size_t>(other)].name);
}

/// Adds zeros over frozen weights, or over their first bytes, after all ops of the segment.
std::string StepMutator::doWriteFrozen() {
  std::vector<uint32_t> cells;
  for (uint32_t c = 0; c < role_->cells.size(); ++c)
    if (int32_t block = blockOf(role_->cells[c]);
        block >= 0 && !isTrainedBlock(plan_, block) && role_->cells[c].place.coef == 0)
      cells.push_back(c);
  if (cells.empty())
    return {};
  uint32_t index = pick(cells);
  const Cell &cell = role_->cells[index];
  bool isWhole = below(2) == 0;
  Type type = isWhole ? cell.type : Type::of(DType::F32, {4});
  auto end = static_cast<uint32_t>(segment_->ops.size());
  ValueId written = insertOp(end, OpKind::Fill, type, cell.place).results[0];
  std::erase_if(segment_->outs, [&](const Segment::Boundary &out) { return out.cell == index; });
  if (isWhole)
    segment_->outs.push_back({written, index});
  return at(end, fmt::format("writes {}", cell.name));
}

std::string StepMutator::doChangeStepOp() {
  std::vector<uint32_t> ops = opsWhere([](const Op &o) { return factsOf(o).isOfStep; });
  if (ops.empty())
    return {};
  uint32_t i = pick(ops);
  std::string_view name = opInfo(op(i)).name;
  switch (below(5)) {
  case 0:
    return dropStepOp(i, name);
  case 1:
    return repeatStepOp(i, name);
  case 2:
    if (!segment_->body)
      return {};
    op(i).pred = otherPred(op(i).pred);
    return at(i, fmt::format("{} if {}", name, toString(op(i).pred)));
  case 3: {
    if (op(i).kind != OpKind::SumSquares || op(i).operands.empty()) // no block is trained
      return {};
    std::vector<ValueId> &squared = op(i).operands;
    std::vector<ListedBlock> &blocks = op(i).blocks;
    size_t way = below(3);
    if (way == 0) {
      size_t k = below(squared.size());
      squared[k] = pick(squared);
      return at(i, fmt::format("squares %{}", value(squared[k]).name));
    }
    if (way == 1) {
      squared.push_back(squared.back());
      blocks.push_back({blocks.back().block + 1, blocks.back().copies});
    } else {
      squared.pop_back();
      blocks.pop_back();
    }
    return at(i, fmt::format("squares of {} blocks", squared.size()));
  }
  default: {
    std::vector<ValueId> states;
    for (ValueId id = 0; id < segment_->values.size(); ++id)
      if (value(id).type == Type::of(DType::U8, {128}) &&
          (value(id).def == kNone || value(id).def < i))
        states.push_back(id);
    for (ValueId &operand : op(i).operands)
      if (value(operand).type == Type::of(DType::U8, {128}) && states.size() > 1) {
        operand = pick(states);
        return at(i, fmt::format("{} takes %{}", name, value(operand).name));
      }
    return {};
  }
  }
}

/// Removes an op of a step; readers of its result read the operand that it would have changed.
std::string StepMutator::dropStepOp(uint32_t i, std::string_view name) {
  std::vector<std::pair<ValueId, ValueId>> kept;
  for (size_t r = 0; r < op(i).results.size(); ++r)
    if (int operand = inPlaceOperand(op(i), r); operand >= 0)
      kept.emplace_back(op(i).results[r], op(i).operands[static_cast<size_t>(operand)]);
  if (kept.empty())
    return {};
  std::vector<ValueId> gone = op(i).results;
  std::erase_if(gone, [&](ValueId id) {
    return std::ranges::any_of(kept, [&](const auto &pair) { return pair.first == id; });
  });
  for (const Op &each : segment_->ops)
    for (ValueId operand : each.operands)
      if (std::ranges::find(gone, operand) != gone.end())
        return {};
  for (auto [result, operand] : kept)
    readInstead(result, operand);
  std::erase_if(segment_->outs, [&](const Segment::Boundary &out) {
    return std::ranges::find(gone, out.value) != gone.end();
  });
  removeOp(i);
  return at(i, fmt::format("{} left out", name));
}

/// Inserts a copy of a step's op that takes the op's result as its operand.
std::string StepMutator::repeatStepOp(uint32_t i, std::string_view name) {
  const OpInfo &info = opInfo(op(i));
  if (op(i).results.size() != 1 || info.inPlace[0] < 0 || !op(i).ties.empty())
    return {};
  repeat(i);
  return at(i, fmt::format("{} done twice", name));
}

/// Inserts after an in-place op a copy of it that takes its result as the operand.
void StepMutator::repeat(uint32_t i) {
  const OpInfo &info = opInfo(op(i));
  ValueId first = op(i).results[0];
  Op copy = op(i);
  Op &again = insertOp(i + 1, copy.kind, value(first).type, value(first).place);
  ValueId second = again.results[0];
  copy.results = {second};
  copy.waits.clear();
  copy.operands[static_cast<size_t>(info.inPlace[0])] = first;
  for (Tie &tie : copy.ties)
    tie.value = first;
  again = copy;
  for (uint32_t later = i + 2; later < segment_->ops.size(); ++later) {
    std::ranges::replace(op(later).operands, first, second);
    std::ranges::replace(op(later).waits, i, i + 1); // both run on the channel's stream
  }
  for (Segment::Boundary &out : segment_->outs)
    if (out.value == first)
      out.value = second;
}

std::string StepMutator::doRepeatSum() {
  std::vector<uint32_t> sums = opsWhere([](const Op &o) { return o.kind == OpKind::AllReduce; });
  if (sums.empty() || plan_.groups.empty())
    return {};
  uint32_t i = pick(sums);
  repeat(i);
  if (below(2) == 0)
    op(i + below(2)).group = static_cast<int16_t>(below(plan_.groups.size()));
  return at(i, fmt::format("summed over groups {} and {}", op(i).group, op(i + 1).group));
}

std::string StepMutator::doChangeCopies() {
  std::vector<uint32_t> ops = opsWhere(
      [](const Op &o) { return o.kind == OpKind::StepPack || o.kind == OpKind::StepFinish; });
  std::vector<uint32_t> sums =
      opsWhere([](const Op &o) { return o.kind == OpKind::SumSquares && !o.blocks.empty(); });
  if (ops.empty() || sums.empty())
    return {};
  uint32_t i = pick(ops);
  if (op(i).kind == OpKind::StepFinish || below(2) == 0) {
    bool isReplicated = !op(i).getBool(AttrKey::norm_replicated);
    for (uint32_t each : below(2) == 0 ? ops : std::vector<uint32_t>{i})
      op(each).set(AttrKey::norm_replicated, int64_t{isReplicated});
    return at(i, fmt::format("norm_replicated = {}", isReplicated));
  }
  auto copies = static_cast<int64_t>(1 + below(5));
  uint32_t sum = pick(sums);
  ListedBlock &block = op(sum).blocks[below(op(sum).blocks.size())];
  if (copies == block.copies)
    return {};
  block.copies = copies;
  return at(sum, fmt::format("block {} copies {}", block.block, copies));
}

/// Splits a role along an axis on which it has several coordinates.
std::string StepMutator::doSplitRole() {
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis) {
    AxisRange range{axis, 0, plan_.mesh[axis].size};
    for (const AxisRange &each : role_->where)
      if (each.axis == axis)
        range = each;
    if (range.end - range.begin < 2 || (axis + 1u < plan_.mesh.size() && below(2) == 0))
      continue;
    int64_t middle = range.begin + 1 +
                     static_cast<int64_t>(below(static_cast<size_t>(range.end - range.begin - 1)));
    Role other = *role_;
    std::string text =
        fmt::format("role {} split at {} of {}", role_->name, middle, plan_.mesh[axis].name);
    for (Role *role : {role_, &other})
      std::erase_if(role->where, [&](const AxisRange &each) { return each.axis == axis; });
    role_->where.push_back({axis, range.begin, middle});
    other.where.push_back({axis, middle, range.end});
    other.name += fmt::format(".{}", plan_.roles.size());
    plan_.roles.push_back(std::move(other));
    role_ = nullptr, segment_ = nullptr; // push_back may have moved the roles
    return text;
  }
  return {};
}

} // namespace shardc::plan::oracle
