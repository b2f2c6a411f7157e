#include "Mutate.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "Blocks.h"
#include "Contract.h"
#include "Edits.h"
#include "MutateParts.h"
#include "MutatePipelines.h"
#include "MutateSteps.h"

namespace shardc::plan::oracle {
namespace {

enum class Meaning : uint8_t { Same, Other };
struct Row {
  std::string_view name;
  Meaning meaning;
  std::string_view doc;
};
constexpr std::array<Row, kMutationCount> kRows = {{
#define MUTATION(enumerator, name, meaning, doc) {name, Meaning::meaning, doc},
#include "Mutations.def"
}};

class Mutator : private Edits {
public:
  Mutator(Plan &plan, std::mt19937_64 &random) : Edits(plan, random) {
    role_ = &plan.roles[below(plan.roles.size())];
    segment_ = &role_->segments[below(role_->segments.size())];
  }

  std::string run(Mutation mutation) {
    switch (mutation) {
#define MUTATION(enumerator, name, meaning, doc)                                                   \
  case Mutation::enumerator:                                                                       \
    return do##enumerator();
#include "Mutations.def"
    }
    return {};
  }

private:
  std::string doDropWait() {
    std::vector<uint32_t> waiting = opsWhere([](const Op &o) { return !o.waits.empty(); });
    if (waiting.empty())
      return {};
    uint32_t i = pick(waiting);
    auto wait = op(i).waits.begin() + static_cast<int64_t>(below(op(i).waits.size()));
    uint32_t left = *wait;
    op(i).waits.erase(wait);
    return at(i, fmt::format("no wait for op {}", left));
  }

  std::string doAddWait() {
    std::vector<uint32_t> ops = opsWhere([](const Op &o) { return !isAlias(o); });
    if (ops.size() < 2)
      return {};
    size_t later = 1 + below(ops.size() - 1);
    uint32_t awaited = ops[below(later)];
    op(ops[later]).waits.push_back(awaited);
    return at(ops[later], fmt::format("waits for op {}", awaited));
  }

  /// Whether op `b`, which follows op `a`, does not depend on a result of `a`.
  bool canSwap(uint32_t a, uint32_t b) {
    auto isMade = [&](ValueId id) { return value(id).def == a; };
    return std::ranges::none_of(op(b).operands, isMade) &&
           std::ranges::none_of(op(b).ties, isMade, &Tie::value) &&
           std::ranges::find(op(b).waits, a) == op(b).waits.end();
  }

  void swapNeighbours(uint32_t a) {
    std::swap(segment_->ops[a], segment_->ops[a + 1]);
    renumber([a](uint32_t i) { return i == a ? a + 1 : i == a + 1 ? a : i; });
  }

  std::string doMoveOp() {
    std::vector<uint32_t> movable;
    for (uint32_t i = 0; i + 1 < segment_->ops.size(); ++i)
      if (canSwap(i, i + 1))
        movable.push_back(i);
    if (movable.empty())
      return {};
    uint32_t i = pick(movable);
    swapNeighbours(i);
    return at(i, "changed places with the next");
  }

  /// Moves a collective up, op by op, until it is before the previous collective. Returns nothing
  /// if an op between them prevents it.
  std::string doSwapCollectives() {
    std::vector<uint32_t> collectives = opsWhere(isCollective);
    if (collectives.size() < 2)
      return {};
    size_t k = 1 + below(collectives.size() - 1);
    Segment before = *segment_;
    for (uint32_t i = collectives[k]; i > collectives[k - 1]; --i) {
      if (!canSwap(i - 1, i)) {
        *segment_ = std::move(before);
        return {};
      }
      swapNeighbours(i - 1);
    }
    return at(collectives[k], "moved before the previous collective");
  }

  std::string doChangeStream() {
    std::vector<uint32_t> ops = opsWhere([](const Op &o) { return !isAlias(o); });
    if (ops.empty())
      return {};
    uint32_t i = pick(ops);
    StreamId stream = someStream();
    if (stream == op(i).stream)
      return {};
    op(i).stream = stream;
    return at(i, fmt::format("on stream {}", plan_.streams[stream].name));
  }

  std::string doDropOp() {
    std::set<ValueId> used;
    std::set<uint32_t> awaited;
    for (const Op &each : segment_->ops) {
      used.insert(each.operands.begin(), each.operands.end());
      for (const Tie &tie : each.ties)
        used.insert(tie.value);
      awaited.insert(each.waits.begin(), each.waits.end());
    }
    for (const Segment::Boundary &out : segment_->outs)
      used.insert(out.value);
    std::vector<uint32_t> unused, passing;
    for (uint32_t i = 0; i < segment_->ops.size(); ++i) {
      if (awaited.count(i) == 0 && std::none_of(op(i).results.begin(), op(i).results.end(),
                                                [&](ValueId id) { return used.count(id) > 0; }))
        unused.push_back(i);
      else if (takenOver(i) != kNone)
        passing.push_back(i);
    }
    if (unused.empty() && passing.empty())
      return {};
    bool isPassing = unused.empty() || (!passing.empty() && below(2) == 0);
    uint32_t i = pick(isPassing ? passing : unused);
    std::string text = at(i, fmt::format("{} dropped", opInfo(op(i)).name));
    if (isPassing)
      readInstead(op(i).results[0], takenOver(i));
    removeOp(i);
    return text;
  }

  /// The value that op `i` overwrites in place, which readers can read instead of the op's result;
  /// or kNone.
  ValueId takenOver(uint32_t i) {
    if (op(i).results.size() != 1)
      return kNone;
    const Value &result = value(op(i).results[0]);
    std::vector<ValueId> taken = op(i).operands;
    for (const Tie &tie : op(i).ties)
      taken.push_back(tie.value);
    for (ValueId id : taken)
      if (value(id).type == result.type && value(id).place == result.place)
        return id;
    return kNone;
  }

  std::string doChangeGroup() {
    std::vector<uint32_t> collectives = opsWhere(isCollective);
    if (collectives.empty())
      return {};
    uint32_t i = pick(collectives);
    auto group = static_cast<int16_t>(static_cast<int64_t>(below(plan_.groups.size() + 1)) - 1);
    if (group == op(i).group)
      return {};
    op(i).group = group;
    if (group >= 0 && op(i).channel != kNoChannel && below(4) > 0)
      op(i).channel = channelOf(group, plan_.channels[static_cast<size_t>(op(i).channel)]);
    return at(i, fmt::format("group {}", group));
  }

  /// Finds or adds a channel of the group with the properties of another channel.
  ChannelId channelOf(int16_t group, Channel like) {
    like.group = group;
    like.name += "." + plan_.groups[static_cast<size_t>(group)].name;
    auto found = std::ranges::find(plan_.channels, like.name, &Channel::name);
    auto index = static_cast<ChannelId>(found - plan_.channels.begin());
    if (found == plan_.channels.end())
      plan_.channels.push_back(std::move(like));
    return index;
  }

  std::string doChangeBlock() {
    std::vector<uint32_t> ops = opsWhere([](const Op &o) { return o.getInt(AttrKey::block) >= 0; });
    if (ops.empty())
      return {};
    uint32_t i = pick(ops);
    auto block = static_cast<int64_t>(below(plan_.blocks.size()));
    if (block == op(i).getInt(AttrKey::block))
      return {};
    op(i).set(AttrKey::block, block);
    return at(i, fmt::format("block {}", block));
  }

  std::string doChangeChannel() {
    std::vector<uint32_t> collectives = opsWhere(isCollective);
    if (collectives.empty())
      return {};
    uint32_t i = pick(collectives);
    auto channel =
        static_cast<ChannelId>(static_cast<int64_t>(below(plan_.channels.size() + 2)) - 1);
    if (channel == op(i).channel)
      return {};
    if (static_cast<size_t>(channel) == plan_.channels.size()) {
      Channel like{"another", op(i).group};
      if (op(i).channel != kNoChannel)
        like = plan_.channels[static_cast<size_t>(op(i).channel)], like.name += ".2";
      if (std::ranges::count(plan_.channels, like.name, &Channel::name) > 0)
        return {};
      plan_.channels.push_back(like);
    }
    op(i).channel = channel;
    return at(i, channel == kNoChannel ? "no channel"
                                       : fmt::format("channel {}", plan_.channels[channel].name));
  }

  /// Changes the multiprocessors that kernels of a channel need, or that the device has.
  std::string doChangeMultiprocessors() {
    if (plan_.channels.empty())
      return {};
    Channel &channel = plan_.channels[below(plan_.channels.size())];
    if (plan_.multiprocessors == 0)
      plan_.multiprocessors = 16;
    channel.multiprocessors = static_cast<int32_t>(below(3)) * 8;
    return fmt::format("channel {} takes {} of {} multiprocessors", channel.name,
                       channel.multiprocessors, plan_.multiprocessors);
  }

  /// A random stream; the plan gets at least four.
  StreamId someStream() {
    auto stream = static_cast<StreamId>(below(std::max<size_t>(plan_.streams.size(), 4)));
    while (plan_.streams.size() <= stream)
      plan_.streams.push_back({fmt::format("stream.{}", plan_.streams.size())});
    return stream;
  }

  int64_t someDelta() {
    static const std::vector<int64_t> kDeltas = {1, -1, 4, 16, -16, 32, -32, 64, -64, 256, -256};
    return pick(kDeltas);
  }

  std::string doMoveValue() {
    if (segment_->values.empty())
      return {};
    auto id = static_cast<ValueId>(below(segment_->values.size()));
    int64_t delta = someDelta();
    value(id).place.offset += delta;
    return at(value(id).def, fmt::format("%{} moved by {}", value(id).name, delta));
  }

  // ---- buffers: values and cells of all segments of the role that share memory ----

  using Node = std::pair<uint32_t, uint32_t>; ///< segment and value, or kNone and cell

  void joinSegment(uint32_t s, std::map<Node, std::vector<Node>> &edges) const {
    const Segment &segment = role_->segments[s];
    auto join = [&](Node a, Node b) {
      edges[a].push_back(b);
      edges[b].push_back(a);
    };
    for (const Op &each : segment.ops) {
      const OpInfo &info = opInfo(each);
      for (ValueId operand : each.operands)
        if (info.traits == OpTraits::Alias)
          join({s, operand}, {s, each.results[0]});
      for (size_t r = 0; r < each.results.size(); ++r)
        if (int operand = inPlaceOperand(each, r); operand >= 0)
          join({s, each.results[r]}, {s, each.operands[static_cast<size_t>(operand)]});
      for (const Tie &tie : each.ties)
        join({s, each.results[tie.result]}, {s, tie.value});
    }
    for (const auto *boundaries : {&segment.ins, &segment.outs})
      for (const Segment::Boundary &boundary : *boundaries)
        join({s, boundary.value}, {kNone, boundary.cell});
  }

  Place &placeOf(Node node) {
    return node.first == kNone ? role_->cells[node.second].place
                               : role_->segments[node.first].values[node.second].place;
  }

  std::set<Node> bufferOf(ValueId id) {
    std::map<Node, std::vector<Node>> edges;
    for (uint32_t s = 0; s < role_->segments.size(); ++s)
      joinSegment(s, edges);
    Node start{static_cast<uint32_t>(segment_ - role_->segments.data()), id};
    std::set<Node> members = {start};
    std::vector<Node> fresh = {start};
    while (!fresh.empty()) {
      Node node = fresh.back();
      fresh.pop_back();
      for (const Node &next : edges[node])
        if (members.insert(next).second)
          fresh.push_back(next);
    }
    return members;
  }

  std::string moveBuffer(ValueId id, int64_t delta) {
    if (delta == 0)
      return {};
    for (const Node &node : bufferOf(id))
      placeOf(node).offset += delta;
    return at(value(id).def, fmt::format("the buffer of %{} moved by {}", value(id).name, delta));
  }

  std::string doMoveBuffer() {
    if (segment_->values.empty())
      return {};
    return moveBuffer(static_cast<ValueId>(below(segment_->values.size())), someDelta());
  }

  std::string doShareBuffer() {
    if (segment_->values.empty())
      return {};
    auto a = static_cast<ValueId>(below(segment_->values.size()));
    auto b = static_cast<ValueId>(below(segment_->values.size()));
    if (value(a).place.arena != value(b).place.arena)
      return {};
    return moveBuffer(a, value(b).place.offset - value(a).place.offset);
  }

  /// Makes a place, or all places of one buffer, depend on another group.
  std::string doChangePlaceGroup() {
    std::vector<ValueId> moving;
    for (ValueId id = 0; id < segment_->values.size(); ++id)
      if (value(id).place.coef != 0)
        moving.push_back(id);
    if (moving.empty())
      return {};
    ValueId id = pick(moving);
    int16_t before = value(id).place.group, group = someGroup();
    if (hasSameIndices(before, group))
      return {};
    std::set<Node> members = bufferOf(id);
    if (below(2) == 0)
      members = {{static_cast<uint32_t>(segment_ - role_->segments.data()), id}};
    for (const Node &node : members)
      if (placeOf(node).group == before)
        placeOf(node).group = group;
    return at(value(id).def, fmt::format("%{} and {} more move with group {}", value(id).name,
                                         members.size() - 1, group));
  }

  /// Divides a block, its state, or both among the ranks of another group.
  std::string doChangeDivision() {
    if (plan_.blocks.empty())
      return {};
    Block &block = plan_.blocks[below(plan_.blocks.size())];
    if (block.stateShard == block.numel) // nothing is divided
      return {};
    int16_t group = someGroup();
    int16_t &changed = below(2) == 0 ? block.group : block.stateGroup;
    if (changed == group)
      return {};
    if (below(2) == 0)
      block.group = block.stateGroup = group;
    else
      changed = group;
    return fmt::format("block {} is divided over group {}, its state over group {}", block.name,
                       block.group, block.stateGroup);
  }

  std::string doChangeCoefficient() {
    if (segment_->values.empty())
      return {};
    auto id = static_cast<ValueId>(below(segment_->values.size()));
    int64_t delta = below(2) == 0 ? 16 : -16;
    std::set<Node> members = bufferOf(id);
    if (below(2) == 0)
      members = {{static_cast<uint32_t>(segment_ - role_->segments.data()), id}};
    int16_t group = someGroup();
    for (const Node &node : members) {
      Place &place = placeOf(node);
      place.coef += delta;
      place.group = place.coef == 0 ? int16_t{-1} : place.group < 0 ? group : place.group;
    }
    return at(value(id).def, fmt::format("the coefficient of %{} and {} more changed by {}",
                                         value(id).name, members.size() - 1, delta));
  }

  std::string doChangeSize() {
    if (segment_->values.empty())
      return {};
    auto id = static_cast<ValueId>(below(segment_->values.size()));
    for (const Op &each : segment_->ops) {
      bool names = value(id).def == static_cast<uint32_t>(&each - segment_->ops.data()) ||
                   std::find(each.operands.begin(), each.operands.end(), id) != each.operands.end();
      if (names && factsOf(each).sizes == Sizes::Free)
        return {};
    }
    int64_t &extent = value(id).type.shape[0];
    extent = below(2) == 0 || extent < 2 ? extent * 2 : extent / 2;
    return at(value(id).def, fmt::format("%{} has {} rows", value(id).name, extent));
  }

  std::string doShrinkArena() {
    int64_t &bytes = role_->arenaBytes[below(kArenaCount)];
    if (bytes < 16)
      return {};
    bytes -= 16;
    return fmt::format("role {}: an arena shrunk to {}", role_->name, bytes);
  }

  std::string doChangePredicate() {
    std::vector<uint32_t> ops = opsWhere([](const Op &o) { return !isAlias(o); });
    if (!segment_->body || ops.empty())
      return {};
    uint32_t i = pick(ops);
    op(i).pred = otherPred(op(i).pred);
    return at(i, fmt::format("if {}", toString(op(i).pred)));
  }

  std::string doChangeTie() {
    std::vector<uint32_t> tied = opsWhere([](const Op &o) { return !o.ties.empty(); });
    if (tied.empty())
      return {};
    uint32_t i = pick(tied);
    size_t t = below(op(i).ties.size());
    Tie &tie = op(i).ties[t];
    if (tie.kind == Tie::Else || below(2) == 0) {
      op(i).ties.erase(op(i).ties.begin() + static_cast<int64_t>(t));
      return at(i, "a tie dropped");
    }
    tie.pred = otherPred(tie.pred);
    return at(i, fmt::format("a tie if {}", toString(tie.pred)));
  }

  std::string doDropOut() {
    if (segment_->outs.empty())
      return {};
    size_t out = below(segment_->outs.size());
    std::string text = fmt::format("role {}, segment {}: cell @{} gets nothing", role_->name,
                                   segment_->name, role_->cells[segment_->outs[out].cell].name);
    segment_->outs.erase(segment_->outs.begin() + static_cast<int64_t>(out));
    return text;
  }

  std::string doChangeOut() {
    if (segment_->outs.empty())
      return {};
    Segment::Boundary &out = segment_->outs[below(segment_->outs.size())];
    const Value &left = value(out.value);
    std::vector<ValueId> others, inPlace;
    for (ValueId id = 0; id < segment_->values.size(); ++id)
      if (id != out.value && value(id).type == left.type)
        (value(id).place == left.place ? inPlace : others).push_back(id);
    // Values at other places always break the plan.
    if (inPlace.empty() || (!others.empty() && below(8) == 0))
      std::swap(inPlace, others);
    if (inPlace.empty())
      return {};
    out.value = pick(inPlace);
    return fmt::format("role {}, segment {}: cell @{} gets %{}", role_->name, segment_->name,
                       role_->cells[out.cell].name, value(out.value).name);
  }

  std::string doDropCell() {
    std::vector<Segment *> backgrounds;
    for (Segment &each : role_->segments)
      if (each.before != kNone && !each.outs.empty())
        backgrounds.push_back(&each);
    if (backgrounds.empty())
      return {};
    segment_ = pick(backgrounds);
    uint32_t cell = segment_->outs[below(segment_->outs.size())].cell;
    std::string text = fmt::format("role {}, segment {}: cell @{} dropped", role_->name,
                                   segment_->name, role_->cells[cell].name);
    role_->cells.erase(role_->cells.begin() + cell);
    for (Segment &each : role_->segments)
      for (std::vector<Segment::Boundary> *boundaries : {&each.ins, &each.outs}) {
        std::erase_if(*boundaries, [&](const Segment::Boundary &b) { return b.cell == cell; });
        for (Segment::Boundary &boundary : *boundaries)
          boundary.cell -= boundary.cell > cell ? 1 : 0;
      }
    return text;
  }

  /// The bytes of a random value or cell.
  std::pair<Place, Type> someBytes() {
    if (segment_->values.empty() || (!role_->cells.empty() && below(2) == 0)) {
      const Cell &cell = role_->cells[below(role_->cells.size())];
      return {cell.place, cell.type};
    }
    const Value &each = value(static_cast<ValueId>(below(segment_->values.size())));
    return {each.place, each.type};
  }

  /// A random index, most often an end of the segment.
  uint32_t someIndex() {
    size_t ops = segment_->ops.size();
    size_t where = below(4);
    return static_cast<uint32_t>(where == 0 ? 0 : where == 1 ? below(ops + 1) : ops);
  }

  std::string doAddWrite() {
    if (role_->cells.empty() && segment_->values.empty())
      return {};
    auto [place, type] = someBytes();
    if (type.bytes() < 16)
      return {};
    place.offset += static_cast<int64_t>(below(static_cast<size_t>(type.bytes() / 16))) * 16;
    uint32_t index = someIndex();
    insertOp(index, OpKind::Fill, Type::of(DType::F32, {4}), place).stream = someStream();
    return at(index, fmt::format("writes 16 bytes at {} of arena {}", place.offset,
                                 toString(place.arena)));
  }

  /// The live-in value of a cell; added if the segment does not take the cell.
  ValueId takeCell(uint32_t c) {
    for (const Segment::Boundary &in : segment_->ins)
      if (in.cell == c)
        return in.value;
    ValueId id = addValue(role_->cells[c].type, role_->cells[c].place, kNone);
    segment_->ins.push_back({id, c});
    return id;
  }

  /// A random value of the segment, or of a cell that it then reads; kNone if it is unsuitable.
  ValueId someWhole(uint32_t index) {
    ValueId id = kNone;
    if (below(2) == 0 && !role_->cells.empty()) {
      auto c = static_cast<uint32_t>(below(role_->cells.size()));
      id = takeCell(c);
    } else if (!segment_->values.empty()) {
      id = static_cast<ValueId>(below(segment_->values.size()));
    }
    bool fits = id != kNone && (value(id).def == kNone || value(id).def < index) &&
                isComputeType(value(id).type.dtype) && value(id).type.bytes() >= 32;
    return fits ? id : kNone;
  }

  std::string doReadPart() {
    uint32_t index = someIndex();
    Segment before = *segment_;
    ValueId whole = someWhole(index);
    if (whole == kNone) {
      *segment_ = std::move(before);
      return {};
    }
    const Type type = value(whole).type;
    Place place = value(whole).place;
    int64_t each = dtypeBytes(type.dtype), granules = type.bytes() / 16;
    auto first = static_cast<int64_t>(below(static_cast<size_t>(granules)));
    auto count = 1 + static_cast<int64_t>(below(static_cast<size_t>(granules - first)));
    place.offset += first * 16;
    Type part = Type::of(type.dtype, {count * 16 / each});
    Op &view = insertOp(index, OpKind::View, part, place);
    view.operands = {whole};
    view.set(AttrKey::offset, first * 16 / each);
    // The copy gets memory of its own.
    int64_t &work = role_->arenaBytes[static_cast<size_t>(Arena::Work)];
    work = (work + 15) / 16 * 16;
    ValueId seen = segment_->ops[index].results[0];
    Op &reader = insertOp(index + 1, OpKind::Gelu, part, {true, Arena::Work, work, 0});
    reader.operands = {seen};
    reader.stream = someStream();
    if (uint32_t def = value(whole).def; def != kNone && !isAlias(op(def)))
      reader.waits = {def};
    work += part.bytes();
    return at(index, fmt::format("reads {} bytes of %{}", part.bytes(), value(whole).name));
  }

  /// Reads the words as row numbers of a small table.
  void readAsIds(uint32_t index, ValueId ids) {
    int64_t &work = role_->arenaBytes[static_cast<size_t>(Arena::Work)];
    work = (work + 15) / 16 * 16;
    Op &fill =
        insertOp(index, OpKind::Fill, Type::of(DType::F32, {4, 4}), {true, Arena::Work, work, 0});
    ValueId table = fill.results[0];
    Type rows = Type::of(DType::F32, {value(ids).type.numel(), 4});
    Op &reader = insertOp(index + 1, OpKind::Embedding, rows, {true, Arena::Work, work + 64, 0});
    reader.operands = {ids, table};
    reader.waits = {index};
    work += 64 + rows.bytes();
  }

  /// A view of some entries of a ring, or of the whole flag.
  ValueId viewEntries(uint32_t index, ValueId whole) {
    const Type type = value(whole).type;
    Place place = value(whole).place;
    int64_t entries = type.rank == 2 ? type.shape[0] : 1, words = type.numel() / entries;
    auto first = static_cast<int64_t>(below(static_cast<size_t>(entries)));
    if (words * 4 % 16 != 0)
      first = 0;
    auto count = 1 + static_cast<int64_t>(below(static_cast<size_t>(entries - first)));
    place.offset += first * words * 4;
    Type part = type.rank == 2 ? Type::of(type.dtype, {count, words}) : type;
    Op &view = insertOp(index, OpKind::View, part, place);
    view.operands = {whole};
    view.set(AttrKey::offset, first * words);
    return view.results[0];
  }

  std::string doReadHost() {
    std::vector<uint32_t> cells;
    for (uint32_t c = 0; c < role_->cells.size(); ++c)
      if (isOfHost(role_->cells[c]) && role_->cells[c].type.dtype == DType::I32)
        cells.push_back(c);
    if (cells.empty() || segment_->before != kNone)
      return {};
    uint32_t cell = pick(cells), index = someIndex();
    ValueId taken = takeCell(cell);
    size_t how = below(3);
    if (how != 0) {
      taken = viewEntries(index, taken);
      ++index;
    }
    // Sometimes, the existing load or pack takes the view instead.
    std::vector<uint32_t> takers = opsWhere(
        [&](const Op &o) { return o.kind == OpKind::BatchLoad || (o.kind == OpKind::StepPack); });
    bool isTakenInstead = how == 2 && !takers.empty() && takers[0] >= index;
    if (isTakenInstead)
      op(takers[0]).operands[op(takers[0]).kind == OpKind::BatchLoad ? 0 : 2] = taken;
    else if (below(4) != 0)
      readAsIds(index, taken);
    return at(index, fmt::format("{} cell @{}", isTakenInstead ? "is given" : "reads",
                                 role_->cells[cell].name));
  }

  /// Runs a segment once more: in every second step, or after the loop.
  std::string doRunAgain() {
    std::vector<ProgramNode *> nodes;
    collectLoops(role_->program, nodes);
    std::vector<ProgramNode> runs;
    for (const ProgramNode *node : nodes)
      if (node->kind == ProgramNode::Run)
        runs.push_back(*node);
    if (runs.empty())
      return {};
    ProgramNode again = pick(runs);
    std::string text =
        fmt::format("role {}: {} runs once more", role_->name, role_->segments[again.segment].name);
    for (ProgramNode *node : nodes)
      if (node->kind == ProgramNode::Steps && below(2) == 0) {
        ProgramNode every;
        every.kind = ProgramNode::Every, every.count = 2;
        every.children = {again};
        node->children.push_back(every);
        return text;
      }
    role_->program.push_back(again);
    return text;
  }

  static void collectLoops(std::vector<ProgramNode> &nodes, std::vector<ProgramNode *> &loops) {
    for (ProgramNode &node : nodes) {
      if (node.kind != ProgramNode::Start)
        loops.push_back(&node);
      collectLoops(node.children, loops);
    }
  }

  /// Replaces an operand of an op that works on blocks by a part of a cell: from any element on, or
  /// this rank's part.
  std::string doTakePart() {
    std::vector<uint32_t> ops = opsWhere([](const Op &o) {
      return !o.operands.empty() && (o.kind == OpKind::SumSquares || o.kind == OpKind::AdamW ||
                                     o.kind == OpKind::Sgd || o.kind == OpKind::AllGather);
    });
    if (ops.empty() || role_->cells.empty())
      return {};
    uint32_t i = pick(ops);
    size_t operand = below(op(i).operands.size());
    const Type part = value(op(i).operands[operand]).type;
    std::vector<uint32_t> cells;
    for (uint32_t c = 0; c < role_->cells.size(); ++c)
      if (const Type &type = role_->cells[c].type;
          type.dtype == part.dtype && type.numel() > part.numel() && part.bytes() >= 16)
        cells.push_back(c);
    if (cells.empty())
      return {};
    uint32_t cell = pick(cells);
    ValueId whole = takeCell(cell);
    Place place = role_->cells[cell].place;
    int64_t element = dtypeBytes(part.dtype), granule = std::max<int64_t>(16 / element, 1);
    int64_t spare = (role_->cells[cell].type.numel() - part.numel()) / granule;
    bool isOwn = below(2) == 0;
    int64_t offset =
        isOwn ? 0 : static_cast<int64_t>(below(static_cast<size_t>(spare + 1))) * granule;
    place.offset += offset * element;
    int16_t group = place.coef != 0 ? place.group : someGroup();
    isOwn = isOwn && group >= 0;
    if (isOwn)
      place.coef += part.bytes(), place.group = group;
    Op &view = insertOp(i, OpKind::View, part, place);
    view.operands = {whole};
    view.set(AttrKey::offset, offset);
    if (isOwn)
      view.set(AttrKey::coef, part.numel()), view.group = group;
    op(i + 1).operands[operand] = view.results[0];
    return at(i + 1, fmt::format("takes a part of cell @{}", role_->cells[cell].name));
  }

  /// Changes the count of a loop in one role, or in all roles, whose loops should be equal.
  std::string doChangeEvery() {
    std::vector<ProgramNode *> loops;
    collectLoops(role_->program, loops);
    if (loops.empty())
      return {};
    size_t which = below(loops.size());
    auto count = static_cast<int64_t>(1 + below(4));
    bool isOfAll = below(4) != 0;
    for (Role &role : plan_.roles) {
      loops.clear();
      collectLoops(role.program, loops);
      if ((isOfAll || &role == role_) && which < loops.size())
        loops[which]->count = count;
    }
    return fmt::format("role {}, node {} of the program: {} times", role_->name, which, count);
  }

  std::string doChangeStart() {
    for (ProgramNode &node : role_->program)
      if (node.kind == ProgramNode::Start) {
        node.kind = ProgramNode::Run;
        return fmt::format("role {}: what starts is run", role_->name);
      }
    return {};
  }

  std::string doChangeOperand() {
    std::vector<uint32_t> ops =
        opsWhere([](const Op &o) { return !o.operands.empty() && !isAlias(o); });
    if (ops.empty())
      return {};
    uint32_t i = pick(ops);
    ValueId &operand = op(i).operands[below(op(i).operands.size())];
    std::vector<ValueId> others;
    for (ValueId id = 0; id < segment_->values.size(); ++id)
      if (id != operand && value(id).type == value(operand).type &&
          (value(id).def == kNone || value(id).def < i))
        others.push_back(id);
    if (others.empty())
      return {};
    operand = pick(others);
    return at(i, fmt::format("reads %{}", value(operand).name));
  }

  StepMutator steps() { return {plan_, random_, *role_, *segment_}; }
  std::string doDropCollective() { return steps().doDropCollective(); }
  std::string doMoveTie() { return steps().doMoveTie(); }
  std::string doChangeNode() { return steps().doChangeNode(); }
  std::string doChangeKind() { return steps().doChangeKind(); }
  std::string doChangeParamType() { return steps().doChangeParamType(); }
  std::string doChangeClass() { return steps().doChangeClass(); }
  std::string doWriteFrozen() { return steps().doWriteFrozen(); }
  std::string doChangeStepOp() { return steps().doChangeStepOp(); }
  std::string doRepeatSum() { return steps().doRepeatSum(); }
  std::string doChangeCopies() { return steps().doChangeCopies(); }
  std::string doSplitRole() { return steps().doSplitRole(); }
  std::string doChangeSplit() { return steps().doChangeSplit(); }
  std::string doChangeMatrix() { return steps().doChangeMatrix(); }

  PipelineMutator pipelines() { return {plan_, random_, *role_, *segment_}; }
  std::string doChangeTransfer() { return pipelines().doChangeTransfer(); }
  std::string doChangeSlots() { return pipelines().doChangeSlots(); }
  std::string doChangeSchedule() { return pipelines().doChangeSchedule(); }

  PartMutator parts() { return {plan_, random_, *role_, *segment_}; }
  std::string doChangeView() { return parts().doChangeView(); }
  std::string doChangeIndex() { return parts().doChangeIndex(); }
  std::string doChangeChannelGroup() { return parts().doChangeChannelGroup(); }
  std::string doChangeRows() { return parts().doChangeRows(); }
  std::string doDropConjugate() { return parts().doDropConjugate(); }
  std::string doDropStatistic() { return parts().doDropStatistic(); }
  std::string doDropContribution() { return parts().doDropContribution(); }
};

} // namespace

std::string_view mutationName(Mutation mutation) {
  return kRows[static_cast<size_t>(mutation)].name;
}
std::string_view mutationDoc(Mutation mutation) { return kRows[static_cast<size_t>(mutation)].doc; }
bool meansTheSame(Mutation mutation) {
  return kRows[static_cast<size_t>(mutation)].meaning == Meaning::Same;
}

std::string mutate(Plan &plan, Mutation mutation, std::mt19937_64 &random) {
  return Mutator(plan, random).run(mutation);
}

} // namespace shardc::plan::oracle
