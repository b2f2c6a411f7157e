// Imports a Hugging Face model's folder or config.json as a recipe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Import.h"
#include "runtime/base/CommandLine.h"

namespace shardc::tools {

/// Converts the text of a config.json to a formatted recipe. Empty after errors, which are reported
/// at their fields. `accepted`: names of fields to ignore.
std::optional<std::string> importHf(BufferId input, const std::vector<std::string> &accepted,
                                    const upstream::ImportOptions &options, DiagEngine &diags);

/// `--accept-field NAME`, any number of times.
void addAcceptedFields(cli::Command &command, std::vector<std::string> &names);

/// Loads the config.json of a folder, or the file `path`.
Result<BufferId> loadHfConfig(const std::string &path, SourceManager &sources);

} // namespace shardc::tools
