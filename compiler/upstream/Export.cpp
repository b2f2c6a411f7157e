// Writes a configuration as Megatron-LM's command line.
#include "compiler/upstream/Export.h"

#include <set>

#include "compiler/basic/Format.h"
#include "compiler/basic/ShellWord.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Evaluate.h"
#include "compiler/upstream/FlagTable.h"
#include "llvm/ADT/STLExtras.h"

namespace shardc::upstream {
namespace {

using config::Config;
using config::Opt;
using config::Origin;
using config::Value;
using config::ValueType;

class ArgsWriter {
public:
  ArgsWriter(const Config &config, DiagEngine &diags) : config_(config), diags_(diags) {}

  std::string run() {
    for (const config::OptionInfo &option : config::options())
      if (!isSpecial(option.opt))
        writeOption(option);
    writeSpecial();
    return text();
  }

private:
  // --- flags ---
  void add(llvm::StringRef flag, std::vector<std::string> values = {}) {
    if (!seen_.insert(flag.str()).second)
      return;
    std::string line = flag.str();
    for (const std::string &value : values)
      line += " " + shellQuoted(value);
    flags_.push_back(std::move(line));
  }

  void leaveOut(Opt opt) {
    diags_.report(diag::ExportNoCounterpart, config_.range(opt), config::info(opt).path,
                  toRecipeText(config_, opt), targetName(ExportTarget::MegatronArgs));
  }

  /// Reports an error: without the option, Megatron-LM would train another model.
  void refuse(Opt opt) {
    diags_.report(diag::ExportOtherModel, config_.range(opt), config::info(opt).path,
                  toRecipeText(config_, opt));
  }

  Value silentValue(const config::OptionInfo &option) const {
    if (std::optional<Value> value = cliDefault(config_, option.opt))
      return *value;
    return config::tableDefault(option.opt);
  }

  void writeOption(const config::OptionInfo &option) {
    if (option.flag.empty())
      return writeWithoutFlag(option);
    if (option.type.type == ValueType::Bool)
      writeSwitch(option);
    else
      writeValue(option);
  }

  void writeWithoutFlag(const config::OptionInfo &option) {
    bool isElsewhere = option.section == config::Section::Cluster ||
                       option.section == config::Section::Env ||
                       option.section == config::Section::MixedPrecision;
    if (isElsewhere || !config_.has(option.opt) ||
        config_[option.opt].value == silentValue(option) || !config::hasEffect(config_, option))
      return;
    // Megatron-LM's pretraining scripts do not support adapters.
    if (option.opt == Opt::PeftScheme ||
        (describesModel(option) && isExported(config_, option.opt)))
      refuse(option.opt);
    else if (config_.isWritten(option.opt) || differsInSilence(option))
      leaveOut(option.opt);
  }

  /// Whether the option has its default, and Megatron-LM's command line has another default.
  bool differsInSilence(const config::OptionInfo &option) const {
    return config_[option.opt].from.origin == Origin::Default &&
           option.status != config::OptionStatus::CheckedOnly &&
           option.status != config::OptionStatus::NotExecuted && cliDefault(config_, option.opt);
  }

  /// Writes a switch. Several options may share a flag; it is written if one of them requires it.
  void writeSwitch(const config::OptionInfo &option) {
    if (!isExported(config_, option.opt) && !differsInSilence(option))
      return;
    bool given = !option.flagNegates;
    if (config_.isOn(option.opt) == given && silentValue(option) != Value::ofBool(given))
      add(option.flag);
    else if (config_.isOn(option.opt) == given || silentValue(option) != Value::ofBool(given))
      return;
    else if (describesModel(option))
      refuse(option.opt);
    else if (config_.isWritten(option.opt))
      leaveOut(option.opt);
  }

  void writeValue(const config::OptionInfo &option) {
    bool isMentioned = isExported(config_, option.opt) || isNeededByMegatron(option.opt);
    if (!config_.has(option.opt) || (!isMentioned && !differsInSilence(option)))
      return;
    const Value &value = config_[option.opt].value;
    // Skip values that equal the default of the command line.
    if (std::optional<Value> silent = cliDefault(config_, option.opt); silent && value == *silent)
      return;
    std::vector<std::string> words;
    if (const Value::List *list = value.asList()) {
      for (const Value &element : *list)
        words.push_back(megatronText(element, option.type));
      if (words.empty())
        return;
    } else {
      words.push_back(megatronText(value, option.type));
    }
    add(option.flag, std::move(words));
  }

  // --- options that the table's columns cannot describe ---
  bool isSpecial(Opt opt) const {
    return findName(NameKind::SpecialFlag, config::info(opt).path) || isOwnChoice(config_, opt) ||
           (opt == Opt::TrainGlobalBatchSize && !config_.isWritten(opt));
  }

  void writeSpecial() {
    writeSequenceParallel();
    writeActivation();
    writeGradReduction();
    writeQueryGroups();
    writeFfnSize();
    writeLists();
    writePositions();
    writeData();
    if (config_.has(Opt::ModelShouldPadVocab) && !config_.getBool(Opt::ModelShouldPadVocab))
      add("--no-pad-vocab-size");
    if (!config_.has(Opt::TrainTrainSamples) && config_.has(Opt::TrainTrainIters))
      add("--train-iters", {std::to_string(config_.getInt(Opt::TrainTrainIters))});
    if (isOwnChoice(config_, Opt::ModelRecomputeGranularity))
      leaveOut(Opt::ModelRecomputeGranularity);
  }

  /// Without tensor parallelism, shardc switches the option off. The flag is still written if the
  /// recipe set it, since Megatron-LM does the same.
  void writeSequenceParallel() {
    const config::Setting &setting = config_[Opt::ModelSequenceParallel];
    bool wasOn = llvm::any_of(setting.history, [](const auto &past) {
      return past.second.isWritten() && past.first == Value::ofBool(true);
    });
    if (config_.isOn(Opt::ModelSequenceParallel) || wasOn)
      add("--sequence-parallel");
  }

  void writeActivation() {
    using config::Activation;
    Activation activation = config_.getEnumOr(Opt::ModelActivationFunc, Activation::Gelu);
    bool gated = config_.isOn(Opt::ModelGatedLinearUnit);
    if (activation == Activation::Silu && gated)
      add("--swiglu");
    else if (activation == Activation::QuickGelu && gated)
      add("--quick-geglu");
    else if (activation == Activation::SquaredRelu && !gated)
      add("--squared-relu");
    else if (activation != Activation::Gelu)
      refuse(Opt::ModelActivationFunc);
    else if (gated)
      refuse(Opt::ModelGatedLinearUnit);
    // The fused GELU computes a different function.
    Opt fusion = Opt::ModelBiasActivationFusion;
    bool isGelu = activation == Activation::Gelu;
    if ((isGelu || config_.isWritten(fusion)) && !config_.isOn(fusion))
      add(isGelu ? "--no-bias-gelu-fusion" : "--no-bias-swiglu-fusion");
  }

  /// Writes options of rotary positions. YaRN and multi-latent attention share flags.
  void writePositions() {
    bool isLatent = config_.isOn(Opt::ModelMultiLatentAttention);
    // With multi-latent attention but without YaRN, Megatron-LM refuses its own default.
    if (isLatent && !config_.isOn(Opt::ModelApplyRopeFusion) &&
        !config_.is(Opt::ModelRopeType, config::RopeType::Yarn))
      add("--no-rope-fusion");
    Opt factor = Opt::ModelRotaryScalingFactor; // derived, and Megatron-LM has another default
    if (isLatent && config_.has(factor) &&
        config_[factor].value != silentValue(config::info(factor)))
      add("--rotary-scaling-factor",
          {megatronText(config_[factor].value, config::info(factor).type)});
    bool isYarn = config_.is(Opt::ModelPositionEmbeddingType, config::PositionEmbedding::Yarn);
    for (auto [flag, yarn] : kSharedWithYarn)
      if (isYarn && !isLatent && config_.has(yarn))
        add(config::info(flag).flag, {megatronText(config_[yarn].value, config::info(yarn).type)});
    Opt rounding = Opt::ModelYarnCorrectionRangeRoundToInt;
    if (isExported(config_, rounding) && !config_.isOn(rounding))
      add("--no-yarn-correction-range-round-to-int");
  }

  /// Megatron-LM's default is to reduce gradients in fp32 with bf16, and in the gradients' type
  /// otherwise. A different flag changes each of these defaults.
  void writeGradReduction() {
    Opt opt = Opt::DdpGradReduceInFp32;
    bool isOn = config_.isOn(opt), isBf16 = config_.isOn(Opt::ModelBf16);
    if (isBf16 && !isOn)
      add("--grad-reduce-in-bf16");
    if (isOn && (!isBf16 || config_.isWritten(opt)))
      add("--accumulate-allreduce-grads-in-fp32");
  }

  void writeQueryGroups() {
    // With multi-latent attention, Megatron-LM refuses the flag: every head is a group.
    if (!isExported(config_, Opt::ModelNumQueryGroups) ||
        config_.isOn(Opt::ModelMultiLatentAttention))
      return;
    add("--group-query-attention");
    add("--num-query-groups", {std::to_string(config_.getInt(Opt::ModelNumQueryGroups))});
  }

  /// If the FFN size is unset, Megatron-LM and recipes use different defaults for gated layers.
  void writeFfnSize() {
    Opt opt = Opt::ModelFfnHiddenSize;
    int64_t hidden = config_.getIntOr(Opt::ModelHiddenSize, 0);
    bool isGated = config_.isOn(Opt::ModelGatedLinearUnit);
    int64_t width = config_.getIntOr(opt, 0);
    int64_t silent = isGated ? swigluWidth(hidden) : 4 * hidden;
    if (width > 0 && (width != silent || (config_.isWritten(opt) && !isGated)))
      add("--ffn-hidden-size", {std::to_string(width)});
  }

  void writeLists() {
    for (Opt pattern : {Opt::ModelMoeLayerFreq, Opt::ModelNoRopeFreq, Opt::ModelWindowAttnSkipFreq})
      if (isExported(config_, pattern) && !config_.getList(pattern).empty())
        add(config::info(pattern).flag, {patternText(config_.getList(pattern))});
    Opt size = Opt::ModelWindowSize;
    if (isExported(config_, size))
      add("--window-size",
          {llvm::StringRef(overrideText(config_[size].value, {ValueType::Int})).trim("[]").str()});
  }

  void writeData() {
    using config::DatasetKind;
    DatasetKind kind = config_.getEnumOr(Opt::DatasetKind, DatasetKind::Synthetic);
    if (kind == DatasetKind::Text || kind == DatasetKind::Packed)
      leaveOut(Opt::DatasetKind);
    // Megatron-LM's flag for synthetic data is `--mock-data`.
    if (kind == DatasetKind::Synthetic)
      add("--mock-data");
    for (Opt paths : {Opt::DatasetBlend, Opt::DatasetDataPath}) {
      if (!config_.has(paths) || kind == DatasetKind::Text || kind == DatasetKind::Packed)
        continue;
      std::vector<std::string> words;
      for (const Value &element : config_.getList(paths))
        words.push_back(megatronText(element, {ValueType::String}));
      add("--data-path", std::move(words));
    }
    const bool isUnset = !config_.has(Opt::DatasetTokenizerType);
    if (isUnset)
      add("--tokenizer-type", {"NullTokenizer"});
    const bool addsEod = isUnset || config_.getString(Opt::DatasetTokenizerType) == "NullTokenizer";
    if (int64_t size = config_.getIntOr(Opt::ModelVocabSize, 0); size > 0)
      add("--vocab-size", {std::to_string(size - (addsEod ? 1 : 0))});
  }

  // --- the script ---
  void writeVariable(llvm::StringRef name, const config::Setting &setting, std::string &out) const {
    if (setting.value.isNone() && setting.from.isWritten())
      out += fmt::format("unset {}\n", name.str());
    else if (const std::string *value = setting.value.asString())
      out += fmt::format("export {}={}\n", name.str(), shellQuoted(*value));
  }

  /// Whether Megatron-LM requires CUDA_DEVICE_MAX_CONNECTIONS=1 but the recipe does not set the
  /// variable.
  bool needsOneConnection() const {
    Opt variable = Opt::EnvCudaDeviceMaxConnections;
    bool isSplit = config_.getIntOr(Opt::ModelTensorModelParallelSize, 1) > 1 ||
                   config_.getIntOr(Opt::ModelContextParallelSize, 1) > 1;
    return isSplit && !config_.derived().fsdp && !config_.derived().torchFsdp2 &&
           !config_.isOn(Opt::ModelOverlapMoeExpertParallelComm) && !config_.has(variable) &&
           !config_.isWritten(variable);
  }

  std::string text() const {
    std::string out = "#!/bin/bash\n";
    for (const config::OptionInfo &option : config::options())
      if (option.section == config::Section::Env)
        writeVariable(option.name, config_[option.opt], out);
    for (const config::EnvVariable &variable : config_.env())
      writeVariable(variable.name, variable.setting, out);
    if (needsOneConnection())
      out += "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
    out += "\nARGS=(\n";
    for (const std::string &flag : flags_)
      out += "    " + flag + "\n";
    const config::Derived &d = config_.derived();
    return out + fmt::format(")\n\ntorchrun --nnodes={} --nproc_per_node={} pretrain_gpt.py "
                             "\"${{ARGS[@]}}\"\n",
                             d.nodes, d.gpusPerNode);
  }

  const Config &config_;
  DiagEngine &diags_;
  std::set<std::string> seen_;
  std::vector<std::string> flags_;
};

} // namespace

std::string exportMegatronArgs(const Config &config, DiagEngine &diags) {
  return ArgsWriter(config, diags).run();
}

} // namespace shardc::upstream
