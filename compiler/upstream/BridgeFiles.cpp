// Reads Megatron-Bridge's configurations in YAML, and Hydra overrides.
#include <cmath>

#include "compiler/basic/Format.h"
#include "compiler/config/Steps.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/FlagTable.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

/// Parses a value as Hydra does: a word, a text in quotes, or lists and maps almost as in YAML.
TreePtr readOverrideValue(llvm::StringRef given, SourceRange range) {
  llvm::StringRef text = given.trim();
  char first = text.empty() ? '\0' : text.front();
  if (first == '"' || first == '\'') {
    std::string out;
    size_t at = 1;
    for (; at < text.size() && text[at] != first; ++at) {
      if (text[at] == '\\' && at + 1 < text.size() &&
          (text[at + 1] == first || text[at + 1] == '\\'))
        ++at;
      out += text[at];
    }
    return makeText(at + 1 == text.size() ? llvm::StringRef(out) : given, range);
  }
  if (!llvm::StringRef("[({").contains(first))
    return makeScalar(text, range);
  std::string yaml;
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == quote || (quote == '\0' && (c == '"' || c == '\'')))
      quote = quote == '\0' ? c : '\0';
    yaml += quote != '\0' ? c : c == '(' ? '[' : c == ')' ? ']' : c;
    // YAML needs a blank after the colon of a map, but addresses contain none.
    if (first == '{' && quote == '\0' && c == ':' && !text.substr(i + 1).startswith("//"))
      yaml += ' ';
  }
  TreePtr value = readYaml(std::move(yaml), range);
  return value == nullptr ? makeText(given, range) : value;
}

} // namespace

bool isOverride(llvm::StringRef word) {
  llvm::StringRef path = word.ltrim("+~").split('=').first;
  return BridgeSettings::isPath(path) && (word.startswith("~") || word.contains('=')) &&
         llvm::all_of(path, [](char c) { return llvm::isAlnum(c) || c == '_' || c == '.'; });
}

bool readOverride(llvm::StringRef word, SourceRange range, BridgeSettings &settings) {
  if (!isOverride(word))
    return false;
  auto [path, value] = word.ltrim("+~").split('=');
  settings.set(path, word.startswith("~") ? Tree() : *readOverrideValue(value, range));
  return true;
}

namespace {

/// Reads the configuration that a run of shardc saves: the effective options by shardc's paths, and
/// derived values.
class OwnFile {
public:
  OwnFile(const Tree &tree, RecipeBuilder &recipe) : tree_(tree), recipe_(recipe) {}

  static bool isOne(const Tree &tree) {
    const Tree *model = tree.find("model");
    return model != nullptr && model->find("kind") != nullptr;
  }

  void import() {
    for (const auto &[section, values] : tree_.entries)
      for (const auto &[name, value] : values->entries)
        readSetting(section, name, *value);
    setMachines();
    recipe_.setUnnamedOfFamily();
    recipe_.dropDefaults();
  }

private:
  void readSetting(const std::string &section, const std::string &name, const Tree &value) {
    if (section == "derived")
      return;
    std::string path = name == "kind" ? section : section + "." + name;
    std::optional<config::Opt> opt = config::findOption(path);
    if (!opt)
      opt = config::findOption(section + "." + name);
    if (opt)
      recipe_.read(*opt, value, path);
    else if (section == "env")
      recipe_.setVariable(name, config::Value::ofString(describe(value)), value.range);
    else
      recipe_.leaveOut(fmt::format("{} = {}", path, describe(value)), value.range);
  }

  int64_t derived(llvm::StringRef name) const {
    const Tree *section = tree_.find("derived");
    const Tree *value = section == nullptr ? nullptr : section->find(name);
    return value != nullptr && value->kind == Tree::Kind::Int ? value->integer : 0;
  }

  /// Computes the number of GPUs from the batch sizes and the parallel degrees; the file contains
  /// only the number of nodes.
  void setMachines() {
    using config::Opt;
    auto product = [](auto... factors) { return (1.0 * ... * static_cast<double>(factors)); };
    const config::Derived d = config::computeDerived(recipe_);
    int64_t nodes = derived("nodes");
    double gpus = product(d.globalBatch, d.tensorParallel, d.pipelineParallel, d.contextParallel) /
                  product(d.microBatch, derived("num_microbatches"), nodes);
    if (!recipe_.has(Opt::TrainGlobalBatchSize) || nodes < 1 || gpus < 1 || gpus > 1e6 ||
        std::floor(gpus) != gpus)
      return recipe_.ask("the machines", Opt::ClusterNodes, tree_.range);
    recipe_.set(Opt::ClusterNodes, config::Value::ofInt(nodes), {});
    recipe_.set(Opt::ClusterGpusPerNode, config::Value::ofInt(static_cast<int64_t>(gpus)), {});
    recipe_.ask("the kind of GPU", Opt::ClusterGpu, tree_.range);
  }

  const Tree &tree_;
  RecipeBuilder &recipe_;
};

} // namespace

std::optional<std::string> importBridgeYaml(BufferId input, const ImportOptions &options,
                                            DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  TreePtr tree = readYaml(input, diags);
  if (tree == nullptr)
    return std::nullopt;
  RecipeBuilder recipe(diags);
  // A saved configuration has a class and all fields; other files contain only changes.
  const UpstreamName *made = findName(NameKind::ConfigClass, tree->callName());
  bool isComplete = made != nullptr && made->text == "cfg";
  BridgeSettings settings(recipe, isComplete);
  bool isRead = tree->kind == Tree::Kind::Map;
  if (tree->kind == Tree::Kind::List)
    isRead = llvm::all_of(tree->items, [&](const TreePtr &word) {
      return readOverride(word->text, word->range, settings);
    });
  if (!isRead) {
    diags.report(diag::ImportMalformed, tree->range,
                 "expected sections with their fields, or overrides");
    return std::nullopt;
  }
  if (OwnFile::isOne(*tree)) {
    OwnFile(*tree, recipe).import();
    return printRecipe(recipe, options, diags);
  }
  for (const auto &[section, value] : tree->entries)
    settings.set(section, *value);
  settings.copyPrecision();
  settings.finish();
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
