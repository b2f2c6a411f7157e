// Tracks which rows of the microbatch's tokens a value contains. Ranks with parts of a layer have
// the same tokens: a reduce_scatter leaves each rank its rows of a sum, and an all_gather
// concatenates rows by index. Ranks with slices of sequences exchange whole slices, or columns of
// them. An op that works row by row, or sums over rows, must read the same rows from all operands
// that have rows along the same factors. A result is a partial sum if ranks hold the same rows of
// it but summed over different rows. It remains one until a collective adds it.
//
// Ranks may also shift slices around. VerifyOrigins.cpp tracks to which rank such a slice belongs.
#include <algorithm>
#include <array>
#include <bit>

#include "runtime/plan/FactorExtents.h"
#include "runtime/verify/VerifyFlow.h"
#include "runtime/verify/VerifyRowLists.h"

namespace shardc::plan::verifier {
namespace {

using Key = AttrKey;

struct Rows {
  bool isTransposed = false; ///< the last dimension has the rows
  int layout = LayoutTable::kNone;

  bool isKnown() const { return layout > LayoutTable::kUnknown; }
  bool operator==(const Rows &) const = default;
  void join(const Rows &) { *this = {false, LayoutTable::kUnknown}; }
};

/// Whether a dimension of one value has the same factors as a dimension of another value.
bool areAlong(const FactorValue &a, uint8_t dimOfA, const FactorValue &b, uint8_t dimOfB) {
  auto next = [](const FactorValue &value, uint8_t dim, size_t from) {
    while (from < value.atomCount && value.atoms[from].dim != dim)
      ++from;
    return from;
  };
  size_t i = next(a, dimOfA, 0), k = next(b, dimOfB, 0);
  for (; i < a.atomCount && k < b.atomCount; i = next(a, dimOfA, i + 1), k = next(b, dimOfB, k + 1))
    if (a.atoms[i].factor != b.atoms[k].factor || a.atoms[i].form != b.atoms[k].form ||
        a.atoms[i].number != b.atoms[k].number)
      return false;
  return i == a.atomCount && k == b.atomCount;
}

class RowDomain {
public:
  using State = Rows;
  using Values = SegmentValues<Rows>;

  explicit RowDomain(const Inspection &inspection) : plan_(inspection.plan()) {
    forEachOp(plan_, [&](Spot, const Segment &segment, const Op &op) {
      if (op.kind != OpKind::BatchLoad)
        return;
      tokens_ = segment.values[resultNamed<OpKind::BatchLoad>(op, "tokens")].type.numel();
      sliceAxes_ = axesOf(plan_, op.group);
    });
  }

  /// Whether ranks exchange values other than parts of blocks, or ops draw random numbers by row
  /// position.
  bool hasExchanges() const {
    auto isExchange = [](const Op &op) {
      return ((op.kind == OpKind::ReduceScatter || op.kind == OpKind::AllGather) &&
              op.getInt(Key::block) < 0) ||
             (isByPlace(op) && op.group >= 0);
    };
    return tokens_ > 0 && (sliceAxes_ != 0 || hasOp(plan_, isExchange));
  }

  /// Whether an op's result for a row depends on the row's position among the rows of all members.
  static bool isByPlace(const Op &op) {
    const OpFactors &factors = factorsOf(op);
    return factors.operandCount > 0 && factors.operand(0).atomCount > 0 &&
           factors.operand(0).atoms[0].isInSharedDim;
  }

  void follow(const Values &at, uint32_t i, const Op &op) {
    values_ = &at, opIndex_ = i;
    followOp(op);
  }

  void add(const Values &at, uint32_t i, const Tie &tie) {
    values_ = &at, opIndex_ = i;
    const Op &op = at.scope.segment.ops[i];
    need(op, op.results[tie.result], tie.value);
  }

private:
  // ---- ops ----

  void followOp(const Op &op) {
    needSums(op);
    auto isOneOf = [&](std::initializer_list<OpKind> kinds) {
      return std::ranges::find(kinds, op.kind) != kinds.end();
    };
    if (op.kind == OpKind::BatchLoad)
      load(op);
    else if (op.kind == OpKind::View)
      giveOne(op, viewed(op));
    else if (isOneOf({OpKind::Pack, OpKind::Join}))
      giveOne(op, joined(op));
    else if (op.kind == OpKind::Transpose)
      giveOne(op, transposed(op));
    else if (op.kind == OpKind::MergeSlices)
      giveOne(op, merged(op));
    else if (isOneOf(
                 {OpKind::MatMul, OpKind::MatMulAdd, OpKind::MatMulGelu, OpKind::MatMulGeluBwd}))
      followProduct(op, op.getBool(Key::trans_a), op.getBool(Key::trans_b));
    else if (op.kind == OpKind::MatMulScaled)
      followProduct(op, false, true);
    else if (isByPlace(op))
      followByPlace(op);
    else if (opInfo(op).collective)
      followCollective(op);
    else if (op.kind == OpKind::EmbeddingShard)
      giveOne(op, lookedUp(op));
    else if (haveOtherRows(op))
      followByFactors(op);
    else
      give(op, common(op, op.operands), firstWithRows(op));
  }

  /// Whether the op may read a partial sum. It may if it only moves rows, treats all summands
  /// alike, or reduces over ranks. An op that combines values of several ranks may not.
  bool mayTakeParts(const Op &op, Axes parts) const {
    constexpr std::array kMoves = {OpKind::View,        OpKind::Join, OpKind::Transpose,
                                   OpKind::MergeSlices, OpKind::Cast, OpKind::Add};
    bool mixes = op.kind == OpKind::AllGather || op.kind == OpKind::AllToAll;
    if (opInfo(op).collective && op.kind != OpKind::AllReduceMax)
      return op.getInt(Key::block) < 0 && !(mixes && (axesOf(plan_, op.group) & parts) != 0);
    return std::ranges::find(kMoves, op.kind) != kMoves.end() ||
           (op.kind == OpKind::Pack && op.getInt(Key::block) < 0);
  }

  /// After a finding, the operand counts as the complete sum, so that one error gives one finding.
  void needSums(const Op &op) {
    for (ValueId operand : op.operands)
      if (Axes parts = partsIn(rows(operand).layout); parts != 0 && !mayTakeParts(op, parts)) {
        refuseParts(op, operand);
        rows(operand).layout = withParts(rows(operand).layout, 0);
      }
  }

  const Scope &scope() const { return values_->scope; }
  Rows &rows(ValueId value) { return (*values_)[value]; }
  int64_t numelOf(ValueId value) const { return scope().value(value).type.numel(); }
  static bool isKnown(int layout) { return layout > LayoutTable::kUnknown; }

  /// The layout of an operand; unknown if the operand's last dimension has the rows.
  int rowsOf(const Op &op, size_t operand) {
    const Rows &of = rows(op.operands[operand]);
    return of.isTransposed ? LayoutTable::kUnknown : of.layout;
  }

  void load(const Op &op) {
    for (ValueId result : op.results)
      if (numelOf(result) == tokens_)
        rows(result).layout = table_.add({-1, {{{0, tokens_}}}});
  }

  /// Sets the layout of results that have the factors of operand k's rows: in the first dimension,
  /// or, transposed, in the last one. Counted rows are not rows of tokens; VerifyCounts.cpp tracks
  /// them.
  void give(const Op &op, int layout, size_t k) {
    if (layout == LayoutTable::kNone)
      return;
    const OpFactors &factors = factorsOf(op);
    const FactorValue &whole = operandOf(op, factors, k);
    for (size_t r = 0; r < op.results.size(); ++r) {
      const FactorValue &value = resultOf(op, factors, r);
      auto last = static_cast<uint8_t>(value.dimCount - 1);
      bool isCopy =
          last == 1 && value.atoms[0].form == FactorAtom::Plain && areAlong(value, last, whole, 0);
      if (value.dimCount == 0 || (!areAlong(value, 0, whole, 0) && !isCopy) ||
          scope().value(op.results[r]).counts != plan::kNone)
        continue;
      rows(op.results[r]) = {isCopy || (value.transposedBy && op.getBool(*value.transposedBy)),
                             layout};
    }
  }
  void giveOne(const Op &op, int layout) { rows(op.results[0]).layout = layout; }

  /// The first operand whose rows are not transposed; if there is none, the first that has rows.
  size_t firstWithRows(const Op &op) {
    std::optional<size_t> firstTransposed;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const Rows &own = rows(op.operands[k]);
      if (own.layout != LayoutTable::kNone && !own.isTransposed)
        return k;
      if (own.layout != LayoutTable::kNone && !firstTransposed)
        firstTransposed = k;
    }
    return firstTransposed.value_or(0);
  }

  /// The layout of the operands that have rows. They must all have the same.
  int common(const Op &op, const std::vector<ValueId> &operands) {
    auto known = std::ranges::find_if(operands, [&](ValueId operand) {
      return rows(operand).isKnown() && !rows(operand).isTransposed;
    });
    for (ValueId operand : operands)
      if (known == operands.end() && rows(operand).layout == LayoutTable::kUnknown)
        return LayoutTable::kUnknown;
    if (known == operands.end())
      return LayoutTable::kNone;
    for (ValueId operand : operands)
      if (!rows(operand).isTransposed && !need(op, *known, operand))
        return LayoutTable::kUnknown;
    return rows(*known).layout;
  }

  // ---- rows along several factors ----

  /// Operands whose rows have the same factors.
  struct RowClass {
    uint16_t factors; ///< one bit per factor
    std::vector<ValueId> operands;
    int layout;
  };

  /// Whether operands that are not transposed differ in their rows.
  bool haveOtherRows(const Op &op) {
    int found = LayoutTable::kNone;
    for (ValueId operand : op.operands)
      if (const Rows &of = rows(operand); of.layout != LayoutTable::kNone && !of.isTransposed) {
        if (found != LayoutTable::kNone && of.layout != found)
          return true;
        found = of.layout;
      }
    return false;
  }

  /// Queries may have other rows than their keys. A result gets the rows of the operands with the
  /// same factors.
  void followByFactors(const Op &op) {
    const OpFactors &factors = factorsOf(op);
    std::vector<RowClass> classes = classesOf(op, factors);
    for (RowClass &each : classes)
      each.layout = common(op, each.operands);
    for (size_t r = 0; r < op.results.size(); ++r) {
      const RowClass *own = classOf(classes, factorsIn(factors, resultOf(op, factors, r)));
      if (own == nullptr || scope().value(op.results[r]).counts != plan::kNone)
        continue;
      Axes parts = 0;
      for (const RowClass &each : classes)
        if (sumsOver(factors, static_cast<uint16_t>(each.factors & ~own->factors), r))
          parts |= axesOfRows(each.layout);
      rows(op.results[r]).layout =
          withParts(own->layout, static_cast<Axes>(parts & ~axesOfRows(own->layout)));
    }
  }

  std::vector<RowClass> classesOf(const Op &op, const OpFactors &factors) {
    std::vector<RowClass> classes;
    std::vector<size_t>
        others; // operands whose type does not determine which factors their rows have
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const Rows &of = rows(op.operands[k]);
      if (of.layout == LayoutTable::kNone || of.isTransposed)
        continue;
      uint16_t along = rowFactors(op, factors, k);
      // A dimension of the type may combine several factors, of which only some are known.
      auto same = std::ranges::find_if(classes, [&](const RowClass &each) {
        uint16_t both = each.factors & along;
        return both == along || both == each.factors;
      });
      if (along == 0) {
        others.push_back(k);
      } else if (same == classes.end()) {
        classes.push_back({along, {op.operands[k]}, LayoutTable::kNone});
      } else {
        same->factors &= along;
        same->operands.push_back(op.operands[k]);
      }
    }
    for (size_t k : others)
      if (RowClass *of = classOf(classes, factorsIn(factors, operandOf(op, factors, k))))
        of->operands.push_back(op.operands[k]);
    return classes;
  }

  /// The class with the most factors, all of which are among `factors`; null if there is none.
  static RowClass *classOf(std::vector<RowClass> &classes, uint16_t factors) {
    RowClass *found = nullptr;
    for (RowClass &each : classes)
      if ((each.factors & ~factors) == 0 &&
          (found == nullptr || std::popcount(found->factors) < std::popcount(each.factors)))
        found = &each;
    return found;
  }

  /// Dimensions of the same extent count as one: the positions of the queries and of all keys.
  static uint16_t bitOf(const OpFactors &factors, FactorId factor) {
    return static_cast<uint16_t>(1u << factors.extentOf[static_cast<size_t>(factor)]);
  }
  static uint16_t factorsIn(const OpFactors &factors, const FactorValue &value) {
    uint16_t all = 0;
    for (const FactorAtom &atom : value.words())
      if (atom.factor != kNoFactor)
        all |= bitOf(factors, atom.factor);
    return all;
  }

  /// The factors of the operand's rows, if these are known and form its first dimensions; else
  /// none.
  uint16_t rowFactors(const Op &op, const OpFactors &factors, size_t k) {
    const Rows &of = rows(op.operands[k]);
    const Type &type = scope().value(op.operands[k]).type;
    int64_t left = of.isKnown() ? countOf(table_.at(of.layout).of(0)) : 0;
    uint16_t along = 0;
    for (uint8_t d = 0; d < type.rank && left > 1 && left % type.shape[d] == 0; ++d) {
      FactorId factor = factorAt(operandOf(op, factors, k), false, type.rank, d);
      along |= factor == kNoFactor ? uint16_t{0} : bitOf(factors, factor);
      left /= type.shape[d];
    }
    return left == 1 ? along : uint16_t{0};
  }

  static bool sumsOver(const OpFactors &factors, uint16_t along, size_t result) {
    for (FactorId factor = 0; factor < factors.factorCount; ++factor)
      if ((along >> factor & 1) != 0 && factors.isSummed(factor, result))
        return true;
    return false;
  }

  /// Axes along which ranks have different rows.
  Axes axesOfRows(int layout) const {
    if (!isKnown(layout))
      return 0;
    const Layout &of = table_.at(layout);
    return static_cast<Axes>((sliceAxes_ & ~of.whole) | axesOf(plan_, of.group));
  }

  Axes partsIn(int layout) const { return isKnown(layout) ? table_.at(layout).parts : Axes{0}; }
  int withParts(int of, Axes parts) {
    if (!isKnown(of) || parts == partsIn(of))
      return of;
    Layout layout = table_.at(of);
    layout.parts = parts;
    return table_.add(std::move(layout));
  }

  /// A lookup in a table that is divided in shards. Each rank looks up its own elements of a row
  /// and gets zeros for the others: a partial sum.
  int lookedUp(const Op &op) {
    int of = common(op, {op.operands[0]});
    const Block &block = blockAt(plan_, op.getInt(Key::block));
    return withParts(of,
                     static_cast<Axes>(partsIn(of) | (axesOf(plan_, block.group) & sliceAxes_)));
  }

  /// An op that uses row positions must have the rows of this rank's index in the group, or all
  /// rows if it names no group.
  void followByPlace(const Op &op) {
    int has = rowsOf(op, 0);
    int16_t group = op.group < 0 ? int16_t{-1} : firstAlike(plan_, op.group);
    Layout all = {-1, {{{0, tokens_}}}};
    int wanted = group < 0 ? table_.add(all) : scattered(all, group);
    if (has == LayoutTable::kUnknown)
      refuseUnknown(op.operands[0]);
    else if (isKnown(has) && !isKnown(wanted))
      scope().addValue(finding::PlacesUndivided, opIndex_, op.operands[0], membersOf(group),
                       groupAt(plan_, group).name, tokens_);
    else if (isKnown(has) && isKnown(wanted) && has != wanted)
      refusePlaces(op, table_.at(has), table_.at(wanted));
    give(op, has, 0);
  }

  void followProduct(const Op &op, bool isTransposedA, bool isTransposedB) {
    const ValueId first = op.operands[kFirstFactor], second = op.operands[kSecondFactor];
    const Rows &a = rows(first), &b = rows(second);
    bool hasRows = a.layout != LayoutTable::kNone && a.isTransposed == isTransposedA;
    bool hasBoth = a.layout != LayoutTable::kNone && b.layout != LayoutTable::kNone;
    bool isOverRows = hasBoth && !hasRows && b.isTransposed == isTransposedB;
    if (isOverRows && a.isKnown())
      need(op, first, second);
    else if (isOverRows)
      refuseUnknown(first);
    if (!hasRows)
      return;
    if (op.kind == OpKind::MatMulGeluBwd)
      need(op, first, operandNamed<OpKind::MatMulGeluBwd>(op, "x"));
    if (op.kind == OpKind::MatMulAdd)
      need(op, first, operandNamed<OpKind::MatMulAdd>(op, "more"));
    give(op, a.layout, kFirstFactor);
  }

  // ---- parts ----

  int viewed(const Op &op) {
    int of = rowsOf(op, 0);
    if (!isKnown(of))
      return of;
    const Layout &whole = table_.at(of);
    int64_t coef = op.getInt(Key::coef);
    int16_t group = coef == 0 ? whole.group : firstAlike(plan_, op.group);
    if (!whole.isSame() && whole.group != group)
      return LayoutTable::kUnknown;
    int64_t elements = numelOf(op.operands[0]);
    int64_t count = countOf(whole.of(0));
    auto rowsIn = [&](int64_t numel) -> std::optional<int64_t> {
      int64_t product = 0;
      if (__builtin_mul_overflow(numel, count, &product) || product % elements != 0)
        return std::nullopt;
      return product / elements;
    };
    auto first = rowsIn(op.getInt(Key::offset)), step = rowsIn(coef),
         taken = rowsIn(numelOf(op.results[0]));
    if (!first || !step || !taken || isTooLong(whole.of(0), membersOf(group)))
      return LayoutTable::kUnknown;
    Layout part = {group, {}, whole.whole, whole.parts};
    for (int64_t i = 0; i < membersOf(group); ++i) {
      int64_t begin = *first + *step * i;
      std::optional<RowList> own = begin < 0 ? std::nullopt : slice(whole.of(i), begin, *taken);
      if (!own)
        return LayoutTable::kUnknown;
      part.rows.push_back(std::move(*own));
    }
    return ofOwnSlices(std::move(part));
  }

  /// If ranks along the axes of slices each select their own slice from all slices, the value has
  /// the rank's own rows again.
  int ofOwnSlices(Layout part) {
    Axes axes = axesOf(plan_, part.group);
    bool isOfSlices = part.group >= 0 && (axes & ~(sliceAxes_ & part.whole)) == 0;
    std::optional<RowList> same;
    for (int64_t i = 0; isOfSlices && i < membersOf(part.group); ++i) {
      std::optional<RowList> own = moved(part.of(i), &RowRange::slice, i, kOwn);
      isOfSlices = own && (!same || *same == *own);
      same = std::move(own);
    }
    if (isOfSlices)
      part = {-1, {std::move(*same)}, static_cast<Axes>(part.whole & ~axes), part.parts};
    return table_.add(std::move(part));
  }

  int joined(const Op &op) {
    if (op.kind == OpKind::Pack && op.getInt(Key::block) >= 0)
      return LayoutTable::kNone;
    Layout whole;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      int of = rowsOf(op, i);
      if (!isKnown(of))
        return of;
      const Layout &part = table_.at(of);
      bool isOfOneGroup = part.isSame() || whole.isSame() || part.group == whole.group;
      bool isLong =
          !whole.rows.empty() && isTooLong(whole.rows[0], static_cast<int64_t>(part.rows.size()));
      bool isAlike = i == 0 || (part.whole == whole.whole && part.parts == whole.parts);
      if (!isOfOneGroup || isLong || !isAlike)
        return LayoutTable::kUnknown;
      if (i == 0)
        whole = {-1, {{}}, part.whole, part.parts};
      if (whole.isSame() && !part.isSame()) {
        whole.group = part.group;
        whole.rows.resize(part.rows.size(), whole.rows[0]);
      }
      for (size_t index = 0; index < whole.rows.size(); ++index)
        for (const RowRange &range : part.of(static_cast<int64_t>(index)))
          append(whole.rows[index], range);
    }
    return whole.rows.empty() ? LayoutTable::kNone : table_.add(std::move(whole));
  }

  /// Applies `change` to the rows of each index; kUnknown if `change` fails for one. Along the axes
  /// `slices`, the value gets the slices of all ranks, or only this rank's again.
  template <typename Fn> int changed(int of, const Fn &change, Axes slices = 0) {
    if (!isKnown(of))
      return of;
    Layout layout = table_.at(of);
    layout.whole ^= slices;
    for (RowList &list : layout.rows) {
      std::optional<RowList> next = change(list);
      if (!next)
        return LayoutTable::kUnknown;
      list = std::move(*next);
    }
    return table_.add(std::move(layout));
  }

  /// A transpose that makes the column part of each row the outer index, with all rows inside; or
  /// its inverse. Any other transpose would split rows.
  int transposed(const Op &op) {
    int64_t outer = op.getInt(Key::outer), inner = op.getInt(Key::inner);
    int of = rowsOf(op, 0);
    if (of == LayoutTable::kNone || numelOf(op.operands[0]) == outer * inner) // a matrix
      return LayoutTable::kNone;
    return changed(of, [&](const RowList &rows) -> std::optional<RowList> {
      if (countOf(rows) == outer)
        return ofEach(rows, inner, &RowRange::column);
      return countOf(rows) == outer * inner ? ofOwn(rows, outer, &RowRange::column) : std::nullopt;
    });
  }

  /// Reorders chunks of members' slices into the order of sequences, or back (see the op table).
  int merged(const Op &op) {
    return changed(rowsOf(op, 0), [&](const RowList &rows) {
      return verifier::merged(rows, op.getInt(Key::outer), op.getInt(Key::inner),
                              op.getBool(Key::inverse));
    });
  }

  // ---- collectives ----

  void followCollective(const Op &op) {
    if (op.operands.empty() || op.results.empty() || op.getInt(Key::block) >= 0 || op.group < 0)
      return;
    int of = rowsOf(op, 0);
    Axes axes = axesOf(plan_, op.group);
    if (of == LayoutTable::kUnknown && isSum(opInfo(op).collective->kind) && axes != 0)
      refuseUnknown(op.operands[0]);
    if (!isKnown(of) || axes == 0)
      return giveOne(op, of);
    int16_t group = firstAlike(plan_, op.group);
    bool isAmongSlices = (axes & ~sliceAxes_) == 0;
    if (isSum(opInfo(op).collective->kind)) {
      if (auto others = static_cast<Axes>(axes & ~(partsIn(of) & table_.at(of).whole));
          isAmongSlices && others != 0) // other slices or equal rows: no parts
        scope().addValue(finding::AddsNoParts, opIndex_, op.operands[0], namesOf(plan_, others));
      of = withParts(of, static_cast<Axes>(partsIn(of) & ~axes));
    }
    if (isAmongSlices)
      return giveOne(op, overSlices(op, of, axes));
    giveOne(op, overRows(op, table_.at(of), of, group));
  }

  /// A collective over ranks with slices of the same sequences.
  int overSlices(const Op &op, int of, Axes axes) {
    int64_t members = ranksAlong(plan_, axes);
    bool hasAll = (table_.at(of).whole & axes) == axes, hasOwn = (table_.at(of).whole & axes) == 0;
    auto among = [&](bool isFit, auto change) {
      return isFit ? changed(of, change, axes) : LayoutTable::kUnknown;
    };
    if (op.kind == OpKind::AllToAll)
      return among(hasAll || hasOwn,
                   [&](const RowList &rows) { return verifier::exchanged(rows, members); });
    if (op.kind == OpKind::AllGather)
      return among(hasOwn,
                   [&](const RowList &rows) { return ofEach(rows, members, &RowRange::slice); });
    if (op.kind == OpKind::ReduceScatter)
      return among(hasAll,
                   [&](const RowList &rows) { return ofOwn(rows, members, &RowRange::slice); });
    return of; // a shift or a sum keeps the layout
  }

  /// A collective over ranks with the same tokens.
  int overRows(const Op &op, const Layout &part, int of, int16_t group) {
    bool isGather = op.kind == OpKind::AllGather;
    // The rows depend on another group's index. Only a gather over other axes keeps their order.
    if (!part.isSame() && part.group != group)
      return isGather && (axesOf(plan_, op.group) & axesOf(plan_, part.group)) == 0
                 ? gathered(part, group)
                 : LayoutTable::kUnknown;
    if (isGather)
      return gathered(part, group);
    if (op.kind != OpKind::AllReduce && op.kind != OpKind::ReduceScatter)
      return LayoutTable::kNone;
    if (!part.isSame()) {
      refuseSum(op, part);
      return LayoutTable::kUnknown;
    }
    return op.kind == OpKind::AllReduce ? of : scattered(part, group);
  }

  /// The layout of a gathered value: members with different rows are concatenated along rows;
  /// members with the same rows have different columns.
  int gathered(const Layout &part, int16_t group) {
    if (isTooLong(part.of(0), membersOf(group)))
      return LayoutTable::kUnknown;
    int64_t members = membersOf(group);
    if (part.group != group)
      return changed(table_.add(part),
                     [&](const RowList &rows) { return ofEach(rows, members, &RowRange::column); });
    Layout whole = {-1, {{}}, part.whole, part.parts};
    for (int64_t i = 0; i < members; ++i)
      for (const RowRange &range : part.of(i))
        append(whole.rows[0], range);
    return table_.add(std::move(whole));
  }

  int scattered(const Layout &whole, int16_t group) {
    int64_t members = membersOf(group);
    Layout part = {group, {}, whole.whole, whole.parts};
    for (int64_t i = 0; i < members; ++i) {
      std::optional<RowList> own = partOf(whole.of(0), i, members);
      if (!own || isTooLong(whole.of(0), members))
        return LayoutTable::kUnknown;
      std::optional<RowList> ofColumns = moved(*own, &RowRange::column, i, kOwn);
      part.rows.push_back(ofColumns ? std::move(*ofColumns) : std::move(*own));
    }
    return table_.add(std::move(part));
  }

  int64_t membersOf(int16_t group) const { return group < 0 ? 1 : plan_.groupSize(group); }

  // ---- findings ----

  /// False, with a finding, if both values have rows and the rows differ.
  bool need(const Op &op, ValueId one, ValueId other) {
    int a = rows(one).layout, b = rows(other).layout;
    if (!isKnown(a) || b == LayoutTable::kNone || a == b)
      return true;
    if (!values_->isReport)
      return false;
    if (!isKnown(b)) {
      scope().addValue(finding::RowsUnknown, opIndex_, other, toString(table_.at(a).of(0)),
                       scope().nameOf(one));
      return false;
    }
    if (withParts(a, 0) == withParts(b, 0)) {
      refuseParts(op, partsIn(a) != 0 ? one : other);
      return false;
    }
    const Layout &its = table_.at(a), &others = table_.at(b);
    auto [group, index] = differenceOf(its, others);
    scope().addValue(finding::RowsDiffer, opIndex_, other, toString(its.of(index)),
                     scope().nameOf(one), toString(others.of(index)), atIndex(group, index));
    return false;
  }

  void refuseParts(const Op &op, ValueId value) const {
    scope().addValue(finding::TakesPartialSum, opIndex_, value,
                     fmt::format("'{}'", opInfo(op).name),
                     namesOf(plan_, partsIn((*values_)[value].layout)));
  }

  /// Reports that an op needs to know which rows a value has.
  void refuseUnknown(ValueId value) { scope().addValue(finding::RowsNeeded, opIndex_, value); }

  void refusePlaces(const Op &op, const Layout &has, const Layout &wanted) {
    auto [group, index] = differenceOf(has, wanted);
    scope().addValue(finding::RowsInOtherPlaces, opIndex_, op.operands[0], toString(has.of(index)),
                     op.kind == OpKind::Dropout ? "with the random numbers" : "in the places",
                     toString(wanted.of(index)), atIndex(group, index));
  }

  /// The first index at which the rows differ, and its group.
  std::pair<int16_t, int64_t> differenceOf(const Layout &one, const Layout &other) const {
    int16_t group = one.isSame() ? other.group : one.group;
    int64_t index = 0;
    bool isOfOneGroup = one.isSame() || other.isSame() || one.group == other.group;
    while (isOfOneGroup && index + 1 < membersOf(group) && one.of(index) == other.of(index))
      ++index;
    return {group, index};
  }

  void refuseSum(const Op &op, const Layout &part) {
    int64_t index = 1;
    while (index + 1 < membersOf(part.group) && part.of(index) == part.of(0))
      ++index;
    scope().addValue(finding::AddsDifferentRows, opIndex_, op.operands[0], toString(part.of(0)),
                     toString(part.of(index)), atIndex(part.group, index));
  }

  std::string atIndex(int16_t group, int64_t index) const {
    return group < 0
               ? std::string()
               : fmt::format(", at index {} in group '{}'", index, groupAt(plan_, group).name);
  }

  const Plan &plan_;
  LayoutTable table_;
  const Values *values_ = nullptr; ///< of the current segment
  uint32_t opIndex_ = 0;           ///< of the current op
  int64_t tokens_ = 0;             ///< tokens of one microbatch on one rank
  Axes sliceAxes_ = 0;             ///< along which ranks have slices of the same sequences
};

} // namespace

std::unique_ptr<ValueDomain> makeRows(Inspection &inspection) {
  RowDomain domain(inspection);
  return domain.hasExchanges() ? asValueDomain(std::move(domain)) : nullptr;
}

} // namespace shardc::plan::verifier
