// The statements of a script, one after the other as its text has them: words stay where they are,
// and are expanded when their statement is carried out.
#pragma once

#include "compiler/upstream/Shell.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {

inline bool isOneOf(llvm::StringRef word, std::initializer_list<llvm::StringRef> words) {
  return llvm::is_contained(words, word);
}

/// A place in a script, which moves on: what finds the ends of quotes and brackets.
class ShellCursor {
protected:
  ShellCursor(BufferId script, DiagEngine &diags)
      : diags_(diags), text_(diags.sources().text(script)), end_(text_.size()),
        begin_(diags.sources().loc(script, 0)) {}

  static bool isNameStart(char c) { return llvm::isAlpha(c) || c == '_'; }
  static bool isNameChar(char c) { return llvm::isAlnum(c) || c == '_'; }
  static bool isBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  static bool endsWord(char c) { return isBlank(c) || llvm::StringRef("\n;&|()<>").contains(c); }

  SourceRange range(llvm::StringRef part) const {
    size_t at = begin_.raw() + static_cast<size_t>(part.data() - text_.data());
    return {SourceLoc::fromRaw(at), SourceLoc::fromRaw(at + part.size())};
  }
  llvm::StringRef slice(size_t begin) const { return text_.slice(begin, at_); }
  llvm::StringRef rest() const { return text_.slice(at_, end_); }
  char peek(size_t ahead = 0) const { return at_ + ahead < end_ ? text_[at_ + ahead] : '\0'; }
  bool atEnd() const { return failed_ || at_ >= end_; }
  bool consume(llvm::StringRef what) {
    bool isHere = rest().startswith(what);
    at_ += isHere ? what.size() : 0;
    return isHere;
  }
  void fail(llvm::StringRef what);
  bool enter();
  void leave() { --depth_; }
  /// Moves behind the quote or bracket that closes what begins before this place, whatever stands
  /// in it. Between double quotes single ones are text.
  void pass(char close, bool isQuoted = false);
  /// The same from behind the `$` of `$(...)`, `${...}`, `$[...]` or `$'...'` on; false for others.
  bool passExpansion(bool isQuoted);

  DiagEngine &diags_;
  llvm::StringRef text_;
  size_t at_ = 0, end_;
  bool failed_ = false;

private:
  SourceLoc begin_;
  unsigned depth_ = 0;
};

struct ShellAssignment {
  llvm::StringRef name;
  bool hasIndex = false; ///< it is of one element
  bool append = false, isArray = false;
  std::vector<llvm::StringRef> values; ///< one, or the elements
  llvm::StringRef script;              ///< what stands right of the name
};

struct ShellItem {
  enum class Kind : uint8_t { Command, Test, Arithmetic, Keyword, Pattern, Function };
  enum class After : uint8_t { Any, Success, Failure, Pipe };

  Kind kind = Kind::Command;
  After after = After::Any; ///< of the statement before it
  bool isNegated = false;
  bool isElsewhere = false; ///< another shell runs it: it changes nothing in this one
  llvm::StringRef text;     ///< all of a simple statement
  llvm::StringRef word;     ///< the keyword, or the name of a function
  std::vector<ShellAssignment> assignments;
  /// Of a command, test or expression; of `for`, with its variable first; patterns, or what `case`
  /// compares with them.
  std::vector<llvm::StringRef> words;
  size_t next = 0; ///< the keyword or pattern of the same statement that follows
  size_t end = 0;  ///< behind a statement, where it begins one

  /// `export` and its like, behind which assignments are words.
  bool declares() const {
    return !words.empty() &&
           isOneOf(words.front(), {"export", "declare", "local", "readonly", "typeset"});
  }
};

struct ShellScript {
  std::vector<ShellItem> items;
  std::vector<RanWord> directives; ///< words of `#SBATCH` lines
};

/// Nothing after a syntax error, which is reported.
std::optional<ShellScript> parseShell(BufferId script, DiagEngine &diags);

} // namespace shardc::upstream
