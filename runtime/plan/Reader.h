// Reads plan text for Form.h. Nothing but Parser.cpp includes this.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/plan/Cursor.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/NameKind.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Each function reads one part of the text into its first argument. At the first error, the cursor
/// moves to the end of the text, so that nothing is read after it; values keep their defaults then.
class Reader : public Cursor {
public:
  static constexpr bool kReads = true;
  /// `text` must outlive the reader, whose tables refer to it. `linesBefore` is added to the line
  /// numbers of messages: the lines of the file before this plan.
  Reader(std::string_view text, std::string_view fileName, int64_t linesBefore)
      : Cursor(text, fileName, linesBefore) {
    add(NameKind::Stream, kComputeStreamName, kComputeStream);
    add(NameKind::Class, kJobClassName, 0);
  }

  // ---- tokens ----
  void line(int) {}
  void glue() {}
  void gap() {}
  void sign(char c) { expect(c); }
  void token(std::string_view word) { expect(word); }
  /// Takes the word or character if it is next.
  bool clause(auto next, bool) { return takeIf(next); }
  bool clause(const char *word, bool) { return takeIf(std::string_view(word)); }
  /// Whether the character is next, which is not taken.
  bool isNext(char c, bool) { return peek() == c; }
  void flag(bool &out, std::string_view word) { out = takeIf(word); }
  template <typename T> void integer(T &out, std::string_view what, int64_t min, int64_t max) {
    if (int64_t value = 0; Cursor::integer(value, what, min, max))
      out = static_cast<T>(value);
  }
  void real(double &out, std::string_view what) { Cursor::real(out, what); }
  void quoted(std::string &out, std::string_view what) { string(out, what); }
  void named(std::string &out, std::string_view what) {
    if (std::string_view name; Cursor::name(name, what))
      out = name;
  }
  /// Reads `+ 3` or `- 3`; nothing keeps `out` and returns false.
  bool term(int64_t &out, std::string_view what, int64_t max);
  template <typename T> void set(T &out, const auto &value) { out = static_cast<T>(value); }
  /// Reads a word of an enumeration with its parse function.
  template <typename E>
  void oneOf(E &out, std::optional<E> (*parse)(std::string_view), std::string_view what) {
    if (std::string_view text; word(text, what)) {
      if (std::optional<E> value = parse(text))
        out = *value;
      else
        fail(last(), "plan-name", "unknown {} '{}'", what, text.substr(0, 64));
    }
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
    std::string_view name;
    if (Cursor::name(name, info(kind).what) && add(kind, name, static_cast<uint32_t>(table.size())))
      out = name;
  }
  void declareQuoted(NameKind kind, const auto &table, std::string &out) {
    declare(kind, table, out);
  }
  /// Adds a name. If it is taken, records an error with a note and returns false.
  bool add(NameKind kind, std::string_view name, uint32_t index);
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
  std::optional<uint32_t> find(NameKind kind);
  void hash();
  /// The text shows the type: quotes for a text, brackets for a list of texts, `true` or `false`,
  /// digits for an integer, anything else for a real number.
  void jobValue(JobValue &out);

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
