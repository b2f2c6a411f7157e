// The tokens whose rows each rank's values have: an op with several operands must take the same
// rows of all of them, and ranks must add the same rows.
#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "Terms.h"

namespace shardc::plan::oracle {
namespace {

/// The token of each row. If parts for several members follow each other, (i + 1) * kPart is added
/// to the tokens of member i's part.
using RowList = std::vector<int64_t>;
constexpr int64_t kPart = int64_t{1} << 32;

bool isAnyOf(OpKind kind, std::initializer_list<OpKind> kinds) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

/// Whether the result has rows of tokens: sums over rows have none, and quantized values are not
/// followed.
bool keepsRows(const Op &op, uint32_t result) {
  if (op.epilogue != Epilogue::None)
    return false;
  OpKind kind = op.kind;
  if (isAnyOf(kind, {OpKind::RmsNormBwd, OpKind::LayerNormBwd}))
    return result == 0 || (kind == OpKind::RmsNormBwd && result == 2);
  if (kind == OpKind::LmLossGrad)
    return result < 2;
  bool isQuantized = std::ranges::any_of(opInfo(kind).scaleOf, [](int8_t of) { return of >= 0; });
  return !isQuantized &&
         !isAnyOf(kind, {OpKind::TokenCount, OpKind::Amax, OpKind::LossAdd, OpKind::EvalAdd,
                         OpKind::ReduceRows, OpKind::VocabStats, OpKind::EmbeddingBwd,
                         OpKind::EmbeddingShardBwd, OpKind::MakeRuns, OpKind::Dispatch,
                         OpKind::ExpertLoad, OpKind::Tally});
}

class RowCheck {
public:
  RowCheck(const Positions &positions, const std::vector<Term> &terms)
      : positions_(positions), terms_(terms), rows_(terms.size(), nullptr),
        isFollowed_(terms.size(), false) {}

  std::string find() {
    for (size_t i = 0; i < terms_.size() && problem_.empty(); ++i)
      of(static_cast<int>(i));
    return problem_;
  }

private:
  using Rows = const RowList *; ///< null: none, or unknown; equal lists have one address

  Rows keep(RowList rows) { return &*lists_.insert(std::move(rows)).first; }

  /// The rows of a term. Terms of other members of a collective may have larger indices.
  Rows of(int index) {
    auto i = static_cast<size_t>(index);
    const Term &term = terms_[i];
    if (isFollowed_[i] || term.op == nullptr)
      return rows_[i];
    isFollowed_[i] = true;
    rows_[i] = made(term);
    for (int added : term.added)
      need(term, rows_[i], of(added));
    return rows_[i];
  }

  Rows need(const Term &term, Rows one, Rows other) {
    if (one != nullptr && other != nullptr && one != other)
      problem_ = fmt::format("rank {}: '{}' takes rows of other tokens together", term.rank,
                             opInfo(*term.op).name);
    return one == nullptr ? other : one;
  }

  Rows made(const Term &term) {
    const Op &op = *term.op;
    if (op.kind == OpKind::BatchLoad)
      return loaded(term);
    if (op.kind == OpKind::View)
      return seen(term);
    if (isAnyOf(op.kind, {OpKind::Pack, OpKind::Join}))
      return blockNamed(op) >= 0 ? nullptr : behindEachOther(term.from);
    if (op.kind == OpKind::Transpose)
      return transposed(term);
    if (op.kind == OpKind::MergeSlices) {
      Rows part = of(term.from[0]);
      int64_t members = op.getInt(AttrKey::inner);
      return op.getBool(AttrKey::inverse) ? parts(part, members) : once(part, members);
    }
    if (isAnyOf(op.kind,
                {OpKind::MatMul, OpKind::MatMulAdd, OpKind::MatMulGelu, OpKind::MatMulGeluBwd}))
      return product(term);
    if (op.kind == OpKind::Dropout)
      return dropped(term);
    return isMeeting(op) ? met(term) : computed(term);
  }

  /// Dropout uses the random numbers of the rows at the rank's index in the group.
  Rows dropped(const Term &term) {
    Rows rows = of(term.from[0]);
    if (rows == nullptr)
      return nullptr;
    RowList wanted(rows->size());
    std::iota(wanted.begin(), wanted.end(),
              positions_.in(term.op->group, term.rank) * static_cast<int64_t>(rows->size()));
    need(term, rows, keep(std::move(wanted)));
    return rows;
  }

  Rows loaded(const Term &term) {
    constexpr uint32_t kSamples = 5;
    RowList all(static_cast<size_t>(term.numel));
    std::iota(all.begin(), all.end(), 0);
    return term.result == kSamples ? nullptr : keep(std::move(all));
  }

  Rows computed(const Term &term) {
    Rows rows = nullptr;
    for (int from : term.from)
      rows = need(term, rows, of(from));
    return keepsRows(*term.op, term.result) ? rows : nullptr;
  }

  /// A product has the rows of its first factor, unless it sums over rows, which must be equal in
  /// both.
  Rows product(const Term &term) {
    const Op &op = *term.op;
    if (op.getBool(AttrKey::trans_a)) {
      if (!op.getBool(AttrKey::trans_b))
        need(term, of(term.from[0]), of(term.from[1]));
      return nullptr;
    }
    bool takesRows = op.kind == OpKind::MatMulGeluBwd || op.kind == OpKind::MatMulAdd;
    return takesRows ? need(term, of(term.from[0]), of(term.from[2])) : of(term.from[0]);
  }

  Rows seen(const Term &view) {
    Rows whole = of(view.from[0]);
    if (whole == nullptr)
      return nullptr;
    auto count = static_cast<int64_t>(whole->size());
    int64_t elements = terms_[static_cast<size_t>(view.from[0])].numel;
    if (view.begin * count % elements != 0 || view.numel * count % elements != 0)
      return nullptr;
    auto first = whole->begin() + view.begin * count / elements;
    return keep(RowList(first, first + view.numel * count / elements));
  }

  Rows behindEachOther(const std::vector<int> &parts) {
    RowList whole;
    for (int part : parts) {
      if (of(part) == nullptr)
        return nullptr;
      whole.insert(whole.end(), of(part)->begin(), of(part)->end());
    }
    return keep(std::move(whole));
  }

  Rows transposed(const Term &term) {
    Rows rows = of(term.from[0]);
    int64_t outer = term.op->getInt(AttrKey::outer), inner = term.op->getInt(AttrKey::inner);
    if (rows == nullptr || term.numel == outer * inner)
      return nullptr;
    return static_cast<int64_t>(rows->size()) == outer ? parts(rows, inner) : once(rows, outer);
  }

  /// Returns `count` rows from `first` on; rows of member i's part lose their kPart marker.
  static RowList ownOf(const RowList &rows, int64_t first, int64_t count, int64_t i) {
    RowList own(rows.begin() + first, rows.begin() + first + count);
    for (int64_t &row : own)
      row -= row / kPart == i + 1 ? (i + 1) * kPart : 0;
    return own;
  }

  /// A list with a part for each of `count` members.
  Rows parts(Rows part, int64_t count) {
    if (part == nullptr)
      return nullptr;
    RowList whole;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t row : *part)
        whole.push_back(row < kPart ? row + (i + 1) * kPart : row);
    return keep(std::move(whole));
  }

  /// The rows that each of the members' parts of a list has; null if the parts differ.
  Rows once(Rows whole, int64_t members) {
    if (whole == nullptr || static_cast<int64_t>(whole->size()) % members != 0)
      return nullptr;
    int64_t count = static_cast<int64_t>(whole->size()) / members;
    RowList part = ownOf(*whole, 0, count, 0);
    for (int64_t i = 1; i < members; ++i)
      if (ownOf(*whole, i * count, count, i) != part)
        return nullptr;
    return keep(std::move(part));
  }

  /// Each member receives its part from all members, which have the same rows.
  Rows exchanged(Rows whole, const Term &term) {
    auto members = static_cast<int64_t>(term.members.size());
    if (whole == nullptr || static_cast<int64_t>(whole->size()) % members != 0)
      return nullptr;
    int64_t count = static_cast<int64_t>(whole->size()) / members;
    RowList got;
    for (int64_t i = 0; i < members; ++i) {
      RowList own = ownOf(*whole, term.position * count, count, term.position);
      if (members > 1 && own[0] == (*whole)[static_cast<size_t>(term.position * count)])
        return nullptr; // the rows were not a part of this member
      got.insert(got.end(), own.begin(), own.end());
    }
    return keep(std::move(got));
  }

  Rows met(const Term &term) {
    OpKind kind = term.op->kind;
    if (blockNamed(*term.op) >= 0 || kind == OpKind::AllReduceMax)
      return nullptr;
    if (kind == OpKind::AllGather)
      return behindEachOther(term.members);
    Rows all = of(term.members[0]);
    bool isSame = true;
    for (int member : term.members)
      isSame &= of(member) == all;
    if (kind == OpKind::AllToAll)
      return isSame ? exchanged(all, term) : nullptr;
    if (kind == OpKind::Shift)
      return isSame ? all : nullptr;
    for (int member : term.members)
      need(term, all, of(member));
    if (kind == OpKind::AllReduce || all == nullptr)
      return all;
    auto members = static_cast<int64_t>(term.members.size());
    auto count = static_cast<int64_t>(all->size()) / members;
    return static_cast<int64_t>(all->size()) % members == 0
               ? keep(ownOf(*all, term.position * count, count, term.position))
               : nullptr;
  }

  const Positions &positions_;
  const std::vector<Term> &terms_;
  std::set<RowList> lists_;
  std::vector<Rows> rows_; ///< by term
  std::vector<bool> isFollowed_;
  std::string problem_;
};

} // namespace

std::string findRowBreak(const Positions &positions, const std::vector<Term> &terms) {
  return RowCheck(positions, terms).find();
}

} // namespace shardc::plan::oracle
