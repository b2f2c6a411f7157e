// Text to tree. Errors are reported in plain words at their place, and parsing goes on behind them,
// so one run finds several; what could not be read stands in the tree as an ErrorValue or is left
// out.
#pragma once

#include <memory>

#include "compiler/ast/Ast.h"
#include "compiler/basic/SourceManager.h"
#include "compiler/diag/Engine.h"

namespace shardc {

/// Limits of the language.
inline constexpr unsigned kNestingMax = 64;         ///< sections and parentheses in each other
inline constexpr unsigned kListElementsMax = 65536; ///< elements of one list
inline constexpr unsigned kBodyItemsMax = 65536;    ///< settings and sections of one body

/// Parses a recipe file. Always gives a tree; it is whole if no error was reported.
std::unique_ptr<ast::Ast> parseRecipe(BufferId buffer, DiagEngine &diags);

/// Parses `path = value` from a buffer made by SourceManager::addSetting. Gives a recipe without a
/// name that holds the one assignment (none if it could not be read).
std::unique_ptr<ast::Ast> parseSetting(BufferId buffer, DiagEngine &diags);

/// Version of the library that generated parsers run on: `4.9`.
std::string parserVersion();

} // namespace shardc
