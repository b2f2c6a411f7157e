// Divides experts over ranks (DivideExperts.cpp), shards sequences over context-parallel ranks
// (SequenceSlices.cpp, ContextAttention.cpp), and layers over tensor-parallel ranks. The parameter
// table says which dimension of each weight is sharded; the ops follow by their factors
// (runtime/plan/Factors.h): whole shapes become those of one rank, with collectives between
// products. A factor of operands and results is sharded in all of them; a factor that the results
// lack makes them partial sums. For products this is Megatron-LM's arrangement: a column-parallel
// product reads the whole operand, a row-parallel product computes a partial sum.
//
// With sequence parallelism, values between a sum and the next column-parallel product are sharded
// by rows of batch × sequence. Such a shard is contiguous, which a part of each sequence would not
// be. Rows may also be split into several pieces, each of which is sharded (RowPieces.cpp). Pass
// `backward` derives the collectives of gradients from those that this file writes.
#include <algorithm>
#include <numeric>
#include <optional>

#include "compiler/passes/OpWriter.h"
#include "compiler/passes/Partition.h"
#include "compiler/passes/Passes.h"
#include "runtime/base/Status.h"
#include "runtime/plan/FactorExtents.h"

namespace shardc::passes {
namespace {

using plan::FactorId;
using plan::FactorValue;
using plan::kNoFactor;
using plan::OpFactors;

/// The part of a value that a rank has.
enum class Part : uint8_t {
  Whole,   ///< all of it, equal on all ranks
  Rows,    ///< a shard of the rows of batch × sequence
  Columns, ///< a shard of one dimension: of the columns, or of the heads
};

/// The sharded dimension of a value, and the rank's part of it.
struct CutDim {
  uint8_t dim = 0;
  int64_t part = 1, whole = 1;
};

/// Alignment of a parameter's start in elements: 16 bytes in 16-bit types.
constexpr int64_t kParamAlign = 8;

/// The group of tensor-parallel ranks, if parameters are still to be sharded over it; otherwise -1.
int16_t groupToCut(const plan::Plan &plan) {
  int16_t group = plan::groupToCutOf(plan, plan::GroupKind::Tensor);
  auto isToCut = [&](const plan::Param &param) {
    return param.isUncut() &&
           std::ranges::find(param.splits, group, &plan::Split::group) != param.splits.end();
  };
  return std::ranges::any_of(plan.params, isToCut) ? group : int16_t{-1};
}

/// Of `ranks` tensor-parallel ranks, the number that have the same key/value head.
int64_t ranksOfKey(const plan::Plan &plan, int64_t ranks) {
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const Op &op : segment.ops)
        if (op.kind == OpKind::SplitQkv)
          return std::max<int64_t>(ranks / op.getInt(Key::num_groups), 1);
  return 1;
}

/// Groups of ranks with the same key/value heads, and with different ones.
struct KeyGroups {
  int16_t same, different;
};

class Partitioner : OpWriter {
public:
  /// `isCut`: for each parameter, whether it is sharded over the group. `keys`: the ranks that have
  /// the same key/value heads, and the ranks that have none in common; both are -1 if each head is
  /// on one rank only. Rows are split into `pieces` pieces.
  Partitioner(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment, int16_t group,
              const std::vector<bool> &isCut, const KeyGroups &keys, int64_t pieces)
      : OpWriter(segment), plan_(plan), group_(group), sharedKeys_(keys.same),
        differentKeys_(keys.different), ranks_(plan.groupSize(group)), pieceCount_(pieces),
        byRows_(plan.job.model.sequenceParallel), params_(paramsIn(plan, role, segment)),
        isCut_(isCut), known_(segment.values.size()), loads_(segment) {
    for (ValueId value = 0; value < params_.size(); ++value)
      if (params_[value] != nullptr)
        segment.values[value].type = params_[value]->type;
  }

  void run() {
    rewrite([this](Op op) { cut(std::move(op)); });
    if (pieceCount_ > 1) // pieces replace the values that are sharded by rows
      plan::dropUnusedValues(segment_);
  }

private:
  void cut(Op op) {
    loads_.take(op, [this](ValueId own) { return sumOfLoads(own); });
    if (op.kind == OpKind::View && partOf(op.operands[0]) == Part::Columns)
      return cutReshaped(std::move(op));
    const OpFactors &factors = plan::factorsOf(op);
    if (std::optional<Cut> cut = cutOf(op, factors)) {
      if (needsWhole(op, factors, cut->factor))
        return op.kind == OpKind::RmsNorm ? cutNorm(std::move(op)) : cutLoss(std::move(op));
      if (factors.isSummed(cut->factor, 0))
        return cutSummed(std::move(op), factors, *cut);
      return cutAlong(std::move(op), factors, *cut);
    }
    if (byRows_ && looksUpParam(op, factors))
      return divideLookup(std::move(op));
    if (std::ranges::any_of(op.operands,
                            [&](ValueId value) { return partOf(value) == Part::Rows; }))
      return cutRows(std::move(op), factors);
    ops_.push_back(std::move(op));
  }

  // ---- factors ----

  /// A factor of an op that is sharded, and the operand's dimension that determines how.
  struct Cut {
    FactorId factor;
    CutDim extent;
  };

  static bool isTransposed(const Op &op, const FactorValue &row) {
    return row.transposedBy && op.getBool(*row.transposedBy);
  }

  /// The sharded factor of the op's activations; if they are not sharded, that of a parameter.
  std::optional<Cut> cutOf(const Op &op, const OpFactors &factors) const {
    std::optional<Cut> ofParam;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      ValueId value = op.operands[i];
      std::optional<CutDim> dim = cutDimOf(value);
      if (!dim || (isParam(value) && ofParam))
        continue;
      const FactorValue &row = plan::operandOf(op, factors, i);
      Cut cut{plan::factorAt(row, isTransposed(op, row), typeOf(value).rank, dim->dim), *dim};
      SHARDC_CHECK(cut.factor != kNoFactor, "'{}' takes a part of '{}'", plan::opInfo(op.kind).name,
                   nameOf(value));
      if (!isParam(value))
        return cut;
      ofParam = cut;
    }
    return ofParam;
  }

  std::optional<CutDim> cutDimOf(ValueId value) const {
    if (partOf(value) == Part::Columns)
      return known_[value].cut;
    if (const plan::Split *split = splitOf(value))
      return CutDim{split->dim, 1, plan_.groupSize(split->group)};
    return std::nullopt;
  }

  static bool needsWhole(const Op &op, const OpFactors &factors, FactorId factor) {
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (const auto *word = plan::operandOf(op, factors, i).find(factor);
          word != nullptr && (word->isNeededWhole || word->form == plan::FactorAtom::Joined))
        return true;
    return false;
  }

  /// Whether the op needs the rank's index to know where its part along the factor begins: because
  /// labels or ids refer to positions along it, or because random numbers depend on these.
  static bool takesIndex(const Op &op, const OpFactors &factors, FactorId factor) {
    bool isReported = false, isPointedInto = false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const FactorValue &row = plan::operandOf(op, factors, i);
      const plan::FactorAtom *word = row.find(factor);
      isReported |= word != nullptr && word->isKnownByIndex;
      isPointedInto |= row.pointsInto == factor;
    }
    return isReported && (isPointedInto || op.getFloat(Key::p) > 0 || op.getFloat(Key::jitter) > 0);
  }

  bool looksUpParam(const Op &op, const OpFactors &factors) const {
    for (const FactorValue &row : factors.operands())
      for (size_t i = 0; i < op.operands.size() && row.pointsInto != kNoFactor; ++i)
        if (isParam(op.operands[i]) && factors.operand(i).has(row.pointsInto))
          return true;
    return false;
  }

  // ---- values ----

  /// What the pass knows of a value. Values that it adds have an entry once one is asked for.
  struct Known {
    Part part = Part::Whole;
    CutDim cut;                               ///< with Part::Columns
    std::vector<ValueId> pieces;              ///< with Part::Rows
    ValueId shared = kNone, gathered = kNone; ///< the view and the gathered rows, if they exist
  };
  Known &knownOf(ValueId value) {
    if (value >= known_.size())
      known_.resize(segment_.values.size());
    return known_[value];
  }

  Part partOf(ValueId value) const {
    return value < known_.size() ? known_[value].part : Part::Whole;
  }
  /// How the parameter is sharded; null for activations and for parameters that each rank has
  /// whole.
  const plan::Split *splitOf(ValueId value) const {
    const plan::Param *param = value < params_.size() ? params_[value] : nullptr;
    if (param != nullptr && isCut_[static_cast<size_t>(param - plan_.params.data())])
      for (const plan::Split &split : param->splits)
        if (split.group == group_ || split.group == differentKeys_)
          return &split;
    return nullptr;
  }
  bool isParam(ValueId value) const { return value < params_.size() && params_[value] != nullptr; }
  /// Whether the value is a parameter that is replicated over the group. Parameters of experts are
  /// replicated over other groups.
  bool isCopied(ValueId value, int16_t group) const {
    return isParam(value) &&
           std::ranges::find(params_[value]->copies, group) != params_[value]->copies.end();
  }

  static int64_t rowsOf(const Type &type) {
    return type.numel() / std::max<int64_t>(type.shape[type.rank - 1u], 1);
  }
  /// The type of one piece of a rank's rows.
  Type rowsOfRank(const Type &type) const {
    return Type::of(type.dtype, {rowsOf(type) / ranks_ / pieceCount_, type.shape[type.rank - 1u]});
  }
  /// Marks a dimension of the value as sharded in the same proportion as `like`.
  void becomeCut(ValueId value, uint8_t dim, const CutDim &like) {
    int64_t &extent = segment_.values[value].type.shape[dim];
    SHARDC_CHECK(extent * like.part % like.whole == 0, "'{}' has {} columns for {} ranks",
                 nameOf(value), extent, ranks_);
    Known &known = knownOf(value);
    known.part = Part::Columns;
    known.cut = {dim, extent * like.part / like.whole, extent};
    extent = known.cut.part;
  }

  /// Marks a value as sharded by rows. Returns its pieces, which have this type.
  std::vector<ValueId> becomeRows(ValueId value, const Type &type) {
    std::vector<ValueId> pieces;
    if (pieceCount_ == 1) {
      segment_.values[value].type = type;
      pieces = {value};
    }
    while (std::ssize(pieces) < pieceCount_)
      pieces.push_back(
          plan::addValue(segment_, fmt::format("{}.{}", nameOf(value), pieces.size()), type));
    knownOf(value).part = Part::Rows;
    return knownOf(value).pieces = std::move(pieces);
  }

  // ---- ops between ranks ----

  /// A collective without a channel. Pass InsertCollectives chooses it, when all collectives of a
  /// step are known.
  Op collective(OpKind kind, ValueId operand) const { return make(kind, {operand}, group_); }

  /// A view of a whole value for ops of `group` that compute only a part of its gradient. A value
  /// has at most one.
  ValueId shared(ValueId value, int16_t group) {
    if (knownOf(value).shared == kNone)
      knownOf(value).shared = emitShared(value, group, plan::Purpose::Activations);
    return knownOf(value).shared;
  }

  /// Gathers all rows of a value that is sharded by rows.
  ValueId gathered(ValueId value) {
    if (known_[value].gathered != kNone)
      return known_[value].gathered;
    Op pack = make(OpKind::Pack, {});
    const std::string name = nameOf(value) + ".all";
    Type type = typeOf(known_[value].pieces.front());
    type.shape[0] *= ranks_;
    for (ValueId piece : std::vector(known_[value].pieces))
      pack.operands.push_back(emit(collective(OpKind::AllGather, piece),
                                   pieceCount_ == 1 ? name : nameOf(piece) + ".all", type));
    if (pieceCount_ == 1)
      return known_[value].gathered = pack.operands[0];
    type.shape[0] *= pieceCount_;
    return known_[value].gathered = emit(std::move(pack), name, type);
  }

  /// The operand of a column-parallel product: the value with all rows, shared by the group.
  ValueId wholeOf(ValueId value) {
    SHARDC_CHECK(partOf(value) != Part::Columns, "'{}' is cut by columns", nameOf(value));
    return partOf(value) == Part::Rows ? gathered(value) : shared(value, group_);
  }

  /// Appends an op whose result is a partial sum, and the sum over ranks, which has the name of the
  /// result.
  void appendSummed(Op op) {
    ValueId sum = op.results[0];
    Type type = typeOf(sum);
    ValueId part = emit(std::move(op), nameOf(sum) + ".part", type);
    if (byRows_ && type.rank > 1) // otherwise it is of a weight
      return scatter(part, sum);
    emitTo(sum, collective(OpKind::AllReduce, part));
  }

  /// Gives each rank its rows of the sum, for each piece.
  void scatter(ValueId part, ValueId sum) {
    const Type type = typeOf(part);
    const std::vector<ValueId> pieces = becomeRows(sum, rowsOfRank(type));
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      ValueId rows = pieceCount_ == 1 ? part : rowsOfPiece(part, static_cast<int64_t>(piece));
      emitTo(pieces[piece], collective(OpKind::ReduceScatter, rows));
    }
  }

  /// Returns rows number `piece` of a value that is whole on each rank: the rows that all ranks
  /// together have in that piece.
  ValueId rowsOfPiece(ValueId value, int64_t piece) {
    const Type type = typeOf(value);
    Type rows = Type::of(type.dtype, {rowsOf(type) / pieceCount_, type.shape[type.rank - 1u]});
    Op view = make(OpKind::View, {value});
    view.set(Key::offset, piece * rows.numel());
    return emit(std::move(view), fmt::format("{}.{}", nameOf(value), piece), rows);
  }

  // ---- ops ----

  /// Looks up rows of a whole table for this rank's part of the ids.
  void divideLookup(Op op) {
    divideIds(op.operands[0]);
    op.operands[1] = shared(op.operands[1], group_);
    becomeRows(op.results[0], rowsOfRank(typeOf(op.results[0])));
    pushPieces(op);
  }

  /// Adds views of this rank's part of a value with one element per position.
  void divideIds(ValueId ids) {
    if (!knownOf(ids).pieces.empty())
      return;
    std::vector<ValueId> pieces;
    int64_t rows = typeOf(ids).numel() / ranks_ / pieceCount_;
    for (int64_t piece = 0; piece < pieceCount_; ++piece) {
      Op view = make(OpKind::View, {ids}, group_);
      view.set(Key::offset, piece * rows * ranks_).set(Key::coef, rows);
      std::string name = nameOf(ids) + ".rows";
      if (pieceCount_ > 1)
        name += fmt::format(".{}", piece);
      pieces.push_back(emit(std::move(view), std::move(name), Type::of(typeOf(ids).dtype, {rows}),
                            purposeOf(ids)));
    }
    knownOf(ids).pieces = std::move(pieces);
  }

  /// Appends the op once for each piece of its operands and results.
  void pushPieces(const Op &op) {
    for (size_t piece = 0; piece < static_cast<size_t>(pieceCount_); ++piece) {
      Op own = op;
      for (std::vector<ValueId> *values : {&own.operands, &own.results})
        for (ValueId &value : *values)
          if (const auto &pieces = knownOf(value).pieces; !pieces.empty())
            value = pieces[piece];
      ops_.push_back(std::move(own));
    }
  }

  /// Shards an op along a factor that it sums over, so that its results are partial sums.
  void cutSummed(Op op, const OpFactors &factors, const Cut &cut) {
    std::optional<size_t> term; // the operand that must be added once
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const FactorValue &row = plan::operandOf(op, factors, i);
      SHARDC_CHECK(!row.has(cut.factor) || cutDimOf(op.operands[i]), "'{}' is not cut",
                   nameOf(op.operands[i]));
      if (row.isAddedOnce)
        term = i;
    }
    if (takesIndex(op, factors, cut.factor))
      op.group = group_;
    if (!term)
      return appendSummed(std::move(op));
    // A bias must be added once, so it is added after the sum over ranks.
    ValueId bias = op.operands[*term], result = op.results[0];
    op.operands.resize(*term);
    ValueId product = plan::addValue(segment_, nameOf(result) + ".product", typeOf(result));
    op.results = {product};
    appendSummed(std::move(op));
    Op add = make(OpKind::BiasAdd, {product, bias});
    add.results = {result};
    this->cut(std::move(add));
  }

  /// Rewrites the op to compute this rank's part of the factor.
  void cutAlong(Op op, const OpFactors &factors, const Cut &cut) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      ValueId &operand = op.operands[i];
      if (const auto *word = plan::operandOf(op, factors, i).find(cut.factor))
        SHARDC_CHECK(cutDimOf(operand) && !word->isCounted, "'{}' is not cut, or counted along",
                     nameOf(operand));
      else if (hasGradient(operand))
        operand = wholeOf(operand);
    }
    if (hasSharesOfOther(factors, cut.factor))
      return cutShares(std::move(op));
    if (takesIndex(op, factors, cut.factor))
      op.group = group_;
    // The attribute with the factor's extent is divided as well. An extent of 1, a single group,
    // stays 1: ranks then have parts of the rows of each unit.
    if (auto extent = factors.attrOf[static_cast<size_t>(cut.factor)])
      op.set(*extent, std::max<int64_t>(op.getInt(*extent) / ranks_, 1));
    for (size_t r = 0; r < op.results.size(); ++r) {
      const FactorValue &row = plan::resultOf(op, factors, r);
      int dim = plan::dimOf(row, isTransposed(op, row), typeOf(op.results[r]).rank, cut.factor,
                            cut.extent.dim);
      SHARDC_CHECK(dim >= 0, "'{}' has no part of the columns", nameOf(op.results[r]));
      becomeCut(op.results[r], static_cast<uint8_t>(dim), cut.extent);
    }
    ops_.push_back(std::move(op));
  }

  bool hasGradient(ValueId value) const {
    DType type = typeOf(value).dtype;
    return type == DType::F32 || type == DType::BF16 || type == DType::F16;
  }

  /// Whether a factor of the results is divided over the op's group, other than the sharded factor
  /// itself.
  static bool hasSharesOfOther(const OpFactors &factors, plan::FactorId cut) {
    for (const FactorValue &row : factors.results())
      for (const plan::FactorAtom &word : row.words())
        if (word.isShare && word.factor != cut)
          return true;
    return false;
  }

  /// Rewrites an op to work on the rank's own rows.
  void cutRows(Op op, const OpFactors &factors) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const FactorValue &row = plan::operandOf(op, factors, i);
      ValueId &operand = op.operands[i];
      if (isCopied(operand, group_))
        operand = shared(operand, group_);
      else if (partOf(operand) == Part::Rows)
        SHARDC_CHECK(row.dimCount <= 2, "'{}' takes '{}' of a part of the rows",
                     plan::opInfo(op.kind).name, nameOf(operand));
      if (row.atomCount > 0 && row.atoms[0].isInSharedDim)
        op.group = group_; // the result depends on the position of a row among all rows
    }
    divideBound(op, factors, ranks_);
    auto isDivided = [&](ValueId value) { return partOf(value) == Part::Rows; };
    checkRows(op, factors, isDivided);
    for (size_t r = 0; r < op.results.size(); ++r) {
      const Type type = typeOf(op.results[r]);
      if (hasRowsOf(op, factors, r, isDivided))
        becomeRows(op.results[r], type.rank == 1
                                      ? Type::of(type.dtype, {type.numel() / ranks_ / pieceCount_})
                                      : rowsOfRank(type));
      else if (plan::opInfo(op.kind).sum == plan::SumRole::CountsRows)
        loads_.add(op.results[r]);
    }
    pushPieces(op);
  }

  ValueId sumOfLoads(ValueId own) {
    return emit(collective(OpKind::AllReduce, own), nameOf(own) + ".summed", typeOf(own),
                plan::Purpose::Data);
  }

  /// Splits QKV rows into heads. If there are fewer key/value heads than ranks, several ranks share
  /// a head. The row of a rank then has parts of that head, of its own queries and of queries of
  /// other ranks, so these ranks gather the row, and each takes the heads that it needs.
  void cutShares(Op op) {
    int64_t groups = op.getInt(Key::num_groups);
    op.set(Key::num_heads, op.getInt(Key::num_heads) / ranks_);
    op.set(Key::num_groups, std::max<int64_t>(groups / ranks_, 1));
    if (groups < ranks_) {
      op.group = sharedKeys_;
      op.operands[0] = allColumns(op.operands[0], sharedKeys_);
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      int64_t heads = op.getInt(r == 0 ? Key::num_heads : Key::num_groups);
      constexpr uint8_t kHeads = 2; // the heads' dimension
      becomeCut(op.results[r], kHeads, {kHeads, heads, typeOf(op.results[r]).shape[kHeads]});
    }
    ops_.push_back(std::move(op));
  }

  /// Gathers the columns of the group's ranks, in each row.
  ValueId allColumns(ValueId value, int16_t group) {
    int64_t members = plan_.groupSize(group), rows = rowsOf(typeOf(value));
    Type all = typeOf(value);
    all.shape[0] *= members;
    ValueId parts = emit(make(OpKind::AllGather, {value}, group), nameOf(value) + ".parts", all);
    Op join = make(OpKind::Transpose, {parts});
    join.set(Key::outer, members).set(Key::inner, rows);
    all.shape[0] /= members, all.shape[all.rank - 1u] *= members;
    return emit(std::move(join), nameOf(value) + ".joined", all);
  }

  /// Rewrites a reshape. The sharded dimension must begin at the same stride, so that columns stay
  /// where they are.
  void cutReshaped(Op op) {
    const CutDim cut = knownOf(op.operands[0]).cut;
    const Type &from = typeOf(op.operands[0]), &to = typeOf(op.results[0]);
    auto outer = [](const Type &type, uint8_t dim) {
      return std::accumulate(type.shape.begin(), type.shape.begin() + dim, int64_t{1},
                             std::multiplies<>());
    };
    uint8_t dim = 0;
    while (dim + 1 < to.rank && outer(to, dim) < outer(from, cut.dim))
      ++dim;
    SHARDC_CHECK(outer(to, dim) == outer(from, cut.dim), "'{}' has columns of '{}' elsewhere",
                 nameOf(op.results[0]), nameOf(op.operands[0]));
    becomeCut(op.results[0], dim, cut);
    ops_.push_back(std::move(op));
  }

  /// The norm needs the squares of all columns, so ranks sum their squares. If several ranks have
  /// the same columns, both the sum and its divisor count them once per rank.
  void cutNorm(Op op) {
    constexpr OpKind kKind = OpKind::RmsNorm;
    ValueId x = plan::operandNamed<kKind>(op, "x"), w = plan::operandNamed<kKind>(op, "w"),
            y = plan::resultNamed<kKind>(op, "y");
    const Type own = typeOf(x);
    int64_t columns = own.shape[own.rank - 1u];
    const Type rows = Type::of(DType::F32, {rowsOf(own), 1});
    Op squares = make(OpKind::DotRows, {x, x});
    squares.set(Key::scale, 1.0 / static_cast<double>(columns * ranks_));
    if (sharedKeys_ >= 0 && isCopied(w, sharedKeys_))
      w = shared(w, sharedKeys_);
    ValueId part = emit(std::move(squares), nameOf(y) + ".squares.part", rows);
    ValueId sum = emit(collective(OpKind::AllReduce, part), nameOf(y) + ".squares", rows);
    op.kind = OpKind::RmsNormPart;
    op.operands = {x, w, sum};
    op.results = {y};
    const CutDim cut = knownOf(x).cut;
    becomeCut(y, cut.dim, cut);
    ops_.push_back(std::move(op));
  }

  /// The loss needs all columns of the logits. Instead of logits, ranks gather three statistics of
  /// each row.
  void cutLoss(Op op) {
    SHARDC_CHECK(op.kind == OpKind::CrossEntropy, "'{}' needs all of what ranks have parts of",
                 plan::opInfo(op.kind).name);
    ValueId logits = op.operands[0];
    constexpr int64_t kStatistics = 3;
    const std::string name = nameOf(op.results[0]);
    int64_t rows = rowsOf(typeOf(logits));
    Op stats = make(OpKind::VocabStats, {logits, op.operands[1]}, group_);
    stats.set(Key::valid_cols, op.getInt(Key::valid_cols));
    stats.set(Key::soft_cap, op.getFloat(Key::soft_cap));
    ValueId own =
        emit(std::move(stats), name + ".stats", Type::of(DType::F32, {kStatistics, rows}));
    ValueId all = emit(collective(OpKind::AllGather, own), name + ".stats.all",
                       Type::of(DType::F32, {kStatistics * ranks_, rows}));
    op.kind = OpKind::VocabLoss;
    op.operands = {all, op.operands[2]};
    ops_.push_back(std::move(op));
  }

  const plan::Plan &plan_;
  int16_t group_, sharedKeys_, differentKeys_;
  int64_t ranks_;
  int64_t pieceCount_;                      ///< of rows
  bool byRows_;                             ///< whether values between products are sharded by rows
  std::vector<const plan::Param *> params_; ///< by value: the parameter that it holds
  const std::vector<bool> &isCut_;          ///< by parameter
  std::vector<Known> known_;                ///< by value
  OwnLoads loads_;
};

} // namespace

std::vector<const plan::Param *> paramsIn(const plan::Plan &plan, const plan::Role &role,
                                          const plan::Segment &segment) {
  std::vector<const plan::Param *> params(segment.values.size(), nullptr);
  for (const plan::Segment::Boundary &in : segment.ins)
    if (const plan::Cell &cell = role.cells[in.cell]; cell.kind == plan::CellKind::Param)
      params[in.value] = &plan.params[static_cast<size_t>(cell.of)];
  return params;
}

std::vector<bool> cutParams(plan::Plan &plan, bool areStacked) {
  std::vector<bool> isCut;
  for (plan::Block &block : plan.blocks)
    block.numel = 0;
  for (plan::Param &param : plan.params) {
    isCut.push_back(param.isUncut() && param.isStacked() == areStacked);
    if (isCut.back()) {
      param.whole = param.type;
      for (const plan::Split &split : param.splits) {
        param.type.shape[split.dim] /= plan.groupSize(split.group);
        if (areStacked && split.dim > 1)
          param.stackedRow /= plan.groupSize(split.group);
      }
    }
    plan::Block &block = plan.blocks[static_cast<size_t>(param.block)];
    param.offset = block.numel;
    block.numel = (block.numel + param.type.numel() + kParamAlign - 1) / kParamAlign * kParamAlign;
    block.shard = block.stateShard = block.numel;
  }
  for (plan::Role &role : plan.roles)
    for (plan::Cell &cell : role.cells)
      if (cell.kind == plan::CellKind::Param)
        cell.type = plan.params[static_cast<size_t>(cell.of)].type;
  return isCut;
}

void runPartition(plan::Plan &plan, Notes &) {
  divideExperts(plan);
  // Attention on slices is rewritten last, with the heads that each rank then has.
  bool hasSlices = cutSequences(plan);
  if (int16_t group = groupToCut(plan); group >= 0) {
    const std::vector<bool> isCut = cutParams(plan, /*areStacked=*/false);
    int64_t alike = ranksOfKey(plan, plan.groupSize(group));
    const KeyGroups keys = {plan::innerGroupOf(plan, group, alike),
                            plan::outerGroupOf(plan, group, alike)};
    int64_t pieces = choosePieces(plan, group);
    plan.job.model.tpCommOverlap = pieces > 1; // the job must describe the plan that was made
    for (plan::Role &role : plan.roles)
      for (plan::Segment &segment : role.segments)
        if (segment.body)
          Partitioner(plan, role, segment, group, isCut, keys, pieces).run();
  }
  if (hasSlices)
    attendToSlices(plan);
}

} // namespace shardc::passes
