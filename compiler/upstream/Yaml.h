// Parses YAML into trees; Hydra's `_target_` is the class or function that makes a value.
#pragma once

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// The document in the buffer; null after an error, which is reported. Aliases share their tree.
TreePtr readYaml(BufferId input, DiagEngine &diags);

} // namespace shardc::upstream
