// Writes manual pages and completions to the folders of an installation.
#include <filesystem>

#include "compiler/config/Explain.h"
#include "compiler/config/Steps.h"
#include "compiler/tools/CommandHelp.h"
#include "runtime/base/Io.h"
#include "runtime/base/Version.h"

namespace shardc::tools {
namespace {

CompletionWords wordsOfTables() {
  CompletionWords words;
  for (const config::OptionInfo &option : config::options())
    words.settings.push_back(option.path.str() + "=");
  for (llvm::StringRef name : config::explainableNames())
    words.explainable.push_back(name.str());
  for (const config::SectionInfo &section : config::sections())
    words.explainable.push_back(section.name.str());
  SourceManager sources;
  DiagEngine diags(sources);
  config::registerGroups(diags);
  words.groups.assign(diags.flags().groups().begin(), diags.flags().groups().end());
  return words;
}

Status write(const std::filesystem::path &path, const std::string &text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    return makeStatus(StatusCode::Io, "cannot make '{}': {}", path.parent_path().string(),
                      error.message());
  return writeFileAtomic(path.string(), text);
}

} // namespace

Status writeShare(const std::string &folder, const std::vector<std::string> &programs) {
  std::filesystem::path root = folder;
  std::vector<HelpPage> pages;
  for (const std::string &program : programs) {
    ASSIGN_OR_RETURN(HelpPage page, readHelp(program));
    RETURN_IF_ERROR(
        write(root / "man/man1" / (page.words.front() + ".1"), manPage(page, versionNumber())));
    pages.push_back(std::move(page));
  }
  CompletionWords words = wordsOfTables();
  // Shells look up the completion of a program under its name.
  std::string bash = bashCompletion(pages, words), fish = fishCompletion(pages, words);
  for (const HelpPage &page : pages) {
    const std::string &name = page.words.front();
    RETURN_IF_ERROR(write(root / "bash-completion/completions" / name, bash));
    RETURN_IF_ERROR(write(root / "fish/vendor_completions.d" / (name + ".fish"), fish));
  }
  return write(root / "zsh/site-functions/_shardc", zshCompletion(pages, words));
}

} // namespace shardc::tools
