// The text form of a tree for `--dump-ast`: one node a line, indented, with its place.
#pragma once

#include <string>

#include "compiler/ast/Ast.h"
#include "compiler/basic/SourceManager.h"

namespace shardc::ast {

/// Dumps the tree. `line:col` is where a node begins; with `withPlaces` off only what was meant is
/// printed, equal for two texts that differ in layout and comments alone.
std::string dump(const Recipe &recipe, const SourceManager &sources, bool withPlaces = true);

} // namespace shardc::ast
