// Values and decisions that both exports use, and the export of overrides.
#include "compiler/basic/Format.h"
#include "compiler/config/Effect.h"
#include "compiler/config/Rules.h"
#include "compiler/upstream/Export.h"
#include "compiler/upstream/FlagTable.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Config;
using config::EnumKind;
using config::Opt;
using config::OptionType;
using config::Origin;
using config::Value;
using config::ValueType;

/// Whether upstream requires the option for FSDP.
bool isNeededByFsdp(const Config &config, Opt opt) {
  if (config.derived().torchFsdp2)
    return opt == Opt::ModelGradientAccumulationFusion;
  return config.derived().fsdp && findName(NameKind::NeededByFsdp, config::info(opt).path);
}

} // namespace

bool isNeededByMegatron(Opt opt) {
  return findName(NameKind::NeededFlag, config::info(opt).path) != nullptr;
}

bool describesModel(const config::OptionInfo &option) {
  // Upstream always includes the padding rows; an export warns where that differs.
  return option.section == config::Section::Model &&
         option.status == config::OptionStatus::Executed && !isOfLayout(option) &&
         option.opt != Opt::ModelMaskPaddedVocab && option.opt != Opt::ModelLossChunkRows;
}

bool isOwnChoice(const Config &config, Opt opt) {
  return opt == Opt::ModelRecomputeGranularity &&
         config.is(opt, config::RecomputeGranularity::Auto);
}

namespace {

bool isFloatType(EnumKind kind) {
  return kind == EnumKind::FloatType || kind == EnumKind::FloatTypeOrAuto;
}

std::string numberText(double number) { return fmt::format("{}", number); }

std::string torchType(llvm::StringRef word) {
  if (word == "fp32")
    return "torch.float32";
  if (word == "bf16")
    return "torch.bfloat16";
  return word == "fp16" ? "torch.float16" : word == "auto" ? "null" : word.str();
}

/// A string in an override, quoted if Hydra would otherwise not read it as this string.
std::string overrideWord(llvm::StringRef text) {
  bool isPlain = !text.empty() && llvm::all_of(text, [](char c) {
    return llvm::isAlnum(c) || llvm::StringRef("_-./+").contains(c);
  });
  double number = 0;
  bool isNumber = !text.getAsDouble(number);
  std::string lower = text.lower();
  if (isPlain && !isNumber && lower != "true" && lower != "false" && lower != "null")
    return text.str();
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += '\\';
    out += c;
  }
  return out + "\"";
}

} // namespace

llvm::StringRef targetName(ExportTarget target) {
  return target == ExportTarget::MegatronArgs ? "Megatron-LM" : "Megatron-Bridge";
}

void judgeExport(const Config &config, const std::vector<std::string> &fired, ExportTarget target,
                 DiagEngine &diags) {
  constexpr const auto *refused = &diag::ExportRefused, *differs = &diag::ExportDiffers;
  struct Row {
    config::RuleId rule;
    decltype(refused) verdicts[2]; ///< index: ExportTarget
    llvm::StringRef what;
  };
  static constexpr Row kRows[] = {
#define EXPORT_VERDICT(rule, megatronLm, bridge, what)                                             \
  {config::RuleId::rule, {megatronLm, bridge}, what},
#include "compiler/upstream/UpstreamFlags.def"
  };
  for (const Row &row : kRows)
    if (llvm::is_contained(fired, info(row.rule).id))
      diags.report(*row.verdicts[static_cast<size_t>(target)], SourceRange(), targetName(target),
                   row.what, info(row.rule).id);
  for (Opt opt : {Opt::DdpFsdpDoubleBuffer, Opt::DdpNcclUb})
    if (config.derived().fsdp && config.isOn(opt) && config.isWritten(opt))
      diags.report(diag::ExportMegatronOnly, config.range(opt), config::info(opt).path);
  if (config.derived().torchFsdp2 && target == ExportTarget::BridgeOverrides)
    diags.report(diag::ExportTorchFsdp2, config.range(Opt::DistUseTorchFsdp2));
}

bool isExported(const Config &config, Opt opt) {
  if (!config.has(opt))
    return false;
  const config::Setting &setting = config[opt];
  bool wasWritten =
      llvm::any_of(setting.history, [](const auto &past) { return past.second.isWritten(); });
  return setting.from.isWritten() || wasWritten || setting.from.origin == Origin::Family ||
         setting.from.origin == Origin::Preset || isNeededByFsdp(config, opt);
}

std::string megatronText(const Value &value, const OptionType &type) {
  if (const bool *held = value.asBool())
    return *held ? "true" : "false";
  if (const int64_t *held = value.asInt())
    return type.type == ValueType::Duration
               ? numberText(static_cast<double>(*held) / static_cast<double>(unitMs(type.unit)))
               : std::to_string(*held);
  if (const double *held = value.asFloat())
    return numberText(*held);
  if (const std::string *held = value.asString())
    return *held;
  if (const Value::Enumerator *held = value.asEnum())
    return config::enumSpellings(type.enumKind)[held->index].str();
  return "none";
}

std::string overrideText(const Value &value, const OptionType &type) {
  if (value.isNone())
    return "null";
  if (const Value::List *list = value.asList()) {
    std::string out = "[";
    for (size_t i = 0; i < list->size(); ++i)
      out += (i == 0 ? "" : ",") + overrideText((*list)[i], type);
    return out + "]";
  }
  std::string text = megatronText(value, type);
  if (value.asEnum() != nullptr && isFloatType(type.enumKind))
    return torchType(text);
  return value.asString() != nullptr || value.asEnum() != nullptr ? overrideWord(text) : text;
}

std::string patternText(const Value::List &list) {
  if (list.size() == 1)
    return std::to_string(*list.front().asInt());
  std::string out;
  for (size_t i = 0; i < list.size();) {
    size_t end = i;
    while (end < list.size() && list[end] == list[i])
      ++end;
    out += fmt::format("{}[{}]*{}", i == 0 ? "" : "+", *list[i].asInt(), end - i);
    i = end;
  }
  return "(" + out + ")";
}

std::string exportBridgeOverrides(const Config &config, DiagEngine &diags) {
  std::string out;
  for (const config::OptionInfo &option : config::options()) {
    bool isPreset = config[option.opt].from.origin == Origin::Preset &&
                    option.section != config::Section::MixedPrecision;
    bool isKind = option.opt == Opt::ModelFamily || option.section == config::Section::Cluster ||
                  option.opt == Opt::DatasetKind || option.opt == Opt::DatasetTokenizer;
    bool isNone = !config.has(option.opt) && config.isWritten(option.opt);
    if (isKind || (!isExported(config, option.opt) && !isNone))
      continue;
    // Skip options that the precision preset sets: Megatron-Bridge's preset of the same name sets
    // them too.
    if (isPreset && config.has(Opt::MixedPrecisionPreset))
      continue;
    if (option.bridge.empty() || isOwnChoice(config, option.opt)) {
      // Unmasked padding is not reported: Megatron-Bridge has no field for it, but its classes
      // behave this way.
      bool isTheirs = option.opt == Opt::ModelMaskPaddedVocab && !config.isOn(option.opt);
      if ((config.isWritten(option.opt) || describesModel(option)) && !isTheirs)
        diags.report(diag::ExportNoCounterpart, config.range(option.opt), option.path,
                     toRecipeText(config, option.opt), targetName(ExportTarget::BridgeOverrides));
      continue;
    }
    bool isField = option.section == config::Section::MixedPrecision &&
                   option.opt != Opt::MixedPrecisionPreset;
    if (isField && !config.isWritten(option.opt))
      continue;
    out += fmt::format("{}{}={}\n", option.section == config::Section::Env ? "+" : "",
                       option.bridge.str(), overrideText(config[option.opt].value, option.type));
  }
  // Without a real tokenizer, the vocabulary size is a setting of the null tokenizer.
  bool isNull =
      llvm::StringRef(config.getStringOr(Opt::DatasetTokenizerType, "")).startswith("Null");
  if (isNull && config.has(Opt::ModelVocabSize))
    out += fmt::format("tokenizer.vocab_size={}\n", config.getInt(Opt::ModelVocabSize));
  for (const config::EnvVariable &variable : config.env())
    out += fmt::format("+env_vars.{}={}\n", variable.name,
                       overrideText(variable.setting.value, {ValueType::String}));
  return out;
}

} // namespace shardc::upstream
