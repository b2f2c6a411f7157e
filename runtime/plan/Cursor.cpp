// Reads a text word by word, skips blanks and comments, and renders errors with their line and a
// caret.
#include "runtime/plan/Cursor.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/Reports.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Text.h"

namespace shardc::plan {
namespace {

constexpr size_t kShownBytesMax = 32; ///< bytes of a token that a message shows
constexpr size_t kLineShownMax = 160; ///< bytes of the source line that are shown below a message
constexpr size_t kContextBefore = 80;

bool isContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

} // namespace

void Cursor::skipBlanks() {
  while (pos_ < text_.size()) {
    char c = text_[pos_];
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      ++pos_;
    } else if (c == '/' && pos_ + 1 < text_.size() && text_[pos_ + 1] == '/') {
      pos_ = std::min(text_.find('\n', pos_), text_.size());
    } else {
      return;
    }
  }
}

bool Cursor::atEnd() {
  skipBlanks();
  return pos_ >= text_.size();
}

char Cursor::peek() {
  skipBlanks();
  return pos_ < text_.size() ? text_[pos_] : '\0';
}

size_t Cursor::next() {
  skipBlanks();
  return pos_;
}

bool Cursor::takeIf(char c) {
  skipBlanks();
  if (pos_ >= text_.size() || text_[pos_] != c)
    return false;
  last_ = pos_++;
  return true;
}

bool Cursor::expect(char c) {
  return takeIf(c) || fail(pos_, "plan-syntax", "expected '{}', found {}", c, found());
}

std::string_view Cursor::peekWord() {
  skipBlanks();
  size_t end = pos_;
  while (end < text_.size() && isWordChar(text_[end]))
    ++end;
  return text_.substr(pos_, end - pos_);
}

bool Cursor::takeIf(std::string_view word) {
  if (peekWord() != word)
    return false;
  last_ = pos_;
  pos_ += word.size();
  return true;
}

bool Cursor::expect(std::string_view word) {
  return takeIf(word) || fail(pos_, "plan-syntax", "expected '{}', found {}", word, found());
}

bool Cursor::word(std::string_view &out, std::string_view what) {
  out = peekWord();
  if (out.empty())
    return fail(pos_, "plan-syntax", "expected {}, found {}", what, found());
  last_ = pos_;
  pos_ += out.size();
  return true;
}

bool Cursor::name(std::string_view &out, std::string_view what) {
  if (peek() == '"') {
    std::string text;
    if (!string(text, what))
      return false;
    unquoted_.push_back(std::move(text));
    out = unquoted_.back();
  } else if (!word(out, what)) {
    return false;
  }
  if (out.size() > limits::kNameBytesMax)
    return fail(last_, "plan-limit", "{} has {} bytes; the limit is {}", what, out.size(),
                limits::kNameBytesMax);
  return true;
}

bool Cursor::escape(std::string &out) {
  char c = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
  size_t length = 2;
  if (c == '"' || c == '\\') {
    out += c;
  } else if (c == 'n') {
    out += '\n';
  } else if (c == 'x') {
    unsigned value = 0;
    const char *begin = text_.data() + std::min(pos_ + 2, text_.size());
    const char *end = text_.data() + std::min(pos_ + 4, text_.size());
    auto [stop, error] = std::from_chars(begin, end, value, 16);
    if (error != std::errc() || stop != begin + 2)
      return fail(pos_, "plan-syntax", "expected two hexadecimal digits after '\\x'");
    out += static_cast<char>(value);
    length = 4;
  } else {
    return fail(pos_, "plan-syntax", "expected '\"', '\\', 'n' or 'x' after '\\'");
  }
  pos_ += length;
  return true;
}

bool Cursor::string(std::string &out, std::string_view what) {
  if (peek() != '"')
    return fail(pos_, "plan-syntax", "expected {} in quotes, found {}", what, found());
  size_t begin = pos_++;
  out.clear();
  while (true) {
    size_t stop = pos_;
    while (stop < text_.size() && text_[stop] != '"' && text_[stop] != '\\' && text_[stop] != '\n')
      ++stop;
    out.append(text_.substr(pos_, stop - pos_));
    pos_ = stop;
    if (static_cast<int64_t>(out.size()) > limits::kStringBytesMax)
      return fail(begin, "plan-limit", "{} is longer than {} bytes", what, limits::kStringBytesMax);
    if (pos_ >= text_.size() || text_[pos_] == '\n')
      return fail(begin, "plan-syntax", "{} has no closing '\"' on its line", what);
    if (text_[pos_] == '"')
      break;
    if (!escape(out))
      return false;
  }
  ++pos_;
  last_ = begin;
  return true;
}

bool Cursor::integer(int64_t &out, std::string_view what, int64_t min, int64_t max) {
  std::string_view digits = peekWord();
  auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (digits.empty() || stop != digits.data() + digits.size() ||
      (error != std::errc() && error != std::errc::result_out_of_range))
    return fail(pos_, "plan-syntax", "expected {} as an integer, found {}", what, found());
  if (error == std::errc::result_out_of_range || out < min || out > max)
    return fail(pos_, "plan-limit", "{} is {}; it needs to be between {} and {}", what,
                printable(digits.substr(0, kShownBytesMax)), min, max);
  last_ = pos_;
  pos_ += digits.size();
  return true;
}

bool Cursor::real(double &out, std::string_view what) {
  std::string_view digits = peekWord();
  // The plus sign of an exponent is not a word character.
  if (!digits.empty() && digits.back() == 'e' && pos_ + digits.size() < text_.size() &&
      text_[pos_ + digits.size()] == '+') {
    size_t end = pos_ + digits.size() + 1;
    while (end < text_.size() && isWordChar(text_[end]))
      ++end;
    digits = text_.substr(pos_, end - pos_);
  }
  auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (digits.empty() || stop != digits.data() + digits.size() || error != std::errc())
    return fail(pos_, "plan-syntax", "expected {} as a number, found {}", what, found());
  out += 0.0; // zero has one sign
  last_ = pos_;
  pos_ += digits.size();
  return true;
}

std::string Cursor::found() {
  if (atEnd())
    return "end of file";
  std::string_view token = peekWord();
  if (token.empty()) {
    size_t end = pos_ + 1;
    while (end < text_.size() && isContinuation(text_[end]))
      ++end;
    token = text_.substr(pos_, end - pos_);
  }
  bool cut = token.size() > kShownBytesMax;
  return fmt::format("'{}{}'", printable(token.substr(0, kShownBytesMax)), cut ? "..." : "");
}

bool Cursor::record(size_t at, std::string_view id, std::string text) {
  if (!failed()) {
    id_ = id;
    message_ = render(at, "error", text);
    pos_ = text_.size();
  }
  return false;
}

/// Renders a message in the form of compilers: `file:line:column: severity: text [id]`, the line,
/// and a caret. Columns and the caret count characters, not bytes. Long lines are cut around the
/// place.
std::string Cursor::render(size_t at, std::string_view severity, std::string_view text) const {
  at = std::min(at, text_.size());
  size_t lineBegin = at == 0 ? std::string_view::npos : text_.rfind('\n', at - 1);
  lineBegin = lineBegin == std::string_view::npos ? 0 : lineBegin + 1;
  auto lineNumber =
      1 + linesBefore_ +
      std::count(text_.begin(), text_.begin() + static_cast<int64_t>(lineBegin), '\n');
  std::string_view before = text_.substr(lineBegin, at - lineBegin);
  auto column =
      1 + std::count_if(before.begin(), before.end(), [](char c) { return !isContinuation(c); });
  std::string_view line =
      text_.substr(lineBegin, std::min(text_.find('\n', lineBegin), text_.size()) - lineBegin);
  if (line.size() > kLineShownMax) {
    size_t cut = before.size() > kContextBefore ? before.size() - kContextBefore : 0;
    while (cut > 0 && isContinuation(line[cut]))
      --cut;
    before.remove_prefix(cut);
    line = line.substr(cut, kLineShownMax);
  }
  std::string shownBefore = printable(before);
  auto caret = std::count_if(shownBefore.begin(), shownBefore.end(),
                             [](char c) { return !isContinuation(c); });
  return fmt::format("{}:{}:{}: {}: {} [{}]\n{}\n{:{}}^", fileName_, lineNumber, column, severity,
                     text, id_, printable(line), "", caret);
}

Status Cursor::status() const {
  return failed() ? makeStatus(report::PlanRefused, message_) : Status::ok();
}

} // namespace shardc::plan
