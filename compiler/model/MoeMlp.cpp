// A mixture of experts: a router chooses experts for each token, and the token's result is the
// weighted sum of their results. Experts are stacked parameters. Each token may also use a shared
// expert.
#include <algorithm>

#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"
#include "runtime/base/Status.h"

namespace shardc::model {

namespace {
constexpr const char *kRouter = "mlp.router.weight", *kRouterBias = "mlp.router.bias";
constexpr const char *kExperts = "mlp.experts.", *kShared = "mlp.shared_experts.";
constexpr const char *kUp = "linear_fc1", *kDown = "linear_fc2";
constexpr const char *kSharedGate = "mlp.shared_experts.gate_weight";

/// Rows of tokens, grouped by expert.
struct Runs {
  int64_t rows = 0;              ///< capacity in rows
  ValueId counts, places;        ///< row counts of experts, and the rows of each token
  ValueId chosen;                ///< f32[T,K]: weights of each token's experts
  ValueId weights = plan::kNone; ///< f32[.,1]: weights of rows in their tokens' results
};

/// Emits the forward ops of one layer.
class Layer {
public:
  Layer(const MoeSettings &settings, Forward &to)
      : s_(settings), router_(settings.router), to_(to),
        tokens_(to.settings().microBatch * to.settings().seqLength) {}

  ValueId emit(ValueId x) {
    const Runs runs = route(x);
    Op give = to_.op(OpKind::Dispatch, {x, runs.places});
    if (s_.weighsInput)
      give.operands.push_back(runs.chosen);
    ValueId rows = to_.emitRows(std::move(give), to_.name("rows"),
                                to_.activations({runs.rows, s_.expert.hidden}), runs.counts);
    rows = apply(rows, runs);
    ValueId y = one(to_.op(OpKind::Combine, {rows, runs.places}), "moe", to_.typeOf(x));
    if (s_.shared) {
      MlpSettings settings = *s_.shared;
      settings.hiddenDropout = 0; // dropout applies to the sum
      ValueId shared = makeModule(settings, kShared, "shared.")->forward(to_, x);
      if (s_.hasSharedGate)
        shared = gated(x, shared);
      y = one(to_.op(OpKind::Add, {y, shared}), "moe.all", to_.typeOf(x));
    }
    return to_.dropout(y, s_.expert.hiddenDropout, "moe.drop");
  }

private:
  ValueId one(Op op, const char *what, const Type &type) {
    return to_.emit(std::move(op), to_.name(what), type);
  }
  /// Emits a choice of experts. Returns the experts of each row, and their weights.
  std::array<ValueId, 2> chosen(Op op, int64_t topk, const char *ids, const char *weights) {
    auto made = to_.emitMany(std::move(op), {{ids, Type::of(DType::I32, {tokens_, topk})},
                                             {weights, Type::of(DType::F32, {tokens_, topk})}});
    to_.setPurpose(made[0], plan::Purpose::Data);
    return {made[0], made[1]};
  }

  /// Emits a product of x as fp32 logits, which are cast, if the product is `rounded`.
  ValueId logits(ValueId x, const char *weight, Type type, const char *what, const char *rounded,
                 const char *bias = nullptr) {
    bool isRounded = type.dtype != DType::F32;
    const char *last = isRounded ? rounded : what;
    Op product = to_.op(OpKind::MatMul, {x, to_.weight(weight)});
    product.set(Key::trans_b, int64_t{1});
    ValueId made = one(std::move(product), bias != nullptr ? "router.bare" : last, type);
    if (bias != nullptr)
      made = one(to_.op(OpKind::BiasAdd, {made, to_.weight(bias)}), last, type);
    type.dtype = DType::F32;
    return isRounded ? one(to_.op(OpKind::Cast, {made}), what, type) : made;
  }

  /// Scales the shared expert's result by the sigmoid of a logit, computed as the weight of a
  /// router with one expert.
  ValueId gated(ValueId x, ValueId shared) {
    Type type = to_.typeOf(x);
    type.shape[type.rank - 1u] = 1;
    Op choose = to_.op(OpKind::RouterTopk,
                       {logits(x, kSharedGate, type, "shared.gate.logit", "shared.gate.product")});
    choose.set(Key::topk, int64_t{1}).set(Key::score, int64_t{kRouterSigmoid});
    ValueId gate = chosen(std::move(choose), 1, "shared.gate.ids", "shared.gate")[1];
    return one(to_.op(OpKind::ScaleRows, {shared, gate}), "shared.gated", to_.typeOf(shared));
  }

  // ---- router ----

  /// Emits the choice of experts, drops choices over capacity, and adds the balancing losses. The
  /// load is counted after drops. In evaluation, Sinkhorn's algorithm is not used, because it would
  /// balance over the rows.
  Runs route(ValueId x) {
    int64_t layer = to_.nextExperts();
    Type type = to_.typeOf(x);
    type.shape[type.rank - 1u] = s_.experts;
    if (router_.isFp32)
      type.dtype = DType::F32;
    ValueId logits =
        this->logits(to_.jittered(x, router_.jitter, "router.input"), kRouter, type, "router",
                     "router.product", s_.expert.hasBias ? kRouterBias : nullptr);
    ValueId bias = to_.expertBias(layer, s_.experts);
    const bool isTraining = to_.settings().training;
    Op choose = chooser(logits);
    if (router_.isBySinkhorn && isTraining)
      choose.kind = OpKind::RouterSinkhorn;
    if (bias != plan::kNone)
      choose.operands.push_back(bias);
    choose.set(Key::expert_groups, router_.groups).set(Key::group_topk, router_.groupTopk);
    auto [ids, weights] = chosen(std::move(choose), router_.topk, "router.ids", "router.weights");
    ValueId kept = dropped(ids, weights);
    if (isTraining && std::ranges::any_of(router_.losses, [](double each) { return each != 0; }))
      balance(logits, bestOf(logits, ids, bias), layer);
    if (to_.tallies("expert_load"))
      to_.tally("expert_load", keptLoad(kept, "expert_load", "router.load.kept"), layer, 1);
    return groupsOf(kept, weights);
  }

  Op chooser(ValueId logits) const {
    Op choose = to_.op(OpKind::RouterTopk, {logits});
    choose.set(Key::topk, router_.topk).set(Key::scale, router_.scale);
    choose.set(Key::score, int64_t{router_.score})
        .set(Key::pre_softmax, int64_t{router_.preSoftmax});
    return choose;
  }

  /// Marks choices that exceed the capacity of their expert as dropped.
  ValueId dropped(ValueId ids, ValueId weights) {
    if (router_.capacityFactor == 0)
      return ids;
    Op drop = to_.op(OpKind::RouterDrop, {ids, weights});
    drop.set(Key::experts, s_.experts).set(Key::capacity_factor, router_.capacityFactor);
    drop.set(Key::by_position, int64_t{router_.dropsByPosition});
    ValueId kept = one(std::move(drop), "router.kept", to_.typeOf(ids));
    to_.setPurpose(kept, plan::Purpose::Data);
    return kept;
  }

  /// The experts of each row with the highest scores. Balancing losses count these, regardless of
  /// the bias and groups that affect the choice.
  ValueId bestOf(ValueId logits, ValueId ids, ValueId bias) {
    if (bias == plan::kNone && router_.groups == 0)
      return ids;
    return chosen(chooser(logits), router_.topk, "router.best", "router.best.weights")[0];
  }

  /// Counts how often each expert is chosen in each of `parts` equal parts of the rows. keptLoad()
  /// counts for a cell, whose rows are longer, with zeros after the experts.
  ValueId load(ValueId ids, int64_t parts, const char *what) {
    return one(to_.op(OpKind::ExpertLoad, {ids}), what, Type::of(DType::F32, {parts, s_.experts}));
  }
  ValueId keptLoad(ValueId ids, const char *cell, const char *what) {
    return one(to_.op(OpKind::ExpertLoad, {ids}), what,
               Type::of(DType::F32, {1, to_.columnsOf(cell)}));
  }

  /// Adds a balancing loss for each row. A run reports it without its weight.
  void addLoss(ValueId logits, ValueId load, RouterLoss kind, double scale) {
    double weight = router_.losses[static_cast<size_t>(kind)];
    Op op = load == plan::kNone ? to_.op(OpKind::RouterZLoss, {logits})
                                : to_.op(OpKind::RouterLoss, {logits, load});
    if (load != plan::kNone)
      op.set(Key::score, int64_t{router_.score});
    op.set(Key::scale, weight * scale);
    std::string what = std::string("router.") + kRouterLossNames[kind];
    ValueId losses = one(std::move(op), what.c_str(), Type::of(DType::F32, {tokens_}));
    ValueId column = to_.reshaped(losses, (what + ".column").c_str(), {tokens_, 1});
    // The global loss is the same sum on each rank.
    double share =
        router_.reportedShare / static_cast<double>(kind == kGlobalLoss ? 1 : router_.dataRanks);
    to_.tally("router_losses", column, kind, share / weight);
  }

  /// Adds the balancing losses of a microbatch. `ids`: the experts of each row that count.
  void balance(ValueId logits, ValueId ids, int64_t layer) {
    auto batch = static_cast<double>(to_.settings().microBatch);
    auto sequence = static_cast<double>(to_.settings().seqLength), tokens = batch * sequence;
    auto has = [&](RouterLoss kind) { return router_.losses[static_cast<size_t>(kind)] != 0; };
    double perChoice = static_cast<double>(s_.experts) / static_cast<double>(router_.topk);
    if (has(kZLoss))
      addLoss(logits, plan::kNone, kZLoss, 1 / tokens);
    if (has(kBalanceLoss))
      addLoss(logits, load(ids, 1, "router.load"), kBalanceLoss, perChoice / (tokens * tokens));
    if (has(kSequenceLoss))
      addLoss(logits, load(ids, to_.settings().microBatch, "router.loads"), kSequenceLoss,
              perChoice / (sequence * sequence * batch));
    if (!has(kGlobalLoss))
      return;
    ValueId all = to_.summed(keptLoad(ids, "global_load", "router.load.own"), "router.load.all",
                             to_.groupOf(plan::GroupKind::Data));
    const Type type = Type::of(DType::F32, {1, s_.experts});
    ValueId total =
        to_.row(to_.tally("global_load", all, layer, 1), layer, type, "router.load.total");
    ValueId mean = one(to_.op(OpKind::RunningMean, {total}), "router.load.mean", type);
    double everywhere = tokens * static_cast<double>(router_.dataRanks);
    addLoss(logits, mean, kGlobalLoss, perChoice / (everywhere * everywhere));
  }

  /// Groups the rows by expert, with room for all, since a token has a row for each of its experts.
  Runs groupsOf(ValueId ids, ValueId weights) {
    int64_t rows = tokens_ * std::min(router_.topk, s_.experts);
    Op make = to_.op(OpKind::MakeRuns, {ids});
    make.set(Key::bound, rows);
    auto made = to_.emitMany(std::move(make), {{"counts", Type::of(DType::I32, {1, s_.experts})},
                                               {"places", to_.typeOf(ids)}});
    for (ValueId value : made)
      to_.setPurpose(value, plan::Purpose::Data);
    Runs runs = {rows, made[0], made[1], weights};
    if (s_.weighsInput)
      return runs;
    // Weights are dispatched as rows with one column.
    int64_t choices = tokens_ * router_.topk;
    ValueId column = to_.reshaped(weights, "router.weights.flat", {choices, 1});
    ValueId places = to_.reshaped(runs.places, "places.flat", {choices, 1});
    runs.weights = to_.emitRows(to_.op(OpKind::Dispatch, {column, places}), to_.name("weights"),
                                Type::of(DType::F32, {rows, 1}), runs.counts);
    return runs;
  }

  // ---- experts ----

  ValueId rowsOf(Op op, const std::string &what, int64_t columns, const Runs &runs) {
    return to_.emitRows(std::move(op), to_.name(what.c_str()),
                        to_.activations({runs.rows, columns}), runs.counts);
  }
  /// Emits a product of each row with the named matrix of its expert.
  ValueId product(ValueId x, const std::string &weight, const std::string &what, int64_t columns,
                  const Runs &runs) {
    Op op = to_.op(OpKind::GroupedMatMul, {x, to_.weight(weight), runs.counts});
    op.set(Key::trans_b, int64_t{1});
    return rowsOf(std::move(op), what, columns, runs);
  }

  /// Emits a linear layer of the experts, with its adapter, and its bias times `weights`, if given.
  ValueId linear(ValueId x, const char *name, const std::string &what, int64_t columns,
                 const Runs &runs, ValueId weights = plan::kNone) {
    const Adapters &adapters = s_.expert.adapters;
    const std::string stem = std::string(kExperts) + name;
    ValueId y =
        product(x, stem + ".weight", what + (s_.expert.hasBias ? ".product" : ""), columns, runs);
    if (adapters.parts.contains(stem)) {
      ValueId inner = product(x, stem + kAdapterIn, what + ".adapter.in", adapters.rank, runs);
      inner = to_.scaled(inner, adapters.scaleOf(stem), (what + ".adapter.scaled").c_str());
      ValueId more = product(inner, stem + kAdapterOut, what + ".adapter.out", columns, runs);
      y = rowsOf(to_.op(OpKind::Add, {y, more}), what + ".adapted", columns, runs);
    }
    if (!s_.expert.hasBias)
      return y;
    Op add = to_.op(OpKind::GroupedBias, {y, to_.weight(stem + ".bias"), runs.counts});
    if (weights != plan::kNone)
      add.operands.push_back(weights);
    return rowsOf(std::move(add), what, columns, runs);
  }

  /// Computes the output of each expert for its rows. A row's weight scales the activation between
  /// the two layers, like upstream's experts, so that the gradient of a weight does not need the
  /// result of the second product; it also scales the second bias. In mode `weighsInput`, weights
  /// scale only the input rows.
  ValueId apply(ValueId rows, const Runs &runs) {
    const int64_t width = s_.expert.width;
    ValueId f1 = linear(rows, kUp, "experts.fc1", s_.expert.gated ? times(2, width) : width, runs);
    Op activation = to_.op(s_.expert.activation, {f1});
    setActivation(activation, s_.expert);
    if (std::optional<OpKind> both = plan::opInfo(activation).weighted; both && !s_.weighsInput) {
      activation.kind = *both;
      activation.operands.push_back(runs.weights);
    } else if (!s_.weighsInput) {
      ValueId made = rowsOf(std::move(activation), "experts.act", width, runs);
      activation = to_.op(OpKind::ScaleRows, {made, runs.weights});
    }
    ValueId a = rowsOf(std::move(activation), s_.weighsInput ? "experts.act" : "experts.weighted",
                       width, runs);
    return linear(a, kDown, "experts.fc2", s_.expert.hidden, runs, runs.weights);
  }

  const MoeSettings &s_;
  const RouterSettings &router_;
  Forward &to_;
  int64_t tokens_; ///< of a microbatch
};

/// x and the result are [B,S,hidden]; experts see rows of tokens, each once for every expert that
/// it chose.
class MoeMlp : public Module {
public:
  explicit MoeMlp(const MoeSettings &settings) : s_(settings) {}

  /// Experts are declared as one layer whose parameters get a first dimension for the expert.
  void declare(Params &params) const override {
    params.push_back({ParamKind::Router,
                      kRouter,
                      {s_.experts, s_.expert.hidden},
                      plan::InitKind::Normal,
                      s_.expert.initStd});
    if (s_.expert.hasBias) // initialised like the weights
      params.push_back(
          {ParamKind::Bias, kRouterBias, {s_.experts}, plan::InitKind::Normal, s_.expert.initStd});
    Params one;
    makeModule(s_.expert, kExperts, "", ParamKind::Experts)->declare(one);
    for (ParamSpec &param : one) {
      param.shape.insert(param.shape.begin(), s_.experts);
      param.isStacked = true;
      if (param.split)
        ++param.split->dim;
      params.push_back(std::move(param));
    }
    if (s_.shared)
      makeModule(*s_.shared, kShared, "", ParamKind::SharedExperts)->declare(params);
    if (s_.hasSharedGate)
      params.push_back({ParamKind::SharedGate,
                        kSharedGate,
                        {1, s_.expert.hidden},
                        plan::InitKind::Normal,
                        s_.expert.initStd});
  }

  ValueId forward(Forward &to, ValueId x) const override { return Layer(s_, to).emit(x); }

private:
  MoeSettings s_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const MoeSettings &settings) {
  return std::make_unique<MoeMlp>(settings);
}

} // namespace shardc::model
