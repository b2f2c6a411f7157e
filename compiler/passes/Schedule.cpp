// Fixes stream, order and waits of every op. Compute ops keep their order.
// Gathers run on the gather stream, one use ahead: the gather of a unit is issued as soon as the
// unit before the previous one is no longer used, so at most two units are gathered at a time. If
// blocks of a unit are used in different places, as those of attention and experts, each counts as
// a unit, which saves memory. They count as one with two fixed slots for units
// (`ddp.fsdp_double_buffer`), since counting them apart would save nothing then.
// Reductions run on the reduce stream, after the gradients that they read. The gradients of a unit
// start only after the reduction of the unit two before has completed, so at most two units have
// whole gradients. The same limit holds for gradient shards that are scattered further.
// Waits are added where data dependences or these limits need them and stream order does not imply
// them.
#include <algorithm>
#include <map>

#include "compiler/passes/Clocks.h"
#include "compiler/passes/HostValues.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/Strategy.h"
#include "compiler/predict/Overheads.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

/// Units that may be gathered in addition to the one in use.
constexpr size_t kPrefetchDepth = 1;

/// Whether the op gathers or reduces weights or gradients of a block. Such ops may move; exchanges
/// of a microbatch's data must stay where they are.
bool isOfBlock(const Op &op, OpKind kind) {
  return op.kind == kind && op.getInt(plan::AttrKey::block) >= 0;
}

/// Gathers of a unit that are issued together: one op for each of its blocks, or for those that are
/// used first. `turn` numbers the gathers in order of use. Gathers of one layer in a row have the
/// same number if layers have fixed slots: a slot holds all blocks of a layer.
struct Gather {
  int32_t unit = -1;
  size_t turn = 0;
  std::vector<uint32_t> ops;
  uint32_t firstUse = kNone, lastUse = 0;
};

class Scheduler {
public:
  Scheduler(const plan::Plan &plan, plan::Segment &segment)
      : plan_(plan), segment_(segment), hasSlots_(plan.job.ddp.fsdpDoubleBuffer) {}

  void run() {
    assignStreams();
    orderGathers();
    delayReductions();
    limitGradients();
    limitShards();
    limitCopies();
    addWaits();
  }

private:
  void assignStreams() {
    for (Op &op : segment_.ops) // the op at the other end of a pair has its own stream
      if (op.channel != plan::kNoChannel && op.stream == plan::kComputeStream)
        op.stream = plan_.channels[static_cast<size_t>(op.channel)].stream;
    for (const Op &op : segment_.ops)
      if (uint32_t cast = castBefore(op); cast != kNone)
        segment_.ops[cast].stream = op.stream;
  }

  /// The index of the op that computes the operand of a reduction.
  uint32_t producerOf(const Op &reduction) const {
    return segment_.values[reduction.operands[0]].def;
  }
  bool isReduction(uint32_t op) const {
    return op != kNone && (isOfBlock(segment_.ops[op], OpKind::ReduceScatter) ||
                           isOfBlock(segment_.ops[op], OpKind::AllReduce));
  }
  /// The cast between this reduction and an earlier reduction whose sum it reads, or kNone. Compute
  /// does not wait for such a cast.
  uint32_t castBefore(const Op &op) const {
    if (!isOfBlock(op, OpKind::AllReduce) && !isOfBlock(op, OpKind::ReduceScatter))
      return kNone;
    uint32_t producer = producerOf(op);
    bool isCast = producer != kNone && segment_.ops[producer].kind == OpKind::Cast;
    return isCast && isReduction(producerOf(segment_.ops[producer])) ? producer : kNone;
  }

  /// The turn of a gather that follows `gathers`: the last one's, if a slot holds both. A block
  /// that is gathered again needs another slot.
  size_t turnOf(const std::vector<Gather> &gathers, const Op &op) const {
    if (gathers.empty())
      return 0;
    const size_t last = gathers.back().turn;
    bool shares = hasSlots_ && gathers.back().unit == op.unit && plan::isLayer(plan_, op.unit);
    auto hasBlock = [&](uint32_t other) {
      constexpr plan::AttrKey kBlock = plan::AttrKey::block;
      return segment_.ops[other].getInt(kBlock) == op.getInt(kBlock);
    };
    for (size_t g = gathers.size(); g-- > 0 && gathers[g].turn == last;)
      shares = shares && std::ranges::none_of(gathers[g].ops, hasBlock);
    return shares ? last : last + 1;
  }

  /// Finds the spans of uses of gathered units; views count as uses.
  std::vector<Gather> findGathers() const {
    std::vector<Gather> gathers;
    std::vector<int32_t> gatherOf(segment_.values.size(), -1);
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (isOfBlock(op, OpKind::AllGather) && op.pred == plan::Pred::Always) {
        bool joins =
            !gathers.empty() && gathers.back().unit == op.unit && gathers.back().firstUse == kNone;
        if (!joins)
          gathers.push_back({.unit = op.unit, .turn = turnOf(gathers, op)});
        gathers.back().ops.push_back(i);
        gatherOf[op.results[0]] = static_cast<int32_t>(gathers.size()) - 1;
        continue;
      }
      for (ValueId operand : op.operands) {
        int32_t g = gatherOf[operand];
        if (g < 0)
          continue;
        if (isAlias(op)) {
          gatherOf[op.results[0]] = g;
          continue;
        }
        Gather &gather = gathers[static_cast<size_t>(g)];
        gather.firstUse = std::min(gather.firstUse, i);
        gather.lastUse = std::max(gather.lastUse, i);
      }
    }
    return gathers;
  }

  /// The last use of what was gathered `kPrefetchDepth + 1` turns before gather k; kNone if there
  /// is none. A use that extends beyond the first use of gather k (the head's norm around the loss)
  /// occupies no slot.
  static uint32_t freedBefore(const std::vector<Gather> &gathers, size_t k) {
    uint32_t freed = kNone;
    for (size_t g = k; g-- > 0 && gathers[g].turn + kPrefetchDepth + 1 >= gathers[k].turn;)
      if (gathers[g].turn + kPrefetchDepth < gathers[k].turn &&
          gathers[g].lastUse < gathers[k].firstUse)
        freed = freed == kNone ? gathers[g].lastUse : std::max(freed, gathers[g].lastUse);
    return freed;
  }

  /// Moves every gather up to the point where its slot is free.
  void orderGathers() {
    std::vector<Gather> gathers = findGathers();
    std::vector<std::vector<uint32_t>> before(segment_.ops.size() +
                                              1); // gathers to issue before op i
    std::vector<uint8_t> moved(segment_.ops.size(), 0);
    uint32_t position = 0;
    for (size_t k = 0; k < gathers.size(); ++k) {
      const Gather &gather = gathers[k];
      if (uint32_t freed = freedBefore(gathers, k); freed != kNone)
        position = std::max(position, freed + 1);
      if (gather.firstUse != kNone)
        position = std::max(position, behindExchanges(gather));
      for (uint32_t op : gather.ops) {
        // A shard that the segment itself computes does not exist earlier.
        if (uint32_t def = segment_.values[segment_.ops[op].operands[0]].def; def != kNone)
          position = std::max(position, def + 1);
        before[position].push_back(op);
        moved[op] = 1;
      }
    }
    std::vector<uint32_t> now = rebuild(before, moved);
    for (size_t k = 0; k < gathers.size(); ++k)
      if (uint32_t freed = freedBefore(gathers, k); freed != kNone)
        for (uint32_t op : gathers[k].ops)
          if (now[freed] < now[op])
            after_.push_back({now[op], now[freed]});
  }

  /// The position after the last gather of a microbatch's data on the same channel, if it precedes
  /// the first use of the gather. All later ops wait for that data, so the gather must not delay
  /// it.
  uint32_t behindExchanges(const Gather &gather) const {
    plan::ChannelId channel = segment_.ops[gather.ops.front()].channel;
    for (uint32_t i = gather.firstUse; i-- > 0;)
      if (segment_.ops[i].kind == OpKind::AllGather && segment_.ops[i].channel == channel &&
          !isOfBlock(segment_.ops[i], OpKind::AllGather))
        return i + 1;
    return 0;
  }

  /// Inserts each moved op before the op for which it is listed. Returns the new index of each op.
  std::vector<uint32_t> rebuild(const std::vector<std::vector<uint32_t>> &before,
                                const std::vector<uint8_t> &moved) {
    std::vector<Op> ops;
    std::vector<uint32_t> now(segment_.ops.size(), kNone);
    ops.reserve(segment_.ops.size());
    auto move = [&](uint32_t op) {
      now[op] = static_cast<uint32_t>(ops.size());
      ops.push_back(std::move(segment_.ops[op]));
    };
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      for (uint32_t gather : before[i])
        move(gather);
      if (moved[i] == 0)
        move(i);
    }
    plan::replaceOps(segment_, std::move(ops));
    return now;
  }

  /// Reductions that start together, later than their data allow.
  struct Delay {
    std::vector<uint32_t> ops;
    uint32_t behind; ///< compute op for which the first reduction waits
    uint32_t before; ///< op before which the reductions are issued
  };

  /// For each op that writes the first gradient of a unit: the last reduction of the unit two
  /// before.
  std::vector<uint32_t> reductionsNeeded() const {
    std::vector<uint32_t> needed(segment_.ops.size(), kNone);
    std::vector<UnitGradients> units = findGradients();
    for (size_t k = 2; k < units.size(); ++k) {
      if (!units[k].firsts.empty())
        needed[units[k].firsts.front()] = units[k - 2].reduction;
      for (auto [first, count] : waitsOf(units, k))
        if (count == k - 1)
          needed[first] = units[k - 2].reduction;
    }
    return needed;
  }

  /// NCCL's reductions occupy multiprocessors. A product is split into one wave for all
  /// multiprocessors, so it takes twice as long if some are missing; attention consists of many
  /// small pieces and loses only the occupied share. So a reduction waits for the next attention
  /// op, unless the first gradient of the unit two later precedes that op, because that gradient
  /// waits for the reduction.
  std::vector<Delay> findDelays() const {
    std::vector<Delay> delays;
    std::vector<uint32_t> waiting; // consecutive latest reductions since the last attention
    uint32_t last = kNone;         // latest compute op
    std::vector<uint32_t> neededBy = reductionsNeeded();
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (neededBy[i] != kNone && !waiting.empty() && waiting.front() <= neededBy[i])
        waiting.clear();
      if (isReduction(i)) {
        addReduction(i, last, waiting);
        continue;
      }
      const plan::OpWork &work = plan::opInfo(op).work;
      bool isAttention = work.cost == plan::CostClass::Attention && work.isGradient;
      if (isAttention && last != kNone && !waiting.empty() && waiting.front() < last)
        delays.push_back({waiting, last, i});
      if (isAttention)
        waiting.clear();
      if (op.stream == plan::kComputeStream && !isAlias(op))
        last = i;
    }
    return delays;
  }

  /// Adds a reduction to those that wait. If another reduction follows later, the earlier ones
  /// start at once, since the two would otherwise queue. Adjacent reductions of one unit stay
  /// together, and so does a sum with its operands. `last` is the preceding compute op.
  void addReduction(uint32_t reduction, uint32_t last, std::vector<uint32_t> &waiting) const {
    const Op &op = segment_.ops[reduction];
    uint32_t cast = castBefore(op);
    uint32_t producer = cast == kNone ? producerOf(op) : producerOf(segment_.ops[cast]);
    bool follows = !waiting.empty() && waiting.back() == producer;
    bool joins =
        !waiting.empty() && segment_.ops[waiting.back()].unit == op.unit && last < waiting.back();
    if (!follows && !joins)
      waiting.clear();
    else if (follows && cast != kNone)
      waiting.push_back(cast);
    waiting.push_back(reduction);
  }

  void delayReductions() {
    std::vector<Delay> delays = findDelays();
    if (delays.empty())
      return;
    std::vector<std::vector<uint32_t>> before(segment_.ops.size() + 1);
    std::vector<uint8_t> moved(segment_.ops.size(), 0);
    for (const Delay &delay : delays) {
      before[delay.before] = delay.ops;
      for (uint32_t reduction : delay.ops)
        moved[reduction] = 1;
    }
    std::vector<uint32_t> now = rebuild(before, moved);
    for (auto &[op, earlier] : after_) {
      op = now[op];
      earlier = now[earlier];
    }
    for (const Delay &delay : delays)
      after_.push_back({now[delay.ops.front()], now[delay.behind]});
  }

  /// The whole gradients of a unit: for each, the op that writes it first, in order; and their last
  /// reduction.
  struct UnitGradients {
    std::vector<uint32_t> firsts;
    uint32_t reduction = 0;
  };

  /// The gradients of units, in the order of their reductions.
  std::vector<UnitGradients> findGradients() const {
    std::vector<UnitGradients> units;
    int32_t unit = -1;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (op.kind == OpKind::ReduceScatter && movesWhole(plan_, segment_, op)) {
        if (op.unit != unit || units.empty()) {
          units.emplace_back();
          unit = op.unit;
        }
        units.back().reduction = i;
        if (uint32_t first = firstWriter(op.operands[0]); first != kNone)
          units.back().firsts.push_back(first);
      }
    }
    for (UnitGradients &each : units)
      std::ranges::sort(each.firsts);
    return units;
  }

  /// The ops of unit k that must wait for reductions of units before it, at most for those of the
  /// unit two before, and the number of these units. Usually only the first one waits. But a block
  /// of matrices of several layers is written before the reductions that later blocks wait for.
  static std::vector<std::pair<uint32_t, size_t>> waitsOf(const std::vector<UnitGradients> &units,
                                                          size_t k) {
    std::vector<std::pair<uint32_t, size_t>> waits;
    size_t covered = 0;
    for (uint32_t first : units[k].firsts) {
      size_t count = k - 1;
      while (count > 0 && units[count - 1].reduction >= first)
        --count;
      if (count > covered)
        waits.emplace_back(first, covered = count);
    }
    return waits;
  }

  /// The gradients of a unit wait for the reductions that were issued before them, up to those of
  /// the unit two before. Reductions of an embedding may come between those of layers.
  void limitGradients() {
    std::vector<UnitGradients> units = findGradients();
    for (size_t k = 2; k < units.size(); ++k)
      for (auto [first, count] : waitsOf(units, k))
        after_.push_back({first, units[count - 1].reduction});
  }

  /// Limits gradient shards that no later microbatch adds to: they live until they are scattered.
  /// The first shard of a unit waits until those of the unit two before are scattered.
  void limitShards() {
    std::vector<uint32_t> made, scattered; // by unit, in order: its first shard, its last scatter
    int32_t unit = -1;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (!isOfBlock(op, OpKind::ReduceScatter) || movesWhole(plan_, segment_, op))
        continue;
      uint32_t cast = castBefore(op),
               producer = producerOf(cast == kNone ? op : segment_.ops[cast]);
      if (!isReduction(producer) || isKept(segment_.ops[producer].results[0]))
        continue;
      if (op.unit != unit || made.empty()) {
        made.push_back(producer);
        scattered.push_back(i);
        unit = op.unit;
      }
      scattered.back() = i;
    }
    for (size_t k = 2; k < made.size(); ++k)
      if (scattered[k - 2] < made[k])
        after_.push_back({made[k], scattered[k - 2]});
  }

  /// The first compute op of a unit in the phase, from an op on; kNone if there is none.
  uint32_t firstOf(int32_t unit, plan::Phase phase, uint32_t from) const {
    for (uint32_t i = from; i < segment_.ops.size(); ++i)
      if (const Op &op = segment_.ops[i]; (op.unit == unit || unit < 0) && op.phase == phase &&
                                          op.stream == plan::kComputeStream && !isAlias(op))
        return i;
    return kNone;
  }

  /// Limits the bytes of activations that move to the host and back. The layer `depth` layers above
  /// begins when a layer's copies to the host have ended, so their bytes are free there; without
  /// such a layer, the backward pass does. A layer comes back when the backward pass of the layer
  /// above has begun, so that at most two are back.
  void limitCopies() {
    std::map<int32_t, uint32_t> last; // by unit: its last copy to the host
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (op.kind == OpKind::ToHost)
        last[op.unit] = i;
      if (op.kind != OpKind::ToDevice)
        continue;
      uint32_t above = firstOf(layerAfter(plan_, op.unit), plan::Phase::Backward, 0);
      if (above < i)
        after_.push_back({i, above});
    }
    for (auto [unit, copy] : last) {
      int32_t next = unit;
      for (int64_t n = 0; n < plan_.job.derived.offloadDepth && next >= 0; ++n)
        next = layerAfter(plan_, next);
      uint32_t awaits = kNone;
      if (plan_.job.derived.offloadDepth == 0 || next >= 0)
        awaits = firstOf(next, plan::Phase::Forward, copy);
      if (awaits == kNone)
        awaits = firstOf(-1, plan::Phase::Backward, copy);
      if (awaits != kNone)
        after_.push_back({awaits, copy});
    }
  }

  bool isKept(ValueId value) const {
    return std::ranges::any_of(
        segment_.outs, [&](const plan::Segment::Boundary &out) { return out.value == value; });
  }

  /// The earliest op that writes bytes of the packed gradient.
  uint32_t firstWriter(ValueId value) const {
    uint32_t def = segment_.values[value].def;
    if (def == kNone)
      return kNone;
    const Op &op = segment_.ops[def];
    uint32_t first = isAlias(op) ? kNone : def;
    if (isAlias(op) || op.kind == OpKind::Cast)
      for (ValueId operand : op.operands)
        first = std::min(first, firstWriter(operand));
    for (const plan::Tie &tie : op.ties)
      if (tie.kind == plan::Tie::Acc && op.results[tie.result] == value)
        first = std::min(first, firstWriter(tie.value));
    if (int operand = inPlaceOperand(op, segment_.values[value].defResult); operand >= 0)
      first = std::min(first, firstWriter(op.operands[static_cast<size_t>(operand)]));
    return first;
  }

  /// Vector clocks: `end[i]` has, for each stream, the last op that has ended when op i has. An op
  /// waits for the latest needed op of each other stream, unless an earlier wait implies it.
  void addWaits() {
    std::vector<Clock> defs = definingOps(segment_);
    std::vector<Clock> readers(segment_.values.size(), kClockZero); // by value: its latest readers
    std::vector<Clock> needs(segment_.ops.size(), kClockZero);
    for (auto [op, earlier] : after_) {
      int32_t &need = needs[op][segment_.ops[earlier].stream];
      need = std::max(need, static_cast<int32_t>(earlier));
    }
    std::array<Clock, plan::kStreamsMax> current;
    current.fill(kClockZero);
    std::vector<Clock> end(segment_.ops.size(), kClockZero);
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      Op &op = segment_.ops[i];
      if (isAlias(op))
        continue;
      Clock need = needs[i];
      for (ValueId operand : op.operands)
        join(need, defs[operand]);
      for (const plan::Tie &tie : op.ties) {
        join(need, defs[tie.value]);
        if (tie.kind == plan::Tie::Else)
          join(need, readers[tie.value]); // the buffer is overwritten
      }
      for (ValueId operand : op.operands)
        readers[operand][op.stream] = static_cast<int32_t>(i);
      Clock now = current[op.stream];
      for (size_t s = 0; s < plan_.streams.size(); ++s) {
        if (s == op.stream || need[s] <= now[s])
          continue;
        op.waits.push_back(static_cast<uint32_t>(need[s]));
        join(now, end[static_cast<size_t>(need[s])]);
      }
      std::sort(op.waits.begin(), op.waits.end());
      now[op.stream] = static_cast<int32_t>(i);
      end[i] = current[op.stream] = now;
    }
  }

  const plan::Plan &plan_;
  plan::Segment &segment_;
  const bool hasSlots_; ///< whether layers are gathered into two fixed slots
  std::vector<std::pair<uint32_t, uint32_t>> after_; ///< op, and the earlier op for which it waits
};

} // namespace

/// Orders each segment's ops, then predicts how many multiprocessors the kernels of each channel
/// occupy.
void runSchedule(plan::Plan &plan, Notes &) {
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      Scheduler(plan, segment).run();
  std::optional<predict::Gpu> gpu = predict::findDevice(plan.needsGpu);
  if (!gpu)
    return;
  std::vector<int32_t> taken = predict::multiprocessorsOf(predict::device(*gpu), plan);
  for (size_t channel = 0; channel < taken.size(); ++channel)
    plan.channels[channel].multiprocessors = taken[channel];
}

} // namespace shardc::passes
