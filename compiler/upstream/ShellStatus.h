// Reads tests of the shell, `[ ... ]`, `[[ ... ]]`, `test`, and patterns of `case`, and says what
// becomes of them where their words are known.
#pragma once

#include "compiler/upstream/ShellWords.h"

namespace shardc::upstream {

class ShellTests : protected ShellWords {
protected:
  using ShellWords::ShellWords;

  /// Of one test, which stands alone between operators, in Skip mode; nothing where it depends on
  /// files or on what only a shell says.
  std::optional<bool> readStatus();
  /// Whether the text matches the pattern of `case` at this place.
  std::optional<bool> readPattern(llvm::StringRef text);

  std::set<std::string> functions_; ///< of the script

private:
  void skipToWord();
  std::optional<bool> readTest(llvm::StringRef name);
};

} // namespace shardc::upstream
