// Rewrites attention on slices of sequences, for each layer as `model.cp_comm_type` says:
//
// clang-format off
// p2p         keys and values travel around a ring, one member further while the attention to the
//             previous ones is computed; results are joined by their log-sum-exp
// all_gather  ranks gather all keys and values
// a2a         ranks exchange heads for positions: each has some heads of whole sequences
// a2a+p2p     the inner level exchanges heads for positions, the outer level is a ring of slices
// clang-format on
//
// Exchanged values have shape `[member, sample, two chunks, ...]`; merge_slices puts the chunks in
// order. Pass `backward` derives the exchanges of gradients from the ops that this file writes.
#include <algorithm>
#include <charconv>
#include <map>

#include "compiler/passes/OpWriter.h"
#include "compiler/passes/Partition.h"
#include "runtime/base/BatchFields.h"
#include "runtime/base/Status.h"

namespace shardc::passes {
namespace {

using Way = plan::Job::CpCommType;

constexpr int16_t kNoGroup = -1;

/// The groups over which a layer exchanges data; kNoGroup if it does not use the kind of exchange.
struct Levels {
  int16_t heads = kNoGroup; ///< exchanges heads for positions
  int16_t ring = kNoGroup;  ///< passes keys and values on
  int16_t all = kNoGroup;   ///< gathers keys and values
};

/// The exchanges between the context-parallel ranks of a plan.
class ContextRanks {
public:
  explicit ContextRanks(plan::Plan &plan)
      : plan_(plan), group_(plan::groupOfKind(plan, plan::GroupKind::Context)),
        tensor_(plan::groupToCutOf(plan, plan::GroupKind::Tensor)),
        ways_(plan.job.model.cpCommType) {
    if (std::ranges::find(ways_, Way::A2aP2p) != ways_.end())
      cutLevels(plan.job.model.hierarchicalContextParallelSizes);
    int64_t layer = 0;
    for (size_t unit = 0; unit < plan.units.size(); ++unit)
      layerOf_.push_back(plan::isLayer(plan, static_cast<int32_t>(unit)) ? layer++ : -1);
  }

  Levels levelsOf(int32_t unit) const {
    switch (wayOf(unit)) {
    case Way::P2p:
      return {.ring = group_};
    case Way::AllGather:
      return {.all = group_};
    case Way::A2a:
      return {.heads = group_};
    case Way::A2aP2p:
      return {.heads = inner_, .ring = outer_};
    }
    return {};
  }

  /// The group whose index selects the heads of a rank. The slower axes of the group select its
  /// slice.
  int16_t groupOfHeads(const Levels &levels) {
    std::vector<uint16_t> axes;
    for (int16_t group : {levels.ring, levels.all, tensor_, levels.heads})
      if (group >= 0)
        axes.insert(axes.end(), axesOf(group).begin(), axesOf(group).end());
    return plan::groupOf(plan_, std::move(axes));
  }

private:
  const std::vector<uint16_t> &axesOf(int16_t group) const {
    return plan_.groups[static_cast<size_t>(group)].axes;
  }

  Way wayOf(int32_t unit) const {
    if (ways_.empty())
      return Way::P2p;
    int64_t layer = unit < 0 ? -1 : layerOf_[static_cast<size_t>(unit)];
    bool isListed = ways_.size() > 1 && layer >= 0;
    return ways_[isListed ? std::min(static_cast<size_t>(layer), ways_.size() - 1) : 0];
  }

  /// Splits the context-parallel group into two levels. The inner level has the axes that vary
  /// fastest.
  void cutLevels(const std::vector<std::string> &sizes) {
    int64_t inner = 0;
    const std::string innerText = sizes.empty() ? "1" : sizes.front();
    std::from_chars(innerText.data(), innerText.data() + innerText.size(), inner);
    inner_ = plan::innerGroupOf(plan_, group_, inner);
    std::vector<uint16_t> axes = axesOf(group_);
    if (inner_ >= 0)
      axes.resize(axes.size() - axesOf(inner_).size());
    if (!axes.empty())
      outer_ = plan::groupOf(plan_, std::move(axes));
  }

  plan::Plan &plan_;
  int16_t group_, tensor_;
  int16_t inner_ = kNoGroup, outer_ = kNoGroup; ///< levels of a2a+p2p
  std::vector<Way> ways_;
  std::vector<int64_t> layerOf_; ///< by unit: layer number; -1 if it is not a layer
};

class AttentionWriter : OpWriter {
public:
  AttentionWriter(plan::Plan &plan, ContextRanks &ranks, plan::Segment &segment)
      : OpWriter(segment), plan_(plan), ranks_(ranks) {}

  /// Rewrites each attention op. Ops for sinks are removed where they were and written together
  /// with their attention.
  void run() {
    std::map<ValueId, Op> sinks; // by the output to which they are added
    for (const Op &op : segment_.ops)
      if (op.kind == OpKind::AttentionSink)
        sinks[op.operands[0]] = op;
    rewrite([&](Op op) {
      if (op.kind == OpKind::Attention) {
        auto sink = sinks.find(op.results[0]);
        return attend(op, sink == sinks.end() ? nullptr : &sink->second);
      }
      if (op.kind == OpKind::AttentionSink)
        return; // written with its attention
      if (op.kind == OpKind::BatchLoad)
        load_ = op;
      ops_.push_back(std::move(op));
    });
    if (words_.empty())
      return;
    // Positions and documents of other ranks are exchanged once, at the beginning of a microbatch.
    std::vector<Op> &ops = segment_.ops;
    auto begin = std::ranges::find(ops, OpKind::BatchLoad, &Op::kind);
    SHARDC_CHECK(begin != ops.end(), "a body loads no batch");
    ops.insert(begin + 1, words_.begin(), words_.end());
    plan::renumber(segment_);
  }

private:
  /// Queries, keys and values of the same positions.
  struct Heads {
    ValueId q, k, v;
  };
  /// Positions of tokens in their sequences, and the documents to which they belong.
  struct Words {
    ValueId places, docs;
  };
  /// Keys and values of the ring member `by` positions before this one.
  struct Keys {
    ValueId k, v;
    Words words;
    int64_t by = 0;
  };
  struct Result {
    ValueId o, lse;
  };

  int64_t sizeOf(int16_t group) const { return plan_.groupSize(group); }

  /// Appends an op that belongs to the load of the batch rather than to a layer.
  ValueId emitWord(Op op, std::string name, const Type &type) {
    op.unit = load_.unit, op.loc = load_.loc;
    op.results = {plan::addValue(segment_, std::move(name), type, plan::Purpose::Data)};
    return words_.emplace_back(std::move(op)).results[0];
  }
  Op moves(OpKind kind, ValueId operand, int64_t outer, int64_t inner) const {
    Op op = make(kind, {operand});
    op.set(Key::outer, outer).set(Key::inner, inner);
    return op;
  }

  // ---- attention of a layer ----

  /// Rewrites one attention. Sinks belong to no rank's keys, so they are added once, to the
  /// attention to all keys.
  void attend(const Op &attention, const Op *sink) {
    constexpr OpKind kOp = OpKind::Attention;
    const ValueId whole = sink ? plan::resultNamed<OpKind::AttentionSink>(*sink, "all")
                               : plan::resultNamed<kOp>(attention, "o");
    name_ = nameOf(whole);
    Levels levels = ranks_.levelsOf(unit_);
    Heads heads{plan::operandNamed<kOp>(attention, "q"), plan::operandNamed<kOp>(attention, "k"),
                plan::operandNamed<kOp>(attention, "v")};
    if (levels.heads >= 0)
      for (ValueId *each : {&heads.q, &heads.k, &heads.v})
        *each = withAllPositions(*each, levels.heads);
    Op part = attention;
    part.group = attention.getFloat(Key::p) > 0 ? ranks_.groupOfHeads(levels) : kNoGroup;
    ValueId o = whole;
    if (levels.heads >= 0)
      o = plan::addValue(segment_, name_ + ".heads", typeOfOutput(heads));
    ValueId before = o; // output before sinks are added
    if (sink)
      before = plan::addValue(segment_, name_ + ".keys", typeOf(o));
    if (levels.ring >= 0)
      attendAround(part, heads, levels, before);
    else if (levels.all >= 0)
      attendToAll(part, heads, levels.all, before);
    else
      attendToWhole(part, heads, levels.heads, before);
    if (sink)
      addSinks(*sink, heads, levels.heads, o);
    if (levels.heads >= 0)
      withAllHeads(o, levels.heads, whole);
  }

  /// Adds sinks to the output `o` of the previous op, for the heads that the rank has.
  void addSinks(Op sink, const Heads &heads, int16_t group, ValueId o) {
    constexpr OpKind kOp = OpKind::AttentionSink;
    sink.operands[plan::operandIndex<kOp>("o")] = ops_.back().results[0];
    sink.operands[plan::operandIndex<kOp>("lse")] = ops_.back().results[1];
    if (sink.operands.size() > plan::operandIndex<kOp>("sink"))
      sink.group = group;
    sink.results = {o, addStats(heads.q, ".sinks")};
    ops_.push_back(std::move(sink));
  }

  /// Exchanges heads for positions, so that each rank computes some heads of whole sequences.
  void attendToWhole(Op attention, const Heads &heads, int16_t group, ValueId o) {
    attention.operands = {heads.q, heads.k, heads.v, docsOf(group), load_.results[batch::Samples]};
    attention.results = {o, plan::addValue(segment_, name_ + ".lse", typeOfStats(heads.q))};
    ops_.push_back(std::move(attention));
  }

  void attendToAll(const Op &attention, const Heads &heads, int16_t group, ValueId o) {
    Words own = wordsOf(kNoGroup);
    Keys keys{gathered(heads.k, group), gathered(heads.v, group), wordsOf(group)};
    part(attention, heads.q, own, keys, group, {o, addStats(heads.q, "")});
  }

  void attendAround(const Op &attention, const Heads &heads, const Levels &levels, ValueId o) {
    int64_t members = sizeOf(levels.ring);
    Words own = wordsOf(levels.heads);
    Keys keys{heads.k, heads.v, own};
    Result sum{};
    for (int64_t by = 0; by < members; ++by) {
      Keys next = keys;
      if (by + 1 < members)
        next = shifted(keys, levels, by + 1);
      bool isLast = by + 1 == members;
      Result each{isLast && by == 0 ? o : addOutput(heads, by, typeOf(o).dtype),
                  addStats(heads.q, fmt::format(".{}", by))};
      part(attention, heads.q, own, keys, levels.ring, each);
      sum = by == 0 ? each : joined(sum, each, heads.q, by, isLast ? o : kNone);
      keys = next;
    }
  }

  void part(Op attention, ValueId q, const Words &own, const Keys &keys, int16_t slices,
            const Result &result) {
    attention.kind = OpKind::AttentionPart;
    attention.operands = {q,
                          keys.k,
                          keys.v,
                          own.places,
                          keys.words.places,
                          own.docs,
                          keys.words.docs,
                          load_.results[batch::Samples]};
    attention.results = {result.o, result.lse};
    if (attention.getFloat(Key::p) > 0)
      attention.set(Key::positions, plan_.job.model.seqLength);
    if (attention.group < 0)
      attention.group = slices;
    attention.set(Key::slices, sizeOf(slices)).set(Key::by, keys.by);
    ops_.push_back(std::move(attention));
  }

  /// Joins two partial results. The sum is in fp32; the last join writes the value `o`, if it is
  /// given.
  Result joined(const Result &a, const Result &b, ValueId q, int64_t by, ValueId o) {
    Op join = make(OpKind::AttentionJoin, {a.o, a.lse, b.o, b.lse});
    if (o == kNone) {
      Type type = typeOf(b.o);
      type.dtype = DType::F32;
      o = plan::addValue(segment_, fmt::format("{}.sum.{}", name_, by), type);
    }
    Result sum{o, addStats(q, fmt::format(".sum.{}", by))};
    join.results = {sum.o, sum.lse};
    ops_.push_back(std::move(join));
    return sum;
  }

  static Type withType(Type type, DType dtype) {
    type.dtype = dtype;
    return type;
  }
  /// The type of the output o[B,S,N·E], given q[B,S,N,D] and v[B,S,G,E].
  Type typeOfOutput(const Heads &heads) const {
    const Type &type = typeOf(heads.q);
    int64_t channels = typeOf(heads.v).shape[3];
    return Type::of(type.dtype, {type.shape[0], type.shape[1], type.shape[2] * channels});
  }
  Type typeOfStats(ValueId q) const {
    const Type &type = typeOf(q);
    return Type::of(DType::F32, {type.shape[0], type.shape[2], type.shape[1]});
  }
  ValueId addOutput(const Heads &heads, int64_t by, DType dtype) {
    return plan::addValue(segment_, fmt::format("{}.{}", name_, by),
                          withType(typeOfOutput(heads), dtype));
  }
  ValueId addStats(ValueId q, const std::string &which) {
    return plan::addValue(segment_, name_ + ".lse" + which, typeOfStats(q));
  }

  // ---- exchanges of queries, keys, values and outputs ----

  Keys shifted(const Keys &keys, const Levels &levels, int64_t by) {
    auto shift = [&](ValueId value) {
      return emit(oneFurther(value, levels), nameAround(value, "ring", by), typeOf(value));
    };
    ValueId k = shift(keys.k), v = shift(keys.v);
    return {k, v, shiftedWords(levels, by), by};
  }

  Op oneFurther(ValueId value, const Levels &levels) const {
    Op op = make(OpKind::Shift, {value}, levels.ring);
    op.set(Key::by, int64_t{1});
    return op;
  }
  /// The name of a value in the ring, with the number of positions by which it was shifted.
  std::string nameAround(ValueId value, std::string_view ring, int64_t by) const {
    const std::string &name = nameOf(value);
    return by == 1 ? fmt::format("{}.{}.1", name, ring)
                   : fmt::format("{}.{}", name.substr(0, name.rfind('.')), by);
  }

  /// Gathers the keys or values of all positions, in the order of positions.
  ValueId gathered(ValueId value, int16_t group) {
    Type type = typeOf(value);
    type.shape[1] *= sizeOf(group);
    ValueId all = emit(make(OpKind::AllGather, {value}, group), nameOf(value) + ".all", type);
    return emit(moves(OpKind::MergeSlices, all, type.shape[0], sizeOf(group)),
                nameOf(value) + ".merged", type);
  }

  /// Exchanges x[B,S,N,D], which has all heads of a rank's positions, into some of the heads at all
  /// positions.
  ValueId withAllPositions(ValueId value, int16_t group) {
    const Type type = typeOf(value);
    int64_t members = sizeOf(group), batch = type.shape[0], rows = batch * type.shape[1];
    const std::string name = nameOf(value);
    ValueId parts = emit(moves(OpKind::Transpose, value, rows, members), name + ".parts", type);
    ValueId taken = emit(make(OpKind::AllToAll, {parts}, group), name + ".taken", type);
    Type all = Type::of(type.dtype,
                        {batch, type.shape[1] * members, type.shape[2] / members, type.shape[3]});
    return emit(moves(OpKind::MergeSlices, taken, batch, members), name + ".heads", all);
  }

  /// The inverse exchange, for o[B,S,N·D].
  void withAllHeads(ValueId value, int16_t group, ValueId to) {
    const Type type = typeOf(to);
    int64_t members = sizeOf(group), batch = type.shape[0], rows = batch * type.shape[1];
    Op slice = moves(OpKind::MergeSlices, value, batch, members);
    slice.set(Key::inverse, int64_t{1});
    ValueId slices = emit(std::move(slice), name_ + ".slices", type);
    ValueId taken = emit(make(OpKind::AllToAll, {slices}, group), name_ + ".taken", type);
    emitTo(to, moves(OpKind::Transpose, taken, members, rows));
  }

  // ---- positions and documents: once for all layers of a microbatch ----

  /// Positions and documents of the rows that a rank has after the exchange, in the order of
  /// members.
  Words wordsOf(int16_t group) { return {placesOf(group), docsOf(group)}; }
  ValueId placesOf(int16_t group) { return merged(load_.results[batch::Places], group); }
  ValueId docsOf(int16_t group) { return merged(load_.results[batch::Docs], group); }

  ValueId merged(ValueId value, int16_t group) {
    if (group < 0)
      return value;
    if (auto found = merged_.find({value, group}); found != merged_.end())
      return found->second;
    Type type = typeOf(value);
    type.shape[1] *= sizeOf(group);
    std::string name = nameOf(value) + "." + plan_.groups[static_cast<size_t>(group)].name;
    ValueId all = emitWord(make(OpKind::AllGather, {value}, group), name + ".all", type);
    return merged_[{value, group}] =
               emitWord(moves(OpKind::MergeSlices, all, type.shape[0], sizeOf(group)), name, type);
  }

  /// Positions and documents of the keys that have been shifted `by` positions around the ring.
  Words shiftedWords(const Levels &levels, int64_t by) {
    auto [found, isNew] = shifted_.try_emplace({levels.ring, by});
    if (!isNew)
      return found->second;
    Words before = by == 1 ? wordsOf(levels.heads) : shifted_.at({levels.ring, by - 1});
    auto shift = [&](ValueId value) {
      const std::string &ring = plan_.groups[static_cast<size_t>(levels.ring)].name;
      return emitWord(oneFurther(value, levels), nameAround(value, ring, by), typeOf(value));
    };
    return shifted_[{levels.ring, by}] = {shift(before.places), shift(before.docs)};
  }

  plan::Plan &plan_;
  ContextRanks &ranks_;
  Op load_;
  std::string name_; ///< name of the layer's output
  std::vector<Op> words_;
  std::map<std::pair<ValueId, int16_t>, ValueId> merged_;
  std::map<std::pair<int16_t, int64_t>, Words> shifted_;
};

} // namespace

void attendToSlices(plan::Plan &plan) {
  ContextRanks ranks(plan);
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        AttentionWriter(plan, ranks, segment).run();
}

} // namespace shardc::passes
