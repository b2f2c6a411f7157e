// The four steps from recipe files to a Config. Each one turns one structure into another. No step
// stops at the first error, so that all errors of a recipe are reported together. An option whose
// value could not be read is marked as poisoned, and rules that would read it stay silent.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/basic/SourceManager.h"
#include "compiler/config/Config.h"
#include "compiler/diag/Engine.h"

namespace shardc::config {

/// Maximum number of recipes that may be reached by `extends`, and maximum depth.
inline constexpr unsigned kRecipeFilesMax = 256;
inline constexpr unsigned kExtendsDepthMax = 32;

/// Maximum number of environment variables that are not options.
inline constexpr unsigned kVariablesMax = 4096;

/// Opens the data of a configuration and counts their samples.
using DataMeter = std::function<DataLengths(const Config &)>;

/// Reads the options of the run that saved the configuration's checkpoint.
using CheckpointReader = std::function<CheckpointSettings(const Config &)>;

/// Files and settings that were read once, for configurations that differ in further settings.
struct ReadRecipe;

/// What a configuration is read from.
struct LoadOptions {
  std::string path;                  ///< the recipe
  std::vector<std::string> overlays; ///< recipe files laid over it, later ones over earlier ones
  std::vector<std::string> sets;     ///< `path=value`, over everything
  /// If given, only the model of the recipe is loaded, for one rank of the host, with these
  /// `path=value` over everything.
  std::optional<std::vector<std::string>> oneRank;
  /// Variables that section `env` may set although the table of variables does not list them.
  std::vector<std::string> allowedVariables;
  bool isForUpstream = false;             ///< shardc need not be able to execute it
  DataMeter measure;                      ///< called where options count in passes over the data
  CheckpointReader readCheckpoint;        ///< called where options are to come from a checkpoint
  std::shared_ptr<const ReadRecipe> read; ///< recipe and overlays, if read already
};

/// Reads the recipe, its overlays and sets. Null after an error.
std::shared_ptr<const ReadRecipe> readRecipe(const LoadOptions &options);

/// The steps from text to a validated configuration, in order.
enum class Step : uint8_t { Resolve, Defaults, Adjust, Validate };

/// The name of a step: `resolve`, `defaults`, `adjust` or `validate`.
llvm::StringRef stepName(Step step);

/// Registers the groups of the rule table for the engine's -W flags. Must be called before flags
/// are applied.
void registerGroups(DiagEngine &diags);

/// Runs all four steps. `after` is called with the result of each step, if given. Returns nothing
/// after an error, which is reported; a file that cannot be read is also an error.
std::optional<Config> loadConfig(SourceManager &sources, DiagEngine &diags,
                                 const LoadOptions &options,
                                 const std::function<void(Step, const Config &)> &after = {});

/// Like loadConfig() above, for a recipe in a buffer.
std::optional<Config> loadConfig(SourceManager &sources, DiagEngine &diags, BufferId recipe,
                                 const LoadOptions &options,
                                 const std::function<void(Step, const Config &)> &after = {});

/// Step 1 applies inheritance and constants, and checks types, units and ranges. Returns nothing if
/// errors leave no recipe for the next steps.
std::optional<Config> resolve(SourceManager &sources, DiagEngine &diags, BufferId recipe,
                              const LoadOptions &options);

/// The buffers of all files that were read. Locations in a configuration refer to them.
void copySources(const ReadRecipe &read, SourceManager &sources);

/// Step 2: derives values of unset options; fills derived(), and lengths() and checkpoint() if
/// options need them.
Config deriveDefaults(Config config, DiagEngine &diags, const LoadOptions &options = {});

/// Step 3: applies the adjustments until nothing changes. Each change is a remark.
Config adjust(Config config, DiagEngine &diags);

/// Step 4: checks the rules.
void validate(const Config &config, DiagEngine &diags);

/// The effective recipe in recipe syntax, with canonical names. Omits the table's defaults unless
/// `everything`. Parsing the text gives a recipe with the same values.
std::string printRecipe(const Config &config, bool everything = false);

/// The derived values of a configuration, which depend only on its options.
Derived computeDerived(const Config &config);

} // namespace shardc::config
