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

void ruleLatentRotation(RuleContext &ctx) {
  constexpr double kUpstreamFactor = 40;
  if (!ctx.on(kLatent))
    return;
  ctx.derive(Opt::ModelRopeType, Value::ofEnum(RopeType::Yarn), kLatent);
  ctx.derive(Opt::ModelRotaryScalingFactor, Value::ofFloat(kUpstreamFactor), kLatent);
}

void ruleYarnRange(RuleContext &ctx) {
  constexpr int64_t kUpstreamPositions = 4096;
  constexpr double kUpstreamFast = 32, kUpstreamSlow = 1;
  if (!hasYarnPositions(ctx))
    return;
  ctx.derive(Opt::ModelYarnOriginalMaxPositionEmbeddings, Value::ofInt(kUpstreamPositions),
             kPositions);
  ctx.derive(Opt::ModelYarnBetaFast, Value::ofFloat(kUpstreamFast), kPositions);
  ctx.derive(Opt::ModelYarnBetaSlow, Value::ofFloat(kUpstreamSlow), kPositions);
  ctx.derive(Opt::ModelYarnCorrectionRangeRoundToInt, Value::ofBool(true), kPositions);
}

void ruleLatentPositions(RuleContext &ctx) {
  if (ctx.on(kLatent) && !ctx.cfg().is(kPositions, PositionEmbedding::Rope))
    ctx.report({kLatent, kPositions}, {arg(ctx, kPositions)})
        .fix(ctx.fixSet(kPositions, Value::ofEnum(PositionEmbedding::Rope)));
}

void ruleLatentEven(RuleContext &ctx) {
  Opt rotated = Opt::ModelQkPosEmbHeadDim;
  if (ctx.on(kLatent) && ctx.num(rotated) % 2 != 0)
    ctx.report({kLatent, rotated}, {ctx.num(rotated)});
}

/// Lists the options that latent attention or YaRN ignores. The first one that is set is reported.
void ruleRotationIgnores(RuleContext &ctx) {
  struct Ignored {
    Opt option;
    bool isSet;
    bool byYarn; ///< ignored because of YaRN; else because of latent attention
  };
  const Derived &d = ctx.derived();
  Opt scale = Opt::ModelSoftmaxScale, groups = Opt::ModelNumQueryGroups;
  Opt share = Opt::ModelRotaryPercent, factor = Opt::ModelSeqLenInterpolationFactor;
  Opt pairs = Opt::ModelRotaryInterleaved, scaling = Opt::ModelRopeScaling;
  const Ignored ignored[] = {
      {scale, ctx.has(scale), false},
      {groups, d.numGroups != d.numHeads, false},
      {Opt::ModelAddQkvBias, ctx.on(Opt::ModelAddQkvBias), false},
      {Opt::ModelAttentionChunkSize, ctx.has(Opt::ModelAttentionChunkSize), false},
      {Opt::ModelNoRopeFreq, ctx.has(Opt::ModelNoRopeFreq), false},
      {Opt::ModelQkL2Norm, ctx.on(Opt::ModelQkL2Norm), false},
      {share, ctx.cfg().getFloatOr(share, 1) != 1, true},
      {factor, ctx.has(factor), true},
      {pairs, ctx.on(pairs), true},
      {scaling, ctx.on(scaling), true},
  };
  bool isLatent = ctx.on(kLatent), isByPositions = !isLatent && hasYarnPositions(ctx);
  for (const Ignored &each : ignored)
    if (each.isSet && (isLatent || (isByPositions && each.byYarn))) {
      ctx.report({isLatent ? kLatent : kPositions, each.option},
                 {pathOf(each.option), arg(ctx, each.option),
                  DiagArg(isLatent ? "latent attention" : "YaRN")})
          .fix(ctx.fixRemove(each.option, FixItKind::Alternative));
      return;
    }
}

void ruleLatentRopeFusion(RuleContext &ctx) {
  Opt fusion = Opt::ModelApplyRopeFusion, type = Opt::ModelRopeType;
  if (ctx.on(kLatent) && ctx.on(fusion) && !ctx.cfg().is(type, RopeType::Yarn))
    ctx.report({fusion, type}, {arg(ctx, type)}).fix(ctx.fixSet(fusion, Value::ofBool(false)));
}

void ruleLatentWindow(RuleContext &ctx) {
  Opt window = Opt::ModelWindowSize;
  if (ctx.on(kLatent) && ctx.has(window))
    ctx.report({kLatent, window}, {arg(ctx, window)})
        .fix(ctx.fixRemove(window, FixItKind::Alternative));
}

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
    ctx.report({option}, {arg(ctx, option), ctx.derived().numLayers});
}

void ruleNoRopeLayers(RuleContext &ctx) { checkPattern(ctx, Opt::ModelNoRopeFreq); }

void ruleWindowLayers(RuleContext &ctx) { checkPattern(ctx, Opt::ModelWindowAttnSkipFreq); }

void ruleYarnFactor(RuleContext &ctx) {
  if (hasYarnPositions(ctx) && !ctx.has(Opt::ModelYarnRotaryScalingFactor))
    ctx.report({kPositions});
}

void ruleYarnBetas(RuleContext &ctx) {
  bool isLatent = ctx.on(kLatent);
  Opt fast = isLatent ? Opt::ModelBetaFast : Opt::ModelYarnBetaFast;
  Opt slow = isLatent ? Opt::ModelBetaSlow : Opt::ModelYarnBetaSlow;
  if (!isYarn(ctx) || !ctx.has(fast) || !ctx.has(slow))
    return;
  if (ctx.cfg().getFloat(fast) < ctx.cfg().getFloat(slow))
    ctx.report({fast, slow}, {pathOf(fast), arg(ctx, fast), pathOf(slow), arg(ctx, slow)});
}

void ruleYarnBase(RuleContext &ctx) {
  Opt base = Opt::ModelRotaryBase;
  if (isYarn(ctx) && ctx.cfg().getFloat(base) <= 1)
    ctx.report({base, ctx.on(kLatent) ? Opt::ModelRopeType : kPositions}, {arg(ctx, base)});
}

} // namespace shardc::config
