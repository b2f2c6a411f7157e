// A table has one row per compared option, with the name of the argument in a checkpoint and the
// condition under which it matters.
#include "runtime/save/ModelDifferences.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "runtime/base/Reports.h"

namespace shardc::save {
namespace {

using checkpoint::findEntry;
using checkpoint::PlainEntries;
using checkpoint::PlainValue;
using plan::JobField;

/// The condition under which an option affects the model's computation. IfDropped is for options
/// that only remove parameters: those that the run lacks would be dropped. Parameters that the
/// checkpoint lacks are found as missing tensors.
enum class Matters : uint8_t {
  Always,
  Heads, ///< without latent attention, whose heads have other sizes
  Rotated,
  Scaled,
  Yarn,
  Latent,
  LatentYarn,
  Windowed,
  Gelu,
  Experts,
  Biased,  ///< without biases of all linear layers
  Softmax, ///< softmax scores of experts
  Grouped, ///< groups of experts
  IfDropped,
};

struct Compared {
  JobField field;
  Matters matters = Matters::Always;
  bool isDefaultIfSilent = false; ///< missing in a checkpoint with num_layers: the default
  const char *upstream = nullptr; ///< Megatron's name if it differs
  bool isNegated = false;         ///< whether Megatron's option has the opposite meaning
};

constexpr Compared kCompared[] = {
    {JobField::model_numQueryGroups, Matters::Heads},
    {JobField::model_kvChannels, Matters::Heads},
    {JobField::model_normalization},
    {JobField::model_layernormEpsilon, Matters::Always, false, "norm_epsilon"},
    {JobField::model_layernormZeroCenteredGamma, Matters::Always, false, "apply_layernorm_1p"},
    {JobField::model_activationFunc},
    {JobField::model_gatedLinearUnit, Matters::Always, false, "swiglu"},
    {JobField::model_biasActivationFusion, Matters::Gelu},
    {JobField::model_addBiasLinear, Matters::IfDropped},
    {JobField::model_addQkvBias, Matters::Biased},
    {JobField::model_addAttnProjBias, Matters::Biased},
    {JobField::model_addMlpBias, Matters::Biased},
    {JobField::model_qkLayernorm, Matters::IfDropped},
    {JobField::model_preLayernorm, Matters::IfDropped},
    {JobField::model_postSelfAttnLayernorm, Matters::IfDropped},
    {JobField::model_postMlpLayernorm, Matters::IfDropped},
    {JobField::model_positionEmbeddingType},
    {JobField::model_rotaryBase, Matters::Rotated},
    {JobField::model_rotaryPercent, Matters::Rotated},
    {JobField::model_rotaryInterleaved, Matters::Rotated},
    {JobField::model_ropeScaling, Matters::Rotated, false, "use_rope_scaling"},
    {JobField::model_ropeScalingFactor, Matters::Scaled},
    {JobField::model_windowSize, Matters::Always, true},
    {JobField::model_windowAttnSkipFreq, Matters::Windowed, true},
    {JobField::model_windowRotaryBase, Matters::Windowed, true},
    {JobField::model_attentionChunkSize, Matters::Always, true},
    {JobField::model_noRopeFreq, Matters::Rotated, true},
    {JobField::model_qkL2Norm},
    {JobField::model_attnTemperatureTuning},
    {JobField::model_attnFloorScale},
    {JobField::model_attnScale},
    {JobField::model_scaleEmbeddings},
    {JobField::model_softmaxScale, Matters::Always, true},
    {JobField::model_attnLogitSoftcapping, Matters::Always, true},
    {JobField::model_finalLogitSoftcapping, Matters::Always, true},
    {JobField::model_softmaxType},
    {JobField::model_activationFuncClampValue, Matters::Always, true},
    {JobField::model_gluLinearOffset, Matters::Always, true},
    {JobField::model_seqLenInterpolationFactor, Matters::Rotated, true,
     "rotary_seq_len_interpolation_factor"},
    {JobField::model_yarnRotaryScalingFactor, Matters::Yarn},
    {JobField::model_yarnOriginalMaxPositionEmbeddings, Matters::Yarn},
    {JobField::model_yarnBetaFast, Matters::Yarn, true},
    {JobField::model_yarnBetaSlow, Matters::Yarn, true},
    {JobField::model_yarnMscale, Matters::Yarn, true},
    {JobField::model_yarnMscaleAllDim, Matters::Yarn, true},
    {JobField::model_yarnCorrectionRangeRoundToInt, Matters::Yarn},
    {JobField::model_ropeType, Matters::Latent},
    {JobField::model_qkPosEmbHeadDim, Matters::Latent},
    {JobField::model_mscaleAllDim, Matters::Latent},
    {JobField::model_mscale, Matters::LatentYarn},
    {JobField::model_rotaryScalingFactor, Matters::LatentYarn},
    {JobField::model_originalMaxPositionEmbeddings, Matters::LatentYarn},
    {JobField::model_betaFast, Matters::LatentYarn},
    {JobField::model_betaSlow, Matters::LatentYarn},
    {JobField::model_moeRouterTopk, Matters::Experts},
    {JobField::model_moeRouterScoreFunction, Matters::Experts},
    {JobField::model_moeRouterPreSoftmax, Matters::Softmax},
    {JobField::model_moeRouterGroupTopk, Matters::Experts},
    {JobField::model_moeRouterNumGroups, Matters::Grouped},
    {JobField::model_moeRouterTopkScalingFactor, Matters::Experts},
    {JobField::model_moeRouterEnableExpertBias, Matters::IfDropped},
    {JobField::model_moeSharedExpertIntermediateSize, Matters::Experts},
    {JobField::model_moeSharedExpertGate, Matters::IfDropped},
    {JobField::model_moeApplyProbsOnInput, Matters::Experts},
    {JobField::model_shareEmbeddingsAndOutputWeights, Matters::Always, false,
     "untie_embeddings_and_output_weights", true},
};
constexpr const char *kVocabulary = "model.vocab_size", *kAlpha = "peft.alpha",
                     *kTargetAlphas = "peft.target_alphas", *kRslora = "peft.rslora",
                     *kScheme = "peft.scheme";
constexpr const char *kNotSet = "not set";

std::string_view lastSegment(std::string_view path) { return path.substr(path.rfind('.') + 1); }

std::string numberText(double value) { return fmt::format("{}", value); }

/// Alphas by the target that names their layers.
std::string alphasText(const std::map<std::string, double> &alphas) {
  std::string text;
  for (const auto &[target, alpha] : alphas)
    text += fmt::format("{}{} of '{}'", text.empty() ? "" : ", ", alpha, target);
  return text.empty() ? kNotSet : text;
}

std::string ownText(const plan::Job &job, JobField field) {
  // Zero means that a number was never set.
  std::string text = std::visit(
      [](const auto &v) -> std::string {
        using Type = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<Type, bool>)
          return v ? "true" : "false";
        else if constexpr (std::is_same_v<Type, std::string>)
          return v.empty() ? kNotSet : v;
        else if constexpr (std::is_same_v<Type, std::vector<std::string>>)
          return v.empty()       ? kNotSet
                 : v.size() == 1 ? v.front()
                                 : fmt::format("[{}]", fmt::join(v, ", "));
        else
          return numberText(static_cast<double>(v));
      },
      job.value(field));
  return text == "0" && !job.has(field) ? kNotSet : text;
}

/// The value in the checkpoint; nothing if it has none.
std::optional<std::string> savedText(const PlainEntries &args, const Compared &row) {
  if (const PlainValue *value = findEntry(args, lastSegment(plan::jobInfo(row.field).path)))
    return comparedText(*value, kNotSet);
  const PlainValue *value = row.upstream != nullptr ? findEntry(args, row.upstream) : nullptr;
  if (value == nullptr)
    return std::nullopt;
  const bool *flag = value->as<bool>();
  return flag != nullptr && row.isNegated ? (*flag ? "false" : "true")
                                          : comparedText(*value, kNotSet);
}

/// Whether the option changes what this model computes. An option of a feature that the model does
/// not use is not compared.
bool matters(const Compared &row, const plan::Job &job, const PlainEntries &args) {
  auto isOn = [&](const char *name) {
    const PlainValue *value = findEntry(args, name);
    return value != nullptr && value->as<bool>() != nullptr && *value->as<bool>();
  };
  using Position = plan::Job::PositionEmbedding;
  const plan::Job::Model &model = job.model;
  bool isYarn = model.positionEmbeddingType == Position::Yarn;
  bool isRotated = model.positionEmbeddingType == Position::Rope || isYarn;
  bool isLatentYarn = model.multiLatentAttention && model.ropeType == plan::Job::RopeType::Yarn;
  bool hasExperts = model.numMoeExperts > 0;
  switch (row.matters) {
  case Matters::Always:
  case Matters::IfDropped:
    return true;
  case Matters::Biased:
    return !model.addBiasLinear;
  case Matters::Rotated:
    return isRotated;
  case Matters::Scaled:
    return isRotated && job.model.ropeScaling && (isOn("rope_scaling") || isOn("use_rope_scaling"));
  case Matters::Yarn:
    return isYarn;
  case Matters::Latent:
    return model.multiLatentAttention;
  case Matters::Heads:
    return !model.multiLatentAttention;
  case Matters::LatentYarn:
    return isLatentYarn;
  case Matters::Windowed:
    return !model.windowSize.empty();
  case Matters::Experts:
    return hasExperts;
  case Matters::Softmax:
    return hasExperts && model.moeRouterScoreFunction == plan::Job::RouterScore::Softmax;
  case Matters::Grouped:
    return hasExperts && model.moeRouterGroupTopk > 0;
  case Matters::Gelu:
    return job.model.activationFunc == plan::Job::Activation::Gelu;
  }
  return true;
}

/// Compares two values. A number that is not set counts as zero, and a factor that is not set as
/// one. A pattern for every n-th layer counts as not set if there are fewer layers.
bool isSame(const plan::Job &job, JobField field, const std::string &saved,
            const std::string &ours) {
  bool isPattern =
      field == JobField::model_noRopeFreq || field == JobField::model_windowAttnSkipFreq;
  bool isFactor = field == JobField::model_seqLenInterpolationFactor ||
                  field == JobField::model_moeRouterTopkScalingFactor;
  auto plain = [&](const std::string &text) {
    bool isBeyond = isPattern && std::atoll(text.c_str()) > job.model.numLayers;
    return text == "0" || (isFactor && text == "1") || isBeyond ? std::string(kNotSet) : text;
  };
  return plain(saved) == plain(ours);
}

bool isCompared(std::string_view option) {
  constexpr std::string_view kOthers[] = {kVocabulary, kAlpha, kTargetAlphas, kRslora, kScheme};
  return std::ranges::find(kOthers, option) != std::end(kOthers) ||
         std::ranges::any_of(kCompared, [&](const Compared &row) {
           return plan::jobInfo(row.field).path == option;
         });
}

std::string joined(const std::vector<ModelDifference> &found, const char *pattern) {
  std::string text;
  for (const ModelDifference &one : found)
    text += fmt::format(fmt::runtime(pattern), one.option, one.saved, one.ours);
  return text;
}

} // namespace

std::vector<ModelDifference> modelDifferences(const plan::Job &job,
                                              const checkpoint::RunState &state) {
  std::vector<ModelDifference> found;
  const plan::Job silent{};
  bool namesLayers = findEntry(state.args, "num_layers") != nullptr;
  for (const Compared &row : kCompared) {
    if (!matters(row, job, state.args))
      continue;
    std::optional<std::string> saved = savedText(state.args, row);
    if (!saved && row.isDefaultIfSilent && namesLayers)
      saved = ownText(silent, row.field);
    std::string ours = ownText(job, row.field);
    bool isLacking =
        (row.matters == Matters::IfDropped || row.matters == Matters::Biased) && saved != "true";
    if (saved && !isSame(job, row.field, *saved, ours) && !isLacking)
      found.push_back({std::string(plan::jobInfo(row.field).path), *saved, ours});
  }
  return found;
}

void addDroppedTensors(const plan::Job &job, const checkpoint::RunState &state, bool hasOutput,
                       int64_t rows, std::vector<ModelDifference> &found) {
  const std::string tied(plan::jobInfo(JobField::model_shareEmbeddingsAndOutputWeights).path);
  bool isTied = job.model.shareEmbeddingsAndOutputWeights;
  if (isTied && hasOutput &&
      std::ranges::find(found, tied, &ModelDifference::option) == found.end())
    found.push_back({tied, "false", "true"});
  auto wholeOr = [&](const char *name, int64_t otherwise) {
    const PlainValue *value = findEntry(state.args, name);
    return value != nullptr ? value->wholeNumber().value_or(otherwise) : otherwise;
  };
  int64_t ours = job.model.vocabSize, saved = wholeOr("vocab_size", 0);
  constexpr int64_t kDivisor = 128, kRanksMax = 1 << 20; // defaults of Megatron
  int64_t step =
      std::clamp<int64_t>(wholeOr("make_vocab_size_divisible_by", kDivisor), 1, kRanksMax) *
      std::clamp<int64_t>(wholeOr("tensor_model_parallel_size", 1), 1, kRanksMax);
  if (ours > 0 && saved > ours)
    found.push_back({kVocabulary, std::to_string(saved), std::to_string(ours)});
  else if (ours > 0 && saved <= 0 && rows - ours >= step) // more rows than padding can add
    found.push_back(
        {kVocabulary, fmt::format("{} rows of embeddings", rows), std::to_string(ours)});
}

void addAdapterDifferences(const plan::Job &job, const checkpoint::PeftSettings &saved,
                           std::vector<ModelDifference> &found) {
  const std::string scheme = job.text(plan::JobField::peft_scheme);
  if (saved.isDora() && scheme != saved.scheme) // the run would train without DoRA
    found.push_back({kScheme, saved.scheme, scheme});
  if (saved.alpha != job.peft.alpha)
    found.push_back({kAlpha, numberText(saved.alpha), numberText(job.peft.alpha)});
  std::map<std::string, double> ours, theirs;
  for (size_t i = 0; i < job.peft.targetAlphas.size() && i < job.peft.targets.size(); ++i)
    ours[job.peft.targets[i]] = std::strtod(job.peft.targetAlphas[i].c_str(), nullptr);
  for (size_t i = 0; i < saved.targetAlphas.size(); ++i)
    theirs[saved.targets[i]] = saved.targetAlphas[i];
  if (ours != theirs)
    found.push_back({kTargetAlphas, alphasText(theirs), alphasText(ours)});
  if (saved.isRslora != job.peft.rslora)
    found.push_back(
        {kRslora, saved.isRslora ? "true" : "false", saved.isRslora ? "false" : "true"});
}

Status judgeDifferences(const plan::Job &job, const std::string &folder,
                        const std::vector<ModelDifference> &found, const ReportSink &emit) {
  const std::vector<std::string> &accepted = job.checkpoint.acceptDifferences;
  for (const std::string &option : accepted)
    if (!isCompared(option))
      return makeStatus(report::DifferenceUnknown, option);
  std::vector<ModelDifference> taken, refused;
  for (const ModelDifference &one : found)
    (std::ranges::find(accepted, one.option) != accepted.end() ? taken : refused).push_back(one);
  constexpr const char *kLine = "\n  {}: {} in the checkpoint, {} in the recipe";
  if (!refused.empty()) {
    std::string names = joined(refused, "\"{}\", ");
    names.resize(names.size() - 2);
    return makeStatus(report::ModelDiffers, folder,
                      refused.size() == 1 ? "one option"
                                          : fmt::format("{} options", refused.size()),
                      joined(refused, kLine), names);
  }
  if (!taken.empty())
    emit(makeReport(report::DifferencesAccepted, folder, joined(taken, kLine)));
  return Status::ok();
}

} // namespace shardc::save
