// Converts launch lines, scripts, stored arguments and configuration files of Megatron-LM and
// Megatron-Bridge to recipes with the same meaning. Nothing is dropped silently: settings without a
// counterpart are reported and listed in the recipe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// Largest input that is read.
inline constexpr size_t kInputBytesMax = size_t{4} << 20;

struct ImportOptions {
  std::string name;                             ///< of the recipe
  std::string source;                           ///< what the recipe says it came from
  std::map<std::string, std::string> variables; ///< of the shell that would run a script
  std::vector<std::string> arguments;           ///< of the script; empty: not given
  unsigned launch = 0; ///< which one of several, from 1; 0: it must be the only one
};

struct ShellRun;

/// A launch line, a block of flags, a shell script or an sbatch script. Like the others, gives the
/// formatted recipe, or nothing after an error. `commands` is what shell_reader.py says of the
/// input, as JSON.
std::optional<std::string> importMegatronArgs(BufferId input, llvm::StringRef commands,
                                              const ImportOptions &options, DiagEngine &diags);

/// The same for the launches of a script that has run: its commands, with their whole environment.
std::optional<std::string> importMegatronRun(const ShellRun &run, const ImportOptions &options,
                                             DiagEngine &diags);

/// The arguments that Megatron-LM stores in its checkpoints, as a map from attribute to value.
std::optional<std::string> importStoredArgs(const Tree &args, const ImportOptions &options,
                                            DiagEngine &diags);

/// Options of the model and of parallelism in such arguments that Megatron-LM takes for another
/// run.
void readCheckpointArgs(const Tree &args, config::CheckpointSettings &settings);

/// The same for a Hugging Face model, whose settings are options named by the last parts of their
/// paths; None means off. `family` is the word after `model`. The recipe is only a model, without
/// defaults of Megatron-LM.
std::optional<std::string> importHubArgs(const Tree &args, llvm::StringRef family,
                                         const ImportOptions &options, DiagEngine &diags);

/// Megatron-Bridge's run_config.yaml, or another YAML file with its sections.
std::optional<std::string> importBridgeYaml(BufferId input, const ImportOptions &options,
                                            DiagEngine &diags);

/// Overrides of Megatron-Bridge (`ddp.use_megatron_fsdp=true`, one or several in a line) and lines
/// of Python (`cfg.dist.use_megatron_fsdp = True`). `statements` is what bridge_reader.py says of
/// the input, as JSON.
std::optional<std::string> importBridgeStatements(BufferId input, llvm::StringRef statements,
                                                  const ImportOptions &options, DiagEngine &diags);

/// A recipe's name from a path: letters, digits and underscores.
std::string recipeNameOf(llvm::StringRef path);

} // namespace shardc::upstream
