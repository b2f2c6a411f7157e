#include "compiler/model/MoeMlp.h"

#include <cmath>

#include "compiler/model/Forward.h"
#include "runtime/base/Status.h"

namespace shardc::model {

using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

namespace {
constexpr const char *kRouter = "mlp.router.weight", *kRouterBias = "mlp.router.bias";
constexpr const char *kExperts = "mlp.experts.", *kShared = "mlp.shared_experts.";
constexpr const char *kUp = "linear_fc1", *kDown = "linear_fc2";
std::string biasOf(const char *linear) { return std::string(kExperts) + linear + ".bias"; }
constexpr const char *kSharedGate = "mlp.shared_experts.gate_weight";
} // namespace

/// Experts are declared as one DenseMlp whose parameters get a first dimension for the expert.
void MoeMlp::declare(Params &params) const {
  params.push_back({ParamKind::Router,
                    kRouter,
                    {s_.experts, s_.expert.hidden},
                    plan::InitKind::Normal,
                    s_.expert.initStd});
  if (s_.expert.hasBias) // initialised like the weights
    params.push_back(
        {ParamKind::Bias, kRouterBias, {s_.experts}, plan::InitKind::Normal, s_.expert.initStd});
  Params one;
  DenseMlp(s_.expert, kExperts, "", ParamKind::Experts).declare(one);
  for (ParamSpec &param : one) {
    param.shape.insert(param.shape.begin(), s_.experts);
    param.isStacked = true;
    if (param.split)
      ++param.split->dim;
    params.push_back(std::move(param));
  }
  if (s_.shared)
    DenseMlp(*s_.shared, kShared, "", ParamKind::SharedExperts).declare(params);
  if (s_.hasSharedGate)
    params.push_back({ParamKind::SharedGate,
                      kSharedGate,
                      {1, s_.expert.hidden},
                      plan::InitKind::Normal,
                      s_.expert.initStd});
}

ValueId MoeMlp::forward(Forward &to, ValueId x) const {
  Runs runs = route(to, x);
  const Type type = to.typeOf(x);
  Op give = to.op(OpKind::Dispatch, {x, runs.places});
  if (s_.weighsInput) // before ranks exchange rows: each may compute a part of a gradient
    give.operands.push_back(runs.chosen);
  ValueId given = to.emitRows(std::move(give), to.name("rows"),
                              to.activations({runs.rows, s_.expert.hidden}), runs.given);
  ValueId taken = exchanged(to, given, "rows", runs);
  ValueId rows = gathered(to, taken, "rows", runs);
  ValueId made = returned(to, apply(to, rows, innerUp(to, taken, runs), runs), runs);
  ValueId y = to.emit(to.op(OpKind::Combine, {made, runs.places}), to.name("moe"), type);
  if (s_.shared) {
    MlpSettings settings = *s_.shared;
    settings.hiddenDropout = 0; // dropout applies to the sum
    ValueId shared = DenseMlp(settings, kShared, "shared.").forward(to, x);
    if (s_.hasSharedGate)
      shared = gated(to, x, shared);
    y = to.emit(to.op(OpKind::Add, {y, shared}), to.name("moe.all"), type);
  }
  return to.dropout(y, s_.expert.hiddenDropout, "moe.drop");
}

ValueId MoeMlp::gated(Forward &to, ValueId x, ValueId shared) const {
  Type type = to.typeOf(x);
  int64_t tokens = to.settings().microBatch * to.settings().seqLength;
  type.shape[type.rank - 1u] = 1;
  bool isRounded = type.dtype != DType::F32;
  Op product = to.op(OpKind::MatMul, {x, to.weight(kSharedGate)});
  product.set(Key::trans_b, int64_t{1});
  ValueId logit = to.emit(std::move(product),
                          to.name(isRounded ? "shared.gate.product" : "shared.gate.logit"), type);
  if (isRounded) {
    type.dtype = DType::F32;
    logit = to.emit(to.op(OpKind::Cast, {logit}), to.name("shared.gate.logit"), type);
  }
  Op choose = to.op(OpKind::RouterTopk, {logit});
  choose.set(Key::topk, int64_t{1}).set(Key::score, int64_t{kRouterSigmoid});
  auto chosen =
      to.emitMany(std::move(choose), {{"shared.gate.ids", Type::of(DType::I32, {tokens, 1})},
                                      {"shared.gate", Type::of(DType::F32, {tokens, 1})}});
  to.setPurpose(chosen[0], plan::Purpose::Data);
  return to.emit(to.op(OpKind::ScaleRows, {shared, chosen[1]}), to.name("shared.gated"),
                 to.typeOf(shared));
}

ValueId MoeMlp::logits(Forward &to, ValueId x) const {
  Type type = to.typeOf(x);
  type.shape[type.rank - 1u] = s_.experts;
  if (s_.router.isFp32)
    type.dtype = DType::F32;
  ValueId input = to.jittered(x, s_.router.jitter, "router.input");
  Op product = to.op(OpKind::MatMul, {input, to.weight(kRouter)});
  product.set(Key::trans_b, int64_t{1});
  bool isRounded = type.dtype != DType::F32;
  const char *last = isRounded ? "router.product" : "router";
  ValueId made =
      to.emit(std::move(product), to.name(s_.expert.hasBias ? "router.bare" : last), type);
  if (s_.expert.hasBias)
    made = to.emit(to.op(OpKind::BiasAdd, {made, to.weight(kRouterBias)}), to.name(last), type);
  if (!isRounded)
    return made;
  type.dtype = DType::F32;
  return to.emit(to.op(OpKind::Cast, {made}), to.name("router"), type);
}

Op MoeMlp::chooser(Forward &to, ValueId logits) const {
  const RouterSettings &router = s_.router;
  Op choose = to.op(OpKind::RouterTopk, {logits});
  choose.set(Key::topk, router.topk).set(Key::scale, router.scale);
  choose.set(Key::score, int64_t{router.score}).set(Key::pre_softmax, int64_t{router.preSoftmax});
  return choose;
}

std::vector<ValueId> MoeMlp::choose(Forward &to, ValueId logits, ValueId bias) const {
  const RouterSettings &router = s_.router;
  int64_t tokens = to.settings().microBatch * to.settings().seqLength;
  Op choose = chooser(to, logits);
  if (router.isBySinkhorn && to.settings().training)
    choose.kind = OpKind::RouterSinkhorn;
  if (bias != plan::kNone)
    choose.operands.push_back(bias);
  choose.set(Key::expert_groups, router.groups).set(Key::group_topk, router.groupTopk);
  auto chosen = to.emitMany(std::move(choose),
                            {{"router.ids", Type::of(DType::I32, {tokens, router.topk})},
                             {"router.weights", Type::of(DType::F32, {tokens, router.topk})}});
  to.setPurpose(chosen[0], plan::Purpose::Data);
  return chosen;
}

ValueId MoeMlp::bestOf(Forward &to, ValueId logits, ValueId ids, ValueId bias) const {
  if (bias == plan::kNone && s_.router.groups == 0)
    return ids;
  const Type type = to.typeOf(ids);
  auto best =
      to.emitMany(chooser(to, logits),
                  {{"router.best", type},
                   {"router.best.weights", Type::of(DType::F32, {type.shape[0], type.shape[1]})}});
  to.setPurpose(best[0], plan::Purpose::Data);
  return best[0];
}

ValueId MoeMlp::load(Forward &to, ValueId ids, int64_t parts, const char *what) const {
  return to.emit(to.op(OpKind::ExpertLoad, {ids}), to.name(what),
                 Type::of(DType::F32, {parts, s_.experts}));
}
ValueId MoeMlp::keptLoad(Forward &to, ValueId ids, const char *cell, const char *what) const {
  return to.emit(to.op(OpKind::ExpertLoad, {ids}), to.name(what),
                 Type::of(DType::F32, {1, to.columnsOf(cell)}));
}

void MoeMlp::addLoss(Forward &to, ValueId logits, ValueId load, RouterLoss kind,
                     double scale) const {
  int64_t rows = to.settings().microBatch * to.settings().seqLength;
  double weight = s_.router.losses[static_cast<size_t>(kind)];
  Op op = load == plan::kNone ? to.op(OpKind::RouterZLoss, {logits})
                              : to.op(OpKind::RouterLoss, {logits, load});
  if (load != plan::kNone)
    op.set(Key::score, int64_t{s_.router.score});
  op.set(Key::scale, weight * scale);
  std::string what = std::string("router.") + kRouterLossNames[kind];
  ValueId losses = to.emit(std::move(op), to.name(what.c_str()), Type::of(DType::F32, {rows}));
  ValueId column = to.reshaped(losses, (what + ".column").c_str(), {rows, 1});
  // The global loss is the same sum on each rank.
  double share =
      s_.router.reportedShare / static_cast<double>(kind == kGlobalLoss ? 1 : s_.router.dataRanks);
  to.tally("router_losses", column, kind, share / weight);
}

void MoeMlp::balance(Forward &to, ValueId logits, ValueId ids, int64_t layer) const {
  const RouterSettings &router = s_.router;
  auto batch = static_cast<double>(to.settings().microBatch);
  auto sequence = static_cast<double>(to.settings().seqLength), tokens = batch * sequence;
  auto has = [&](RouterLoss kind) { return router.losses[static_cast<size_t>(kind)] != 0; };
  double perChoice = static_cast<double>(s_.experts) / static_cast<double>(router.topk);
  if (has(kZLoss))
    addLoss(to, logits, plan::kNone, kZLoss, 1 / tokens);
  if (has(kBalanceLoss))
    addLoss(to, logits, load(to, ids, 1, "router.load"), kBalanceLoss,
            perChoice / (tokens * tokens));
  if (has(kSequenceLoss))
    addLoss(to, logits, load(to, ids, to.settings().microBatch, "router.loads"), kSequenceLoss,
            perChoice / (sequence * sequence * batch));
  if (!has(kGlobalLoss))
    return;
  ValueId all = to.summed(keptLoad(to, ids, "global_load", "router.load.own"), "router.load.all",
                          to.groupOf(plan::GroupKind::Data));
  ValueId total = to.row(to.tally("global_load", all, layer, 1), layer,
                         Type::of(DType::F32, {1, s_.experts}), "router.load.total");
  ValueId mean =
      to.emit(to.op(OpKind::RunningMean, {total}), to.name("router.load.mean"), to.typeOf(total));
  double everywhere = tokens * static_cast<double>(router.dataRanks);
  addLoss(to, logits, mean, kGlobalLoss, perChoice / (everywhere * everywhere));
}

ValueId MoeMlp::dropped(Forward &to, const std::vector<ValueId> &chosen) const {
  if (s_.router.capacityFactor == 0)
    return chosen[0];
  Op drop = to.op(OpKind::RouterDrop, {chosen[0], chosen[1]});
  drop.set(Key::experts, s_.experts).set(Key::capacity_factor, s_.router.capacityFactor);
  drop.set(Key::by_position, int64_t{s_.router.dropsByPosition});
  ValueId kept = to.emit(std::move(drop), to.name("router.kept"), to.typeOf(chosen[0]));
  to.setPurpose(kept, plan::Purpose::Data);
  return kept;
}

int64_t MoeMlp::slotRows(const Forward &to, int64_t tokens, int64_t ranks) const {
  int64_t most = tokens * std::min(s_.router.topk, s_.experts / ranks);
  if (s_.router.slotFactor == 0)
    return most;
  // The part of each tensor- or context-parallel rank must also have a whole number of rows.
  int64_t parts = to.membersOf(to.groupOf(plan::GroupKind::Tensor)) *
                  to.membersOf(to.groupOf(plan::GroupKind::Context));
  double even = static_cast<double>(tokens * s_.router.topk) / static_cast<double>(ranks * parts);
  constexpr int64_t kWhole = 16; // rows, so that slots begin at aligned addresses
  auto asked = static_cast<int64_t>(std::ceil(even * s_.router.slotFactor));
  return std::min(most, (asked + kWhole - 1) / kWhole * kWhole * parts);
}

MoeMlp::Runs MoeMlp::groupsOf(Forward &to, ValueId ids, ValueId weights) const {
  int64_t tokens = to.typeOf(ids).shape[0], choices = tokens * s_.router.topk;
  int16_t group = to.groupOf(plan::GroupKind::Expert);
  int64_t ranks = to.membersOf(group), experts = s_.experts / ranks; // per rank
  int64_t rows = ranks * slotRows(to, tokens, ranks);
  Op make = to.op(OpKind::MakeRuns, {ids});
  make.set(Key::bound, rows);
  auto runs = to.emitMany(std::move(make), {{"counts", Type::of(DType::I32, {ranks, experts})},
                                            {"places", to.typeOf(ids)}});
  for (ValueId value : {runs[0], runs[1]})
    to.setPurpose(value, plan::Purpose::Data);
  ValueId taken = to.exchanged(runs[0], "counts.taken", group);
  ValueId counts = to.gathered(taken, "counts.all", to.groupOf(plan::GroupKind::ExpertTensor));
  Runs made = {rows, runs[0], runs[1], taken, counts, weights, plan::kNone, plan::kNone};
  if (s_.weighsInput)
    return made;
  // Sends each weight to where its row goes. Weights are dispatched as rows with one column.
  ValueId column = to.reshaped(weights, "router.weights.flat", {choices, 1});
  ValueId places = to.reshaped(runs[1], "places.flat", {choices, 1});
  ValueId given = to.emitRows(to.op(OpKind::Dispatch, {column, places}), to.name("weights"),
                              Type::of(DType::F32, {rows, 1}), runs[0]);
  made.takenWeights = exchanged(to, given, "weights", made);
  made.weights = gathered(to, made.takenWeights, "weights", made);
  return made;
}

ValueId MoeMlp::exchanged(Forward &to, ValueId rows, const char *what, const Runs &runs) const {
  const std::string name = std::string(what) + ".taken";
  return to.exchanged(rows, name.c_str(), to.groupOf(plan::GroupKind::Expert), runs.taken);
}

ValueId MoeMlp::gathered(Forward &to, ValueId taken, const char *what, const Runs &runs) const {
  const std::string name = std::string(what) + ".all";
  return to.gathered(taken, name.c_str(), to.groupOf(plan::GroupKind::ExpertTensor), runs.counts);
}

ValueId MoeMlp::returned(Forward &to, const Made &made, const Runs &runs) const {
  int16_t parts = to.groupOf(plan::GroupKind::ExpertTensor);
  ValueId sum = to.scattered(made.rows, "experts.sum", parts, runs.taken);
  if (made.inner != plan::kNone)
    sum = adaptedDown(to, sum, made.inner, runs);
  if (s_.expert.hasBias)
    sum = biased(to, sum, to.shared(to.weight(biasOf(kDown)), "experts.bias", parts), "experts.fc2",
                 runs.taken, runs.takenWeights);
  return to.exchanged(sum, "experts.own", to.groupOf(plan::GroupKind::Expert), runs.given);
}

MoeMlp::Runs MoeMlp::route(Forward &to, ValueId x) const {
  int64_t layer = to.nextExperts();
  ValueId logits = this->logits(to, x), bias = to.expertBias(layer, s_.experts);
  auto chosen = choose(to, logits, bias);
  ValueId kept = dropped(to, chosen);
  if (to.settings().training && isBalanced())
    balance(to, logits, bestOf(to, logits, chosen[0], bias), layer);
  if (to.tallies("expert_load"))
    to.tally("expert_load", keptLoad(to, kept, "expert_load", "router.load.kept"), layer, 1);
  return groupsOf(to, kept, chosen[1]);
}

namespace {

/// Emits a product of each row with the matrix of its expert.
ValueId grouped(Forward &to, ValueId x, ValueId w, const std::string &what, int64_t columns,
                ValueId counts) {
  Op op = to.op(OpKind::GroupedMatMul, {x, w, counts});
  op.set(Key::trans_b, int64_t{1});
  return to.emitRows(std::move(op), to.name(what.c_str()),
                     to.activations({to.typeOf(x).shape[0], columns}), counts);
}

} // namespace

ValueId MoeMlp::product(Forward &to, ValueId x, const char *name, const std::string &what,
                        int64_t columns, const Runs &runs) const {
  ValueId w = to.weight(kExperts + std::string(name) + ".weight");
  return grouped(to, x, w, what, columns, runs.counts);
}

ValueId MoeMlp::adapterIn(Forward &to, ValueId rows, const char *name, ValueId factor,
                          ValueId counts) const {
  const std::string what = std::string("experts.") + name + ".adapter.in";
  return grouped(to, rows, factor, what, s_.expert.adapters.rank, counts);
}

ValueId MoeMlp::adapterOut(Forward &to, ValueId made, ValueId inner, const char *name,
                           ValueId factor, ValueId counts) const {
  const std::string what = std::string("experts.") + name;
  ValueId more =
      grouped(to, inner, factor, what + ".adapter.out", to.typeOf(made).shape[1], counts);
  return to.emitRows(to.op(OpKind::Add, {made, more}), to.name((what + ".adapted").c_str()),
                     to.typeOf(made), counts);
}

bool MoeMlp::isAdapted(const char *linear) const {
  return s_.expert.adapters.parts.contains(std::string(kExperts) + linear);
}

ValueId MoeMlp::innerUp(Forward &to, ValueId taken, const Runs &runs) const {
  if (!isAdapted(kUp))
    return plan::kNone;
  ValueId factor = to.shared(to.weight(std::string(kExperts) + kUp + kAdapterIn),
                             "experts.fc1.adapter.a", to.groupOf(plan::GroupKind::ExpertTensor));
  ValueId inner = adapterIn(to, taken, "fc1", factor, runs.taken);
  inner = to.scaled(inner, s_.expert.adapters.scaleOf(std::string(kExperts) + kUp),
                    "experts.fc1.adapter.scaled");
  return gathered(to, inner, "experts.fc1.adapter", runs);
}

ValueId MoeMlp::adaptedDown(Forward &to, ValueId sum, ValueId inner, const Runs &runs) const {
  int16_t parts = to.groupOf(plan::GroupKind::ExpertTensor);
  ValueId own = to.scattered(inner, "experts.fc2.adapter.sum", parts, runs.taken);
  own = to.scaled(own, s_.expert.adapters.scaleOf(std::string(kExperts) + kDown),
                  "experts.fc2.adapter.scaled");
  ValueId factor = to.shared(to.weight(std::string(kExperts) + kDown + kAdapterOut),
                             "experts.fc2.adapter.b", parts);
  return adapterOut(to, sum, own, "fc2", factor, runs.taken);
}

ValueId MoeMlp::biased(Forward &to, ValueId x, ValueId bias, const char *what, ValueId counts,
                       ValueId weights) {
  Op add = to.op(OpKind::GroupedBias, {x, bias, counts});
  if (weights != plan::kNone)
    add.operands.push_back(weights);
  return to.emitRows(std::move(add), to.name(what), to.typeOf(x), counts);
}

/// Computes the output of each expert for its rows. A row's weight scales the activation between
/// the two products, like upstream's experts, so that the gradient of a weight does not need the
/// result of the second product. The weight also scales the second bias, which is added to the sum
/// of the experts' parts. In mode `weighsInput`, weights scale only the input rows.
MoeMlp::Made MoeMlp::apply(Forward &to, ValueId rows, ValueId inner, const Runs &runs) const {
  int64_t parts = to.membersOf(to.groupOf(plan::GroupKind::ExpertTensor));
  int64_t width = s_.expert.width / parts, first = s_.expert.gated ? times(2, width) : width;
  int64_t bound = to.typeOf(rows).shape[0];
  const std::string bare = s_.expert.hasBias ? ".product" : "";
  ValueId f1 = product(to, rows, kUp, "experts.fc1" + bare, first, runs);
  if (inner != plan::kNone)
    f1 = adapterOut(to, f1, inner, "fc1", to.weight(std::string(kExperts) + kUp + kAdapterOut),
                    runs.counts);
  if (s_.expert.hasBias)
    f1 = biased(to, f1, to.weight(biasOf(kUp)), "experts.fc1", runs.counts, plan::kNone);
  Op activation = to.op(s_.expert.activation, {f1});
  setActivation(activation, s_.expert);
  const Type type = to.activations({bound, width});
  if (s_.weighsInput) {
    ValueId made = to.emitRows(std::move(activation), to.name("experts.act"), type, runs.counts);
    return down(to, made, "experts.fc2" + bare, runs);
  }
  if (std::optional<OpKind> both = plan::opInfo(activation).weighted) {
    activation.kind = *both;
    activation.operands.push_back(runs.weights);
  } else {
    ValueId made = to.emitRows(std::move(activation), to.name("experts.act"), type, runs.counts);
    activation = to.op(OpKind::ScaleRows, {made, runs.weights});
  }
  ValueId weighted =
      to.emitRows(std::move(activation), to.name("experts.weighted"), type, runs.counts);
  return down(to, weighted, "experts.fc2" + bare, runs);
}

MoeMlp::Made MoeMlp::down(Forward &to, ValueId rows, const std::string &what,
                          const Runs &runs) const {
  Made made{product(to, rows, kDown, what, s_.expert.hidden, runs), plan::kNone};
  if (isAdapted(kDown))
    made.inner = adapterIn(to, rows, "fc2", to.weight(std::string(kExperts) + kDown + kAdapterIn),
                           runs.counts);
  return made;
}

} // namespace shardc::model
