// Reads Megatron-Bridge's forms of input: YAML, overrides, and lines of Python.
#include "compiler/basic/Format.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Python.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kContainerDepthMax = 8;

struct ConfigClass {
  llvm::StringRef name;
  llvm::StringRef section;
};
constexpr ConfigClass kConfigClasses[] = {
#define CONFIG_CLASS(name, section) {name, section},
#include "compiler/upstream/UpstreamFlags.def"
};

llvm::StringRef sectionOfClass(llvm::StringRef name) {
  for (const ConfigClass &row : kConfigClasses)
    if (row.name == name)
      return row.section;
  return name.endswith("Provider") || name.endswith("ModelConfig") ? "model" : "";
}

/// The part of a dotted target that begins with a section: `cfg.ddp.bucket_size` without `cfg`.
llvm::StringRef pathOf(llvm::StringRef target) {
  llvm::StringRef rest = target;
  while (!rest.empty()) {
    if (BridgeSettings::isPath(rest))
      return rest;
    rest = rest.split('.').second;
  }
  return {};
}

/// Words of a line, brackets and quotes kept together.
std::vector<llvm::StringRef> splitWords(llvm::StringRef line) {
  std::vector<llvm::StringRef> words;
  size_t begin = 0;
  int open = 0;
  char quote = '\0';
  for (size_t i = 0; i <= line.size(); ++i) {
    char c = i < line.size() ? line[i] : ' ';
    if (quote != '\0')
      quote = c == quote ? '\0' : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    open += c == '[' || c == '{' || c == '(' ? 1 : 0;
    open -= c == ']' || c == '}' || c == ')' ? 1 : 0;
    bool isEnd = i == line.size() || (llvm::isSpace(c) && quote == '\0' && open <= 0);
    if (!isEnd)
      continue;
    if (i > begin && line.slice(begin, i) != "\\")
      words.push_back(line.slice(begin, i));
    begin = i + 1;
  }
  return words;
}

class Overrides {
public:
  explicit Overrides(RecipeBuilder &recipe)
      : recipe_(recipe), bridge_(recipe, /*isComplete=*/false) {}

  void import(llvm::StringRef text, SourceLoc begin) {
    PythonText python = readPython(text, begin);
    for (const PythonAssignment &assignment : python.assignments)
      readAssignment(assignment, text, begin);
    for (const PythonOther &other : python.others)
      readOther(other.text, other.range);
    bridge_.finish();
  }

private:
  void readAssignment(const PythonAssignment &assignment, llvm::StringRef text, SourceLoc begin) {
    if (assignment.value == nullptr) {
      size_t at = assignment.range.begin.raw() - begin.raw();
      readOther(text.substr(at, assignment.range.sizeBytes()).rtrim().str(), assignment.range);
      return;
    }
    readTarget(assignment.target, *assignment.value, assignment.range, 0);
  }

  void readTarget(llvm::StringRef target, const Tree &value, SourceRange range, unsigned depth) {
    if (target.consume_front("os.environ."))
      return recipe_.setVariable(target, config::Value::ofString(describe(value)), range);
    if (value.kind == Tree::Kind::Map && value.callName() == "ConfigContainer" &&
        depth < kContainerDepthMax) {
      for (const auto &[section, inner] : value.entries)
        readTarget(section, *inner, range, depth + 1);
      return;
    }
    llvm::StringRef path = pathOf(target);
    if (path.empty() && value.kind == Tree::Kind::Map)
      path = sectionOfClass(value.callName());
    if (path.empty())
      return recipe_.leaveOut(fmt::format("{} = {}", target.str(), describe(value)), range);
    // `ddp=ddp` of a container names an object that was read where it was made.
    bool isReference = value.kind == Tree::Kind::Name && !path.contains('.');
    if (!isReference || path == "mixed_precision")
      bridge_.set(path, value);
  }

  void readOther(llvm::StringRef text, SourceRange range) {
    if (text.startswith("import ") || text.startswith("from "))
      return;
    if (text.consume_front("export ")) {
      auto [name, value] = text.split('=');
      return recipe_.setVariable(name.trim(), config::Value::ofString(value.trim(" '\"")), range);
    }
    if (text.consume_front("unset ")) {
      for (llvm::StringRef name : splitWords(text))
        recipe_.setVariable(name, config::Value(), range);
      return;
    }
    for (llvm::StringRef word : splitWords(text)) {
      bool isQuoted = word.size() > 1 && word.front() == word.back() &&
                      (word.front() == '"' || word.front() == '\'');
      if (!readOverride(isQuoted ? word.drop_front().drop_back() : word, range, bridge_))
        return recipe_.leaveOut(text, range);
    }
  }

  RecipeBuilder &recipe_;
  BridgeSettings bridge_;
};

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

std::optional<std::string> importBridgeYaml(BufferId input, const ImportOptions &options,
                                            DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  TreePtr tree = readYaml(input, diags);
  if (tree == nullptr)
    return std::nullopt;
  RecipeBuilder recipe(diags);
  // A configuration that was written out names its class and every field; others only changes.
  bool isComplete = tree->callName() == "ConfigContainer";
  BridgeSettings settings(recipe, isComplete);
  if (tree->kind != Tree::Kind::Map) {
    diags.report(diag::ImportMalformed, tree->range, "expected sections with their fields");
    return std::nullopt;
  }
  for (const auto &[section, value] : tree->entries)
    settings.set(section, *value);
  settings.finish();
  return printRecipe(recipe, options, diags);
}

std::optional<std::string> importBridgeOverrides(BufferId input, const ImportOptions &options,
                                                 DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  RecipeBuilder recipe(diags);
  Overrides(recipe).import(diags.sources().text(input), diags.sources().loc(input, 0));
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
