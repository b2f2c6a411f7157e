// shardc-docs: writes the reference pages that are generated from tables to a folder, or compares
// them with the files there. Also writes manual pages and completions, generated from the programs'
// help.
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <string>

#include "compiler/basic/Markdown.h"
#include "compiler/config/Explain.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/tools/CommandHelp.h"
#include "compiler/tools/Reference.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/HfFields.h"

namespace shardc {
namespace {

using checkpoint::HfArchitecture;
using checkpoint::HfField;
using checkpoint::HfOuter;
using checkpoint::HfUse;

std::string architecturesOf(const HfField &row) {
  std::string having, lacking;
  size_t numHaving = 0, numLacking = 0;
  for (const HfArchitecture &one : checkpoint::hfArchitectures()) {
    bool has = row.isOf(one.arch);
    std::string &list = has ? having : lacking;
    ++(has ? numHaving : numLacking);
    list += fmt::format("{}{}", list.empty() ? "" : ", ", one.modelType);
  }
  if (numLacking == 0)
    return "all";
  return numLacking < numHaving ? "all but " + lacking : having;
}

std::string fallbackOf(const HfField &row) {
  return row.fallback.empty() ? "" : fmt::format("; {} if it is absent", row.fallback);
}

/// The text for layers with biases: all linear layers, or only those of queries, keys and values.
std::string biasedLayers(const checkpoint::HfBiases &parts) {
  std::string list = parts.ofQkv ? "queries, keys and values" : "";
  for (const auto &[isOne, name] : {std::pair(parts.ofProjection, "the output of attention"),
                                    std::pair(parts.ofMlp, "feed-forward layers")})
    if (isOne)
      list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

/// If several fields map to one option, all must have the value of the first one. Says so for the
/// others; empty for the first one.
std::string firstOf(const HfField &row) {
  for (const HfArchitecture &one : checkpoint::hfArchitectures())
    if (const HfField *first = checkpoint::findHfCopy(one.arch, row.text);
        row.isOf(one.arch) && first != &row)
      return fmt::format(", must equal `{}`", first->name);
  return "";
}

std::string meaningOf(const HfField &row) {
  switch (row.use) {
  case HfUse::Copy:
    return fmt::format("`model.{}`{}{}", row.text, firstOf(row), fallbackOf(row));
  case HfUse::Sets:
    return std::string(row.text) + fallbackOf(row);
  case HfUse::Biases:
    return fmt::format("biases of {}{}", biasedLayers(row.parts), fallbackOf(row));
  case HfUse::Agrees:
    return std::string(row.text);
  case HfUse::Needs:
    return fmt::format("must be `{}`: {}", row.text, row.what);
  case HfUse::Idle:
    return fmt::format("changes nothing: {}", row.text);
  }
  return "";
}

std::vector<std::string> hfTables() {
  Tables tables;
  tables.begin("`model_type` | class of transformers | `model` of the recipe");
  for (const HfArchitecture &one : checkpoint::hfArchitectures())
    tables.row(code(one.modelType), code(one.className), code(one.recipeFamily));
  tables.begin("`model_type` | class of transformers | `model_type` of the text");
  for (const HfOuter &one : checkpoint::hfOuters())
    tables.row(code(one.modelType), code(one.className), code(one.textType));
  tables.begin("field | architectures | meaning");
  for (const HfField &row : checkpoint::hfFields())
    tables.row(code(row.name), architecturesOf(row), meaningOf(row));
  return tables.texts;
}

/// The commands of the programs beside this one.
Result<std::string> commandTables() {
  std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::vector<tools::HelpPage> programs;
  for (const char *name : {"shardc", "shardc-run"}) {
    ASSIGN_OR_RETURN(tools::HelpPage help, tools::readHelp((here / name).string()));
    programs.push_back(std::move(help));
  }
  return tools::commandReference(programs);
}

/// A page, and the parts of it that tables give, in the page's order. All else is written by hand.
struct Page {
  const char *name;
  std::vector<std::string> made;
};

std::vector<Page> pages(const std::string &commands) {
  return {{"commands.md", {commands}},
          {"coming-from-others.md", tools::foreignReference()},
          {"options.md", config::optionReference()},
          {"rules.md", config::ruleReference()},
          {"diagnostics.md", tools::diagnosticReference()},
          {"messages.md", tools::messageReference()},
          {"ops.md", tools::opReference()},
          {"kinds.md", tools::kindReference()},
          {"passes.md", tools::passReference()},
          {"devices.md", tools::deviceReference()},
          {"job.md", tools::jobReference()},
          {"hugging-face.md", hfTables()},
          {"environment.md", tools::launcherReference()}};
}

/// The page with its parts between marks replaced.
Result<std::string> filled(std::string text, const Page &page) {
  constexpr std::string_view kMark = "<!-- made from ", kEnd = "<!-- end -->\n";
  size_t at = 0;
  for (const std::string &made : page.made) {
    size_t begin = text.find('\n', text.find(kMark, at)), end = text.find(kEnd, begin);
    if (end == text.npos)
      return makeStatus(StatusCode::InvalidInput, "{} lacks a mark of its {} tables", page.name,
                        page.made.size());
    size_t first = made.find_first_not_of('\n'), last = made.find_last_not_of('\n');
    std::string part = "\n\n" + made.substr(first, last + 1 - first) + "\n\n";
    text.replace(begin, end - begin, part);
    at = begin + part.size();
  }
  return text;
}

/// Writes the page with what the tables give, or says that it differs.
Status refresh(const std::string &path, const Page &page, bool check, bool &isCurrent) {
  ASSIGN_OR_RETURN(std::string old, readFile(path));
  ASSIGN_OR_RETURN(std::string text, filled(old, page));
  if (!check)
    return writeFileAtomic(path, text);
  if (text != old)
    std::fprintf(stderr, "%s differs from the tables; './dev docs' writes it again\n",
                 path.c_str());
  isCurrent &= text == old;
  return Status::ok();
}

Status run(const std::string &folder, bool check, bool &isCurrent) {
  ASSIGN_OR_RETURN(std::string commands, commandTables());
  for (const Page &page : pages(commands))
    RETURN_IF_ERROR(refresh(folder + "/" + page.name, page, check, isCurrent));
  return Status::ok();
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  using namespace shardc;
  prepareOutput();
  cli::Program app("writes the reference pages that are generated from the tables", "shardc-docs");
  std::string folder;
  bool check = false;
  app.option("folder", folder, "folder of the pages").required();
  app.flag("--check", check, "write nothing; fail if a page is not current");
  std::vector<std::string> programs;
  app.option("--share", programs, "write manual pages and completions of these programs instead");
  if (std::optional<int> ended = app.parse(argc, argv))
    return *ended;
  bool isCurrent = true;
  Status status =
      programs.empty() ? run(folder, check, isCurrent) : tools::writeShare(folder, programs);
  if (!status.isOk())
    std::fprintf(stderr, "shardc-docs: error: %s\n", status.message().c_str());
  return !status.isOk() ? 3 : isCurrent ? 0 : 1;
}
