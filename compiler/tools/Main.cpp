// shardc: checks recipes, explains them, compiles them to plans, runs them.
#include <cstdio>
#include <fmt/format.h>

#include "compiler/basic/Suggest.h"
#include "compiler/parse/Parse.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Version.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/raw_ostream.h"

namespace {

using namespace shardc;

/// Whether one of the first words names no subcommand where there has to be one; says so then.
/// The parser only says that one is missing.
bool isUnknownSubcommand(const cli::Command &app, llvm::ArrayRef<char *> words) {
  std::string word = words.empty() ? "" : words.front();
  if (!app.needsCommand() || word.empty() || word.front() == '-')
    return false;
  if (const cli::Command *command = app.findCommand(word))
    return isUnknownSubcommand(*command, words.drop_front());
  std::vector<std::string> names = app.commandNames();
  std::vector<llvm::StringRef> known(names.begin(), names.end());
  llvm::errs() << "shardc: error: unknown subcommand '" << word << "'; ";
  if (Suggestion near = suggest(word, known); !near.names.empty())
    llvm::errs() << "did you mean " << quotedList(near.names) << "?\n";
  else
    llvm::errs() << "the subcommands are " << quotedList(known) << "\n";
  return true;
}

/// What shardc-run says of itself below what this program says: backends are its matter.
std::string versionLines(const std::string &runner) {
  std::string text = fmt::format(
      "shardc {}\nlibraries: LLVM {}, ANTLR {}, fmt {}.{}.{}, CLI11 {}, nlohmann-json {}.{}.{}\n",
      versionText(), LLVM_VERSION_STRING, parserVersion(), FMT_VERSION / 10000,
      FMT_VERSION / 100 % 100, FMT_VERSION % 100, cli::libraryVersion(),
      NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
  std::string said;
  if (std::FILE *pipe = ::popen(("'" + runner + "' --version 2>&1").c_str(), "r")) {
    char buffer[1024];
    while (size_t bytes = std::fread(buffer, 1, sizeof buffer, pipe))
      said.append(buffer, bytes);
    if (::pclose(pipe) != 0)
      said = "'" + runner + "' cannot be run: there is no backend\n";
  }
  return text + llvm::StringRef(said).rtrim('\n').str();
}

/// `shardc help`, `shardc help ckpt convert`: what --help of that command prints.
void addHelp(cli::Command &app, int &status) {
  auto words = std::make_shared<std::vector<std::string>>();
  cli::Command &command = app.addCommand("help", "help on a command");
  command.option("command", *words, "a command, and its own subcommand");
  command.onUse([&app, words, &status] {
    const cli::Command *about = &app;
    std::string name = app.name();
    std::vector<char *> rest;
    for (std::string &word : *words)
      rest.push_back(word.data());
    if (!rest.empty() && isUnknownSubcommand(app, rest)) {
      status = tools::kUsage;
      return;
    }
    for (const std::string &word : *words)
      if (const cli::Command *next = about->findCommand(word)) {
        about = next;
        name += " " + next->name();
      }
    status = tools::writeOutput("", about->help(name));
  });
}

} // namespace

int main(int argc, char **argv) {
  using namespace shardc::tools;
  cli::Program app("compiles training recipes into verified plans and runs them", "shardc");
  app.requireCommand();
  int status = kFine;
  addCheck(app, status);
  addExplain(app, status);
  addDumpPlan(app, status);
  addFit(app, status);
  addRun(app, status, argv[0]);
  addCkpt(app, status);
  addData(app, status);
  addRecipes(app, status);
  addShrink(app, status);
  addFmt(app, status);
  addImport(app, status);
  addExport(app, status);
  addLsp(app, status);
  addHelp(app, status);
  std::string runner = findRunner(argv[0]);
  app.versionFlag(
      "--version", [&runner] { return versionLines(runner); },
      "print version, commit, backends and libraries");
  if (argc > 1 && isUnknownSubcommand(app, llvm::ArrayRef<char *>(argv, argc).drop_front()))
    return kUsage;
  return app.parse(argc, argv).value_or(status);
}
