// Chooses the number of pieces into which tensor-parallel ranks split rows, from the predicted
// times of the products between the transfers.
#include <algorithm>
#include <array>
#include <optional>

#include "compiler/passes/Allocator.h"
#include "compiler/passes/Partition.h"
#include "compiler/passes/PlanNames.h"
#include "compiler/predict/StepTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"

namespace shardc::passes {
namespace {

constexpr std::array<int64_t, 3> kCounts = {2, 4, 8};
/// Exposed share of transfers without pieces: in the backward pass, weight gradients overlap them
/// (31.8 of 52.2 ms in a step of llama3_8b on two H200s).
constexpr double kExposedOfWhole = 0.6;

/// The numbers of output and input columns of a layer's product.
struct Product {
  int64_t columns, inner;
  bool isSummed; ///< the result is summed over ranks; otherwise the operand is gathered
};

/// Products with sharded weights, as one rank computes them, in order.
struct Body {
  std::vector<Product> products;
  Type rows; ///< type of all rows that are sharded
  bool hasDropout = false;
  bool hasWhole = false; ///< a product with a weight that is whole on each rank and no adapter
};

/// The dimension in which a parameter is sharded over the group; empty if it is not.
std::optional<uint8_t> cutOf(const plan::Param *param, int16_t group) {
  if (param != nullptr)
    for (const plan::Split &split : param->splits)
      if (split.group == group)
        return split.dim;
  return std::nullopt;
}

Body readBody(const plan::Plan &plan, const plan::Role &role, const plan::Segment &segment,
              int16_t group) {
  const std::vector<const plan::Param *> params = paramsIn(plan, role, segment);
  auto isAdapter = [&](const plan::Param &param) { // in 16 bits beside 8-bit weights
    return plan.job.peft.scheme &&
           !plan::isOfBase(plan, plan.blocks[static_cast<size_t>(param.block)]);
  };
  Body body;
  for (const Op &op : segment.ops) {
    body.hasDropout |= op.kind == OpKind::Dropout;
    const plan::Param *weight = op.kind == OpKind::MatMul ? params[op.operands[1]] : nullptr;
    std::optional<uint8_t> cut = cutOf(weight, group);
    if (!cut) {
      body.hasWhole |= weight != nullptr && !isAdapter(*weight);
      continue;
    }
    bool isSummed = *cut == 1;
    body.products.push_back({weight->type.shape[0], weight->type.shape[1], isSummed});
    if (const Type &type = segment.values[op.results[0]].type; isSummed)
      body.rows = Type::of(type.dtype,
                           {type.numel() / type.shape[type.rank - 1u], type.shape[type.rank - 1u]});
  }
  return body;
}

class PieceTimes {
public:
  PieceTimes(const plan::Plan &plan, int16_t group, const Body &body)
      : plan_(plan), device_(predict::deviceOf(plan)), group_(group),
        team_(predict::teamOf(device_, plan, group)), body_(body) {}

  /// Predicted seconds, summed over the body, from the start of each product whose result is summed
  /// to the end of the next product, whose operand is gathered.
  double seconds(int64_t pieces) const {
    double sum = 0;
    const Product *before = nullptr;
    for (const Product &product : body_.products) {
      if (!product.isSummed && before != nullptr)
        sum += seconds(*before, product, pieces);
      before = product.isSummed ? &product : nullptr;
    }
    return sum;
  }

private:
  /// Products of the pieces run one after the other, and so do their transfers. Transfers slow down
  /// concurrent products.
  double seconds(const Product &first, const Product &second, int64_t pieces) const {
    double compute = 0, link = 0, end = 0;
    double sum = transferSeconds(CollectiveKind::ReduceScatter, pieces);
    double gather = transferSeconds(CollectiveKind::AllGather, pieces);
    std::vector<double> arrived;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      compute += productSeconds(first, pieces);
      link = std::max(link, compute) + sum + gather;
      arrived.push_back(link);
    }
    end = compute;
    for (double at : arrived)
      end = std::max(end, at) + productSeconds(second, pieces);
    auto count = static_cast<double>(pieces);
    double products = compute + count * productSeconds(second, pieces);
    double exposed = end - products;
    if (pieces == 1)
      return products + kExposedOfWhole * exposed;
    double hidden = 1 - exposed / (count * (sum + gather));
    return end + predict::kContentionOfPieces * hidden * count * contendingSeconds(pieces);
  }

  double contendingSeconds(int64_t pieces) const {
    double seconds = 0;
    for (CollectiveKind kind : {CollectiveKind::ReduceScatter, CollectiveKind::AllGather})
      seconds +=
          predict::contendingSeconds(kind, transportOf(kind, pieces), body_.rows.bytes() / pieces,
                                     team_.members, transferSeconds(kind, pieces));
    return seconds;
  }

  double transferSeconds(CollectiveKind kind, int64_t pieces) const {
    return predict::collectiveSeconds(device_, kind, transportOf(kind, pieces),
                                      body_.rows.bytes() / pieces, team_);
  }

  plan::Transport transportOf(CollectiveKind kind, int64_t pieces) const {
    return kind == CollectiveKind::AllGather
               ? predict::chooseLayerGather(plan_, group_, body_.rows.bytes() / pieces)
               : plan::Transport::Nccl;
  }

  double productSeconds(const Product &product, int64_t pieces) const {
    plan::Segment scratch;
    DType type = body_.rows.dtype;
    int64_t rows = body_.rows.shape[0] / pieces;
    ValueId a = plan::addValue(scratch, "a", Type::of(type, {rows, product.inner}));
    ValueId b = plan::addValue(scratch, "b", Type::of(type, {product.columns, product.inner}));
    Op op = plan::makeOp(OpKind::MatMul, {a, b});
    op.set(plan::AttrKey::trans_b, int64_t{1});
    op.results = {plan::addValue(scratch, "c", Type::of(type, {rows, product.columns}))};
    return predict::timeOf(device_, plan_, scratch, op);
  }

  const plan::Plan &plan_;
  const predict::Device device_;
  int16_t group_;
  predict::Team team_;
  const Body &body_;
};

} // namespace

/// Alignment in elements of views of positions, which have four bytes each.
constexpr int64_t kPositionsAlign = kPlaceAlign / 4;

bool dividesRows(const Type &type, int64_t parts) {
  int64_t rows = type.numel() / type.shape[type.rank - 1u];
  return rows % parts == 0 && type.bytes() / parts % kPlaceAlign == 0;
}

/// Returns 1 if rows cannot be split, for example with experts, with dropout, without sequence
/// parallelism, or with an 8-bit product of a rank's own rows. Otherwise the number that the job
/// sets, or else the count with the shortest predicted time.
int64_t choosePieces(const plan::Plan &plan, int16_t group) {
  const plan::Job::Model &model = plan.job.model;
  if (!model.tpCommOverlap || !model.sequenceParallel || model.pipelineModelParallelSize > 1 ||
      plan.job.ddp.fsdpDoubleBuffer)
    return 1;
  if (std::ranges::any_of(plan.params, &plan::Param::isStacked))
    return 1; // rows are grouped by expert over all rows of a rank
  bool hasScalesOfTensors = model.fp8 && (model.fp8Recipe == plan::Job::Fp8Recipe::Delayed ||
                                          model.fp8Recipe == plan::Job::Fp8Recipe::Tensorwise);
  int64_t best = 1;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      if (segment.kind != plan::SegmentKind::Train)
        continue;
      Body body = readBody(plan, role, segment, group);
      if (body.hasDropout || body.products.empty()) // dropout masks depend on rows per piece
        return 1;
      if (body.hasWhole && hasScalesOfTensors) // pieces would have scales of their own
        return 1;
      if (int64_t parts = model.tpCommOverlapPieces * plan.groupSize(group);
          parts > 0 && dividesRows(body.rows, parts))
        return model.tpCommOverlapPieces;
      PieceTimes times(plan, group, body);
      double least = times.seconds(1);
      for (int64_t count : kCounts) {
        if (!dividesRows(body.rows, count * plan.groupSize(group) * kPositionsAlign))
          continue;
        if (double seconds = times.seconds(count); seconds < least)
          least = seconds, best = count;
      }
    }
  return best;
}

} // namespace shardc::passes
