// shardc: checks recipes, explains them, compiles them to plans, runs them.
#include <CLI/CLI.hpp>

#include "compiler/basic/Suggest.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

namespace {

/// Whether one of the first words names no subcommand where there has to be one; says so then.
/// CLI11 only says that one is missing.
bool isUnknownSubcommand(const CLI::App &app, llvm::ArrayRef<char *> words) {
  using namespace shardc;
  std::string word = words.empty() ? "" : words.front();
  std::vector<std::string> names;
  for (const CLI::App *command : app.get_subcommands({}))
    names.push_back(command->get_name());
  if (app.get_require_subcommand_min() == 0 || word.empty() || word.front() == '-')
    return false;
  if (llvm::is_contained(names, word))
    return isUnknownSubcommand(*app.get_subcommand(word), words.drop_front());
  std::vector<llvm::StringRef> known(names.begin(), names.end());
  llvm::errs() << "shardc: error: unknown subcommand '" << word << "'; ";
  if (Suggestion near = suggest(word, known); !near.names.empty())
    llvm::errs() << "did you mean " << quotedList(near.names) << "?\n";
  else
    llvm::errs() << "the subcommands are " << quotedList(known) << "\n";
  return true;
}

} // namespace

int main(int argc, char **argv) {
  using namespace shardc::tools;
  CLI::App app("compiles training recipes into verified plans and runs them", "shardc");
  app.require_subcommand(1);
  int status = kFine;
  addCheck(app, status);
  addExplain(app, status);
  addDumpPlan(app, status);
  addFit(app, status);
  addRun(app, status, argv[0]);
  addCkpt(app, status);
  addData(app, status);
  addRecipes(app, status);
  addFmt(app, status);
  addImport(app, status);
  addExport(app, status);
  addLsp(app, status);
  if (argc > 1 && isUnknownSubcommand(app, llvm::ArrayRef<char *>(argv, argc).drop_front()))
    return kUsage;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? kFine : kUsage;
  }
  return status;
}
