#include "compiler/upstream/Bridge.h"

#include <set>

#include "compiler/basic/Format.h"
#include "compiler/config/Evaluate.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ReadValue.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

constexpr size_t kSettingsMax = 40'000;

struct ClassDefault {
  llvm::StringRef prefix;
  Opt opt;
  llvm::StringRef value;
};
constexpr ClassDefault kClassDefaults[] = {
#define CLASS_SETS(prefix, option, value) {prefix, Opt::option, value},
#include "compiler/upstream/UpstreamFlags.def"
};

/// Bridge's newer model classes nest the layers' fields in `model.transformer`; removes that part.
std::string canonicalPath(llvm::StringRef path) {
  if (path.startswith("model.transformer."))
    return ("model." + path.substr(llvm::StringRef("model.transformer.").size())).str();
  return path.str();
}

/// Whether the input leaves the value open: it is a variable of the program or the result of a
/// call. Lists may share elements, so at most `budget` values are checked.
bool isOpen(const config::OptionType &type, const Tree &value, unsigned &budget) {
  bool takesWords =
      type.type == config::ValueType::Enum || type.type == config::ValueType::EnumList;
  if (budget == 0)
    return false;
  --budget;
  if (value.kind == Tree::Kind::Name)
    return !takesWords || !readValue(type, value);
  if (value.kind == Tree::Kind::List)
    return llvm::any_of(value.items,
                        [&](const TreePtr &item) { return isOpen(type, *item, budget); });
  return value.kind == Tree::Kind::Map && !value.call.empty() && !readValue(type, value);
}

/// Converts `[[embedding, decoder], [decoder, loss]]` to `Et|tL`; empty if there are other words.
std::optional<std::string> layoutText(const Tree &stages) {
  std::string text;
  for (const TreePtr &stage : stages.items) {
    text += stage == stages.items.front() ? "" : "|";
    for (const TreePtr &layer : stage->items) {
      llvm::StringRef letter = llvm::StringSwitch<llvm::StringRef>(layer->text)
                                   .Case("embedding", "E")
                                   .Case("decoder", "t")
                                   .Case("mtp", "m")
                                   .Case("loss", "L")
                                   .Default("");
      if (letter.empty())
        return std::nullopt;
      text += letter;
    }
  }
  return text;
}

bool isInside(const config::OptionInfo &option, llvm::StringRef section) {
  llvm::StringRef path = option.bridge;
  return path.consume_front(section) && (path.empty() || path.front() == '.');
}

} // namespace

bool BridgeSettings::isPath(llvm::StringRef path) {
  llvm::StringRef section = path.split('.').first;
  return config::findSection(section).has_value() || findName(NameKind::ForeignSection, section);
}

void BridgeSettings::set(llvm::StringRef path, const Tree &value) {
  if (++numSettings_ > kSettingsMax) // aliases may repeat sections without limit
    return;
  if (path == kUnknownRest)
    return setUnknownRest(path, value);
  std::string canonical = canonicalPath(path);
  if (value.call == kUnknownCall)
    forget(canonical, describe(value), value.range);
  else if (value.kind == Tree::Kind::Map)
    setMap(canonical, value);
  else
    setLeaf(canonical, value);
}

void BridgeSettings::forget(llvm::StringRef path, llvm::StringRef what, SourceRange range) {
  llvm::SmallVector<Opt, 2> options = findBridgePath(path);
  for (const config::OptionInfo &option : config::options())
    if (recipe_.isSet(option.opt) && isInside(option, path))
      options.push_back(option.opt);
  if (path == "model")
    options.push_back(Opt::ModelNumLayers);
  for (Opt opt : options)
    recipe_.setUnknown(opt, what, range);
  if (path == "dataset" || findName(NameKind::DataField, lastPart(path)) != nullptr)
    recipe_.setUnknownData(what, range);
  else if (options.empty())
    recipe_.leaveOut(what, range);
}

void BridgeSettings::setMap(llvm::StringRef path, const Tree &map) {
  // A call such as `bf16_mixed()` creates a preset.
  if (path == "mixed_precision" && readValue(config::info(Opt::MixedPrecisionPreset).type, map))
    return setPreset(map);
  if (path == "mixed_precision" && map.callName() == "MixedPrecisionConfig")
    precisionClass_ = map.range;
  if (!path.contains('.') && !map.call.empty()) // a new object replaces all earlier fields
    for (const config::OptionInfo &option : config::options())
      if (isInside(option, path))
        recipe_.clear(option.opt);
  if (path == "model")
    setFamily(map);
  if (path == "dataset")
    setDataClass(map);
  if (path == "peft" && !setAdapters(map))
    return;
  if (setRows(path, map))
    return;
  // Not every map is a section: it may be a function, a torch type or an enumerator.
  if (path.contains('.') && path != "model.transformer")
    return setLeaf(path, map);
  for (const auto &[key, value] : map.entries)
    if (key == kUnknownRest)
      setUnknownRest(path, *value);
    else
      set((path + "." + key).str(), *value);
}

/// Reports an error and returns true if a function, a class or a model of Hugging Face has the name
/// of models that recipes do not have.
bool BridgeSettings::refuseForeign(llvm::StringRef name, SourceRange range) {
  auto letters = [](llvm::StringRef text) {
    std::string out;
    for (char c : text.substr(text.rfind('/') + 1))
      if (llvm::isAlnum(c))
        out += llvm::toLower(c);
    return out;
  };
  const std::string whole = letters(name);
  llvm::StringRef folded = whole;
  folded.consume_front("nvidia");
  for (const auto &[kind, prefix, models] : upstreamNames())
    if (kind == NameKind::ForeignModel && folded.startswith(letters(prefix))) {
      recipe_.diags().report(diag::ImportMalformed, range,
                             fmt::format("'{}' of Megatron-Bridge is for models of {}, which "
                                         "recipes do not have",
                                         name.str(), models.str()));
      return true;
    }
  return false;
}

void BridgeSettings::setUnknownRest(llvm::StringRef section, const Tree &what) {
  const std::string text = describe(what);
  llvm::StringRef function = llvm::StringRef(text).split('(').first;
  function = function.substr(function.rfind('.') + 1);
  if (section == kUnknownRest && function.endswith("_config") &&
      refuseForeign(function, what.range))
    return;
  bool isRecipe = section == kUnknownRest && llvm::StringRef(text).startswith("recipes.");
  if (section == "dataset" || isRecipe) // a recipe function chooses data too
    recipe_.setUnknownData(text, what.range);
  if (section == kUnknownRest)
    recipe_.leaveOut(fmt::format("what {} sets", text), what.range);
  else if (section != "model" && section != "dataset")
    recipe_.ask(fmt::format("the rest of {}", text), section, what.range);
  if (section != "model" && section != kUnknownRest)
    return;
  llvm::SmallVector<llvm::StringRef, 8> words, names;
  if (section == "model")
    llvm::SplitString(text, words, " '\"()=,");
  for (llvm::StringRef word : words)
    if (word.contains('/')) // a model of Hugging Face
      names.push_back(word);
    else // modules and classes
      llvm::SplitString(word, names, ".");
  for (llvm::StringRef name : names)
    if (refuseForeign(name, what.range))
      return;
  if (!recipe_.has(Opt::ModelNumLayers) && !recipe_.isDoubted(Opt::ModelNumLayers))
    recipe_.setUnknown(Opt::ModelNumLayers, text, what.range);
}

/// Reads a preset, given by name or by the function that creates it, and changes to its fields.
void BridgeSettings::setPreset(const Tree &value) {
  recipe_.read(Opt::MixedPrecisionPreset, value, "mixed_precision");
  for (const auto &[field, inner] : value.entries)
    if (field != kUnknownRest)
      setLeaf("mixed_precision." + field, *inner);
}

void BridgeSettings::setFamily(const Tree &provider) {
  llvm::StringRef name = provider.callName();
  if (name.empty())
    return;
  std::set<Opt> isSet;
  for (const ClassDefault &row : kClassDefaults)
    if (name.startswith(row.prefix) && isSet.insert(row.opt).second)
      recipe_.set(row.opt, config::parseTableValue(row.value, config::info(row.opt)),
                  provider.range);
  if (isSet.empty()) {
    if (refuseForeign(name, provider.range))
      return;
    if (!isComplete_ && provider.find(kUnknownRest) == nullptr)
      recipe_.ask(fmt::format("the defaults of {}", name.str()), Opt::ModelFamily, provider.range);
    return;
  }
  if (provider.find("num_layers") == nullptr && !isComplete_)
    recipe_.ask(fmt::format("the sizes of {}", name.str()), Opt::ModelNumLayers, provider.range);
}

/// Reads fields that do not correspond to exactly one option. Returns false for all other fields.
bool BridgeSettings::setSpecial(llvm::StringRef path, const Tree &value) {
  if (path == "mixed_precision") {
    setPreset(value);
    return true;
  }
  if (path == "model.pipeline_model_parallel_layout" && value.kind == Tree::Kind::List) {
    std::optional<std::string> layout = layoutText(value);
    TreePtr text = layout ? makeText(*layout, value.range) : nullptr;
    recipe_.read(Opt::ModelPipelineModelParallelLayout, text ? *text : value, path);
    return true;
  }
  if (path == "dataset.data_path" && value.isWord()) {
    auto list = std::make_shared<Tree>(value);
    list->kind = Tree::Kind::List;
    llvm::SmallVector<llvm::StringRef> paths;
    llvm::StringRef(value.text).split(paths, ' ', -1, false);
    for (llvm::StringRef one : paths)
      list->items.push_back(makeText(one, value.range));
    recipe_.read(Opt::DatasetDataPath, *list, path);
    return true;
  }
  if (setAdapterField(path, value) || setRows(path, value))
    return true;
  if (path == "model.scale_factor" && recipe_.is(Opt::ModelFamily, config::ModelFamily::Llama)) {
    recipe_.setBool(Opt::ModelRopeScaling, true, value.range);
    recipe_.read(Opt::ModelRopeScalingFactor, value, path);
    return true;
  }
  if (const UpstreamName *fixed = findName(NameKind::FixedField, path)) {
    if (describe(value) != fixed->text)
      recipe_.diags().report(diag::ImportValue, value.range, path,
                             (fixed->text + " in a recipe").str(), describe(value));
    return true;
  }
  if (path.consume_front("env_vars.")) {
    std::string text = value.isWord() ? value.text : describe(value);
    if (value.kind == Tree::Kind::Map || value.kind == Tree::Kind::List)
      recipe_.leaveOut(fmt::format("env_vars.{} = {}", path.str(), text), value.range);
    else
      recipe_.setVariable(path, value.isNone() ? Value() : Value::ofString(text), value.range);
    return true;
  }
  if (path == "model.window_size" && value.kind == Tree::Kind::Int) { // counts the token itself
    recipe_.set(Opt::ModelWindowSize,
                Value::ofList({Value::ofInt(value.integer - 1), Value::ofInt(0)}), value.range);
    return true;
  }
  if (path == "tokenizer.vocab_size" && value.kind == Tree::Kind::Int) {
    tokenizerVocab_ = value.integer;
    return true;
  }
  if (bool isMtp = path == "model.freeze_mtp_model";
      (isMtp || path == "model.freeze_language_model") && value.kind == Tree::Kind::Bool) {
    if (isMtp)
      freezesMtp_ = value.boolean;
    else
      freezesModel_ = value.boolean;
    freezeRange_ = value.range;
    return true;
  }
  addsEod_ |= path == "tokenizer.tokenizer_type" && value.text == "NullTokenizer";
  bool isTokenizer = path == "tokenizer.tokenizer_model" || path == "tokenizer.tokenizer_type";
  if (isTokenizer && value.isWord() && !llvm::StringRef(value.text).startswith("Null"))
    tokenizer_ = value;
  return false;
}

void BridgeSettings::setLeaf(llvm::StringRef path, const Tree &value) {
  if (++numSettings_ > kSettingsMax || setSpecial(path, value))
    return;
  llvm::SmallVector<Opt, 2> options = findBridgePath(path);
  if (options.empty())
    return noteForeign(path, value);
  for (Opt opt : options) {
    unsigned budget = 10'000;
    if (isOpen(config::info(opt).type, value, budget))
      recipe_.setUnknown(opt, fmt::format("{} = {}", path.str(), describe(value)), value.range);
    else if (!value.isNone())
      recipe_.read(opt, value, path);
    else if (!isComplete_ || config::info(opt).hasDefault())
      recipe_.set(opt, Value(), value.range);
  }
}

void BridgeSettings::noteForeign(llvm::StringRef path, const Tree &value) {
  if (findName(NameKind::DataField, lastPart(path)) != nullptr && path.startswith("dataset.") &&
      !value.saysNothing())
    recipe_.setUnknownData(fmt::format("{} = {}", path.str(), describe(value)), value.range);
  bool isAbsent = value.isNone() && !path.contains('.'); // a section that is not set
  if (!isAbsent && (!isComplete_ || !value.saysNothing()))
    recipe_.leaveOut(fmt::format("{} = {}", path.str(), describe(value)), value.range);
}

/// Freezing the language model also freezes the layers for multi-token prediction, unless the
/// model's class has a separate switch for them.
void BridgeSettings::setFrozen() {
  Value::List entries;
  if (freezesModel_)
    entries.push_back(Value::ofString("base"));
  if (freezesMtp_.value_or(freezesModel_))
    entries.push_back(Value::ofString("mtp"));
  if (!entries.empty())
    recipe_.set(Opt::ModelFreeze, Value::ofList(std::move(entries)), freezeRange_);
}

void BridgeSettings::copyPrecision() {
  if (precisionClass_)
    recipe_.setUpstreamDefault(Opt::MixedPrecisionGradReduceInFp32, Value::ofBool(true));
  for (auto [field, option] : config::copiedFields()) {
    const config::OptionInfo &from = config::info(field), &to = config::info(option);
    bool isCopied = recipe_.has(Opt::MixedPrecisionPreset) || precisionClass_ || recipe_.has(field);
    if (!isCopied || !from.path.startswith("mixed_precision.") || from.name != to.name ||
        !recipe_.isSet(option))
      continue;
    Value copied = recipe_[field].value;
    for (const auto &[preset, set, text] : config::presetRows())
      if (!recipe_.isSet(field) && set == field && recipe_.is(Opt::MixedPrecisionPreset, preset))
        copied = config::parseTableValue(text, from);
    if (copied == recipe_[option].value)
      continue;
    recipe_.meant(fmt::format("Megatron-Bridge replaces '{} = {}' by the field of mixed_precision",
                              to.path.str(), toRecipeText(recipe_, option)),
                  recipe_.range(option));
    recipe_.clear(option);
  }
}

/// Megatron-Bridge switches the overlap of tensor parallelism off where there is none.
void BridgeSettings::switchOverlap() {
  constexpr Opt kOverlap = Opt::CommOverlapTpCommOverlap, kSize = Opt::ModelTensorModelParallelSize;
  bool isIdle =
      (recipe_.has(kSize) && recipe_.getInt(kSize) < 2) ||
      (recipe_.isSet(Opt::ModelSequenceParallel) && !recipe_.isOn(Opt::ModelSequenceParallel));
  if (!recipe_.isOn(kOverlap) || !isIdle)
    return;
  recipe_.meant("Megatron-Bridge switches 'comm_overlap.tp_comm_overlap' off without tensor and "
                "sequence parallelism",
                recipe_.range(kOverlap));
  recipe_.setBool(kOverlap, false, recipe_.range(kOverlap));
}

void BridgeSettings::finish() {
  setFrozen();
  switchOverlap();
  // Upstream creates the blend from the paths and saves both; the blend is enough.
  if (isComplete_ && recipe_.has(Opt::DatasetBlend))
    recipe_.clear(Opt::DatasetDataPath);
  if (!recipe_.has(Opt::ModelVocabSize) && tokenizerVocab_)
    recipe_.set(Opt::ModelVocabSize, Value::ofInt(*tokenizerVocab_ + (addsEod_ ? 1 : 0)), {});
  recipe_.askVocabulary(tokenizer_);
  bool isFsdp = recipe_.isOn(Opt::DistUseMegatronFsdp) || recipe_.isOn(Opt::DdpUseMegatronFsdp);
  if (!isFsdp && (recipe_.isOn(Opt::CommOverlapDeferEmbeddingWgradCompute) ||
                  recipe_.isOn(Opt::CommOverlapDelayWgradCompute)))
    recipe_.setUpstreamDefault(Opt::ModelGradientAccumulationFusion, Value::ofBool(true));
  if (isFsdp && !recipe_.isSet(Opt::DdpDataParallelShardingStrategy))
    recipe_.meant("Megatron-Bridge's dataclass shards nothing unless a strategy is set; a recipe "
                  "without a strategy shards everything",
                  recipe_.range(recipe_.isOn(Opt::DistUseMegatronFsdp) ? Opt::DistUseMegatronFsdp
                                                                       : Opt::DdpUseMegatronFsdp));
  if (isComplete_) {
    if (mayPadVocabulary(recipe_))
      recipe_.setUpstreamDefault(Opt::ModelMaskPaddedVocab, Value::ofBool(false));
    recipe_.dropIdle();
    recipe_.dropDefaults();
  }
  finishTuning();
}

} // namespace shardc::upstream
