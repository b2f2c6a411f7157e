// Reads lines of Python and overrides of Megatron-Bridge without running them. What depends on more
// than literals, such as a setting under a condition, is unknown, unless the text shows the value.
#include <set>

#include "compiler/basic/Format.h"
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/BridgeProgram.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Python.h"
#include "compiler/upstream/PythonCondition.h"
#include "compiler/upstream/Yaml.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

namespace shardc::upstream {
namespace {

constexpr unsigned kContainerDepthMax = 8;
/// Values in a variable: lists of lists of themselves would grow without end.
constexpr unsigned kHeldMax = 1000;

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

/// `a.b=c`, with the marks that Hydra puts before it, and without blanks, as Python is not written.
bool isOverride(llvm::StringRef word) {
  llvm::StringRef path = word.ltrim("+~'\"").split('=').first;
  return word.contains('=') && path.contains('.') && BridgeSettings::isPath(path);
}

/// Functions that start a training, or that change nothing of a configuration.
bool isHarmless(llvm::StringRef function) {
  llvm::StringRef name = lastPart(function);
  constexpr llvm::StringLiteral kNames[] = {"pretrain",   "finetune", "validate", "finalize",
                                            "print_yaml", "to_yaml",  "print",    "info",
                                            "deepcopy",   "debug",    "len",      "print_rank_0"};
  bool isClass = !name.empty() && name.front() >= 'A' && name.front() <= 'Z';
  return isClass || llvm::is_contained(kNames, name);
}

bool isSmall(const Tree &tree, unsigned &budget) {
  if (budget == 0)
    return false;
  --budget;
  return llvm::all_of(tree.items, [&](const TreePtr &item) { return isSmall(*item, budget); }) &&
         llvm::all_of(tree.entries,
                      [&](const auto &entry) { return isSmall(*entry.second, budget); });
}

/// The same value as if the range said it.
TreePtr placedAt(const Tree &tree, SourceRange range) {
  auto copy = std::make_shared<Tree>(tree);
  copy->range = range;
  for (TreePtr &item : copy->items)
    item = placedAt(*item, range);
  for (auto &[key, value] : copy->entries)
    value = placedAt(*value, range);
  return copy;
}

/// Fields of both, where those above replace those below.
TreePtr laidOver(const TreePtr &below, const TreePtr &above) {
  if (below == nullptr || below->kind != Tree::Kind::Map || above->kind != Tree::Kind::Map ||
      above->call == kUnknownCall)
    return above;
  auto both = std::make_shared<Tree>(*below);
  both->call = above->call.empty() ? below->call : above->call;
  for (const auto &[key, value] : above->entries) {
    auto found = llvm::find_if(both->entries, [&](const auto &each) { return each.first == key; });
    if (found == both->entries.end())
      both->entries.emplace_back(key, value);
    else
      found->second = laidOver(found->second, value);
  }
  return both;
}

/// What a recipe function of upstream's sets, by its row; null if it has none.
TreePtr readRecipe(llvm::StringRef function, SourceRange range) {
  auto find = [](llvm::StringRef name) {
    std::string key = ("\n\"" + name + "\": ").str();
    size_t at = bridgeRecipes().find(key);
    return at == llvm::StringRef::npos
               ? llvm::StringRef()
               : bridgeRecipes().substr(at + key.size()).split('\n').first.rtrim(',');
  };
  llvm::StringRef row = find(function);
  if (row.startswith("\"")) // the name of another one
    row = find(row.trim('"'));
  if (row.empty())
    return nullptr;
  std::vector<llvm::StringRef> texts = {find("_pretrain_common")};
  if (row != texts.front())
    texts.insert(texts.end(), {find("*"), row});
  SourceManager sources;
  DiagEngine diags(sources);
  TreePtr tree;
  for (llvm::StringRef text : texts)
    tree = laidOver(tree, readYaml(sources.addBuffer(function.str(), text.str()), diags));
  return placedAt(*tree, range);
}

class Lines {
public:
  explicit Lines(RecipeBuilder &recipe) : recipe_(recipe), bridge_(recipe, /*isComplete=*/false) {
    variables_["__name__"] = makeText("__main__", SourceRange());
    blocks_.push_back({});
  }

  void import(llvm::StringRef text, SourceLoc begin) {
    for (const PythonStatement &statement : readPython(text, begin)) {
      while (blocks_.size() > 1 && blocks_.back().indent >= statement.indent)
        blocks_.pop_back();
      if (statement.kind == PythonStatement::Kind::Block)
        openBlock(statement);
      else if (runs() != Truth::No)
        readStatement(statement);
    }
    if (numFunctions_ > 1)
      for (const auto &[path, range] : ofFunctions_)
        bridge_.forget(path, path + ": several functions set values; --run FILE:FUNCTION", range);
    bridge_.finish();
  }

private:
  struct Block {
    unsigned indent = 0;
    Truth runs = Truth::Yes;
    bool isFunction = false;
    bool setsValues = false; ///< of a function
  };

  // --- blocks ---
  Truth runs() const {
    Truth all = Truth::Yes;
    for (const Block &block : blocks_)
      all = both(all, block.runs);
    return all;
  }

  void openBlock(const PythonStatement &head) {
    llvm::StringRef text = llvm::StringRef(head.text).rtrim(" :");
    auto [word, rest] = text.split(' ');
    Truth outside = runs(), holds = Truth::Unknown;
    for (llvm::StringRef name : namesIn(rest)) // parameters, targets of loops
      if (word != "if" && word != "elif" && word != "while")
        variables_.erase(name.str());
    // In a loop, say, a variable may have another value than in the lines before.
    Truth condition = outside == Truth::Yes ? evaluate(rest) : Truth::Unknown;
    auto before = branches_.find(head.indent);
    Truth taken = before == branches_.end() ? Truth::Unknown : before->second;
    if (word == "if")
      holds = taken = condition;
    else if (word == "elif" || word == "else") {
      holds = both(negated(taken), word == "else" ? Truth::Yes : condition);
      taken = negated(both(negated(taken), negated(holds)));
    } else if (word == "def" || word == "with") {
      holds = Truth::Yes;
    }
    branches_[head.indent] = word == "if" || word == "elif" ? taken : Truth::Unknown;
    if (word == "def")
      functions_.insert(rest.split('(').first.trim().str());
    blocks_.push_back({head.indent, holds, word == "def"});
  }

  /// What follows in the function, or in the file, behind `return`, `raise` and their like.
  void leave() {
    auto inner = std::find_if(blocks_.rbegin(), blocks_.rend(),
                              [](const Block &block) { return block.isFunction; });
    Block &left = inner == blocks_.rend() ? blocks_.front() : *inner;
    left.runs = both(left.runs, negated(runs()));
  }

  // --- values ---
  Truth evaluate(llvm::StringRef condition) const {
    return evaluateCondition(condition, [&](const Tree &value) { return resolve(value); });
  }

  /// The path in a configuration that a dotted name means: that of `cfg.ddp.bucket_size` begins at
  /// `ddp`, and that of a variable at its section.
  std::string pathOf(llvm::StringRef target) const {
    auto [root, rest] = target.split('.');
    if (auto alias = aliases_.find(root.str()); alias != aliases_.end())
      return alias->second + (rest.empty() ? "" : "." + rest.str());
    for (llvm::StringRef part = target; !part.empty(); part = part.split('.').second)
      if (BridgeSettings::isPath(part) &&
          (part != target || target.contains('.') || isPlainPath(target)))
        return part.str();
    return {};
  }

  /// The value with known names replaced; null if one of them is not known.
  TreePtr resolve(const Tree &value) const {
    auto copy = std::make_shared<Tree>(value);
    if (value.kind == Tree::Kind::Name) {
      if (auto found = variables_.find(value.text); found != variables_.end())
        return found->second;
      std::string path = value.text.find('.') == std::string::npos ? "" : pathOf(value.text);
      auto held = values_.find(path);
      return path.empty() ? copy : held != values_.end() ? held->second : nullptr;
    }
    for (TreePtr &item : copy->items)
      if (item = resolve(*item); item == nullptr)
        return nullptr;
    for (auto &[key, inner] : copy->entries)
      if (TreePtr known = resolve(*inner); known != nullptr || value.call.empty())
        inner = known;
      else
        inner = unknownValue(*inner);
    bool isWhole = llvm::all_of(copy->entries, [](const auto &entry) { return entry.second; });
    return isWhole ? copy : nullptr;
  }

  static TreePtr unknownValue(const Tree &value) {
    auto unknown = std::make_shared<Tree>();
    unknown->kind = Tree::Kind::Map;
    unknown->range = value.range;
    unknown->call = kUnknownCall.str();
    unknown->items.push_back(makeText(describe(value), value.range));
    return unknown;
  }

  // --- statements ---
  void readStatement(const PythonStatement &statement) {
    llvm::StringRef text = statement.text;
    if (!text.endswith(",") && llvm::all_of(splitWords(text), isOverride))
      return readOther(text, statement.range);
    if (statement.kind != PythonStatement::Kind::Assignment)
      return readOther(text, statement.range);
    forgetArguments(text.substr(text.find('=') + 1), statement.range);
    TreePtr value = statement.value == nullptr ? nullptr : resolve(*statement.value);
    bool isKnown = value != nullptr && runs() == Truth::Yes;
    for (const std::string &target : statement.targets)
      assign(target, isKnown ? value : nullptr, statement);
    if (statement.targets.front() == "return")
      leave();
  }

  void assign(llvm::StringRef target, const TreePtr &value, const PythonStatement &statement) {
    if (target.startswith("os.environ."))
      return recipe_.setVariable(target.substr(11),
                                 config::Value::ofString(describe(*orText(value, statement))),
                                 statement.range);
    if (!target.contains('.') && !isPlainPath(target))
      return assignName(target.str(), value, statement);
    setPath(pathOf(target), target, value, statement);
  }

  static TreePtr orText(const TreePtr &value, const PythonStatement &statement) {
    return value != nullptr ? value : makeText(statement.text, statement.range);
  }

  /// `mixed_precision = "bf16_mixed"` as a setting by itself.
  static bool isPlainPath(llvm::StringRef target) { return target == "mixed_precision"; }

  void assignName(const std::string &name, const TreePtr &value, const PythonStatement &statement) {
    variables_.erase(name);
    aliases_.erase(name);
    if (roots_.count(name) > 0) // another configuration
      forgetAll(statement.text, statement.range);
    if (isSection(statement.value.get()) && runs() == Truth::Yes) {
      aliases_[name] = pathOf(statement.value->text);
      return;
    }
    if (value == nullptr) {
      if (name == "return" || !hasCall(statement))
        return;
      return noteObject(statement);
    }
    if (value->kind == Tree::Kind::Name)
      return;
    if (value->kind != Tree::Kind::Map || value->call.empty()) {
      unsigned budget = kHeldMax;
      if (isSmall(*value, budget))
        variables_[name] = value;
      return;
    }
    if (value->items.empty() && value->entries.empty() && setRecipe(value->callName(), statement)) {
      roots_.insert(name);
      return;
    }
    if (value->callName() == "ConfigContainer") {
      roots_.insert(name);
      return setContainer(*value, statement, 0);
    }
    llvm::StringRef section = sectionOfClass(value->callName());
    if (section.empty())
      return noteObject(statement);
    for (const auto &[other, held] : aliases_)
      if (held == section) // which of the two the configuration has is not known
        return setPath(section.str(), name, nullptr, statement);
    if (name != "return")
      aliases_[name] = section.str();
    setPath(section.str(), name, value, statement);
  }

  /// All that a recipe function of upstream's sets; false if it has no row.
  bool setRecipe(llvm::StringRef function, const PythonStatement &statement) {
    TreePtr row = readRecipe(function, statement.range);
    if (row == nullptr)
      return false;
    for (const auto &[section, value] : row->entries)
      setPath(section, section, value, statement);
    return true;
  }

  bool isSection(const Tree *value) const {
    return value != nullptr && value->kind == Tree::Kind::Name && isConfiguration(value->text) &&
           value->text.find('.') != std::string::npos;
  }

  static bool hasCall(const PythonStatement &statement) {
    return llvm::StringRef(statement.text).contains('(');
  }

  /// What a function returns, such as a recipe of Megatron-Bridge.
  void noteObject(const PythonStatement &statement) {
    llvm::StringRef made = llvm::StringRef(statement.text).split('=').second.trim();
    if (statement.targets.front() == "return")
      return;
    made_[statement.targets.front()] = makeText(made, statement.range);
  }

  void setContainer(const Tree &container, const PythonStatement &statement, unsigned depth) {
    for (const auto &[section, inner] : container.entries) {
      if (inner->callName() == "ConfigContainer" && depth < kContainerDepthMax)
        setContainer(*inner, statement, depth + 1);
      bool isReference = inner->kind == Tree::Kind::Name && aliases_.count(inner->text) > 0;
      if (!isReference || aliases_[inner->text] != section)
        setPath(section, section, inner->call == kUnknownCall ? nullptr : inner, statement);
    }
  }

  void setPath(const std::string &path, llvm::StringRef target, const TreePtr &value,
               const PythonStatement &statement) {
    if (path.empty())
      return recipe_.leaveOut(
          fmt::format("{} = {}", target.str(), describe(*orText(value, statement))),
          statement.range);
    noteSetting(path, target, statement.range);
    for (auto it = values_.lower_bound(path); it != values_.end() && inSection(it->first, path);)
      it = values_.erase(it);
    if (value == nullptr)
      return bridge_.forget(path, statement.text, statement.range);
    if (unsigned budget = kHeldMax; isSmall(*value, budget)) {
      values_[path] = value;
      for (const auto &[field, inner] : value->entries)
        values_[path + "." + field] = inner;
    }
    bridge_.set(path, *value);
  }

  static bool inSection(llvm::StringRef path, llvm::StringRef section) {
    return path.consume_front(section) && (path.empty() || path.front() == '.');
  }

  void noteSetting(const std::string &path, llvm::StringRef target, SourceRange range) {
    llvm::StringRef root = target.split('.').first;
    if (root != target && aliases_.count(root.str()) == 0 && !BridgeSettings::isPath(target) &&
        roots_.insert(root.str()).second)
      if (auto made = made_.find(root.str()); made != made_.end())
        bridge_.set(kUnknownRest, *made->second);
    for (Block &block : blocks_)
      if (block.isFunction) {
        numFunctions_ += block.setsValues ? 0 : 1;
        block.setsValues = true;
        ofFunctions_.emplace_back(path, range);
        return;
      }
  }

  void forgetAll(llvm::StringRef why, SourceRange range) {
    values_.clear();
    bridge_.forgetAll(why, range);
  }

  /// A function that gets the configuration, or a section of it, may change all of it.
  void forgetArguments(llvm::StringRef text, SourceRange range) {
    if (!text.contains('('))
      return;
    llvm::StringRef function = text.split('(').first.trim();
    std::vector<llvm::StringRef> names = namesIn(text.split('(').second);
    names.push_back(function.contains('.') ? function.substr(0, function.rfind('.')) : "");
    for (llvm::StringRef name : names)
      if (isConfiguration(name) && !isHarmless(function))
        return forgetAll(text, range);
  }

  bool isConfiguration(llvm::StringRef name) const {
    if (roots_.count(name.str()) > 0 || aliases_.count(name.str()) > 0)
      return true;
    std::string path = name.contains('.') ? pathOf(name) : "";
    return !path.empty() && !llvm::StringRef(path).contains('.');
  }

  static std::vector<llvm::StringRef> namesIn(llvm::StringRef text) {
    std::vector<llvm::StringRef> names;
    while (!text.empty()) {
      llvm::StringRef name =
          text.take_while([](char c) { return llvm::isAlnum(c) || c == '_' || c == '.'; });
      if (!name.empty())
        names.push_back(name);
      text = text.drop_front(std::max<size_t>(name.size(), 1));
    }
    return names;
  }

  void readOther(llvm::StringRef text, SourceRange range) {
    llvm::StringRef first = text.split(' ').first.split('(').first;
    if (first == "import" || first == "from" || first == "pass" || first == "global" ||
        first.startswith("@"))
      return;
    if (first == "raise" || first == "sys.exit" || first == "exit" || first == "quit")
      return leave();
    if (text.consume_front("export ")) {
      auto [name, value] = text.split('=');
      return recipe_.setVariable(name.trim(), config::Value::ofString(value.trim(" '\"")), range);
    }
    if (text.consume_front("unset ")) {
      for (llvm::StringRef name : splitWords(text))
        recipe_.setVariable(name, config::Value(), range);
      return;
    }
    if (first == "del")
      return forgetAll(text, range);
    forgetArguments(text, range);
    llvm::StringRef function = text.split('(').first;
    if (text.contains('(') && (functions_.count(function.str()) > 0 || isHarmless(function)))
      return;
    for (llvm::StringRef word : splitWords(text)) {
      bool isQuoted = word.size() > 1 && word.front() == word.back() &&
                      (word.front() == '"' || word.front() == '\'');
      if (!readOverride(isQuoted ? word.drop_front().drop_back() : word, range, bridge_))
        return recipe_.leaveOut(text, range);
    }
  }

  RecipeBuilder &recipe_;
  BridgeSettings bridge_;
  std::vector<Block> blocks_;
  std::map<unsigned, Truth> branches_;         ///< by indent: whether a branch was taken
  std::map<std::string, TreePtr> variables_;   ///< literals
  std::map<std::string, std::string> aliases_; ///< variables that are a section
  std::map<std::string, TreePtr> values_;      ///< by path: settings as they are here
  std::set<std::string> roots_;                ///< variables that are a configuration
  std::map<std::string, TreePtr> made_;        ///< variables that a function made: its call
  std::set<std::string> functions_;            ///< of the text
  std::vector<std::pair<std::string, SourceRange>> ofFunctions_;
  unsigned numFunctions_ = 0; ///< that set something
};

} // namespace

std::optional<std::string> importBridgeOverrides(BufferId input, const ImportOptions &options,
                                                 DiagEngine &diags) {
  if (!checkInput(input, diags))
    return std::nullopt;
  RecipeBuilder recipe(diags);
  Lines(recipe).import(diags.sources().text(input), diags.sources().loc(input, 0));
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
