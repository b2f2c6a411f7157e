#include "compiler/tools/ImportHf.h"

#include <filesystem>

#include "compiler/upstream/JsonPlace.h"
#include "compiler/upstream/Tree.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/HfArguments.h"
#include "runtime/checkpoint/HfConvert.h"

namespace shardc::tools {
namespace {

using checkpoint::HfConfig;
using checkpoint::PlainEntries;
using checkpoint::PlainItems;
using checkpoint::PlainValue;
using upstream::Tree;
using upstream::TreePtr;

TreePtr treeOf(const PlainValue &value) {
  auto tree = std::make_shared<Tree>();
  if (const bool *flag = value.as<bool>()) {
    tree->kind = Tree::Kind::Bool;
    tree->boolean = *flag;
  } else if (const auto *whole = value.as<int64_t>()) {
    tree->kind = Tree::Kind::Int;
    tree->integer = *whole;
  } else if (const auto *number = value.as<double>()) {
    tree->kind = Tree::Kind::Float;
    tree->number = *number;
  } else if (const auto *text = value.as<std::string>()) {
    tree->kind = Tree::Kind::Text;
    tree->text = *text;
  } else if (const auto *items = value.as<PlainItems>()) {
    tree->kind = Tree::Kind::List;
    for (const PlainValue &item : *items)
      tree->items.push_back(treeOf(item));
  }
  return tree;
}

/// Reports the fault at its field: at the name of one that is not known, at the value of others.
void report(const Status &status, const std::string &field, BufferId input, DiagEngine &diags) {
  const Report told = status.report();
  llvm::StringRef text = diags.sources().text(input);
  SourceRange range(diags.sources().loc(input, 0));
  if (std::optional<upstream::JsonPlace> place = upstream::findJsonField(text, field)) {
    bool isName = told.id == report::HfFieldUnknown.info().id;
    auto [begin, end] = isName ? place->key : place->value;
    range = diags.sources().range(input, begin, end);
  }
  diags.report(DiagInfo{Severity::Error, {told.id.data(), told.id.size()}, "", "{0}"}, range,
               {DiagArg(told.text)});
}

} // namespace

std::optional<std::string> importHf(BufferId input, const upstream::ImportOptions &options,
                                    DiagEngine &diags) {
  const llvm::StringRef whole = diags.sources().text(input);
  const std::string_view text(whole.data(), whole.size());
  const std::string path(diags.sources().name(input));
  std::string field;
  Result<HfConfig> config = checkpoint::parseHfConfig(text, path, &field);
  if (!config.isOk()) {
    report(config.status(), field, input, diags);
    return std::nullopt;
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  config->mtpLayers = checkpoint::predictorsIn(folder.empty() ? "." : folder.string(), *config);
  Result<PlainEntries> arguments =
      checkpoint::hfArguments(*config, config->biases, text, path, &field);
  if (!arguments.isOk()) {
    report(arguments.status(), field, input, diags);
    return std::nullopt;
  }
  Tree tree;
  tree.kind = Tree::Kind::Map;
  for (const auto &[name, value] : *arguments)
    tree.entries.emplace_back(name, treeOf(value));
  std::string_view family = checkpoint::infoOf(config->arch).recipeFamily;
  return upstream::importHubArgs(tree, {family.data(), family.size()}, options, diags);
}

std::string hfConfigPath(const std::string &path) {
  std::error_code error;
  std::filesystem::path folder(path);
  return std::filesystem::is_directory(folder, error) ? (folder / "config.json").string() : path;
}

} // namespace shardc::tools
