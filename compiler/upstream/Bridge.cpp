#include "compiler/upstream/Bridge.h"

#include "compiler/basic/Format.h"
#include "compiler/upstream/FlagTable.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

using config::Opt;
using config::Value;

constexpr unsigned kSectionDepthMax = 16;
constexpr size_t kSettingsMax = 20'000;

struct FamilyClass {
  llvm::StringRef prefix;
  config::ModelFamily family;
};
constexpr FamilyClass kFamilyClasses[] = {
#define FAMILY_CLASS(prefix, family) {prefix, config::ModelFamily::family},
#include "compiler/upstream/UpstreamFlags.def"
};

/// Sections of Bridge's configuration that have no counterpart in recipes.
constexpr llvm::StringLiteral kForeignSections[] = {"tokenizer",
                                                    "env_vars",
                                                    "profiling",
                                                    "peft",
                                                    "ft",
                                                    "straggler",
                                                    "nvrx_straggler",
                                                    "inprocess_restart",
                                                    "tensor_inspect",
                                                    "optimizer_config_override_provider"};

/// Bridge's newer model classes keep the layers' fields one level further down.
std::string canonicalPath(llvm::StringRef path) {
  if (path.startswith("model.transformer."))
    return ("model." + path.substr(llvm::StringRef("model.transformer.").size())).str();
  return path.str();
}

/// Values that leave a field as if it were not there.
bool saysNothing(const Tree &value) {
  return value.isNone() || (value.kind == Tree::Kind::Bool && !value.boolean) ||
         (value.kind == Tree::Kind::List && value.items.empty()) ||
         (value.kind == Tree::Kind::Map && value.entries.empty() && value.call.empty()) ||
         (value.isWord() && value.text.empty());
}

} // namespace

bool BridgeSettings::isPath(llvm::StringRef path) {
  llvm::StringRef section = path.split('.').first;
  return config::findSection(section).has_value() || llvm::is_contained(kForeignSections, section);
}

void BridgeSettings::set(llvm::StringRef path, const Tree &value) {
  std::string canonical = canonicalPath(path);
  if (value.kind == Tree::Kind::Map)
    setMap(canonical, value, 0);
  else
    setLeaf(canonical, value);
}

void BridgeSettings::setMap(llvm::StringRef path, const Tree &map, unsigned depth) {
  if (path == "mixed_precision" && map.entries.empty())
    return setPreset(map);
  if (path == "env_vars")
    return setVariables(map);
  if (path == "model")
    setFamily(map);
  if (path == "dataset" && map.callName().contains("Mock"))
    recipe_.setEnum(Opt::DatasetKind, config::DatasetKind::Synthetic, map.range);
  // A map that is itself a value: a function, a torch type, an enumerator.
  bool isSection = !path.contains('.') || path == "model.transformer";
  if (!isSection || depth > kSectionDepthMax)
    return setLeaf(path, map);
  for (const auto &[key, value] : map.entries) {
    std::string inner = canonicalPath((path + "." + key).str());
    if (value->kind == Tree::Kind::Map)
      setMap(inner, *value, depth + 1);
    else
      setLeaf(inner, *value);
  }
}

void BridgeSettings::setVariables(const Tree &map) {
  for (const auto &[name, value] : map.entries)
    recipe_.setVariable(name, value->isNone() ? Value() : Value::ofString(describe(*value)),
                        value->range);
}

/// A preset by its name, or by the function that makes it.
void BridgeSettings::setPreset(const Tree &value) {
  Tree word = value;
  if (value.kind == Tree::Kind::Map) {
    word.kind = Tree::Kind::Text;
    word.text = value.callName().str();
  }
  recipe_.read(Opt::MixedPrecisionPreset, word, "mixed_precision");
}

void BridgeSettings::setFamily(const Tree &provider) {
  llvm::StringRef name = provider.callName();
  if (name.empty())
    return;
  const auto *found = llvm::find_if(
      kFamilyClasses, [&](const FamilyClass &row) { return name.startswith(row.prefix); });
  if (found == std::end(kFamilyClasses)) {
    if (!isComplete_)
      recipe_.ask(fmt::format("the defaults of {}", name.str()), Opt::ModelFamily, provider.range);
    return;
  }
  recipe_.setEnum(Opt::ModelFamily, found->family, provider.range);
  if (name.startswith("MLA"))
    recipe_.setBool(Opt::ModelMultiLatentAttention, true, provider.range);
  bool isSized = provider.find("num_layers") == nullptr && !isComplete_;
  if (isSized)
    recipe_.ask(fmt::format("the sizes of {}", name.str()), Opt::ModelNumLayers, provider.range);
}

/// Fields that are not options one by one; true if this was one.
bool BridgeSettings::setSpecial(llvm::StringRef path, const Tree &value) {
  if (path == "mixed_precision") {
    setPreset(value);
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
  if (path.consume_front("env_vars.")) {
    recipe_.setVariable(path, value.isNone() ? Value() : Value::ofString(describe(value)),
                        value.range);
    return true;
  }
  if (path == "tokenizer.vocab_size" && value.kind == Tree::Kind::Int) {
    tokenizerVocab_ = value.integer;
    return true;
  }
  bool isTokenizer = path == "tokenizer.tokenizer_model" || path == "tokenizer.tokenizer_type";
  if (isTokenizer && value.isWord() && !llvm::StringRef(value.text).startswith("Null")) {
    tokenizer_ = value.text;
    tokenizerRange_ = value.range;
  }
  return false;
}

void BridgeSettings::setLeaf(llvm::StringRef path, const Tree &value) {
  if (++numSettings_ > kSettingsMax || setSpecial(path, value))
    return;
  llvm::SmallVector<Opt, 2> options = findBridgePath(path);
  if (options.empty())
    return noteForeign(path, value);
  for (Opt opt : options) {
    if (!value.isNone())
      recipe_.read(opt, value, path);
    else if (!isComplete_ || config::info(opt).hasDefault())
      recipe_.set(opt, Value(), value.range);
  }
}

void BridgeSettings::noteForeign(llvm::StringRef path, const Tree &value) {
  if (!isComplete_ || !saysNothing(value))
    recipe_.leaveOut(fmt::format("{} = {}", path.str(), describe(value)), value.range);
}

void BridgeSettings::finish() {
  for (Opt paths : {Opt::DatasetDataPath, Opt::DatasetBlend}) {
    const Value *held = recipe_.get(paths);
    if (held != nullptr && !held->isNone() && !recipe_.has(Opt::DatasetKind))
      recipe_.setEnum(Opt::DatasetKind, config::DatasetKind::Indexed, recipe_.range(paths));
  }
  const Value *vocab = recipe_.get(Opt::ModelVocabSize);
  if (vocab == nullptr || vocab->isNone()) {
    if (tokenizerVocab_)
      recipe_.set(Opt::ModelVocabSize, Value::ofInt(*tokenizerVocab_), {});
    else if (!tokenizer_.empty())
      recipe_.ask(fmt::format("the vocabulary of {}", tokenizer_), Opt::ModelVocabSize,
                  tokenizerRange_);
  }
  bool isFsdp = recipe_.isOn(Opt::DistUseMegatronFsdp) || recipe_.isOn(Opt::DdpUseMegatronFsdp);
  if (isFsdp && !recipe_.has(Opt::DdpDataParallelShardingStrategy))
    recipe_.meant("Megatron-Bridge's dataclass shards nothing unless a strategy is set; a recipe "
                  "without a strategy shards everything",
                  recipe_.range(recipe_.isOn(Opt::DistUseMegatronFsdp) ? Opt::DistUseMegatronFsdp
                                                                       : Opt::DdpUseMegatronFsdp));
  if (isComplete_) {
    if (mayPadVocabulary([this](Opt opt) { return recipe_.get(opt); }))
      recipe_.setUpstreamDefault(Opt::ModelMaskPaddedVocab, Value::ofBool(false));
    recipe_.dropDefaults();
  }
}

} // namespace shardc::upstream
