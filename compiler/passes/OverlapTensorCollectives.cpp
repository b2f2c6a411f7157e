// Overlaps products with transfers of row pieces between tensor-parallel ranks (Partition.cpp). A
// product of gathered rows becomes one product for each piece, which reads that piece alone; so
// does a product whose sum is scattered in pieces. Then ops are reordered so that compute runs
// other ops while a piece is transferred. Weight gradients are still computed from all rows at
// once, so sums keep their order.
#include <algorithm>
#include <tuple>

#include "compiler/passes/Clocks.h"
#include "compiler/passes/Partition.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {
namespace {

/// Maximum number of ops that an op may overtake, since activations would otherwise live much
/// longer.
constexpr size_t kWindow = 64;

/// Orders ops so that transfers inside layers begin as early, and are waited for as late, as
/// possible. Simulates two queues with predicted times: compute and the link. Issues each op to its
/// queue in the order in which ops can begin: while the next compute op waits for a transfer,
/// another ready op runs.
class TransferOrder {
public:
  TransferOrder(const plan::Plan &plan, plan::Segment &segment)
      : plan_(plan), device_(predict::deviceOf(plan)), segment_(segment),
        needs_(segment.ops.size()), ends_(segment.ops.size(), 0), given_(segment.ops.size(), 0),
        feeds_(segment.ops.size(), 0) {}

  void run() {
    findNeeds();
    for (size_t begin = 0; begin < segment_.ops.size();) {
      size_t end = begin;
      while (end < segment_.ops.size() && !isFixed(end) &&
             segment_.ops[end].phase == segment_.ops[begin].phase)
        ++end;
      order(begin, end);
      for (; end < segment_.ops.size() && isFixed(end); ++end)
        give(end);
      begin = end;
    }
    std::vector<Op> ops;
    for (size_t op : order_)
      ops.push_back(std::move(segment_.ops[op]));
    plan::replaceOps(segment_, std::move(ops));
  }

private:
  const Op &at(size_t op) const { return segment_.ops[op]; }
  bool isTransfer(size_t op) const {
    return plan::opInfo(at(op)).traits == plan::OpTraits::Collective;
  }
  /// Ops that change state, and transfers between stages, keep their positions.
  bool isFixed(size_t op) const {
    const plan::OpInfo &info = plan::opInfo(at(op));
    return info.traits == plan::OpTraits::None || info.traits == plan::OpTraits::Copy ||
           (info.collective && isPointToPoint(info.collective->kind));
  }

  /// Finds the dependences of each op: the producers of its operands, and the readers of what it
  /// overwrites.
  void findNeeds() {
    std::vector<std::vector<uint32_t>> readers(segment_.values.size());
    auto needProducer = [&](size_t op, ValueId value) {
      if (uint32_t def = segment_.values[value].def; def != kNone)
        needs_[op].push_back(def);
    };
    auto overwrite = [&](size_t op, ValueId value) {
      needProducer(op, value);
      needs_[op].insert(needs_[op].end(), readers[value].begin(), readers[value].end());
    };
    for (size_t i = 0; i < segment_.ops.size(); ++i) {
      for (ValueId operand : at(i).operands)
        needProducer(i, operand);
      for (const plan::Tie &tie : at(i).ties)
        overwrite(i, tie.value);
      for (size_t r = 0; r < at(i).results.size(); ++r)
        if (int operand = plan::inPlaceOperand(at(i), r); operand >= 0)
          overwrite(i, at(i).operands[static_cast<size_t>(operand)]);
      for (ValueId operand : at(i).operands)
        readers[operand].push_back(static_cast<uint32_t>(i));
      for (uint32_t need : needs_[i])
        feeds_[need] |= isTransfer(i) ? 1 : 0;
    }
  }

  bool isReady(size_t op) const {
    return std::ranges::all_of(needs_[op], [&](uint32_t need) { return given_[need] != 0; });
  }
  /// The time at which all dependences of the op have completed.
  double readyAt(size_t op) const {
    double at = 0;
    for (uint32_t need : needs_[op])
      at = std::max(at, ends_[need]);
    return at;
  }

  void give(size_t op) {
    double begin = readyAt(op);
    given_[op] = 1;
    order_.push_back(op);
    ends_[op] = begin;
    if (isAlias(at(op)))
      return;
    double &clock = isTransfer(op) ? link_ : compute_;
    clock = std::max(clock, begin) + predict::timeOf(device_, plan_, segment_, at(op));
    ends_[op] = clock;
  }

  void order(size_t begin, size_t end) {
    for (size_t first = begin; first < end;) {
      if (given_[first] != 0) {
        ++first;
        continue;
      }
      size_t last = std::min(end, first + kWindow);
      giveTransfers(first, last);
      if (size_t next = nextOf(first, last); next < last)
        give(next);
    }
  }

  /// Issues ready ops that cost no time, and ready transfers: those of new values at once, those of
  /// older values when the link is idle.
  void giveTransfers(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      if (given_[i] != 0 || !isReady(i))
        continue;
      bool isDue = isAlias(at(i)) || (isTransfer(i) && (readyAt(i) >= made_ || link_ <= compute_));
      if (isDue)
        give(i);
    }
    made_ = compute_;
  }

  /// The next op to issue. Among ops that can begin now, prefers a light one that feeds a transfer,
  /// then the first. If none can begin now, returns the one that can begin first. Returns a
  /// transfer only if no other op is ready.
  size_t nextOf(size_t first, size_t last) const {
    size_t best = last;
    std::tuple<bool, double, bool> bestRank;
    for (size_t i = first; i < last; ++i) {
      if (given_[i] != 0 || !isReady(i))
        continue;
      bool isLight = plan::opInfo(at(i)).work.cost == plan::CostClass::Memory;
      std::tuple rank{isTransfer(i), std::max(readyAt(i) - compute_, 0.0),
                      !(isLight && feeds_[i] != 0)};
      if (best == last || rank < bestRank)
        best = i, bestRank = rank;
    }
    return best;
  }

  const plan::Plan &plan_;
  const predict::Device device_;
  plan::Segment &segment_;
  std::vector<std::vector<uint32_t>> needs_; ///< by op
  std::vector<double> ends_;                 ///< by op, predicted
  std::vector<uint8_t> given_;               ///< by op: whether it was issued
  std::vector<uint8_t> feeds_;               ///< by op: whether a transfer reads its result
  double compute_ = 0, link_ = 0;            ///< seconds at which each has completed its issued ops
  double made_ = 0;                          ///< compute's time when transfers were last issued
  std::vector<size_t> order_;
};

class ProductCutter {
public:
  ProductCutter(const plan::Plan &plan, plan::Segment &segment)
      : plan_(plan), segment_(segment), users_(segment), scatters_(segment.ops.size(), 0) {}

  /// Returns false if no rows are transferred in pieces.
  bool run() {
    std::vector<Op> old = segment_.ops;
    for (size_t i = 0; i < old.size(); ++i)
      if (scatters_[i] == 0)
        cut(old[i]);
    if (!hasPieces_)
      return false;
    plan::replaceOps(segment_, std::move(ops_));
    plan::dropUnusedValues(segment_);
    return true;
  }

private:
  void cut(const Op &op) {
    std::vector<ValueId> from = gatheredPieces(op), to = scatteredPieces(op);
    hasPieces_ |= !from.empty() || !to.empty();
    bool takesPieces = !from.empty() && plan_.job.model.tpCommOverlapAg;
    bool givesPieces = !to.empty() && plan_.job.model.tpCommOverlapRs;
    size_t count = takesPieces ? from.size() : to.size();
    bool isCut = isProduct(op) && (takesPieces || givesPieces) &&
                 (!takesPieces || !givesPieces || from.size() == to.size()) && divides(op, count);
    if (!isCut) {
      ops_.push_back(op);
      return;
    }
    if (givesPieces)
      dropViews(op.results[0]);
    cutProduct(op, takesPieces ? from : std::vector<ValueId>(),
               givesPieces ? to : std::vector<ValueId>(), static_cast<int64_t>(count));
  }

  static bool isProduct(const Op &op) {
    return plan::isLayerProduct(op.kind) && !op.getBool(Key::trans_a) && op.ties.empty() &&
           op.pred == plan::Pred::Always;
  }
  /// Whether the operand has one row for each row of the result.
  static bool isOfRows(const Op &op, size_t operand) {
    const plan::OpFactors &factors = plan::factorsOf(op);
    return factors.operand(operand).atoms[0].factor == factors.result(0).atoms[0].factor;
  }

  bool divides(const Op &op, size_t count) const {
    auto isDivided = [&](ValueId value) {
      return dividesRows(segment_.values[value].type, static_cast<int64_t>(count));
    };
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (isOfRows(op, i) && !isDivided(op.operands[i]))
        return false;
    return std::ranges::all_of(op.results, isDivided);
  }

  /// The gathered pieces of the product's first operand; empty if it is not gathered in pieces.
  std::vector<ValueId> gatheredPieces(const Op &op) const {
    uint32_t def = op.operands.empty() ? kNone : segment_.values[op.operands[0]].def;
    if (def == kNone || segment_.ops[def].kind != OpKind::Pack || op.getBool(Key::trans_a))
      return {};
    const std::vector<ValueId> &pieces = segment_.ops[def].operands;
    bool areGathered = std::ranges::all_of(pieces, [&](ValueId piece) {
      uint32_t producer = segment_.values[piece].def;
      return producer != kNone && segment_.ops[producer].kind == OpKind::AllGather;
    });
    return areGathered && pieces.size() > 1 ? pieces : std::vector<ValueId>();
  }

  /// The pieces in which the op's only result is scattered; empty if it is not scattered in pieces.
  std::vector<ValueId> scatteredPieces(const Op &op) const {
    if (op.results.size() != 1 || users_.count(op.results[0]) < 2)
      return {};
    std::vector<ValueId> pieces;
    int64_t end = 0;
    for (const uint32_t *user = users_.begin(op.results[0]); user != users_.end(op.results[0]);
         ++user) {
      const Op &view = segment_.ops[*user];
      bool isNext = view.kind == OpKind::View && view.group < 0 &&
                    view.getInt(Key::offset) == end && users_.count(view.results[0]) == 1;
      if (!isNext || segment_.ops[*users_.begin(view.results[0])].kind != OpKind::ReduceScatter)
        return {};
      pieces.push_back(view.results[0]);
      end += segment_.values[view.results[0]].type.numel();
    }
    return end == segment_.values[op.results[0]].type.numel() ? pieces : std::vector<ValueId>();
  }

  void dropViews(ValueId whole) {
    for (const uint32_t *user = users_.begin(whole); user != users_.end(whole); ++user)
      scatters_[*user] = 1;
  }

  void cutProduct(const Op &op, const std::vector<ValueId> &from, const std::vector<ValueId> &to,
                  int64_t count) {
    std::vector<std::vector<ValueId>> made(op.results.size());
    std::vector<Op> parts;
    for (int64_t piece = 0; piece < count; ++piece) {
      Op part = op;
      for (size_t i = 0; i < op.operands.size(); ++i)
        if (i == 0 && !from.empty())
          part.operands[i] = from[static_cast<size_t>(piece)];
        else if (isOfRows(op, i))
          part.operands[i] = rowsOf(op, op.operands[i], piece, count);
      for (size_t r = 0; r < op.results.size(); ++r) {
        made[r].push_back(to.empty() ? addPiece(op.results[r], piece, count)
                                     : to[static_cast<size_t>(piece)]);
        part.results[r] = made[r].back();
      }
      parts.push_back(std::move(part));
    }
    // The backward op of a norm is split in descending order of pieces.
    if (op.phase == plan::Phase::Backward && !op.isRecomputed)
      std::ranges::reverse(parts);
    std::ranges::move(parts, std::back_inserter(ops_));
    for (size_t r = 0; r < op.results.size() && to.empty(); ++r) {
      Op pack = aliasLike(op, OpKind::Pack);
      pack.operands = made[r];
      pack.results = {op.results[r]};
      ops_.push_back(std::move(pack));
    }
  }

  ValueId addPiece(ValueId whole, int64_t piece, int64_t count) {
    const plan::Value value = segment_.values[whole];
    const Type &type = value.type;
    int64_t columns = type.shape[type.rank - 1u];
    return plan::addValue(segment_, fmt::format("{}.{}", value.name, piece),
                          Type::of(type.dtype, {type.numel() / columns / count, columns}),
                          value.purpose);
  }

  ValueId rowsOf(const Op &product, ValueId whole, int64_t piece, int64_t count) {
    Op view = aliasLike(product, OpKind::View);
    view.operands = {whole};
    view.set(Key::offset, piece * segment_.values[whole].type.numel() / count);
    ValueId rows = addRows(whole, product, piece, count);
    view.results = {rows};
    ops_.push_back(std::move(view));
    return rows;
  }

  /// Several products may read the same rows, so the name contains the product's result.
  ValueId addRows(ValueId whole, const Op &product, int64_t piece, int64_t count) {
    ValueId rows = addPiece(whole, piece, count);
    segment_.values[rows].name = fmt::format("{}.of.{}.{}", segment_.values[whole].name,
                                             segment_.values[product.results[0]].name, piece);
    return rows;
  }

  static Op aliasLike(const Op &op, OpKind kind) {
    Op alias = plan::makeOp(kind, {}, op.unit, op.loc);
    alias.phase = op.phase, alias.isRecomputed = op.isRecomputed;
    return alias;
  }

  const plan::Plan &plan_;
  plan::Segment &segment_;
  plan::Users users_;             ///< before any change
  std::vector<uint8_t> scatters_; ///< by op: whether it is a view that a product now writes
  std::vector<Op> ops_;
  bool hasPieces_ = false;
};

} // namespace

void runOverlapTensorCollectives(plan::Plan &plan, Notes &) {
  if (!plan.job.model.tpCommOverlap)
    return;
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body && ProductCutter(plan, segment).run())
        TransferOrder(plan, segment).run();
}

} // namespace shardc::passes
