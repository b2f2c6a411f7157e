// Parses text to a tree. Errors are reported at their location and parsing continues, so one run
// finds several errors. A part that could not be parsed becomes an ErrorValue or is omitted.
#pragma once

#include <memory>

#include "compiler/ast/Ast.h"
#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace shardc {

/// Limits of the language:
inline constexpr unsigned kNestingMax = 64;         ///< nesting of sections and parentheses
inline constexpr unsigned kListElementsMax = 65536; ///< elements of one list
inline constexpr unsigned kBodyItemsMax = 65536;    ///< settings and sections of one body

/// Parses a recipe file. Always returns a tree, which is complete if no error was reported.
std::unique_ptr<ast::Ast> parseRecipe(BufferId buffer, DiagEngine &diags);

/// Parses `path = value` from a buffer of SourceManager::addSetting. Returns a recipe without a
/// name that contains the assignment, or no item if it could not be parsed.
std::unique_ptr<ast::Ast> parseSetting(BufferId buffer, DiagEngine &diags);

/// Version of the ANTLR runtime that parsers use, such as `4.9`.
std::string parserVersion();

} // namespace shardc
