// A Hugging Face model's folder, or its config.json alone, as a recipe.
#pragma once

#include <optional>
#include <string>

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Import.h"

namespace shardc::tools {

/// The formatted recipe of the text of a config.json, or nothing after an error, which is reported
/// at the field that it is about.
std::optional<std::string> importHf(BufferId input, const upstream::ImportOptions &options,
                                    DiagEngine &diags);

/// The config.json of a path that is a folder; the path itself for others.
std::string hfConfigPath(const std::string &path);

} // namespace shardc::tools
