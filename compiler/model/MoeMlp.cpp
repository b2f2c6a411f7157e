#include "compiler/model/MoeMlp.h"

#include "compiler/model/Forward.h"
#include "runtime/base/Status.h"

namespace shardc::model {

using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

namespace {
constexpr const char *kRouter = "mlp.router.weight";
constexpr const char *kExperts = "mlp.experts.", *kShared = "mlp.shared_experts.";
} // namespace

void MoeMlp::declare(Params &params) const {
  params.push_back(
      {kRouter, {s_.experts, s_.expert.hidden}, plan::InitKind::Normal, s_.expert.initStd});
  Params one;
  DenseMlp(s_.expert, kExperts).declare(one);
  for (ParamSpec &param : one) {
    param.shape.insert(param.shape.begin(), s_.experts);
    param.isStacked = true;
    if (param.split)
      ++param.split->dim;
    params.push_back(std::move(param));
  }
  if (s_.shared)
    DenseMlp(*s_.shared, kShared).declare(params);
  if (s_.hasSharedGate)
    params.push_back({"mlp.shared_experts.gate_weight",
                      {1, s_.expert.hidden},
                      plan::InitKind::Normal,
                      s_.expert.initStd});
}

ValueId MoeMlp::forward(Forward &to, ValueId x) const {
  SHARDC_CHECK(!s_.expert.hasBias && !s_.hasSharedGate, "findMissing refuses these parts");
  Runs runs = route(to, x);
  const Type type = to.typeOf(x);
  ValueId rows = to.emitRows(to.op(OpKind::Dispatch, {x, runs.places}), to.name("rows"),
                             to.activations({runs.rows, s_.expert.hidden}), runs.counts);
  ValueId made = apply(to, rows, runs);
  ValueId y = to.emit(to.op(OpKind::Combine, {made, runs.places}), to.name("moe"), type);
  if (s_.shared) {
    MlpSettings settings = *s_.shared;
    settings.hiddenDropout = 0; // of the sum
    ValueId shared = DenseMlp(settings, kShared, "shared.").forward(to, x);
    y = to.emit(to.op(OpKind::Add, {y, shared}), to.name("moe.all"), type);
  }
  return to.dropout(y, s_.expert.hiddenDropout, "moe.drop");
}

ValueId MoeMlp::logits(Forward &to, ValueId x) const {
  Type type = to.typeOf(x);
  type.shape[type.rank - 1u] = s_.experts;
  if (s_.router.isFp32)
    type.dtype = DType::F32;
  Op product = to.op(OpKind::MatMul, {x, to.weight(kRouter)});
  product.set(Key::trans_b, int64_t{1});
  if (type.dtype == DType::F32)
    return to.emit(std::move(product), to.name("router"), type);
  ValueId rounded = to.emit(std::move(product), to.name("router.product"), type);
  type.dtype = DType::F32;
  return to.emit(to.op(OpKind::Cast, {rounded}), to.name("router"), type);
}

/// Each token has a row for each of its experts: no more rows are ever needed.
MoeMlp::Runs MoeMlp::route(Forward &to, ValueId x) const {
  const RouterSettings &router = s_.router;
  int64_t tokens = to.settings().microBatch * to.settings().seqLength, rows = tokens * router.topk;
  Op choose = to.op(OpKind::RouterTopk, {logits(to, x)});
  choose.set(Key::topk, router.topk).set(Key::scale, router.scale);
  choose.set(Key::expert_groups, router.groups).set(Key::group_topk, router.groupTopk);
  choose.set(Key::score, int64_t{router.score}).set(Key::pre_softmax, int64_t{router.preSoftmax});
  auto chosen = to.emitMany(std::move(choose),
                            {{"router.ids", Type::of(DType::I32, {tokens, router.topk})},
                             {"router.weights", Type::of(DType::F32, {tokens, router.topk})}});
  Op make = to.op(OpKind::MakeRuns, {chosen[0]});
  make.set(Key::bound, rows);
  auto runs = to.emitMany(std::move(make), {{"counts", Type::of(DType::I32, {1, s_.experts})},
                                            {"places", to.typeOf(chosen[0])}});
  for (ValueId value : {chosen[0], runs[0], runs[1]})
    to.setPurpose(value, plan::Purpose::Data);
  // Weights go to their rows as tokens do, each by its own place.
  ValueId weights = to.reshaped(chosen[1], "router.weights.flat", {rows, 1});
  ValueId places = to.reshaped(runs[1], "places.flat", {rows, 1});
  ValueId ofRows = to.emitRows(to.op(OpKind::Dispatch, {weights, places}), to.name("weights"),
                               Type::of(DType::F32, {rows, 1}), runs[0]);
  return {rows, runs[0], runs[1], ofRows};
}

/// What each expert makes of its rows. Its weights scale what is between its products, as
/// upstream's experts have it: so the gradient of a weight does not need what the second product
/// made.
ValueId MoeMlp::apply(Forward &to, ValueId rows, const Runs &runs) const {
  int64_t width = s_.expert.width, first = s_.expert.gated ? times(2, width) : width;
  auto product = [&](ValueId from, const char *param, const char *what, int64_t columns) {
    Op op =
        to.op(OpKind::GroupedMatMul, {from, to.weight(std::string(kExperts) + param), runs.counts});
    op.set(Key::trans_b, int64_t{1});
    return to.emitRows(std::move(op), to.name(what), to.activations({runs.rows, columns}),
                       runs.counts);
  };
  ValueId f1 = product(rows, "linear_fc1.weight", "experts.fc1", first);
  Op activation = to.op(s_.expert.activation, {f1});
  activation.set(Key::tanh_approx, int64_t{s_.expert.tanhApprox});
  const Type type = to.activations({runs.rows, width});
  ValueId act = to.emitRows(std::move(activation), to.name("experts.act"), type, runs.counts);
  ValueId weighted = to.emitRows(to.op(OpKind::ScaleRows, {act, runs.weights}),
                                 to.name("experts.weighted"), type, runs.counts);
  return product(weighted, "linear_fc2.weight", "experts.fc2", s_.expert.hidden);
}

} // namespace shardc::model
