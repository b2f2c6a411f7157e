// Converts launch commands, scripts, stored arguments and configuration files of Megatron-LM and
// Megatron-Bridge to recipes with the same meaning. Settings without a counterpart are reported and
// listed in the recipe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// Maximum size of an input in bytes.
inline constexpr size_t kInputBytesMax = size_t{4} << 20;

struct ImportOptions {
  std::string name;                             ///< name of the recipe
  std::string source;                           ///< the origin that the recipe's head states
  std::map<std::string, std::string> variables; ///< of the shell in which a script would run
  std::map<std::string, std::string> files;     ///< texts of files beside a script, by name
  std::vector<std::string> arguments;           ///< arguments of the script; empty if not given
  unsigned launch = 0; ///< which of several launches, from 1; 0 if there must be only one
};

struct RanCommand;
struct ShellRun;

/// Whether a command starts a training, with flags or overrides for it.
bool startsTraining(const RanCommand &command);

/// Imports a launch command, a list of flags, a shell script or an sbatch script. Returns the
/// formatted recipe, or empty after an error; so do the importers below. `commands` is the JSON
/// output of shell_reader.py for the input.
std::optional<std::string> importMegatronArgs(BufferId input, llvm::StringRef commands,
                                              const ImportOptions &options, DiagEngine &diags);

/// Imports the launches of a script that has run: its commands with their complete environment.
std::optional<std::string> importMegatronRun(const ShellRun &run, const ImportOptions &options,
                                             DiagEngine &diags);

/// Imports the arguments that Megatron-LM stores in checkpoints; `args` maps attributes to values.
std::optional<std::string> importStoredArgs(const Tree &args, const ImportOptions &options,
                                            DiagEngine &diags);

/// Reads the options of the model and of parallelism that Megatron-LM takes from a checkpoint's
/// arguments for another run.
void readCheckpointArgs(const Tree &args, config::CheckpointSettings &settings);

/// Imports a Hugging Face model. `args` maps the last part of an option's path to its value; None
/// means off. `family` is the word after `model`. The recipe contains only a model, and none of
/// Megatron-LM's defaults.
std::optional<std::string> importHubArgs(const Tree &args, llvm::StringRef family,
                                         const ImportOptions &options, DiagEngine &diags);

/// Imports Megatron-Bridge's run_config.yaml, or another YAML file with the same sections.
std::optional<std::string> importBridgeYaml(BufferId input, const ImportOptions &options,
                                            DiagEngine &diags);

/// A form of configuration files of another program.
struct ForeignForm {
  llvm::StringLiteral name, program, words; ///< words of commands that start the program
};
inline constexpr ForeignForm kForeignForms[] = {
#define FORM(form, program, words) {form, program, words},
#include "compiler/upstream/ForeignForms.def"
};

/// Imports a file of such a form by the names that the page "Coming from others" has. Fields
/// without one are listed in the recipe.
std::optional<std::string> importForeign(BufferId input, llvm::StringRef form,
                                         const ImportOptions &options, DiagEngine &diags);

/// A valid recipe name for a path: letters, digits and underscores of the file name.
std::string recipeNameOf(llvm::StringRef path);

} // namespace shardc::upstream
