// Follows which rows of the microbatch's tokens a value has. Ranks with parts of a layer have the
// same tokens: a reduce_scatter leaves each of them its rows of a sum, an all_gather joins rows by
// index. An op that works row by row, or sums over rows, takes the same rows of all its operands.
// What ranks with other slices of sequences exchange is VerifyOrigins.cpp's.
#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

using Key = AttrKey;

constexpr int64_t kOwn = -1;

/// Some of the microbatch's rows, in the order in which a value has them. Where parts for several
/// members lie behind each other, of columns or of slices, `part` is whose they are.
struct RowRange {
  int64_t first = 0, count = 0, part = kOwn;
  auto operator<=>(const RowRange &) const = default;
};
using RowList = std::vector<RowRange>;

int64_t countOf(const RowList &rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const RowRange &range) { return sum + range.count; });
}

void append(RowList &rows, const RowRange &more) {
  if (!rows.empty() && rows.back().first + rows.back().count == more.first &&
      rows.back().part == more.part)
    rows.back().count += more.count;
  else
    rows.push_back(more);
}

/// The same rows as part `part`, of which those of part `from` become.
RowList withPart(RowList rows, int64_t from, int64_t part) {
  RowList changed;
  for (RowRange &range : rows) {
    range.part = range.part == from ? part : range.part;
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
    text += fmt::format("{}{} to {}{}", text.empty() ? "" : ", ", range.first,
                        range.first + range.count - 1,
                        range.part == kOwn ? "" : fmt::format(" of part {}", range.part));
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
  static constexpr int kNone = 0; ///< of what has no rows, or none that are known

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
  std::vector<const Layout *> layouts_ = {nullptr};
};

struct Rows {
  int layout = LayoutTable::kNone;
  bool isTurned = false; ///< rows lie in the last dimension
  bool isKnown() const { return layout != LayoutTable::kNone; }
};

bool isOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// By the names of the op table: sums over rows and what is one of a tensor, and transposed copies.
bool isRowless(std::string_view result) {
  return isOneOf(result, {"scale", "tscale", "yscale", "seen", "m", "n", "state", "stats", "dw",
                          "dbias", "dtable", "dshard", "samples", "ss", "partial"});
}
bool isTurnedCopy(std::string_view result) { return isOneOf(result, {"t", "yt"}); }

/// Of an op's results, bit by bit.
struct ResultForms {
  uint32_t rowless = 0, turned = 0;
};

ResultForms formsOf(const OpInfo &info) {
  ResultForms forms;
  uint32_t bit = 1;
  for (std::string_view rest = info.results; !rest.empty(); bit *= 2) {
    size_t end = std::min(rest.find(' '), rest.size());
    std::string_view name = rest.substr(0, rest.find_first_of(" ?*"));
    forms.rowless |= isRowless(name) ? bit : 0;
    forms.turned |= isTurnedCopy(name) ? bit : 0;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return forms;
}

const std::vector<ResultForms> &formsByKind() {
  static const std::vector<ResultForms> forms = [] {
    std::vector<ResultForms> all;
    for (int kind = 0; kind < kOpCount; ++kind)
      all.push_back(formsOf(opInfo(static_cast<OpKind>(kind))));
    return all;
  }();
  return forms;
}

/// All segments of a role: what one leaves in a buffer, another one takes.
class RowCheck {
public:
  RowCheck(Inspection &report, uint32_t role)
      : report_(report), plan_(report.plan()), roleIndex_(role), role_(plan_.roles[role]),
        cells_(role_.cells.size(), LayoutTable::kNone) {}

  void run() {
    findTokens();
    if (tokens_ == 0 || (sliceAxes_ == 0 && !hasExchanges()))
      return;
    do
      isWrong_ = false;
    while (follow(false)); // at least one more cell is known each time
    if (isWrong_)
      follow(true);
  }

private:
  void findTokens() {
    const Op *first = nullptr;
    for (segmentIndex_ = 0; segmentIndex_ < role_.segments.size(); ++segmentIndex_) {
      segment_ = &role_.segments[segmentIndex_];
      for (opIndex_ = 0; opIndex_ < segment_->ops.size(); ++opIndex_) {
        const Op &op = segment_->ops[opIndex_];
        if (op.kind != OpKind::BatchLoad)
          continue;
        tokens_ = segment_->values[op.results[0]].type.numel();
        sliceAxes_ = axesOf(plan_, op.group);
        first = first == nullptr ? &op : first;
        if (axesOf(plan_, first->group) != sliceAxes_)
          scope().add(Rule::Origin, opIndex_,
                      "'{}' loads slices along {}, and another one along {}", opInfo(op.kind).name,
                      namesOfAny(sliceAxes_), namesOfAny(axesOf(plan_, first->group)));
      }
    }
  }

  std::string namesOfAny(Axes axes) const {
    return axes == 0 ? std::string("no axis") : namesOf(plan_, axes);
  }

  /// Whether ranks exchange anything but parts of blocks.
  bool hasExchanges() const {
    auto isExchange = [](const Op &op) {
      return (op.kind == OpKind::ReduceScatter || op.kind == OpKind::AllGather) &&
             op.getInt(Key::block) < 0;
    };
    return std::ranges::any_of(role_.segments, [&](const Segment &segment) {
      return std::ranges::any_of(segment.ops, isExchange);
    });
  }

  /// Follows all segments, and says whether more is known of cells than before.
  bool follow(bool isReport) {
    isReport_ = isReport;
    std::vector<std::optional<int>> left(cells_.size());
    for (uint32_t s = 0; s < role_.segments.size(); ++s) {
      if (report_.variantsOf(roleIndex_, s).empty())
        continue; // never run
      followSegment(s);
      for (const Segment::Boundary &out : segment_->outs) {
        const Rows &rows = rows_[out.value];
        int layout = rows.isTurned ? LayoutTable::kNone : rows.layout;
        std::optional<int> &cell = left[out.cell];
        cell = !cell || *cell == layout ? layout : LayoutTable::kNone;
      }
    }
    bool isMore = false;
    for (size_t c = 0; c < cells_.size(); ++c)
      if (role_.cells[c].kind == CellKind::Buffer && cells_[c] == LayoutTable::kNone && left[c] &&
          *left[c] != LayoutTable::kNone) {
        cells_[c] = *left[c];
        isMore = true;
      }
    return isMore;
  }

  void followSegment(uint32_t s) {
    segmentIndex_ = s;
    segment_ = &role_.segments[s];
    rows_.assign(segment_->values.size(), {});
    counted_.assign(segment_->values.size(), std::nullopt);
    for (const Segment::Boundary &in : segment_->ins)
      rows_[in.value].layout = cells_[in.cell];
    for (opIndex_ = 0; opIndex_ < segment_->ops.size(); ++opIndex_)
      followOp(segment_->ops[opIndex_]);
  }

  // ---- ops ----

  void followOp(const Op &op) {
    followCount(op);
    auto isOneOf = [&](std::initializer_list<OpKind> kinds) {
      return std::ranges::find(kinds, op.kind) != kinds.end();
    };
    if (op.kind == OpKind::BatchLoad)
      give(op, table_.add({-1, {{{0, tokens_}}}}));
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
    else if (op.kind == OpKind::Dropout)
      followDropout(op);
    else if (opInfo(op.kind).collective)
      followCollective(op);
    else if (op.kind != OpKind::ReduceRows)
      give(op, common(op, op.operands));
  }

  /// Gradients are divided by the tokens of all ranks with slices of the same sequences.
  void followCount(const Op &op) {
    constexpr size_t kCount = 4;
    if (op.kind == OpKind::TokenCount)
      counted_[op.results[0]] = Axes{0};
    else if (op.kind == OpKind::AllReduce && counted_[op.operands[0]])
      counted_[op.results[0]] =
          static_cast<Axes>(*counted_[op.operands[0]] | axesOf(plan_, op.group));
    else if ((op.kind == OpKind::CrossEntropyBwd || op.kind == OpKind::LmLossGrad) &&
             !op.getBool(Key::per_token))
      needCount(op, op.operands[kCount]);
  }

  void needCount(const Op &op, ValueId count) {
    if (!counted_[count] || *counted_[count] == sliceAxes_)
      return;
    isWrong_ = true;
    if (isReport_)
      scope().addValue(Rule::Sum, opIndex_, count,
                       "'{}' divides by '%{}', which counts tokens of ranks along {}; slices of "
                       "the same sequences lie along {}",
                       opInfo(op.kind).name, scope().nameOf(count), namesOfAny(*counted_[count]),
                       namesOfAny(sliceAxes_));
  }

  /// Of an operand that has rows as they lie.
  int rowsOf(const Op &op, size_t operand) const {
    const Rows &rows = rows_[op.operands[operand]];
    return rows.isTurned ? LayoutTable::kNone : rows.layout;
  }

  void give(const Op &op, int layout) {
    if (layout == LayoutTable::kNone)
      return;
    ResultForms forms = formsByKind()[static_cast<size_t>(op.kind)];
    for (size_t r = 0; r < op.results.size(); ++r)
      if ((forms.rowless >> r & 1) == 0)
        rows_[op.results[r]] = {layout, (forms.turned >> r & 1) !=
                                            (r == 0 && op.getBool(Key::transposed) ? 1u : 0u)};
    for (const Tie &tie : op.ties)
      if (tie.kind == Tie::Acc)
        need(op, op.results[tie.result], tie.value);
  }
  void giveOne(const Op &op, int layout) { rows_[op.results[0]] = {layout, false}; }

  /// The rows of those that have some, which are the same.
  int common(const Op &op, const std::vector<ValueId> &operands) {
    const ValueId *first = nullptr;
    for (const ValueId &operand : operands) {
      if (!rows_[operand].isKnown() || rows_[operand].isTurned)
        continue;
      if (first != nullptr && !need(op, *first, operand))
        return LayoutTable::kNone;
      first = first == nullptr ? &operand : first;
    }
    return first == nullptr ? LayoutTable::kNone : rows_[*first].layout;
  }

  /// Its random numbers are those of the rank's rows by index, of all where no group is named.
  void followDropout(const Op &op) {
    int has = rowsOf(op, 0);
    int16_t group = op.group < 0 ? int16_t{-1} : firstAlike(plan_, op.group);
    Layout all = {-1, {{{0, tokens_}}}};
    int wanted = group < 0 ? table_.add(all) : scattered(all, group);
    if (has != LayoutTable::kNone && wanted != LayoutTable::kNone && has != wanted)
      refuseDropout(op, table_.at(has), table_.at(wanted));
    give(op, has);
  }

  void followProduct(const Op &op, bool isTurnedA, bool isTurnedB) {
    const Rows &a = rows_[op.operands[0]], &b = rows_[op.operands[1]];
    bool hasRows = a.isKnown() && a.isTurned == isTurnedA;
    bool isOverRows = a.isKnown() && !hasRows && b.isKnown() && b.isTurned == isTurnedB;
    if (isOverRows)
      need(op, op.operands[0], op.operands[1]);
    if (!hasRows)
      return;
    rows_[op.operands[0]].isTurned = false;
    std::vector<ValueId> each = {op.operands[0]};
    if (op.kind == OpKind::MatMulGeluBwd)
      each.push_back(op.operands[2]);
    int layout = common(op, each);
    rows_[op.operands[0]].isTurned = isTurnedA;
    give(op, layout);
  }

  // ---- parts ----

  int viewed(const Op &op) {
    int of = rowsOf(op, 0);
    if (of == LayoutTable::kNone)
      return of;
    const Layout &whole = table_.at(of);
    int64_t coef = op.getInt(Key::coef);
    int16_t group = coef == 0 ? whole.group : firstAlike(plan_, op.group);
    if (!whole.isSame() && whole.group != group)
      return LayoutTable::kNone;
    int64_t elements = segment_->values[op.operands[0]].type.numel();
    int64_t rows = countOf(whole.of(0));
    auto rowsIn = [&](int64_t numel) -> std::optional<int64_t> {
      int64_t product = 0;
      if (__builtin_mul_overflow(numel, rows, &product) || product % elements != 0)
        return std::nullopt;
      return product / elements;
    };
    auto first = rowsIn(op.getInt(Key::offset)), step = rowsIn(coef),
         count = rowsIn(segment_->values[op.results[0]].type.numel());
    if (!first || !step || !count || isTooLong(whole.of(0), membersOf(group)))
      return LayoutTable::kNone;
    Layout part = {group, {}};
    for (int64_t i = 0; i < membersOf(group); ++i) {
      int64_t begin = *first + *step * i;
      std::optional<RowList> taken = begin < 0 ? std::nullopt : slice(whole.of(i), begin, *count);
      if (!taken)
        return LayoutTable::kNone;
      part.rows.push_back(std::move(*taken));
    }
    return table_.add(std::move(part));
  }

  int joined(const Op &op) {
    if (op.kind == OpKind::Pack && op.getInt(Key::block) >= 0)
      return LayoutTable::kNone;
    Layout whole;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      int of = rowsOf(op, i);
      if (of == LayoutTable::kNone)
        return of;
      const Layout &part = table_.at(of);
      bool isOfOneGroup = part.isSame() || whole.isSame() || part.group == whole.group;
      bool isLong =
          !whole.rows.empty() && isTooLong(whole.rows[0], static_cast<int64_t>(part.rows.size()));
      if (!isOfOneGroup || isLong)
        return LayoutTable::kNone;
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
    return table_.add(std::move(whole));
  }

  /// Columns in parts, which come to lie behind each other, each with all rows; or the other way.
  int transposed(const Op &op) {
    int of = rowsOf(op, 0);
    int64_t outer = op.getInt(Key::outer), inner = op.getInt(Key::inner);
    if (of == LayoutTable::kNone ||
        segment_->values[op.operands[0]].type.numel() == outer * inner) // a matrix
      return LayoutTable::kNone;
    return countOf(table_.at(of).of(0)) == outer ? repeated(table_.at(of), inner)
                                                 : period(table_.at(of), outer);
  }

  /// Slices of all members, each with the rows that this one has of its own.
  int merged(const Op &op) {
    int of = rowsOf(op, 0);
    if (of == LayoutTable::kNone)
      return of;
    int64_t members = op.getInt(Key::inner);
    return op.getBool(Key::inverse) ? repeated(table_.at(of), members)
                                    : period(table_.at(of), members);
  }

  /// So many parts, one for each member.
  int repeated(const Layout &part, int64_t times) {
    Layout whole = part;
    for (size_t index = 0; index < whole.rows.size(); ++index) {
      if (isTooLong(whole.rows[index], times))
        return LayoutTable::kNone;
      whole.rows[index].clear();
      for (int64_t i = 0; i < times; ++i)
        for (const RowRange &range : withPart(part.rows[index], kOwn, i))
          append(whole.rows[index], range);
    }
    return table_.add(std::move(whole));
  }

  /// What the layout has so many times, as parts for as many members or from them, if it does.
  int period(const Layout &whole, int64_t times) {
    if (times > kMembersMax || !isOfParts(whole, times))
      return LayoutTable::kNone;
    Layout part = whole;
    for (size_t index = 0; index < part.rows.size(); ++index) {
      int64_t count = countOf(whole.rows[index]) / times;
      for (int64_t i = 0; i < times; ++i) {
        std::optional<RowList> next = slice(whole.rows[index], i * count, count);
        if (!next)
          return LayoutTable::kNone;
        next = withPart(std::move(*next), i, kOwn);
        if (i > 0 && part.rows[index] != *next)
          return LayoutTable::kNone;
        part.rows[index] = std::move(*next);
      }
    }
    return table_.add(std::move(part));
  }

  /// Each member gives the others their parts, all of the same rows, and gets its own from them.
  int exchanged(const Layout &whole, int64_t members) {
    if (!whole.isSame() || members > kMembersMax || !isOfParts(whole, members))
      return LayoutTable::kNone;
    Layout part = {-1, {{}}};
    int64_t count = countOf(whole.rows[0]) / members;
    for (int64_t i = 0; i < members; ++i) {
      std::optional<RowList> next = slice(whole.rows[0], i * count, count);
      if (!next || (next->front().part != i && members > 1))
        return LayoutTable::kNone;
      for (const RowRange &range : withPart(std::move(*next), i, kOwn))
        append(part.rows[0], range);
    }
    return table_.add(std::move(part));
  }

  // ---- collectives ----

  void followCollective(const Op &op) {
    if (op.operands.empty() || op.results.empty() || op.getInt(Key::block) >= 0 || op.group < 0)
      return;
    int of = rowsOf(op, 0);
    Axes axes = axesOf(plan_, op.group);
    if (of == LayoutTable::kNone || axes == 0 || op.kind == OpKind::Recv)
      return giveOne(op, op.kind == OpKind::Recv ? LayoutTable::kNone : of);
    const Layout &part = table_.at(of);
    bool isOfSlices = (axes & ~sliceAxes_) == 0;
    int16_t group = firstAlike(plan_, op.group);
    if (isOfSlices && op.kind == OpKind::Shift)
      return giveOne(op, part.isSame() ? of : LayoutTable::kNone);
    if (isOfSlices && op.kind == OpKind::AllToAll)
      return giveOne(op, exchanged(part, membersOf(group)));
    if (!part.isSame() && part.group != group) {
      Axes others = axesOf(plan_, part.group);
      if (op.kind == OpKind::AllGather && (axes & others) == 0) // all have the same of these
        giveOne(op, gathered(part, group));
      return;
    }
    if (op.kind == OpKind::AllGather)
      return giveOne(op, gathered(part, group));
    if (op.kind != OpKind::AllReduce && op.kind != OpKind::ReduceScatter)
      return;
    if (!part.isSame())
      return refuseSum(op, part);
    giveOne(op, op.kind == OpKind::AllReduce ? of : scattered(part, group));
  }

  int gathered(const Layout &part, int16_t group) {
    bool isApart = part.group == group;
    if (isTooLong(part.of(0), membersOf(group)))
      return LayoutTable::kNone;
    Layout whole = {isApart ? int16_t{-1} : part.group, {}};
    whole.rows.resize(isApart ? 1 : part.rows.size());
    for (size_t index = 0; index < whole.rows.size(); ++index)
      for (int64_t i = 0; i < membersOf(group); ++i)
        for (const RowRange &range : part.of(isApart ? i : static_cast<int64_t>(index)))
          append(whole.rows[index], range);
    return table_.add(std::move(whole));
  }

  int scattered(const Layout &whole, int16_t group) {
    int64_t members = membersOf(group), rows = countOf(whole.of(0));
    if (rows % members != 0 || isTooLong(whole.of(0), members))
      return LayoutTable::kNone;
    Layout part = {group, {}};
    for (int64_t i = 0; i < members; ++i)
      part.rows.push_back(
          withPart(*slice(whole.of(0), i * (rows / members), rows / members), i, kOwn));
    return table_.add(std::move(part));
  }

  /// Larger groups have no parts of layers, and longer lists take too much work.
  static constexpr int64_t kMembersMax = 1024;
  static constexpr size_t kRangesMax = 4096;

  bool isTooLong(const RowList &rows, int64_t times) const {
    return times > kMembersMax || rows.size() * static_cast<size_t>(times) > kRangesMax;
  }

  /// Whether its rows are so many equal parts with some rows each.
  static bool isOfParts(const Layout &whole, int64_t parts) {
    return std::ranges::all_of(whole.rows, [&](const RowList &rows) {
      int64_t count = countOf(rows);
      return count >= parts && count % parts == 0;
    });
  }

  int64_t membersOf(int16_t group) const { return group < 0 ? 1 : plan_.groupSize(group); }

  // ---- findings ----

  Scope scope() const { return {report_, role_, *segment_, roleIndex_, segmentIndex_}; }

  /// False, with a finding, if both have rows, and other ones.
  bool need(const Op &op, ValueId one, ValueId other) {
    int a = rows_[one].layout, b = rows_[other].layout;
    if (a == LayoutTable::kNone || b == LayoutTable::kNone || a == b)
      return true;
    isWrong_ = true;
    if (!isReport_)
      return false;
    const Layout &its = table_.at(a), &others = table_.at(b);
    auto [group, index] = differenceOf(its, others);
    scope().addValue(Rule::Origin, opIndex_, other,
                     "'{}' takes rows {} of '%{}', and rows {} of '%{}'{}", opInfo(op.kind).name,
                     toString(its.of(index)), scope().nameOf(one), toString(others.of(index)),
                     scope().nameOf(other), atIndex(group, index));
    return false;
  }

  void refuseDropout(const Op &op, const Layout &has, const Layout &wanted) {
    isWrong_ = true;
    auto [group, index] = differenceOf(has, wanted);
    if (isReport_)
      scope().addValue(Rule::Origin, opIndex_, op.operands[0],
                       "'{}' takes rows {} of '%{}', with the random numbers of rows {}{}",
                       opInfo(op.kind).name, toString(has.of(index)),
                       scope().nameOf(op.operands[0]), toString(wanted.of(index)),
                       atIndex(group, index));
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
    isWrong_ = true;
    int64_t index = 1;
    while (index + 1 < membersOf(part.group) && part.of(index) == part.of(0))
      ++index;
    if (isReport_)
      scope().addValue(Rule::Origin, opIndex_, op.operands[0],
                       "'{}' adds rows {} of '%{}' to rows {}{}", opInfo(op.kind).name,
                       toString(part.of(0)), scope().nameOf(op.operands[0]),
                       toString(part.of(index)), atIndex(part.group, index));
  }

  std::string atIndex(int16_t group, int64_t index) const {
    return group < 0 ? std::string()
                     : fmt::format(", at index {} in group '{}'", index,
                                   plan_.groups[static_cast<size_t>(group)].name);
  }

  Inspection &report_;
  const Plan &plan_;
  uint32_t roleIndex_, segmentIndex_ = 0, opIndex_ = 0;
  const Role &role_;
  const Segment *segment_ = nullptr;
  LayoutTable table_;
  std::vector<int> cells_;                   ///< layouts, by cell
  std::vector<Rows> rows_;                   ///< by value of the segment
  std::vector<std::optional<Axes>> counted_; ///< by value: over which it is a number of tokens
  int64_t tokens_ = 0;                       ///< of a microbatch of a rank
  Axes sliceAxes_ = 0; ///< along which ranks have slices of the same sequences
  bool isReport_ = false, isWrong_ = false;
};

} // namespace

void checkRows(Inspection &inspection, uint32_t role) { RowCheck(inspection, role).run(); }

} // namespace shardc::plan::verifier
