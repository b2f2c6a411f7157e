// Computes the derived values: sizes, degrees and element types that several parts of the compiler
// need. They depend only on the options.
#include <algorithm>
#include <cmath>

#include "compiler/config/Steps.h"

namespace shardc::config {

namespace {

DType toDType(FloatType type) {
  switch (type) {
  case FloatType::Fp32:
    return DType::F32;
  case FloatType::Bf16:
    return DType::BF16;
  case FloatType::Fp16:
    return DType::F16;
  case FloatType::Fp8:
    return DType::F8E4M3;
  }
  return DType::F32;
}

/// The type that an option names; `fallback` if it is auto or unset.
DType typeOr(const Config &cfg, Opt opt, DType fallback) {
  switch (cfg.getEnumOr(opt, FloatTypeOrAuto::Auto)) {
  case FloatTypeOrAuto::Auto:
    return fallback;
  case FloatTypeOrAuto::Fp32:
    return DType::F32;
  case FloatTypeOrAuto::Bf16:
    return DType::BF16;
  case FloatTypeOrAuto::Fp16:
    return DType::F16;
  }
  return fallback;
}

int64_t atLeastOne(int64_t value) { return std::max<int64_t>(value, 1); }

/// Products and rounding of numbers from a recipe must not overflow, so results that are too large
/// are replaced by a bound that rules refuse.
int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX / 4 : product;
}

int64_t ceilDivided(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Returns part * number, where `part` is at most 1. Doubles cannot represent all large integers,
/// so the result is at most `number`.
int64_t share(double part, int64_t number) {
  double result = part * static_cast<double>(number);
  return result < static_cast<double>(number) ? static_cast<int64_t>(result) : number;
}

/// Every degree is at least 1, so that divisions are defined even for a recipe that rules refuse.
void fillMesh(const Config &cfg, Derived &d) {
  auto degree = [&](Opt opt) { return atLeastOne(cfg.getIntOr(opt, 1)); };
  d.tensorParallel = degree(Opt::ModelTensorModelParallelSize);
  d.pipelineParallel = degree(Opt::ModelPipelineModelParallelSize);
  d.virtualStages = degree(Opt::ModelVirtualPipelineModelParallelSize);
  d.contextParallel = degree(Opt::ModelContextParallelSize);
  d.expertParallel = degree(Opt::ModelExpertModelParallelSize);
  d.expertTensorParallel =
      atLeastOne(cfg.getIntOr(Opt::ModelExpertTensorParallelSize, d.tensorParallel));
  d.dataParallelOuter = degree(Opt::DdpNumDistributedOptimizerInstances);
  d.nodes = degree(Opt::ClusterNodes);
  d.gpusPerNode = degree(Opt::ClusterGpusPerNode);
  d.worldSize = times(d.nodes, d.gpusPerNode);
  int64_t stage = atLeastOne(d.worldSize / d.pipelineParallel);
  d.dataParallel = atLeastOne(stage / times(d.tensorParallel, d.contextParallel));
  d.shardGroup = atLeastOne(times(d.dataParallel, d.contextParallel) / d.dataParallelOuter);
  d.expertDataParallel = atLeastOne(stage / times(d.expertParallel, d.expertTensorParallel));
}

/// Like upstream: an epoch has a whole number of steps, and the run has the requested number of
/// epochs.
int64_t stepsOfEpochs(const Config &cfg, const Derived &d) {
  if (!cfg.lengths() || !cfg.lengths()->train)
    return 0;
  double steps = std::ceil(cfg.getFloat(Opt::TrainNumEpochs) *
                           static_cast<double>(ceilDivided(*cfg.lengths()->train, d.globalBatch)));
  return steps < std::ldexp(1.0, 62) ? static_cast<int64_t>(steps) : INT64_MAX / 4;
}

/// Fills in the numbers of a rank's evaluations. They stay 0 for whole data sets of unknown length.
void fillEvaluation(const Config &cfg, Derived &d) {
  d.evalMicroBatch = atLeastOne(cfg.getIntOr(Opt::ValidationEvalMicroBatchSize, d.microBatch));
  int64_t round = times(d.evalMicroBatch, d.dataParallel);
  if (cfg.isOn(Opt::ValidationFullValidation)) {
    if (cfg.lengths() && cfg.lengths()->valid)
      d.evalMicrobatches = ceilDivided(*cfg.lengths()->valid, round);
    return;
  }
  int64_t batch = cfg.getIntOr(Opt::ValidationEvalGlobalBatchSize, d.globalBatch);
  d.evalMicrobatches = times(cfg.getIntOr(Opt::ValidationEvalIters, 0), atLeastOne(batch / round));
}

/// Fills in the batch sizes if they change. Other derived values refer to the last size.
void fillPhases(const Config &cfg, Derived &d) {
  if (!cfg.has(Opt::TrainTrainSamples) || cfg.has(Opt::TrainTrainIters))
    return;
  d.phases = phasesOf(cfg, cfg.getInt(Opt::TrainTrainSamples));
  if (d.phases.empty())
    return;
  d.phase = d.phases.back();
  d.numMicrobatches = atLeastOne(d.phase->size / times(d.microBatch, d.dataParallel));
}

void fillDocuments(const Config &cfg, Derived &d) {
  bool reads = cfg.has(Opt::DatasetKind) && !cfg.is(Opt::DatasetKind, DatasetKind::Synthetic);
  if (reads && cfg.isOn(Opt::DatasetInterDocumentMasking))
    d.splitting = Opt::DatasetInterDocumentMasking;
  if (cfg.has(Opt::PreferenceLoss)) // both answers of a pair are separate documents
    d.splitting = Opt::PreferenceLoss;
  if (cfg.is(Opt::DatasetKind, DatasetKind::Packed))
    d.splitting = Opt::DatasetKind;
  d.splitsDocuments =
      d.splitting != Opt::DatasetResetAttentionMask || cfg.isOn(Opt::DatasetResetAttentionMask);
}

void fillSteps(const Config &cfg, Derived &d) {
  fillPhases(cfg, d);
  d.trainIters = cfg.getIntOr(Opt::TrainTrainIters, 0);
  if (d.phase)
    d.trainIters = d.phase->lastStep();
  if (d.trainIters == 0 && cfg.has(Opt::TrainTrainSamples))
    d.trainIters = cfg.getInt(Opt::TrainTrainSamples) / d.globalBatch;
  if (d.trainIters == 0 && cfg.has(Opt::TrainNumEpochs))
    d.trainIters = stepsOfEpochs(cfg, d);
}

void fillSchedule(const Config &cfg, Derived &d) {
  // Rounds samples to steps; a rule reports samples that are not whole steps.
  auto length = [&](Opt iters, Opt samples, int64_t otherwise) {
    int64_t counted = cfg.getIntOr(samples, 0);
    if (d.phase)
      return counted > 0 ? counted : otherwise;
    if (counted <= 0 || !cfg.has(Opt::TrainTrainSamples))
      return cfg.getIntOr(iters, otherwise);
    return atLeastOne(counted / d.globalBatch + (counted % d.globalBatch > d.globalBatch / 2));
  };
  int64_t run = d.phase ? cfg.getInt(Opt::TrainTrainSamples) : d.trainIters;
  d.decayLength = length(Opt::SchedulerLrDecayIters, Opt::SchedulerLrDecaySamples, run);
  d.warmupLength = length(Opt::SchedulerLrWarmupIters, Opt::SchedulerLrWarmupSamples, 0);
  if (cfg.has(Opt::TrainTrainSamples) && d.warmupLength >= d.decayLength) // upstream's cap
    d.warmupLength = std::max<int64_t>(d.decayLength - 1, 0);
  d.wsdDecayLength = length(Opt::SchedulerLrWsdDecayIters, Opt::SchedulerLrWsdDecaySamples, 0);
  if (d.warmupLength == 0 && cfg.has(Opt::SchedulerLrWarmupFraction))
    d.warmupLength = share(cfg.getFloat(Opt::SchedulerLrWarmupFraction), d.decayLength);
  double decay = cfg.getFloatOr(Opt::OptimizerWeightDecay, 0);
  d.startWeightDecay = cfg.getFloatOr(Opt::SchedulerStartWeightDecay, decay);
  d.endWeightDecay = cfg.getFloatOr(Opt::SchedulerEndWeightDecay, decay);
}

void fillBatches(const Config &cfg, Derived &d) {
  d.microBatch = atLeastOne(cfg.getIntOr(Opt::TrainMicroBatchSize, 1));
  int64_t round = times(d.microBatch, d.dataParallel);
  d.globalBatch = atLeastOne(cfg.getIntOr(Opt::TrainGlobalBatchSize, round));
  d.numMicrobatches = atLeastOne(d.globalBatch / round);
  fillEvaluation(cfg, d);
  fillSteps(cfg, d);
  fillSchedule(cfg, d);
}

void fillModel(const Config &cfg, Derived &d) {
  fillDocuments(cfg, d);
  d.family = cfg.getEnumOr(Opt::ModelFamily, ModelFamily::Gpt);
  d.numLayers = atLeastOne(cfg.getIntOr(Opt::ModelNumLayers, 1));
  d.hidden = atLeastOne(cfg.getIntOr(Opt::ModelHiddenSize, 1));
  d.ffnHidden = atLeastOne(cfg.getIntOr(Opt::ModelFfnHiddenSize, times(4, d.hidden)));
  d.numHeads = atLeastOne(cfg.getIntOr(Opt::ModelNumAttentionHeads, 1));
  d.numGroups = atLeastOne(cfg.getIntOr(Opt::ModelNumQueryGroups, d.numHeads));
  d.headSize = atLeastOne(cfg.getIntOr(Opt::ModelKvChannels, d.hidden / d.numHeads));
  d.seqLength = atLeastOne(cfg.getIntOr(Opt::ModelSeqLength, 1));
  d.maxPositions = atLeastOne(cfg.getIntOr(Opt::ModelMaxPositionEmbeddings, d.seqLength));
  d.vocab = atLeastOne(cfg.getIntOr(Opt::ModelVocabSize, 1));
  int64_t multiple =
      times(atLeastOne(cfg.getIntOr(Opt::ModelMakeVocabSizeDivisibleBy, 1)), d.tensorParallel);
  d.paddedVocab = d.vocab;
  if (cfg.isOn(Opt::ModelShouldPadVocab) && d.vocab % multiple != 0)
    d.paddedVocab = times(d.vocab / multiple + 1, multiple);
  d.gated = cfg.isOn(Opt::ModelGatedLinearUnit);
  d.tied = cfg.isOn(Opt::ModelShareEmbeddingsAndOutputWeights);
}

void fillSharding(const Config &cfg, Derived &d) {
  d.torchFsdp2 = cfg.isOn(Opt::DistUseTorchFsdp2);
  d.fsdp = cfg.isOn(Opt::DistUseMegatronFsdp) || cfg.isOn(Opt::DdpUseMegatronFsdp) ||
           cfg.isOn(Opt::DdpUseCustomFsdp);
  d.distributedOptimizer =
      cfg.isOn(Opt::DdpUseDistributedOptimizer) || cfg.isOn(Opt::OptimizerUseDistributedOptimizer);
  d.outerStrategy = cfg.getEnumOr(Opt::DdpOuterDpShardingStrategy, OuterStrategy::NoShard);
  if (d.fsdp)
    d.strategy =
        cfg.getEnumOr(Opt::DdpDataParallelShardingStrategy, ShardingStrategy::OptimGradsParams);
  else if (d.torchFsdp2)
    d.strategy = cfg.isOn(Opt::DistTorchFsdp2ReshardAfterForward)
                     ? ShardingStrategy::OptimGradsParams
                     : ShardingStrategy::OptimGrads;
  else
    d.strategy = d.distributedOptimizer ? ShardingStrategy::Optim : ShardingStrategy::NoShard;
}

/// Whether bf16 parameters are the upper halves of their masters.
bool keepsRemainders(const Config &cfg, const Derived &d) {
  return cfg.isOn(Opt::OptimizerUsePrecisionAwareOptimizer) &&
         cfg.isOn(Opt::OptimizerStoreParamRemainders) &&
         cfg.is(Opt::OptimizerOptimizer, OptimizerKind::Adam) && d.params == DType::BF16 &&
         d.master == DType::F32;
}

void fillTypes(const Config &cfg, Derived &d) {
  bool isHalf = cfg.isOn(Opt::ModelBf16) || cfg.isOn(Opt::ModelFp16);
  d.compute = cfg.isOn(Opt::ModelBf16)   ? DType::BF16
              : cfg.isOn(Opt::ModelFp16) ? DType::F16
                                         : DType::F32;
  // Without a half-precision model, weights are fp32 regardless of params_dtype; a rule reports it.
  d.params = isHalf ? toDType(cfg.getEnumOr(Opt::ModelParamsDtype, FloatType::Fp32)) : DType::F32;
  DType wire = cfg.isOn(Opt::DdpGradReduceInFp32) ? DType::F32 : d.compute;
  d.mainGrads = d.fsdp ? typeOr(cfg, Opt::DdpMegatronFsdpMainGradsDtype, DType::F32) : DType::F32;
  // Like upstream: if gradients are accumulated in fewer bits, they are also communicated in that
  // type, unless its option is set.
  if (dtypeBytes(d.mainGrads) < dtypeBytes(wire))
    wire = d.mainGrads;
  d.wire = d.fsdp ? typeOr(cfg, Opt::DdpMegatronFsdpGradCommDtype, wire) : wire;
  d.master = DType::F32;
  if (d.fsdp)
    d.master = typeOr(cfg, Opt::DdpMegatronFsdpMainParamsDtype, d.params);
  d.masterBytes = d.params == d.master ? 0 : dtypeBytes(d.master);
  if (keepsRemainders(cfg, d))
    d.masterBytes -= dtypeBytes(d.params);
  d.expAvg = toDType(cfg.getEnumOr(Opt::OptimizerExpAvgDtype, FloatType::Fp32));
  d.expAvgSq = toDType(cfg.getEnumOr(Opt::OptimizerExpAvgSqDtype, FloatType::Fp32));
}

} // namespace

Derived computeDerived(const Config &cfg) {
  Derived d;
  fillMesh(cfg, d);
  fillBatches(cfg, d);
  fillModel(cfg, d);
  fillSharding(cfg, d);
  fillTypes(cfg, d);
  if (cfg.has(Opt::ClusterGpu))
    d.gpu = cfg.getEnum<Gpu>(Opt::ClusterGpu);
  d.memoryBytes = cfg.getIntOr(Opt::ClusterMemory, 0);
  return d;
}

} // namespace shardc::config
