// Rules on latent attention, and on the rotation of channels by positions.
#include "compiler/config/RulePredicates.h"

namespace shardc::config {

namespace {

constexpr Opt kLatent = Opt::ModelMultiLatentAttention;
constexpr Opt kPositions = Opt::ModelPositionEmbeddingType;

bool hasYarnPositions(const RuleContext &ctx) {
  return ctx.cfg().is(kPositions, PositionEmbedding::Yarn);
}

bool isYarn(const RuleContext &ctx) {
  return ctx.on(kLatent) ? ctx.cfg().is(Opt::ModelRopeType, RopeType::Yarn) : hasYarnPositions(ctx);
}

} // namespace

RULE_CODE(LatentRotation) {
  constexpr double kUpstreamFactor = 40;
  if (!on(kLatent))
    return;
  derive(ModelRopeType, RopeType::Yarn, kLatent);
  derive(ModelRotaryScalingFactor, kUpstreamFactor, kLatent);
}

RULE_CODE(YarnRange) {
  constexpr int64_t kUpstreamPositions = 4096;
  constexpr double kUpstreamFast = 32, kUpstreamSlow = 1;
  if (!hasYarnPositions(ctx))
    return;
  derive(ModelYarnOriginalMaxPositionEmbeddings, kUpstreamPositions, kPositions);
  derive(ModelYarnBetaFast, kUpstreamFast, kPositions);
  derive(ModelYarnBetaSlow, kUpstreamSlow, kPositions);
  derive(ModelYarnCorrectionRangeRoundToInt, true, kPositions);
}

RULE_IF(LatentPositionsUnsupported, on(kLatent) && !cfg().is(kPositions, PositionEmbedding::Rope),
        report({kLatent, kPositions}, {text(kPositions)}).set(kPositions, PositionEmbedding::Rope));
RULE_IF(LatentRotaryEven, on(kLatent) && num(ModelQkPosEmbHeadDim) % 2 != 0,
        report({kLatent, ModelQkPosEmbHeadDim}, {num(ModelQkPosEmbHeadDim)}));

/// Lists the options that latent attention or YaRN ignores. The first one that is set is reported.
RULE_CODE(RotationIgnores) {
  struct Ignored {
    Opt option;
    bool isSet;
    bool byYarn; ///< ignored because of YaRN; else because of latent attention
  };
  Opt scale = ModelSoftmaxScale, groups = ModelNumQueryGroups;
  Opt share = ModelRotaryPercent, factor = ModelSeqLenInterpolationFactor;
  Opt pairs = ModelRotaryInterleaved, scaling = ModelRopeScaling;
  const Ignored ignored[] = {
      {scale, has(scale), false},
      {groups, d.numGroups != d.numHeads, false},
      {ModelAddQkvBias, on(ModelAddQkvBias), false},
      {ModelAttentionChunkSize, has(ModelAttentionChunkSize), false},
      {ModelNoRopeFreq, has(ModelNoRopeFreq), false},
      {ModelQkL2Norm, on(ModelQkL2Norm), false},
      {share, cfg().getFloatOr(share, 1) != 1, true},
      {factor, has(factor), true},
      {pairs, on(pairs), true},
      {scaling, on(scaling), true},
  };
  bool isLatent = on(kLatent), isByPositions = !isLatent && hasYarnPositions(ctx);
  for (const Ignored &each : ignored)
    if (each.isSet && (isLatent || (isByPositions && each.byYarn))) {
      report(
          {isLatent ? kLatent : kPositions, each.option},
          {pathOf(each.option), text(each.option), DiagArg(isLatent ? "latent attention" : "YaRN")})
          .remove(each.option, Alternative);
      return;
    }
}

RULE_IF(LatentRopeFusion,
        on(kLatent) && on(ModelApplyRopeFusion) && !cfg().is(ModelRopeType, RopeType::Yarn),
        report({ModelApplyRopeFusion, ModelRopeType}, {text(ModelRopeType)})
            .set(ModelApplyRopeFusion, false));
RULE_IF(LatentWindowUnsupported, on(kLatent) && has(ModelWindowSize),
        report({kLatent, ModelWindowSize}, {text(ModelWindowSize)})
            .remove(ModelWindowSize, Alternative));

/// Checks a pattern of layers: one number above 0, or a list with 0 or 1 for each layer.
void checkPattern(RuleContext &ctx, Opt option) {
  if (!ctx.has(option))
    return;
  const Value::List &pattern = ctx.cfg().getList(option);
  bool isNumber = pattern.size() == 1 && *pattern.front().asInt() > 0;
  auto isSwitch = [](const Value &value) { return *value.asInt() == 0 || *value.asInt() == 1; };
  bool isList = static_cast<int64_t>(pattern.size()) == ctx.derived().numLayers &&
                std::ranges::all_of(pattern, isSwitch);
  if (!isNumber && !isList)
    ctx.report({option}, {ctx.text(option), ctx.derived().numLayers});
}

RULE_DO(NoRopeLayers, checkPattern(ctx, ModelNoRopeFreq));
RULE_DO(WindowLayers, checkPattern(ctx, ModelWindowAttnSkipFreq));
RULE_DO(ShortConvLayers, checkPattern(ctx, ModelShortConvFreq));
RULE_IF(ShortConvContextParallel, has(ModelShortConvFreq) && d.contextParallel > 1,
        report({ModelContextParallelSize, ModelShortConvFreq}, {d.contextParallel})
            .set(ModelContextParallelSize, 1));
RULE_DO(LinearAttentionLayers, checkPattern(ctx, ModelLinearAttentionFreq));
RULE_CODE(LinearAttentionVariant) {
  constexpr Opt kVariant = ModelExperimentalAttentionVariant, kLayers = ModelLinearAttentionFreq;
  const bool isLinear = cfg().is(kVariant, AttentionVariant::Gdn) ||
                        cfg().is(kVariant, AttentionVariant::GatedDeltaNet);
  if (isLinear && !has(kLayers))
    report({kVariant}, {pathOf(kVariant), pathOf(kLayers)});
}
RULE_IF(LinearAttentionContextParallel, has(ModelLinearAttentionFreq) && d.contextParallel > 1,
        report({ModelContextParallelSize, ModelLinearAttentionFreq}, {d.contextParallel})
            .set(ModelContextParallelSize, 1));
bool isHybrid(const RuleContext &ctx) { return ctx.has(Opt::ModelHybridLayerPattern); }

RULE_CODE(HybridLayerSymbols) {
  if (!isHybrid(ctx))
    return;
  const std::string &symbols = cfg().getString(ModelHybridLayerPattern);
  if (size_t at = symbols.find_first_not_of("M*-E"); at != std::string::npos)
    report({ModelHybridLayerPattern}, {symbols.substr(at, 1)});
}
RULE_IF(HybridLayerCount,
        isHybrid(ctx) && std::ssize(cfg().getString(ModelHybridLayerPattern)) != d.numLayers,
        report({ModelHybridLayerPattern, ModelNumLayers},
               {std::ssize(cfg().getString(ModelHybridLayerPattern)), d.numLayers}));
RULE_IF(HybridLayerExperts,
        isHybrid(ctx) && !has(ModelNumMoeExperts) &&
            cfg().getString(ModelHybridLayerPattern).find('E') != std::string::npos,
        report({ModelHybridLayerPattern}));
RULE_IF(HybridModelPattern, on(ModelIsHybridModel) && !isHybrid(ctx), report({ModelIsHybridModel}));
RULE_CODE(HybridLayerLists) {
  for (Opt list : {ModelShortConvFreq, ModelLinearAttentionFreq, ModelMoeLayerFreq})
    if (isHybrid(ctx) && has(list))
      report({list, ModelHybridLayerPattern}, {pathOf(list)});
}
RULE_IF(MambaContextParallel, isHybrid(ctx) && d.contextParallel > 1,
        report({ModelContextParallelSize, ModelHybridLayerPattern}, {d.contextParallel})
            .set(ModelContextParallelSize, 1));
RULE_IF(OutputGateTensorParallel,
        on(ModelAttentionOutputGate) && d.numGroups > 0 && d.numGroups % d.tensorParallel != 0,
        report({ModelAttentionOutputGate, ModelNumQueryGroups, ModelTensorModelParallelSize},
               {d.numGroups, d.tensorParallel}));
RULE_IF(YarnFactor, hasYarnPositions(ctx) && !has(ModelYarnRotaryScalingFactor),
        report({kPositions}));

RULE_CODE(YarnBetas) {
  bool isLatent = on(kLatent);
  Opt fast = isLatent ? ModelBetaFast : ModelYarnBetaFast;
  Opt slow = isLatent ? ModelBetaSlow : ModelYarnBetaSlow;
  if (!isYarn(ctx) || !has(fast) || !has(slow))
    return;
  if (cfg().getFloat(fast) < cfg().getFloat(slow))
    report({fast, slow}, {pathOf(fast), text(fast), pathOf(slow), text(slow)});
}

RULE_IF(YarnBase, isYarn(ctx) && cfg().getFloat(ModelRotaryBase) <= 1,
        report({ModelRotaryBase, on(kLatent) ? ModelRopeType : kPositions},
               {text(ModelRotaryBase)}));

} // namespace shardc::config
