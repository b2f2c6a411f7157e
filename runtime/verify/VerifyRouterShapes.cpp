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

} // namespace shardc::plan::verifier
