// Parses Python's literals, and the statements that assign them, as in Megatron-Bridge's recipes
// and guides. Nothing is evaluated: a name stays a name, a call a call with its arguments.
#pragma once

#include <string>
#include <vector>

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

struct PythonStatement {
  enum class Kind : uint8_t {
    Assignment, ///< also `x += 1`, and `return x` with the target `return`
    Block,      ///< the head of an `if`, `for`, `def` ...; what is in it follows, indented more
    Other,
  };
  Kind kind = Kind::Other;
  unsigned indent = 0;
  std::vector<std::string> targets; ///< dotted, or with a text in brackets at their end
  TreePtr value;                    ///< null unless each target gets this literal, name or call
  std::string text;                 ///< all of it
  SourceRange range;
};

/// The statements in their order. A block whose body stands in the line of its head is indented
/// too. Texts for documentation are left out.
std::vector<PythonStatement> readPython(llvm::StringRef text, SourceLoc begin);

/// One literal, name or call; null if the text is anything else.
TreePtr readPythonValue(llvm::StringRef text, SourceLoc begin);

/// The value of an override: a literal without the need for quotes, as Hydra takes it.
TreePtr readOverrideValue(llvm::StringRef text, SourceRange range);

} // namespace shardc::upstream
