// Tracks which elements of a parameter a value contains, and three consequences. Partial sums: some
// ops sum over a dimension of which each rank has only a part, such as a product over a split
// dimension of its weight. Their results stay partial until an all_reduce or reduce_scatter adds
// them. Only linear ops may read partial sums: views, packs, joins, casts, and sums with other
// partial sums. Columns and heads: an op that selects a part by an index must use the index along
// the axes over which ranks have different ones. Scales: an op must use an 8-bit factor with the
// scale with which it was quantised, by the same op or as a stored weight.
#include <algorithm>
#include <optional>

#include "runtime/base/Float8.h"
#include "runtime/plan/WeightScales.h"
#include "runtime/verify/VerifyFlow.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

using Key = AttrKey;

/// Elements of a block of weights, or of a parameter that is not in a block yet.
struct Elements {
  int32_t block = -1;
  int64_t begin = 0;
  int32_t param = -1;
  bool isTransposed = false; ///< a transposed matrix
  bool isStored = false;     ///< in 8 bits, as a cell stores them

  bool operator==(const Elements &) const = default;
};

/// A scale, by the op that quantised a value with it and the index of the result.
struct ScaleMade {
  uint32_t role, segment, op;
  int result;
  auto operator<=>(const ScaleMade &) const = default;
};

/// Operand index of the counts of grouped products and their gradients.
constexpr size_t kCounts = operandIndex<OpKind::GroupedMatMul>("counts");
static_assert(kCounts == operandIndex<OpKind::GroupedMatMulScaled>("counts") &&
              kCounts == operandIndex<OpKind::GroupedMatMulBias>("counts") &&
              kCounts == operandIndex<OpKind::GroupedBias>("counts") &&
              kCounts == operandIndex<OpKind::GroupedBiasDot>("counts") &&
              kCounts == operandIndex<OpKind::GroupedMatMulBwd>("counts") &&
              kCounts == operandIndex<OpKind::GroupedMatMulBwdSquares>("counts"));

constexpr size_t kMore = operandIndex<OpKind::MatMulAdd>("more");

/// Number of factors of `matmul_scaled`. The scale of a factor is this many operands after it.
constexpr size_t kFactors = operandIndex<OpKind::MatMulScaled>("ascale");
static_assert(kFactors == 2 && operandIndex<OpKind::MatMulScaled>("bscale") == kFactors + 1);

/// Rows in the scales of stored weights: the first one, and by how many rows it moves with the
/// index along these axes.
struct ScaleRows {
  int64_t first = 0, step = 0;
  Axes along = 0;
  bool operator==(const ScaleRows &) const = default;
};

struct PartState {
  Axes parts = 0;       ///< axes over which the value is still a partial sum
  bool isKnown = false; ///< `parts` is complete: a product with a weight, or a sum over columns
  Elements elements;
  std::optional<Axes> columns; ///< axes along which ranks have different columns; none: unknown
  int16_t columnsBy = -1;      ///< the group whose index selects the columns after an exchange
  /// Possible scales: the value is one of them, or was quantised with one of them. Sorted; empty if
  /// unknown.
  std::vector<ScaleMade> scales;
  bool isLeft = false; ///< a segment has stored the value and its scale in buffers
  std::optional<ScaleRows> rows;

  bool operator==(const PartState &) const = default;

  void join(const PartState &more) {
    parts |= more.parts;
    isKnown &= more.isKnown;
    if (elements != more.elements)
      elements = {};
    if (columns != more.columns)
      columns = std::nullopt;
    if (columnsBy != more.columnsBy)
      columnsBy = -1;
    if (rows != more.rows)
      rows = std::nullopt;
    joinScales(more);
  }

private:
  void joinScales(const PartState &more) {
    isLeft &= more.isLeft;
    if (scales == more.scales)
      return;
    std::vector<ScaleMade> all;
    if (!scales.empty() && !more.scales.empty())
      std::ranges::set_union(scales, more.scales, std::back_inserter(all));
    scales = std::move(all);
  }
};

/// Whether a grouped product or its gradient uses amaxes over the groups of rows of all members.
bool isByAmaxes(const Op &op) {
  return op.getInt(Key::fp8_recipe) == static_cast<int64_t>(Fp8Factors::Delayed);
}

/// Whether ranks have parts of parameters, or ops select a part by an index.
bool hasParts(const Plan &plan) {
  auto isPart = [](const Op &op) {
    bool dropsHeads = opInfo(op.kind).queries >= 0 && op.getFloat(Key::p) > 0;
    return op.group >= 0 && (dropsHeads || isByAmaxes(op) || op.kind == OpKind::Embedding ||
                             op.kind == OpKind::EmbeddingBwd || op.kind == OpKind::VocabStats ||
                             op.kind == OpKind::CrossEntropyBwd);
  };
  return std::ranges::any_of(plan.params,
                             [](const Param &param) { return !param.splits.empty(); }) ||
         hasOp(plan, isPart);
}

class PartDomain {
public:
  using State = PartState;
  using Values = SegmentValues<PartState>;
  /// A product with a part of a weight is a partial sum, even if nothing is known of its other
  /// factor.
  static constexpr bool kFollowsAll = true;

  explicit PartDomain(Inspection &inspection)
      : inspection_(inspection), plan_(inspection.plan()), hasParts_(hasParts(plan_)),
        hasScales_(hasOp(plan_, [](const Op &op) {
          return op.kind == OpKind::MatMulScaled || op.kind == OpKind::GroupedMatMulScaled;
        })) {
    for (const Param &param : plan_.params)
      splits_ |= splitAxesOf(plan_, param);
  }

  bool isNeeded() const { return hasParts_ || hasScales_; }

  State loaded(const Role &, const Cell &cell) const {
    State state;
    if (cell.kind == CellKind::Weight || cell.kind == CellKind::GatheredWeight)
      state.elements.block = static_cast<int32_t>(cell.of);
    else if (cell.kind == CellKind::Param)
      state.elements.param = static_cast<int32_t>(cell.of);
    state.elements.isStored = cell.type.dtype == DType::F8E4M3;
    if (cell.kind == CellKind::WeightScales)
      state.rows = ScaleRows();
    return state;
  }

  void follow(const Values &at, uint32_t i, const Op &op) {
    values_ = &at;
    for (ValueId operand : op.operands)
      if (of(operand).parts != 0 && !mayTakeParts(op))
        refuse(i, fmt::format("'{}'", opInfo(op).name), operand);
    if (isSumOverRanks(op))
      needParts(i, op);
    if (op.kind == OpKind::MatMulAdd)
      needAddedParts(i, op);
    if (op.kind == OpKind::Add &&
        std::ranges::all_of(op.operands, [this](ValueId value) { return isOfProduct(value); }))
      needColumns(i, op.operands[1], of(op, 0).columns);
    State state;
    if (hasParts_)
      state.parts = partsOf(op), state.columns = columnsOf(op), state.isKnown = areKnown(op),
      state.columnsBy = columnsByOf(op);
    at.setAll(op, state);
    for (size_t r = 1; r < op.results.size(); ++r) // the op's updated amaxes are not sums
      if (isProduct(op) && inPlaceOperand(op, r) >= 0)
        at[op.results[r]] = State();
    if (hasParts_)
      addColumns(op);
    followElements(op);
    if (hasScales_)
      followScales(i, op);
  }

  /// A value and its scale remain a pair through one buffer each. A second buffer or a transfer
  /// ends the pair.
  State kept(const State &state) const {
    State left = state;
    if (state.isLeft)
      left.scales.clear();
    left.isLeft = !state.scales.empty();
    return left;
  }
  State received(const State &given, const Op &) const {
    State state = given;
    state.scales.clear();
    return state;
  }

  void add(const Values &at, uint32_t i, const Tie &tie) {
    at[at.scope.segment.ops[i].results[tie.result]].parts |= at[tie.value].parts;
  }

  /// A partial sum of gradients may leave the segment only in a buffer, since another segment then
  /// adds it.
  void finish(const Values &at) {
    values_ = &at;
    const Segment &segment = at.scope.segment;
    for (const Segment::Boundary &out : segment.outs)
      if (at[out.value].parts != 0 && at.scope.role.cells[out.cell].purpose == Purpose::Grads)
        refuse(at.scope.opOf(out.value), "the segment's end", out.value);
    for (uint32_t i = 0; hasParts_ && i < segment.ops.size(); ++i)
      checkIndex(i, segment.ops[i]);
  }

private:
  const Scope &scope() const { return values_->scope; }
  const State &of(ValueId value) const { return (*values_)[value]; }
  const State &of(const Op &op, size_t operand) const { return of(op.operands[operand]); }

  void refuse(uint32_t i, std::string_view consumer, ValueId value) const {
    scope().addValue(finding::TakesPartialSum, i, value, consumer, namesOf(plan_, of(value).parts));
  }

  /// If the axes of partial sums are known, a sum must not run over other axes.
  void needParts(uint32_t i, const Op &op) const {
    const State &added = of(op, 0);
    auto others = static_cast<Axes>(axesOf(plan_, op.group) & splits_ & ~added.parts);
    if (added.isKnown && others != 0)
      scope().addValue(finding::AddsNoParts, i, op.operands[0], namesOf(plan_, others));
  }

  /// A partial product may only be added to a partial sum over the same axes.
  void needAddedParts(uint32_t i, const Op &op) const {
    Axes added = of(op, kMore).parts, own = partsOf(op);
    if (hasParts_ && added != own)
      scope().addValue(finding::TakesPartialSum, i, op.operands[kMore],
                       fmt::format("'{}'", opInfo(op).name), namesOf(plan_, added ^ own));
    needColumns(i, op.operands[kMore], columnsOf(op));
  }

  /// A value that is added to a product must have the product's columns, as far as both are known.
  void needColumns(uint32_t i, ValueId added, std::optional<Axes> needed) const {
    std::optional<Axes> columns = of(added).columns;
    if (hasParts_ && columns && needed && *columns != *needed)
      scope().addValue(finding::AddsOtherColumns, i, added, namesOf(plan_, *columns ^ *needed));
  }
  bool isOfProduct(ValueId value) const {
    uint32_t def = scope().value(value).def;
    return def != kNone && isProduct(scope().segment.ops[def]);
  }

  // ---- indices ----

  /// Rows of a table, columns of logits and heads with dropout are selected by an index. It must be
  /// the index by which the parameter is divided.
  void checkIndex(uint32_t i, const Op &op) {
    if (op.kind == OpKind::Embedding)
      needIndex(i, axesOf(plan_, op.group),
                knownSplitsOf(operandNamed<OpKind::Embedding>(op, "table"), 1));
    else if (op.kind == OpKind::VocabStats)
      needIndex(i, axesOf(plan_, op.group),
                of(operandNamed<OpKind::VocabStats>(op, "logits")).columns);
    else if (op.kind == OpKind::CrossEntropyBwd)
      needIndex(i, axesOf(plan_, op.group),
                of(operandNamed<OpKind::CrossEntropyBwd>(op, "logits")).columns);
    else if (op.kind == OpKind::Pack && op.getInt(Key::block) >= 0)
      checkGradients(op);
    else if (countsRuns(op))
      checkExperts(i, op);
    if (isByAmaxes(op))
      needIndex(i, axesOf(plan_, op.group), of(op, kCounts).columns);
    else if (op.group >= 0 && hasShares(factorsOf(op)))
      checkShares(i, op);
    else if (opInfo(op).queries >= 0 && op.getFloat(Key::p) > 0)
      checkHeads(i, op);
  }

  static bool countsRuns(const Op &op) {
    std::span<const FactorValue> operands = factorsOf(op).operands();
    return kCounts < std::min(op.operands.size(), operands.size()) &&
           operands[kCounts].countsRowsOf != kNoFactor;
  }

  static bool hasShares(const OpFactors &factors) {
    auto isShare = [](const FactorValue &value) {
      return std::ranges::any_of(value.words(), &FactorAtom::isShare);
    };
    return std::ranges::any_of(factors.operands(), isShare) ||
           std::ranges::any_of(factors.results(), isShare);
  }

  /// Checks an op that divides something among a group's members. Ranks must have different columns
  /// or heads along all axes of the group.
  void checkShares(uint32_t i, const Op &op) const {
    std::optional<Axes> columns = of(op, 0).columns;
    Axes found = axesOf(plan_, op.group);
    if (columns && (found & ~*columns) != 0)
      scope().add(finding::PartByOtherIndex, i, namesOf(plan_, found), namesOf(plan_, *columns));
  }

  /// If members also have slices, the last axes of the group are those of the slices.
  void checkHeads(uint32_t i, const Op &op) {
    const OpInfo &info = opInfo(op);
    Axes found = axesOf(plan_, op.group);
    if (info.hasSlices && op.getInt(Key::slices) > 0)
      found &= static_cast<Axes>(~outerAxesOf(plan_, op.group, op.getInt(Key::slices)));
    needIndex(i, found, of(op, static_cast<size_t>(info.queries)).columns);
  }

  /// The index that selects the rows of a table's gradient must run along the axes that divide the
  /// table. The gradient's position in the pack of its block tells which table it is.
  void checkGradients(const Op &pack) {
    const std::vector<const Param *> &params = inspection_.paramsOf(blockNamedBy(pack));
    for (size_t p = 0; p < std::min(params.size(), pack.operands.size()); ++p) {
      if (params[p]->type.rank < 2 || params[p]->isUncut())
        continue;
      for (ValueId sum = pack.operands[p]; sum != kNone;) { // a sum may have several contributions
        uint32_t def = scope().value(sum).def;
        if (def == kNone)
          break;
        const Op &op = scope().segment.ops[def];
        if (op.kind == OpKind::EmbeddingBwd)
          needIndex(def, axesOf(plan_, op.group), splitsOf(*params[p], 1));
        auto added = std::ranges::find(op.ties, Tie::Acc, &Tie::kind);
        sum = added != op.ties.end() ? added->value : kNone;
      }
    }
  }

  /// Counts have a column for each expert. Ranks must have exchanged the counts and the counted
  /// rows, so that each rank has those of its own experts.
  void checkExperts(uint32_t i, const Op &op) const {
    for (ValueId operand : op.operands) {
      const Param *param = paramOf(operand);
      if (param == nullptr || param->isUncut() || !param->isStacked())
        continue;
      Axes needed = axesOfExperts(*param);
      const State &counts = of(op, kCounts);
      if (counts.columns != needed)
        scope().add(finding::ExpertsOfOtherRanks, i,
                    counts.columns ? namesOf(plan_, *counts.columns) : "axes that are not known",
                    namesOf(plan_, needed));
      else if (int16_t by = groupOfExperts(*param); needed != 0 && counts.columnsBy != by)
        scope().add(finding::ExpertsOfOtherRanks, i, namesInOrder(counts.columnsBy),
                    namesInOrder(by));
    }
  }

  /// The group whose index selects a rank's tensors of a stack of experts; -1 if there is none.
  int16_t groupOfExperts(const Param &stack) const {
    auto split = std::ranges::find(stack.splits, 0, &Split::dim);
    return split == stack.splits.end() ? int16_t{-1} : firstAlike(plan_, split->group);
  }

  std::string namesInOrder(int16_t group) const {
    if (group < 0)
      return "axes in an order that is not known";
    std::string names;
    for (uint16_t axis : groupAt(plan_, group).axes)
      names += fmt::format("{}'{}'", names.empty() ? "" : ", then ", plan_.mesh[axis].name);
    return names;
  }

  /// Axes along which ranks have different tensors of a stack of experts.
  Axes axesOfExperts(const Param &stack) const {
    Axes axes = 0;
    for (const Split &split : stack.splits)
      if (split.dim == 0)
        axes |= axesOf(plan_, split.group);
    return axes;
  }

  void needIndex(uint32_t i, Axes found, std::optional<Axes> needed) const {
    // A plan for the test of a single pass may have weights without parameters.
    if (!needed && found != 0 && plan_.level == Level::Placed)
      scope().add(finding::PartUnknown, i, namesOf(plan_, found));
    if (!needed || found == *needed)
      return;
    scope().add(finding::PartByOtherIndex, i, namesOf(plan_, found), namesOf(plan_, *needed));
  }

  /// Axes along which ranks have different columns of the result. A product has the columns of its
  /// weight. An exchange of heads for rows changes them, and an exchange of counted rows does not.
  std::optional<Axes> columnsOf(const Op &op) const {
    if (op.kind == OpKind::MakeRuns) // has all experts
      return Axes{0};
    if (op.kind == OpKind::MatMulScaled)
      return knownSplitsOf(op.operands[kSecondFactor], 1);
    if (isProduct(op))
      return knownSplitsOf(op.operands[kSecondFactor], op.getBool(Key::trans_b) ? 1 : 0);
    std::optional<Axes> columns = op.operands.empty() ? std::nullopt : of(op, 0).columns;
    if (columns && op.kind == OpKind::AllToAll && !isCounted(op.operands[0]))
      *columns ^= axesOf(plan_, op.group);
    bool sharesKeys =
        op.group >= 0 && (op.kind == OpKind::SplitQkv || op.kind == OpKind::SplitQkvRope);
    if (columns && sharesKeys)
      *columns |= axesOf(plan_, op.group);
    return columns;
  }

  /// The group by whose index an exchange distributes columns to its members.
  int16_t columnsByOf(const Op &op) const {
    if (op.kind == OpKind::AllToAll && !isCounted(op.operands[0]))
      return of(op, 0).columns == Axes{0} ? firstAlike(plan_, op.group) : int16_t{-1};
    return op.operands.empty() || op.kind == OpKind::MakeRuns ? int16_t{-1} : of(op, 0).columnsBy;
  }

  /// Marks results that sum over columns or heads of which ranks have different ones: partial sums.
  /// A result counts only if it keeps the rows of the first operand, since sums over rows are
  /// gradients, which marks track. Products and collectives are handled elsewhere.
  void addColumns(const Op &op) {
    Axes columns = op.operands.empty() ? Axes{0} : of(op, 0).columns.value_or(0);
    bool isFactor = isProduct(op) || op.kind == OpKind::MatMulScaled;
    if (columns == 0 || isFactor || opInfo(op).collective)
      return;
    const OpFactors &factors = factorsOf(op);
    const FactorValue &first = operandOf(op, factors, 0);
    uint8_t rank = scope().value(op.operands[0]).type.rank;
    FactorId rows = factorAt(first, false, rank, 0),
             along = factorAt(first, false, rank, columnsDim(rank));
    if (rows == kNoFactor || along == kNoFactor)
      return;
    for (size_t r = 0; r < op.results.size(); ++r)
      if (factors.isSummed(along, r) && resultOf(op, factors, r).has(rows)) {
        State &sum = (*values_)[op.results[r]];
        sum.parts |= columns;
        sum.isKnown = true;
        sum.columns = Axes{0};
      }
  }

  bool isCounted(ValueId value) const { return scope().value(value).counts != kNone; }

  /// The dimension of columns, or of heads in a tensor with heads.
  static uint8_t columnsDim(uint8_t rank) {
    constexpr uint8_t kWithHeads = 4;
    return rank == kWithHeads ? 2 : static_cast<uint8_t>(std::max(rank - 1, 0));
  }

  static bool isProduct(const Op &op) {
    return plan::factorsOf(op.kind).isTransposed(kSecondFactor, AttrKey::trans_b);
  }

  // ---- weights ----

  void followElements(const Op &op) {
    if (op.operands.empty())
      return;
    Elements from = of(op, 0).elements;
    if (opInfo(op.kind).scaleOf[0] >= 0)
      return followQuantized(op, from);
    if (op.kind == OpKind::View)
      from.begin += op.getInt(Key::offset);
    else if (op.kind == OpKind::AllGather && op.getInt(Key::block) >= 0)
      from = {.block = blockNamedBy(op), .isStored = from.isStored};
    else if (op.kind == OpKind::Transpose)
      from.isTransposed ^= true;
    else if (op.kind == OpKind::ExpandParts || // same rows, but more columns, which no rank divides
             op.kind == OpKind::Dequantize)
      return setExpanded(op);
    else if (op.kind != OpKind::Cast)
      return;
    from.isStored &= op.kind != OpKind::Cast;
    set(op.results[0], from);
  }

  void setExpanded(const Op &op) {
    if (const Param *param = paramOf(op.operands[0]))
      set(op.results[0], {.param = static_cast<int32_t>(param - plan_.params.data())});
  }

  void set(ValueId value, const Elements &elements) { (*values_)[value].elements = elements; }

  /// The last result is the transposed copy.
  void followQuantized(const Op &op, Elements from) {
    from.isStored = false;
    size_t others = op.kind == OpKind::QuantizeDelayed ? 3 : 2;
    from.isTransposed ^= op.getBool(Key::transposed);
    set(op.results[0], from);
    from.isTransposed ^= true;
    if (op.results.size() > others)
      set(op.results[others], from);
  }

  const Param *paramOf(ValueId value) const {
    const Elements &elements = of(value).elements;
    if (elements.param >= 0)
      return &plan_.params[static_cast<size_t>(elements.param)];
    if (elements.block < 0)
      return nullptr;
    const std::vector<const Param *> &params = inspection_.paramsOf(elements.block);
    auto at = std::ranges::lower_bound(params, elements.begin, {}, &Param::offset);
    bool isIt = at != params.end() && (*at)->offset == elements.begin &&
                (*at)->type.numel() == scope().value(value).type.numel();
    return isIt ? *at : nullptr;
  }

  /// The mesh axes along which a dimension of the matrix is split; `fromEnd` counts dimensions from
  /// the last one. None if the matrix is not a known parameter, or a parameter that a later pass
  /// will split.
  std::optional<Axes> knownSplitsOf(ValueId matrix, int fromEnd) const {
    const Param *param = paramOf(matrix);
    if (param == nullptr || param->isUncut() || param->type.rank < 2)
      return std::nullopt;
    return splitsOf(*param, of(matrix).elements.isTransposed ? 1 - fromEnd : fromEnd);
  }
  Axes splitsOf(ValueId matrix, int fromEnd) const {
    return knownSplitsOf(matrix, fromEnd).value_or(0);
  }
  Axes splitsOf(const Param &param, int fromEnd) const {
    Axes axes = 0;
    for (const Split &split : param.splits)
      if (split.dim == param.type.rank - 1 - fromEnd)
        axes |= axesOf(plan_, split.group);
    return axes;
  }

  // ---- scales ----

  void followScales(uint32_t i, const Op &op) {
    const Values &at = *values_;
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int scale = opInfo(op).scaleOf[r]; scale >= 0)
        for (ValueId result : {op.results[r], op.results[static_cast<size_t>(scale)]})
          at[result].scales = {{scope().roleIndex, scope().segmentIndex, i, scale}};
    if (op.kind == OpKind::Transpose) {
      at[op.results[0]].scales = of(op, 0).scales;
      at[op.results[0]].isLeft = of(op, 0).isLeft;
    } else if (op.kind == OpKind::View && of(op, 0).rows) {
      at[op.results[0]].rows = viewed(*of(op, 0).rows, op);
    }
    if (op.kind == OpKind::MatMulScaled && at.isReport)
      for (size_t f = 0; f < kFactors; ++f)
        checkScale(i, op.operands[f], op.operands[f + kFactors]);
    if (op.kind == OpKind::GroupedMatMulScaled && at.isReport)
      checkScale(i, op.operands[kSecondFactor],
                 operandNamed<OpKind::GroupedMatMulScaled>(op, "bscales"));
  }

  /// None if the view does not begin at a row, or if both the view and its operand move with an
  /// index.
  std::optional<ScaleRows> viewed(ScaleRows rows, const Op &view) const {
    int64_t offset = view.getInt(Key::offset), coef = view.getInt(Key::coef);
    if (offset % kScaleStride != 0 || coef % kScaleStride != 0 || (coef != 0 && rows.step != 0))
      return std::nullopt;
    rows.first += offset / kScaleStride;
    if (coef != 0)
      rows.step = coef / kScaleStride, rows.along = axesOf(plan_, view.group);
    return rows;
  }

  void checkScale(uint32_t i, ValueId factor, ValueId scale) const {
    const State &its = of(factor), &by = of(scale);
    bool isPair = !its.scales.empty() && its.scales == by.scales &&
                  microbatchOf(factor) == microbatchOf(scale);
    bool hasBegin = values_->hasBegin(factor) || values_->hasBegin(scale);
    bool areGiven = values_->isGiven(factor) && values_->isGiven(scale);
    if (hasBegin && !areGiven && !isPair && !(by.rows && isStoredWith(factor, *by.rows)))
      scope().addValue(finding::ScaleOfOther, i, factor, scope().nameOf(scale));
  }

  int64_t microbatchOf(ValueId value) const {
    return inspection_.shiftOf(scope().roleIndex, scope().segmentIndex, value);
  }

  /// Whether the value is an 8-bit weight, or its transpose, whose scale is stored in these rows of
  /// the block's scales. In a stack of experts, each rank has the rows of its own experts.
  bool isStoredWith(ValueId value, const ScaleRows &rows) const {
    const Param *param = of(value).elements.isStored ? paramOf(value) : nullptr;
    if (param == nullptr || !isKeptIn8Bits(*param) ||
        numberOfScale(plan_, static_cast<size_t>(param - plan_.params.data())) != rows.first)
      return false;
    Axes along = param->isStacked() ? axesOfExperts(*param) : Axes{0};
    return rows.along == along && (along == 0 || rows.step == param->type.shape[0]);
  }

  // ---- parts ----

  /// Axes that split the inner dimension: columns of the first factor and rows of the second one.
  Axes innerSplits(const Op &op, bool isTransposedA, bool isTransposedB) const {
    return static_cast<Axes>(splitsOf(op.operands[kFirstFactor], isTransposedA ? 1 : 0) |
                             splitsOf(op.operands[kSecondFactor], isTransposedB ? 0 : 1));
  }

  Axes partsOf(const Op &op) const {
    Axes taken = 0;
    for (ValueId operand : op.operands)
      taken |= of(operand).parts;
    if (isProduct(op))
      return innerSplits(op, op.getBool(Key::trans_a), op.getBool(Key::trans_b));
    if (op.kind == OpKind::MatMulScaled)
      return innerSplits(op, false, true);
    if (op.kind == OpKind::AdapterSquares) // of the columns of its weight
      return splitsOf(op.operands[0], 0);
    if (op.kind == OpKind::Embedding && op.group >= 0 && plan_.groupSize(op.group) > 1)
      return axesOf(plan_, op.group);
    if (isSumOverRanks(op))
      return static_cast<Axes>(taken & ~axesOf(plan_, op.group));
    return mayTakeParts(op) ? taken : Axes{0};
  }

  bool areKnown(const Op &op) const {
    if (op.kind == OpKind::AdapterSquares)
      return knownSplitsOf(op.operands[0], 0).has_value();
    if (isProduct(op) || op.kind == OpKind::MatMulScaled)
      return knownSplitsOf(op.operands[kSecondFactor], 0).has_value();
    return isLinear(op.kind) &&
           std::ranges::all_of(op.operands, [&](ValueId operand) { return of(operand).isKnown; });
  }

  static bool isSumOverRanks(const Op &op) {
    return op.kind == OpKind::AllReduce || op.kind == OpKind::ReduceScatter;
  }

  bool mayTakeParts(const Op &op) const {
    if (op.kind == OpKind::MatMulAdd) // needAddedParts() checks the third operand
      return of(op, kFirstFactor).parts == 0 && of(op, kSecondFactor).parts == 0;
    if (op.kind == OpKind::Add)
      return of(op, 0).parts == of(op, 1).parts;
    return isSumOverRanks(op) || isLinear(op.kind);
  }
  static bool isLinear(OpKind kind) {
    return kind == OpKind::View || kind == OpKind::Pack || kind == OpKind::Join ||
           kind == OpKind::Cast;
  }

  Inspection &inspection_;
  const Plan &plan_;
  bool hasParts_, hasScales_;
  Axes splits_ = 0;                ///< along which parameters are divided
  const Values *values_ = nullptr; ///< of the current segment
};

} // namespace

std::unique_ptr<ValueDomain> makeParts(Inspection &inspection) {
  PartDomain domain(inspection);
  return domain.isNeeded() ? asValueDomain(std::move(domain)) : nullptr;
}

} // namespace shardc::plan::verifier
