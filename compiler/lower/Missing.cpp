// Lists the requested features of a configuration that no op implements. A recipe without such
// features must compile, and its plan must run: test/random/run.py tests this with random recipes.
#include <llvm/ADT/STLExtras.h>

#include "compiler/config/Evaluate.h"
#include "compiler/lower/Family.h"
#include "compiler/lower/Lower.h"
#include "runtime/plan/Optimizers.h"

namespace shardc::lower {
namespace {

using config::Config;
using config::Opt;

/// Whether the option has a value that is not its default.
bool asksFor(const Config &config, Opt option) {
  if (!config.has(option) || config[option].from.origin == config::Origin::Default)
    return false;
  const config::OptionInfo &info = config::info(option);
  return !info.hasDefault() ||
         config[option].value != config::parseTableValue(info.defaultText, info);
}

/// Reports unsupported features of models with experts, by `need(asked, what, option)`.
template <typename Need> void needOfExperts(const Config &config, Need need) {
  const config::Derived &d = config.derived();
  if (!config.has(Opt::ModelNumMoeExperts))
    return;
  // Otherwise each rank would send the same tokens to experts. Upstream's layers also refuse to
  // train then.
  need(d.tensorParallel > 1 && !config.isOn(Opt::ModelSequenceParallel),
       "tensor parallelism without sequence parallelism in a model with experts",
       Opt::ModelTensorModelParallelSize);
  // Upstream asserts that the shared expert has no biases.
  for (Opt biases : {Opt::ModelAddBiasLinear, Opt::ModelAddMlpBias})
    need(config.isOn(biases) && config.has(Opt::ModelMoeSharedExpertIntermediateSize),
         "a bias in the shared expert", biases);
  need(config.is(Opt::ModelMoeRouterDtype, config::RouterType::Fp64), "a router in fp64",
       Opt::ModelMoeRouterDtype);
}

/// Reports unsupported features of multi-token prediction.
template <typename Need> void needOfPredictions(const Config &config, Need need) {
  if (!config.has(Opt::ModelMtpNumLayers))
    return;
  const config::Derived &d = config.derived();
  need(config.getInt(Opt::ModelMtpNumLayers) >= d.seqLength,
       "predicting tokens beyond the end of the sequence", Opt::ModelMtpNumLayers);
  // Upstream asserts the same.
  need(config.is(Opt::ModelRecomputeGranularity, config::RecomputeGranularity::Full) &&
           config.is(Opt::ModelRecomputeMethod, config::RecomputeMethod::Uniform) &&
           config.getIntOr(Opt::ModelRecomputeNumLayers, 1) != 1,
       "recomputing several layers at a time with multi-token prediction",
       Opt::ModelRecomputeNumLayers);
}

/// Reports unsupported features of norms, except those before attention and the feed-forward layer.
template <typename Need> void needOfNorms(const Config &config, Need need) {
  bool isOfAllHeads =
      config.isOn(Opt::ModelQkLayernorm) && config.isOn(Opt::ModelQkLayernormFullWidth);
  // Only rmsnorm has an op for rows that are sharded over ranks.
  need(isOfAllHeads && config.derived().tensorParallel > 1 &&
           config.is(Opt::ModelNormalization, config::Normalization::LayerNorm),
       "a layer norm over the heads of several tensor-parallel ranks",
       Opt::ModelQkLayernormFullWidth);
  need(isOfAllHeads && config.isOn(Opt::ModelMultiLatentAttention),
       "a norm over all heads of latent attention", Opt::ModelQkLayernormFullWidth);
  need(config.isOn(Opt::ModelQkLayernormAfterRotation) &&
           (isOfAllHeads || config.isOn(Opt::ModelMultiLatentAttention)),
       "a norm of rotated queries and keys that is not over each head",
       Opt::ModelQkLayernormAfterRotation);
  need(config.isOn(Opt::ModelQkL2Norm) && config.isOn(Opt::ModelQkLayernorm),
       "combining both norms of queries and keys", Opt::ModelQkL2Norm);
  // Without norms, nothing would convert the fp32 residual to the type of activations.
  need(!config.isOn(Opt::ModelPreLayernorm) && config.isOn(Opt::ModelFp32ResidualConnection),
       "an fp32 residual stream that layers read without a norm", Opt::ModelPreLayernorm);
}

/// Reports unsupported features of layers that differ in how they use positions.
template <typename Need> void needOfPositions(const Config &config, Need need) {
  need(config.isOn(Opt::ModelAttnTemperatureTuning) &&
           config.is(Opt::DatasetKind, config::DatasetKind::Packed),
       "queries scaled by positions that begin again with each row of a pack",
       Opt::ModelAttnTemperatureTuning);
}

/// Reports entries of 'model.freeze' and 'peft.modules_to_save' that name no parameter, and models
/// that train none.
template <typename Need> void needOfFrozen(const Config &config, Need need) {
  const model::Frozen frozen = frozenOf(config);
  if (frozen.entries.empty())
    return;
  const model::Decoder decoder = decoderOf(config);
  const std::vector<model::Unit> units = decoder.units();
  bool isAllFrozen = true;
  std::vector<bool> isUsed(frozen.entries.size());
  const std::vector<model::UnitParams> params = model::paramsOfUnits(units, frozen);
  int64_t layer = -1;
  for (size_t u = 0; u < units.size(); ++u) {
    layer += units[u].kind == plan::UnitKind::Layer ? 1 : 0;
    for (size_t p = 0; p < params[u].params.size(); ++p) {
      const model::ParamSpec &param = params[u].params[p];
      isAllFrozen &= params[u].isFrozen[p] != 0;
      for (size_t e = 0; e < isUsed.size(); ++e)
        if (frozen.entries[e].names(param.kind, param.name, units[u].kind, layer))
          isUsed[e] = true;
    }
  }
  const Opt option = frozen.isInverse ? Opt::PeftModulesToSave : Opt::ModelFreeze;
  for (size_t e = 0; e < isUsed.size(); ++e)
    need(!isUsed[e] && (frozen.isInverse || !frozen.entries[e].module.empty()),
         fmt::format("the entry '{}', since no parameter of this model has this name",
                     model::frozenText(frozen.entries[e])),
         option);
  need(isAllFrozen, "a model without trained parameters", Opt::ModelFreeze);
}

} // namespace

/// Each entry has the words for the message and the option that asks for the feature. The order is
/// that in which messages appear.
std::vector<Missing> findMissing(const Config &config) {
  const config::Derived &d = config.derived();
  std::vector<Missing> missing;
  auto need = [&](bool asked, std::string what, Opt option) {
    if (asked)
      missing.push_back({std::move(what), option});
  };
  needOfExperts(config, need);
  needOfPredictions(config, need);
  need(!activationOp(config),
       fmt::format("{}activation '{}'", d.gated ? "gated " : "",
                   config::toRecipeText(config, Opt::ModelActivationFunc)),
       Opt::ModelActivationFunc);
  // Other gated activations have neither a clamp nor an offset.
  bool isQuick = activationOp(config) == plan::OpKind::QuickGeGlu;
  need(!isQuick && asksFor(config, Opt::ModelGluLinearOffset),
       "a linear offset with this activation", Opt::ModelGluLinearOffset);
  need(!isQuick && asksFor(config, Opt::ModelActivationFuncClampValue),
       "clamping of this activation", Opt::ModelActivationFuncClampValue);
  using config::AttentionVariant;
  const Opt variant = Opt::ModelExperimentalAttentionVariant;
  need(config.is(variant, AttentionVariant::Gdn2) || config.is(variant, AttentionVariant::Dsa),
       "this attention variant", variant);
  need(config.has(Opt::ModelHybridLayerPattern) && config.getIntOr(Opt::ModelMtpNumLayers, 0) > 0,
       "multi-token prediction of a model with a pattern of layers", Opt::ModelMtpNumLayers);
  needOfNorms(config, need);
  needOfPositions(config, need);
  using config::CkptFormat;
  need(config.has(Opt::CheckpointSave) &&
           (config.is(Opt::CheckpointCkptFormat, CkptFormat::Torch) ||
            config.is(Opt::CheckpointCkptFormat, CkptFormat::Zarr)),
       fmt::format("saving checkpoints of format '{}'",
                   config::toRecipeText(config, Opt::CheckpointCkptFormat)),
       Opt::CheckpointCkptFormat);
  const Opt fine = Opt::ModelFineGrainedActivationOffloading;
  need(config.has(Opt::ModelOffloadLayers) &&
           (d.pipelineParallel > 1 || config.isOn(Opt::ModelOverlapMoeExpertParallelComm)),
       "moving activations of a pipeline, or of overlapping microbatches, to the host",
       config.isOn(fine) ? fine : Opt::ModelOffloadLayers);
  needOfFrozen(config, need);
  for (const config::OptionInfo &option : config::options())
    need(!option.feature.empty() && asksFor(config, option.opt), option.feature.str(), option.opt);
  using config::OptimizerKind;
  auto optimizer = config.getEnumOr(Opt::OptimizerOptimizer, OptimizerKind::Adam);
  need(optimizer != OptimizerKind::DistMuon &&
           !plan::findOptimizer(config::spelling(optimizer).str()),
       fmt::format("optimizer '{}'", config::toRecipeText(config, Opt::OptimizerOptimizer)),
       Opt::OptimizerOptimizer);
  return missing;
}

} // namespace shardc::lower
