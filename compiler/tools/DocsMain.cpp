// shardc-docs: writes the reference pages that are generated from tables to a folder, or compares
// them with the files there. Also writes manual pages and completions, generated from the programs'
// help.
#include <cstdio>

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

std::vector<Page> pages() {
  return {{"options.md", config::optionReference()},
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

/// Whether the file in the folder equals the page that the tables give.
bool isCurrent(const Page &page, const std::string &path) {
  Result<std::string> text = readFile(path);
  if (text.isOk() && *text == page.text)
    return true;
  std::fprintf(stderr, "%s differs from the tables; './dev docs' writes it again\n", path.c_str());
  return false;
}

int run(const std::string &folder, bool check) {
  bool good = true;
  for (const Page &page : pages()) {
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
