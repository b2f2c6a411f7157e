// The subcommands of shardc, one file each. Every function adds its command to the program; the
// command's callback stores the exit status.
#pragma once

#include <optional>
#include <string>

namespace shardc::cli {
class Command;
}

namespace shardc::tools {

void addCheck(cli::Command &app, int &status);
void addCkpt(cli::Command &app, int &status);
void addDumpPlan(cli::Command &app, int &status);
void addExplain(cli::Command &app, int &status);
void addFit(cli::Command &app, int &status);
/// `program` is the path of this program, beside which a command finds the runner.
void addDoctor(cli::Command &app, int &status, const char *program);
void addMeasure(cli::Command &app, int &status, const char *program);
void addReport(cli::Command &app, int &status);
void addRun(cli::Command &app, int &status, const char *program);
void addFmt(cli::Command &app, int &status);
void addGenerate(cli::Command &app, int &status, const char *program);
void addScore(cli::Command &app, int &status, const char *program);
void addImport(cli::Command &app, int &status);
void addInit(cli::Command &app, int &status);
void addExport(cli::Command &app, int &status);
void addLsp(cli::Command &app, int &status);
void addData(cli::Command &app, int &status);
void addRecipes(cli::Command &app, int &status);
void addShrink(cli::Command &app, int &status);
void addTune(cli::Command &app, int &status);

/// Subcommands of `shardc data`.
void addDataPacks(cli::Command &data, int &status);
void addDataReference(cli::Command &data, int &status);

/// The overlay with the fastest layout of a recipe, searched with tune's defaults. Empty if no
/// layout is found or the recipe has errors.
std::optional<std::string> tunedLayout(const std::string &recipe);

} // namespace shardc::tools
