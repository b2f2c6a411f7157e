// Follows which rows of the microbatch's tokens a value has. Ranks with parts of a layer have the
// same tokens: a reduce_scatter leaves each of them its rows of a sum, an all_gather joins rows by
// index. Ranks with slices of sequences exchange whole slices, or columns of them. An op that works
// row by row, or sums over rows, takes the same rows of all its operands. Whose slice a value is of
// that ranks shift around, VerifyOrigins.cpp follows.
#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/plan/FactorExtents.h"
#include "runtime/verify/VerifyFlow.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

using Key = AttrKey;

constexpr int64_t kOwn = -1;

/// Some of the microbatch's rows, in the order in which a value has them. Of values that ranks with
/// slices of sequences exchange, `slice` says whose slice the rows are of, and `column` whose
/// columns of these rows: those of the member with that index, or the rank's own.
struct RowRange {
  int64_t first = 0, count = 0, slice = kOwn, column = kOwn;
  auto operator<=>(const RowRange &) const = default;
};
using RowList = std::vector<RowRange>;

int64_t countOf(const RowList &rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const RowRange &range) { return sum + range.count; });
}

void append(RowList &rows, const RowRange &more) {
  if (!rows.empty() && rows.back().first + rows.back().count == more.first &&
      rows.back().slice == more.slice && rows.back().column == more.column)
    rows.back().count += more.count;
  else
    rows.push_back(more);
}

/// Whose rows: the member of `RowRange` that says it.
using Whose = int64_t RowRange::*;

/// The same rows, if they are that member's, as another member's. `from` and `to` may be the rank's
/// own, which is no member's in either respect.
std::optional<RowList> moved(const RowList &rows, Whose whose, int64_t from, int64_t to) {
  RowList changed;
  for (RowRange range : rows) {
    RowRange wanted{range.first, range.count};
    wanted.*whose = from;
    if (range != wanted)
      return std::nullopt;
    range.*whose = to;
    append(changed, range);
  }
  return changed;
}

/// Those from the `first`-th on; nothing if there are not so many.
std::optional<RowList> slice(const RowList &rows, int64_t first, int64_t count) {
  RowList taken;
  for (RowRange range : rows) {
    int64_t skipped = std::clamp<int64_t>(first, 0, range.count);
    first -= skipped;
    range.first += skipped;
    range.count = std::min(range.count - skipped, count);
    count -= range.count;
    if (range.count > 0)
      append(taken, range);
  }
  return first == 0 && count == 0 ? std::optional(taken) : std::nullopt;
}

std::string toString(const RowList &rows) {
  std::string text;
  for (const RowRange &range : rows)
    text += fmt::format("{}{} to {}{}{}", text.empty() ? "" : ", ", range.first,
                        range.first + range.count - 1,
                        range.slice == kOwn ? "" : fmt::format(" of slice {}", range.slice),
                        range.column == kOwn ? "" : fmt::format(" of part {}", range.column));
  return text;
}

/// The rows of a value: those of each index in a group, or of all ranks.
struct Layout {
  int16_t group = -1;
  std::vector<RowList> rows; ///< by index; one if all have the same

  auto operator<=>(const Layout &) const = default;
  bool isSame() const { return group < 0; }
  const RowList &of(int64_t index) const { return rows[isSame() ? 0 : static_cast<size_t>(index)]; }
};

/// Layouts are equal if their numbers are.
class LayoutTable {
public:
  static constexpr int kNone = 0;    ///< of what has no rows
  static constexpr int kUnknown = 1; ///< of what has some, of which it is not known which they are

  int add(Layout layout) {
    if (std::ranges::all_of(layout.rows, [&](const RowList &r) { return r == layout.rows[0]; }))
      layout.group = -1, layout.rows.resize(1);
    auto [at, isNew] = numbers_.try_emplace(std::move(layout), static_cast<int>(layouts_.size()));
    if (isNew)
      layouts_.push_back(&at->first);
    return at->second;
  }
  const Layout &at(int number) const { return *layouts_[static_cast<size_t>(number)]; }

private:
  std::map<Layout, int> numbers_;
  std::vector<const Layout *> layouts_ = {nullptr, nullptr};
};

struct Rows {
  bool isTurned = false; ///< rows lie in the last dimension
  int layout = LayoutTable::kNone;

  bool isKnown() const { return layout > LayoutTable::kUnknown; }
  bool operator==(const Rows &) const = default;
  void join(const Rows &) { *this = {false, LayoutTable::kUnknown}; }
};

/// Whether a dimension of one value goes along the same factors as one of another value.
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

  /// Whether ranks exchange anything but parts of blocks, or take random numbers of some rows.
  bool hasExchanges() const {
    auto isExchange = [](const Op &op) {
      return ((op.kind == OpKind::ReduceScatter || op.kind == OpKind::AllGather) &&
              op.getInt(Key::block) < 0) ||
             (isByPlace(op) && op.group >= 0);
    };
    return tokens_ > 0 && (sliceAxes_ != 0 || hasOp(plan_, isExchange));
  }

  /// Whether it depends on a row's place among those of all members what is made of it.
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
    else if (isOneOf({OpKind::MatMul, OpKind::MatMulGelu, OpKind::MatMulGeluBwd}))
      followProduct(op, op.getBool(Key::trans_a), op.getBool(Key::trans_b));
    else if (op.kind == OpKind::MatMulScaled)
      followProduct(op, false, true);
    else if (isByPlace(op))
      followByPlace(op);
    else if (opInfo(op).hasSlices)
      followParts(op);
    else if (opInfo(op).collective)
      followCollective(op);
    else
      give(op, common(op, op.operands), firstWithRows(op));
  }

  const Scope &scope() const { return values_->scope; }
  Rows &rows(ValueId value) { return (*values_)[value]; }
  int64_t numelOf(ValueId value) const { return scope().value(value).type.numel(); }
  static bool isKnown(int layout) { return layout > LayoutTable::kUnknown; }

  /// Of an operand that has rows as they lie.
  int rowsOf(const Op &op, size_t operand) {
    const Rows &of = rows(op.operands[operand]);
    return of.isTurned ? LayoutTable::kUnknown : of.layout;
  }

  void load(const Op &op) {
    for (ValueId result : op.results)
      if (numelOf(result) == tokens_)
        rows(result).layout = table_.add({-1, {{{0, tokens_}}}});
  }

  /// A result has rows if it goes along the factors of the rows of operand k: in its first
  /// dimension, or turned in its last one. Counted rows are not rows of tokens: VerifyCounts.cpp
  /// follows which runs they are.
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
      rows(op.results[r]) = {isCopy || (value.turnedBy && op.getBool(*value.turnedBy)), layout};
    }
  }
  void giveOne(const Op &op, int layout) { rows(op.results[0]).layout = layout; }

  /// The first operand that has rows as they lie, or the first that has some turned.
  size_t firstWithRows(const Op &op) {
    std::optional<size_t> turned;
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const Rows &own = rows(op.operands[k]);
      if (own.layout != LayoutTable::kNone && !own.isTurned)
        return k;
      if (own.layout != LayoutTable::kNone && !turned)
        turned = k;
    }
    return turned.value_or(0);
  }

  /// The rows of those that have some, which are the same.
  int common(const Op &op, const std::vector<ValueId> &operands) {
    auto known = std::ranges::find_if(operands, [&](ValueId operand) {
      return rows(operand).isKnown() && !rows(operand).isTurned;
    });
    for (ValueId operand : operands)
      if (known == operands.end() && rows(operand).layout == LayoutTable::kUnknown)
        return LayoutTable::kUnknown;
    if (known == operands.end())
      return LayoutTable::kNone;
    for (ValueId operand : operands)
      if (!rows(operand).isTurned && !need(op, *known, operand))
        return LayoutTable::kUnknown;
    return rows(*known).layout;
  }

  /// Queries may be of other rows than the keys that they are held against.
  void followParts(const Op &op) {
    bool isForward = op.kind == OpKind::AttentionPart;
    const PartOperands &at = isForward ? kPartOperands : kPartBwdOperands;
    auto of = [&](std::initializer_list<size_t> operands) {
      std::vector<ValueId> values;
      for (size_t operand : operands)
        values.push_back(op.operands[operand]);
      return common(op, values);
    };
    constexpr OpKind kBwd = OpKind::AttentionPartBwd;
    int queries = isForward ? of({at.q, at.queryPositions, at.queryDocs})
                            : of({operandIndex<kBwd>("do"), at.q, at.queryPositions, at.queryDocs,
                                  operandIndex<kBwd>("o"), operandIndex<kBwd>("lse")});
    int keys = of({at.k, at.v, at.positions, at.docs});
    for (size_t r = 0; r < op.results.size(); ++r)
      rows(op.results[r]).layout = isForward || r == 0 ? queries : keys;
  }

  /// Places are those of the rank's rows by index, of all where no group is named.
  void followByPlace(const Op &op) {
    int has = rowsOf(op, 0);
    int16_t group = op.group < 0 ? int16_t{-1} : firstAlike(plan_, op.group);
    Layout all = {-1, {{{0, tokens_}}}};
    int wanted = group < 0 ? table_.add(all) : scattered(all, group);
    if (has == LayoutTable::kUnknown)
      refuseUnknown(op, op.operands[0]);
    else if (isKnown(has) && isKnown(wanted) && has != wanted)
      refusePlaces(op, table_.at(has), table_.at(wanted));
    give(op, has, 0);
  }

  void followProduct(const Op &op, bool isTurnedA, bool isTurnedB) {
    const ValueId first = op.operands[kFirstFactor], second = op.operands[kSecondFactor];
    const Rows &a = rows(first), &b = rows(second);
    bool hasRows = a.layout != LayoutTable::kNone && a.isTurned == isTurnedA;
    bool hasBoth = a.layout != LayoutTable::kNone && b.layout != LayoutTable::kNone;
    bool isOverRows = hasBoth && !hasRows && b.isTurned == isTurnedB;
    if (isOverRows && a.isKnown())
      need(op, first, second);
    else if (isOverRows)
      refuseUnknown(op, first);
    if (!hasRows)
      return;
    if (op.kind == OpKind::MatMulGeluBwd)
      need(op, first, operandNamed<OpKind::MatMulGeluBwd>(op, "x"));
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
    Layout part = {group, {}};
    for (int64_t i = 0; i < membersOf(group); ++i) {
      int64_t begin = *first + *step * i;
      std::optional<RowList> own = begin < 0 ? std::nullopt : slice(whole.of(i), begin, *taken);
      if (!own)
        return LayoutTable::kUnknown;
      part.rows.push_back(std::move(*own));
    }
    return ofOwnSlices(std::move(part));
  }

  /// Among ranks with slices of the same sequences, each of which takes its own one of all.
  int ofOwnSlices(Layout part) {
    bool isOfSlices = part.group >= 0 && (axesOf(plan_, part.group) & ~sliceAxes_) == 0;
    std::optional<RowList> same;
    for (int64_t i = 0; isOfSlices && i < membersOf(part.group); ++i) {
      std::optional<RowList> own = moved(part.of(i), &RowRange::slice, i, kOwn);
      isOfSlices = own && (!same || *same == *own);
      same = std::move(own);
    }
    return table_.add(isOfSlices ? Layout{-1, {std::move(*same)}} : std::move(part));
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
      if (!isOfOneGroup || isLong)
        return LayoutTable::kUnknown;
      if (whole.rows.empty())
        whole.rows.resize(1);
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

  /// What `change` makes of the rows of each index; kUnknown where it makes nothing of some.
  template <typename Fn> int changed(int of, const Fn &change) {
    if (!isKnown(of))
      return of;
    Layout layout = table_.at(of);
    for (RowList &list : layout.rows) {
      std::optional<RowList> next = change(list);
      if (!next)
        return LayoutTable::kUnknown;
      list = std::move(*next);
    }
    return table_.add(std::move(layout));
  }

  /// The `i`-th of so many equal parts with some rows each; nothing if they are no such parts.
  static std::optional<RowList> partOf(const RowList &rows, int64_t i, int64_t parts) {
    int64_t count = countOf(rows);
    if (parts > kMembersMax || count < parts || count % parts != 0)
      return std::nullopt;
    return slice(rows, i * (count / parts), count / parts);
  }

  /// Own rows as often as there are members, each time as those of one of them.
  static std::optional<RowList> ofEach(const RowList &rows, int64_t members, Whose whose) {
    if (isTooLong(rows, members))
      return std::nullopt;
    RowList whole;
    for (int64_t i = 0; i < members; ++i) {
      std::optional<RowList> part = moved(rows, whose, kOwn, i);
      if (!part)
        return std::nullopt;
      for (const RowRange &range : *part)
        append(whole, range);
    }
    return whole;
  }
  /// The other way: the same rows of each member, one after the other, become the own ones.
  static std::optional<RowList> ofOwn(const RowList &rows, int64_t members, Whose whose) {
    std::optional<RowList> own;
    for (int64_t i = 0; i < members; ++i) {
      std::optional<RowList> part = partOf(rows, i, members);
      part = part ? moved(*part, whose, i, kOwn) : std::nullopt;
      if (!part || (own && *own != *part))
        return std::nullopt;
      own = std::move(part);
    }
    return own;
  }

  /// Columns of each row in parts, which come to lie behind each other, each with all rows; or the
  /// other way. Extents that are neither leave no rows whole.
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

  /// Chunks of members' slices in the order of sequences, or the other way (see the op table).
  int merged(const Op &op) {
    int64_t samples = op.getInt(Key::outer), members = op.getInt(Key::inner);
    bool isInverse = op.getBool(Key::inverse);
    return changed(rowsOf(op, 0), [&](const RowList &rows) -> std::optional<RowList> {
      int64_t chunks = 2 * members * samples, size = countOf(rows) / std::max<int64_t>(chunks, 1);
      if (size == 0 || countOf(rows) % chunks != 0 || isTooLong(rows, chunks))
        return std::nullopt;
      RowList result;
      for (int64_t k = 0; k < chunks; ++k) {
        int64_t from = isInverse ? inSequences(k, samples, members) : inSlices(k, samples, members);
        std::optional<RowList> chunk = slice(rows, from * size, size);
        for (const RowRange &range : *chunk)
          append(result, range);
      }
      return result;
    });
  }

  /// Where the k-th chunk of all sequences is among members' slices [member, sample, half].
  static int64_t inSlices(int64_t k, int64_t samples, int64_t members) {
    int64_t sample = k / (2 * members), chunk = k % (2 * members);
    int64_t half = chunk < members ? 0 : 1;
    int64_t member = half == 0 ? chunk : 2 * members - 1 - chunk;
    return (member * samples + sample) * 2 + half;
  }
  /// Where the k-th half of slices is among the chunks of all sequences.
  static int64_t inSequences(int64_t k, int64_t samples, int64_t members) {
    int64_t half = k % 2, sample = k / 2 % samples, member = k / 2 / samples;
    return sample * 2 * members + (half == 0 ? member : 2 * members - 1 - member);
  }

  /// Each member gives the others the columns of its slice, or its columns of their slices: columns
  /// of the own slice go out, and come back as own columns of each slice.
  int exchanged(int of, int64_t members) {
    return changed(of, [&](const RowList &rows) -> std::optional<RowList> {
      bool isOfSlices = !rows.empty() && rows.front().slice != kOwn;
      Whose from = isOfSlices ? &RowRange::slice : &RowRange::column,
            to = isOfSlices ? &RowRange::column : &RowRange::slice;
      std::optional<RowList> own = ofOwn(rows, members, from);
      return own && !own->empty() ? ofEach(*own, members, to) : std::nullopt;
    });
  }

  // ---- collectives ----

  void followCollective(const Op &op) {
    if (op.operands.empty() || op.results.empty() || op.getInt(Key::block) >= 0 || op.group < 0)
      return;
    int of = rowsOf(op, 0);
    Axes axes = axesOf(plan_, op.group);
    if (of == LayoutTable::kUnknown && isSum(opInfo(op).collective->kind) && axes != 0)
      refuseUnknown(op, op.operands[0]);
    if (!isKnown(of) || axes == 0)
      return giveOne(op, of);
    int16_t group = firstAlike(plan_, op.group);
    if ((axes & ~sliceAxes_) == 0)
      return giveOne(op, overSlices(op, of, membersOf(group)));
    giveOne(op, overRows(op, table_.at(of), of, group));
  }

  /// Among ranks with slices of the same sequences.
  int overSlices(const Op &op, int of, int64_t members) {
    if (op.kind == OpKind::AllToAll)
      return exchanged(of, members);
    if (op.kind == OpKind::AllGather)
      return changed(of,
                     [&](const RowList &rows) { return ofEach(rows, members, &RowRange::slice); });
    if (op.kind == OpKind::ReduceScatter)
      return changed(of,
                     [&](const RowList &rows) { return ofOwn(rows, members, &RowRange::slice); });
    return of; // another member's, or the sum
  }

  /// Among ranks with the same tokens.
  int overRows(const Op &op, const Layout &part, int of, int16_t group) {
    bool isGather = op.kind == OpKind::AllGather;
    // Rows of another group's members: only a gather over other axes leaves them in order.
    if (!part.isSame() && part.group != group) // all have the same of other axes' rows
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

  /// What members have of other rows lies behind each other; of the same rows, they have other
  /// columns.
  int gathered(const Layout &part, int16_t group) {
    if (isTooLong(part.of(0), membersOf(group)))
      return LayoutTable::kUnknown;
    int64_t members = membersOf(group);
    if (part.group != group)
      return changed(table_.add(part),
                     [&](const RowList &rows) { return ofEach(rows, members, &RowRange::column); });
    Layout whole = {-1, {{}}};
    for (int64_t i = 0; i < members; ++i)
      for (const RowRange &range : part.of(i))
        append(whole.rows[0], range);
    return table_.add(std::move(whole));
  }

  int scattered(const Layout &whole, int16_t group) {
    int64_t members = membersOf(group);
    Layout part = {group, {}};
    for (int64_t i = 0; i < members; ++i) {
      std::optional<RowList> own = partOf(whole.of(0), i, members);
      if (!own || isTooLong(whole.of(0), members))
        return LayoutTable::kUnknown;
      std::optional<RowList> ofColumns = moved(*own, &RowRange::column, i, kOwn);
      part.rows.push_back(ofColumns ? std::move(*ofColumns) : std::move(*own));
    }
    return table_.add(std::move(part));
  }

  /// Larger groups have no parts of layers, and longer lists take too much work.
  static constexpr int64_t kMembersMax = 1024;
  static constexpr size_t kRangesMax = 4096;

  static bool isTooLong(const RowList &rows, int64_t times) {
    return times > kMembersMax || rows.size() * static_cast<size_t>(times) > kRangesMax;
  }

  int64_t membersOf(int16_t group) const { return group < 0 ? 1 : plan_.groupSize(group); }

  // ---- findings ----

  /// False, with a finding, if both have rows, and other ones.
  bool need(const Op &op, ValueId one, ValueId other) {
    int a = rows(one).layout, b = rows(other).layout;
    if (!isKnown(a) || b == LayoutTable::kNone || a == b)
      return true;
    if (!values_->isReport)
      return false;
    if (!isKnown(b)) {
      scope().addValue(finding::RowsUnknown, opIndex_, other, opInfo(op).name,
                       toString(table_.at(a).of(0)), scope().nameOf(one), scope().nameOf(other));
      return false;
    }
    const Layout &its = table_.at(a), &others = table_.at(b);
    auto [group, index] = differenceOf(its, others);
    scope().addValue(finding::RowsDiffer, opIndex_, other, opInfo(op).name, toString(its.of(index)),
                     scope().nameOf(one), toString(others.of(index)), scope().nameOf(other),
                     atIndex(group, index));
    return false;
  }

  /// An op that needs to know which rows a value has.
  void refuseUnknown(const Op &op, ValueId value) {
    if (values_->isReport)
      scope().addValue(finding::RowsNeeded, opIndex_, value, opInfo(op).name,
                       scope().nameOf(value));
  }

  void refusePlaces(const Op &op, const Layout &has, const Layout &wanted) {
    auto [group, index] = differenceOf(has, wanted);
    if (values_->isReport)
      scope().addValue(finding::RowsInOtherPlaces, opIndex_, op.operands[0], opInfo(op).name,
                       toString(has.of(index)), scope().nameOf(op.operands[0]),
                       op.kind == OpKind::Dropout ? "with the random numbers" : "in the places",
                       toString(wanted.of(index)), atIndex(group, index));
  }

  /// The first index with other rows, and in which group.
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
    if (values_->isReport)
      scope().addValue(finding::AddsDifferentRows, opIndex_, op.operands[0], opInfo(op).name,
                       toString(part.of(0)), scope().nameOf(op.operands[0]),
                       toString(part.of(index)), atIndex(part.group, index));
  }

  std::string atIndex(int16_t group, int64_t index) const {
    return group < 0 ? std::string()
                     : fmt::format(", at index {} in group '{}'", index,
                                   plan_.groups[static_cast<size_t>(group)].name);
  }

  const Plan &plan_;
  LayoutTable table_;
  const Values *values_ = nullptr; ///< of the segment under way
  uint32_t opIndex_ = 0;           ///< of the op under way
  int64_t tokens_ = 0;             ///< of a microbatch of a rank
  Axes sliceAxes_ = 0;             ///< along which ranks have slices of the same sequences
};

} // namespace

std::unique_ptr<ValueDomain> makeRows(Inspection &inspection) {
  RowDomain domain(inspection);
  return domain.hasExchanges() ? asValueDomain(std::move(domain)) : nullptr;
}

} // namespace shardc::plan::verifier
