// Overlaps products with transfers of row pieces between tensor-parallel ranks (Partition.cpp). A
// product of gathered rows becomes one product for each piece, which reads that piece alone; so
// does a product whose sum is scattered in pieces. Then ops are reordered so that compute runs
// other ops while a piece is transferred. Weight gradients are still computed from all rows at
// once, so sums keep their order.
#include <algorithm>

#include "compiler/passes/Clocks.h"
#include "compiler/passes/Partition.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/passes/TransferOrder.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {
namespace {

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
        orderTransfers(plan, segment);
}

} // namespace shardc::passes
