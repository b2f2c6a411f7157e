// Chooses the modules of each layer, and their settings, according to the options of a recipe.
#include "compiler/lower/Family.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "compiler/config/Adapted.h"
#include "runtime/base/DType.h"
#include "runtime/base/Preference.h"

namespace shardc::lower {
namespace {

using config::Activation;
using config::kLayersMax;
using config::Opt;
using model::FeedForward;
using model::Mixer;
using model::Modules;
using plan::OpKind;

struct ActivationRow {
  Activation activation;
  bool gated;
  OpKind op;
};

constexpr ActivationRow kActivations[] = {
    {Activation::Gelu, false, OpKind::Gelu},
    {Activation::SquaredRelu, false, OpKind::SquaredRelu},
    {Activation::Silu, true, OpKind::SwiGlu},
    {Activation::Gelu, true, OpKind::GeGlu},
    {Activation::QuickGelu, true, OpKind::QuickGeGlu},
};

/// Creates the lists of modules for one configuration.
class Lists {
public:
  explicit Lists(const config::Config &config)
      : config_(config), d_(config.derived()), std_(config.getFloat(Opt::ModelInitMethodStd)),
        // Products whose result is added to the residual stream have smaller initial values:
        // Megatron's scaled_init_method_normal, by the number of residual connections.
        residualStd_(std_ /
                     std::sqrt((isHybrid() ? 1.0 : 2.0) * static_cast<double>(d_.numLayers))) {
    if (config.has(Opt::PeftScheme))
      targets_.emplace(config::adapterTargets(config));
  }

  model::Decoder decoder() const {
    model::Decoder decoder;
    decoder.numLayers = d_.numLayers;
    decoder.embedding.push_back(model::makeModule(embedding()));
    addLayers(decoder);
    decoder.head.push_back(
        norm(isHybrid() ? "decoder.final_norm." : "decoder.final_layernorm.", "norm"));
    decoder.head.push_back(model::makeModule(head()));
    decoder.numPredictions = config_.getIntOr(Opt::ModelMtpNumLayers, 0);
    if (decoder.numPredictions > 0)
      decoder.prediction.push_back(
          model::makeModule(prediction(), layer(kindOf(d_.numLayers - 1))));
    return decoder;
  }

private:
  /// Whether each layer has one part.
  bool isHybrid() const { return config_.has(Opt::ModelHybridLayerPattern); }

  bool hasBias() const { return config_.isOn(Opt::ModelAddBiasLinear); }

  model::NormSettings normSettings() const {
    return {config_.is(Opt::ModelNormalization, config::Normalization::LayerNorm),
            config_.isOn(Opt::ModelLayernormZeroCenteredGamma),
            config_.getFloat(Opt::ModelLayernormEpsilon)};
  }

  std::unique_ptr<model::Norm> norm(const char *stem, const char *what) const {
    return std::make_unique<model::Norm>(normSettings(), d_.hidden, stem, what);
  }

  model::EmbeddingSettings embedding() const {
    bool learned =
        config_.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::LearnedAbsolute);
    return {
        d_.paddedVocab,
        d_.hidden,
        learned ? d_.maxPositions : 0,
        config_.getFloatOr(Opt::ModelEmbeddingInitMethodStd, std_),
        config_.getFloatOr(Opt::ModelEmbeddingDropout, config_.getFloat(Opt::ModelHiddenDropout)),
        (config_.isOn(Opt::ModelScaleEmbeddings) ? embeddingScale() : 1) *
            config_.getFloat(Opt::ModelEmbeddingMultiplier)};
  }

  /// The scale of embeddings. Like in transformers, it is rounded to the type of activations.
  double embeddingScale() const {
    return roundedTo(d_.compute, static_cast<float>(std::sqrt(static_cast<double>(d_.hidden))));
  }

  model::HeadSettings head() const {
    // Megatron's softmax also includes the padding rows of the vocabulary.
    int64_t valid = config_.isOn(Opt::ModelMaskPaddedVocab) ? d_.vocab : d_.paddedVocab;
    return {d_.paddedVocab,
            d_.hidden,
            valid,
            d_.tied,
            std_,
            config_.getFloatOr(Opt::ModelFinalLogitSoftcapping, 0),
            config_.getFloat(Opt::ModelLogitsMultiplier),
            pairs()};
  }

  model::PairSettings pairs() const {
    if (!config_.has(Opt::PreferenceLoss))
      return {};
    const auto kind =
        static_cast<PairLossKind>(config_.getEnum<config::PreferenceLoss>(Opt::PreferenceLoss));
    return {kind,
            config_.getFloat(Opt::PreferenceBeta),
            kind == kSimpo ? config_.getFloat(Opt::PreferenceSimpoGamma) : 0,
            config_.getFloat(Opt::PreferenceLabelSmoothing),
            kind == kOrpo,
            hasReference(kind)};
  }

  /// The reported loss is the mean over microbatches, and over ranks with other samples. Ranks of a
  /// tensor group have the same losses.
  model::MtpSettings prediction() const {
    double ranks = static_cast<double>(d_.dataParallel) * static_cast<double>(d_.tensorParallel);
    return {d_.hidden,
            normSettings(),
            std_,
            embedding(),
            head(),
            config_.isOn(Opt::ModelCalculatePerTokenLoss),
            1 / (static_cast<double>(d_.numMicrobatches) * ranks)};
  }

  bool hasExperts(int64_t layer) const {
    return config::partsOf(config_, layer).feedForward == FeedForward::Experts;
  }

  /// The properties in which layers may differ.
  struct LayerKind {
    model::LayerForm parts = {};
    bool hasWindow = false; ///< of attention
    bool isRotated = true;  ///< if the model has rotations
    model::LayerAdapters adapters = {};
    auto operator<=>(const LayerKind &) const = default;
  };

  LayerKind kindOf(int64_t layer) const {
    LayerKind kind{config::partsOf(config_, layer)};
    if (kind.parts.mixer == Mixer::Attention || kind.parts.mixer == Mixer::Latent)
      kind.hasWindow = hasWindow(layer), kind.isRotated = isRotated(layer);
    if (targets_)
      kind.adapters = targets_->of(layer);
    return kind;
  }

  model::Adapters adapters(const LayerKind &kind) const {
    model::Adapters adapters;
    if (kind.adapters.empty())
      return adapters;
    adapters.rank = config_.getInt(Opt::PeftRank);
    auto rank = static_cast<double>(adapters.rank);
    adapters.alpha = config_.getFloat(Opt::PeftAlpha);
    adapters.perAlpha = 1 / (config_.isOn(Opt::PeftRslora) ? std::sqrt(rank) : rank);
    adapters.dropout = config_.getFloat(Opt::PeftDropout);
    adapters.isXavier = config_.is(Opt::PeftInit, config::AdapterInit::Xavier);
    adapters.hasMagnitude = config_.is(Opt::PeftScheme, config::PeftScheme::Dora);
    adapters.hasBias = config_.isOn(Opt::PeftLoraBias);
    adapters.parts = kind.adapters;
    return adapters;
  }

  /// Whether the layer rotates queries and keys. no_rope_freq is a number n, for every n-th layer
  /// counted from 1 that has no rotations, or a list in which 1 marks such a layer.
  bool isRotated(int64_t layer) const {
    if (!config_.has(Opt::ModelNoRopeFreq) || config_.getList(Opt::ModelNoRopeFreq).empty())
      return true;
    const config::Value::List &pattern = config_.getList(Opt::ModelNoRopeFreq);
    if (pattern.size() == 1 && *pattern.front().asInt() > 1)
      return (layer + 1) % *pattern.front().asInt() != 0;
    return *pattern[static_cast<size_t>(layer) % pattern.size()].asInt() == 0;
  }

  /// The number of earlier keys that a query attends to in layers with a window: the first number
  /// of window_size. The second one has no effect under a causal mask. Empty if the first one is
  /// -1.
  std::optional<int64_t> window() const {
    if (!config_.has(Opt::ModelWindowSize))
      return std::nullopt;
    int64_t left = *config_.getList(Opt::ModelWindowSize).front().asInt();
    return left < 0 ? std::nullopt : std::optional(left);
  }

  /// Whether the layer has a window. With a number n, every n-th layer counted from 1 has none;
  /// with a list, each layer with a 0 has none.
  bool hasWindow(int64_t layer) const {
    if (!window() || !config_.has(Opt::ModelWindowAttnSkipFreq) ||
        config_.getList(Opt::ModelWindowAttnSkipFreq).empty())
      return window().has_value();
    return config::isInPattern(config_, Opt::ModelWindowAttnSkipFreq, layer);
  }

  void addLayers(model::Decoder &decoder) const {
    std::map<LayerKind, uint8_t> kinds;
    for (int64_t i = 0; i < std::min(d_.numLayers, kLayersMax); ++i) {
      LayerKind kind = kindOf(i);
      auto [at, isNew] = kinds.try_emplace(kind, static_cast<uint8_t>(kinds.size()));
      if (isNew)
        decoder.kinds.push_back(layer(kind));
      decoder.pattern.push_back(at->second);
    }
  }

  /// The modules of one layer: a mixer and a feed-forward part, or one of them, each a branch with
  /// a residual connection. Names of norms are Megatron-Core's, which fuses a norm before a product
  /// into the product's module.
  Modules layer(const LayerKind &kind) const {
    Modules layer;
    const double scale = config_.getFloat(Opt::ModelResidualMultiplier);
    const auto [mixer, feedForward] = kind.parts;
    if (mixer != Mixer::None)
      layer.push_back(std::make_unique<model::Residual>(
          mixerBranch(kind), feedForward == FeedForward::None ? "out" : "mid", scale));
    if (feedForward != FeedForward::None)
      layer.push_back(std::make_unique<model::Residual>(feedForwardBranch(kind), "out", scale));
    return layer;
  }

  Modules mixerBranch(const LayerKind &kind) const {
    Modules branch;
    auto [stem, mixing] = mixerOf(kind);
    if (config_.isOn(Opt::ModelPreLayernorm))
      branch.push_back(norm(stem, "norm1"));
    branch.push_back(std::move(mixing));
    if (config_.isOn(Opt::ModelPostSelfAttnLayernorm))
      addPostNorm(branch, "post_self_attn_layernorm.", "attn.normed", "attn.drop");
    return branch;
  }

  Modules feedForwardBranch(const LayerKind &kind) const {
    Modules branch;
    const bool hasExperts = kind.parts.feedForward == FeedForward::Experts;
    if (config_.isOn(Opt::ModelPreLayernorm))
      branch.push_back(
          norm(hasExperts ? "pre_mlp_layernorm." : "mlp.linear_fc1.layer_norm_", "norm2"));
    branch.push_back(hasExperts ? model::makeModule(moe(kind))
                                : model::makeModule(feedForward(d_.ffnHidden, kind)));
    if (config_.isOn(Opt::ModelPostMlpLayernorm))
      addPostNorm(branch, "post_mlp_layernorm.", "mlp.normed", "mlp.drop");
    return branch;
  }

  /// The module that mixes positions, and the name of the norm before it.
  std::pair<const char *, std::unique_ptr<const model::Module>>
  mixerOf(const LayerKind &kind) const {
    switch (kind.parts.mixer) {
    case Mixer::None:
      break;
    case Mixer::Attention:
      return {"self_attention.linear_qkv.layer_norm_", model::makeModule(gqa(kind))};
    case Mixer::Latent:
      return {"input_layernorm.", model::makeModule(mla(kind))};
    case Mixer::ShortConv:
      return {"short_conv.in_proj.layer_norm_", model::makeModule(shortConv(kind))};
    case Mixer::DeltaNet:
      return {"self_attention.in_proj.layer_norm_", model::makeModule(deltaNet(kind))};
    case Mixer::Mamba:
      return {"mixer.in_proj.layer_norm_", model::makeModule(mamba(kind))};
    }
    return {};
  }

  /// Adds a norm at the end of a branch, and dropout after it, if there is any.
  void addPostNorm(Modules &branch, const char *stem, const char *what, const char *drop) const {
    branch.push_back(norm(stem, what));
    branch.push_back(
        std::make_unique<model::Dropout>(config_.getFloat(Opt::ModelHiddenDropout), drop));
  }

  /// The dropout of a branch's result. It is 0 if a norm follows, because dropout then follows the
  /// norm.
  double branchDropout(Opt norm) const {
    return config_.isOn(norm) ? 0 : config_.getFloat(Opt::ModelHiddenDropout);
  }

  /// Rotary embedding of a layer; nothing if the layer has none. Layers with a window may have a
  /// base of their own, and then neither scaling nor interpolation.
  std::optional<model::RopeSettings> rope(const LayerKind &kind) const {
    using config::PositionEmbedding;
    if (!kind.isRotated)
      return std::nullopt;
    bool isYarn = config_.is(Opt::ModelPositionEmbeddingType, PositionEmbedding::Yarn);
    if (!isYarn && !config_.is(Opt::ModelPositionEmbeddingType, PositionEmbedding::Rope))
      return std::nullopt;
    model::RopeSettings rope;
    rope.base = config_.getFloat(Opt::ModelRotaryBase);
    if (kind.hasWindow && config_.has(Opt::ModelWindowRotaryBase)) {
      rope.base = config_.getFloat(Opt::ModelWindowRotaryBase);
    } else if (isYarn) {
      rope.yarn = yarn();
    } else {
      if (config_.isOn(Opt::ModelRopeScaling))
        rope.scaling = config_.getFloat(Opt::ModelRopeScalingFactor);
      rope.interpolation = config_.getFloatOr(Opt::ModelSeqLenInterpolationFactor, 1);
    }
    rope.dim = isYarn ? d_.headSize
                      : static_cast<int64_t>(config_.getFloat(Opt::ModelRotaryPercent) *
                                             static_cast<double>(d_.headSize));
    rope.interleaved = !isYarn && config_.isOn(Opt::ModelRotaryInterleaved);
    return rope;
  }

  /// YaRN's magnitude factor for a context that is `factor` times as long.
  static double yarnMagnitude(double factor, double weight) {
    return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
  }

  model::YarnSettings yarn() const {
    model::YarnSettings yarn;
    yarn.factor = config_.getFloat(Opt::ModelYarnRotaryScalingFactor);
    yarn.positions = config_.getInt(Opt::ModelYarnOriginalMaxPositionEmbeddings);
    yarn.betaFast = config_.getFloat(Opt::ModelYarnBetaFast);
    yarn.betaSlow = config_.getFloat(Opt::ModelYarnBetaSlow);
    yarn.roundsRange = config_.isOn(Opt::ModelYarnCorrectionRangeRoundToInt);
    Opt weight = Opt::ModelYarnMscale, divisor = Opt::ModelYarnMscaleAllDim;
    yarn.magnitude = yarnMagnitude(yarn.factor, 1);
    if (config_.has(weight) && config_.has(divisor))
      yarn.magnitude = yarnMagnitude(yarn.factor, config_.getFloat(weight)) /
                       yarnMagnitude(yarn.factor, config_.getFloat(divisor));
    return yarn;
  }

  model::RopeSettings latentRope() const {
    model::RopeSettings rope;
    rope.base = config_.getFloat(Opt::ModelRotaryBase);
    if (!config_.is(Opt::ModelRopeType, config::RopeType::Yarn))
      return rope;
    model::YarnSettings &yarn = rope.yarn.emplace();
    yarn.factor = config_.getFloat(Opt::ModelRotaryScalingFactor);
    yarn.positions = config_.getInt(Opt::ModelOriginalMaxPositionEmbeddings);
    yarn.betaFast = config_.getFloat(Opt::ModelBetaFast);
    yarn.betaSlow = config_.getFloat(Opt::ModelBetaSlow);
    yarn.magnitude = yarnMagnitude(yarn.factor, config_.getFloat(Opt::ModelMscale)) /
                     yarnMagnitude(yarn.factor, config_.getFloat(Opt::ModelMscaleAllDim));
    return rope;
  }

  model::Sinks sinks() const {
    switch (config_.getEnumOr(Opt::ModelSoftmaxType, config::SoftmaxType::Vanilla)) {
    case config::SoftmaxType::Vanilla:
      return model::Sinks::None;
    case config::SoftmaxType::OffByOne:
      return model::Sinks::Zero;
    case config::SoftmaxType::Learnable:
      return model::Sinks::Learned;
    }
    return model::Sinks::None;
  }

  model::ScoreSettings scores(double scale) const {
    model::ScoreSettings scores;
    scores.scale = scale;
    scores.softCap = config_.getFloatOr(Opt::ModelAttnLogitSoftcapping, 0);
    scores.resetMask = config_.derived().splitsDocuments;
    scores.dropout = config_.getFloat(Opt::ModelAttentionDropout);
    scores.sinks = sinks();
    return scores;
  }

  model::MixerSettings mixer(const LayerKind &kind) const {
    return {d_.hidden, std_, residualStd_, branchDropout(Opt::ModelPostSelfAttnLayernorm),
            adapters(kind)};
  }

  model::GqaSettings gqa(const LayerKind &kind) const {
    model::GqaSettings gqa{mixer(kind)};
    gqa.heads = d_.numHeads, gqa.groups = d_.numGroups, gqa.headSize = d_.headSize;
    gqa.qkvBias = hasBias() || config_.isOn(Opt::ModelAddQkvBias);
    gqa.projBias = hasBias() || config_.isOn(Opt::ModelAddAttnProjBias);
    gqa.rope = rope(kind);
    gqa.scores = scores(config_.getFloatOr(Opt::ModelSoftmaxScale,
                                           1.0 / std::sqrt(static_cast<double>(d_.headSize))));
    if (kind.hasWindow)
      gqa.scores.window = window();
    setPositions(gqa, kind);
    if (config_.isOn(Opt::ModelQkLayernorm))
      gqa.qkNorm = normSettings();
    gqa.isNormOfAllHeads = config_.isOn(Opt::ModelQkLayernormFullWidth);
    gqa.isNormOfRotated = config_.isOn(Opt::ModelQkLayernormAfterRotation);
    gqa.hasGate = config_.isOn(Opt::ModelAttentionOutputGate);
    return gqa;
  }

  /// Sets the attributes that only layers with rotary embedding have, or those that only layers
  /// without it have.
  void setPositions(model::GqaSettings &gqa, const LayerKind &kind) const {
    if (kind.isRotated && config_.has(Opt::ModelAttentionChunkSize))
      gqa.scores.chunk = config_.getInt(Opt::ModelAttentionChunkSize);
    if (kind.isRotated && config_.isOn(Opt::ModelQkL2Norm))
      gqa.l2NormEps = config_.getFloat(Opt::ModelLayernormEpsilon);
    if (!kind.isRotated && config_.isOn(Opt::ModelAttnTemperatureTuning))
      gqa.queryScale = {config_.getInt(Opt::ModelAttnFloorScale),
                        config_.getFloat(Opt::ModelAttnScale)};
  }

  /// The settings of latent attention. Scores are scaled by 1/sqrt of all channels of a query, with
  /// and without rotation, times the square of YaRN's magnitude.
  model::MlaSettings mla(const LayerKind &kind) const {
    model::MlaSettings mla{mixer(kind)};
    mla.heads = d_.numHeads;
    mla.channels = config_.getIntOr(Opt::ModelQkHeadDim, 1);
    mla.rotated = config_.getIntOr(Opt::ModelQkPosEmbHeadDim, 0);
    mla.values = config_.getIntOr(Opt::ModelVHeadDim, 1);
    if (config_.has(Opt::ModelQLoraRank))
      mla.queryRank = config_.getInt(Opt::ModelQLoraRank);
    mla.keyRank = config_.getIntOr(Opt::ModelKvLoraRank, 1);
    if (config_.isOn(Opt::ModelQkLayernorm))
      mla.norm = normSettings();
    if (mla.norm && config_.has(Opt::ModelLatentLayernormEpsilon))
      mla.norm->eps = config_.getFloat(Opt::ModelLatentLayernormEpsilon);
    mla.rope = latentRope();
    // Like Megatron-Core, does not derive the magnitude from the frequencies.
    double magnitude = yarnMagnitude(config_.getFloatOr(Opt::ModelRotaryScalingFactor, 1),
                                     config_.getFloat(Opt::ModelMscaleAllDim));
    mla.scores =
        scores(magnitude * magnitude /
               std::sqrt(static_cast<double>(mla.channels) + static_cast<double>(mla.rotated)));
    mla.projBias = hasBias() || config_.isOn(Opt::ModelAddAttnProjBias);
    return mla;
  }

  model::ShortConvSettings shortConv(const LayerKind &kind) const {
    return {mixer(kind), config_.getInt(Opt::ModelShortConvKernelDim), d_.splitsDocuments};
  }

  model::DeltaNetSettings deltaNet(const LayerKind &kind) const {
    return {mixer(kind),
            config_.getInt(Opt::ModelLinearConvKernelDim),
            config_.getInt(Opt::ModelLinearNumKeyHeads),
            config_.getInt(Opt::ModelLinearNumValueHeads),
            config_.getInt(Opt::ModelLinearKeyHeadDim),
            config_.getInt(Opt::ModelLinearValueHeadDim),
            d_.splitsDocuments,
            config_.getFloat(Opt::ModelLayernormEpsilon)};
  }

  model::MambaSettings mamba(const LayerKind &kind) const {
    return {mixer(kind),
            config_.getInt(Opt::ModelMambaNumGroups),
            config::mambaHeads(config_),
            config_.getInt(Opt::ModelMambaStateDim),
            config_.getInt(Opt::ModelMambaHeadDim),
            d_.splitsDocuments,
            config_.getFloat(Opt::ModelLayernormEpsilon)};
  }

  model::MlpSettings feedForward(int64_t width, const LayerKind &kind) const {
    model::MlpSettings mlp;
    mlp.adapters = adapters(kind);
    mlp.hidden = d_.hidden, mlp.width = width;
    mlp.gated = d_.gated, mlp.hasBias = hasBias() || config_.isOn(Opt::ModelAddMlpBias);
    mlp.activation = activationOp(config_).value_or(mlp.activation);
    // Megatron's fused bias-GELU is the tanh approximation; its unfused GELU is exact.
    bool isGelu = mlp.activation == OpKind::Gelu || mlp.activation == OpKind::GeGlu;
    mlp.tanhApprox = isGelu && config_.isOn(Opt::ModelBiasActivationFusion);
    mlp.clamp = config_.getFloatOr(Opt::ModelActivationFuncClampValue, 0);
    mlp.linearOffset = config_.getFloatOr(Opt::ModelGluLinearOffset, 0);
    mlp.initStd = std_, mlp.residualStd = residualStd_;
    mlp.hiddenDropout = branchDropout(Opt::ModelPostMlpLayernorm);
    return mlp;
  }

public:
  int64_t countWithExperts() const {
    int64_t count = 0;
    for (int64_t i = 0; i < std::min(d_.numLayers, kLayersMax); ++i)
      count += hasExperts(i) ? 1 : 0;
    // Multi-token prediction blocks have the same kind of layer as the last layer.
    return count + (hasExperts(d_.numLayers - 1) ? config_.getIntOr(Opt::ModelMtpNumLayers, 0) : 0);
  }

  /// The settings of the router: how scores are computed, how many experts and groups a token
  /// chooses, and what happens to rows beyond the capacity.
  model::RouterSettings router() const {
    model::RouterSettings router;
    router.topk = config_.getInt(Opt::ModelMoeRouterTopk);
    if (config_.has(Opt::ModelMoeRouterGroupTopk)) { // without it, upstream ignores groups
      router.groups = config_.getIntOr(Opt::ModelMoeRouterNumGroups, 0);
      router.groupTopk = config_.getInt(Opt::ModelMoeRouterGroupTopk);
    }
    switch (config_.getEnumOr(Opt::ModelMoeRouterScoreFunction, config::RouterScore::Softmax)) {
    case config::RouterScore::Softmax:
      router.score = kRouterSoftmax;
      break;
    case config::RouterScore::Sigmoid:
      router.score = kRouterSigmoid;
      break;
    case config::RouterScore::SqrtSoftplus:
      router.score = kRouterSqrtSoftplus;
      break;
    }
    router.preSoftmax = config_.isOn(Opt::ModelMoeRouterPreSoftmax);
    router.scale = config_.getFloatOr(Opt::ModelMoeRouterTopkScalingFactor, 1);
    router.jitter = config_.getFloatOr(Opt::ModelMoeInputJitterEps, 0);
    router.isFp32 = config_.has(Opt::ModelMoeRouterDtype);
    setLosses(router);
    router.capacityFactor = config_.getFloatOr(Opt::ModelMoeExpertCapacityFactor, 0);
    router.dropsByPosition =
        config_.is(Opt::ModelMoeTokenDropPolicy, config::TokenDropPolicy::Position);
    setSinkhorn(router);
    return router;
  }

  /// Upstream's Sinkhorn router weights experts by the sigmoid of the chosen expert's logit, or by
  /// the softmax over all logits, and ignores the score function. Rules refuse settings that it
  /// would ignore.
  void setSinkhorn(model::RouterSettings &router) const {
    auto kinds = config_.getEnums<config::RouterBalancing>(Opt::ModelMoeRouterLoadBalancingType);
    router.isBySinkhorn = kinds == std::vector{config::RouterBalancing::Sinkhorn};
    if (!router.isBySinkhorn)
      return;
    router.score = router.topk == 1 ? kRouterSigmoid : kRouterSoftmax;
    router.preSoftmax = true;
  }

  /// Sets the weight of each kind of loss. If a kind is listed several times, its first weight
  /// counts.
  void setLosses(model::RouterSettings &router) const {
    const config::Value::List &weights = config_.getList(Opt::ModelMoeAuxLossCoeff);
    auto kinds = config_.getEnums<config::RouterBalancing>(Opt::ModelMoeRouterLoadBalancingType);
    for (size_t i = std::min(kinds.size(), weights.size()); i-- > 0;)
      if (std::optional<RouterLoss> loss = lossOf(kinds[i]))
        router.losses[*loss] = *weights[i].asFloat();
    router.losses[kZLoss] = config_.getFloatOr(Opt::ModelMoeZLossCoeff, 0);
    router.dataRanks = d_.dataParallel;
    router.reportedShare = 1 / static_cast<double>(d_.numMicrobatches * countWithExperts());
  }

  static std::optional<RouterLoss> lossOf(config::RouterBalancing kind) {
    switch (kind) {
    case config::RouterBalancing::AuxLoss:
      return kBalanceLoss;
    case config::RouterBalancing::SeqAuxLoss:
      return kSequenceLoss;
    case config::RouterBalancing::GlobalAuxLoss:
      return kGlobalLoss;
    case config::RouterBalancing::Sinkhorn:
    case config::RouterBalancing::NoBalancing:
      return std::nullopt;
    }
    return std::nullopt;
  }

private:
  model::MoeSettings moe(const LayerKind &kind) const {
    model::MoeSettings moe;
    moe.experts = config_.getIntOr(Opt::ModelNumMoeExperts, 1);
    moe.router = router();
    moe.expert = feedForward(config_.getIntOr(Opt::ModelMoeFfnHiddenSize, d_.ffnHidden), kind);
    if (config_.has(Opt::ModelMoeSharedExpertIntermediateSize))
      moe.shared = feedForward(config_.getInt(Opt::ModelMoeSharedExpertIntermediateSize), kind);
    moe.hasSharedGate = moe.shared && config_.isOn(Opt::ModelMoeSharedExpertGate);
    moe.weighsInput = config_.isOn(Opt::ModelMoeApplyProbsOnInput);
    return moe;
  }

  const config::Config &config_;
  const config::Derived &d_;
  double std_, residualStd_;
  std::optional<model::AdapterTargets> targets_; ///< empty: no layer has adapters
};

} // namespace

model::Decoder decoderOf(const config::Config &config) { return Lists(config).decoder(); }

model::Frozen frozenOf(const config::Config &config) {
  if (!config.has(Opt::PeftScheme))
    return model::readFrozen(config::textsOf(config, Opt::ModelFreeze), config.derived().numLayers);
  return model::readSaved(config::textsOf(config, Opt::PeftModulesToSave),
                          config.derived().numLayers, config.derived().tied);
}

std::optional<OpKind> activationOp(const config::Config &config) {
  auto activation = config.getEnumOr(Opt::ModelActivationFunc, Activation::Gelu);
  for (const ActivationRow &row : kActivations)
    if (row.activation == activation && row.gated == config.derived().gated)
      return row.op;
  return std::nullopt;
}

std::optional<model::RouterSettings> routerOf(const config::Config &config) {
  Lists lists(config);
  return lists.countWithExperts() == 0 ? std::nullopt : std::optional(lists.router());
}

int64_t countLayersWithExperts(const config::Config &config) {
  return Lists(config).countWithExperts();
}

int64_t countParameters(const config::Config &config) {
  return model::countParameters(decoderOf(config));
}

} // namespace shardc::lower
