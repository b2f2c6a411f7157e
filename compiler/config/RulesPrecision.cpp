// Rules on element types, fp8, and the types of optimizer state.
#include "compiler/config/RulePredicates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace shardc::config {

namespace {

struct Copy {
  Opt field;
  Opt option;
};

/// The options to which the fields of mixed_precision are copied.
constexpr Copy kCopies[] = {
#define COPY(field, option) {Opt::field, Opt::option},
#include "compiler/config/Presets.def"
};

bool isFp8On(const RuleContext &ctx) { return ctx.has(Opt::ModelFp8); }

/// The option that switched fp8 on; messages are attached to it.
Opt fp8Cause(const RuleContext &ctx) {
  return ctx.isWritten(Opt::ModelFp8)            ? Opt::ModelFp8
         : ctx.isWritten(Opt::MixedPrecisionFp8) ? Opt::MixedPrecisionFp8
                                                 : Opt::MixedPrecisionPreset;
}

} // namespace

void ruleFp32ResidualNeedsHalf(RuleContext &ctx) {
  if (ctx.on(Opt::ModelFp32ResidualConnection) && !ctx.on(Opt::ModelBf16) &&
      !ctx.on(Opt::ModelFp16))
    ctx.report({Opt::ModelFp32ResidualConnection})
        .fix(ctx.fixRemove(Opt::ModelFp32ResidualConnection));
}

void rulePrecisionConflict(RuleContext &ctx) {
  for (const Copy &copy : kCopies)
    if (ctx.isWritten(copy.field) && ctx.isWritten(copy.option) && ctx.has(copy.field) &&
        ctx.has(copy.option) && ctx.cfg()[copy.field].value != ctx.cfg()[copy.option].value)
      ctx.report({copy.field, copy.option}, {pathOf(copy.field), arg(ctx, copy.field),
                                             pathOf(copy.option), arg(ctx, copy.option)})
          .fix(ctx.fixRemove(copy.field, FixItKind::Alternative))
          .fix(ctx.fixRemove(copy.option, FixItKind::Alternative));
}

void rulePrecisionKept(RuleContext &ctx) {
  for (const Copy &copy : kCopies) {
    bool isPreset = ctx.cfg()[copy.field].from.origin == Origin::Preset && ctx.has(copy.field);
    if (isPreset && ctx.isWritten(copy.option) && ctx.has(copy.option) &&
        ctx.cfg()[copy.field].value != ctx.cfg()[copy.option].value)
      ctx.report({copy.option},
                 {pathOf(copy.option), arg(ctx, copy.option), arg(ctx, copy.field),
                  DiagArg("mixed_precision = " + ctx.text(Opt::MixedPrecisionPreset))});
  }
}

void ruleTwoPrecisions(RuleContext &ctx) {
  if (ctx.on(Opt::ModelBf16) && ctx.on(Opt::ModelFp16))
    ctx.report({Opt::ModelBf16, Opt::ModelFp16}, {DiagArg("Model")})
        .fix(ctx.fixRemove(Opt::ModelBf16, FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::ModelFp16, FixItKind::Alternative));
  bool isModels = ctx.on(Opt::ModelBf16) && ctx.on(Opt::ModelFp16);
  if (ctx.on(Opt::OptimizerBf16) && ctx.on(Opt::OptimizerFp16) && !isModels)
    ctx.report({Opt::OptimizerBf16, Opt::OptimizerFp16}, {DiagArg("Optimizer")});
}

void rulePrecisionAwareMismatch(RuleContext &ctx) {
  if (!ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer))
    return;
  for (auto [model, optimizer] : {std::pair(Opt::ModelBf16, Opt::OptimizerBf16),
                                  std::pair(Opt::ModelFp16, Opt::OptimizerFp16)})
    if (ctx.on(model) && !ctx.on(optimizer))
      ctx.report({model, optimizer}, {DiagArg(info(model).name)})
          .fix(ctx.fixSet(optimizer, Value::ofBool(true)));
}

void rulePrecisionAwareAdam(RuleContext &ctx) {
  Opt kind = Opt::OptimizerOptimizer;
  if (ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer) && !ctx.cfg().is(kind, OptimizerKind::Adam))
    ctx.report({Opt::OptimizerUsePrecisionAwareOptimizer, kind}, {arg(ctx, kind)});
}

void rulePrecisionAwareDistributed(RuleContext &ctx) {
  if (ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer) && !isVersion2(ctx) &&
      !ctx.derived().distributedOptimizer)
    ctx.report({Opt::OptimizerUsePrecisionAwareOptimizer, Opt::DdpUseDistributedOptimizer})
        .fix(ctx.fixSet(Opt::DdpUseDistributedOptimizer, Value::ofBool(true)));
}

void ruleNarrowStateNeeds(RuleContext &ctx) {
  if (ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer))
    return;
  for (Opt opt : {Opt::OptimizerMainGradsDtype, Opt::OptimizerMainParamsDtype,
                  Opt::OptimizerExpAvgDtype, Opt::OptimizerExpAvgSqDtype})
    if (!ctx.cfg().is(opt, FloatType::Fp32) && ctx.has(opt))
      ctx.report({opt, Opt::OptimizerUsePrecisionAwareOptimizer},
                 {DiagArg(info(opt).name), arg(ctx, opt)})
          .fix(ctx.fixRemove(opt, FixItKind::Alternative))
          .fix(ctx.fixSet(Opt::OptimizerUsePrecisionAwareOptimizer, Value::ofBool(true),
                          FixItKind::Alternative));
}

void ruleNarrowMainGrads(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt main = Opt::DdpMegatronFsdpMainGradsDtype, wire = Opt::DdpMegatronFsdpGradCommDtype;
  if (ctx.wantsFsdp() && dtypeBytes(d.mainGrads) < dtypeBytes(d.wire))
    ctx.report({main, wire}, {arg(ctx, main), DiagArg(std::string(dtypeName(d.wire)))})
        .fix(ctx.fixSet(wire, Value::ofEnum(FloatTypeOrAuto::Auto), FixItKind::Alternative))
        .fix(ctx.fixSet(main, Value::ofEnum(FloatTypeOrAuto::Fp32), FixItKind::Alternative));
}

void ruleFp8AndFp4(RuleContext &ctx) {
  if (isFp8On(ctx) && ctx.has(Opt::ModelFp4))
    ctx.report({Opt::ModelFp8, Opt::ModelFp4});
}

void ruleFp8Device(RuleContext &ctx) {
  if (!isFp8On(ctx) || !ctx.derived().gpu)
    return;
  const predict::Device &device = predict::device(*ctx.derived().gpu);
  if (!device.hasFp8() && !device.isHost()) // the host emulates the formats
    ctx.report({Opt::ClusterGpu, fp8Cause(ctx)}, {DiagArg(device.name)});
}

void ruleMxfpDevice(RuleContext &ctx) {
  if (!ctx.derived().gpu || predict::device(*ctx.derived().gpu).hasScalesOf32())
    return;
  DiagArg device = arg(ctx, Opt::ClusterGpu);
  bool isMxfp8 = isFp8On(ctx) && ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Mxfp8);
  bool hasFp8 = predict::device(*ctx.derived().gpu).hasFp8();
  if (isMxfp8 && hasFp8) // without fp8, the rule above reports it
    ctx.report({Opt::ClusterGpu, Opt::ModelFp8Recipe}, {DiagArg("fp8 recipe mxfp8"), device});
  if (ctx.has(Opt::ModelFp4))
    ctx.report({Opt::ClusterGpu, Opt::ModelFp4}, {DiagArg("fp4"), device});
}

void ruleBlockwiseDevice(RuleContext &ctx) {
  if (!isFp8On(ctx) || !ctx.derived().gpu ||
      !ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Blockwise))
    return;
  const predict::Device &device = predict::device(*ctx.derived().gpu);
  if (device.hasFp8() && !device.hasScalesOf128())
    ctx.report({Opt::ClusterGpu, Opt::ModelFp8Recipe},
               {DiagArg("fp8 recipe blockwise"), arg(ctx, Opt::ClusterGpu)});
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

void ruleFp8Extents(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!isFp8On(ctx))
    return;
  uint64_t divisor = ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Mxfp8) ? 32 : 16;
  llvm::SmallVector<Extent> extents = {
      {"the number of tokens of a rank's microbatch",
       sizeOf(d.microBatch) * sizeOf(d.seqLength / d.contextParallel), Opt::ModelSeqLength},
      {"the hidden size", sizeOf(d.hidden), Opt::ModelHiddenSize},
      {"the width of a rank's MLP", sizeOf(d.ffnHidden / d.tensorParallel),
       Opt::ModelFfnHiddenSize},
  };
  extents.append(attentionExtents(ctx));
  extents.append(expertExtents(ctx));
  const Extent *odd =
      llvm::find_if(extents, [&](const Extent &extent) { return extent.size % divisor != 0; });
  if (odd != std::end(extents))
    ctx.report({odd->option, fp8Cause(ctx)},
               {DiagArg(odd->what), DiagArg(static_cast<int64_t>(odd->size)),
                DiagArg(static_cast<int64_t>(divisor))});
}

void ruleFp8GatherUnsupported(RuleContext &ctx) {
  Opt recipe = Opt::ModelFp8Recipe;
  if (!isFp8On(ctx) || !ctx.on(Opt::DdpFp8ParamGather))
    return;
  bool hasOneScale =
      ctx.cfg().is(recipe, Fp8Recipe::Tensorwise) || ctx.cfg().is(recipe, Fp8Recipe::Delayed);
  std::string reason;
  if (!hasOneScale)
    reason = "'model.fp8_recipe' is '" + ctx.text(recipe) + "'";
  else if (!ctx.wantsFsdp())
    reason = "Megatron FSDP is off";
  else
    return;
  Opt written = ctx.isWritten(Opt::DdpFp8ParamGather)        ? Opt::DdpFp8ParamGather
                : ctx.isWritten(Opt::MixedPrecisionFp8Param) ? Opt::MixedPrecisionFp8Param
                                                             : Opt::MixedPrecisionFp8ParamGather;
  ctx.report({Opt::DdpFp8ParamGather, fp8Cause(ctx)}, {DiagArg(reason)})
      .fix(ctx.fixSet(written, Value::ofBool(false)));
}

void ruleFp8AttentionUnsupported(RuleContext &ctx) {
  for (Opt opt : {Opt::ModelFp8DotProductAttention, Opt::ModelFp8MultiHeadAttention})
    if (isFp8On(ctx) && ctx.on(opt))
      ctx.report({opt, fp8Cause(ctx)}, {pathOf(opt)});
}

void ruleFp8OutputUnsupported(RuleContext &ctx) {
  if (isFp8On(ctx) && ctx.on(Opt::ModelFp8OutputProj))
    ctx.report({Opt::ModelFp8OutputProj, fp8Cause(ctx)})
        .fix(ctx.fixRemove(Opt::ModelFp8OutputProj));
}

void ruleFp8QuantizerUnsupported(RuleContext &ctx) {
  Opt factory = Opt::ModelFp8QuantizerFactory, recipe = Opt::ModelFp8Recipe;
  if (isFp8On(ctx) && ctx.has(factory))
    ctx.report({factory, fp8Cause(ctx)}, {pathOf(factory), arg(ctx, factory)})
        .fix(ctx.fixRemove(factory));
  else if (isFp8On(ctx) && ctx.cfg().is(recipe, Fp8Recipe::Custom))
    ctx.report({recipe, fp8Cause(ctx)}, {pathOf(recipe), arg(ctx, recipe)});
}

void ruleFp8WeightsUnsupported(RuleContext &ctx) {
  if (dtypeBytes(ctx.derived().params) < 2)
    ctx.report({Opt::ModelParamsDtype});
}

void ruleHalfWeightsUnsupported(RuleContext &ctx) {
  if (ctx.derived().params == DType::F16 && !ctx.on(Opt::ModelFp16))
    ctx.report({Opt::ModelParamsDtype, Opt::ModelFp16});
}

void ruleFp4Unsupported(RuleContext &ctx) {
  if (ctx.has(Opt::ModelFp4))
    ctx.report({Opt::ModelFp4}, {arg(ctx, Opt::ModelFp4)});
}

void ruleFp8ParamGatherNeeds(RuleContext &ctx) {
  bool isServed =
      ctx.wantsFsdp() || ctx.on(Opt::DistUseTorchFsdp2) || ctx.derived().distributedOptimizer;
  if (ctx.on(Opt::DdpFp8ParamGather) && !isServed)
    ctx.report({Opt::DdpFp8ParamGather, Opt::DdpUseDistributedOptimizer})
        .fix(ctx.fixSet(Opt::DdpUseDistributedOptimizer, Value::ofBool(true),
                        FixItKind::Alternative));
}

void ruleFp4ParamGatherNeeds(RuleContext &ctx) {
  bool isServed =
      ctx.wantsFsdp() || ctx.on(Opt::DistUseTorchFsdp2) || ctx.derived().distributedOptimizer;
  if (ctx.on(Opt::DdpFp4ParamGather) && !isServed)
    ctx.report({Opt::DdpFp4ParamGather, Opt::DdpUseDistributedOptimizer})
        .fix(ctx.fixSet(Opt::DdpUseDistributedOptimizer, Value::ofBool(true),
                        FixItKind::Alternative));
}

void ruleFp8ParamsStrategy(RuleContext &ctx) {
  Opt strategy = Opt::DdpDataParallelShardingStrategy;
  if (ctx.wantsFsdp() && ctx.on(Opt::DdpFp8ParamGather) && !isVersion2(ctx) &&
      ctx.derived().strategy != ShardingStrategy::OptimGradsParams)
    ctx.report({strategy, Opt::DdpFp8ParamGather}, {arg(ctx, strategy)})
        .fix(ctx.fixSet(strategy, Value::ofEnum(ShardingStrategy::OptimGradsParams),
                        FixItKind::Alternative));
}

void ruleFp8ParamsMain(RuleContext &ctx) {
  Opt main = Opt::DdpMegatronFsdpMainParamsDtype;
  if (ctx.wantsFsdp() && ctx.on(Opt::DdpFp8ParamGather) &&
      ctx.cfg().is(main, FloatTypeOrAuto::Auto))
    ctx.report({main, Opt::DdpFp8ParamGather})
        .fix(ctx.fixSet(main, Value::ofEnum(FloatTypeOrAuto::Fp32)));
}

void ruleHalfMainParams(RuleContext &ctx) {
  Opt main = Opt::DdpMegatronFsdpMainParamsDtype;
  if (ctx.wantsFsdp() && ctx.cfg().is(main, FloatTypeOrAuto::Fp16))
    ctx.report({main, ctx.fsdpFlag()}, {pathOf(main)})
        .fix(ctx.fixSet(main, Value::ofEnum(FloatTypeOrAuto::Fp32)));
}

void ruleMasterWeightsUnsupported(RuleContext &ctx) {
  Opt main = Opt::DdpMegatronFsdpMainParamsDtype;
  bool isHalf = ctx.cfg().is(main, FloatTypeOrAuto::Fp16); // the rule above reports it
  if (ctx.derived().master != DType::F32 && !isHalf)
    ctx.report({main, ctx.fsdpFlag()}, {arg(ctx, main)})
        .fix(ctx.fixSet(main, Value::ofEnum(FloatTypeOrAuto::Fp32)));
}

void ruleMomentsUnsupported(RuleContext &ctx) {
  for (Opt opt : {Opt::OptimizerExpAvgDtype, Opt::OptimizerExpAvgSqDtype})
    if (ctx.cfg().is(opt, FloatType::Fp16))
      ctx.report({opt}, {pathOf(opt), arg(ctx, opt)})
          .fix(ctx.fixSet(opt, Value::ofEnum(FloatType::Fp32), FixItKind::Alternative))
          .fix(ctx.fixSet(opt, Value::ofEnum(FloatType::Bf16), FixItKind::Alternative));
}

void ruleMomentsFp8(RuleContext &ctx) {
  for (Opt opt : {Opt::OptimizerExpAvgDtype, Opt::OptimizerExpAvgSqDtype})
    if (ctx.cfg().is(opt, FloatType::Fp8))
      ctx.report({opt}, {pathOf(opt)})
          .fix(ctx.fixSet(opt, Value::ofEnum(FloatType::Fp32), FixItKind::Alternative))
          .fix(ctx.fixSet(opt, Value::ofEnum(FloatType::Bf16), FixItKind::Alternative));
}

void ruleLossScaleRange(RuleContext &ctx) {
  constexpr double kMax = std::numeric_limits<float>::max();
  for (Opt opt :
       {Opt::OptimizerLossScale, Opt::OptimizerInitialLossScale, Opt::OptimizerMinLossScale})
    if (ctx.cfg().getFloatOr(opt, 0) > kMax)
      ctx.report({opt}, {pathOf(opt), arg(ctx, opt), DiagArg(fmt::format("{:.4g}", kMax))});
}

void ruleLossScaleMinimum(RuleContext &ctx) {
  Opt least = Opt::OptimizerMinLossScale, first = Opt::OptimizerInitialLossScale;
  bool isDynamic = ctx.on(Opt::ModelFp16) && !ctx.has(Opt::OptimizerLossScale);
  if (isDynamic && ctx.cfg().getFloatOr(least, 0) > ctx.cfg().getFloatOr(first, 0))
    ctx.report({least, first}, {pathOf(least), arg(ctx, least), arg(ctx, first)});
}

void ruleLossScaleWindow(RuleContext &ctx) {
  Opt window = Opt::OptimizerLossScaleWindow;
  double steps = ctx.cfg().getFloatOr(window, 1);
  bool isDynamic = ctx.on(Opt::ModelFp16) && !ctx.has(Opt::OptimizerLossScale);
  constexpr double kStepsMax = 1LL << 31;
  if (isDynamic && (steps != std::trunc(steps) || steps >= kStepsMax))
    ctx.report({window}, {pathOf(window), arg(ctx, window)});
}

void ruleReuseBufferNeeds(RuleContext &ctx) {
  if (ctx.on(Opt::DdpReuseGradBufForMxfp8ParamAg) && !ctx.on(Opt::DdpFp8ParamGather))
    ctx.report({Opt::DdpReuseGradBufForMxfp8ParamAg, Opt::DdpFp8ParamGather})
        .fix(ctx.fixRemove(Opt::DdpReuseGradBufForMxfp8ParamAg));
}

void ruleReuseBufferRequired(RuleContext &ctx) {
  Opt reuse = Opt::DdpReuseGradBufForMxfp8ParamAg;
  if (!ctx.wantsFsdp() && ctx.on(Opt::DdpFp8ParamGather) && !ctx.on(reuse) &&
      ctx.cfg().is(Opt::ModelFp8Recipe, Fp8Recipe::Mxfp8))
    ctx.report({Opt::DdpFp8ParamGather, Opt::ModelFp8Recipe, reuse})
        .fix(ctx.fixSet(reuse, Value::ofBool(true)));
}

void ruleOptimizerOffload(RuleContext &ctx) {
  if (ctx.on(Opt::OptimizerOptimizerCpuOffload) && !isVersion2(ctx) &&
      !ctx.on(Opt::OptimizerUsePrecisionAwareOptimizer))
    ctx.report({Opt::OptimizerOptimizerCpuOffload, Opt::OptimizerUsePrecisionAwareOptimizer})
        .fix(ctx.fixSet(Opt::OptimizerUsePrecisionAwareOptimizer, Value::ofBool(true)));
}

void ruleOptimizerOffloadFp8(RuleContext &ctx) {
  Opt recipe = Opt::ModelFp8Recipe;
  if (ctx.on(Opt::OptimizerOptimizerCpuOffload) && ctx.on(Opt::DdpFp8ParamGather) &&
      !ctx.cfg().is(recipe, Fp8Recipe::Delayed))
    ctx.report({Opt::OptimizerOptimizerCpuOffload, Opt::DdpFp8ParamGather, recipe},
               {arg(ctx, recipe)});
}

void ruleWideMainGrads(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  bool isLeftOpen = ctx.cfg().is(Opt::DdpMegatronFsdpMainGradsDtype, FloatTypeOrAuto::Auto);
  if (ctx.wantsFsdp() && !isVersion2(ctx) && isLeftOpen && d.params != DType::F32)
    ctx.report({ctx.fsdpFlag(), Opt::ModelParamsDtype}, {DiagArg(std::string(dtypeName(d.params)))})
        .fix(ctx.fixSet(Opt::DdpMegatronFsdpMainGradsDtype, Value::ofEnum(FloatTypeOrAuto::Fp32),
                        FixItKind::Recommended));
}

void ruleSgdUnderFsdp(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.cfg().is(Opt::OptimizerOptimizer, OptimizerKind::Sgd))
    ctx.report({ctx.fsdpFlag(), Opt::OptimizerOptimizer});
}

} // namespace shardc::config
