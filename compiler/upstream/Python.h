// Parses Python's literals, and lines that assign them, as in Megatron-Bridge's recipes and guides.
// Nothing is evaluated: a name stays a name, a call a call with its arguments.
#pragma once

#include <string>
#include <vector>

#include "compiler/diag/Engine.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// One `target = value` of a Python text; the target dotted, or with a text in brackets at its end.
struct PythonAssignment {
  std::string target;
  TreePtr value; ///< null where it is not a literal, name or call
  SourceRange range;
};

/// A statement that is not an assignment, as text.
struct PythonOther {
  std::string text;
  SourceRange range;
};

struct PythonText {
  std::vector<PythonAssignment> assignments;
  std::vector<PythonOther> others;
};

/// Reads line by line; a line that cannot be read is one of `others`.
PythonText readPython(llvm::StringRef text, SourceLoc begin);

/// One literal, name or call; null if the text is anything else.
TreePtr readPythonValue(llvm::StringRef text, SourceLoc begin);

/// The value of an override: a literal without the need for quotes, as Hydra takes it.
TreePtr readOverrideValue(llvm::StringRef text, SourceRange range);

} // namespace shardc::upstream
