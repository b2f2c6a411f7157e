// `shardc fmt`: the canonical layout of a recipe. Line breaks between items are kept; blanks,
// indentation and the breaking of long lines are decided here.
#pragma once

#include <optional>
#include <string>

#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace shardc {

/// Maximum width of a line, if the formatter can break it.
inline constexpr size_t kFormatColumnsMax = 100;

/// The recipe in canonical layout. Every comment is kept, the tree is the same, and formatting the
/// result again changes nothing. Returns nothing if the recipe has errors, which are reported.
std::optional<std::string> formatRecipe(BufferId buffer, DiagEngine &diags);

} // namespace shardc
