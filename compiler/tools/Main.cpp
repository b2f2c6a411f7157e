// shardc: checks recipes, explains them, compiles them to plans, runs them.
#include <CLI/CLI.hpp>

#include "compiler/tools/Commands.h"
#include "compiler/tools/Session.h"

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
  addData(app, status);
  addFmt(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? kFine : kUsage;
  }
  return status;
}
