// The subcommands of shardc, one file each. Every function adds its command to the program; the
// command's callback stores the exit status.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace shardc::tools {

void addCheck(CLI::App &app, int &status);
void addCkpt(CLI::App &app, int &status);
void addDumpPlan(CLI::App &app, int &status);
void addExplain(CLI::App &app, int &status);
void addFit(CLI::App &app, int &status);
void addRun(CLI::App &app, int &status, const char *program);
void addFmt(CLI::App &app, int &status);
void addImport(CLI::App &app, int &status);
void addExport(CLI::App &app, int &status);
void addLsp(CLI::App &app, int &status);
void addData(CLI::App &app, int &status);
void addRecipes(CLI::App &app, int &status);

/// shardc-run, which is in the folder of this program; `program` is the name with which this one
/// was started.
std::string findRunner(const std::string &program);

} // namespace shardc::tools
