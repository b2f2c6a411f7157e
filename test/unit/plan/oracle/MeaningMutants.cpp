// Changes what a randomly drawn op computes.
#include "MeaningMutants.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace shardc::plan::oracle {
namespace {

class MeaningMutator {
public:
  MeaningMutator(Plan &plan, std::mt19937_64 &random) : plan_(plan), random_(random) {}

  std::string operand() {
    Place at = draw([](const Op &op) { return !op.operands.empty(); });
    if (!at.op)
      return {};
    ValueId &operand = at.op->operands[pick(at.op->operands.size())];
    const std::vector<Value> &values = at.segment->values;
    std::vector<ValueId> like;
    for (ValueId v = 0; v < values.size(); ++v)
      if (v != operand && values[v].type == values[operand].type &&
          (values[v].def == kNone || values[v].def < at.index))
        like.push_back(v);
    if (like.empty())
      return {};
    ValueId to = like[pick(like.size())];
    std::string done = fmt::format("{} takes {} for {}", opInfo(*at.op).name, values[to].name,
                                   values[operand].name);
    operand = to;
    return done;
  }

  std::string attribute() {
    Place at = draw([](const Op &op) { return !op.attrs.empty(); });
    if (!at.op)
      return {};
    size_t k = pick(at.op->attrs.size());
    Attr &attr = at.op->attrs[k];
    const AttrInfo &info = attrInfo(attr.key);
    size_t how = pick(3);
    std::string done = fmt::format("{} of {}, way {}", info.name, opInfo(*at.op).name, how);
    if (how == 0)
      at.op->attrs.erase(at.op->attrs.begin() + static_cast<ptrdiff_t>(k));
    else if (info.type == AttrInfo::Float)
      attr.f = how == 1 ? attr.f * 1.5 + 0.25 : attr.f * 0.5;
    else if (info.type == AttrInfo::Bool)
      attr.i = attr.i == 0 ? 1 : 0;
    else
      attr.i += how == 1 ? 1 : attr.i > 1 ? -1 : 2;
    return done;
  }

  std::string newAttribute() {
    Place at = draw([](const Op &) { return true; });
    AttrSet free = opInfo(*at.op).attrs;
    free.remove(AttrKey::block);
    for (const Attr &attr : at.op->attrs)
      free.remove(attr.key);
    const std::vector<AttrKey> keys = attrKeys(free);
    if (keys.empty())
      return {};
    AttrKey key = keys[pick(keys.size())];
    if (attrInfo(key).type == AttrInfo::Float)
      at.op->set(key, 0.5);
    else
      at.op->set(key, int64_t{attrInfo(key).type == AttrInfo::Bool ? 1 : 2});
    return fmt::format("{} gets {}", opInfo(*at.op).name, attrInfo(key).name);
  }

  std::string table() {
    Param &param = plan_.params[pick(plan_.params.size())];
    Param &other = plan_.params[pick(plan_.params.size())];
    switch (pick(5)) {
    case 0:
      param.init = param.init == InitKind::Ones ? InitKind::Zeros : InitKind::Ones;
      return "init of " + param.name;
    case 1:
      param.initStd *= 2;
      return param.init == InitKind::Normal ? "deviation of " + param.name : "";
    case 2:
      param.lrMult *= 2;
      return "rate of " + param.name;
    case 3:
      param.wdMult = param.wdMult == 0 ? 1 : 0;
      return "decay of " + param.name;
    default:
      if (&other == &param || !(other.type == param.type))
        return {};
      std::swap(other.name, param.name);
      return "names of " + param.name + " and " + other.name;
    }
  }

  std::string offset() {
    size_t how = pick(3);
    if (how == 0)
      return parts();
    if (how == 1)
      return offsetsOfParams();
    Place at = draw([](const Op &op) { return op.kind == OpKind::View; });
    if (!at.op)
      return {};
    std::vector<int64_t> offsets;
    for (const Param &param : plan_.params)
      if (param.type.numel() == at.segment->values[at.op->results[0]].type.numel() &&
          param.offset != at.op->getInt(AttrKey::offset))
        offsets.push_back(param.offset);
    if (offsets.empty())
      return {};
    at.op->set(AttrKey::offset, offsets[pick(offsets.size())]);
    return "offset of " + at.segment->values[at.op->results[0]].name;
  }

  std::string copies() {
    Place at = draw([](const Op &op) { return !op.blocks.empty(); });
    if (!at.op)
      return {};
    ListedBlock &block = at.op->blocks[pick(at.op->blocks.size())];
    block.copies = block.copies == 1 ? 2 : 1;
    return "copies of block " + plan_.blocks[static_cast<size_t>(block.block)].name;
  }

  std::string group() {
    Place at = draw([](const Op &op) { return op.group >= 0; });
    if (!at.op)
      return {};
    int16_t before = at.op->group;
    if (at.op->channel >= 0) {
      at.op->channel = static_cast<ChannelId>(pick(plan_.channels.size()));
      at.op->group = plan_.channels[static_cast<size_t>(at.op->channel)].group;
    } else {
      at.op->group = static_cast<int16_t>(pick(plan_.groups.size()));
    }
    return at.op->group == before ? "" : fmt::format("group of {}", opInfo(*at.op).name);
  }

  /// Drops an op: readers of its result read one of its operands instead.
  std::string droppedOp() {
    Place at = draw([](const Op &op) { return !op.operands.empty() && op.results.size() == 1; });
    if (!at.op)
      return {};
    ValueId from = at.op->results[0], to = kNone;
    for (ValueId value : at.op->operands)
      if (at.segment->values[value].type == at.segment->values[from].type)
        to = value;
    if (to == kNone)
      return {};
    for (uint32_t i = at.index + 1; i < at.segment->ops.size(); ++i) {
      std::ranges::replace(at.segment->ops[i].operands, from, to);
      for (Tie &tie : at.segment->ops[i].ties)
        tie.value = tie.value == from ? to : tie.value;
    }
    return fmt::format("{} is not used", opInfo(*at.op).name);
  }

  std::string microbatch() {
    static constexpr Pred kPreds[] = {Pred::Always, Pred::First, Pred::NotFirst, Pred::Last,
                                      Pred::NotLast};
    bool isOfTie = pick(2) == 0;
    Place at = isOfTie ? draw([](const Op &op) { return !op.ties.empty(); })
                       : draw([](const Op &op) { return !(op.pred == Pred::Always); });
    if (!at.op)
      return {};
    Pred &pred = isOfTie ? at.op->ties[0].pred : at.op->pred;
    Pred before = std::exchange(pred, kPreds[pick(std::size(kPreds))]);
    bool isElse = isOfTie && at.op->ties[0].kind == Tie::Else;
    return isElse || pred == before ? "" : fmt::format("microbatches of {}", opInfo(*at.op).name);
  }

  std::string cell() {
    std::vector<std::pair<Role *, Segment *>> all;
    for (Role &role : plan_.roles)
      for (Segment &segment : role.segments)
        if (segment.before == kNone && !segment.outs.empty())
          all.emplace_back(&role, &segment);
    auto [role, segment] = all[pick(all.size())];
    auto &boundaries = pick(2) == 0 && !segment->ins.empty() ? segment->ins : segment->outs;
    Segment::Boundary &boundary = boundaries[pick(boundaries.size())];
    std::vector<uint32_t> like;
    for (uint32_t c = 0; c < role->cells.size(); ++c)
      if (c != boundary.cell && role->cells[c].type == role->cells[boundary.cell].type)
        like.push_back(c);
    if (like.empty())
      return {};
    boundary.cell = like[pick(like.size())];
    return "cell of " + segment->values[boundary.value].name;
  }

  std::string results() {
    Place at = draw([](const Op &op) { return op.results.size() >= 2; });
    if (!at.op)
      return {};
    ValueId a = at.op->results[pick(at.op->results.size())],
            b = at.op->results[pick(at.op->results.size())];
    if (a == b || !(at.segment->values[a].type == at.segment->values[b].type))
      return {};
    for (uint32_t i = at.index + 1; i < at.segment->ops.size(); ++i)
      for (ValueId &value : at.segment->ops[i].operands)
        value = value == a ? b : value == b ? a : value;
    return fmt::format("results of {}", opInfo(*at.op).name);
  }

  std::string kind() {
    static constexpr std::pair<OpKind, OpKind> kTwins[] = {
        {OpKind::SwiGlu, OpKind::GeGlu},
        {OpKind::SwiGluBwd, OpKind::GeGluBwd},
        {OpKind::Gelu, OpKind::SquaredRelu},
        {OpKind::AllReduce, OpKind::AllReduceMax},
        {OpKind::GeGlu, OpKind::SwiGlu}};
    auto [from, to] = kTwins[pick(std::size(kTwins))];
    std::vector<Op *> all;
    for (Role &role : plan_.roles)
      for (Segment &segment : role.segments)
        for (Op &op : segment.ops)
          if (op.kind == from)
            all.push_back(&op);
    if (all.empty())
      return {};
    all[pick(all.size())]->kind = to;
    return fmt::format("{} for {}", opInfo(to).name, opInfo(from).name);
  }

  std::string program() {
    std::vector<ProgramNode *> runs;
    addRuns(plan_.roles[pick(plan_.roles.size())].program, runs);
    if (runs.empty())
      return {};
    ProgramNode &run = *runs[pick(runs.size())];
    int64_t by = pick(2) == 0 ? 1 : -1;
    (run.microbatch ? run.microbatch->base : run.count) += by;
    return run.count > 0 ? "a run of the program" : "";
  }

private:
  struct Place {
    Segment *segment = nullptr;
    uint32_t index = 0;
    Op *op = nullptr;
  };

  size_t pick(size_t count) { return static_cast<size_t>(random_() % count); }

  template <typename Is> Place draw(const Is &is) {
    std::vector<Place> all;
    for (Role &role : plan_.roles)
      for (Segment &segment : role.segments)
        for (uint32_t i = 0; segment.before == kNone && i < segment.ops.size(); ++i)
          if (is(segment.ops[i]))
            all.push_back({&segment, i, &segment.ops[i]});
    return all.empty() ? Place() : all[pick(all.size())];
  }

  std::string parts() {
    std::vector<Split *> all;
    for (Param &param : plan_.params)
      for (Split &split : param.splits)
        all.push_back(&split);
    if (all.empty())
      return {};
    Split &split = *all[pick(all.size())];
    split.parts = split.parts == 1 ? 2 : 1;
    return "parts of a parameter";
  }

  std::string offsetsOfParams() {
    std::vector<std::pair<Param *, Param *>> all;
    for (Param &one : plan_.params)
      for (Param &other : plan_.params)
        if (&one < &other && one.block == other.block && one.type == other.type)
          all.emplace_back(&one, &other);
    if (all.empty())
      return {};
    auto [one, other] = all[pick(all.size())];
    std::swap(one->offset, other->offset);
    return "offsets of " + one->name + " and " + other->name;
  }

  static void addRuns(std::vector<ProgramNode> &nodes, std::vector<ProgramNode *> &runs) {
    for (ProgramNode &node : nodes) {
      if (node.kind == ProgramNode::Run || node.kind == ProgramNode::Loop)
        runs.push_back(&node);
      addRuns(node.children, runs);
    }
  }

  Plan &plan_;
  std::mt19937_64 &random_;
};

} // namespace

std::string_view toString(Meaning meaning) {
  constexpr std::string_view kWords[] = {
      "operand",    "attribute",  "new attribute", "table",   "offset", "copies", "group",
      "dropped op", "microbatch", "cell",          "results", "kind",   "program"};
  return kWords[static_cast<size_t>(meaning)];
}

std::string mutateMeaning(Plan &plan, Meaning meaning, std::mt19937_64 &random) {
  MeaningMutator mutator(plan, random);
  using Change = std::string (MeaningMutator::*)();
  constexpr Change kChanges[] = {
      &MeaningMutator::operand, &MeaningMutator::attribute, &MeaningMutator::newAttribute,
      &MeaningMutator::table,   &MeaningMutator::offset,    &MeaningMutator::copies,
      &MeaningMutator::group,   &MeaningMutator::droppedOp, &MeaningMutator::microbatch,
      &MeaningMutator::cell,    &MeaningMutator::results,   &MeaningMutator::kind,
      &MeaningMutator::program};
  return (mutator.*kChanges[static_cast<size_t>(meaning)])();
}

} // namespace shardc::plan::oracle
