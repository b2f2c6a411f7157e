// `shardc fmt`: a recipe in its one layout. Lines stay where they were put; blanks, indentation and
// the breaking of what is too long are settled here.
#pragma once

#include <optional>
#include <string>

#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace shardc {

/// Widest line that the formatter makes where it can break one.
inline constexpr size_t kFormatColumnsMax = 100;

/// The recipe in canonical layout: every comment kept, the same tree, and formatting it again
/// changes nothing. Nothing if the recipe has errors; they are reported.
std::optional<std::string> formatRecipe(BufferId buffer, DiagEngine &diags);

} // namespace shardc
