// Reads the words of a script and expands them at once: quotes, escapes, variables, defaults,
// arithmetic, splitting. Expansions that need a shell become marks of what is not known.
#pragma once

#include "compiler/upstream/ShellValues.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {

class ShellWords {
protected:
  /// What a statement does here: all of it; nothing but launches, since it may not run; nothing,
  /// while what it may assign is collected; or nothing at all, since it does not run.
  enum class Mode : uint8_t { Run, Maybe, Collect, Skip };

  ShellWords(BufferId script, const ShellSetting &setting, DiagEngine &diags)
      : values_(setting, diags), diags_(diags), text_(diags.sources().text(script)),
        end_(text_.size()), begin_(diags.sources().loc(script, 0)) {}

  static bool isNameStart(char c) { return llvm::isAlpha(c) || c == '_'; }
  static bool isNameChar(char c) { return llvm::isAlnum(c) || c == '_'; }
  static bool isBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  static bool endsWord(char c) {
    return isBlank(c) || c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')' ||
           c == '<' || c == '>';
  }

  SourceRange range(size_t begin, size_t end) const {
    return {SourceLoc::fromRaw(begin_.raw() + begin), SourceLoc::fromRaw(begin_.raw() + end)};
  }
  SourceRange range(size_t begin) const { return range(begin, at_); }
  llvm::StringRef slice(size_t begin) const { return text_.slice(begin, at_); }
  char peek(size_t ahead = 0) const { return at_ + ahead < end_ ? text_[at_ + ahead] : '\0'; }
  bool atEnd() const { return failed_ || at_ >= end_; }
  bool startsWith(llvm::StringRef what) const { return text_.slice(at_, end_).startswith(what); }
  bool consume(llvm::StringRef what) {
    if (!startsWith(what))
      return false;
    at_ += what.size();
    return true;
  }
  /// The reserved word that comes next, or what stands in its place.
  llvm::StringRef peekWord() const {
    size_t end = at_;
    while (end < end_ && !endsWord(text_[end]))
      ++end;
    return text_.slice(at_, end);
  }

  static bool isOneOf(llvm::StringRef word, std::initializer_list<llvm::StringRef> words) {
    return llvm::is_contained(words, word);
  }
  void fail(llvm::StringRef what);
  bool enter() {
    if (++depth_ > kDepthMax)
      fail("it is nested too deep");
    return !failed_;
  }

  /// The fields that the word at this place becomes: none, one or several.
  std::vector<ShellValue> readFields();
  /// The one text of an assignment's value, which is not split.
  ShellValue readValue();
  /// `[expression]` before `=` or `+=`, without the brackets; nothing if this is none.
  std::optional<llvm::StringRef> peekSubscript(size_t offset) const;
  /// An expression with its expansions done.
  std::string expandIndex(llvm::StringRef expression);
  /// Passes what stands between brackets of one kind, with quotes in it; the place behind.
  size_t passBrackets(size_t at, char open, char close);
  /// In Run mode the change itself; in Collect mode the doubt that it may happen.
  void doubtIn(const std::string &name, llvm::StringRef script, bool keepsHead = false,
               bool isAnytime = false);
  void doubtExpression(llvm::StringRef expression);

  ShellValues values_;
  DiagEngine &diags_;
  llvm::StringRef text_;
  size_t at_ = 0, end_;
  Mode mode_ = Mode::Run;
  SourceRange cause_;    ///< of what is collected
  size_t statement_ = 0; ///< where the current one begins
  unsigned depth_ = 0;
  bool failed_ = false;
  bool changesSkipped_ = false; ///< what was skipped would change a variable
  bool splitsAsUsual_ = true;   ///< IFS is as it was

private:
  static constexpr unsigned kDepthMax = 40;

  struct Field {
    std::string text;
    std::string bare; ///< what stands without quotes in the script, for braces and patterns
    bool hasQuotes = false;
    SourceRange range = {}; ///< of the element that it comes from, if it comes from an array
  };
  /// Where a part of a word goes.
  struct Into {
    std::vector<Field> fields = std::vector<Field>(1);
    bool splits;
    bool splitsText = false; ///< text of the script itself, as in `${X:-a b}`
  };

  void readWord(Into &into);
  void readPart(Into &into);
  void readQuotedPart(Into &into, char quote);
  void readDoubleQuotes(Into &into);
  void readAnsiQuotes(Into &into);
  void readDollar(Into &into, bool quoted);
  void readSubstitution(Into &into, bool quoted, size_t end);
  void readArithmetic(Into &into, bool quoted, size_t end);
  void readBraces(Into &into, bool quoted);
  bool readBraceName(std::string &name, std::string &index);
  void expandVariable(Into &into, bool quoted, const std::string &name, const std::string &index,
                      size_t begin);
  void applyOperator(Into &into, bool quoted, const std::string &name, const std::string &index,
                     size_t begin);
  void readArgument(Into &into, bool quoted);
  void putHeld(Into &into, const ShellValues::Held &held, bool quoted, llvm::StringRef name,
               llvm::StringRef index);
  void put(Into &into, llvm::StringRef text, bool quoted, bool splits);
  void putText(Into &into, llvm::StringRef text, bool quoted);
  void putUnknown(Into &into, llvm::StringRef shown, bool quoted);
  void settleField(Field &field, bool isWord);

  SourceLoc begin_;
};

} // namespace shardc::upstream
