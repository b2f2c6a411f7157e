// Applies the settings that bridge_reader.py found in Python code and overrides of Megatron-Bridge.
#include "compiler/upstream/Bridge.h"
#include "compiler/upstream/ImportedRecipe.h"
#include "compiler/upstream/Yaml.h"

namespace shardc::upstream {
namespace {

/// Applies one statement; returns false if it is not in the format that bridge_reader.py writes.
bool readStatement(const Tree &statement, BufferId input, RecipeBuilder &recipe,
                   BridgeSettings &bridge) {
  const std::vector<TreePtr> &parts = statement.items;
  if (parts.size() != 5 || !parts[3]->isWord())
    return false;
  const SourceManager &sources = recipe.diags().sources();
  int64_t begin = parts[0]->integer, end = parts[1]->integer;
  if (begin < 0 || end < begin || end > static_cast<int64_t>(sources.text(input).size()))
    return false;
  SourceRange range = sources.range(input, begin, end);
  if (parts[2]->text == "set") {
    bridge.set(parts[3]->text, *locatedAt(range, *parts[4]));
    return true;
  }
  for (const TreePtr &word : parts[4]->items)
    if (!readOverride(word->text, range, bridge)) {
      recipe.leaveOut(parts[3]->text, range);
      break;
    }
  return true;
}

} // namespace

std::optional<std::string> importBridgeStatements(BufferId input, llvm::StringRef statements,
                                                  const ImportOptions &options, DiagEngine &diags) {
  RecipeBuilder recipe(diags);
  BridgeSettings bridge(recipe, /*isComplete=*/false);
  TreePtr all = readYaml(statements.str());
  bool isRead = all != nullptr;
  for (size_t i = 0; isRead && i < all->items.size(); ++i)
    isRead = readStatement(*all->items[i], input, recipe, bridge);
  if (!isRead) {
    diags.report(diag::ImportMalformed, SourceRange(), "what its reader says is not understood");
    return std::nullopt;
  }
  bridge.finish();
  return printRecipe(recipe, options, diags);
}

} // namespace shardc::upstream
