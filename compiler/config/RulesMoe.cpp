// Rules on experts, the overlap of their communication, levels of context parallelism, and weight
// shards.
#include <algorithm>

#include "compiler/config/Mesh.h"
#include "compiler/config/RulePredicates.h"
#include "runtime/base/Router.h"

namespace shardc::config {

namespace {

constexpr Opt kOverlap = Opt::ModelOverlapMoeExpertParallelComm;

/// The option that requests more weight shards than there are tensor-parallel ranks; empty if none
/// does.
std::optional<Opt> weightShards(const RuleContext &ctx) {
  for (auto [opt, ranks] :
       {std::pair(Opt::ModelTensorParallelNumWeightShards, Opt::ModelTensorModelParallelSize),
        {Opt::ModelExpertTensorParallelNumWeightShards, Opt::ModelExpertTensorParallelSize}})
    if (ctx.num(opt) > std::max<int64_t>(ctx.num(ranks), 1))
      return opt;
  return std::nullopt;
}

bool usesLevels(const RuleContext &ctx) {
  return ctx.has(Opt::ModelCpCommType) &&
         llvm::is_contained(ctx.cfg().getEnums<CpCommType>(Opt::ModelCpCommType),
                            CpCommType::A2aP2p);
}

} // namespace

void ruleRouterGroups(RuleContext &ctx) {
  Opt groups = Opt::ModelMoeRouterNumGroups, groupTopk = Opt::ModelMoeRouterGroupTopk;
  if (!ctx.has(Opt::ModelNumMoeExperts) || !ctx.has(groupTopk)) // upstream then ignores groups
    return;
  RouterChoice choice = {.experts = ctx.num(Opt::ModelNumMoeExperts),
                         .topk = ctx.num(Opt::ModelMoeRouterTopk),
                         .groups = ctx.cfg().getIntOr(groups, 0),
                         .groupTopk = ctx.num(groupTopk)};
  if (choice.topk > choice.experts) // another rule reports this
    return;
  if (choice.missing() != nullptr)
    ctx.report({groupTopk, groups, Opt::ModelMoeRouterTopk, Opt::ModelNumMoeExperts},
               {choice.topk, choice.experts, choice.groupTopk, choice.groups});
}

void ruleExpertBiasScore(RuleContext &ctx) {
  Opt bias = Opt::ModelMoeRouterEnableExpertBias, score = Opt::ModelMoeRouterScoreFunction;
  if (ctx.has(Opt::ModelNumMoeExperts) && ctx.on(bias) && ctx.cfg().is(score, RouterScore::Softmax))
    ctx.report({bias, score}, {arg(ctx, score)}).fix(ctx.fixRemove(bias));
}

void ruleScoreOnInput(RuleContext &ctx) {
  Opt onInput = Opt::ModelMoeApplyProbsOnInput, topk = Opt::ModelMoeRouterTopk;
  if (ctx.has(Opt::ModelNumMoeExperts) && ctx.on(onInput) && ctx.num(topk) != 1)
    ctx.report({onInput, topk}, {ctx.num(topk)})
        .fix(ctx.fixSet(topk, Value::ofInt(1), FixItKind::Alternative));
}

void ruleBalanceWeights(RuleContext &ctx) {
  Opt weights = Opt::ModelMoeAuxLossCoeff, kinds = Opt::ModelMoeRouterLoadBalancingType;
  auto given = static_cast<int64_t>(ctx.cfg().getList(weights).size());
  auto wanted = static_cast<int64_t>(ctx.cfg().getList(kinds).size());
  if (ctx.has(Opt::ModelNumMoeExperts) && given != wanted)
    ctx.report({weights, kinds}, {given, wanted});
}

void ruleSinkhornAlone(RuleContext &ctx) {
  Opt kinds = Opt::ModelMoeRouterLoadBalancingType;
  auto count = static_cast<int64_t>(ctx.cfg().getList(kinds).size());
  if (asksForSinkhorn(ctx) && count != 1)
    ctx.report({kinds}, {count});
}

void ruleSinkhornLoss(RuleContext &ctx) {
  Opt weights = Opt::ModelMoeAuxLossCoeff;
  const Value::List &list = ctx.cfg().getList(weights);
  auto isZero = [](const Value &weight) { return *weight.asFloat() == 0; };
  if (asksForSinkhorn(ctx) && !llvm::all_of(list, isZero))
    ctx.report({weights, Opt::ModelMoeRouterLoadBalancingType}, {arg(ctx, weights)})
        .fix(ctx.fixSet(weights, Value::ofList({Value::ofFloat(0)})));
}

void ruleSinkhornCapacity(RuleContext &ctx) {
  Opt factor = Opt::ModelMoeExpertCapacityFactor;
  if (asksForSinkhorn(ctx) && ctx.has(factor))
    ctx.report({factor, Opt::ModelMoeRouterLoadBalancingType}).fix(ctx.fixRemove(factor));
}

void ruleSinkhornScores(RuleContext &ctx) {
  if (!asksForSinkhorn(ctx))
    return;
  auto refuse = [&](Opt opt, bool isUsed) {
    if (isUsed)
      ctx.report({opt, Opt::ModelMoeRouterLoadBalancingType}, {pathOf(opt), arg(ctx, opt)})
          .fix(ctx.fixRemove(opt));
  };
  Opt score = Opt::ModelMoeRouterScoreFunction, scale = Opt::ModelMoeRouterTopkScalingFactor;
  refuse(score, !ctx.cfg().is(score, RouterScore::Softmax));
  refuse(Opt::ModelMoeRouterPreSoftmax, ctx.on(Opt::ModelMoeRouterPreSoftmax));
  refuse(Opt::ModelMoeRouterGroupTopk, ctx.has(Opt::ModelMoeRouterGroupTopk));
  refuse(scale, ctx.has(scale));
  refuse(Opt::ModelMoeRouterEnableExpertBias, ctx.on(Opt::ModelMoeRouterEnableExpertBias));
}

void ruleCapacityPadding(RuleContext &ctx) {
  Opt padding = Opt::ModelMoePadExpertInputToCapacity, factor = Opt::ModelMoeExpertCapacityFactor;
  if (ctx.has(Opt::ModelNumMoeExperts) && ctx.on(padding) && !ctx.has(factor))
    ctx.report({padding, factor}).fix(ctx.fixRemove(padding));
}

void rulePaddedBias(RuleContext &ctx) {
  Opt padding = Opt::ModelMoePadExpertInputToCapacity, bias = Opt::ModelMoeRouterEnableExpertBias;
  if (ctx.has(Opt::ModelNumMoeExperts) && ctx.on(padding) && ctx.on(bias))
    ctx.report({padding, bias})
        .fix(ctx.fixRemove(padding, FixItKind::Alternative))
        .fix(ctx.fixRemove(bias, FixItKind::Alternative));
}

void ruleRankCapacityScale(RuleContext &ctx) {
  Opt factor = Opt::ModelMoeExpertRankCapacityFactor;
  if (ctx.has(Opt::ModelNumMoeExperts) && ctx.has(factor) && ctx.on(Opt::ModelFp16) &&
      !ctx.has(Opt::OptimizerLossScale))
    ctx.report({factor, Opt::ModelFp16, Opt::OptimizerLossScale}, {arg(ctx, factor)})
        .fix(ctx.fixRemove(factor, FixItKind::Alternative));
}

void ruleExpertsWantSequenceParallel(RuleContext &ctx) {
  if (ctx.derived().expertParallel > 1 && ctx.derived().tensorParallel > 1 &&
      !ctx.on(Opt::ModelSequenceParallel))
    ctx.report({Opt::ModelExpertModelParallelSize, Opt::ModelTensorModelParallelSize,
                Opt::ModelSequenceParallel})
        .fix(ctx.fixSet(Opt::ModelSequenceParallel, Value::ofBool(true), FixItKind::Recommended));
}

void ruleOverlapNeedsExperts(RuleContext &ctx) {
  if (ctx.on(kOverlap) && ctx.derived().expertParallel == 1)
    ctx.report({kOverlap, Opt::ModelExpertModelParallelSize}).fix(ctx.fixRemove(kOverlap));
}

void ruleOverlapDispatcher(RuleContext &ctx) {
  Opt dispatcher = Opt::ModelMoeTokenDispatcherType;
  if (ctx.on(kOverlap) && ctx.cfg().is(dispatcher, TokenDispatcher::AllGather))
    ctx.report({kOverlap, dispatcher}, {arg(ctx, dispatcher)})
        .fix(ctx.fixSet(dispatcher, Value::ofEnum(TokenDispatcher::AllToAll)));
}

void ruleOverlapRecompute(RuleContext &ctx) {
  Opt granularity = Opt::ModelRecomputeGranularity;
  if (ctx.on(kOverlap) && (ctx.cfg().is(granularity, RecomputeGranularity::Full) ||
                           ctx.cfg().is(granularity, RecomputeGranularity::Auto)))
    ctx.report({kOverlap, granularity});
}

void ruleOverlapMoeRecompute(RuleContext &ctx) {
  Opt modules = Opt::ModelRecomputeModules;
  if (ctx.on(kOverlap) && ctx.has(modules) &&
      ctx.cfg().is(Opt::ModelRecomputeGranularity, RecomputeGranularity::Selective) &&
      llvm::is_contained(ctx.cfg().getEnums<RecomputeModule>(modules), RecomputeModule::Moe))
    ctx.report({kOverlap, modules});
}

void ruleOverlapPrecision(RuleContext &ctx) {
  if (ctx.on(kOverlap) && !ctx.on(Opt::ModelBf16) && !ctx.on(Opt::ModelFp16))
    ctx.report({kOverlap, Opt::ModelBf16, Opt::MixedPrecisionPreset});
}

void ruleOverlapSharedExpert(RuleContext &ctx) {
  if (ctx.on(kOverlap) && ctx.on(Opt::ModelMoeSharedExpertOverlap))
    ctx.report({kOverlap, Opt::ModelMoeSharedExpertOverlap})
        .fix(ctx.fixRemove(Opt::ModelMoeSharedExpertOverlap));
}

void ruleOverlapMtp(RuleContext &ctx) {
  int64_t layers = ctx.num(Opt::ModelMtpNumLayers);
  if (ctx.on(kOverlap) && layers > 1)
    ctx.report({kOverlap, Opt::ModelMtpNumLayers}, {layers});
}

void ruleOverlapPipeline(RuleContext &ctx) {
  if (ctx.on(kOverlap) && ctx.derived().pipelineParallel > 1 &&
      !ctx.has(Opt::ModelVirtualPipelineModelParallelSize))
    ctx.report({kOverlap, Opt::ModelPipelineModelParallelSize,
                Opt::ModelVirtualPipelineModelParallelSize});
}

void ruleOverlapDoubleBuffer(RuleContext &ctx) {
  if (ctx.wantsFsdp() && ctx.on(kOverlap) && ctx.on(Opt::DdpFsdpDoubleBuffer))
    ctx.report({kOverlap, Opt::DdpFsdpDoubleBuffer})
        .fix(ctx.fixSet(Opt::DdpFsdpDoubleBuffer, Value::ofBool(false), FixItKind::Alternative));
}

void ruleOverlapGraph(RuleContext &ctx) {
  Opt impl = Opt::ModelCudaGraphImpl;
  bool isPerLayer = ctx.cfg().is(impl, CudaGraphImpl::Local) ||
                    ctx.cfg().is(impl, CudaGraphImpl::TransformerEngine);
  if (ctx.wantsFsdp() && ctx.on(kOverlap) && isPerLayer)
    ctx.report({kOverlap, impl}, {arg(ctx, impl)})
        .fix(ctx.fixSet(impl, Value::ofEnum(CudaGraphImpl::NoGraph)));
}

void ruleDelayWgradNeeds(RuleContext &ctx) {
  if (ctx.on(Opt::ModelDelayWgradCompute) && !ctx.on(kOverlap) && !isVersion2(ctx))
    ctx.report({Opt::ModelDelayWgradCompute, kOverlap})
        .fix(ctx.fixSet(kOverlap, Value::ofBool(true), FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::ModelDelayWgradCompute, FixItKind::Alternative));
}

void ruleDelayWgradImpl(RuleContext &ctx) {
  Opt impl = Opt::ModelTransformerImpl;
  if (ctx.on(Opt::ModelDelayWgradCompute) &&
      !ctx.cfg().is(impl, TransformerImpl::TransformerEngine))
    ctx.report({Opt::ModelDelayWgradCompute, impl}, {arg(ctx, impl)}).fix(ctx.fixRemove(impl));
}

void ruleDelayWgradGraph(RuleContext &ctx) {
  Opt impl = Opt::ModelCudaGraphImpl, fusion = Opt::ModelGradientAccumulationFusion;
  // The rule applies only without FSDP: FSDP always disables the fusion, and shardc's plan decides
  // where products accumulate.
  if (ctx.wantsFsdp() || !ctx.on(Opt::ModelDelayWgradCompute) || ctx.on(fusion) ||
      ctx.cfg().is(impl, CudaGraphImpl::NoGraph))
    return;
  ctx.report({Opt::ModelDelayWgradCompute, impl, fusion}, {arg(ctx, impl)})
      .fix(ctx.fixSet(fusion, Value::ofBool(true), FixItKind::Alternative))
      .fix(ctx.fixRemove(impl, FixItKind::Alternative));
}

void ruleHybridContextNeeds(RuleContext &ctx) {
  Opt hybrid = Opt::ModelHybridContextParallel;
  if (!ctx.on(hybrid))
    return;
  auto need = [&](Opt opt, const Value &value) {
    if (ctx.cfg()[opt].value != value)
      ctx.report({hybrid, opt},
                 {pathOf(opt), DiagArg(plainText(value, info(opt).type)), arg(ctx, opt)})
          .fix(ctx.fixSet(opt, value, FixItKind::Alternative));
  };
  need(Opt::ModelPipelineModelParallelSize, Value::ofInt(1));
  need(Opt::ModelCudaGraphImpl, Value::ofEnum(CudaGraphImpl::NoGraph));
  need(Opt::ModelCalculatePerTokenLoss, Value::ofBool(true));
  need(Opt::DatasetDataloaderType, Value::ofEnum(DataloaderType::Single));
}

void ruleHybridContextUnsupported(RuleContext &ctx) {
  if (ctx.on(Opt::ModelHybridContextParallel) && !ctx.wantsFsdp()) // FSDP has its own rule
    ctx.report({Opt::ModelHybridContextParallel})
        .fix(ctx.fixRemove(Opt::ModelHybridContextParallel, FixItKind::Alternative));
}

void ruleEvalContextUnsupported(RuleContext &ctx) {
  Opt size = Opt::DistEvalContextParallelSize;
  int64_t trained = ctx.derived().contextParallel;
  if (ctx.cfg().getIntOr(size, trained) != trained)
    ctx.report({size, Opt::ModelContextParallelSize}, {ctx.num(size), trained})
        .fix(ctx.fixRemove(size, FixItKind::Alternative));
}

void ruleDispatchWgradOverlap(RuleContext &ctx) {
  Opt dispatch = Opt::ModelOverlapDispatchBackwardWithExpertsWgrad;
  if (ctx.on(dispatch) && ctx.on(kOverlap))
    ctx.report({dispatch, kOverlap})
        .fix(ctx.fixRemove(dispatch, FixItKind::Alternative))
        .fix(ctx.fixRemove(kOverlap, FixItKind::Alternative));
}

void ruleDispatchWgradDelay(RuleContext &ctx) {
  Opt dispatch = Opt::ModelOverlapDispatchBackwardWithExpertsWgrad;
  if (ctx.on(dispatch) && ctx.on(Opt::ModelDelayWgradCompute))
    ctx.report({dispatch, Opt::ModelDelayWgradCompute})
        .fix(ctx.fixRemove(dispatch, FixItKind::Alternative))
        .fix(ctx.fixRemove(Opt::ModelDelayWgradCompute, FixItKind::Alternative));
}

void ruleContextTypeSizes(RuleContext &ctx) {
  Opt sizes = Opt::ModelHierarchicalContextParallelSizes;
  if (usesLevels(ctx) && !ctx.has(sizes))
    ctx.report({Opt::ModelCpCommType, sizes});
}

void ruleContextSizesProduct(RuleContext &ctx) {
  Opt sizes = Opt::ModelHierarchicalContextParallelSizes;
  if (!usesLevels(ctx) || !ctx.has(sizes))
    return;
  int64_t product = 1;
  for (const Value &size : ctx.cfg().getList(sizes))
    if (__builtin_mul_overflow(product, *size.asInt(), &product))
      product = 0;
  if (product != ctx.derived().contextParallel)
    ctx.report({sizes, Opt::ModelContextParallelSize}, {product, ctx.derived().contextParallel});
}

void ruleContextLevelsTwo(RuleContext &ctx) {
  Opt sizes = Opt::ModelHierarchicalContextParallelSizes;
  if (ctx.derived().contextParallel > 1 && usesLevels(ctx) && ctx.has(sizes) &&
      ctx.cfg().getList(sizes).size() != 2)
    ctx.report({sizes, Opt::ModelCpCommType},
               {static_cast<int64_t>(ctx.cfg().getList(sizes).size())});
}

void ruleContextTypesPerLayer(RuleContext &ctx) {
  if (ctx.derived().contextParallel == 1 || !ctx.has(Opt::ModelCpCommType))
    return;
  auto types = static_cast<int64_t>(ctx.cfg().getList(Opt::ModelCpCommType).size());
  if (types > 1 && types != ctx.derived().numLayers)
    ctx.report({Opt::ModelCpCommType, Opt::ModelNumLayers}, {types, ctx.derived().numLayers});
}

void ruleContextHeads(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.contextParallel == 1 || !ctx.has(Opt::ModelCpCommType))
    return;
  int64_t heads = ctx.num(Opt::ModelNumAttentionHeads) / d.tensorParallel;
  int64_t groups = std::max<int64_t>(d.numGroups / d.tensorParallel, 1);
  for (CpCommType type : ctx.cfg().getEnums<CpCommType>(Opt::ModelCpCommType)) {
    int64_t ranks = type == CpCommType::A2a      ? d.contextParallel
                    : type == CpCommType::A2aP2p ? innerContext(ctx.cfg())
                                                 : 1;
    if (heads % ranks == 0 && groups % ranks == 0)
      continue;
    ctx.report({Opt::ModelCpCommType, Opt::ModelNumAttentionHeads, Opt::ModelNumQueryGroups,
                Opt::ModelContextParallelSize},
               {spelling(type), heads, groups, ranks});
    return;
  }
}

void ruleWeightShardsFormat(RuleContext &ctx) {
  std::optional<Opt> shards = weightShards(ctx);
  bool isServed =
      ctx.cfg().is(kFormat, CkptFormat::Torch) || ctx.cfg().is(kFormat, CkptFormat::TorchDist);
  if (shards && ctx.has(kFormat) && !isServed)
    ctx.report({*shards, kFormat}, {arg(ctx, kFormat)});
}

void ruleWeightShardsAverage(RuleContext &ctx) {
  std::optional<Opt> shards = weightShards(ctx);
  if (shards && ctx.on(Opt::DdpAverageInCollective))
    ctx.report({*shards, Opt::DdpAverageInCollective})
        .fix(ctx.fixSet(Opt::DdpAverageInCollective, Value::ofBool(false)));
}

void ruleTpOverlapNeeds(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  bool isServed = d.tensorParallel >= 2 && ctx.on(Opt::ModelSequenceParallel);
  if (ctx.on(Opt::ModelTpCommOverlap) && !isServed)
    ctx.report({Opt::ModelTpCommOverlap, Opt::ModelTensorModelParallelSize,
                Opt::ModelSequenceParallel, Opt::CommOverlapTpCommOverlap},
               {d.tensorParallel, arg(ctx, Opt::ModelSequenceParallel)});
}

void ruleTpOverlapAtomic(RuleContext &ctx) {
  for (Opt opt : {Opt::ModelTpCommAtomicAg, Opt::ModelTpCommAtomicRs})
    if (ctx.on(Opt::ModelTpCommOverlap) && ctx.on(opt))
      ctx.report({opt}, {pathOf(opt)}).fix(ctx.fixSet(opt, Value::ofBool(false)));
}

} // namespace shardc::config
