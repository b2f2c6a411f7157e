// Rules on sizes that must divide each other, and on the mesh.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/config/Adapted.h"
#include "compiler/config/Mesh.h"
#include "compiler/config/RulePredicates.h"
#include "compiler/model/LossChunks.h"
#include "compiler/model/Stages.h"

namespace shardc::config {

namespace {

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result))
      return INT64_MAX;
  return result;
}

/// The divisors of `whole` that are closest to `part`, as text: `4 or 8`.
std::string nearDivisors(int64_t whole, int64_t part) {
  constexpr int64_t kStepsMax = 1 << 16; // search range above `part`
  int64_t below = std::min(part - 1, whole), above = part + 1;
  while (below > 1 && whole % below != 0)
    --below;
  int64_t last = std::min(whole, part + kStepsMax);
  while (above <= last && whole % above != 0)
    ++above;
  std::string text = std::to_string(below);
  return above <= last ? fmt::format("{} or {}", text, above) : text;
}

/// The multiples of `unit` that are closest to `value`, as text.
std::string nearMultiples(int64_t value, int64_t unit) {
  int64_t below = value / unit * unit, above = 0;
  if (__builtin_add_overflow(below, unit, &above))
    return std::to_string(below);
  return below > 0 ? fmt::format("{} or {}", below, above) : std::to_string(above);
}

/// Reports the rule if `part`, the value of `partOpt`, does not divide `whole`, the value of
/// `wholeOpt`.
void divides(RuleContext &ctx, Opt wholeOpt, int64_t whole, Opt partOpt, int64_t part) {
  if (ctx.has(wholeOpt) && whole % part != 0)
    ctx.report({wholeOpt, partOpt}, {whole, part, nearDivisors(whole, part)});
}

/// Whether experts and dense layers divide the same number of ranks.
bool hasExpertMesh(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  int64_t experts = product({d.expertParallel, d.expertTensorParallel});
  return (ctx.has(Opt::ModelNumMoeExperts) || d.expertParallel > 1) && d.worldSize % replica == 0 &&
         d.worldSize / d.pipelineParallel % experts == 0 &&
         d.dataParallel % d.dataParallelOuter == 0;
}

/// Whether the order of ranks would assign different ranks to the stages of dense layers and of
/// experts.
bool areStagesApart(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  return ctx.on(Opt::DistUseTpPpDpMapping) && d.pipelineParallel > 1 &&
         product({d.tensorParallel, d.contextParallel}) !=
             product({d.expertTensorParallel, d.expertParallel});
}

/// A size that is checked before it is used. It is a floating-point number, which does not
/// overflow. Sizes that depend on several options are upper estimates.
struct Size {
  const char *what;
  double value;
  int mostLog2;
  std::initializer_list<Opt> options;
};

double real(int64_t value) { return static_cast<double>(value); }

std::vector<Size> sizesOfMesh(RuleContext &ctx) {
  static constexpr std::initializer_list<Opt>
      kStages = {Opt::ModelPipelineModelParallelSize, Opt::ModelVirtualPipelineModelParallelSize},
      kReplica = {Opt::ModelTensorModelParallelSize, Opt::ModelPipelineModelParallelSize,
                  Opt::ModelContextParallelSize},
      kExperts = {Opt::ModelExpertModelParallelSize, Opt::ModelExpertTensorParallelSize},
      kInstances = {Opt::DdpNumDistributedOptimizerInstances},
      kRanks = {Opt::ClusterNodes, Opt::ClusterGpusPerNode}, kMemory = {Opt::ClusterMemory};
  const Derived &d = ctx.derived();
  double stages = real(d.pipelineParallel);
  return {
      {"pipeline stages", stages * real(d.virtualStages), 13, kStages},
      {"ranks in a replica of the model", real(d.tensorParallel) * stages * real(d.contextParallel),
       20, kReplica},
      {"ranks that divide experts", real(d.expertParallel) * real(d.expertTensorParallel), 20,
       kExperts},
      {"instances of the optimizer", real(d.dataParallelOuter), 20, kInstances},
      {"ranks", real(d.worldSize), 20, kRanks},
      {"bytes on a device", real(d.memoryBytes), 42, kMemory},
  };
}

/// Sizes of the model with the number of bits that each may have. The limits keep products of sizes
/// in later steps within 63 bits.
std::vector<Size> sizesOfModel(RuleContext &ctx) {
  static constexpr Opt kFirst = Opt::ModelNumLayersInFirstPipelineStage,
                       kLast = Opt::ModelNumLayersInLastPipelineStage;
  static constexpr Opt kPlain = Opt::ModelQkHeadDim, kRotated = Opt::ModelQkPosEmbHeadDim,
                       kValues = Opt::ModelVHeadDim, kQueryRank = Opt::ModelQLoraRank,
                       kKeyRank = Opt::ModelKvLoraRank;
  static constexpr std::initializer_list<Opt>
      kLayers = {Opt::ModelNumLayers},
      kEnds = {kFirst, kLast}, kMoe = {Opt::ModelNumMoeExperts},
      kVocab = {Opt::ModelVocabSize, Opt::ModelMakeVocabSizeDivisibleBy},
      kHidden = {Opt::ModelHiddenSize}, kFfn = {Opt::ModelFfnHiddenSize},
      kHeads = {Opt::ModelNumAttentionHeads, Opt::ModelKvChannels},
      kLatent = {kPlain, kRotated, kValues, kQueryRank, kKeyRank, Opt::ModelNumAttentionHeads},
      kPositions = {Opt::ModelMaxPositionEmbeddings},
      kParameters = {Opt::ModelNumLayers, Opt::ModelHiddenSize, Opt::ModelFfnHiddenSize,
                     Opt::ModelVocabSize};
  const Derived &d = ctx.derived();
  double heads = real(d.numHeads) * real(d.headSize);
  double latent = 0, ranks = 0;
  if (ctx.on(Opt::ModelMultiLatentAttention)) {
    latent = real(d.numHeads) *
             (2 * (real(ctx.num(kPlain)) + real(ctx.num(kRotated))) + real(ctx.num(kValues)));
    ranks = real(ctx.num(kQueryRank)) + real(ctx.num(kKeyRank)) + real(ctx.num(kRotated));
  }
  double layer =
      real(d.hidden) * (3 * real(d.ffnHidden) + 4 * heads + latent + ranks) + latent * ranks;
  double tables = real(d.hidden) * (2 * real(d.paddedVocab) + real(d.maxPositions));
  return {
      {"layers", real(d.numLayers), 12, kLayers},
      {"layers in the first and the last stage", real(ctx.num(kFirst)) + real(ctx.num(kLast)), 12,
       kEnds},
      {"experts", real(ctx.num(Opt::ModelNumMoeExperts)), 20, kMoe},
      {"tokens in the vocabulary", real(d.paddedVocab), 30, kVocab},
      {"channels", real(d.hidden), 30, kHidden},
      {"feed-forward channels", real(d.ffnHidden), 30, kFfn},
      {"attention channels", heads, 30, kHeads},
      {"channels of latent attention", latent + ranks, 30, kLatent},
      {"positions", real(d.maxPositions), 30, kPositions},
      {"parameters", real(d.numLayers) * layer + tables, 44, kParameters},
  };
}

/// As sizesOfModel, for the batch, the schedule and the activations. Doubles are exact enough here:
/// they are compared with powers of two.
std::vector<Size> sizesOfRun(RuleContext &ctx) {
  static constexpr std::initializer_list<Opt>
      kMicrobatch = {Opt::ModelSeqLength, Opt::TrainMicroBatchSize},
      kStep = {Opt::ModelSeqLength, Opt::TrainGlobalBatchSize}, kSteps = {Opt::TrainTrainIters},
      kInterval = {Opt::ValidationEvalInterval},
      kBatches = {Opt::TrainGlobalBatchSize, Opt::TrainMicroBatchSize},
      kEvaluation = {Opt::ValidationEvalIters, Opt::ValidationEvalGlobalBatchSize,
                     Opt::TrainGlobalBatchSize, Opt::TrainMicroBatchSize},
      kEvalMicrobatch = {Opt::ModelSeqLength, Opt::ValidationEvalMicroBatchSize},
      kActivations = {Opt::ModelSeqLength, Opt::TrainMicroBatchSize, Opt::ModelHiddenSize},
      kPasses = {Opt::TrainGlobalBatchSize, Opt::TrainMicroBatchSize, Opt::ValidationEvalIters,
                 Opt::ModelPipelineModelParallelSize};
  const Derived &d = ctx.derived();
  double tokens = real(d.seqLength) * real(d.microBatch), batches = real(d.numMicrobatches);
  double stages = real(d.pipelineParallel), chunks = real(d.virtualStages);
  // A schedule lists the microbatches of a step or of an evaluation. The host writes two rounds of
  // them into a ring, which has at most 2^20 entries.
  double evaluated =
      std::max(real(ctx.num(Opt::ValidationEvalIters)) * batches, real(d.evalMicrobatches));
  double together = std::max(batches, ctx.has(Opt::ValidationEvalInterval) ? evaluated : 0.0);
  double width =
      20 * real(d.hidden) + 6 * real(d.ffnHidden) + 12 * real(d.numHeads) * real(d.headSize);
  return {
      {"tokens in a microbatch", tokens, 30, kMicrobatch},
      {"tokens in a rank's step", tokens * batches, 40, kStep},
      {"steps", real(ctx.num(Opt::TrainTrainIters)), 40, kSteps},
      {"steps between evaluations", real(ctx.num(Opt::ValidationEvalInterval)), 40, kInterval},
      {"tokens in an evaluation's microbatch", real(d.seqLength) * real(d.evalMicroBatch), 30,
       kEvalMicrobatch},
      {"microbatches in a step", batches, 19, kBatches},
      {"microbatches in an evaluation", together, 19, kEvaluation},
      {"passes of a step's microbatches through a stage", stages > 1 ? chunks * batches : 0, 17,
       kPasses},
      {"passes of an evaluation's microbatches through stages",
       stages > 1 ? stages * chunks * together : 0, 21, kPasses},
      {"activations", tokens * (real(d.numLayers) * width + 4 * real(d.paddedVocab)), 56,
       kActivations},
  };
}

} // namespace

std::vector<int64_t> microbatchesOfSteps(const Derived &d) {
  std::vector<int64_t> counts;
  for (const BatchPhase &phase : d.phases)
    counts.push_back(std::max<int64_t>(phase.size / product({d.microBatch, d.dataParallel}), 1));
  if (counts.empty())
    counts.push_back(d.numMicrobatches);
  return counts;
}

RULE_CODE(MissingOption) {
  for (Opt opt : {ModelNumLayers, ModelHiddenSize, ModelNumAttentionHeads, ModelVocabSize}) {
    if (has(opt) || cfg()[opt].isPoisoned)
      continue;
    reportAt(placeOf(opt), {pathOf(opt)});
  }
}

RULE_CODE(SizeTooLarge) {
  for (auto sizesOf : {sizesOfMesh, sizesOfModel, sizesOfRun})
    for (const Size &size : sizesOf(ctx))
      if (size.value > std::ldexp(1.0, size.mostLog2)) {
        report(size.options,
               {formatNumber(size.value), size.what, formatNumber(std::ldexp(1.0, size.mostLog2))});
        return;
      }
}

RULE_CODE(WorldSize) {
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  if (d.worldSize % replica != 0)
    report({ClusterNodes, ClusterGpusPerNode, ModelTensorModelParallelSize,
            ModelPipelineModelParallelSize, ModelContextParallelSize},
           {d.worldSize, replica, d.tensorParallel, d.pipelineParallel, d.contextParallel,
            nearDivisors(d.worldSize, replica)});
}

RULE_CODE(ExpertMesh) {
  int64_t experts = product({d.expertParallel, d.expertTensorParallel});
  bool hasExperts = has(ModelNumMoeExperts) || d.expertParallel > 1;
  if (!hasExperts || d.worldSize % d.pipelineParallel != 0)
    return;
  int64_t stage = d.worldSize / d.pipelineParallel;
  if (stage % experts != 0)
    report(
        {ClusterNodes, ClusterGpusPerNode, ModelExpertModelParallelSize,
         ModelExpertTensorParallelSize},
        {stage, experts, d.expertParallel, d.expertTensorParallel, nearDivisors(stage, experts)});
}

RULE_IF(ExpertStages, hasExpertMesh(ctx) && areStagesApart(ctx),
        report({DistUseTpPpDpMapping, ModelExpertModelParallelSize, ModelExpertTensorParallelSize},
               {product({d.tensorParallel, d.contextParallel}),
                product({d.expertTensorParallel, d.expertParallel})}));

/// Reports degrees of dense layers and experts that no mesh can have at the same time, and offers
/// the next smaller and the next larger degree of expert parallelism that fit.
RULE_CODE(ExpertGroups) {
  if (!hasExpertMesh(ctx) || areStagesApart(ctx))
    return;
  Chain dense = denseChain(cfg());
  std::optional<MeshConflict> conflict = findConflict(dense, expertChain(cfg()));
  if (!conflict)
    return;
  RuleReport report = ctx.report({ModelExpertModelParallelSize, ModelExpertTensorParallelSize,
                                  ModelTensorModelParallelSize, ModelContextParallelSize},
                                 {conflict->dense, conflict->expert});
  // Finds the next smaller and the next larger number of ranks that work.
  auto works = [&](int64_t ranks) {
    bool isWhole = d.worldSize / d.pipelineParallel % product({ranks, d.expertTensorParallel}) == 0;
    return isWhole && num(ModelNumMoeExperts) % ranks == 0 &&
           !findConflict(dense, expertChain(cfg(), ranks));
  };
  auto offer = [&](int64_t ranks) { report.set(ModelExpertModelParallelSize, ranks, Alternative); };
  int64_t smaller = d.expertParallel - 1, larger = d.expertParallel + 1;
  int64_t most = std::min(d.worldSize / d.pipelineParallel, num(ModelNumMoeExperts));
  while (smaller > 0 && !works(smaller))
    --smaller;
  while (larger <= most && !works(larger))
    ++larger;
  if (smaller > 0)
    offer(smaller);
  if (larger <= most)
    offer(larger);
}

RULE_IF(InstancesDivide, d.dataParallel % d.dataParallelOuter != 0,
        report({ClusterNodes, ClusterGpusPerNode, DdpNumDistributedOptimizerInstances},
               {d.dataParallel, d.dataParallelOuter,
                nearDivisors(d.dataParallel, d.dataParallelOuter)}));

RULE_CODE(GlobalBatchDivides) {
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  int64_t round = product({d.microBatch, d.dataParallel});
  // If the mesh does not fit the model, the data-parallel size is meaningless.
  if (d.worldSize % replica != 0 || d.globalBatch % round == 0 ||
      on(TrainDecreaseBatchSizeIfNeeded))
    return;
  report({TrainGlobalBatchSize, TrainMicroBatchSize, ClusterNodes, ClusterGpusPerNode},
         {d.globalBatch, round, d.microBatch, d.dataParallel, nearMultiples(d.globalBatch, round)});
}

RULE_CODE(RampupDivides) {
  Opt sizes = phasesOption(cfg());
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  int64_t round = product({d.microBatch, d.dataParallel});
  if (d.worldSize % replica != 0)
    return;
  for (const BatchPhase &phase : d.phases)
    if (phase.size % round != 0 && phase.size != d.globalBatch) // another rule checks the last size
      return void(report({sizes, TrainMicroBatchSize, ClusterNodes, ClusterGpusPerNode},
                         {pathOf(sizes), phase.size, phase.firstStep + 1, round, d.microBatch,
                          d.dataParallel})
                      .remove(sizes, Alternative));
}

RULE_CODE(HeadsDivideHidden) {
  // A head size that the recipe or the family sets is not derived from the hidden size.
  bool isDerived = cfg()[ModelKvChannels].from.origin == Origin::Derived;
  if ((isDerived || !has(ModelKvChannels)) && has(ModelNumAttentionHeads) &&
      !on(ModelMultiLatentAttention))
    divides(ctx, ModelHiddenSize, d.hidden, ModelNumAttentionHeads, d.numHeads);
}

RULE_DO(GroupsDivideHeads,
        divides(ctx, ModelNumAttentionHeads, d.numHeads, ModelNumQueryGroups, d.numGroups));
RULE_DO(TensorParallelDividesHeads, divides(ctx, ModelNumAttentionHeads, d.numHeads,
                                            ModelTensorModelParallelSize, d.tensorParallel));

RULE_IF(LinearAttentionHeads, has(ModelLinearAttentionFreq),
        divides(ctx, ModelLinearNumValueHeads, num(ModelLinearNumValueHeads),
                ModelLinearNumKeyHeads, num(ModelLinearNumKeyHeads)));
RULE_IF(LinearAttentionTensorParallel, has(ModelLinearAttentionFreq),
        divides(ctx, ModelLinearNumKeyHeads, num(ModelLinearNumKeyHeads),
                ModelTensorModelParallelSize, d.tensorParallel));

RULE_IF(MambaHeads,
        has(ModelHybridLayerPattern) &&
            (mambaHeads(cfg()) < 1 || mambaHeads(cfg()) % num(ModelMambaNumGroups) != 0),
        report({ModelMambaNumGroups, ModelHybridLayerPattern},
               {mambaHeads(cfg()), num(ModelMambaNumGroups),
                nearDivisors(std::max<int64_t>(mambaHeads(cfg()), 1), num(ModelMambaNumGroups))}));
RULE_IF(MambaTensorParallel, has(ModelHybridLayerPattern),
        divides(ctx, ModelMambaNumGroups, num(ModelMambaNumGroups), ModelTensorModelParallelSize,
                d.tensorParallel));

RULE_CODE(TensorParallelDividesGroups) {
  // If there are as many groups as heads, the rule on heads already reports it.
  bool isOwn = cfg()[ModelNumQueryGroups].from.origin != Origin::Derived;
  if (isOwn && d.numGroups > d.tensorParallel)
    divides(ctx, ModelNumQueryGroups, d.numGroups, ModelTensorModelParallelSize, d.tensorParallel);
}

RULE_IF(GroupsReplicated,
        has(ModelNumQueryGroups) && d.numGroups < d.tensorParallel &&
            d.tensorParallel % d.numGroups != 0,
        report({ModelTensorModelParallelSize, ModelNumQueryGroups},
               {d.numGroups, d.tensorParallel, nearMultiples(d.tensorParallel, d.numGroups)}));

RULE_CODE(TensorParallelDividesQkv) {
  bool isShared = d.tensorParallel > d.numGroups && d.tensorParallel % d.numGroups == 0;
  int64_t rows = product({2, d.numGroups, d.headSize}); // heads of queries are never split
  if (isShared && d.numHeads % d.tensorParallel == 0 && rows % d.tensorParallel != 0)
    report({ModelKvChannels, ModelNumQueryGroups, ModelTensorModelParallelSize},
           {rows, d.tensorParallel});
}

RULE_CODE(TensorParallelDividesFfn) {
  struct Width {
    Opt opt, degreeOpt;
    int64_t degree;
  };
  const Width widths[] = {
      {ModelFfnHiddenSize, ModelTensorModelParallelSize, d.tensorParallel},
      {ModelMoeFfnHiddenSize, ModelExpertTensorParallelSize, d.expertTensorParallel},
      {ModelMoeSharedExpertIntermediateSize, ModelTensorModelParallelSize, d.tensorParallel}};
  for (const Width &width : widths) {
    // If the width is derived from another size, the error belongs to that size.
    bool follows = cfg()[width.opt].from.origin == Origin::Derived;
    if (!follows && has(width.opt) && num(width.opt) % width.degree != 0)
      report({width.opt, width.degreeOpt},
             {num(width.opt), width.degree, pathOf(width.opt), pathOf(width.degreeOpt),
              nearDivisors(num(width.opt), width.degree)});
  }
}

RULE_DO(TensorParallelDividesHidden,
        divides(ctx, ModelHiddenSize, d.hidden, ModelTensorModelParallelSize, d.tensorParallel));

RULE_CODE(StagesDivideLayers) {
  if (cfg().is(ModelPipelineSplit, PipelineSplit::Balanced))
    return;
  for (Opt opt : {ModelNumLayersInFirstPipelineStage, ModelNumLayersInLastPipelineStage,
                  ModelPipelineModelParallelLayout})
    if (has(opt))
      return;
  int64_t layers = d.numLayers + on(ModelAccountForEmbeddingInPipelineSplit) +
                   on(ModelAccountForLossInPipelineSplit);
  int64_t chunks = product({d.pipelineParallel, d.virtualStages});
  if (has(ModelNumLayers) && layers % chunks != 0)
    report({ModelNumLayers, ModelPipelineModelParallelSize, ModelVirtualPipelineModelParallelSize},
           {layers, chunks, d.pipelineParallel, d.virtualStages, nearDivisors(layers, chunks)});
}

RULE_CODE(UnevenStages) {
  Opt first = ModelNumLayersInFirstPipelineStage;
  Opt last = ModelNumLayersInLastPipelineStage;
  if ((!has(first) && !has(last)) || has(ModelPipelineModelParallelLayout))
    return;
  int64_t layers = d.numLayers - num(first) - num(last);
  int64_t stages = d.pipelineParallel - has(first) - has(last);
  bool fits = stages > 0 ? layers >= 0 && layers % stages == 0 : layers == 0 && stages == 0;
  if (!fits)
    report({ModelNumLayers, ModelPipelineModelParallelSize, first, last}, {layers, stages});
}

RULE_CODE(BalancedStagesDivided) {
  if (!cfg().is(ModelPipelineSplit, PipelineSplit::Balanced))
    return;
  auto divides = [&](Opt opt, bool does) {
    if (does)
      report({ModelPipelineSplit, opt}, {pathOf(opt)}).remove(opt);
  };
  for (Opt opt : {ModelNumLayersInFirstPipelineStage, ModelNumLayersInLastPipelineStage,
                  ModelPipelineModelParallelLayout})
    divides(opt, has(opt));
  for (Opt opt : {ModelAccountForEmbeddingInPipelineSplit, ModelAccountForLossInPipelineSplit})
    divides(opt, on(opt));
}

RULE_IF(VirtualStagesAlone, d.virtualStages > 1 && d.pipelineParallel == 1,
        report({ModelVirtualPipelineModelParallelSize, ModelPipelineModelParallelSize},
               {d.virtualStages})
            .remove(ModelVirtualPipelineModelParallelSize));

RULE_CODE(PipelineStages) {
  Opt layout = ModelPipelineModelParallelLayout;
  if (d.pipelineParallel == 1 || !has(ModelNumLayers))
    return;
  model::StageRequest request = stageRequestOf(cfg());
  model::StageLayout stages = model::divideLayers(request);
  // Other rules report a remainder.
  if (stages.isValid() || stages.fault == model::StageLayout::Fault::Remainder)
    return;
  report({ModelNumLayers, ModelPipelineModelParallelSize, ModelNumLayersInFirstPipelineStage,
          ModelNumLayersInLastPipelineStage, layout},
         {d.numLayers, product({request.stages, request.chunks}), stages.problem});
}

namespace {

/// Whether chunks take turns with groups of microbatches.
bool takesTurns(const Config &config) {
  auto schedule =
      config.getEnumOr(Opt::ModelPipelineSchedule, PipelineSchedule::OneForwardOneBackward);
  return !config.has(Opt::ModelPipelineScheduleCsv) &&
         (schedule == PipelineSchedule::OneForwardOneBackward ||
          schedule == PipelineSchedule::Interleaved);
}

bool isVSchedule(const Config &config) {
  return config.is(Opt::ModelPipelineSchedule, PipelineSchedule::ZbV) ||
         config.is(Opt::ModelPipelineSchedule, PipelineSchedule::DualPipeV);
}

/// The placement that the configuration asks for; empty if it asks for none, or cannot be read.
std::optional<model::Placement> askedPlacement(const Config &config) {
  const Derived &d = config.derived();
  if (!config.has(Opt::ModelPipelinePlacement) ||
      product({d.pipelineParallel, d.virtualStages}) > model::kChunksMax)
    return std::nullopt;
  return model::Placement::read(config.getString(Opt::ModelPipelinePlacement), d.pipelineParallel,
                                d.virtualStages);
}

} // namespace

RULE_IF(PipelinePlacementUnreadable,
        has(ModelPipelinePlacement) && !askedPlacement(cfg()) &&
            product({d.pipelineParallel, d.virtualStages}) <= model::kChunksMax,
        report({ModelPipelinePlacement, ModelPipelineModelParallelSize,
                ModelVirtualPipelineModelParallelSize},
               {text(ModelPipelinePlacement), product({d.pipelineParallel, d.virtualStages}),
                d.pipelineParallel - 1}));

RULE_CODE(PipelinePlacementNeeds) {
  std::optional<model::Placement> asked = askedPlacement(cfg());
  if (!asked || has(ModelPipelineScheduleCsv))
    return; // a file may have any placement
  const model::Placement needed = placementOf(cfg());
  if (*asked != needed)
    report({ModelPipelinePlacement, ModelPipelineSchedule},
           {text(ModelPipelineSchedule), needed.text(), text(ModelPipelinePlacement)});
}

RULE_IF(VScheduleNeedsTwoChunks,
        isVSchedule(cfg()) && (d.pipelineParallel == 1 || d.virtualStages != 2),
        report({ModelPipelineSchedule, ModelPipelineModelParallelSize,
                ModelVirtualPipelineModelParallelSize},
               {text(ModelPipelineSchedule), d.pipelineParallel, d.virtualStages})
            .remove(ModelPipelineSchedule));

RULE_CODE(DualPipeVNeedsMicrobatches) {
  int64_t fewest = product({2, d.pipelineParallel}), found = microbatchesOfSteps(d).front();
  if (cfg().is(ModelPipelineSchedule, PipelineSchedule::DualPipeV) && found < fewest)
    report({TrainGlobalBatchSize, phasesOption(cfg()), ModelPipelineSchedule,
            ModelPipelineModelParallelSize},
           {fewest, d.pipelineParallel, found});
}

RULE_CODE(InterleavedMicrobatches) {
  int64_t group = cfg().getIntOr(ModelMicrobatchGroupSizePerVpStage, d.pipelineParallel);
  for (int64_t microbatches : microbatchesOfSteps(d)) {
    if (d.virtualStages > 1 && takesTurns(cfg()) &&
        !model::canInterleave(d.pipelineParallel, group, microbatches))
      return void(
          report({TrainGlobalBatchSize, phasesOption(cfg()), ModelVirtualPipelineModelParallelSize,
                  ModelPipelineModelParallelSize, ModelMicrobatchGroupSizePerVpStage},
                 {microbatches, d.pipelineParallel, group, microbatches % group}));
  }
}

RULE_CODE(MicrobatchGroupSize) {
  Opt opt = ModelMicrobatchGroupSizePerVpStage;
  if (!has(opt))
    return;
  std::vector<int64_t> counts = microbatchesOfSteps(d);
  int64_t group = num(opt), fewest = *std::min_element(counts.begin(), counts.end());
  if (d.virtualStages == 1 || group < d.pipelineParallel || group > fewest)
    report({opt, ModelVirtualPipelineModelParallelSize, ModelPipelineModelParallelSize,
            phasesOption(cfg())},
           {group, d.pipelineParallel, fewest, d.virtualStages})
        .remove(opt);
}

RULE_IF(InterleavedNeedsChunks,
        cfg().is(ModelPipelineSchedule, PipelineSchedule::Interleaved) &&
            (d.pipelineParallel == 1 || d.virtualStages == 1),
        report({ModelPipelineSchedule, ModelPipelineModelParallelSize,
                ModelVirtualPipelineModelParallelSize},
               {d.pipelineParallel, d.virtualStages})
            .remove(ModelPipelineSchedule));
RULE_IF(ZeroBubbleNeedsStages,
        cfg().is(ModelPipelineSchedule, PipelineSchedule::ZeroBubble) &&
            (d.pipelineParallel == 1 || d.virtualStages > 1),
        report({ModelPipelineSchedule, ModelPipelineModelParallelSize,
                ModelVirtualPipelineModelParallelSize},
               {d.pipelineParallel, d.virtualStages})
            .remove(ModelPipelineSchedule));
RULE_IF(ContextParallelDividesSequence,
        d.contextParallel > 1 && d.seqLength % product({2, d.contextParallel}) != 0,
        report({ModelSeqLength, ModelContextParallelSize}, {d.seqLength, d.contextParallel}));

RULE_CODE(MtpTokenSlices) {
  constexpr int64_t kWords = 4; // aligned addresses: 4 words
  if (!has(ModelMtpNumLayers) || d.contextParallel % 2 == 0 ||
      d.seqLength % d.contextParallel != 0 || d.microBatch >= INT64_MAX / d.seqLength)
    return;
  int64_t tokens = d.microBatch * (d.seqLength / d.contextParallel);
  if (d.contextParallel > 1 && tokens % kWords != 0)
    report({ModelMtpNumLayers, ModelContextParallelSize, ModelSeqLength, TrainMicroBatchSize},
           {tokens, d.contextParallel, kWords});
}

RULE_CODE(SequenceParallelDividesSequence) {
  if (!on(ModelSequenceParallel) || d.seqLength % d.contextParallel != 0)
    return;
  int64_t local = d.seqLength / d.contextParallel;
  if (local % d.tensorParallel != 0)
    report({ModelSeqLength, ModelTensorModelParallelSize, ModelSequenceParallel,
            ModelContextParallelSize},
           {local, d.tensorParallel});
}

RULE_CODE(TensorOverlapPieces) {
  if (!on(ModelTpCommOverlap) || !has(ModelTpCommOverlapPieces))
    return;
  int64_t pieces = num(ModelTpCommOverlapPieces);
  int64_t rows = product({d.microBatch, d.seqLength}) / d.contextParallel;
  if (rows % product({pieces, d.tensorParallel}) != 0)
    report({ModelTpCommOverlapPieces, ModelTensorModelParallelSize, ModelSeqLength},
           {pieces, rows, d.tensorParallel})
        .remove(ModelTpCommOverlapPieces);
}

RULE_IF(TensorOverlapStages,
        d.pipelineParallel > 1 && on(ModelTpCommOverlap) && has(ModelTpCommOverlapPieces),
        report({ModelTpCommOverlapPieces, ModelPipelineModelParallelSize},
               {num(ModelTpCommOverlapPieces), d.pipelineParallel})
            .remove(ModelTpCommOverlapPieces));
RULE_IF(TensorOverlapDoubleBuffer,
        on(ModelTpCommOverlap) && has(ModelTpCommOverlapPieces) && on(DdpFsdpDoubleBuffer),
        report({ModelTpCommOverlapPieces, DdpFsdpDoubleBuffer}, {num(ModelTpCommOverlapPieces)})
            .remove(ModelTpCommOverlapPieces));
RULE_CODE(TensorOverlapFp8) {
  Opt cause = on(ModelMultiLatentAttention) ? ModelMultiLatentAttention : ModelMtpNumLayers;
  if (on(ModelTpCommOverlap) && has(ModelTpCommOverlapPieces) && has(ModelFp8) &&
      hasScalesOfTensors(ctx) && (on(ModelMultiLatentAttention) || has(ModelMtpNumLayers)))
    report({ModelTpCommOverlapPieces, cause},
           {num(ModelTpCommOverlapPieces), text(ModelFp8Recipe), pathOf(cause)})
        .remove(ModelTpCommOverlapPieces);
}

RULE_CODE(LearnedPositionsUnaligned) {
  bool hasPieces = on(ModelTpCommOverlap) && has(ModelTpCommOverlapPieces);
  int64_t pieces = hasPieces ? num(ModelTpCommOverlapPieces) : 1;
  int64_t all = product({d.microBatch, d.seqLength}) / d.contextParallel;
  int64_t parts = product({d.tensorParallel, pieces});
  bool isSplit = on(ModelSequenceParallel) && all % parts == 0 &&
                 cfg().is(ModelPositionEmbeddingType, PositionEmbedding::LearnedAbsolute);
  if (int64_t own = all / parts; isSplit && own % 4 != 0)
    report({ModelSequenceParallel, ModelSeqLength, TrainMicroBatchSize,
            ModelTensorModelParallelSize, ModelTpCommOverlapPieces},
           {own});
}

RULE_IF(LossChunkUnit,
        has(ModelLossChunkRows) && num(ModelLossChunkRows) % model::kLossChunkUnit != 0,
        report({ModelLossChunkRows}, {num(ModelLossChunkRows), model::kLossChunkUnit})
            .set(ModelLossChunkRows,
                 num(ModelLossChunkRows) / model::kLossChunkUnit * model::kLossChunkUnit));

RULE_CODE(LossChunksMany) {
  Opt opt = ModelLossChunkRows;
  if (!has(opt) || d.tensorParallel == 1)
    return;
  int64_t rows = product({d.microBatch, d.seqLength}) / d.contextParallel;
  int64_t chunks = (rows - 1) / num(opt) + 1;
  if (chunks <= model::kLossChunksMax)
    return;
  int64_t fewest =
      ((rows - 1) / (model::kLossChunksMax * model::kLossChunkUnit) + 1) * model::kLossChunkUnit;
  report({opt, ModelTensorModelParallelSize, ModelSeqLength, TrainMicroBatchSize,
          ModelContextParallelSize},
         {num(opt), rows, chunks, model::kLossChunksMax})
      .set(opt, fewest, Alternative)
      .remove(opt, Alternative);
}

RULE_IF(LossChunksTied,
        has(ModelLossChunkRows) && d.tensorParallel > 1 && has(ModelMtpNumLayers) && d.tied,
        report({ModelLossChunkRows, ModelTensorModelParallelSize, ModelMtpNumLayers,
                ModelShareEmbeddingsAndOutputWeights},
               {num(ModelLossChunkRows)})
            .remove(ModelLossChunkRows));
RULE_DO(ExpertsDivide, divides(ctx, ModelNumMoeExperts, num(ModelNumMoeExperts),
                               ModelExpertModelParallelSize, d.expertParallel));
RULE_IF(ExpertsNeeded, d.expertParallel > 1 && !has(ModelNumMoeExperts),
        report({ModelExpertModelParallelSize, ModelNumMoeExperts}, {d.expertParallel}));
RULE_IF(RouterTopk, has(ModelNumMoeExperts) && num(ModelMoeRouterTopk) > num(ModelNumMoeExperts),
        report({ModelMoeRouterTopk, ModelNumMoeExperts},
               {num(ModelMoeRouterTopk), num(ModelNumMoeExperts)}));
RULE_IF(VocabularyNotPadded, !on(ModelShouldPadVocab) && d.vocab % d.tensorParallel != 0,
        report({ModelVocabSize, ModelShouldPadVocab, ModelTensorModelParallelSize},
               {d.vocab, d.tensorParallel})
            .set(ModelShouldPadVocab, true));
RULE_IF(PositionsFit,
        cfg().is(ModelPositionEmbeddingType, PositionEmbedding::LearnedAbsolute) &&
            d.seqLength > d.maxPositions,
        report({ModelSeqLength, ModelMaxPositionEmbeddings}, {d.seqLength, d.maxPositions}));

RULE_CODE(DatasetSequence) {
  int64_t samples = cfg().getIntOr(DatasetSeqLength, d.seqLength);
  if (samples != d.seqLength)
    report({ModelSeqLength, DatasetSeqLength}, {d.seqLength, samples})
        .set(DatasetSeqLength, d.seqLength, Alternative);
}

RULE_CODE(EvalBatchDivides) {
  Opt global = ValidationEvalGlobalBatchSize, micro = ValidationEvalMicroBatchSize;
  if (!has(global) && !has(micro))
    return;
  int64_t context =
      std::max<int64_t>(cfg().getIntOr(DistEvalContextParallelSize, d.contextParallel), 1);
  int64_t ranks = std::max<int64_t>(product({d.dataParallel, d.contextParallel}) / context, 1);
  int64_t batch = cfg().getIntOr(global, d.globalBatch);
  int64_t size = cfg().getIntOr(micro, d.microBatch);
  int64_t round = product({size, ranks});
  if (batch % round != 0)
    report({global, micro, TrainGlobalBatchSize, TrainMicroBatchSize}, {batch, size, ranks, round});
}

RULE_CODE(EvalMicroBatchDiffers) {
  int64_t size = cfg().getIntOr(ValidationEvalMicroBatchSize, d.microBatch);
  bool isDivided = d.tensorParallel > 1 || d.contextParallel > 1 || d.pipelineParallel > 1;
  if (isDivided && size != d.microBatch)
    report({ValidationEvalMicroBatchSize, TrainMicroBatchSize}, {size, d.microBatch});
}

RULE_CODE(RotaryEven) {
  bool isYarn = cfg().is(ModelPositionEmbeddingType, PositionEmbedding::Yarn);
  if ((!isYarn && !cfg().is(ModelPositionEmbeddingType, PositionEmbedding::Rope)) ||
      on(ModelMultiLatentAttention) || !has(ModelKvChannels))
    return;
  double share = isYarn ? 1 : cfg().getFloatOr(ModelRotaryPercent, 1);
  // Another rule refuses larger sizes; the limit only avoids an overflow of 64 bits.
  int64_t size = std::min<int64_t>(d.headSize, int64_t{1} << 40);
  int64_t rotated = static_cast<int64_t>(static_cast<double>(size) * share);
  if (rotated % 2 != 0 || rotated == 0)
    report({ModelKvChannels, ModelRotaryPercent, ModelHiddenSize, ModelNumAttentionHeads},
           {rotated, d.headSize});
}

RULE_CODE(WindowSize) {
  Opt window = ModelWindowSize;
  if (!has(window))
    return;
  const Value::List &numbers = cfg().getList(window);
  bool isPair = numbers.size() == 2 && *numbers[0].asInt() >= -1;
  if (isPair && (*numbers[1].asInt() == 0 || *numbers[1].asInt() == -1))
    return;
  RuleReport report = ctx.report({window}, {text(window)});
  if (isPair && *numbers[1].asInt() > 0)
    report.set(window, Value::ofList({numbers[0], Value::ofInt(0)}));
}

} // namespace shardc::config
