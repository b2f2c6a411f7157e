// A Hugging Face model's folder, or its config.json alone, as a recipe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Import.h"
#include "runtime/base/CommandLine.h"

namespace shardc::tools {

/// The formatted recipe of the text of a config.json, or nothing after errors, each of which is
/// reported at the field that it is about. `accepted` are fields to leave out.
std::optional<std::string> importHf(BufferId input, const std::vector<std::string> &accepted,
                                    const upstream::ImportOptions &options, DiagEngine &diags);

/// `--accept-field NAME`, any number of times.
void addAcceptedFields(cli::Command &command, std::vector<std::string> &names);

/// The config.json of a path that is a folder; the path itself for others.
std::string hfConfigPath(const std::string &path);

} // namespace shardc::tools
