// Parses YAML into trees. Hydra's `_target_`, the class or function of a value, becomes
// `Tree::call`.
#pragma once

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// Parses the document in the buffer. Reports an error and returns null if it is malformed. Aliases
/// share the tree of their anchor.
TreePtr readYaml(BufferId input, DiagEngine &diags);
/// The same for text that was made from the buffer line by line.
TreePtr readYaml(BufferId input, llvm::StringRef text, DiagEngine &diags);
/// Parses text that is not an input, such as JSON from our programs; null if it is malformed. All
/// values have the location `place`.
TreePtr readYaml(std::string text, SourceRange place = {});

} // namespace shardc::upstream
