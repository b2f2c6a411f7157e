// Splits a shell script into words: parts of words with quotes, escapes and expansions. The lower
// level of the parser, which combines them to commands.
#pragma once

#include "compiler/upstream/Shell.h"
#include "llvm/ADT/StringExtras.h"

namespace shardc::upstream {

class ShellWordReader {
public:
  ShellWordReader(const ShellText &source, DiagEngine &diags, unsigned depth)
      : source_(source), text_(source.text), diags_(diags), depth_(depth) {}

  /// All of the text, as if in double quotes.
  ShellWord readQuotedText();

protected:
  static bool isNameStart(char c) { return llvm::isAlpha(c) || c == '_'; }
  static bool isNameChar(char c) { return llvm::isAlnum(c) || c == '_'; }
  static bool isBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  static bool endsWord(char c) {
    return isBlank(c) || c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')' ||
           c == '<' || c == '>';
  }

  SourceLoc loc(size_t offset) const {
    return source_.begin.isValid() ? SourceLoc::fromRaw(source_.begin.raw() + offset)
                                   : source_.whole.begin;
  }
  SourceRange range(size_t begin) const {
    return source_.begin.isValid() ? SourceRange(loc(begin), loc(at_)) : source_.whole;
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool atEnd() const { return failed_ || at_ >= text_.size(); }
  bool consume(llvm::StringRef what) {
    if (!text_.substr(at_).startswith(what))
      return false;
    at_ += what.size();
    return true;
  }
  void fail(llvm::StringRef what) {
    if (!failed_)
      diags_.report(diag::ImportMalformed, SourceRange(loc(std::min(at_, text_.size()))), what);
    failed_ = true;
  }
  bool enter() {
    if (++depth_ > kDepthMax)
      fail("it is nested too deep");
    return !failed_;
  }

  /// A word up to the next blank or operator; empty if the position is at one.
  ShellWord readWord();
  /// `[expression]` of an element, without the brackets; nothing if there is none here, or if the
  /// text after it is not `=` or `+=`.
  std::optional<llvm::StringRef> peekSubscript(size_t offset) const;

  ShellText source_;
  llvm::StringRef text_;
  DiagEngine &diags_;
  unsigned depth_;
  size_t at_ = 0;
  bool failed_ = false;

private:
  static constexpr unsigned kDepthMax = 40;

  void addText(ShellWord &word, char c, bool quoted);
  void readEscape(ShellWord &word);
  void readSingleQuotes(ShellWord &word);
  void readAnsiQuotes(ShellWord &word);
  void readAnsiEscape(std::string &text);
  uint32_t readDigits(unsigned base, unsigned digitsMax);
  void readDoubleQuotes(ShellWord &word);
  void readQuotedPart(ShellWord &word, char quote);
  void readBackquotes(ShellWord &word);
  void readDollar(ShellWord &word, bool quoted);
  void readParenthesis(ShellWord &word, bool quoted);
  void readBraces(ShellWord &word, bool quoted);
  void readBraceOperator(ShellPart &part, bool quoted);
  void readBraceArgument(ShellWord &argument, bool quoted);
};

} // namespace shardc::upstream
