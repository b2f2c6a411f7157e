// Rules on conflicts between offloading, recomputation, CUDA graphs and fusions.
#include "compiler/config/RulePredicates.h"
#include "compiler/model/RecomputeLayers.h"

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
    ctx.report({a, b})
        .fix(ctx.fixRemove(a, FixItKind::Alternative))
        .fix(ctx.fixRemove(b, FixItKind::Alternative));
}

model::RecomputeLayers layersOf(const RuleContext &ctx) {
  std::vector<std::string> entries;
  for (const Value &entry : ctx.cfg().getList(kLayerList))
    entries.push_back(*entry.asString());
  return model::readRecomputeLayers(entries, ctx.derived().numLayers);
}

bool recomputes(const RuleContext &ctx, RecomputeModule module) {
  if (isGranularity(ctx, RecomputeGranularity::Auto) && ctx.has(kLayerList))
    return llvm::any_of(layersOf(ctx).layers, [&](model::LayerRecompute layer) {
      return layer.has(static_cast<model::RecomputeModule>(module));
    });
  if (!isGranularity(ctx, RecomputeGranularity::Selective) || !ctx.has(Opt::ModelRecomputeModules))
    return false;
  return llvm::is_contained(ctx.cfg().getEnums<RecomputeModule>(Opt::ModelRecomputeModules),
                            module);
}

} // namespace

void ruleOffloadLayers(RuleContext &ctx) {
  int64_t layers = ctx.num(Opt::ModelCpuOffloadingNumLayers);
  if (ctx.on(Opt::ModelCpuOffloading) && layers >= ctx.derived().numLayers)
    ctx.report({Opt::ModelCpuOffloadingNumLayers, Opt::ModelNumLayers},
               {layers, ctx.derived().numLayers});
}

void ruleOffloadPipeline(RuleContext &ctx) {
  if (ctx.on(Opt::ModelCpuOffloading) && ctx.derived().pipelineParallel > 1)
    ctx.report({Opt::ModelCpuOffloading, Opt::ModelPipelineModelParallelSize})
        .fix(ctx.fixRemove(Opt::ModelCpuOffloading, FixItKind::Alternative))
        .fix(ctx.fixSet(Opt::ModelPipelineModelParallelSize, Value::ofInt(1),
                        FixItKind::Alternative));
}

void ruleOffloadRecompute(RuleContext &ctx) {
  if (ctx.on(Opt::ModelCpuOffloading) && ctx.has(kGranularity))
    ctx.report({Opt::ModelCpuOffloading, kGranularity})
        .fix(ctx.fixRemove(Opt::ModelCpuOffloading, FixItKind::Alternative))
        .fix(ctx.fixRemove(kGranularity, FixItKind::Alternative));
}

void ruleOffloadFineGrained(RuleContext &ctx) {
  exclude(ctx, Opt::ModelCpuOffloading, Opt::ModelFineGrainedActivationOffloading);
}

void ruleOffloadPagedStash(RuleContext &ctx) {
  exclude(ctx, Opt::ModelCpuOffloading, Opt::ModelMoePagedStash);
}

void ruleFineGrainedImpl(RuleContext &ctx) {
  Opt impl = Opt::ModelTransformerImpl;
  if (ctx.on(Opt::ModelFineGrainedActivationOffloading) &&
      !ctx.cfg().is(impl, TransformerImpl::TransformerEngine))
    ctx.report({Opt::ModelFineGrainedActivationOffloading, impl}, {arg(ctx, impl)})
        .fix(ctx.fixRemove(impl));
}

void ruleFineGrainedEnv(RuleContext &ctx) {
  const std::string *value = ctx.variable("NVTE_CPU_OFFLOAD_V1");
  if (ctx.on(Opt::ModelFineGrainedActivationOffloading) && (!value || *value != "1"))
    ctx.report({Opt::ModelFineGrainedActivationOffloading, Opt::EnvNvteCpuOffloadV1})
        .fix(ctx.fixSet(Opt::EnvNvteCpuOffloadV1, Value::ofString("1"), FixItKind::Recommended));
}

void ruleRecomputeMethodWithout(RuleContext &ctx) {
  if (!ctx.has(kMethod) || isGranularity(ctx, RecomputeGranularity::Full))
    return;
  std::string granularity = ctx.has(kGranularity) ? ctx.text(kGranularity) : "none";
  ctx.report({kMethod, kGranularity}, {DiagArg(granularity), arg(ctx, kMethod)})
      .fix(ctx.fixRemove(kMethod, FixItKind::Alternative))
      .fix(ctx.fixSet(kGranularity, Value::ofEnum(RecomputeGranularity::Full),
                      FixItKind::Alternative));
}

void ruleRecomputeFullMethod(RuleContext &ctx) {
  if (isGranularity(ctx, RecomputeGranularity::Full) && !ctx.has(kMethod))
    ctx.report({kGranularity, kMethod})
        .fix(ctx.fixSet(kMethod, Value::ofEnum(RecomputeMethod::Uniform)));
}

void ruleRecomputeFullLayers(RuleContext &ctx) {
  if (!isGranularity(ctx, RecomputeGranularity::Full))
    return;
  int64_t layers = layersPerStage(ctx.derived());
  std::string found = ctx.has(kLayers) ? ctx.text(kLayers) : "none";
  if (!ctx.has(kLayers) || ctx.num(kLayers) > layers)
    ctx.report({kGranularity, kLayers, Opt::ModelNumLayers}, {DiagArg(found), layers})
        .fix(ctx.has(kLayers) ? std::nullopt : ctx.fixSet(kLayers, Value::ofInt(1)));
}

void ruleRecomputeSelectiveLayers(RuleContext &ctx) {
  if (isGranularity(ctx, RecomputeGranularity::Selective) && ctx.has(kLayers))
    ctx.report({kGranularity, kLayers}, {ctx.num(kLayers)}).fix(ctx.fixRemove(kLayers));
}

void ruleRecomputeModuleNeeds(RuleContext &ctx) {
  struct Need {
    RecomputeModule module;
    Opt option;
    bool isMet;
  };
  bool hasExperts = ctx.has(Opt::ModelNumMoeExperts);
  const Need needs[] = {
      {RecomputeModule::MoeAct, Opt::ModelMoeGroupedGemm, ctx.on(Opt::ModelMoeGroupedGemm)},
      {RecomputeModule::MlaUpProj, Opt::ModelMultiLatentAttention,
       ctx.on(Opt::ModelMultiLatentAttention)},
      {RecomputeModule::Moe, Opt::ModelNumMoeExperts, hasExperts},
      {RecomputeModule::SharedExperts, Opt::ModelMoeSharedExpertIntermediateSize,
       ctx.has(Opt::ModelMoeSharedExpertIntermediateSize)}};
  Opt names = ctx.has(kLayerList) ? kLayerList : Opt::ModelRecomputeModules;
  for (const Need &need : needs)
    if (recomputes(ctx, need.module) && !need.isMet)
      ctx.report({names, need.option}, {DiagArg(spelling(need.module)), pathOf(need.option)});
}

void ruleRecomputeAutoMemory(RuleContext &ctx) {
  if (isGranularity(ctx, RecomputeGranularity::Auto) && !ctx.has(kLayerList) &&
      ctx.derived().memoryBytes == 0)
    ctx.report({kGranularity});
}

void ruleRecomputeAutoChooses(RuleContext &ctx) {
  if (!isGranularity(ctx, RecomputeGranularity::Auto))
    return;
  for (Opt opt : {kLayers, Opt::ModelRecomputeModules})
    if (ctx.has(opt))
      ctx.report({kGranularity, opt}, {pathOf(opt)}).fix(ctx.fixRemove(opt));
}

void ruleRecomputeLayersForm(RuleContext &ctx) {
  if (!ctx.has(kLayerList) || !ctx.has(Opt::ModelNumLayers))
    return;
  if (model::RecomputeLayers read = layersOf(ctx); !read.isValid())
    ctx.report({kLayerList, Opt::ModelNumLayers}, {arg(ctx, kLayerList), DiagArg(read.problem)})
        .fix(ctx.fixRemove(kLayerList, FixItKind::Alternative));
}

void ruleRecomputeLayersWithout(RuleContext &ctx) {
  if (!ctx.has(kLayerList) || isGranularity(ctx, RecomputeGranularity::Auto))
    return;
  std::string granularity = ctx.has(kGranularity) ? ctx.text(kGranularity) : "none";
  ctx.report({kLayerList, kGranularity}, {DiagArg(granularity)})
      .fix(ctx.fixRemove(kLayerList, FixItKind::Alternative))
      .fix(ctx.fixSet(kGranularity, Value::ofEnum(RecomputeGranularity::Auto),
                      FixItKind::Alternative));
}

void ruleGraphFullNan(RuleContext &ctx) {
  Opt check = Opt::RerunStateMachineCheckForNanInLoss;
  if (ctx.cfg().is(Opt::ModelCudaGraphImpl, CudaGraphImpl::FullIteration) && ctx.on(check))
    ctx.report({Opt::ModelCudaGraphImpl, check}).fix(ctx.fixSet(check, Value::ofBool(false)));
}

void ruleGraphFsdpHooks(RuleContext &ctx) {
  Opt impl = Opt::ModelCudaGraphImpl;
  bool isPerLayer = ctx.cfg().is(impl, CudaGraphImpl::Local) ||
                    ctx.cfg().is(impl, CudaGraphImpl::TransformerEngine);
  if (ctx.wantsFsdp() && isPerLayer && !isVersion2(ctx))
    ctx.report({ctx.fsdpFlag(), impl}, {arg(ctx, impl)});
}

void ruleModelOptFusion(RuleContext &ctx) {
  if (ctx.on(Opt::ModelRestoreModeloptState) && ctx.on(Opt::ModelGradientAccumulationFusion))
    ctx.report({Opt::ModelRestoreModeloptState, Opt::ModelGradientAccumulationFusion})
        .fix(ctx.fixSet(Opt::ModelGradientAccumulationFusion, Value::ofBool(false)));
}

void ruleDeferEmbeddingPipeline(RuleContext &ctx) {
  if (ctx.on(Opt::ModelDeferEmbeddingWgradCompute) && ctx.derived().pipelineParallel == 1)
    ctx.report({Opt::ModelDeferEmbeddingWgradCompute, Opt::ModelPipelineModelParallelSize})
        .fix(ctx.fixRemove(Opt::ModelDeferEmbeddingWgradCompute));
}

void ruleDeferEmbeddingFusion(RuleContext &ctx) {
  if (ctx.on(Opt::ModelDeferEmbeddingWgradCompute) && ctx.derived().pipelineParallel > 1 &&
      !ctx.on(Opt::ModelGradientAccumulationFusion))
    ctx.report({Opt::ModelDeferEmbeddingWgradCompute, Opt::ModelGradientAccumulationFusion})
        .fix(ctx.fixSet(Opt::ModelGradientAccumulationFusion, Value::ofBool(true),
                        FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::ModelDeferEmbeddingWgradCompute, FixItKind::Alternative));
}

void ruleTeCrossEntropy(RuleContext &ctx) {
  Opt impl = Opt::ModelCrossEntropyFusionImpl;
  if (ctx.on(Opt::ModelCrossEntropyLossFusion) && ctx.cfg().is(impl, CrossEntropyImpl::Te))
    ctx.report({Opt::ModelCrossEntropyLossFusion, impl})
        .fix(ctx.fixSet(impl, Value::ofEnum(CrossEntropyImpl::Native), FixItKind::Recommended));
}

void ruleDeterministicFusion(RuleContext &ctx) {
  if (ctx.on(Opt::ModelDeterministicMode) && ctx.on(Opt::ModelCrossEntropyLossFusion))
    ctx.report({Opt::ModelDeterministicMode, Opt::ModelCrossEntropyLossFusion})
        .fix(ctx.fixSet(Opt::ModelCrossEntropyLossFusion, Value::ofBool(false)));
}

void ruleDeterministicNccl(RuleContext &ctx) {
  const std::string *value = ctx.variable("NCCL_ALGO");
  if (!ctx.on(Opt::ModelDeterministicMode) || !value)
    return;
  for (llvm::StringRef name : {"Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS"})
    if (*value == name)
      return;
  ctx.report({Opt::ModelDeterministicMode, Opt::EnvNcclAlgo}, {DiagArg(*value)});
}

} // namespace shardc::config
