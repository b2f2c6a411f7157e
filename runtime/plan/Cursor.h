// Tokenizer of the plan parser: reads characters, words, numbers and strings, and records the first
// error with its location. It knows nothing about plans.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::plan {

/// Every reading function first skips blanks and comments. If the text is not what the caller asked
/// for, it records an error and returns false, and the caller returns at once.
class Cursor {
public:
  /// `text` must outlive the cursor and all names that it returns. `linesBefore` is the number of
  /// lines of the file before it.
  Cursor(std::string_view text, std::string_view fileName, int64_t linesBefore = 0)
      : text_(text), fileName_(fileName), linesBefore_(linesBefore) {}

  /// Whether no token is left.
  bool atEnd();
  /// The text from the next token on.
  std::string_view rest() { return text_.substr(next()); }
  /// Returns the next character without consuming it; 0 at the end.
  char peek();
  /// Consumes the character if it is next.
  bool takeIf(char c);
  /// Consumes the character, which must be next.
  bool expect(char c);
  /// Consumes the word if it is next.
  bool takeIf(std::string_view word);
  /// Consumes the word, which must be next.
  bool expect(std::string_view word);
  /// Returns the next word without consuming it; empty if there is none.
  std::string_view peekWord();
  /// Reads a word; an error message calls it `what`.
  bool word(std::string_view &out, std::string_view what);
  /// Reads a word or a quoted string. The view is valid as long as the cursor.
  bool name(std::string_view &out, std::string_view what);
  /// Reads a quoted string without its quotes, and replaces escapes.
  bool string(std::string &out, std::string_view what);
  /// Reads a whole number from `min` to `max`, both included, or a decimal number.
  bool integer(int64_t &out, std::string_view what, int64_t min, int64_t max);
  bool real(double &out, std::string_view what);

  /// Offsets in the text at which errors point: next() of the next token, last() of the token that
  /// was read last.
  size_t next();
  size_t last() const { return last_; }

  /// Records an error at the offset unless there already is one; returns false. Nothing is read
  /// after an error: the next token is then the end of the text.
  template <typename... Args>
  bool fail(size_t at, std::string_view id, fmt::format_string<Args...> text, Args &&...args) {
    return record(at, id, fmt::format(text, std::forward<Args>(args)...));
  }
  /// Records that something is declared at `at` that was declared at `before`.
  template <typename... Args>
  bool failTwice(size_t at, size_t before, fmt::format_string<Args...> text, Args &&...args) {
    if (!failed()) {
      fail(at, "plan-name", text, std::forward<Args>(args)...);
      message_ += "\n" + render(before, "note", "first declared here");
    }
    return false;
  }

  /// The next token as messages show it: quoted and shortened, or `end of file`.
  std::string found();
  /// Whether an error was recorded.
  bool failed() const { return !message_.empty(); }
  /// The recorded error in the form of diagnostics: location, text, source line and caret.
  Status status() const;

private:
  /// Also skips comments, which begin with `//` and end with the line.
  void skipBlanks();
  bool record(size_t at, std::string_view id, std::string text);
  std::string render(size_t at, std::string_view severity, std::string_view text) const;
  /// Reads the characters after a backslash: another backslash, a quote, n, or xNN.
  bool escape(std::string &out);

  std::string_view text_;
  std::string fileName_;
  int64_t linesBefore_;
  size_t pos_ = 0;
  size_t last_ = 0;
  std::string message_;
  std::string id_;
  std::deque<std::string> unquoted_; ///< names that had quotes; addresses must not move
};

} // namespace shardc::plan
