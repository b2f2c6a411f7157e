// `shardc fmt`: the canonical layout of a recipe. Keeps line breaks between items, and decides on
// blanks, indentation and the breaking of long lines.
#pragma once

#include <optional>
#include <string>

#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace shardc {

/// Maximum width of a line that the formatter can break.
inline constexpr size_t kFormatColumnsMax = 100;

/// The recipe in canonical layout. Keeps all comments and the meaning; formatting the result again
/// changes nothing. Empty if the recipe has errors, which are reported.
std::optional<std::string> formatRecipe(BufferId buffer, DiagEngine &diags);

} // namespace shardc
