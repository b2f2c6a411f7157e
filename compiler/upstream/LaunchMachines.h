// The machines of a launch in a script: what launchers, directives and variables say of nodes and
// GPUs.
#pragma once

#include "compiler/upstream/RecipeBuilder.h"
#include "compiler/upstream/Shell.h"

namespace shardc::upstream {

/// What an option of a launcher says: a row of Launchers.def.
struct LauncherRow {
  llvm::StringRef launchers, options, says;
};

/// The launcher that a word names, without folder and ending (`mpiexec.hydra`); empty if the table
/// has none.
llvm::StringRef launcherOf(llvm::StringRef word);

using Visit =
    llvm::function_ref<void(const LauncherRow *row, llvm::StringRef text, const RanWord &word)>;
/// Calls `visit` with each launcher that has a row for itself, and with each option of a launcher
/// and its value; without a row, with other words or the values of other options. An option belongs
/// to the last launcher before it.
void visitOptions(const std::vector<RanWord> &words, Visit visit);

/// Whether a variable affects training. Other variables belong to the shell or may contain secrets.
bool belongsToRun(llvm::StringRef name);

/// Reads directives, other commands, exported variables, and the words before the program. Says if
/// the user names other machines than the script.
void readMachines(RecipeBuilder &recipe, const ShellRun &run,
                  const std::vector<const RanCommand *> &others, const Exports &exports,
                  const std::vector<RanWord> &launcher);

} // namespace shardc::upstream
