// Types and attributes of the ops of routers, which choose experts for rows.
#include "runtime/base/Router.h"
#include "runtime/verify/VerifyShapes.h"

namespace shardc::plan::verifier {

/// The row of logits has one for each expert.
void ShapeCheck::needRouter(const Type &logits, const Type &ids, const Type &weights) {
  need(logits.dtype == DType::F32, "logits of f32[T, E]");
  need(ids.dtype == DType::I32 && ids.rank == 2 && weights.dtype == DType::F32,
       "ids of i32[T, K] and weights of f32[T, K]");
  RouterChoice choice = {.experts = cols(logits),
                         .topk = op_.getInt(Key::topk),
                         .groups = op_.getInt(Key::expert_groups),
                         .groupTopk = op_.getInt(Key::group_topk)};
  if (const char *wanted = choice.missing())
    need(false, wanted);
}

void ShapeCheck::checkRouterTopk() {
  needRouter(in(0), out(0), out(1));
  if (!has(1))
    return;
  needOf(in(1), DType::F32, "a bias of f32[E]");
  need(op_.getInt(Key::score) != kRouterSoftmax, "a score other than softmax beside a bias");
}

void ShapeCheck::checkRouterTopkBwd() {
  needRouter(in(1), in(2), in(0));
  need(out(0) == in(1), "a gradient of the logits' type");
}

void ShapeCheck::checkRouterDrop() {
  need(in(0).dtype == DType::I32 && in(0).rank == 2 && out(0) == in(0),
       "ids of i32[T, K] as operand and result");
  needOf(in(1), DType::F32, "weights of f32[T, K]");
  need(op_.getInt(Key::experts) > 0 && op_.getFloat(Key::capacity_factor) > 0,
       "a number of experts and a capacity_factor above 0");
}

/// Of parts of equally many rows, which are those of all members.
void ShapeCheck::needLoad(const Type &load, int64_t rows) {
  need(load.dtype == DType::F32 && load.rank == 2, "a load of f32[G, E]");
  need(rows * members() % load.shape[0] == 0, "rows that consist of equal parts");
}

void ShapeCheck::checkExpertLoad() {
  need(in(0).dtype == DType::I32 && in(0).rank == 2, "ids of i32[T, K]");
  needLoad(out(0), in(0).shape[0]);
}

void ShapeCheck::checkRouterLoss() {
  needOf(in(0), DType::F32, "logits of f32[T, E]");
  needLoad(in(1), rows(in(0)));
  needOf(out(0), DType::F32, "f32 losses as a result, one per row");
}

void ShapeCheck::checkRouterLossBwd() {
  needOf(in(0), DType::F32, "logits of f32[T, E]");
  needLoad(in(1), rows(in(0)));
  needScaleState(2);
  need(out(0) == in(0), "a gradient of the logits' type");
}

void ShapeCheck::checkRouterZLoss() {
  needOf(in(0), DType::F32, "logits of f32[T, E]");
  needOf(out(0), DType::F32, "f32 losses as a result, one per row");
}

void ShapeCheck::checkRouterZLossBwd() {
  needOf(in(0), DType::F32, "logits of f32[T, E]");
  needScaleState(1);
  need(out(0) == in(0), "a gradient of the logits' type");
}

void ShapeCheck::checkTally() {
  need(in(0).dtype == DType::F32 && out(0).dtype == DType::F32 && out(0).rank == 2,
       "an f32 operand and sums of f32[slots, C]");
  int64_t slots = op_.getInt(Key::slots), slot = op_.getInt(Key::slot);
  need(slots > 0 && slot < slots, "a slot among its slots");
}

void ShapeCheck::checkRunningMean() {
  need(in(0).dtype == DType::F32 && out(0) == in(0), "an f32 operand and a result of its type");
}

void ShapeCheck::checkExpertBiasUpdate() {
  need(in(0).dtype == DType::F32 && in(0).rank == 2 && in(1) == in(0) && out(0) == in(0),
       "a bias and a load of f32[rows, E]");
  int64_t experts = op_.getInt(Key::experts);
  need(experts > 0 && experts <= cols(in(0)), "a number of experts up to that of columns");
}

} // namespace shardc::plan::verifier
