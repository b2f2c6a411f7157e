// Rules on element types, fp8, and the types of optimizer state.
#include "compiler/config/Evaluate.h"
#include "compiler/config/RulePredicates.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace shardc::config {

namespace {

bool isFp8On(const RuleContext &ctx) { return ctx.has(Opt::ModelFp8); }

/// The option that switched fp8 on; messages are attached to it.
Opt fp8Cause(const RuleContext &ctx) {
  return ctx.isWritten(Opt::ModelFp8)            ? Opt::ModelFp8
         : ctx.isWritten(Opt::MixedPrecisionFp8) ? Opt::MixedPrecisionFp8
                                                 : Opt::MixedPrecisionPreset;
}

/// Whether parameters are gathered from shards.
bool gathersParams(const RuleContext &ctx) {
  return ctx.wantsFsdp() || ctx.on(Opt::DistUseTorchFsdp2) || ctx.derived().distributedOptimizer;
}

/// Whether the loss scale changes during the run.
bool hasDynamicLossScale(const RuleContext &ctx) {
  return ctx.on(Opt::ModelFp16) && !ctx.has(Opt::OptimizerLossScale);
}

/// The largest loss scale: the loss is multiplied by its scale in fp32.
constexpr double kLossScaleMax = std::numeric_limits<float>::max();

} // namespace

RULE_IF(Fp32ResidualNeedsHalf, on(ModelFp32ResidualConnection) && !on(ModelBf16) && !on(ModelFp16),
        report({ModelFp32ResidualConnection}).remove(ModelFp32ResidualConnection));

RULE_CODE(PrecisionConflict) {
  for (CopiedField copy : copiedFields())
    if (isWritten(copy.field) && isWritten(copy.option) && has(copy.field) && has(copy.option) &&
        cfg()[copy.field].value != cfg()[copy.option].value)
      report({copy.field, copy.option},
             {pathOf(copy.field), text(copy.field), pathOf(copy.option), text(copy.option)})
          .remove(copy.field, Alternative)
          .remove(copy.option, Alternative);
}

RULE_CODE(PrecisionKept) {
  for (CopiedField copy : copiedFields()) {
    bool isPreset = cfg()[copy.field].from.origin == Origin::Preset && has(copy.field);
    if (isPreset && isWritten(copy.option) && has(copy.option) &&
        cfg()[copy.field].value != cfg()[copy.option].value)
      report({copy.option}, {pathOf(copy.option), text(copy.option), text(copy.field),
                             DiagArg("mixed_precision = " + text(MixedPrecisionPreset))});
  }
}

RULE_CODE(TwoPrecisions) {
  if (on(ModelBf16) && on(ModelFp16))
    report({ModelBf16, ModelFp16}, {DiagArg("Model")})
        .remove(ModelBf16, Alternative)
        .remove(ModelFp16, Alternative);
  else if (on(OptimizerBf16) && on(OptimizerFp16))
    report({OptimizerBf16, OptimizerFp16}, {DiagArg("Optimizer")});
}

RULE_CODE(PrecisionAwareMismatch) {
  if (!on(OptimizerUsePrecisionAwareOptimizer))
    return;
  for (auto [model, optimizer] :
       {std::pair(ModelBf16, OptimizerBf16), std::pair(ModelFp16, OptimizerFp16)})
    if (on(model) && !on(optimizer))
      report({model, optimizer}, {DiagArg(info(model).name)}).set(optimizer, true);
}

RULE_IF(PrecisionAwareAdam,
        on(OptimizerUsePrecisionAwareOptimizer) &&
            !cfg().is(OptimizerOptimizer, OptimizerKind::Adam),
        report({OptimizerUsePrecisionAwareOptimizer, OptimizerOptimizer},
               {text(OptimizerOptimizer)}));
RULE_IF(PrecisionAwareDistributed,
        on(OptimizerUsePrecisionAwareOptimizer) && !isVersion2(ctx) && !d.distributedOptimizer,
        report({OptimizerUsePrecisionAwareOptimizer, DdpUseDistributedOptimizer})
            .set(DdpUseDistributedOptimizer, true));

RULE_CODE(NarrowStateNeedsPrecisionAware) {
  if (on(OptimizerUsePrecisionAwareOptimizer))
    return;
  for (Opt opt : {OptimizerMainGradsDtype, OptimizerMainParamsDtype, OptimizerExpAvgDtype,
                  OptimizerExpAvgSqDtype})
    if (!cfg().is(opt, FloatType::Fp32) && has(opt))
      report({opt, OptimizerUsePrecisionAwareOptimizer}, {DiagArg(info(opt).name), text(opt)})
          .remove(opt, Alternative)
          .set(OptimizerUsePrecisionAwareOptimizer, true, Alternative);
}

RULE_CODE(MainGradsNarrowerThanWire) {
  Opt main = DdpMegatronFsdpMainGradsDtype, wire = DdpMegatronFsdpGradCommDtype;
  if (wantsFsdp() && dtypeBytes(d.mainGrads) < dtypeBytes(d.wire))
    report({main, wire}, {text(main), DiagArg(std::string(dtypeName(d.wire)))})
        .set(wire, FloatTypeOrAuto::Auto, Alternative)
        .set(main, FloatTypeOrAuto::Fp32, Alternative);
}

RULE_IF(Fp8AndFp4, isFp8On(ctx) && has(ModelFp4), report({ModelFp8, ModelFp4}));

RULE_CODE(Fp8Device) {
  if (!isFp8On(ctx) || !d.gpu)
    return;
  const predict::Device &device = predict::device(*d.gpu);
  if (!device.hasFp8() && !device.isHost()) // the host emulates the formats
    report({ClusterGpu, fp8Cause(ctx)}, {DiagArg(device.name)});
}

RULE_CODE(MxfpDevice) {
  if (!d.gpu || predict::device(*d.gpu).hasScalesOf32())
    return;
  DiagArg device = text(ClusterGpu);
  bool isMxfp8 = isFp8On(ctx) && cfg().is(ModelFp8Recipe, Fp8Recipe::Mxfp8);
  bool hasFp8 = predict::device(*d.gpu).hasFp8();
  if (isMxfp8 && hasFp8) // without fp8, the rule above reports it
    report({ClusterGpu, ModelFp8Recipe}, {DiagArg("fp8 recipe mxfp8"), device});
  if (has(ModelFp4))
    report({ClusterGpu, ModelFp4}, {DiagArg("fp4"), device});
}

RULE_CODE(Fp8BlockwiseDevice) {
  if (!isFp8On(ctx) || !d.gpu || !cfg().is(ModelFp8Recipe, Fp8Recipe::Blockwise))
    return;
  const predict::Device &device = predict::device(*d.gpu);
  if (device.hasFp8() && !device.hasScalesOf128())
    report({ClusterGpu, ModelFp8Recipe}, {DiagArg("fp8 recipe blockwise"), text(ClusterGpu)});
}

namespace {

/// A size of the layers' products on a rank.
struct Extent {
  const char *what;
  uint64_t size;
  Opt option;
};

// Larger numbers wrap around, which preserves the remainder modulo a power of two.
uint64_t sizeOf(int64_t number) { return static_cast<uint64_t>(number); }

/// The sizes of attention's products, except the hidden size.
llvm::SmallVector<Extent> attentionExtents(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  uint64_t ranks = sizeOf(d.tensorParallel), head = sizeOf(d.headSize);
  uint64_t heads = sizeOf(d.numHeads) / ranks;
  if (!ctx.on(Opt::ModelMultiLatentAttention))
    return {{"the width of a rank's heads", heads * head, Opt::ModelNumAttentionHeads},
            {"the width of a rank's queries, keys and values",
             (sizeOf(d.numHeads) + 2 * sizeOf(d.numGroups)) * head / ranks,
             Opt::ModelNumQueryGroups}};
  auto size = [&](Opt option) { return sizeOf(ctx.num(option)); };
  uint64_t channels = size(Opt::ModelQkHeadDim), rotated = size(Opt::ModelQkPosEmbHeadDim);
  uint64_t values = size(Opt::ModelVHeadDim), rank = size(Opt::ModelKvLoraRank);
  uint64_t tokens = sizeOf(d.microBatch) * sizeOf(d.seqLength / d.contextParallel);
  llvm::SmallVector<Extent> extents = {
      {"the rank of keys and values", rank, Opt::ModelKvLoraRank},
      {"the rank of keys and values with the channels that are rotated", rank + rotated,
       Opt::ModelQkPosEmbHeadDim},
      {"the width of a rank's queries", heads * (channels + rotated), Opt::ModelQkHeadDim},
      {"the width of a rank's keys and values", heads * (channels + values), Opt::ModelVHeadDim},
      {"the width of a rank's values", heads * values, Opt::ModelVHeadDim},
  };
  if (ctx.has(Opt::ModelQLoraRank))
    extents.push_back({"the rank of queries", size(Opt::ModelQLoraRank), Opt::ModelQLoraRank});
  if (ctx.on(Opt::ModelSequenceParallel)) // the down projections work on parts of the tokens
    extents.push_back({"the number of tokens of a rank's part of a microbatch", tokens / ranks,
                       Opt::ModelSeqLength});
  return extents;
}

/// The sizes of the experts' products. The rows of an expert are padded to a multiple that GPUs
/// support, so they are not checked.
llvm::SmallVector<Extent> expertExtents(const RuleContext &ctx) {
  const Derived &d = ctx.derived();
  llvm::SmallVector<Extent> extents;
  if (!ctx.has(Opt::ModelNumMoeExperts))
    return extents;
  Opt shared = Opt::ModelMoeSharedExpertIntermediateSize, own = Opt::ModelMoeFfnHiddenSize;
  int64_t width = ctx.cfg().getIntOr(own, d.ffnHidden);
  extents.push_back(
      {"the width of a rank's part of an expert", sizeOf(width / d.expertTensorParallel), own});
  if (ctx.has(shared))
    extents.push_back({"the width of a rank's part of the expert of all tokens",
                       sizeOf(ctx.num(shared) / d.tensorParallel), shared});
  return extents;
}

} // namespace

RULE_CODE(Fp8Extents) {
  if (!isFp8On(ctx))
    return;
  uint64_t divisor = cfg().is(ModelFp8Recipe, Fp8Recipe::Mxfp8) ? 32 : 16;
  llvm::SmallVector<Extent> extents = {
      {"the number of tokens of a rank's microbatch",
       sizeOf(d.microBatch) * sizeOf(d.seqLength / d.contextParallel), ModelSeqLength},
      {"the hidden size", sizeOf(d.hidden), ModelHiddenSize},
      {"the width of a rank's MLP", sizeOf(d.ffnHidden / d.tensorParallel), ModelFfnHiddenSize},
  };
  extents.append(attentionExtents(ctx));
  extents.append(expertExtents(ctx));
  const Extent *odd =
      llvm::find_if(extents, [&](const Extent &extent) { return extent.size % divisor != 0; });
  if (odd != std::end(extents))
    report({odd->option, fp8Cause(ctx)},
           {DiagArg(odd->what), DiagArg(static_cast<int64_t>(odd->size)),
            DiagArg(static_cast<int64_t>(divisor))});
}

RULE_CODE(Fp8ParamGatherUnsupported) {
  Opt recipe = ModelFp8Recipe;
  if (!isFp8On(ctx) || !on(DdpFp8ParamGather))
    return;
  bool hasOneScale =
      cfg().is(recipe, Fp8Recipe::Tensorwise) || cfg().is(recipe, Fp8Recipe::Delayed);
  std::string reason;
  if (!hasOneScale)
    reason = "'model.fp8_recipe' is '" + text(recipe) + "'";
  else if (!wantsFsdp())
    reason = "Megatron FSDP is off";
  else
    return;
  Opt written = isWritten(DdpFp8ParamGather)        ? DdpFp8ParamGather
                : isWritten(MixedPrecisionFp8Param) ? MixedPrecisionFp8Param
                                                    : MixedPrecisionFp8ParamGather;
  report({DdpFp8ParamGather, fp8Cause(ctx)}, {DiagArg(reason)}).set(written, false);
}

RULE_EACH(Fp8AttentionUnsupported, (ModelFp8DotProductAttention, ModelFp8MultiHeadAttention),
          isFp8On(ctx) && on(opt), report({opt, fp8Cause(ctx)}, {pathOf(opt)}));
RULE_IF(Fp8OutputProjectionUnsupported, isFp8On(ctx) && on(ModelFp8OutputProj),
        report({ModelFp8OutputProj, fp8Cause(ctx)}).remove(ModelFp8OutputProj));

RULE_CODE(Fp8QuantizersUnsupported) {
  Opt factory = ModelFp8QuantizerFactory, recipe = ModelFp8Recipe;
  if (isFp8On(ctx) && has(factory))
    report({factory, fp8Cause(ctx)}, {pathOf(factory), text(factory)}).remove(factory);
  else if (isFp8On(ctx) && cfg().is(recipe, Fp8Recipe::Custom))
    report({recipe, fp8Cause(ctx)}, {pathOf(recipe), text(recipe)});
}

RULE_IF(Fp8WeightsUnsupported, dtypeBytes(d.params) < 2, report({ModelParamsDtype}));
RULE_IF(Fp16WeightsUnsupported, d.params == DType::F16 && !on(ModelFp16),
        report({ModelParamsDtype, ModelFp16}));
RULE_IF(Fp4Unsupported, has(ModelFp4), report({ModelFp4}, {text(ModelFp4)}));
RULE_IF(Fp8ParamGatherNeeds, on(DdpFp8ParamGather) && !gathersParams(ctx),
        report({DdpFp8ParamGather, DdpUseDistributedOptimizer})
            .set(DdpUseDistributedOptimizer, true, Alternative));
RULE_IF(Fp4ParamGatherNeeds, on(DdpFp4ParamGather) && !gathersParams(ctx),
        report({DdpFp4ParamGather, DdpUseDistributedOptimizer})
            .set(DdpUseDistributedOptimizer, true, Alternative));

RULE_CODE(Fp8ParamsStrategy) {
  Opt strategy = DdpDataParallelShardingStrategy;
  if (wantsFsdp() && on(DdpFp8ParamGather) && !isVersion2(ctx) &&
      d.strategy != ShardingStrategy::OptimGradsParams)
    report({strategy, DdpFp8ParamGather}, {text(strategy)})
        .set(strategy, ShardingStrategy::OptimGradsParams, Alternative);
}

RULE_IF(Fp8ParamsMaster,
        wantsFsdp() && on(DdpFp8ParamGather) &&
            cfg().is(DdpMegatronFsdpMainParamsDtype, FloatTypeOrAuto::Auto),
        report({DdpMegatronFsdpMainParamsDtype, DdpFp8ParamGather})
            .set(DdpMegatronFsdpMainParamsDtype, FloatTypeOrAuto::Fp32));
RULE_IF(MasterWeightsInFp16,
        wantsFsdp() && cfg().is(DdpMegatronFsdpMainParamsDtype, FloatTypeOrAuto::Fp16),
        report({DdpMegatronFsdpMainParamsDtype, fsdpFlag()},
               {pathOf(DdpMegatronFsdpMainParamsDtype)})
            .set(DdpMegatronFsdpMainParamsDtype, FloatTypeOrAuto::Fp32));

RULE_CODE(MasterWeightsUnsupported) {
  Opt main = DdpMegatronFsdpMainParamsDtype;
  bool isHalf = cfg().is(main, FloatTypeOrAuto::Fp16); // the rule above reports it
  if (d.master != DType::F32 && !isHalf)
    report({main, fsdpFlag()}, {text(main)}).set(main, FloatTypeOrAuto::Fp32);
}

RULE_EACH(MomentsUnsupported, (OptimizerExpAvgDtype, OptimizerExpAvgSqDtype),
          cfg().is(opt, FloatType::Fp16),
          report({opt}, {pathOf(opt), text(opt)})
              .set(opt, FloatType::Fp32, Alternative)
              .set(opt, FloatType::Bf16, Alternative));
RULE_EACH(MomentsFp8, (OptimizerExpAvgDtype, OptimizerExpAvgSqDtype), cfg().is(opt, FloatType::Fp8),
          report({opt}, {pathOf(opt)})
              .set(opt, FloatType::Fp32, Alternative)
              .set(opt, FloatType::Bf16, Alternative));
RULE_EACH(LossScaleRange, (OptimizerLossScale, OptimizerInitialLossScale, OptimizerMinLossScale),
          cfg().getFloatOr(opt, 0) > kLossScaleMax,
          report({opt}, {pathOf(opt), text(opt), DiagArg(fmt::format("{:.4g}", kLossScaleMax))}));
RULE_IF(LossScaleMinimum,
        hasDynamicLossScale(ctx) && cfg().getFloatOr(OptimizerMinLossScale, 0) >
                                        cfg().getFloatOr(OptimizerInitialLossScale, 0),
        report({OptimizerMinLossScale, OptimizerInitialLossScale},
               {pathOf(OptimizerMinLossScale), text(OptimizerMinLossScale),
                text(OptimizerInitialLossScale)}));

RULE_CODE(LossScaleWindow) {
  Opt window = OptimizerLossScaleWindow;
  double steps = cfg().getFloatOr(window, 1);
  constexpr double kStepsMax = 1LL << 31;
  if (hasDynamicLossScale(ctx) && (steps != std::trunc(steps) || steps >= kStepsMax))
    report({window}, {pathOf(window), text(window)});
}

RULE_IF(ReuseGradBufferNeedsFp8, on(DdpReuseGradBufForMxfp8ParamAg) && !on(DdpFp8ParamGather),
        report({DdpReuseGradBufForMxfp8ParamAg, DdpFp8ParamGather})
            .remove(DdpReuseGradBufForMxfp8ParamAg));
RULE_IF(ReuseGradBufferRequired,
        !wantsFsdp() && on(DdpFp8ParamGather) && !on(DdpReuseGradBufForMxfp8ParamAg) &&
            cfg().is(ModelFp8Recipe, Fp8Recipe::Mxfp8),
        report({DdpFp8ParamGather, ModelFp8Recipe, DdpReuseGradBufForMxfp8ParamAg})
            .set(DdpReuseGradBufForMxfp8ParamAg, true));
RULE_IF(OptimizerOffload,
        on(OptimizerOptimizerCpuOffload) && !isVersion2(ctx) &&
            !on(OptimizerUsePrecisionAwareOptimizer),
        report({OptimizerOptimizerCpuOffload, OptimizerUsePrecisionAwareOptimizer})
            .set(OptimizerUsePrecisionAwareOptimizer, true));
RULE_IF(OptimizerOffloadFp8,
        on(OptimizerOptimizerCpuOffload) && on(DdpFp8ParamGather) &&
            !cfg().is(ModelFp8Recipe, Fp8Recipe::Delayed),
        report({OptimizerOptimizerCpuOffload, DdpFp8ParamGather, ModelFp8Recipe},
               {text(ModelFp8Recipe)}));

RULE_CODE(MainGradsInFp32) {
  bool isLeftOpen = cfg().is(DdpMegatronFsdpMainGradsDtype, FloatTypeOrAuto::Auto);
  if (wantsFsdp() && !isVersion2(ctx) && isLeftOpen && d.params != DType::F32)
    report({fsdpFlag(), ModelParamsDtype}, {DiagArg(std::string(dtypeName(d.params)))})
        .set(DdpMegatronFsdpMainGradsDtype, FloatTypeOrAuto::Fp32, Recommended);
}

RULE_IF(SgdUnderFsdp, wantsFsdp() && cfg().is(OptimizerOptimizer, OptimizerKind::Sgd),
        report({fsdpFlag(), OptimizerOptimizer}));

} // namespace shardc::config
