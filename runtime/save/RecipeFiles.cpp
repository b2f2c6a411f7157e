// Each source text of the plan is a file; command.txt has the command line that compiles them
// again.
#include "runtime/save/RecipeFiles.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "runtime/checkpoint/DcpMetadata.h"
#include "runtime/checkpoint/RunState.h"

namespace shardc::save {
namespace {

constexpr const char *kCommandFile = "command.txt";

/// Quotes a word for a shell if needed.
std::string shellQuoted(const std::string &word) {
  auto isPlain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_./=,:+-@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, isPlain))
    return word;
  std::string text = "'";
  for (char c : word)
    text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

/// The file name of a source: its own name, unless a plan from elsewhere has a name that is not
/// valid for a file.
std::string fileNameOf(const plan::Plan &plan, size_t index) {
  const std::string &name = plan.sources[index].name;
  bool isTaken = name == kCommandFile;
  for (size_t i = 0; i < index; ++i)
    isTaken =
        isTaken || (plan.sources[i].kind != plan::Source::Setting &&
                    (name == plan.sources[i].name || name.starts_with(plan.sources[i].name + "/") ||
                     plan.sources[i].name.starts_with(name + "/")));
  return checkpoint::isPlainPath(name) && !isTaken ? name : fmt::format("source_{}.recipe", index);
}

} // namespace

std::vector<RecipeFile> recipeFiles(const plan::Plan &plan) {
  std::vector<RecipeFile> files;
  std::string recipe, changes;
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    const plan::Source &source = plan.sources[i];
    if (source.kind == plan::Source::Setting) {
      changes += " --set " + shellQuoted(source.text);
      continue;
    }
    std::string name = fileNameOf(plan, i);
    files.push_back({fmt::format("{}/{}", checkpoint::kRecipeFolder, name), source.text});
    if (source.kind == plan::Source::Recipe)
      recipe = shellQuoted(name);
    else if (source.kind == plan::Source::Overlay)
      changes += " --overlay " + shellQuoted(name);
  }
  if (!recipe.empty())
    files.push_back({fmt::format("{}/{}", checkpoint::kRecipeFolder, kCommandFile),
                     fmt::format("shardc run {}{}\n", recipe, changes)});
  return files;
}

} // namespace shardc::save
