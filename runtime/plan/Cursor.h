// Reads plan text token by token and records the first error with its location. Used only by the
// parser; handles characters, words, numbers and strings, without knowledge of plans.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::plan {

/// Every reading function skips blanks and comments first and returns false where the text is not
/// what was asked for; the error is kept, and the caller leaves at once.
class Cursor {
public:
  /// `text`, which follows so many lines of the file, must outlive the cursor and all names that it
  /// hands out.
  Cursor(std::string_view text, std::string_view fileName, int64_t linesBefore = 0)
      : text_(text), fileName_(fileName), linesBefore_(linesBefore) {}

  bool atEnd();
  /// The text from the next token on.
  std::string_view rest() { return text_.substr(next()); }
  /// The next character without taking it; 0 at the end.
  char peek();
  /// Takes the character if it is next.
  bool takeIf(char c);
  bool expect(char c);
  /// Takes the word if it is next.
  bool takeIf(std::string_view word);
  bool expect(std::string_view word);
  /// The next word without taking it; empty if there is none.
  std::string_view peekWord();
  /// A word; `what` says in an error what was asked for.
  bool word(std::string_view &out, std::string_view what);
  /// A word or a quoted string. The view lasts as long as the cursor.
  bool name(std::string_view &out, std::string_view what);
  bool string(std::string &out, std::string_view what);
  bool integer(int64_t &out, std::string_view what, int64_t min, int64_t max);
  bool real(double &out, std::string_view what);

  /// Offset of the next token, or of the one that was read last: where errors point.
  size_t next();
  size_t last() const { return last_; }

  /// Keeps an error at the offset, unless there is one; always false.
  template <typename... Args>
  bool fail(size_t at, std::string_view id, fmt::format_string<Args...> text, Args &&...args) {
    return record(at, id, fmt::format(text, std::forward<Args>(args)...));
  }
  /// Adds a note to the error that was just kept.
  void note(size_t at, std::string_view text);

  /// The next token as a message shows it: quoted and cut, or `end of file`.
  std::string found();
  bool failed() const { return !message_.empty(); }
  /// The error in the diagnostics' form: place, text, source line and caret.
  Status status() const;

private:
  void skipBlanks();
  bool record(size_t at, std::string_view id, std::string text);
  std::string render(size_t at, std::string_view severity, std::string_view text) const;
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
