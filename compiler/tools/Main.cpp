// shardc: checks recipes, explains them, compiles them to plans, and runs them.
#include <cstdio>
#include <fmt/format.h>
#include <malloc.h>

#include "compiler/parse/Parse.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Confinement.h"
#include "compiler/tools/Runner.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/KernelPath.h"
#include "runtime/base/Output.h"
#include "runtime/base/Version.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc {
namespace {

/// The version lines of shardc-run, which names the backends. They are printed below shardc's.
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

/// Like finishOutput(), for output through LLVM as well. LLVM's streams would abort on an error.
int finish(int status) {
  llvm::outs().flush();
  bool isWritten = !llvm::outs().has_error();
  llvm::outs().clear_error();
  llvm::errs().clear_error();
  return finishOutput("shardc", status, isWritten);
}

/// Adds `shardc help` and, for example, `shardc help ckpt convert`, which print the command's
/// --help.
void addHelp(cli::Program &app, int &status) {
  auto words = std::make_shared<std::vector<std::string>>();
  cli::Command &command = app.addCommand("help", "help on a command");
  command.option("command", *words, "a command, and its own subcommand");
  command.onUse([&app, words, &status] {
    const cli::Command *about = &app;
    std::string name = app.name();
    if (std::optional<std::string> unknown = app.findUnknown(*words)) {
      status = app.refuse(*unknown);
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
} // namespace shardc

int main(int argc, char **argv) {
  using namespace shardc;
  using namespace shardc::tools;
  if (std::optional<int> status = runConfined(argc, argv))
    return *status;
  shardc::prepareOutput();
  // Reuses freed memory. Mapping it again would take a quarter of the time of large plans.
  constexpr int kMapped = 32 << 20, kKept = 512 << 20;
  mallopt(M_MMAP_THRESHOLD, kMapped);
  mallopt(M_TRIM_THRESHOLD, kKept);
  cli::Program app("compiles training recipes into verified plans and runs them", "shardc");
  app.requireCommand();
  int status = kFine;
  addInit(app, status);
  addCheck(app, status);
  addExplain(app, status);
  addDumpPlan(app, status);
  addFit(app, status);
  addReport(app, status);
  addTune(app, status);
  addRun(app, status, argv[0]);
  addMeasure(app, status, argv[0]);
  addDoctor(app, status, argv[0]);
  addGenerate(app, status, argv[0]);
  addScore(app, status, argv[0]);
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
  if (argc < 2)
    return finish(writeOutput("", app.help(app.name())));
  if (Status known = checkKernelPaths(); !known.isOk())
    return finish(app.refuse(lineOf(known.report())));
  return finish(app.parse(argc, argv).value_or(status));
}
