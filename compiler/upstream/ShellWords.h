// Expands the words of a script: quotes, escapes, variables, defaults, arithmetic, splitting.
// Expansions that need a shell become marks of what is not known.
#pragma once

#include "compiler/upstream/ShellSyntax.h"
#include "compiler/upstream/ShellValues.h"

namespace shardc::upstream {

class ShellWords : protected ShellCursor {
protected:
  ShellWords(BufferId script, const ShellSetting &setting, DiagEngine &diags)
      : ShellCursor(script, diags), values_(setting, text_.contains("\n#SBATCH"), diags) {}

  /// The fields that words become: of each of them none, one or several.
  std::vector<ShellValue> fieldsOf(const std::vector<llvm::StringRef> &words);
  /// The one text of a value that is not split.
  ShellValue valueOf(llvm::StringRef word);
  /// Doubts the variables that expansions in a part of the script may set; where it runs, not those
  /// of `${X:=...}`, which do so when they are expanded.
  void doubtChanges(llvm::StringRef script);
  void doubt(llvm::StringRef name, llvm::StringRef script, bool keepsHead = false) {
    if (!name.empty() && isNameStart(name.front()))
      values_.doubt(name.str(), cause_, script, keepsHead);
  }

  ShellValues values_;
  SourceRange cause_;         ///< of what is not known now
  bool runs_ = true;          ///< what is expanded is carried out
  bool splitsAsUsual_ = true; ///< IFS is as it was

private:
  struct Field {
    std::string text;
    std::string bare; ///< what stands without quotes in the script, for braces and patterns
    bool hasQuotes = false;
    SourceRange range = {}; ///< of the element that it comes from, if it comes from an array
  };
  /// Where a part of a word goes.
  struct Into {
    std::vector<Field> fields = std::vector<Field>(1);
    bool splits = false;
    bool splitsText = false; ///< text of the script itself, as in `${X:-a b}`
  };

  void readAll(Into &into, llvm::StringRef part, bool quoted);
  void readPart(Into &into, bool quoted);
  void readDollar(Into &into, bool quoted);
  void readArithmetic(Into &into, bool quoted, llvm::StringRef whole);
  void readBraces(Into &into, bool quoted);
  void applyOperator(Into &into, bool quoted, llvm::StringRef name, llvm::StringRef index,
                     llvm::StringRef whole, llvm::StringRef op);
  void putHeld(Into &into, const ShellHeld &held, bool quoted, bool apart);
  void put(Into &into, llvm::StringRef text, bool quoted, bool splits);
  void putText(Into &into, llvm::StringRef text, bool quoted);
  void settleField(Field &field, bool isWord);
  std::string quotedText(llvm::StringRef part);
};

} // namespace shardc::upstream
