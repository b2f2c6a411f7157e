// The plan with which a run continues texts after evaluations (validation.samples).
#pragma once

#include <optional>
#include <string>

#include "compiler/config/Config.h"
#include "compiler/tools/Session.h"

namespace shardc::tools {

/// The forward plan of one row, as text that follows the plans of a file. An empty text if the
/// recipe asks for no samples; nothing after errors, which are reported.
std::optional<std::string> sampleText(const config::Config &config, const CommonOptions &common,
                                      DiagEngine &diags);

} // namespace shardc::tools
