// Parses text into a tree. Errors are reported at their location, and parsing continues after
// them, so one run finds several. A part that could not be read is an ErrorValue or is left
// out.
#pragma once

#include <memory>

#include "compiler/ast/Ast.h"
#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace shardc {

/// Limits of the language.
inline constexpr unsigned kNestingMax = 64;         ///< nesting of sections and parentheses
inline constexpr unsigned kListElementsMax = 65536; ///< elements of one list
inline constexpr unsigned kBodyItemsMax = 65536;    ///< settings and sections of one body

/// Parses a recipe file. Always returns a tree, which is complete if no error was reported.
std::unique_ptr<ast::Ast> parseRecipe(BufferId buffer, DiagEngine &diags);

/// Parses `path = value` from a buffer created by SourceManager::addSetting. Returns a recipe
/// without a name that contains the assignment (none if it could not be read).
std::unique_ptr<ast::Ast> parseSetting(BufferId buffer, DiagEngine &diags);

/// Version of the library that generated parsers run on: `4.9`.
std::string parserVersion();

} // namespace shardc
