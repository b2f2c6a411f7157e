// Which environment variables a recipe or a plan may set, and the environment of the programs that
// a run starts. Recipes come from strangers: what they set must not load code, move a process to
// another place of its job, or open it to others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardc {

enum class VariableUse : uint8_t {
  Settable, ///< changes how a library computes or sends
  Position, ///< the place of a process in its job: never from a recipe
  Secret,   ///< recipes are shared and saved with checkpoints: never from a recipe
  Other,    ///< may load files or is unknown: only by --allow-env
};

/// The use of a name, by the lists of RecipeVariables.cpp.
VariableUse useOfVariable(std::string_view name);

/// The text with asterisks, one a byte, in the place of each value that is assigned to a name of
/// a secret (`HF_TOKEN = "..."`, `api_key: ...`, `--wandb-key ...`).
std::string withoutSecrets(std::string_view text);

/// The values that withoutSecrets() finds in a text and that do not occur elsewhere by chance, as
/// short ones, numbers, paths and words do; at most 100.
std::vector<std::string> secretsIn(std::string_view text);
/// Whether a variable's value is such a secret.
bool isSecret(std::string_view name, std::string_view value);

/// The text with asterisks in the place of each of the values.
std::string withoutValues(std::string text, const std::vector<std::string> &values);

/// The environment for the programs that this one starts: a copy from the first call, which has to
/// come before variables of a recipe are set.
char **helperEnvironment();

} // namespace shardc
