// Shards sequences over context-parallel ranks. A sequence has 2n equal chunks, and rank i has
// chunks i and 2n-1-i, so that all ranks see equally many keys under a causal mask. The feed writes
// only the rank's chunks. Everything else follows from the factors of ops: a result has the rows of
// the operand with the same factor, and an op that depends on the position along the factor gets
// the positions of tokens as an operand. A roll along the sequence needs tokens of other ranks:
// ranks gather whole sequences of tokens, and each takes its chunks of the rolled result.
#include <algorithm>
#include <map>
#include <set>

#include "compiler/passes/Allocator.h"
#include "compiler/passes/OpWriter.h"
#include "compiler/passes/Partition.h"
#include "runtime/base/BatchFields.h"
#include "runtime/base/Status.h"
#include "runtime/plan/FactorExtents.h"

namespace shardc::passes {
namespace {

using plan::FactorId;
using plan::FactorValue;

/// The group over which sequences are still to be sharded; -1 if there is none.
int16_t groupToCut(const plan::Plan &plan) {
  int16_t group = plan::groupOfKind(plan, plan::GroupKind::Context);
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const Op &op : segment.ops)
        if (op.kind == OpKind::BatchLoad)
          return op.group < 0 ? group : int16_t{-1};
  return -1;
}

class SequenceCutter : OpWriter {
public:
  SequenceCutter(plan::Plan &plan, plan::Role &role, plan::Segment &segment, int16_t group)
      : OpWriter(segment), plan_(plan), role_(role), group_(group), ranks_(plan.groupSize(group)),
        loads_(segment) {}

  void run() {
    rewrite([this](Op op) { cut(std::move(op)); });
  }

private:
  /// Changes one op and its results to the rank's slice. Which dimension is cut follows from the
  /// op's factors; ops that need all positions get them gathered or have a rule of their own.
  void cut(Op op) {
    if (plan::opInfo(op.kind).sum == plan::SumRole::Loads)
      return cutLoad(std::move(op));
    loads_.take(op, [&](ValueId load) {
      return emit(make(OpKind::AllReduce, {load}, group_), nameOf(load) + ".slices", typeOf(load),
                  plan::Purpose::Data);
    });
    if (op.kind == OpKind::Roll)
      return cutRoll(op);
    if (op.kind == OpKind::TokenCount && rolled_.contains(op.operands[0]))
      return countRolled(std::move(op));
    const plan::OpFactors &factors = plan::factorsOf(op);
    if (takesRows(op))
      return cutRows(std::move(op), factors);
    if (joinsOtherDims(op)) {
      shorten(op.results[0], 1);
      return ops_.push_back(std::move(op));
    }
    for (auto [factor, like] : factorsToCut(op, factors)) {
      if (isCounted(factors, factor))
        givePositions(op, factors, factor);
      for (size_t r = 0; r < op.results.size(); ++r) {
        const FactorValue &row = plan::resultOf(op, factors, r);
        int dim = plan::dimOf(row, isTransposed(op, row), typeOf(op.results[r]).rank, factor, like);
        if (dim >= 0)
          shorten(op.results[r], static_cast<uint8_t>(dim));
      }
    }
    ops_.push_back(std::move(op));
  }

  /// Whether the rows of an operand are the tokens of a slice, as for routers.
  bool takesRows(const Op &op) const {
    return std::ranges::any_of(op.operands, [&](ValueId operand) {
      if (cutDimOf(operand) >= 0 && plan::opInfo(op).takesOwnRows())
        return true;
      return cutDimOf(operand) == 0 && (typeOf(operand).rank == 2 || op.kind == OpKind::View);
    });
  }

  /// Whether the op is a view of all elements of [B,S,...] that changes only dimensions after the
  /// positions.
  bool joinsOtherDims(const Op &op) const {
    if (op.kind != OpKind::View || cutDimOf(op.operands[0]) != 1)
      return false;
    const Type &from = typeOf(op.operands[0]), &to = typeOf(op.results[0]);
    return to.rank > 2 && to.shape[0] == from.shape[0] && to.shape[1] == from.shape[1] * ranks_ &&
           to.numel() == from.numel() * ranks_;
  }

  void cutRows(Op op, const plan::OpFactors &factors) {
    divideBound(op, factors, ranks_);
    auto isDivided = [&](ValueId value) { return cutDimOf(value) >= 0; };
    checkRows(op, factors, isDivided);
    for (size_t r = 0; r < op.results.size(); ++r) {
      ValueId result = op.results[r];
      uint8_t rank = typeOf(result).rank;
      if (hasRowsOf(op, factors, r, isDivided)) // last dimension of [B,S], first of rows
        shorten(result, static_cast<uint8_t>(std::max(rank - 2, 0)));
      else if (plan::opInfo(op.kind).sum == plan::SumRole::CountsRows)
        loads_.add(result);
    }
    ops_.push_back(std::move(op));
  }

  /// A factor, and the dimension of an operand that it determines.
  struct Cut {
    FactorId factor;
    uint8_t dim;
  };

  /// The factors along which a rank has only a part of operands. Several may be a dimension of
  /// sequences: the positions of queries, and those of keys.
  std::vector<Cut> factorsToCut(const Op &op, const plan::OpFactors &factors) const {
    std::vector<Cut> cuts;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      int dim = cutDimOf(op.operands[i]);
      if (dim < 0)
        continue;
      const FactorValue &row = plan::operandOf(op, factors, i);
      FactorId factor = plan::factorAt(row, isTransposed(op, row), typeOf(op.operands[i]).rank,
                                       static_cast<uint8_t>(dim));
      SHARDC_CHECK(factor != plan::kNoFactor, "operand {} of '{}' is a part of the positions", i,
                   plan::opInfo(op.kind).name);
      // Ops that need all positions exchange them later, after heads were sharded as well.
      SHARDC_CHECK(!row.find(factor)->isNeededWhole || exchangesPositions(op),
                   "operand {} of '{}' is needed whole", i, plan::opInfo(op.kind).name);
      if (std::ranges::find(cuts, factor, &Cut::factor) == cuts.end())
        cuts.push_back({factor, static_cast<uint8_t>(dim)});
    }
    return cuts;
  }

  /// Whether `attendToSlices` rewrites the op for partial sequences.
  static bool exchangesPositions(const Op &op) {
    return plan::opInfo(op.kind).work.cost == plan::CostClass::Attention;
  }

  static bool isTransposed(const Op &op, const FactorValue &row) {
    return row.transposedBy && op.getBool(*row.transposedBy);
  }

  static bool isCounted(const plan::OpFactors &factors, FactorId factor) {
    return std::ranges::any_of(factors.operands(), [&](const FactorValue &row) {
      return row.has(factor) && row.find(factor)->isCounted;
    });
  }

  /// Gives the op the positions of the rank's tokens, for which it has an optional operand.
  void givePositions(Op &op, const plan::OpFactors &factors, FactorId factor) const {
    if (exchangesPositions(op))
      return;
    size_t next = op.operands.size();
    SHARDC_CHECK(next + 1 == factors.operandCount && factors.operand(next).has(factor),
                 "'{}' counts positions and takes none", plan::opInfo(op.kind).name);
    op.operands.push_back(places_);
  }

  int cutDimOf(ValueId value) const {
    return value < cutDims_.size() ? cutDims_[value] : int8_t{-1};
  }

  void shorten(ValueId value, uint8_t dim) {
    int64_t &extent = segment_.values[value].type.shape[dim];
    SHARDC_CHECK(extent % ranks_ == 0, "'{}' has {} positions for {} ranks",
                 segment_.values[value].name, extent, ranks_);
    extent /= ranks_;
    cutDims_.resize(segment_.values.size(), -1);
    cutDims_[value] = static_cast<int8_t>(dim);
  }

  void cutLoad(Op load) {
    for (size_t r = 0; r < load.results.size(); ++r)
      if (r != batch::Samples)
        shorten(load.results[r], 1);
    const Type tokens = segment_.values[load.results[batch::Tokens]].type;
    places_ = plan::addValue(segment_, "places", tokens, plan::Purpose::Data);
    load.results.push_back(places_);
    load.group = group_;
    for (const plan::Segment::Boundary &in : segment_.ins)
      if (in.value == load.operands[0]) {
        Type &feed = role_.cells[in.cell].type;
        feed.shape[1] = 6 * tokens.numel() + 2 * tokens.shape[0];
        segment_.values[in.value].type = feed;
      }
    ValueId mask = load.results[batch::Mask];
    ops_.push_back(std::move(load));
    if (segment_.kind == plan::SegmentKind::Train && !plan_.job.model.calculatePerTokenLoss)
      countAll(mask);
  }

  /// Appends an op with one result, which gets the purpose of the operand.
  ValueId emitLike(Op op, std::string name, const Type &type) {
    const plan::Purpose purpose = purposeOf(op.operands[0]);
    return emit(std::move(op), std::move(name), type, purpose);
  }
  Op merge(ValueId operand, int64_t samples, bool isInverse) const {
    Op op = make(OpKind::MergeSlices, {operand});
    op.set(Key::outer, samples).set(Key::inner, ranks_);
    if (isInverse)
      op.set(Key::inverse, int64_t{1});
    return op;
  }

  /// Gathers whole sequences of token data, once per value.
  ValueId gathered(ValueId value) {
    ValueId &whole = gathered_.try_emplace(value, kNone).first->second;
    if (whole != kNone)
      return whole;
    const std::string name = nameOf(value);
    Type type = typeOf(value);
    type.shape[1] *= ranks_;
    ValueId all = emitLike(make(OpKind::AllGather, {value}, group_), name + ".slices", type);
    return whole = emitLike(merge(all, type.shape[0], false), name + ".whole", type);
  }

  /// A roll shifts tokens across chunk boundaries, so it is computed on whole sequences, of which
  /// the rank then takes its slice.
  void cutRoll(Op roll) {
    const ValueId result = roll.results[0];
    const Type type = typeOf(result);
    const std::string name = nameOf(result);
    roll.operands[0] = gathered(roll.operands[0]);
    ValueId whole = emitLike(roll, name + ".whole", type);
    Type wholes = type;
    // If a slice is too short to begin at an aligned address, two copies of the sequences are
    // sliced together.
    if (type.bytes() / ranks_ % kPlaceAlign != 0) {
      wholes.shape[0] *= 2;
      Op pair = make(OpKind::Pack, {whole});
      pair.operands.push_back(emitLike(std::move(roll), name + ".again", type));
      whole = emitLike(std::move(pair), name + ".twice", wholes);
    }
    ValueId slices = emitLike(merge(whole, wholes.shape[0], true), name + ".slices", wholes);
    shorten(result, 1);
    rolled_.insert(result);
    Op own = make(OpKind::View, {slices}, group_);
    own.set(Key::coef, wholes.numel() / ranks_);
    emitTo(result, std::move(own));
  }

  /// The mean of the multi-token prediction losses is over whole sequences, so their counts are
  /// summed over the slices.
  void countRolled(Op count) {
    const ValueId result = count.results[0];
    ValueId slice = emitLike(std::move(count), nameOf(result) + ".slice", typeOf(result));
    emitTo(result, make(OpKind::AllReduce, {slice}, group_));
  }

  /// The mean of a microbatch's losses is over whole sequences, so their tokens are counted over
  /// all slices.
  void countAll(ValueId mask) {
    Type one = Type::of(DType::F32, {1});
    ValueId count = emit(make(OpKind::TokenCount, {mask}), "count.slice", one);
    emit(make(OpKind::AllReduce, {count}, group_), "count.all", one);
  }

  plan::Plan &plan_;
  plan::Role &role_;
  int16_t group_;
  int64_t ranks_;
  ValueId places_ = kNone;      ///< positions of tokens in their sequences
  std::vector<int8_t> cutDims_; ///< by value: the sharded dimension, or -1
  OwnLoads loads_;
  std::map<ValueId, ValueId> gathered_; ///< by value: the same data for whole sequences
  std::set<ValueId> rolled_;            ///< this rank's slices of rolled values
};

} // namespace

bool cutSequences(plan::Plan &plan) {
  int16_t group = groupToCut(plan);
  if (group < 0)
    return false;
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body)
        SequenceCutter(plan, role, segment, group).run();
  return true;
}

} // namespace shardc::passes
