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

RULE_CODE(RouterGroups) {
  Opt groups = ModelMoeRouterNumGroups, groupTopk = ModelMoeRouterGroupTopk;
  if (!has(ModelNumMoeExperts) || !has(groupTopk)) // upstream then ignores groups
    return;
  RouterChoice choice = {.experts = num(ModelNumMoeExperts),
                         .topk = num(ModelMoeRouterTopk),
                         .groups = cfg().getIntOr(groups, 0),
                         .groupTopk = num(groupTopk)};
  if (choice.topk > choice.experts) // another rule reports this
    return;
  if (choice.missing() != nullptr)
    report({groupTopk, groups, ModelMoeRouterTopk, ModelNumMoeExperts},
           {choice.topk, choice.experts, choice.groupTopk, choice.groups});
}

RULE_IF(ExpertBiasScore,
        has(ModelNumMoeExperts) && on(ModelMoeRouterEnableExpertBias) &&
            cfg().is(ModelMoeRouterScoreFunction, RouterScore::Softmax),
        report({ModelMoeRouterEnableExpertBias, ModelMoeRouterScoreFunction},
               {text(ModelMoeRouterScoreFunction)})
            .remove(ModelMoeRouterEnableExpertBias));
RULE_IF(ScoreOnInput,
        has(ModelNumMoeExperts) && on(ModelMoeApplyProbsOnInput) && num(ModelMoeRouterTopk) != 1,
        report({ModelMoeApplyProbsOnInput, ModelMoeRouterTopk}, {num(ModelMoeRouterTopk)})
            .set(ModelMoeRouterTopk, 1, Alternative));

RULE_CODE(BalanceWeights) {
  Opt weights = ModelMoeAuxLossCoeff, kinds = ModelMoeRouterLoadBalancingType;
  auto given = static_cast<int64_t>(cfg().getList(weights).size());
  auto wanted = static_cast<int64_t>(cfg().getList(kinds).size());
  if (has(ModelNumMoeExperts) && given != wanted)
    report({weights, kinds}, {given, wanted});
}

RULE_CODE(BalanceWithoutWeight) {
  Opt weights = ModelMoeAuxLossCoeff, kinds = ModelMoeRouterLoadBalancingType;
  auto isLoss = [](RouterBalancing kind) {
    return kind != RouterBalancing::Sinkhorn && kind != RouterBalancing::NoBalancing;
  };
  if (has(ModelNumMoeExperts) && isWritten(kinds) &&
      cfg()[weights].from.origin == Origin::Default &&
      llvm::all_of(cfg().getEnums<RouterBalancing>(kinds), isLoss))
    report({kinds}, {text(kinds)});
}

RULE_CODE(SinkhornAlone) {
  Opt kinds = ModelMoeRouterLoadBalancingType;
  auto count = static_cast<int64_t>(cfg().getList(kinds).size());
  if (asksForSinkhorn(ctx) && count != 1)
    report({kinds}, {count});
}

RULE_CODE(SinkhornAuxLoss) {
  Opt weights = ModelMoeAuxLossCoeff;
  const Value::List &list = cfg().getList(weights);
  auto isZero = [](const Value &weight) { return *weight.asFloat() == 0; };
  if (asksForSinkhorn(ctx) && !llvm::all_of(list, isZero))
    report({weights, ModelMoeRouterLoadBalancingType}, {text(weights)})
        .set(weights, Value::ofList({Value::ofFloat(0)}));
}

RULE_IF(SinkhornCapacity, asksForSinkhorn(ctx) && has(ModelMoeExpertCapacityFactor),
        report({ModelMoeExpertCapacityFactor, ModelMoeRouterLoadBalancingType})
            .remove(ModelMoeExpertCapacityFactor));

RULE_CODE(SinkhornScores) {
  if (!asksForSinkhorn(ctx))
    return;
  auto refuse = [&](Opt opt, bool isUsed) {
    if (isUsed)
      report({opt, ModelMoeRouterLoadBalancingType}, {pathOf(opt), text(opt)}).remove(opt);
  };
  Opt score = ModelMoeRouterScoreFunction, scale = ModelMoeRouterTopkScalingFactor;
  refuse(score, !cfg().is(score, RouterScore::Softmax));
  refuse(ModelMoeRouterPreSoftmax, on(ModelMoeRouterPreSoftmax));
  refuse(ModelMoeRouterGroupTopk, has(ModelMoeRouterGroupTopk));
  refuse(scale, has(scale));
  refuse(ModelMoeRouterEnableExpertBias, on(ModelMoeRouterEnableExpertBias));
}

RULE_IF(CapacityPadding,
        has(ModelNumMoeExperts) && on(ModelMoePadExpertInputToCapacity) &&
            !has(ModelMoeExpertCapacityFactor),
        report({ModelMoePadExpertInputToCapacity, ModelMoeExpertCapacityFactor})
            .remove(ModelMoePadExpertInputToCapacity));

RULE_CODE(PaddedExpertBias) {
  Opt padding = ModelMoePadExpertInputToCapacity, bias = ModelMoeRouterEnableExpertBias;
  if (has(ModelNumMoeExperts) && on(padding) && on(bias))
    report({padding, bias}).remove(padding, Alternative).remove(bias, Alternative);
}

RULE_CODE(RankCapacityLossScale) {
  Opt factor = ModelMoeExpertRankCapacityFactor;
  if (has(ModelNumMoeExperts) && has(factor) && on(ModelFp16) && !has(OptimizerLossScale))
    report({factor, ModelFp16, OptimizerLossScale}, {text(factor)}).remove(factor, Alternative);
}

RULE_IF(ExpertsWantSequenceParallel,
        d.expertParallel > 1 && d.tensorParallel > 1 && !on(ModelSequenceParallel),
        report({ModelExpertModelParallelSize, ModelTensorModelParallelSize, ModelSequenceParallel})
            .set(ModelSequenceParallel, true, Recommended));
RULE_IF(ExpertOverlapNeedsExperts, on(kOverlap) && d.expertParallel == 1,
        report({kOverlap, ModelExpertModelParallelSize}).remove(kOverlap));
RULE_IF(ExpertOverlapDispatcher,
        on(kOverlap) && cfg().is(ModelMoeTokenDispatcherType, TokenDispatcher::AllGather),
        report({kOverlap, ModelMoeTokenDispatcherType}, {text(ModelMoeTokenDispatcherType)})
            .set(ModelMoeTokenDispatcherType, TokenDispatcher::AllToAll));
RULE_IF(ExpertOverlapRecompute,
        on(kOverlap) && (cfg().is(ModelRecomputeGranularity, RecomputeGranularity::Full) ||
                         cfg().is(ModelRecomputeGranularity, RecomputeGranularity::Auto)),
        report({kOverlap, ModelRecomputeGranularity}));
RULE_IF(ExpertOverlapMoeRecompute,
        on(kOverlap) && has(ModelRecomputeModules) &&
            cfg().is(ModelRecomputeGranularity, RecomputeGranularity::Selective) &&
            llvm::is_contained(cfg().getEnums<RecomputeModule>(ModelRecomputeModules),
                               RecomputeModule::Moe),
        report({kOverlap, ModelRecomputeModules}));
RULE_IF(ExpertOverlapPrecision, on(kOverlap) && !on(ModelBf16) && !on(ModelFp16),
        report({kOverlap, ModelBf16, MixedPrecisionPreset}));
RULE_IF(ExpertOverlapSharedExpert, on(kOverlap) && on(ModelMoeSharedExpertOverlap),
        report({kOverlap, ModelMoeSharedExpertOverlap}).remove(ModelMoeSharedExpertOverlap));
RULE_IF(ExpertOverlapMtp, on(kOverlap) && num(ModelMtpNumLayers) > 1,
        report({kOverlap, ModelMtpNumLayers}, {num(ModelMtpNumLayers)}));
RULE_IF(ExpertOverlapPipeline,
        on(kOverlap) && d.pipelineParallel > 1 && !has(ModelVirtualPipelineModelParallelSize),
        report({kOverlap, ModelPipelineModelParallelSize, ModelVirtualPipelineModelParallelSize}));
RULE_IF(ExpertOverlapDoubleBuffer, wantsFsdp() && on(kOverlap) && on(DdpFsdpDoubleBuffer),
        report({kOverlap, DdpFsdpDoubleBuffer}).set(DdpFsdpDoubleBuffer, false, Alternative));
RULE_IF(ExpertOverlapGraph, wantsFsdp() && on(kOverlap) && capturesLayers(ctx),
        report({kOverlap, ModelCudaGraphImpl}, {text(ModelCudaGraphImpl)})
            .set(ModelCudaGraphImpl, CudaGraphImpl::NoGraph));
RULE_IF(DelayedWgradNeedsOverlap, on(ModelDelayWgradCompute) && !on(kOverlap) && !isVersion2(ctx),
        report({ModelDelayWgradCompute, kOverlap})
            .set(kOverlap, true, Alternative)
            .remove(ModelDelayWgradCompute, Alternative));
RULE_IF(DelayedWgradImplementation,
        on(ModelDelayWgradCompute) &&
            !cfg().is(ModelTransformerImpl, TransformerImpl::TransformerEngine),
        report({ModelDelayWgradCompute, ModelTransformerImpl}, {text(ModelTransformerImpl)})
            .remove(ModelTransformerImpl));

RULE_CODE(DelayedWgradGraph) {
  Opt impl = ModelCudaGraphImpl, fusion = ModelGradientAccumulationFusion;
  // The rule applies only without FSDP: FSDP always disables the fusion, and shardc's plan decides
  // where products accumulate.
  if (wantsFsdp() || !on(ModelDelayWgradCompute) || on(fusion) ||
      cfg().is(impl, CudaGraphImpl::NoGraph))
    return;
  report({ModelDelayWgradCompute, impl, fusion}, {text(impl)})
      .set(fusion, true, Alternative)
      .remove(impl, Alternative);
}

RULE_CODE(HybridContextParallelNeeds) {
  Opt hybrid = ModelHybridContextParallel;
  if (!on(hybrid))
    return;
  auto need = [&](Opt opt, const Value &value) {
    if (cfg()[opt].value != value)
      report({hybrid, opt}, {pathOf(opt), DiagArg(plainText(value, info(opt).type)), text(opt)})
          .set(opt, value, Alternative);
  };
  need(ModelPipelineModelParallelSize, Value::ofInt(1));
  need(ModelCudaGraphImpl, Value::ofEnum(CudaGraphImpl::NoGraph));
  need(ModelCalculatePerTokenLoss, Value::ofBool(true));
  need(DatasetDataloaderType, Value::ofEnum(DataloaderType::Single));
}

RULE_CODE(HybridContextParallelUnsupported) {
  if (on(ModelHybridContextParallel) && !wantsFsdp()) // FSDP has its own rule
    report({ModelHybridContextParallel}).remove(ModelHybridContextParallel, Alternative);
}

RULE_IF(EvalContextParallelUnsupported,
        cfg().getIntOr(DistEvalContextParallelSize, d.contextParallel) != d.contextParallel,
        report({DistEvalContextParallelSize, ModelContextParallelSize},
               {num(DistEvalContextParallelSize), d.contextParallel})
            .remove(DistEvalContextParallelSize, Alternative));
RULE_IF(DispatchWgradOverlap, on(ModelOverlapDispatchBackwardWithExpertsWgrad) && on(kOverlap),
        report({ModelOverlapDispatchBackwardWithExpertsWgrad, kOverlap})
            .remove(ModelOverlapDispatchBackwardWithExpertsWgrad, Alternative)
            .remove(kOverlap, Alternative));

RULE_CODE(DispatchWgradDelay) {
  Opt dispatch = ModelOverlapDispatchBackwardWithExpertsWgrad;
  if (on(dispatch) && on(ModelDelayWgradCompute))
    report({dispatch, ModelDelayWgradCompute})
        .remove(dispatch, Alternative)
        .remove(ModelDelayWgradCompute, Alternative);
}

RULE_IF(ContextParallelLevels, usesLevels(ctx) && !has(ModelHierarchicalContextParallelSizes),
        report({ModelCpCommType, ModelHierarchicalContextParallelSizes}));

RULE_CODE(ContextParallelLevelsProduct) {
  Opt sizes = ModelHierarchicalContextParallelSizes;
  if (!usesLevels(ctx) || !has(sizes))
    return;
  int64_t product = 1;
  for (const Value &size : cfg().getList(sizes))
    if (__builtin_mul_overflow(product, *size.asInt(), &product))
      product = 0;
  if (product != d.contextParallel)
    report({sizes, ModelContextParallelSize}, {product, d.contextParallel});
}

RULE_CODE(ContextParallelTwoLevels) {
  Opt sizes = ModelHierarchicalContextParallelSizes;
  if (d.contextParallel > 1 && usesLevels(ctx) && has(sizes) && cfg().getList(sizes).size() != 2)
    report({sizes, ModelCpCommType}, {static_cast<int64_t>(cfg().getList(sizes).size())});
}

RULE_CODE(ContextParallelTypes) {
  if (d.contextParallel == 1 || !has(ModelCpCommType))
    return;
  auto types = static_cast<int64_t>(cfg().getList(ModelCpCommType).size());
  if (types > 1 && types != d.numLayers)
    report({ModelCpCommType, ModelNumLayers}, {types, d.numLayers});
}

RULE_CODE(ContextParallelHeads) {
  if (d.contextParallel == 1 || !has(ModelCpCommType))
    return;
  int64_t heads = num(ModelNumAttentionHeads) / d.tensorParallel;
  int64_t groups = std::max<int64_t>(d.numGroups / d.tensorParallel, 1);
  for (CpCommType type : cfg().getEnums<CpCommType>(ModelCpCommType)) {
    int64_t ranks = type == CpCommType::A2a      ? d.contextParallel
                    : type == CpCommType::A2aP2p ? innerContext(cfg())
                                                 : 1;
    if (heads % ranks == 0 && groups % ranks == 0)
      continue;
    report({ModelCpCommType, ModelNumAttentionHeads, ModelNumQueryGroups, ModelContextParallelSize},
           {spelling(type), heads, groups, ranks});
    return;
  }
}

RULE_CODE(WeightShardsFormat) {
  std::optional<Opt> shards = weightShards(ctx);
  bool isServed = cfg().is(kFormat, CkptFormat::Torch) || cfg().is(kFormat, CkptFormat::TorchDist);
  if (shards && has(kFormat) && !isServed)
    report({*shards, kFormat}, {text(kFormat)});
}

RULE_CODE(WeightShardsAverage) {
  std::optional<Opt> shards = weightShards(ctx);
  if (shards && on(DdpAverageInCollective))
    report({*shards, DdpAverageInCollective}).set(DdpAverageInCollective, false);
}

RULE_IF(TensorOverlapNeeds,
        on(ModelTpCommOverlap) && !(d.tensorParallel >= 2 && on(ModelSequenceParallel)),
        report({ModelTpCommOverlap, ModelTensorModelParallelSize, ModelSequenceParallel,
                CommOverlapTpCommOverlap},
               {d.tensorParallel, text(ModelSequenceParallel)}));
RULE_EACH(TensorOverlapAtomic, (ModelTpCommAtomicAg, ModelTpCommAtomicRs),
          on(ModelTpCommOverlap) && on(opt), report({opt}, {pathOf(opt)}).set(opt, false));

} // namespace shardc::config
