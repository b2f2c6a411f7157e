// Applies the settings that bridge_reader.py found in Python code and overrides of Megatron-Bridge.
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/ReaderResult.h"

namespace shardc::upstream {
namespace {

using llvm::json::Array;

constexpr unsigned kValueDepthMax = 100;

class Statements : ReaderResult {
public:
  Statements(BufferId input, RecipeBuilder &recipe)
      : ReaderResult(input, recipe.diags().sources()), recipe_(recipe),
        bridge_(recipe, /*isComplete=*/false) {}

  /// Returns false if `statements` is not in the format that bridge_reader.py writes.
  bool read(const Array &statements) {
    for (const llvm::json::Value &statement : statements)
      if (const Array *parts = statement.getAsArray(); parts == nullptr || !readOne(*parts))
        return false;
    bridge_.finish();
    return true;
  }

private:
  bool readOne(const Array &parts) {
    SourceRange place = range(&parts);
    llvm::StringRef what = text(parts, 2), first = text(parts, 3), second = text(parts, 4);
    if (what == "set") {
      const Array *value = list(parts, 4);
      TreePtr tree = value == nullptr ? nullptr : readTree(*value, 0);
      if (tree != nullptr)
        bridge_.set(first, *tree);
      return tree != nullptr;
    }
    if (what == "words")
      readWords(parts, first, place);
    else if (what == "leave_out")
      recipe_.leaveOut(first, place);
    else if (what == "variable")
      recipe_.setVariable(first, second.data() ? config::Value::ofString(second) : config::Value(),
                          place);
    else if (what == "forget")
      bridge_.forget(first, second, place);
    else if (what == "forget_all")
      bridge_.forgetAll(first, place);
    else
      return false;
    return true;
  }

  void readWords(const Array &parts, llvm::StringRef line, SourceRange place) {
    const Array *words = list(parts, 4);
    for (size_t i = 0; words != nullptr && i < words->size(); ++i)
      if (!readOverride(text(*words, i), place, bridge_))
        return recipe_.leaveOut(line, place);
  }

  TreePtr readTree(const Array &parts, unsigned depth) const {
    llvm::StringRef kind = text(parts, 2), word = text(parts, 3);
    if (kind == "scalar")
      return makeScalar(word, range(&parts));
    if (kind == "text" || kind == "name")
      return makeText(word, range(&parts), kind == "text" ? Tree::Kind::Text : Tree::Kind::Name);
    bool isCall = kind == "call";
    size_t numParts = isCall ? 6 : 4;
    if ((!isCall && kind != "list") || parts.size() != numParts || depth > kValueDepthMax)
      return nullptr;
    auto tree = std::make_shared<Tree>();
    tree->kind = isCall ? Tree::Kind::Map : Tree::Kind::List;
    tree->range = range(&parts);
    tree->call = word.str();
    const Array *items = list(parts, isCall ? 4 : 3), *entries = list(parts, 5);
    for (size_t i = 0; items != nullptr && i < items->size(); ++i)
      if (tree->items.push_back(readInner((*items)[i], depth)); tree->items.back() == nullptr)
        return nullptr;
    for (size_t i = 0; entries != nullptr && i < entries->size(); ++i) {
      const Array *entry = (*entries)[i].getAsArray();
      TreePtr value =
          entry != nullptr && entry->size() == 2 ? readInner((*entry)[1], depth) : nullptr;
      if (value == nullptr)
        return nullptr;
      tree->entries.emplace_back(text(*entry, 0).str(), std::move(value));
    }
    return tree;
  }

  TreePtr readInner(const llvm::json::Value &value, unsigned depth) const {
    const Array *parts = value.getAsArray();
    return parts == nullptr ? nullptr : readTree(*parts, depth + 1);
  }

  RecipeBuilder &recipe_;
  BridgeSettings bridge_;
};

} // namespace

std::optional<std::string> importBridgeStatements(BufferId input, llvm::StringRef statements,
                                                  const ImportOptions &options, DiagEngine &diags) {
  RecipeBuilder recipe(diags);
  llvm::Expected<llvm::json::Value> read = llvm::json::parse(statements);
  if (!read)
    llvm::consumeError(read.takeError());
  else if (read->getAsArray() != nullptr && Statements(input, recipe).read(*read->getAsArray()))
    return printRecipe(recipe, options, diags);
  diags.report(diag::ImportMalformed, SourceRange(), "what its reader says is not understood");
  return std::nullopt;
}

} // namespace shardc::upstream
