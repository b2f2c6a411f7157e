// Rules on conflicts between offloading, recomputation, CUDA graphs and fusions.
#include "compiler/config/RulePredicates.h"
#include "compiler/model/LayerList.h"

namespace shardc::config {

namespace {

constexpr Opt kGranularity = Opt::ModelRecomputeGranularity;
constexpr Opt kMethod = Opt::ModelRecomputeMethod;
constexpr Opt kLayers = Opt::ModelRecomputeNumLayers;
constexpr Opt kLayerList = Opt::ModelRecomputeLayers;

bool isGranularity(const RuleContext &ctx, RecomputeGranularity value) {
  return ctx.cfg().is(kGranularity, value);
}

int64_t layersPerStage(const Derived &d) {
  return std::max<int64_t>(d.numLayers / d.pipelineParallel, 1);
}

/// Reports the rule if both switches are on.
void exclude(RuleContext &ctx, Opt a, Opt b) {
  if (ctx.on(a) && ctx.on(b))
    ctx.report({a, b}).remove(a, FixItKind::Alternative).remove(b, FixItKind::Alternative);
}

model::LayerList layersOf(const RuleContext &ctx, Opt list = kLayerList,
                          const model::LayerWords &words = model::kRecomputeWords) {
  std::vector<std::string> entries;
  for (const Value &entry : ctx.cfg().getList(list))
    entries.push_back(*entry.asString());
  return model::readLayerList(entries, ctx.derived().numLayers, words);
}

/// Reports the rule if the list is not one of all layers.
void checkLayerList(RuleContext &ctx, Opt list, const model::LayerWords &words) {
  if (!ctx.has(list) || !ctx.has(Opt::ModelNumLayers))
    return;
  if (model::LayerList read = layersOf(ctx, list, words); !read.isValid())
    ctx.report({list, Opt::ModelNumLayers}, {ctx.text(list), DiagArg(read.problem)})
        .remove(list, FixItKind::Alternative);
}

bool recomputes(const RuleContext &ctx, RecomputeModule module) {
  if (isGranularity(ctx, RecomputeGranularity::Auto) && ctx.has(kLayerList))
    return llvm::any_of(layersOf(ctx).layers, [&](model::LayerParts layer) {
      return layer.has(static_cast<model::RecomputeModule>(module));
    });
  if (!isGranularity(ctx, RecomputeGranularity::Selective) || !ctx.has(Opt::ModelRecomputeModules))
    return false;
  return llvm::is_contained(ctx.cfg().getEnums<RecomputeModule>(Opt::ModelRecomputeModules),
                            module);
}

} // namespace

RULE_CODE(CpuOffloadLayers) {
  int64_t layers = num(ModelCpuOffloadingNumLayers);
  if (on(ModelCpuOffloading) && layers >= d.numLayers)
    report({ModelCpuOffloadingNumLayers, ModelNumLayers}, {layers, d.numLayers});
}

RULE_IF(CpuOffloadPipeline, on(ModelCpuOffloading) && d.pipelineParallel > 1,
        report({ModelCpuOffloading, ModelPipelineModelParallelSize})
            .remove(ModelCpuOffloading, Alternative)
            .set(ModelPipelineModelParallelSize, 1, Alternative));
RULE_IF(CpuOffloadRecompute, on(ModelCpuOffloading) && has(kGranularity),
        report({ModelCpuOffloading, kGranularity})
            .remove(ModelCpuOffloading, Alternative)
            .remove(kGranularity, Alternative));
RULE_DO(CpuOffloadFineGrained,
        exclude(ctx, ModelCpuOffloading, ModelFineGrainedActivationOffloading));
RULE_DO(CpuOffloadPagedStash, exclude(ctx, ModelCpuOffloading, ModelMoePagedStash));
RULE_DO(OffloadLayers, checkLayerList(ctx, ModelOffloadLayers, model::kOffloadWords));
RULE_CODE(OffloadNothing) {
  for (Opt opt : {ModelCpuOffloading, ModelFineGrainedActivationOffloading}) {
    if (!on(opt) || has(ModelOffloadLayers) || !has(ModelNumLayers))
      continue;
    Opt what = opt != ModelCpuOffloading           ? ModelOffloadModules
               : on(ModelCpuOffloadingActivations) ? ModelCpuOffloadingNumLayers
                                                   : ModelCpuOffloadingActivations;
    report({opt, what}, {pathOf(opt), pathOf(what), has(what) ? text(what) : DiagArg("none")});
  }
}
RULE_EACH(OffloadLayersTwice, (ModelCpuOffloading, ModelFineGrainedActivationOffloading),
          on(opt) && isWritten(ModelOffloadLayers),
          report({ModelOffloadLayers, opt}, {pathOf(opt)})
              .remove(ModelOffloadLayers, Alternative)
              .remove(opt, Alternative));
RULE_IF(FineGrainedOffloadImplementation,
        on(ModelFineGrainedActivationOffloading) &&
            !cfg().is(ModelTransformerImpl, TransformerImpl::TransformerEngine),
        report({ModelFineGrainedActivationOffloading, ModelTransformerImpl},
               {text(ModelTransformerImpl)})
            .remove(ModelTransformerImpl));

RULE_CODE(FineGrainedOffloadEnvironment) {
  const std::string *value = variable("NVTE_CPU_OFFLOAD_V1");
  if (on(ModelFineGrainedActivationOffloading) && (!value || *value != "1"))
    report({ModelFineGrainedActivationOffloading, EnvNvteCpuOffloadV1})
        .set(EnvNvteCpuOffloadV1, Value::ofString("1"), Recommended);
}

RULE_CODE(RecomputeMethodWithoutFull) {
  if (!has(kMethod) || isGranularity(ctx, RecomputeGranularity::Full))
    return;
  std::string granularity = has(kGranularity) ? text(kGranularity) : "none";
  report({kMethod, kGranularity}, {DiagArg(granularity), text(kMethod)})
      .remove(kMethod, Alternative)
      .set(kGranularity, RecomputeGranularity::Full, Alternative);
}

RULE_IF(RecomputeFullMethod, isGranularity(ctx, RecomputeGranularity::Full) && !has(kMethod),
        report({kGranularity, kMethod}).set(kMethod, RecomputeMethod::Uniform));

RULE_CODE(RecomputeFullLayers) {
  if (!isGranularity(ctx, RecomputeGranularity::Full))
    return;
  int64_t layers = layersPerStage(d);
  std::string found = has(kLayers) ? text(kLayers) : "none";
  if (!has(kLayers) || num(kLayers) > layers)
    report({kGranularity, kLayers, ModelNumLayers}, {DiagArg(found), layers})
        .fix(has(kLayers) ? std::nullopt : fixSet(kLayers, 1));
}

RULE_IF(RecomputeSelectiveLayers,
        isGranularity(ctx, RecomputeGranularity::Selective) && has(kLayers),
        report({kGranularity, kLayers}, {num(kLayers)}).remove(kLayers));

RULE_CODE(RecomputeModuleNeeds) {
  struct Need {
    RecomputeModule module;
    Opt option;
    bool isMet;
  };
  bool hasExperts = has(ModelNumMoeExperts);
  const Need needs[] = {
      {RecomputeModule::MoeAct, ModelMoeGroupedGemm, on(ModelMoeGroupedGemm)},
      {RecomputeModule::MlaUpProj, ModelMultiLatentAttention, on(ModelMultiLatentAttention)},
      {RecomputeModule::Moe, ModelNumMoeExperts, hasExperts},
      {RecomputeModule::SharedExperts, ModelMoeSharedExpertIntermediateSize,
       has(ModelMoeSharedExpertIntermediateSize)}};
  Opt names = has(kLayerList) ? kLayerList : ModelRecomputeModules;
  for (const Need &need : needs)
    if (recomputes(ctx, need.module) && !need.isMet)
      report({names, need.option}, {DiagArg(spelling(need.module)), pathOf(need.option)});
}

RULE_IF(RecomputeAutoMemory,
        isGranularity(ctx, RecomputeGranularity::Auto) && !has(kLayerList) && d.memoryBytes == 0,
        report({kGranularity}));

RULE_CODE(RecomputeAutoChooses) {
  if (!isGranularity(ctx, RecomputeGranularity::Auto))
    return;
  for (Opt opt : {kLayers, ModelRecomputeModules})
    if (has(opt))
      report({kGranularity, opt}, {pathOf(opt)}).remove(opt);
}

RULE_DO(RecomputeLayers, checkLayerList(ctx, kLayerList, model::kRecomputeWords));

RULE_CODE(RecomputeLayersWithoutAuto) {
  if (!has(kLayerList) || isGranularity(ctx, RecomputeGranularity::Auto))
    return;
  std::string granularity = has(kGranularity) ? text(kGranularity) : "none";
  report({kLayerList, kGranularity}, {DiagArg(granularity)})
      .remove(kLayerList, Alternative)
      .set(kGranularity, RecomputeGranularity::Auto, Alternative);
}

RULE_IF(FullGraphNanCheck,
        cfg().is(ModelCudaGraphImpl, CudaGraphImpl::FullIteration) &&
            on(RerunStateMachineCheckForNanInLoss),
        report({ModelCudaGraphImpl, RerunStateMachineCheckForNanInLoss})
            .set(RerunStateMachineCheckForNanInLoss, false));
RULE_IF(GraphFsdpHooks, wantsFsdp() && capturesLayers(ctx) && !isVersion2(ctx),
        report({fsdpFlag(), ModelCudaGraphImpl}, {text(ModelCudaGraphImpl)}));
RULE_IF(ModeloptFusion, on(ModelRestoreModeloptState) && on(ModelGradientAccumulationFusion),
        report({ModelRestoreModeloptState, ModelGradientAccumulationFusion})
            .set(ModelGradientAccumulationFusion, false));
RULE_IF(DeferredEmbeddingPipeline, on(ModelDeferEmbeddingWgradCompute) && d.pipelineParallel == 1,
        report({ModelDeferEmbeddingWgradCompute, ModelPipelineModelParallelSize})
            .remove(ModelDeferEmbeddingWgradCompute));

RULE_IF(DeferredEmbeddingFusion,
        on(ModelDeferEmbeddingWgradCompute) && d.pipelineParallel > 1 &&
            !on(ModelGradientAccumulationFusion),
        report({ModelDeferEmbeddingWgradCompute, ModelGradientAccumulationFusion})
            .set(ModelGradientAccumulationFusion, true, Alternative)
            .remove(ModelDeferEmbeddingWgradCompute, Alternative));

RULE_IF(TeCrossEntropy,
        on(ModelCrossEntropyLossFusion) &&
            cfg().is(ModelCrossEntropyFusionImpl, CrossEntropyImpl::Te),
        report({ModelCrossEntropyLossFusion, ModelCrossEntropyFusionImpl})
            .set(ModelCrossEntropyFusionImpl, CrossEntropyImpl::Native, Recommended));
RULE_IF(DeterministicCrossEntropy, on(ModelDeterministicMode) && on(ModelCrossEntropyLossFusion),
        report({ModelDeterministicMode, ModelCrossEntropyLossFusion})
            .set(ModelCrossEntropyLossFusion, false));

RULE_CODE(DeterministicNccl) {
  const std::string *value = variable("NCCL_ALGO");
  if (!on(ModelDeterministicMode) || !value)
    return;
  for (llvm::StringRef name : {"Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS"})
    if (*value == name)
      return;
  report({ModelDeterministicMode, EnvNcclAlgo}, {DiagArg(*value)});
}

} // namespace shardc::config
