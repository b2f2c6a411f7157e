// Reads Megatron-Bridge's configurations in YAML, and Hydra overrides.
#include "compiler/basic/Format.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kOverrideDepthMax = 40;

/// Parses a value as Hydra does: in Python's syntax, except that strings need no quotes.
class OverrideReader {
public:
  OverrideReader(llvm::StringRef text, SourceRange range) : text_(text), range_(range) {}

  TreePtr readWhole() {
    text_ = text_.trim();
    TreePtr value = readValue(0);
    return text_.empty() ? value : nullptr;
  }

private:
  TreePtr readValue(unsigned depth) {
    text_ = text_.ltrim();
    if (text_.startswith("'") || text_.startswith("\""))
      return makeText(readQuoted(), range_);
    char open = text_.empty() ? '\0' : text_.front();
    if (open == '[' || open == '(' || open == '{')
      return depth < kOverrideDepthMax ? readAll(open, depth + 1) : nullptr;
    llvm::StringRef word = depth == 0 ? text_ : text_.take_until([](char c) {
      return llvm::StringRef(",:)]}\n").contains(c);
    });
    text_ = text_.drop_front(word.size());
    return makeScalar(word.trim(), range_);
  }

  std::string readQuoted() {
    char quote = text_.front();
    std::string out;
    for (text_ = text_.drop_front(); !text_.empty() && text_.front() != quote;
         text_ = text_.drop_front()) {
      if (text_.size() > 1 && text_[0] == '\\' && (text_[1] == quote || text_[1] == '\\'))
        text_ = text_.drop_front();
      out += text_.front();
    }
    isOpen_ |= text_.empty();
    text_ = text_.drop_front(text_.empty() ? 0 : 1);
    return out;
  }

  TreePtr readAll(char open, unsigned depth) {
    char close = open == '[' ? ']' : open == '(' ? ')' : '}';
    auto tree = std::make_shared<Tree>();
    tree->kind = open == '{' ? Tree::Kind::Map : Tree::Kind::List;
    tree->range = range_;
    text_ = text_.drop_front().ltrim();
    while (!text_.consume_front(llvm::StringRef(&close, 1))) {
      TreePtr value = readValue(depth);
      if (open == '{') {
        text_ = text_.ltrim();
        if (value == nullptr || !value->isWord() || !text_.consume_front(":"))
          return nullptr;
        tree->entries.emplace_back(value->text, readValue(depth));
        value = tree->entries.back().second;
      } else {
        tree->items.push_back(value);
      }
      text_ = text_.ltrim();
      bool isNext = text_.consume_front(",");
      text_ = text_.ltrim();
      if (value == nullptr || isOpen_ || (!isNext && (text_.empty() || text_.front() != close)))
        return nullptr;
    }
    return tree;
  }

  llvm::StringRef text_;
  SourceRange range_;
  bool isOpen_ = false; ///< a closing quote is missing
};

TreePtr readOverrideValue(llvm::StringRef text, SourceRange range) {
  TreePtr value = OverrideReader(text, range).readWhole();
  return value == nullptr ? makeText(text, range) : value;
}

} // namespace

bool readOverride(llvm::StringRef word, SourceRange range, BridgeSettings &settings) {
  bool isRemoval = word.startswith("~");
  auto [path, value] = word.ltrim("+~").split('=');
  if (!BridgeSettings::isPath(path) || (!isRemoval && !word.contains('=')))
    return false;
  for (char c : path)
    if (!llvm::isAlnum(c) && c != '_' && c != '.')
      return false;
  settings.set(path, isRemoval ? Tree() : *readOverrideValue(value, range));
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
    int64_t nodes = derived("nodes");
    int64_t batch = recipe_.integer(Opt::TrainGlobalBatchSize).value_or(0);
    int64_t ofReplica = recipe_.integer(Opt::TrainMicroBatchSize).value_or(0);
    bool isSane = !__builtin_mul_overflow(ofReplica, derived("num_microbatches"), &ofReplica);
    if (!isSane || nodes < 1 || ofReplica < 1 || batch < 1 || batch % ofReplica != 0)
      return recipe_.ask("the machines", Opt::ClusterNodes, tree_.range);
    int64_t ranks = batch / ofReplica;
    for (Opt degree : {Opt::ModelTensorModelParallelSize, Opt::ModelPipelineModelParallelSize,
                       Opt::ModelContextParallelSize})
      isSane &= !__builtin_mul_overflow(ranks, recipe_.integer(degree).value_or(1), &ranks);
    if (!isSane || ranks % nodes != 0)
      return recipe_.ask("the machines", Opt::ClusterNodes, tree_.range);
    recipe_.set(Opt::ClusterNodes, config::Value::ofInt(nodes), {});
    recipe_.set(Opt::ClusterGpusPerNode, config::Value::ofInt(ranks / nodes), {});
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
  bool isComplete = tree->callName() == "ConfigContainer";
  BridgeSettings settings(recipe, isComplete);
  if (tree->kind != Tree::Kind::Map) {
    diags.report(diag::ImportMalformed, tree->range, "expected sections with their fields");
    return std::nullopt;
  }
  if (OwnFile::isOne(*tree)) {
    OwnFile(*tree, recipe).import();
    return printRecipe(recipe, options, diags);
  }
  for (const auto &[section, value] : tree->entries)
    settings.set(section, *value);
  settings.finish();
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
