#include "Contract.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "Blocks.h"
#include "Indexed.h"
#include "Positions.h"
#include "Room.h"
#include "Runs.h"
#include "Terms.h"
#include "runtime/plan/Execution.h"

namespace shardc::plan::oracle {
namespace {

constexpr int64_t kGranule = 16;

class Contract {
public:
  Contract(const Plan &plan, const Positions &positions, const Role &role, const Segment &segment)
      : plan_(plan), positions_(positions), role_(role), segment_(segment),
        ranks_(ranksOf(plan, role)) {}

  std::string find() {
    for (const Value &value : segment_.values)
      checkPlace(value.name, value.place, value.type.bytes()), checkSlot(value);
    for (const Cell &cell : role_.cells)
      checkPlace(cell.name, cell.place, cell.type.bytes());
    for (const Cell &cell : role_.cells)
      if (cell.slots > 1)
        checkRing(cell);
    for (const Op &op : segment_.ops) {
      checkSizes(op);
      checkShared(op);
      need(membersFit(plan_, segment_, op),
           std::string(opInfo(op).name) + " has no part of a whole");
      checkOwnSlot(op);
      checkReadsOfHost(op);
      if (op.kind == OpKind::StepFinish)
        checkEnd(op);
      need((op.kind != OpKind::StepReset && op.kind != OpKind::InitBlock) || !isRun(role_.program),
           std::string(opInfo(op).name) + " replaces what a load has filled");
    }
    if (segment_.before != kNone)
      checkBackground();
    else
      checkHost();
    for (const Param &param : plan_.params) {
      need(isComputeType(param.type.dtype) || param.type.dtype == DType::F8E4M3,
           param.name + " is of a type that no model has");
      checkReasons(param);
    }
    checkStateTypes();
    checkSplitRoles();
    for (const auto *boundaries : {&segment_.ins, &segment_.outs})
      for (const Segment::Boundary &boundary : *boundaries) {
        const Value &value = segment_.values[boundary.value];
        const Cell &cell = role_.cells[boundary.cell];
        need(value.type == cell.type && isInCell(value.place, cell, boundary.shift),
             value.name + " is not like its cell");
        need(boundary.shift == 0 || cell.kind == CellKind::Buffer,
             cell.name + " has what is of another microbatch, and is no buffer");
        need(segment_.before != kNone || !isOwnCell(boundary.cell),
             cell.name + " is of saves alone");
      }
    return problem_;
  }

private:
  const Value &value(ValueId id) const { return segment_.values[id]; }
  int64_t size(ValueId id) const { return value(id).type.numel(); }
  void need(bool condition, const std::string &text) {
    if (!condition && problem_.empty())
      problem_ = text;
  }
  static std::vector<int64_t> ranksOf(const Plan &plan, const Role &role) {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < plan.worldSize(); ++rank)
      if (&plan.roles[roleOf(plan, rank)] == &role)
        ranks.push_back(rank);
    return ranks;
  }
  /// Whether the place is the cell, or, if it has slots, the cell's slot for that microbatch.
  bool isInCell(Place place, const Cell &cell, int64_t shift) const {
    if (place.slots != cell.slots || place.stride != cell.place.stride ||
        slotFor(place.slots, place.shift) != slotFor(place.slots, place.slots == 1 ? 0 : shift))
      return false;
    place.shift = 0;
    return same(place, cell.place);
  }
  bool same(const Place &a, const Place &b) const { return isApart(a, b, {}, 1); }
  /// Whether `a` begins after `b` on each rank, by the view's offset in elements of size `size`.
  bool isApart(const Place &a, const Place &b, const Op &view, int64_t size) const {
    return a.arena == b.arena && std::ranges::all_of(ranks_, [&](int64_t rank) {
             return positions_.begin(a, rank) ==
                    positions_.begin(b, rank) + positions_.begin(view, rank) * size;
           });
  }

  void checkPlace(const std::string &name, const Place &place, int64_t bytes) {
    int64_t room = role_.arenaBytes[static_cast<size_t>(place.arena)];
    for (int64_t rank : ranks_) {
      int64_t begin = positions_.begin(place, rank);
      need(begin >= 0 && begin + bytes <= room, name + " leaves its arena");
      need(begin % kGranule == 0, name + " is not aligned");
    }
  }

  /// Checks that a value in a slot has the same place on all ranks, or one that depends on the
  /// rank's coordinate as the place of its ring does.
  void checkSlot(const Value &value) {
    const Place &place = value.place;
    auto holds = [&](const Cell &cell) {
      return cell.slots == place.slots && std::ranges::all_of(ranks_, [&](int64_t rank) {
               return positions_.isInSlot(place, value.type.bytes(), cell.place, rank);
             });
    };
    need(place.slots == 1 || std::ranges::any_of(role_.cells, holds),
         value.name + " lies in no slot of a ring");
  }

  /// A ring must be a buffer; other cells, and values without slots, must not share its bytes.
  void checkRing(const Cell &ring) {
    need(ring.kind == CellKind::Buffer, ring.name + " is a ring and not a buffer");
    auto touches = [&](Place place, int64_t bytes) {
      Place whole = ring.place;
      whole.slots = place.slots = 1;
      return std::ranges::any_of(
          ranks_, [&](int64_t rank) { return overlap(whole, ring.bytes(), place, bytes, rank); });
    };
    for (const Cell &other : role_.cells)
      need(&other == &ring || !touches(other.place, other.bytes()),
           other.name + " lies in bytes of ring " + ring.name);
    for (const Value &value : segment_.values)
      need(value.place.slots > 1 || !touches(value.place, value.type.bytes()),
           value.name + " lies in bytes of ring " + ring.name + " and names no slot");
  }

  bool overlap(const Place &a, int64_t aBytes, const Place &b, int64_t bBytes, int64_t rank) const {
    int64_t aBegin = positions_.begin(a, rank), bBegin = positions_.begin(b, rank);
    return a.arena == b.arena && aBegin < bBegin + bBytes && bBegin < aBegin + aBytes;
  }

  /// Whether the value lies inside the cell on each rank.
  bool holds(const Cell &cell, const Value &of) const {
    return of.place.arena == cell.place.arena && std::ranges::all_of(ranks_, [&](int64_t rank) {
             int64_t begin = positions_.begin(of.place, rank),
                     first = positions_.begin(cell.place, rank);
             return begin >= first && begin + of.type.bytes() <= first + cell.bytes();
           });
  }

  bool isOwnCell(size_t cell) const {
    return std::any_of(role_.segments.begin(), role_.segments.end(), [&](const Segment &segment) {
      return segment.before != kNone &&
             std::any_of(segment.outs.begin(), segment.outs.end(),
                         [&](const Segment::Boundary &out) { return out.cell == cell; });
    });
  }

  /// Only the host may write the cells that it fills. Ops only copy to other memory of the host,
  /// and from there.
  void checkHost() {
    for (const Op &op : segment_.ops) {
      if (op.kind == OpKind::View || op.kind == OpKind::Pack)
        continue;
      for (ValueId result : op.results)
        need((op.kind == OpKind::ToHost) == (value(result).place.arena == Arena::Host),
             value(result).name + " is written to memory of the host");
      for (ValueId operand : op.operands)
        need(op.kind == OpKind::ToDevice || value(operand).place.arena != Arena::Host ||
                 std::ranges::any_of(role_.cells,
                                     [&](const Cell &cell) {
                                       return isOfHost(cell) && holds(cell, value(operand));
                                     }),
             value(operand).name + " is read in memory of the host");
      if (op.kind == OpKind::ToHost)
        for (const Cell &cell : role_.cells)
          for (int64_t rank : ranks_)
            need(!isOfHost(cell) ||
                     !overlap(cell.place, cell.type.bytes(), value(op.results[0]).place,
                              value(op.results[0]).type.bytes(), rank),
                 value(op.results[0]).name + " lies in what the host writes");
    }
    for (const Cell &a : role_.cells)
      for (const Cell &b : role_.cells)
        for (int64_t rank : ranks_)
          need(&a == &b || !isOfHost(a) ||
                   !overlap(a.place, a.type.bytes(), b.place, b.type.bytes(), rank),
               a.name + " of the host shares its bytes");
  }

  /// Whether the program runs the segment other than as its start.
  bool isRun(const std::vector<ProgramNode> &nodes) const {
    return std::ranges::any_of(nodes, [&](const ProgramNode &node) {
      bool isOwn = node.kind == ProgramNode::Run && &role_.segments[node.segment] == &segment_;
      return isOwn || isRun(node.children);
    });
  }

  /// A rank's part of a gather or a scatter is in its own slot of the whole on all ranks, or
  /// outside the whole on all ranks.
  void checkOwnSlot(const Op &op) {
    bool isGather = op.kind == OpKind::AllGather;
    if (!isGather && op.kind != OpKind::ReduceScatter)
      return;
    const Value &part = value(isGather ? op.operands[0] : op.results[0]);
    const Value &whole = value(isGather ? op.results[0] : op.operands[0]);
    bool isApart = true, isInside = true;
    for (int64_t rank : ranks_) {
      int64_t slot = positions_.begin(whole.place, rank) +
                     positions_.begin(Place{.coef = part.type.bytes(), .group = op.group}, rank);
      isApart =
          isApart && !overlap(part.place, part.type.bytes(), whole.place, whole.type.bytes(), rank);
      isInside = isInside && part.place.arena == whole.place.arena &&
                 positions_.begin(part.place, rank) == slot;
    }
    need(isApart || isInside, part.name + " lies in its slot of " + whole.name + " on some ranks");
  }

  /// The host writes rings and the stop flag while ops run. Only a load may read a ring, and only
  /// the pack of step state may read the flag.
  void checkReadsOfHost(const Op &op) {
    if (op.kind == OpKind::View || op.kind == OpKind::Pack)
      return;
    for (size_t i = 0; i < op.operands.size(); ++i)
      for (const Cell &cell : role_.cells) {
        const Value &read = value(op.operands[i]);
        bool isTouched = false;
        for (int64_t rank : ranks_)
          isTouched = isTouched ||
                      overlap(read.place, read.type.bytes(), cell.place, cell.type.bytes(), rank);
        bool isMeant = cell.kind == CellKind::Stop ? op.kind == OpKind::StepPack && i == 2
                                                   : op.kind == OpKind::BatchLoad;
        need(!isOfHost(cell) || !isTouched ||
                 (isMeant && read.type == cell.type && same(read.place, cell.place)),
             read.name + " is read while the host may write it");
      }
  }

  /// The flags of all ranks are summed before a step ends.
  void checkEnd(const Op &finish) {
    bool isAgreed = plan_.worldSize() == 1;
    for (const Op &op : segment_.ops)
      for (ValueId result : op.results)
        isAgreed = isAgreed || (result == finish.operands[1] && op.kind == OpKind::AllReduce &&
                                op.group >= 0 && plan_.groupSize(op.group) == plan_.worldSize() &&
                                (op.pred == finish.pred || op.pred == Pred::Always));
    need(isAgreed, value(finish.operands[1]).name + " is not what all ranks have summed");
  }

  /// Saved state of a block must be f32, or halves of f32, and exactly this rank's part.
  void checkStateTypes() {
    for (const Cell &cell : role_.cells)
      for (const Block &block : plan_.blocks)
        need(!isSaved(role_, cell) || cell.kind == CellKind::Step ||
                 blockOf(cell) != &block - plan_.blocks.data() ||
                 (hasTypeOfState(plan_, role_, cell) && cell.type.numel() == block.stateShard),
             cell.name + " is no state of its block");
  }

  /// Ranks with different parts or copies of a split parameter must have one role.
  void checkSplitRoles() {
    auto check = [&](const Param &param, int16_t group) {
      const std::vector<uint16_t> &axes = plan_.groups[static_cast<size_t>(group)].axes;
      for (int64_t rank : ranks_)
        for (int64_t other = 0; other < plan_.worldSize(); ++other) {
          std::vector<int64_t> mine = coordinatesOf(plan_, rank), its = coordinatesOf(plan_, other);
          for (uint16_t axis : axes)
            its[axis] = mine[axis];
          need(its != mine || roleOf(plan_, rank) == roleOf(plan_, other),
               "ranks with parts or copies of " + param.name + " have several roles");
        }
    };
    for (const Param &param : plan_.params) {
      for (const Split &split : param.splits)
        check(param, split.group);
      for (int16_t group : param.copies)
        check(param, group);
    }
  }

  /// Ranks that differ in one coordinate may have other elements of a parameter, or a copy, for one
  /// reason only: its split, its copies, or the parts of its block.
  void checkReasons(const Param &param) {
    for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis) {
      auto differs = [&](int16_t group) {
        return group >= 0 && plan_.mesh[axis].size > 1 &&
               std::ranges::count(plan_.groups[static_cast<size_t>(group)].axes, axis) > 0;
      };
      const Block &block = plan_.blocks[static_cast<size_t>(param.block)];
      int64_t reasons = differs(block.group) || differs(block.stateGroup) ? 1 : 0;
      for (const Split &split : param.splits)
        reasons += differs(split.group) ? 1 : 0;
      for (int16_t group : param.copies)
        reasons += differs(group) ? 1 : 0;
      need(reasons < 2, param.name + " is other elements, or a copy, for two reasons");
    }
  }

  bool isStaged(const Segment::Boundary &out) const {
    uint32_t def = value(out.value).def;
    return def != kNone && segment_.ops[def].kind == OpKind::Stage;
  }

  /// A background segment only copies, on its own streams, to memory that the host does not fill.
  /// It may copy to device memory only if another background segment copies these bytes to the
  /// host.
  void checkBackground() {
    uint32_t before = segment_.before;
    if (before < role_.segments.size() && role_.segments[before].before != kNone)
      before = role_.segments[before].before;
    need(isInEachStep(before), segment_.name + " ends before what no step runs");
    bool isCopiedOn = std::ranges::any_of(role_.segments, [&](const Segment &other) {
      return other.before == static_cast<uint32_t>(&segment_ - role_.segments.data());
    });
    for (const Segment::Boundary &out : segment_.outs)
      need(isStaged(out)
               ? isCopiedOn && role_.cells[out.cell].arena == Arena::Work
               : role_.cells[out.cell].arena == Arena::Host && !isOfHost(role_.cells[out.cell]),
           "what is saved goes elsewhere");
    for (const Op &op : segment_.ops) {
      if (op.kind == OpKind::View)
        continue;
      need(op.kind == OpKind::Snapshot || op.kind == OpKind::Stage,
           "a background segment computes");
      for (ValueId result : op.results)
        need(std::any_of(segment_.outs.begin(), segment_.outs.end(),
                         [&](const Segment::Boundary &out) { return out.value == result; }),
             value(result).name + " is saved for nobody");
      for (const Segment &other : role_.segments)
        for (const Op &theirs : other.ops)
          need(other.before != kNone || theirs.kind == OpKind::View ||
                   theirs.kind == OpKind::Pack || theirs.stream != op.stream,
               "a background segment shares a stream");
      for (ValueId result : op.results) {
        const Value &saved = value(result);
        need(saved.place.arena == (op.kind == OpKind::Stage ? Arena::Work : Arena::Host),
             saved.name + " is saved elsewhere");
        for (size_t c = 0; c < role_.cells.size(); ++c)
          for (int64_t rank : ranks_)
            need(isOwnCell(c) || !overlap(saved.place, saved.type.bytes(), role_.cells[c].place,
                                          role_.cells[c].type.bytes(), rank),
                 saved.name + " lies over a cell that is not of saves");
      }
    }
  }

  bool isInEachStep(uint32_t segment) const {
    return std::ranges::any_of(role_.program, [&](const ProgramNode &loop) {
      return loop.kind == ProgramNode::Steps &&
             std::ranges::any_of(loop.children, [&](const ProgramNode &node) {
               return node.kind == ProgramNode::Run && node.segment == segment;
             });
    });
  }

  void checkShared(const Op &op) {
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int taken = inPlaceOperand(op, r); taken >= 0)
        needSame(op.results[r], op.operands[static_cast<size_t>(taken)]);
    for (const Tie &tie : op.ties) {
      needSame(op.results[tie.result], tie.value);
      if (int taken = inPlaceOperand(op, tie.result); taken >= 0 && tie.kind == Tie::Else)
        need(op.operands[static_cast<size_t>(taken)] == tie.value, "it keeps another value");
    }
    int64_t element = op.results.empty() ? 0 : dtypeBytes(value(op.results[0]).type.dtype);
    if (op.kind == OpKind::View) {
      need(isApart(value(op.results[0]).place, value(op.operands[0]).place, op, element),
           value(op.results[0]).name + " lies elsewhere than it looks");
      need(value(op.results[0]).counts == value(op.operands[0]).counts,
           value(op.results[0]).name + " has rows that are not there");
    }
    if (op.kind == OpKind::Pack) {
      size_t part = 0;
      std::vector<int64_t> sizes;
      for (ValueId operand : op.operands)
        sizes.push_back(size(operand));
      need(blockNamed(op) >= 0 ||
               std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == size(op.results[0]),
           "parts are not all of " + value(op.results[0]).name);
      for (auto [offset, numel] : partsOfPack(plan_, op, sizes)) {
        Place place = value(op.results[0]).place;
        place.offset += offset * element;
        need(part < op.operands.size() && same(place, value(op.operands[part]).place) &&
                 size(op.operands[part]) == numel &&
                 value(op.operands[part]).type.dtype == value(op.results[0]).type.dtype,
             "a part of " + value(op.results[0]).name + " lies elsewhere");
        ++part;
      }
      need(part == op.operands.size(), "parts of a pack are too many");
    }
  }

  void needSame(ValueId a, ValueId b) {
    need(same(value(a).place, value(b).place) && value(a).type == value(b).type,
         value(a).name + " does not lie where " + value(b).name + " lies");
  }

  /// Numbers of rows and columns.
  std::pair<int64_t, int64_t> matrix(ValueId id, bool isTransposed) const {
    const Type &type = value(id).type;
    int64_t cols = type.shape[type.rank - 1], rows = type.numel() / cols;
    return isTransposed ? std::pair(cols, rows) : std::pair(rows, cols);
  }

  bool productFits(const Op &op) const {
    auto [m, k] = matrix(op.operands[0], op.getBool(AttrKey::trans_a));
    auto [k2, n] = matrix(op.operands[1], op.getBool(AttrKey::trans_b));
    size_t bias = op.kind == OpKind::MatMulAdd ? 3 : 2; // after the operand to which it adds
    return k == k2 && matrix(op.results[0], false) == std::pair(m, n) &&
           (bias == 2 || size(op.operands[2]) == m * n) &&
           (op.operands.size() <= bias || size(op.operands[bias]) == n);
  }

  bool viewFits(const Op &op) const {
    return std::ranges::all_of(ranks_, [&](int64_t rank) {
      int64_t begin = positions_.begin(op, rank);
      return begin >= 0 && begin + size(op.results[0]) <= size(op.operands[0]);
    });
  }

  bool sizesFit(const Op &op) const {
    auto in = [&](size_t i) { return size(op.operands[i]); };
    auto out = [&](size_t i) { return size(op.results[i]); };
    auto block = [&] { return plan_.blocks[static_cast<size_t>(op.getInt(AttrKey::block))]; };
    int64_t members = op.group >= 0 && op.channel != kNoChannel ? plan_.groupSize(op.group) : 0;
    switch (factsOf(op).sizes) {
    case Sizes::Free:
    case Sizes::Any:
      return true;
    case Sizes::Equal:
      return std::ranges::all_of(op.operands, [&](ValueId id) { return size(id) == out(0); });
    case Sizes::Product:
      return productFits(op);
    case Sizes::Columns:
      return out(0) == value(op.operands[0]).type.shape[value(op.operands[0]).type.rank - 1];
    case Sizes::Part:
      return viewFits(op);
    case Sizes::Block:
      return blockNamed(op) < 0 || out(0) == block().numel;
    case Sizes::Gathered:
      return members > 0 && out(0) == in(0) * members;
    case Sizes::Scattered:
      return members > 0 && in(0) == out(0) * members &&
             (op.results.size() < 2 || (out(1) == 1 && out(0) == block().stateShard));
    case Sizes::Reduced:
      return members > 0 && in(0) == out(0);
    case Sizes::Exchanged:
      return members > 0 && in(0) == out(0) && in(0) % members == 0;
    case Sizes::Squares:
      return out(0) == 1;
    case Sizes::Sgd:
      return in(0) == in(1) && out(0) == in(1) && in(2) == 128;
    case Sizes::AdamW:
      return in(0) == in(1) && in(2) == in(1) && in(3) == in(1) && in(4) == 128 &&
             out(0) == in(1) && out(1) == in(1) && out(2) == in(1) &&
             (op.results.size() < 4 || out(3) == in(1)) &&
             (op.operands.size() < 6 || in(5) == in(1));
    case Sizes::StepReset:
      return out(0) == 128;
    case Sizes::StepBegin:
      return in(0) == 128 && out(0) == 128;
    case Sizes::StepPack:
      return in(0) == 128 && in(1) == 1 && out(0) == 4;
    case Sizes::StepFinish:
      return in(0) == 128 && in(1) == 4 && in(2) == 1 && out(0) == 128;
    }
    return true;
  }

  void checkSizes(const Op &op) {
    bool fits = sizesFit(op);
    need(fits, std::string(opInfo(op).name) + " has sizes that do not fit each other");
    // Squares are computed while parts are added, which NCCL's kernels do not allow.
    need(op.kind != OpKind::ReduceScatter || op.results.size() < 2 ||
             plan_.transportOf(op) != Transport::Nccl ||
             value(op.operands[0]).type.dtype == DType::F64,
         "squares of a sum that a library makes");
  }

  const Plan &plan_;
  const Positions &positions_;
  const Role &role_;
  const Segment &segment_;
  std::vector<int64_t> ranks_;
  std::string problem_;
};

} // namespace

bool isOfHost(const Cell &cell) {
  return cell.kind == CellKind::Feed || cell.kind == CellKind::EvalFeed ||
         cell.kind == CellKind::Stop;
}

namespace {

/// The counts of all loops in their order; counts of `every` are negative.
void loopsOf(const std::vector<ProgramNode> &nodes, std::vector<int64_t> &loops) {
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Steps || node.kind == ProgramNode::Every)
      loops.push_back(node.kind == ProgramNode::Steps ? node.count : -node.count);
    loopsOf(node.children, loops);
  }
}

/// Whether a group has ranks of different roles.
bool rolesMeet(const Plan &plan) {
  for (const Group &group : plan.groups) {
    std::map<std::vector<int64_t>, uint32_t> roleAt; // by the coordinates that members share
    for (int64_t rank = 0; rank < plan.worldSize(); ++rank) {
      std::vector<int64_t> coordinates = coordinatesOf(plan, rank);
      for (uint16_t axis : group.axes)
        coordinates[axis] = 0;
      if (roleAt.emplace(coordinates, roleOf(plan, rank)).first->second != roleOf(plan, rank))
        return true;
    }
  }
  return false;
}

/// If roles communicate, all roles must have the same loops, so that they can stop at the same
/// step.
std::string findLoopBreak(const Plan &plan) {
  if (plan.roles.size() < 2 || !rolesMeet(plan))
    return {};
  std::vector<int64_t> first;
  loopsOf(plan.roles[0].program, first);
  for (const Role &role : plan.roles) {
    std::vector<int64_t> loops;
    loopsOf(role.program, loops);
    if (loops != first)
      return "roles that meet have other loops";
  }
  return {};
}

std::string findOtherGroup(const Plan &plan) {
  for (const Role &role : plan.roles)
    for (const Segment &segment : role.segments)
      for (const Op &op : segment.ops)
        if (op.channel != kNoChannel &&
            op.group != plan.channels[static_cast<size_t>(op.channel)].group)
          return "a collective is on a channel of another group";
  return {};
}

bool takesCell(const Role &role, const Segment &segment, CellKind kind) {
  return std::ranges::any_of(
      segment.ins, [&](const Segment::Boundary &in) { return role.cells[in.cell].kind == kind; });
}

/// The host fills one ring for training and one for evaluations.
std::string findOtherRing(const Role &role) {
  for (const Segment &segment : role.segments)
    if ((segment.kind == SegmentKind::Train && takesCell(role, segment, CellKind::EvalFeed)) ||
        (segment.kind == SegmentKind::Eval && takesCell(role, segment, CellKind::Feed)))
      return segment.name + " takes batches of another series";
  return {};
}

/// A run that names its microbatch must be for one microbatch, and each microbatch must be run
/// once.
std::string findWrongNumbers(const Role &role, const std::vector<ProgramNode> &nodes) {
  std::map<uint32_t, std::set<int64_t>> numbers;
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Steps || node.kind == ProgramNode::Every) {
      if (std::string problem = findWrongNumbers(role, node.children); !problem.empty())
        return problem;
      continue;
    }
    for (const OneRun &run : runsOf(role, node, nodes))
      if (run.isNamed &&
          (run.node->count != 1 || run.microbatch < 0 || run.microbatch >= run.count ||
           !numbers[run.segment].insert(run.microbatch).second))
        return role.segments[run.segment].name + " is not run for each microbatch once";
  }
  return {};
}

/// A block must be divided among as many ranks as it has parts.
std::string findWrongDivision(const Plan &plan) {
  for (const Block &block : plan.blocks)
    for (auto [part, group] :
         {std::pair(block.shard, block.group), std::pair(block.stateShard, block.stateGroup)})
      if (part != block.numel && part * plan.groupSize(group) != block.numel)
        return "block " + block.name + " is divided wrongly";
  return {};
}

} // namespace

std::string findContractBreak(const Plan &plan) {
  Positions positions(plan);
  if (std::string problem = findWrongDivision(plan); !problem.empty())
    return problem;
  if (std::string problem = findOtherGroup(plan); !problem.empty())
    return problem;
  if (std::string problem = findNoRoom(plan); !problem.empty())
    return problem;
  for (const Role &role : plan.roles)
    if (std::string problem = findWrongNumbers(role, role.program); !problem.empty())
      return problem;
  for (const Role &role : plan.roles)
    if (std::string problem = findOtherRing(role); !problem.empty())
      return problem;
  if (std::string problem = findLoopBreak(plan); !problem.empty())
    return problem;
  for (const Role &role : plan.roles) {
    for (const Segment &segment : role.segments)
      if (std::string problem = Contract(plan, positions, role, segment).find(); !problem.empty())
        return problem;
  }
  return {};
}

} // namespace shardc::plan::oracle
