// shardc-docs: writes the reference pages that are generated from tables to a folder, or compares
// them with the files there. Also writes manual pages and completions, generated from the programs'
// help.
#include <cstdio>
#include <filesystem>

#include "compiler/config/Explain.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/tools/CommandHelp.h"
#include "compiler/tools/HfReference.h"
#include "compiler/tools/Reference.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"

namespace shardc {
namespace {

struct Page {
  const char *name;
  std::string text;
};

/// The programs beside this one whose commands a page lists.
Result<std::string> commandPage() {
  std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::vector<tools::HelpPage> programs;
  for (const char *name : {"shardc", "shardc-run"}) {
    ASSIGN_OR_RETURN(tools::HelpPage help, tools::readHelp((here / name).string()));
    programs.push_back(std::move(help));
  }
  return tools::commandReference(programs);
}

std::vector<Page> pages(std::string commands) {
  return {{"commands.md", std::move(commands)},
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
          {"hugging-face.md", tools::hfReference()}};
}

/// A page of prose whose tables, between two marks, come from the code.
Result<Page> environmentPage(const std::string &folder) {
  constexpr std::string_view kBegin = "<!-- made from runtime/base/Launchers.def -->\n",
                             kEnd = "<!-- end -->\n";
  ASSIGN_OR_RETURN(std::string text, readFile(folder + "/environment.md"));
  size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == text.npos || end == text.npos)
    return makeStatus(StatusCode::InvalidInput, "environment.md lacks a mark of its tables");
  begin += kBegin.size();
  text.replace(begin, end - begin, "\n" + tools::launcherReference() + "\n");
  return Page{"environment.md", std::move(text)};
}

/// Whether the file in the folder equals the page that the tables give.
bool isCurrent(const Page &page, const std::string &path) {
  Result<std::string> text = readFile(path);
  if (text.isOk() && *text == page.text)
    return true;
  std::fprintf(stderr, "%s differs from the tables; './dev docs' writes it again\n", path.c_str());
  return false;
}

int run(const std::string &folder, bool check) {
  Result<std::string> commands = commandPage();
  if (!commands.isOk()) {
    std::fprintf(stderr, "shardc-docs: error: %s\n", commands.status().message().c_str());
    return 3;
  }
  Result<Page> environment = environmentPage(folder);
  if (!environment.isOk()) {
    std::fprintf(stderr, "shardc-docs: error: %s\n", environment.status().message().c_str());
    return 3;
  }
  std::vector<Page> all = pages(*commands);
  all.push_back(*environment);
  bool good = true;
  for (const Page &page : all) {
    std::string path = folder + "/" + page.name;
    if (check) {
      good &= isCurrent(page, path);
    } else if (Status status = writeFileAtomic(path, page.text); !status.isOk()) {
      std::fprintf(stderr, "shardc-docs: error: %s\n", status.message().c_str());
      return 3;
    }
  }
  return good ? 0 : 1;
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
  if (programs.empty())
    return run(folder, check);
  Status status = tools::writeShare(folder, programs);
  if (!status.isOk())
    std::fprintf(stderr, "shardc-docs: error: %s\n", status.message().c_str());
  return status.isOk() ? 0 : 3;
}
