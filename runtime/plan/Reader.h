// Reads plan text for Form.h. Nothing but Parser.cpp includes this.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/Status.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/NameKind.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Each function reads one part of the text into its first argument, after blanks and comments. If
/// the text is not what the caller asked for, it records an error. The next token is then the end
/// of the text, so that nothing is read after an error; values keep their defaults.
class Reader {
public:
  static constexpr bool kReads = true;
  /// `text` must outlive the reader, whose tables refer to it. `linesBefore` is added to the line
  /// numbers of messages: the lines of the file before this plan.
  Reader(std::string_view text, std::string_view fileName, int64_t linesBefore);

  // ---- positions and errors ----
  /// Whether no token is left.
  bool atEnd() { return next() >= text_.size(); }
  /// Returns the next character without taking it; 0 at the end.
  char peek() { return atEnd() ? '\0' : text_[pos_]; }
  /// Returns the next word without taking it; empty if there is none.
  std::string_view peekWord();
  /// Takes the character or the word if it is next.
  bool takeIf(char c);
  bool takeIf(std::string_view word);
  bool takeIf(const char *word) { return takeIf(std::string_view(word)); }
  /// Offsets in the text at which errors point: next() of the next token, last() of the token that
  /// was read last.
  size_t next();
  size_t last() const { return last_; }
  /// The next token as messages show it: quoted and shortened, or `end of file`.
  std::string found();
  /// Records an error at the offset unless there already is one; returns false.
  template <typename... Args>
  bool fail(size_t at, std::string_view id, fmt::format_string<Args...> text, Args &&...args) {
    return record(at, id, fmt::format(text, std::forward<Args>(args)...));
  }
  /// Whether an error was recorded.
  bool failed() const { return !message_.empty(); }
  /// The recorded error in the form of diagnostics: location, text, source line and caret.
  Status status() const;

  // ---- tokens ----
  void line(int) {}
  void glue() {}
  void gap() {}
  void sign(char c);
  void token(std::string_view word);
  /// Takes the word or character if it is next.
  bool clause(auto next, bool) { return takeIf(next); }
  /// Whether the character is next, which is not taken.
  bool isNext(char c, bool) { return peek() == c; }
  void flag(bool &out, std::string_view word) { out = takeIf(word); }
  /// Reads a word; an error message calls it `what`. Empty after an error.
  std::string_view word(std::string_view what);
  /// Reads a word or a quoted string. The view is valid as long as the reader.
  std::string_view name(std::string_view what);
  /// Reads a whole number from `min` to `max`, both included.
  template <typename T> void integer(T &out, std::string_view what, int64_t min, int64_t max) {
    if (std::optional<int64_t> value = number(what, min, max))
      out = static_cast<T>(*value);
  }
  /// Reads a decimal number.
  void real(double &out, std::string_view what);
  /// Reads a quoted string without its quotes, and replaces escapes.
  void quoted(std::string &out, std::string_view what);
  void named(std::string &out, std::string_view what) { out = name(what); }
  /// Reads `+ 3` or `- 3`; nothing keeps `out` and returns false.
  bool term(int64_t &out, std::string_view what, int64_t max);
  template <typename T> void set(T &out, const auto &value) { out = static_cast<T>(value); }
  /// Reads a word of an enumeration with its parse function.
  template <typename E>
  void oneOf(E &out, std::optional<E> (*parse)(std::string_view), std::string_view what) {
    std::string_view text = word(what);
    if (std::optional<E> value = parse(text))
      out = *value;
    else
      fail(last(), "plan-name", "unknown {} '{}'", what, text.substr(0, 64));
  }
  /// Reads a word of the enumeration if it is next.
  template <typename E> bool oneOfIf(bool, E &out, std::optional<E> (*parse)(std::string_view)) {
    std::optional<E> value = parse(peekWord());
    if (value)
      out = *value, takeIf(peekWord());
    return value.has_value();
  }

  // ---- lists ----
  /// Reads entries up to the character, which is not taken.
  template <typename T>
  void each(std::vector<T> &list, char end, int64_t max, std::string_view plural,
            const auto &read) {
    while (!failed() && peek() != end)
      append(list, max, plural, read);
  }
  /// Reads at least one entry, with commas between them.
  template <typename T>
  void separated(std::vector<T> &list, int64_t max, std::string_view plural, const auto &read) {
    do
      append(list, max, plural, read);
    while (takeIf(','));
  }
  /// Reads entries, each of which begins with the word.
  template <typename T>
  void repeated(std::vector<T> &list, std::string_view word, int64_t max, std::string_view plural,
                const auto &read) {
    while (takeIf(word))
      append(list, max, plural, read);
  }
  template <typename T>
  void append(std::vector<T> &list, int64_t max, std::string_view plural, const auto &read) {
    if (!hasRoom(list, max, plural))
      return;
    T entry{};
    read(entry);
    list.push_back(std::move(entry));
  }
  /// Whether the list may grow; otherwise records an error.
  bool hasRoom(const auto &list, int64_t max, std::string_view plural) {
    return static_cast<int64_t>(list.size()) < max ||
           fail(next(), "plan-limit", "more than {} {}", max, plural);
  }
  /// Calls `read`, which reads clauses, until none of them is next.
  void inAnyOrder(const auto &read) {
    size_t before;
    do {
      before = next();
      read();
    } while (!failed() && next() != before);
  }

  // ---- names ----
  /// Reads the name of the table's next entry.
  template <typename T> void declare(NameKind kind, const std::vector<T> &table, std::string &out) {
    std::string_view own = name(info(kind).what);
    add(kind, own, static_cast<uint32_t>(table.size()));
    out = own;
  }
  void declareQuoted(NameKind kind, const auto &table, std::string &out) {
    declare(kind, table, out);
  }
  /// Adds a name. If it is taken, records an error with a note.
  void add(NameKind kind, std::string_view name, uint32_t index);
  /// Reads a name and finds its index; records an error if the table lacks it.
  template <typename T> void ref(NameKind kind, const auto &, T &out) {
    if (std::optional<uint32_t> index = find(kind))
      out = static_cast<T>(*index);
  }
  /// Forgets the names of cells and segments, which belong to a role.
  void beginRole();
  void beginSegment() { values_.clear(); }
  /// Records an error if the role has a cell of this kind, for the same block or parameter. `at`:
  /// the place of the cell.
  void checkOnly(const Plan &plan, const Role &role, const Cell &cell, size_t at);
  /// `%name`, for a value that was defined before in the segment.
  void value(const Segment &, ValueId &out);
  struct ResultName {
    std::string_view name;
    size_t at; ///< the place of the name
  };
  static ResultName nameOf(ValueId) { return {}; }
  /// Reads `%name` of a new value.
  void resultName(const Segment &, ResultName &out);
  static Value valueOf(const Segment &, ValueId) { return {}; }
  /// Adds the value to the segment, which must not have its name yet.
  void define(Segment &segment, const ResultName &name, Value value, ValueId &id);
  void push(std::vector<ValueId> &out, ValueId id) { out.push_back(id); }

  // ---- parts of a plan ----
  /// `shardc.plan 2 placed "name" hash 0a1b2c3d`: version, level, name, hash. Another version is
  /// refused. The hash of the text below the first line is optional, for plans written by hand.
  void head(Plan &plan);
  /// The entries of `job { path = value ... }`. Job.def decides which paths exist and which values
  /// they take. The message points at the path or at the value, whichever is wrong.
  void job(Job &out);
  /// The kinds of a group, except Data.
  void groupKinds(Plan &plan, const Group &group);
  /// `{ "a line\x0a" "another\x0a" }`: a text in pieces. `what` names it in messages.
  void pieces(std::string &out, std::string_view what, size_t);
  /// `bf16[8,64]`
  void type(Type &out);
  /// `[8,64]`. `out.dtype` is known, and `at` is the place of the message if the type has too many
  /// bytes.
  void shape(Type &out, size_t at);
  void shape(Type &out) { shape(out, next()); }
  void opName(Op &out);
  /// Reads the name of an attribute that the op has and that did not occur.
  void attrName(const Op &op, AttrKey &out);
  void setAttr(Op &op, const Attr &attr);
  void enumerated(const AttrInfo &info, int64_t &out);
  void boolean(int64_t &out);
  void countNode();
  void countRepetitions(const Pred &pred);

private:
  bool record(size_t at, std::string_view id, std::string text);
  /// Records that something is declared at `at` that was declared at `before`.
  void recordTwice(size_t at, size_t before, std::string text);
  std::string render(size_t at, std::string_view severity, std::string_view text) const;
  /// Reads the characters after a backslash: another backslash, a quote, n, or xNN.
  void escape(std::string &out);
  std::optional<int64_t> number(std::string_view what, int64_t min, int64_t max);
  /// Takes the token of this length, which is next.
  void take(size_t length) {
    last_ = pos_;
    pos_ += length;
  }
  std::optional<uint32_t> find(NameKind kind);
  void hash();
  /// The text shows the type: quotes for a text, brackets for a list of texts, `true` or `false`,
  /// digits for an integer, anything else for a real number.
  void jobValue(JobValue &out);

  std::string_view text_;
  std::string fileName_;
  int64_t linesBefore_;
  size_t pos_ = 0, last_ = 0;
  std::string message_, id_;         ///< of the first error
  std::deque<std::string> unquoted_; ///< names that had quotes; addresses must not move
  struct Entry {
    uint32_t index;
    size_t offset; ///< of the first mention
  };
  std::array<std::unordered_map<std::string_view, Entry>, kNameKinds> names_;
  std::map<std::pair<CellKind, int32_t>, std::pair<uint32_t, size_t>>
      kinds_; ///< first cell of each kind but buffers in the current role, and its location
  std::unordered_map<std::string_view, ValueId> values_; ///< of the current segment
  int64_t nodeCount_ = 0, repetitionCount_ = 0; ///< of all programs and predicates together
};

} // namespace shardc::plan
