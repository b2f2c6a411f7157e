// Rules on sizes that must divide each other, and on the mesh.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
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

/// The numbers of microbatches of a rank per step, ascending. There are several if the batch grows.
std::vector<int64_t> microbatchesOfSteps(const Derived &d) {
  std::vector<int64_t> counts;
  for (const BatchPhase &phase : d.phases)
    counts.push_back(std::max<int64_t>(phase.size / product({d.microBatch, d.dataParallel}), 1));
  if (counts.empty())
    counts.push_back(d.numMicrobatches);
  return counts;
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

void ruleMissingOption(RuleContext &ctx) {
  for (Opt opt : {Opt::ModelNumLayers, Opt::ModelHiddenSize, Opt::ModelNumAttentionHeads,
                  Opt::ModelVocabSize}) {
    if (ctx.has(opt) || ctx.cfg()[opt].isPoisoned)
      continue;
    ctx.reportAt(ctx.placeOf(opt), {pathOf(opt)});
  }
}

void ruleSizeTooLarge(RuleContext &ctx) {
  for (auto sizesOf : {sizesOfMesh, sizesOfModel, sizesOfRun})
    for (const Size &size : sizesOf(ctx))
      if (size.value > std::ldexp(1.0, size.mostLog2)) {
        ctx.report(size.options, {formatNumber(size.value), size.what,
                                  formatNumber(std::ldexp(1.0, size.mostLog2))});
        return;
      }
}

void ruleWorldDivides(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  if (d.worldSize % replica != 0)
    ctx.report({Opt::ClusterNodes, Opt::ClusterGpusPerNode, Opt::ModelTensorModelParallelSize,
                Opt::ModelPipelineModelParallelSize, Opt::ModelContextParallelSize},
               {d.worldSize, replica, d.tensorParallel, d.pipelineParallel, d.contextParallel,
                nearDivisors(d.worldSize, replica)});
}

void ruleExpertMesh(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t experts = product({d.expertParallel, d.expertTensorParallel});
  bool hasExperts = ctx.has(Opt::ModelNumMoeExperts) || d.expertParallel > 1;
  if (!hasExperts || d.worldSize % d.pipelineParallel != 0)
    return;
  int64_t stage = d.worldSize / d.pipelineParallel;
  if (stage % experts != 0)
    ctx.report(
        {Opt::ClusterNodes, Opt::ClusterGpusPerNode, Opt::ModelExpertModelParallelSize,
         Opt::ModelExpertTensorParallelSize},
        {stage, experts, d.expertParallel, d.expertTensorParallel, nearDivisors(stage, experts)});
}

void ruleExpertStages(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (hasExpertMesh(ctx) && areStagesApart(ctx))
    ctx.report({Opt::DistUseTpPpDpMapping, Opt::ModelExpertModelParallelSize,
                Opt::ModelExpertTensorParallelSize},
               {product({d.tensorParallel, d.contextParallel}),
                product({d.expertTensorParallel, d.expertParallel})});
}

/// Reports degrees of dense layers and experts that no mesh can have at the same time, and offers
/// the next smaller and the next larger degree of expert parallelism that fit.
void ruleExpertGroups(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!hasExpertMesh(ctx) || areStagesApart(ctx))
    return;
  Chain dense = denseChain(ctx.cfg());
  std::optional<MeshConflict> conflict = findConflict(dense, expertChain(ctx.cfg()));
  if (!conflict)
    return;
  RuleReport report =
      ctx.report({Opt::ModelExpertModelParallelSize, Opt::ModelExpertTensorParallelSize,
                  Opt::ModelTensorModelParallelSize, Opt::ModelContextParallelSize},
                 {conflict->dense, conflict->expert});
  // Finds the next smaller and the next larger number of ranks that work.
  auto works = [&](int64_t ranks) {
    bool isWhole = d.worldSize / d.pipelineParallel % product({ranks, d.expertTensorParallel}) == 0;
    return isWhole && ctx.num(Opt::ModelNumMoeExperts) % ranks == 0 &&
           !findConflict(dense, expertChain(ctx.cfg(), ranks));
  };
  auto offer = [&](int64_t ranks) {
    report.fix(
        ctx.fixSet(Opt::ModelExpertModelParallelSize, Value::ofInt(ranks), FixItKind::Alternative));
  };
  int64_t smaller = d.expertParallel - 1, larger = d.expertParallel + 1;
  int64_t most = std::min(d.worldSize / d.pipelineParallel, ctx.num(Opt::ModelNumMoeExperts));
  while (smaller > 0 && !works(smaller))
    --smaller;
  while (larger <= most && !works(larger))
    ++larger;
  if (smaller > 0)
    offer(smaller);
  if (larger <= most)
    offer(larger);
}

void ruleInstancesDivide(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.dataParallel % d.dataParallelOuter != 0)
    ctx.report(
        {Opt::ClusterNodes, Opt::ClusterGpusPerNode, Opt::DdpNumDistributedOptimizerInstances},
        {d.dataParallel, d.dataParallelOuter, nearDivisors(d.dataParallel, d.dataParallelOuter)});
}

void ruleGlobalBatchDivides(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  int64_t round = product({d.microBatch, d.dataParallel});
  // If the mesh does not fit the model, the data-parallel size is meaningless.
  if (d.worldSize % replica != 0 || d.globalBatch % round == 0 ||
      ctx.on(Opt::TrainDecreaseBatchSizeIfNeeded))
    return;
  ctx.report(
      {Opt::TrainGlobalBatchSize, Opt::TrainMicroBatchSize, Opt::ClusterNodes,
       Opt::ClusterGpusPerNode},
      {d.globalBatch, round, d.microBatch, d.dataParallel, nearMultiples(d.globalBatch, round)});
}

void ruleRampupDivides(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt sizes = phasesOption(ctx.cfg());
  int64_t replica = product({d.tensorParallel, d.pipelineParallel, d.contextParallel});
  int64_t round = product({d.microBatch, d.dataParallel});
  if (d.worldSize % replica != 0)
    return;
  for (const BatchPhase &phase : d.phases)
    if (phase.size % round != 0 && phase.size != d.globalBatch) // another rule checks the last size
      return void(
          ctx.report({sizes, Opt::TrainMicroBatchSize, Opt::ClusterNodes, Opt::ClusterGpusPerNode},
                     {pathOf(sizes), phase.size, phase.firstStep + 1, round, d.microBatch,
                      d.dataParallel})
              .fix(ctx.fixRemove(sizes, FixItKind::Alternative)));
}

void ruleHeadsDivideHidden(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  // A head size that the recipe or the family sets is not derived from the hidden size.
  bool isDerived = ctx.cfg()[Opt::ModelKvChannels].from.origin == Origin::Derived;
  if ((isDerived || !ctx.has(Opt::ModelKvChannels)) && ctx.has(Opt::ModelNumAttentionHeads) &&
      !ctx.on(Opt::ModelMultiLatentAttention))
    divides(ctx, Opt::ModelHiddenSize, d.hidden, Opt::ModelNumAttentionHeads, d.numHeads);
}

void ruleGroupsDivideHeads(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  divides(ctx, Opt::ModelNumAttentionHeads, d.numHeads, Opt::ModelNumQueryGroups, d.numGroups);
}

void ruleTensorDividesHeads(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  divides(ctx, Opt::ModelNumAttentionHeads, d.numHeads, Opt::ModelTensorModelParallelSize,
          d.tensorParallel);
}

void ruleTensorDividesGroups(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  // If there are as many groups as heads, the rule on heads already reports it.
  bool isOwn = ctx.cfg()[Opt::ModelNumQueryGroups].from.origin != Origin::Derived;
  if (isOwn && d.numGroups > d.tensorParallel)
    divides(ctx, Opt::ModelNumQueryGroups, d.numGroups, Opt::ModelTensorModelParallelSize,
            d.tensorParallel);
}

void ruleGroupsReplicated(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.has(Opt::ModelNumQueryGroups) && d.numGroups < d.tensorParallel &&
      d.tensorParallel % d.numGroups != 0)
    ctx.report({Opt::ModelTensorModelParallelSize, Opt::ModelNumQueryGroups},
               {d.numGroups, d.tensorParallel, nearMultiples(d.tensorParallel, d.numGroups)});
}

void ruleTensorDividesQkv(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  bool isShared = d.tensorParallel > d.numGroups && d.tensorParallel % d.numGroups == 0;
  int64_t rows = product({2, d.numGroups, d.headSize}); // heads of queries are never split
  if (isShared && d.numHeads % d.tensorParallel == 0 && rows % d.tensorParallel != 0)
    ctx.report({Opt::ModelKvChannels, Opt::ModelNumQueryGroups, Opt::ModelTensorModelParallelSize},
               {rows, d.tensorParallel});
}

void ruleTensorDividesFfn(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  struct Width {
    Opt opt, degreeOpt;
    int64_t degree;
  };
  const Width widths[] = {
      {Opt::ModelFfnHiddenSize, Opt::ModelTensorModelParallelSize, d.tensorParallel},
      {Opt::ModelMoeFfnHiddenSize, Opt::ModelExpertTensorParallelSize, d.expertTensorParallel},
      {Opt::ModelMoeSharedExpertIntermediateSize, Opt::ModelTensorModelParallelSize,
       d.tensorParallel}};
  for (const Width &width : widths) {
    // If the width is derived from another size, the error belongs to that size.
    bool follows = ctx.cfg()[width.opt].from.origin == Origin::Derived;
    if (!follows && ctx.has(width.opt) && ctx.num(width.opt) % width.degree != 0)
      ctx.report({width.opt, width.degreeOpt},
                 {ctx.num(width.opt), width.degree, pathOf(width.opt), pathOf(width.degreeOpt),
                  nearDivisors(ctx.num(width.opt), width.degree)});
  }
}

void ruleTensorDividesHidden(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  divides(ctx, Opt::ModelHiddenSize, d.hidden, Opt::ModelTensorModelParallelSize, d.tensorParallel);
}

void ruleStagesDivideLayers(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.cfg().is(Opt::ModelPipelineSplit, PipelineSplit::Balanced))
    return;
  for (Opt opt : {Opt::ModelNumLayersInFirstPipelineStage, Opt::ModelNumLayersInLastPipelineStage,
                  Opt::ModelPipelineModelParallelLayout})
    if (ctx.has(opt))
      return;
  int64_t layers = d.numLayers + ctx.on(Opt::ModelAccountForEmbeddingInPipelineSplit) +
                   ctx.on(Opt::ModelAccountForLossInPipelineSplit);
  int64_t chunks = product({d.pipelineParallel, d.virtualStages});
  if (ctx.has(Opt::ModelNumLayers) && layers % chunks != 0)
    ctx.report({Opt::ModelNumLayers, Opt::ModelPipelineModelParallelSize,
                Opt::ModelVirtualPipelineModelParallelSize},
               {layers, chunks, d.pipelineParallel, d.virtualStages, nearDivisors(layers, chunks)});
}

void ruleUnevenStages(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt first = Opt::ModelNumLayersInFirstPipelineStage;
  Opt last = Opt::ModelNumLayersInLastPipelineStage;
  if ((!ctx.has(first) && !ctx.has(last)) || ctx.has(Opt::ModelPipelineModelParallelLayout))
    return;
  int64_t layers = d.numLayers - ctx.num(first) - ctx.num(last);
  int64_t stages = d.pipelineParallel - ctx.has(first) - ctx.has(last);
  bool fits = stages > 0 ? layers >= 0 && layers % stages == 0 : layers == 0 && stages == 0;
  if (!fits)
    ctx.report({Opt::ModelNumLayers, Opt::ModelPipelineModelParallelSize, first, last},
               {layers, stages});
}

void ruleBalancedStages(RuleContext &ctx) {
  if (!ctx.cfg().is(Opt::ModelPipelineSplit, PipelineSplit::Balanced))
    return;
  auto divides = [&](Opt opt, bool does) {
    if (does)
      ctx.report({Opt::ModelPipelineSplit, opt}, {pathOf(opt)}).fix(ctx.fixRemove(opt));
  };
  for (Opt opt : {Opt::ModelNumLayersInFirstPipelineStage, Opt::ModelNumLayersInLastPipelineStage,
                  Opt::ModelPipelineModelParallelLayout})
    divides(opt, ctx.has(opt));
  for (Opt opt :
       {Opt::ModelAccountForEmbeddingInPipelineSplit, Opt::ModelAccountForLossInPipelineSplit})
    divides(opt, ctx.on(opt));
}

void ruleVirtualStagesAlone(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt opt = Opt::ModelVirtualPipelineModelParallelSize;
  if (d.virtualStages > 1 && d.pipelineParallel == 1)
    ctx.report({opt, Opt::ModelPipelineModelParallelSize}, {d.virtualStages})
        .fix(ctx.fixRemove(opt));
}

void rulePipelineStages(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt layout = Opt::ModelPipelineModelParallelLayout;
  if (d.pipelineParallel == 1 || !ctx.has(Opt::ModelNumLayers))
    return;
  model::StageRequest request = stageRequestOf(ctx.cfg());
  model::StageLayout stages = model::divideLayers(request);
  // Other rules report a remainder.
  if (stages.isValid() || stages.fault == model::StageLayout::Fault::Remainder)
    return;
  ctx.report({Opt::ModelNumLayers, Opt::ModelPipelineModelParallelSize,
              Opt::ModelNumLayersInFirstPipelineStage, Opt::ModelNumLayersInLastPipelineStage,
              layout},
             {d.numLayers, product({request.stages, request.chunks}), stages.problem});
}

void ruleInterleavedMicrobatches(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t group = ctx.cfg().getIntOr(Opt::ModelMicrobatchGroupSizePerVpStage, d.pipelineParallel);
  for (int64_t microbatches : microbatchesOfSteps(d)) {
    if (d.virtualStages > 1 && !model::canInterleave(d.pipelineParallel, group, microbatches))
      return void(
          ctx.report({Opt::TrainGlobalBatchSize, phasesOption(ctx.cfg()),
                      Opt::ModelVirtualPipelineModelParallelSize,
                      Opt::ModelPipelineModelParallelSize, Opt::ModelMicrobatchGroupSizePerVpStage},
                     {microbatches, d.pipelineParallel, group, microbatches % group}));
  }
}

void ruleMicrobatchGroup(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt opt = Opt::ModelMicrobatchGroupSizePerVpStage;
  if (!ctx.has(opt))
    return;
  std::vector<int64_t> counts = microbatchesOfSteps(d);
  int64_t group = ctx.num(opt), fewest = *std::min_element(counts.begin(), counts.end());
  if (d.virtualStages == 1 || group < d.pipelineParallel || group > fewest)
    ctx.report({opt, Opt::ModelVirtualPipelineModelParallelSize,
                Opt::ModelPipelineModelParallelSize, phasesOption(ctx.cfg())},
               {group, d.pipelineParallel, fewest, d.virtualStages})
        .fix(ctx.fixRemove(opt));
}

void ruleInterleavedNeeds(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.cfg().is(Opt::ModelPipelineSchedule, PipelineSchedule::Interleaved) &&
      (d.pipelineParallel == 1 || d.virtualStages == 1))
    ctx.report({Opt::ModelPipelineSchedule, Opt::ModelPipelineModelParallelSize,
                Opt::ModelVirtualPipelineModelParallelSize},
               {d.pipelineParallel, d.virtualStages})
        .fix(ctx.fixRemove(Opt::ModelPipelineSchedule));
}

void ruleZeroBubbleNeeds(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.cfg().is(Opt::ModelPipelineSchedule, PipelineSchedule::ZeroBubble) &&
      (d.pipelineParallel == 1 || d.virtualStages > 1))
    ctx.report({Opt::ModelPipelineSchedule, Opt::ModelPipelineModelParallelSize,
                Opt::ModelVirtualPipelineModelParallelSize},
               {d.pipelineParallel, d.virtualStages})
        .fix(ctx.fixRemove(Opt::ModelPipelineSchedule));
}

void ruleSequenceDividesContext(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.contextParallel > 1 && d.seqLength % product({2, d.contextParallel}) != 0)
    ctx.report({Opt::ModelSeqLength, Opt::ModelContextParallelSize},
               {d.seqLength, d.contextParallel});
}

void ruleMtpTokenSlices(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  constexpr int64_t kWords = 4; // aligned addresses: 4 words
  if (!ctx.has(Opt::ModelMtpNumLayers) || d.contextParallel % 2 == 0 ||
      d.seqLength % d.contextParallel != 0 || d.microBatch >= INT64_MAX / d.seqLength)
    return;
  int64_t tokens = d.microBatch * (d.seqLength / d.contextParallel);
  if (d.contextParallel > 1 && tokens % kWords != 0)
    ctx.report({Opt::ModelMtpNumLayers, Opt::ModelContextParallelSize, Opt::ModelSeqLength,
                Opt::TrainMicroBatchSize},
               {tokens, d.contextParallel, kWords});
}

void ruleSequenceDividesTensor(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!ctx.on(Opt::ModelSequenceParallel) || d.seqLength % d.contextParallel != 0)
    return;
  int64_t local = d.seqLength / d.contextParallel;
  if (local % d.tensorParallel != 0)
    ctx.report({Opt::ModelSeqLength, Opt::ModelTensorModelParallelSize, Opt::ModelSequenceParallel,
                Opt::ModelContextParallelSize},
               {local, d.tensorParallel});
}

void ruleTpOverlapPieces(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!ctx.on(Opt::ModelTpCommOverlap) || !ctx.has(Opt::ModelTpCommOverlapPieces))
    return;
  int64_t pieces = ctx.num(Opt::ModelTpCommOverlapPieces);
  int64_t rows = product({d.microBatch, d.seqLength}) / d.contextParallel;
  if (rows % product({pieces, d.tensorParallel}) != 0)
    ctx.report(
           {Opt::ModelTpCommOverlapPieces, Opt::ModelTensorModelParallelSize, Opt::ModelSeqLength},
           {pieces, rows, d.tensorParallel})
        .fix(ctx.fixRemove(Opt::ModelTpCommOverlapPieces));
}

void ruleTpOverlapStages(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (d.pipelineParallel > 1 && ctx.on(Opt::ModelTpCommOverlap) &&
      ctx.has(Opt::ModelTpCommOverlapPieces))
    ctx.report({Opt::ModelTpCommOverlapPieces, Opt::ModelPipelineModelParallelSize},
               {ctx.num(Opt::ModelTpCommOverlapPieces), d.pipelineParallel})
        .fix(ctx.fixRemove(Opt::ModelTpCommOverlapPieces));
}

void ruleTpOverlapDoubleBuffer(RuleContext &ctx) {
  if (ctx.on(Opt::ModelTpCommOverlap) && ctx.has(Opt::ModelTpCommOverlapPieces) &&
      ctx.on(Opt::DdpFsdpDoubleBuffer))
    ctx.report({Opt::ModelTpCommOverlapPieces, Opt::DdpFsdpDoubleBuffer},
               {ctx.num(Opt::ModelTpCommOverlapPieces)})
        .fix(ctx.fixRemove(Opt::ModelTpCommOverlapPieces));
}

void ruleLearnedPositionsUnaligned(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  bool hasPieces = ctx.on(Opt::ModelTpCommOverlap) && ctx.has(Opt::ModelTpCommOverlapPieces);
  int64_t pieces = hasPieces ? ctx.num(Opt::ModelTpCommOverlapPieces) : 1;
  int64_t all = product({d.microBatch, d.seqLength}) / d.contextParallel;
  int64_t parts = product({d.tensorParallel, pieces});
  bool isSplit = ctx.on(Opt::ModelSequenceParallel) && all % parts == 0 &&
                 ctx.cfg().is(Opt::ModelPositionEmbeddingType, PositionEmbedding::LearnedAbsolute);
  if (int64_t own = all / parts; isSplit && own % 4 != 0)
    ctx.report({Opt::ModelSequenceParallel, Opt::ModelSeqLength, Opt::TrainMicroBatchSize,
                Opt::ModelTensorModelParallelSize, Opt::ModelTpCommOverlapPieces},
               {own});
}

void ruleLossChunkUnit(RuleContext &ctx) {
  Opt opt = Opt::ModelLossChunkRows;
  if (ctx.has(opt) && ctx.num(opt) % model::kLossChunkUnit != 0)
    ctx.report({opt}, {ctx.num(opt), model::kLossChunkUnit})
        .fix(ctx.fixSet(
            opt, Value::ofInt(ctx.num(opt) / model::kLossChunkUnit * model::kLossChunkUnit)));
}

void ruleLossChunksMany(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt opt = Opt::ModelLossChunkRows;
  if (!ctx.has(opt) || d.tensorParallel == 1)
    return;
  int64_t rows = product({d.microBatch, d.seqLength}) / d.contextParallel;
  int64_t chunks = (rows - 1) / ctx.num(opt) + 1;
  if (chunks <= model::kLossChunksMax)
    return;
  int64_t fewest =
      ((rows - 1) / (model::kLossChunksMax * model::kLossChunkUnit) + 1) * model::kLossChunkUnit;
  ctx.report({opt, Opt::ModelTensorModelParallelSize, Opt::ModelSeqLength, Opt::TrainMicroBatchSize,
              Opt::ModelContextParallelSize},
             {ctx.num(opt), rows, chunks, model::kLossChunksMax})
      .fix(ctx.fixSet(opt, Value::ofInt(fewest), FixItKind::Alternative))
      .fix(ctx.fixRemove(opt, FixItKind::Alternative));
}

void ruleLossChunksTied(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  Opt opt = Opt::ModelLossChunkRows;
  if (ctx.has(opt) && d.tensorParallel > 1 && ctx.has(Opt::ModelMtpNumLayers) && d.tied)
    ctx.report({opt, Opt::ModelTensorModelParallelSize, Opt::ModelMtpNumLayers,
                Opt::ModelShareEmbeddingsAndOutputWeights},
               {ctx.num(opt)})
        .fix(ctx.fixRemove(opt));
}

void ruleExpertsDivide(RuleContext &ctx) {
  divides(ctx, Opt::ModelNumMoeExperts, ctx.num(Opt::ModelNumMoeExperts),
          Opt::ModelExpertModelParallelSize, ctx.derived().expertParallel);
}

void ruleExpertsNeeded(RuleContext &ctx) {
  if (ctx.derived().expertParallel > 1 && !ctx.has(Opt::ModelNumMoeExperts))
    ctx.report({Opt::ModelExpertModelParallelSize, Opt::ModelNumMoeExperts},
               {ctx.derived().expertParallel});
}

void ruleRouterTopk(RuleContext &ctx) {
  if (ctx.has(Opt::ModelNumMoeExperts) &&
      ctx.num(Opt::ModelMoeRouterTopk) > ctx.num(Opt::ModelNumMoeExperts))
    ctx.report({Opt::ModelMoeRouterTopk, Opt::ModelNumMoeExperts},
               {ctx.num(Opt::ModelMoeRouterTopk), ctx.num(Opt::ModelNumMoeExperts)});
}

void ruleVocabPadded(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (!ctx.on(Opt::ModelShouldPadVocab) && d.vocab % d.tensorParallel != 0)
    ctx.report({Opt::ModelVocabSize, Opt::ModelShouldPadVocab, Opt::ModelTensorModelParallelSize},
               {d.vocab, d.tensorParallel})
        .fix(ctx.fixSet(Opt::ModelShouldPadVocab, Value::ofBool(true)));
}

void rulePositionsFit(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  if (ctx.cfg().is(Opt::ModelPositionEmbeddingType, PositionEmbedding::LearnedAbsolute) &&
      d.seqLength > d.maxPositions)
    ctx.report({Opt::ModelSeqLength, Opt::ModelMaxPositionEmbeddings},
               {d.seqLength, d.maxPositions});
}

void ruleDatasetSequence(RuleContext &ctx) {
  int64_t samples = ctx.cfg().getIntOr(Opt::DatasetSeqLength, ctx.derived().seqLength);
  if (samples != ctx.derived().seqLength)
    ctx.report({Opt::ModelSeqLength, Opt::DatasetSeqLength}, {ctx.derived().seqLength, samples})
        .fix(ctx.fixSet(Opt::DatasetSeqLength, Value::ofInt(ctx.derived().seqLength),
                        FixItKind::Alternative));
}

void ruleEvalBatchDivides(RuleContext &ctx) {
  Opt global = Opt::ValidationEvalGlobalBatchSize, micro = Opt::ValidationEvalMicroBatchSize;
  if (!ctx.has(global) && !ctx.has(micro))
    return;
  const Derived &d = ctx.derived();
  int64_t context =
      std::max<int64_t>(ctx.cfg().getIntOr(Opt::DistEvalContextParallelSize, d.contextParallel), 1);
  int64_t ranks = std::max<int64_t>(product({d.dataParallel, d.contextParallel}) / context, 1);
  int64_t batch = ctx.cfg().getIntOr(global, d.globalBatch);
  int64_t size = ctx.cfg().getIntOr(micro, d.microBatch);
  int64_t round = product({size, ranks});
  if (batch % round != 0)
    ctx.report({global, micro, Opt::TrainGlobalBatchSize, Opt::TrainMicroBatchSize},
               {batch, size, ranks, round});
}

void ruleEvalMicroBatchDiffers(RuleContext &ctx) {
  const Derived &d = ctx.derived();
  int64_t size = ctx.cfg().getIntOr(Opt::ValidationEvalMicroBatchSize, d.microBatch);
  bool isDivided = d.tensorParallel > 1 || d.contextParallel > 1 || d.pipelineParallel > 1;
  if (isDivided && size != d.microBatch)
    ctx.report({Opt::ValidationEvalMicroBatchSize, Opt::TrainMicroBatchSize}, {size, d.microBatch});
}

void ruleRotaryEven(RuleContext &ctx) {
  bool isYarn = ctx.cfg().is(Opt::ModelPositionEmbeddingType, PositionEmbedding::Yarn);
  if ((!isYarn && !ctx.cfg().is(Opt::ModelPositionEmbeddingType, PositionEmbedding::Rope)) ||
      ctx.on(Opt::ModelMultiLatentAttention) || !ctx.has(Opt::ModelKvChannels))
    return;
  double share = isYarn ? 1 : ctx.cfg().getFloatOr(Opt::ModelRotaryPercent, 1);
  // Another rule refuses larger sizes; the limit only avoids an overflow of 64 bits.
  int64_t size = std::min<int64_t>(ctx.derived().headSize, int64_t{1} << 40);
  int64_t rotated = static_cast<int64_t>(static_cast<double>(size) * share);
  if (rotated % 2 != 0 || rotated == 0)
    ctx.report({Opt::ModelKvChannels, Opt::ModelRotaryPercent, Opt::ModelHiddenSize,
                Opt::ModelNumAttentionHeads},
               {rotated, ctx.derived().headSize});
}

void ruleWindowSize(RuleContext &ctx) {
  Opt window = Opt::ModelWindowSize;
  if (!ctx.has(window))
    return;
  const Value::List &numbers = ctx.cfg().getList(window);
  bool isPair = numbers.size() == 2 && *numbers[0].asInt() >= -1;
  if (isPair && (*numbers[1].asInt() == 0 || *numbers[1].asInt() == -1))
    return;
  RuleReport report = ctx.report({window}, {arg(ctx, window)});
  if (isPair && *numbers[1].asInt() > 0)
    report.fix(ctx.fixSet(window, Value::ofList({numbers[0], Value::ofInt(0)})));
}

} // namespace shardc::config
