// The text form of a tree for `--dump-ast`: one node per line, indented, with its location.
#pragma once

#include <string>

#include "compiler/ast/Ast.h"
#include "compiler/basic/SourceManager.h"

namespace shardc::ast {

/// Dumps the tree. `line:col` is the beginning of a node. Without `withPlaces`, the dump contains
/// only the meaning, so it is equal for texts that differ only in layout and comments.
std::string dump(const Recipe &recipe, const SourceManager &sources, bool withPlaces = true);

} // namespace shardc::ast
