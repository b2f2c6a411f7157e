// Joins values that share bytes into alias classes, and computes the live range of each class.
#include "compiler/passes/BufferClasses.h"

#include <algorithm>

#include "compiler/passes/Allocator.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/passes/Strategy.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Factors.h"

namespace shardc::passes {
namespace {

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

} // namespace

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

} // namespace shardc::passes
