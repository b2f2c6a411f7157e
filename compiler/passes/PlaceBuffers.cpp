// Assigns addresses to buffers by live range. State, host data, and buffers that live through the
// whole program get fixed addresses. Another buffer may reuse bytes of buffers whose users have
// certainly completed before, according to stream order and waits. A cell that lives only across
// some segments is placed in the segment that defines it; with one microbatch, gradient shards
// therefore reuse the bytes of activations that the backward pass no longer needs.
#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "compiler/passes/Allocator.h"
#include "compiler/passes/Clocks.h"
#include "compiler/passes/Liveness.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/passes/Strategy.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {
namespace {

/// An alias class, which is placed as one buffer: values that share bytes through views, packs,
/// ties, in-place ops and cells. Classes of cells come first and have the index of their cell.
struct BufferClass {
  plan::Arena arena = plan::Arena::Work;
  int64_t bytes = 0;     ///< size, including all slots of a ring
  int32_t slots = 1;     ///< more than 1 for rings
  int64_t stride = 0;    ///< bytes between slots
  int64_t offset = -1;   ///< offset in the arena in bytes; -1 until placed
  int32_t inside = -1;   ///< the class whose buffer contains this one; -1: none
  plan::Moving insideAt; ///< offset in that buffer in bytes
};

/// Position of a value in its class.
struct Slot {
  int32_t cls = -1;
  plan::Moving at;   ///< offset in bytes from the start of the class, or of a ring slot
  int64_t shift = 0; ///< for a ring: offset between the current microbatch and the slot's
};

/// The alias classes of one role: of its cells and of each segment's values.
struct BufferClasses {
  std::vector<BufferClass> classes;
  std::vector<std::vector<Slot>> slots; ///< [segment][value]
};

/// The live range of a class in one segment, in order of issue.
struct Lifetime {
  int32_t first = -1, last = -1; ///< op indices; -1: not accessed
  Clock until = kClockZero;      ///< the last op on each stream that accesses it
};

/// The sum of two rank-dependent offsets. If they depend on two groups and one is a multiple of the
/// other's size, a group with the axes of both is added to the plan.
plan::Moving combined(plan::Plan &plan, const plan::Moving &a, const plan::Moving &b) {
  std::optional<plan::Moving> sum = plan::sumOf(plan, a, b);
  auto nest = [&](const plan::Moving &outer, const plan::Moving &inner) {
    if (sum || outer.coef != inner.coef * plan.groupSize(inner.group))
      return;
    std::vector<uint16_t> axes = plan.groups[static_cast<size_t>(outer.group)].axes;
    const std::vector<uint16_t> &more = plan.groups[static_cast<size_t>(inner.group)].axes;
    axes.insert(axes.end(), more.begin(), more.end());
    plan::groupOf(plan, std::move(axes));
    sum = plan::sumOf(plan, a, b);
  };
  nest(a, b), nest(b, a);
  SHARDC_CHECK(sum.has_value(), "a place moves with the indices in groups {} and {}", a.group,
               b.group);
  return *sum;
}

/// Finds all-gathers from one cell into another whose shard can lie at its own position in the
/// gathered buffer, so that the gather copies only the shards of other ranks. Excluded are gathered
/// buffers that are freed after use, because the shard must keep its bytes; shards that are too
/// short to begin at an aligned address; and rings, whose slots have bytes of their own.
void findInPlaceGathers(const plan::Plan &plan, const plan::Role &role, BufferClasses &result) {
  for (const plan::Segment &segment : role.segments)
    for (const Op &op : segment.ops) {
      if (op.kind != OpKind::AllGather)
        continue;
      uint32_t from = kNone, to = kNone;
      for (const plan::Segment::Boundary &in : segment.ins)
        if (in.value == op.operands[0])
          from = in.cell;
      for (const plan::Segment::Boundary &out : segment.outs)
        if (out.value == op.results[0])
          to = out.cell;
      if (from == kNone || to == kNone || role.cells[to].purpose == plan::Purpose::Comm ||
          role.cells[from].isRing() || role.cells[to].isRing() ||
          result.classes[from].inside >= 0 || role.cells[from].type.bytes() % kPlaceAlign != 0 ||
          role.cells[from].type.bytes() * plan.groupSize(op.group) != role.cells[to].type.bytes())
        continue;
      result.classes[from].inside = static_cast<int32_t>(to);
      result.classes[from].insideAt = {0, role.cells[from].type.bytes(), op.group};
      result.classes[from].arena = result.classes[to].arena;
    }
}

/// Finds the slots of one segment's values, from the last op to the first: the place where a value
/// must end up (a cell, a block) determines the places of the values before it that share its
/// bytes.
class SlotFinder {
public:
  SlotFinder(plan::Plan &plan, const plan::Role &role, const plan::Segment &segment,
             BufferClasses &result)
      : plan_(plan), role_(role), segment_(segment), result_(result), slots_(segment.values.size()),
        sym_(segment.values.size(), 0) {}

  std::vector<Slot> run() {
    for (const plan::Segment::Boundary &in : segment_.ins)
      slots_[in.value] = slotOf(in);
    for (const plan::Segment::Boundary &out : segment_.outs)
      if (slots_[out.value].cls < 0)
        slots_[out.value] = slotOf(out);
    markSym();
    for (size_t i = segment_.ops.size(); i-- > 0;)
      backward(segment_.ops[i]);
    for (const Op &op : segment_.ops)
      if (op.kind == OpKind::View)
        placeView(op);
    return std::move(slots_);
  }

private:
  Slot slotOf(const plan::Segment::Boundary &boundary) const {
    bool isRing = role_.cells[boundary.cell].isRing();
    return {static_cast<int32_t>(boundary.cell), {}, isRing ? boundary.shift : 0};
  }

  int32_t newClass(ValueId value) {
    BufferClass cls;
    const uint32_t def = segment_.values[value].def;
    const bool isOnHost = def != kNone && segment_.ops[def].kind == OpKind::ToHost;
    cls.arena = isOnHost           ? plan::Arena::Host
                : sym_[value] != 0 ? plan::Arena::Sym
                                   : plan::Arena::Work;
    cls.bytes = segment_.values[value].type.bytes();
    result_.classes.push_back(cls);
    return static_cast<int32_t>(result_.classes.size()) - 1;
  }

  /// Puts the buffers of collectives that overlap with compute into the arena that peers and NCCL's
  /// windows may access. There are two exceptions. If NCCL allocates that arena, kernels that
  /// exchange counted rows can reach the other arenas only. Shards of gradients stay out if
  /// activations leave space for them during the backward pass.
  void markSym() {
    for (const Op &op : segment_.ops) {
      bool isBulk = op.channel != plan::kNoChannel && !plan::isPointToPoint(op) &&
                    plan_.channels[static_cast<size_t>(op.channel)].stream != plan::kComputeStream;
      if (!isBulk || (plan::leavesRowsOut(op) && plan_.job.ddp.ncclUb))
        continue;
      bool isOfShard = op.kind == OpKind::ReduceScatter && op.getInt(Key::block) >= 0 &&
                       !movesWhole(plan_, segment_, op);
      for (ValueId operand : op.operands)
        sym_[operand] = isOfShard ? sym_[operand] : 1;
      if (op.kind != OpKind::ReduceScatter)
        for (ValueId value : op.results)
          sym_[value] = 1;
    }
    for (size_t i = segment_.ops.size(); i-- > 0;) // a live view keeps its whole value live
      if (const Op &op = segment_.ops[i]; op.kind == OpKind::View && sym_[op.results[0]] != 0)
        sym_[op.operands[0]] = 1;
    for (const Op &op : segment_.ops)
      if (op.kind == OpKind::Pack &&
          std::ranges::any_of(op.operands, [&](ValueId part) { return sym_[part] != 0; }))
        sym_[op.results[0]] = 1;
  }

  void backward(const Op &op) {
    for (ValueId value : op.results)
      if (slots_[value].cls < 0 && op.kind != OpKind::View)
        slots_[value] = tiedSlot(op, value);
    if (op.kind == OpKind::Pack)
      return placeParts(op);
    for (const plan::Tie &tie : op.ties)
      share(op.results[tie.result], tie.value);
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = plan::inPlaceOperand(op, r); operand >= 0)
        share(op.results[r], op.operands[static_cast<size_t>(operand)]);
    if (op.kind == OpKind::AllGather)
      placeShard(op);
  }

  /// If the segment computes the shard of a gather into a kept cell, places the shard at its
  /// position in that cell.
  void placeShard(const Op &gather) {
    Slot &shard = slots_[gather.operands[0]];
    const Slot &whole = slots_[gather.results[0]];
    int64_t bytes = segment_.values[gather.operands[0]].type.bytes();
    bool isKept = whole.cls >= 0 && static_cast<size_t>(whole.cls) < role_.cells.size() &&
                  role_.cells[static_cast<size_t>(whole.cls)].purpose == plan::Purpose::Params;
    if (shard.cls >= 0 || !isKept || !whole.at.isFixed() || bytes % kPlaceAlign != 0)
      return;
    shard = {whole.cls, combined(plan_, whole.at, {0, bytes, gather.group})};
  }

  /// The slot of the operand whose buffer the result takes over, if that operand already has one
  /// (a live-in); otherwise a new class.
  Slot tiedSlot(const Op &op, ValueId value) {
    for (const plan::Tie &tie : op.ties)
      if (op.results[tie.result] == value && slots_[tie.value].cls >= 0)
        return slots_[tie.value];
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = plan::inPlaceOperand(op, r); op.results[r] == value && operand >= 0)
        if (const Slot &slot = slots_[op.operands[static_cast<size_t>(operand)]]; slot.cls >= 0)
          return slot;
    return {newClass(value), {}};
  }

  void share(ValueId result, ValueId earlier) {
    if (slots_[earlier].cls < 0)
      slots_[earlier] = slots_[result];
  }

  void placeParts(const Op &pack) {
    auto block = static_cast<int32_t>(pack.getInt(Key::block));
    if (block < 0)
      return placePieces(pack);
    std::vector<const plan::Param *> params;
    for (const plan::Param &param : plan_.params)
      if (param.block == block)
        params.push_back(&param);
    std::sort(params.begin(), params.end(),
              [](const plan::Param *a, const plan::Param *b) { return a->offset < b->offset; });
    SHARDC_CHECK(params.size() == pack.operands.size(),
                 "a pack names every parameter of its block");
    Slot whole = slots_[pack.results[0]];
    for (size_t k = 0; k < params.size(); ++k) {
      ValueId part = pack.operands[k];
      SHARDC_CHECK(slots_[part].cls < 0, "'{}' has a place of its own", segment_.values[part].name);
      slots_[part] = whole;
      slots_[part].at.offset += params[k]->offset * dtypeBytes(segment_.values[part].type.dtype);
    }
  }

  /// Places the operands of a pack that belongs to no block one after the other.
  void placePieces(const Op &pack) {
    Slot slot = slots_[pack.results[0]];
    for (ValueId piece : pack.operands) {
      SHARDC_CHECK(slots_[piece].cls < 0, "'{}' has a place of its own",
                   segment_.values[piece].name);
      slots_[piece] = slot;
      slot.at.offset += segment_.values[piece].type.bytes();
    }
  }

  void placeView(const Op &view) {
    Slot slot = slots_[view.operands[0]];
    int64_t element = dtypeBytes(segment_.values[view.operands[0]].type.dtype);
    plan::Moving begin = plan::beginOf(view);
    begin.offset *= element, begin.coef *= element;
    slot.at = combined(plan_, slot.at, begin);
    slots_[view.results[0]] = slot;
  }

  plan::Plan &plan_;
  const plan::Role &role_;
  const plan::Segment &segment_;
  BufferClasses &result_;
  std::vector<Slot> slots_;
  std::vector<uint8_t> sym_;
};

/// Finds the classes of a role. May add groups to the plan: see combined().
BufferClasses findBufferClasses(plan::Plan &plan, const plan::Role &role) {
  BufferClasses result;
  for (const plan::Cell &cell : role.cells) {
    BufferClass cls;
    cls.arena = cell.arena;
    cls.bytes = cell.type.bytes();
    if (cell.isRing()) {
      cls.slots = cell.slots;
      cls.stride = aligned(cls.bytes);
      cls.bytes = cls.stride * cell.slots;
    }
    result.classes.push_back(cls);
  }
  findInPlaceGathers(plan, role, result);
  for (const plan::Segment &segment : role.segments)
    result.slots.push_back(SlotFinder(plan, role, segment, result).run());
  return result;
}

/// The live ranges of all classes in one segment.
std::vector<Lifetime> findLifetimes(const BufferClasses &classes, const plan::Segment &segment,
                                    size_t segmentIndex) {
  std::vector<Lifetime> lifetimes(classes.classes.size());
  const std::vector<Slot> &slots = classes.slots[segmentIndex];
  auto touch = [&](ValueId value, size_t index, const Op &op) {
    int32_t cls = slots[value].cls;
    if (cls < 0)
      return;
    for (; cls >= 0; cls = classes.classes[static_cast<size_t>(cls)].inside) {
      Lifetime &lifetime = lifetimes[static_cast<size_t>(cls)];
      if (lifetime.first < 0)
        lifetime.first = static_cast<int32_t>(index);
      lifetime.last = static_cast<int32_t>(index);
      lifetime.until[op.stream] = static_cast<int32_t>(index);
    }
  };
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const Op &op = segment.ops[i];
    if (isAlias(op))
      continue;
    for (ValueId value : op.operands)
      touch(value, i, op);
    for (const plan::Tie &tie : op.ties)
      touch(tie.value, i, op);
    for (ValueId value : op.results)
      touch(value, i, op);
  }
  return lifetimes;
}

using plan::Arena;

class Placer {
public:
  /// `apart`: by cell, whether it must not share bytes.
  Placer(plan::Plan &plan, plan::Role &role, bool doubleBuffer, const std::vector<uint8_t> &apart)
      : plan_(plan), role_(role), apart_(apart), liveness_(cellLiveness(role)),
        buffers_(findBufferClasses(plan, role)), fixed_(buffers_.classes.size(), 0) {
    if (doubleBuffer)
      assignSlots();
  }

  /// Places all buffers. Returns a cell that must not share bytes if the placement fails because of
  /// it.
  std::optional<size_t> run() {
    placePermanent();
    // Bodies first: their peaks dominate, and later segments are placed around the live buffers.
    for (bool body : {true, false})
      for (size_t s = 0; s < role_.segments.size(); ++s)
        if (role_.segments[s].body == body && !clash_)
          sweep(s);
    if (!clash_)
      writePlaces();
    return clash_;
  }

  int64_t deviceBytes() const {
    int64_t bytes = 0;
    for (Arena arena : {Arena::State, Arena::Work, Arena::Sym})
      bytes += role_.arenaBytes[static_cast<size_t>(arena)];
    return bytes;
  }

private:
  using SlotKey = std::tuple<int, int, size_t>; ///< kind, parity, position of the block in its unit

  BufferClass &cls(size_t index) { return buffers_.classes[index]; }
  bool isCell(size_t index) const { return index < role_.cells.size(); }
  Allocator fresh(Arena arena) const {
    Allocator allocator(plan_.streams.size());
    if (permanentBytes_[static_cast<size_t>(arena)] > 0)
      allocator.reserve(0, permanentBytes_[static_cast<size_t>(arena)]);
    return allocator;
  }

  /// Whether the segment is a part of steps or runs between them; false for segments before the
  /// first step and for background segments.
  bool isOfSteps(const plan::Segment &segment) const {
    return segment.kind != plan::SegmentKind::Init && segment.kind != plan::SegmentKind::Prologue &&
           segment.before == plan::kNone;
  }

  /// Whether a step has more passes than one forward and one backward pass. The sweep places the
  /// live buffers at the beginning of one segment after the other. With more passes, it could give
  /// two cells the same bytes although a third segment needs both.
  bool hasManyBodies() const {
    return std::ranges::count_if(role_.segments, [](const plan::Segment &segment) {
             return segment.body && segment.kind != plan::SegmentKind::Eval;
           }) > 2;
  }

  bool isLeftByBody(size_t cell) const {
    for (size_t s = 0; s < liveness_.size(); ++s)
      if (role_.segments[s].body &&
          (liveness_[s].atStart[cell] != 0 || liveness_[s].atEnd[cell] != 0))
        return true;
    return false;
  }

  bool livesEverywhere(size_t cell) const {
    Arena arena = role_.cells[cell].arena;
    // Rings share no bytes with other buffers, so that the check of one microbatch holds for all.
    if (arena == Arena::State || arena == Arena::Host || role_.cells[cell].isRing())
      return true;
    if (apart_[cell] != 0 || (hasManyBodies() && isLeftByBody(cell)))
      return true;
    // Cells that are live at both ends of all bodies and of the update, such as weights that stay
    // gathered.
    for (size_t s = 0; s < liveness_.size(); ++s)
      if (isOfSteps(role_.segments[s]) &&
          (liveness_[s].atStart[cell] == 0 || liveness_[s].atEnd[cell] == 0))
        return false;
    return true;
  }

  /// Places the buffers of background segments. These run one after the other, so their host copies
  /// may share memory, except that the host may still read the copies of one segment when the next
  /// one has completed.
  void placeBackground() {
    int64_t &hostBytes = permanentBytes_[static_cast<size_t>(Arena::Host)];
    int64_t begin = hostBytes, end = hostBytes;
    for (const plan::Segment &segment : role_.segments) {
      if (segment.before == plan::kNone || plan::stagedBy(role_, segment) != nullptr)
        continue;
      hostBytes = begin;
      makeOutsPermanent(segment);
      for (const plan::Segment &behind : role_.segments)
        if (plan::stagedBy(role_, behind) == &segment)
          makeOutsPermanent(behind);
      end = std::max(end, hostBytes);
    }
    hostBytes = end;
  }

  void makeOutsPermanent(const plan::Segment &segment) {
    for (const plan::Segment::Boundary &out : segment.outs)
      makePermanent(out.cell);
  }

  bool isOfBackground(size_t cell) const {
    return std::ranges::any_of(role_.segments, [&](const plan::Segment &segment) {
      return segment.before != plan::kNone &&
             std::ranges::find(segment.outs, cell, &plan::Segment::Boundary::cell) !=
                 segment.outs.end();
    });
  }

  void placePermanent() {
    for (size_t c = 0; c < role_.cells.size(); ++c)
      if (cls(c).inside >= 0)
        makePermanent(
            static_cast<size_t>(cls(c).inside)); // its shard stays live even if the whole does not
    for (size_t c = 0; c < role_.cells.size(); ++c)
      if (cls(c).inside < 0 && fixed_[c] == 0 && livesEverywhere(c) &&
          (role_.cells[c].arena != Arena::Host || !isOfBackground(c)))
        makePermanent(c);
    placeBackground();
    for (size_t slot : slotOrder_)
      makePermanent(slot);
  }

  void makePermanent(size_t index) {
    if (fixed_[index] != 0)
      return;
    fixed_[index] = 1;
    int64_t &end = permanentBytes_[static_cast<size_t>(cls(index).arena)];
    cls(index).offset = end;
    end += aligned(cls(index).bytes);
  }

  // ---- double buffering: two slots for the layers' gathered weights, two for their gradients ----

  /// With double buffering, gathered weights and gradients of layers alternate between two slots of
  /// fixed addresses. A slot is keyed by kind, parity of the unit, and position in the unit.
  void assignSlots() {
    for (size_t s = 0; s < role_.segments.size(); ++s) {
      const plan::Segment &segment = role_.segments[s];
      std::vector<Lifetime> lifetimes = findLifetimes(buffers_, segment, s);
      std::vector<Clock> clocks = clocksAtStart(segment);
      std::array<int, 2> count = {0, 0};      // number of units so far: gathers, gradients
      std::array<int32_t, 2> unit = {-1, -1}; // latest unit of each kind; both interleave
      std::map<SlotKey, size_t> latest;       // the latest buffer in each slot, in this segment
      for (size_t i = 0; i < segment.ops.size(); ++i) {
        const Op &op = segment.ops[i];
        bool gather = op.kind == OpKind::AllGather && op.pred == plan::Pred::Always;
        if ((!gather && op.kind != OpKind::ReduceScatter) || !plan::isLayer(plan_, op.unit) ||
            !movesWhole(plan_, segment, op))
          continue;
        auto index =
            static_cast<size_t>(buffers_.slots[s][gather ? op.results[0] : op.operands[0]].cls);
        if (isCell(index))
          continue;
        size_t kind = gather ? 0 : 1;
        if (op.unit != unit[kind])
          ++count[kind];
        unit[kind] = op.unit;
        SlotKey key(static_cast<int>(kind), count[kind] % 2, positionInUnit(op));
        // A slot has space for one buffer at a time. A buffer that begins while the previous one is
        // still used is placed by its live range: a unit that is gathered again while its first
        // copy is read, or gradients of Muon's blocks, which are first written in an earlier layer.
        auto first = static_cast<size_t>(lifetimes[index].first);
        auto before = latest.find(key);
        if (before != latest.end() && before->second != index &&
            !covers(clocks[first], lifetimes[before->second].until))
          continue;
        latest[key] = index;
        assignSlot(index, key);
      }
    }
  }

  /// The index of the op's block among the blocks of its unit.
  size_t positionInUnit(const Op &op) const {
    auto block = static_cast<size_t>(op.getInt(plan::AttrKey::block));
    size_t position = 0;
    while (position < block && plan_.blocks[block - position - 1].unit == op.unit)
      ++position;
    return position;
  }

  /// Blocks of one unit are adjacent in its slot, which is as large as its largest unit.
  void assignSlot(size_t index, const SlotKey &key) {
    auto at = slots_.find(key);
    if (at == slots_.end()) {
      BufferClass slot;
      slot.arena = cls(index).arena;
      buffers_.classes.push_back(slot);
      fixed_.push_back(0);
      at = slots_.emplace(key, buffers_.classes.size() - 1).first;
      slotOrder_.push_back(at->second);
    }
    cls(at->second).bytes = std::max(cls(at->second).bytes, cls(index).bytes);
    cls(index).inside = static_cast<int32_t>(at->second);
    fixed_[index] = 1;
  }

  // ---- the sweep ----

  void sweep(size_t s) {
    const plan::Segment &segment = role_.segments[s];
    std::vector<Lifetime> lifetimes = findLifetimes(buffers_, segment, s);
    std::vector<Clock> clocks = clocksAtStart(segment);
    std::array<Allocator, plan::kArenaCount> arenas;
    for (int a = 0; a < plan::kArenaCount; ++a)
      arenas[static_cast<size_t>(a)] = fresh(static_cast<Arena>(a));
    std::vector<std::vector<size_t>> starts(segment.ops.size()), ends(segment.ops.size());
    collectEvents(s, lifetimes, arenas, starts, ends);
    for (size_t i = 0; i < segment.ops.size() && !clash_; ++i) {
      for (size_t index : starts[i])
        cls(index).offset =
            arenas[static_cast<size_t>(cls(index).arena)].allocate(cls(index).bytes, clocks[i]);
      for (size_t index : ends[i])
        arenas[static_cast<size_t>(cls(index).arena)].release(cls(index).offset, cls(index).bytes,
                                                              lifetimes[index].until);
    }
    for (size_t a = 0; a < arenas.size(); ++a)
      role_.arenaBytes[a] = std::max(role_.arenaBytes[a], arenas[a].peakBytes());
  }

  void collectEvents(size_t s, const std::vector<Lifetime> &lifetimes,
                     std::array<Allocator, plan::kArenaCount> &arenas,
                     std::vector<std::vector<size_t>> &starts,
                     std::vector<std::vector<size_t>> &ends) {
    // Before the sweep, first reserves cells that are already placed, then places cells that are
    // live from the start.
    for (bool placed : {true, false}) {
      if (!placed)
        placeLongLived(lifetimes, starts.size(), arenas[static_cast<size_t>(Arena::Sym)]);
      for (size_t c : cellsByLastUse(s, lifetimes)) {
        bool atStart = liveness_[s].atStart[c] != 0, atEnd = liveness_[s].atEnd[c] != 0;
        bool here = lifetimes[c].first >= 0 || atStart || atEnd;
        if (fixed_[c] != 0 || cls(c).inside >= 0 || !here || (cls(c).offset >= 0) != placed)
          continue;
        Allocator &arena = arenas[static_cast<size_t>(cls(c).arena)];
        if (placed && !arena.isFree(cls(c).offset, cls(c).bytes)) {
          clash_ = c; // a segment that does not need both cells gave them the same bytes
          return;
        }
        if (placed)
          arena.reserve(cls(c).offset,
                        cls(c).bytes); // live from the start, so the address is fixed
        else if (atStart)
          cls(c).offset = arena.allocate(cls(c).bytes, kClockZero);
        else if (lifetimes[c].first >= 0)
          starts[static_cast<size_t>(lifetimes[c].first)].push_back(c);
        if (!atEnd && lifetimes[c].last >= 0)
          ends[static_cast<size_t>(lifetimes[c].last)].push_back(c);
      }
    }
    for (size_t index = role_.cells.size(); index < lifetimes.size(); ++index) {
      if (fixed_[index] != 0 || lifetimes[index].first < 0)
        continue;
      if (cls(index).offset < 0)
        starts[static_cast<size_t>(lifetimes[index].first)].push_back(index);
      ends[static_cast<size_t>(lifetimes[index].last)].push_back(index);
    }
    // Of buffers whose live ranges begin at one op, the larger ones first.
    for (std::vector<size_t> &list : starts)
      std::stable_sort(list.begin(), list.end(),
                       [&](size_t a, size_t b) { return cls(a).bytes > cls(b).bytes; });
  }

  /// Cells in order of decreasing last use, so that the space that becomes free is contiguous.
  std::vector<size_t> cellsByLastUse(size_t s, const std::vector<Lifetime> &lifetimes) const {
    auto lastUse = [&](size_t cell) {
      return liveness_[s].atEnd[cell] != 0 ? INT32_MAX : lifetimes[cell].last;
    };
    std::vector<size_t> cells(role_.cells.size());
    std::iota(cells.begin(), cells.end(), size_t{0});
    std::stable_sort(cells.begin(), cells.end(),
                     [&](size_t a, size_t b) { return lastUse(a) > lastUse(b); });
    return cells;
  }

  /// Places buffers that live nearly through the whole segment, such as the token ids of all ranks,
  /// at the low end of the arena. Otherwise they would fragment the space of the large units that
  /// are gathered and freed there.
  void placeLongLived(const std::vector<Lifetime> &lifetimes, size_t ops, Allocator &sym) {
    for (size_t index = role_.cells.size(); index < lifetimes.size(); ++index) {
      const Lifetime &lifetime = lifetimes[index];
      bool throughout = lifetime.first >= 0 && static_cast<size_t>(lifetime.first) <= ops / 50 &&
                        static_cast<size_t>(lifetime.last) + ops / 50 + 1 >= ops;
      if (fixed_[index] == 0 && cls(index).arena == Arena::Sym && throughout)
        cls(index).offset = sym.allocate(cls(index).bytes, kClockZero);
    }
  }

  // ---- writing addresses into the plan ----

  plan::Place placeOf(const Slot &slot) {
    plan::Place place;
    plan::Moving at = slot.at;
    const BufferClass *cls = &buffers_.classes[static_cast<size_t>(slot.cls)];
    for (; cls->inside >= 0; cls = &buffers_.classes[static_cast<size_t>(cls->inside)])
      at = combined(plan_, cls->insideAt, at);
    SHARDC_CHECK(cls->offset >= 0, "a buffer class was never placed");
    place.placed = true;
    place.arena = cls->arena;
    place.offset = cls->offset + at.offset;
    place.coef = at.coef, place.group = at.group;
    if (const BufferClass &own = buffers_.classes[static_cast<size_t>(slot.cls)]; own.slots > 1) {
      place.slots = own.slots;
      place.stride = own.stride;
      place.shift = slot.shift;
    }
    return place;
  }

  void writePlaces() {
    for (size_t c = 0; c < role_.cells.size(); ++c) {
      const BufferClass *cls = &buffers_.classes[c];
      while (cls->inside >= 0)
        cls = &buffers_.classes[static_cast<size_t>(cls->inside)];
      if (cls->offset < 0) // never live: no op reads it
        makePermanent(c);
      role_.cells[c].place = placeOf({static_cast<int32_t>(c), {}});
      role_.cells[c].arena = role_.cells[c].place.arena;
    }
    for (size_t s = 0; s < role_.segments.size(); ++s)
      for (size_t v = 0; v < role_.segments[s].values.size(); ++v)
        if (buffers_.slots[s][v].cls >= 0)
          role_.segments[s].values[v].place = placeOf(buffers_.slots[s][v]);
    for (size_t a = 0; a < permanentBytes_.size(); ++a)
      role_.arenaBytes[a] = std::max(role_.arenaBytes[a], permanentBytes_[a]);
  }

  plan::Plan &plan_;
  plan::Role &role_;
  const std::vector<uint8_t> &apart_;
  std::vector<CellLiveness> liveness_;
  BufferClasses buffers_;
  std::optional<size_t> clash_;
  std::vector<uint8_t> fixed_; ///< by class: whether the address is fixed before the sweep
  std::array<int64_t, plan::kArenaCount> permanentBytes_{};
  std::map<SlotKey, size_t> slots_; ///< the class of each slot
  std::vector<size_t> slotOrder_;
};

} // namespace

namespace {

/// Places all buffers of a role. Returns its bytes on the device.
int64_t placeRole(plan::Plan &plan, plan::Role &role, bool doubleBuffer) {
  std::vector<uint8_t> apart(role.cells.size());
  const auto before = role.arenaBytes;
  for (;;) {
    Placer placer(plan, role, doubleBuffer, apart);
    std::optional<size_t> clash = placer.run();
    if (!clash)
      return placer.deviceBytes();
    apart[*clash] = 1;
    role.arenaBytes = before;
  }
}

} // namespace

/// With two fixed slots for units, the exact placement is computed too, so that the note can tell
/// what the slots cost.
void runPlaceBuffers(plan::Plan &plan, Notes &notes) {
  bool doubleBuffer = plan.job.ddp.fsdpDoubleBuffer;
  for (plan::Role &role : plan.roles) {
    if (!doubleBuffer) {
      placeRole(plan, role, false);
      continue;
    }
    plan::Role exact = role;
    int64_t byRange = placeRole(plan, exact, false), bySlot = placeRole(plan, role, true);
    notes.push_back(
        {fmt::format(
             "'ddp.fsdp_double_buffer' keeps two fixed slots for units; exact live ranges need {} "
             "bytes, two slots need {} bytes ({:+} bytes)",
             byRange, bySlot, bySlot - byRange),
         "double-buffer", plan::kNone});
  }
}

} // namespace shardc::passes
