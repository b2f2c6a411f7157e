// Writes plan text for Form.h. Nothing but Printer.cpp includes this.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/plan/NameKind.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Has the functions of Reader, which write instead. Appends to one buffer and does not allocate
/// per token. The plan may be invalid: an index that is out of its table is written as `?` with its
/// number.
class Writer {
public:
  static constexpr bool kReads = false;

  // ---- layout ----
  /// Begins a line, with this indentation.
  void line(int indent) {
    if (!out_.empty() && out_.back() != '\n')
      out_ += '\n';
    out_.append(static_cast<size_t>(indent), ' ');
    isGlued_ = true;
  }
  /// The next token has no blank before it.
  void glue() { isGlued_ = true; }
  /// The next token has two blanks before it unless it is glued.
  void gap() {
    if (!isGlued_)
      out_ += ' ';
  }

  // ---- tokens ----
  void sign(char c);
  void token(std::string_view word) {
    space();
    out_ += word;
  }
  /// Writes the word or character if the clause is there.
  bool clause(std::string_view word, bool isThere) {
    if (isThere)
      token(word);
    return isThere;
  }
  bool clause(char c, bool isThere) {
    if (isThere)
      sign(c);
    return isThere;
  }
  bool isNext(char, bool isThere) { return isThere; }
  void flag(bool value, std::string_view word) { clause(word, value); }
  void integer(auto value, std::string_view = {}, int64_t = 0, int64_t = 0) {
    fmt::format_int digits(value);
    token({digits.data(), digits.size()});
  }
  /// Writes the shortest text that parses to the same number and does not look like an integer.
  void real(double value, std::string_view = {});
  /// Control characters become `\xNN`; quotes and backslashes get a backslash.
  void quoted(std::string_view text, std::string_view = {});
  void named(std::string_view name, std::string_view = {});
  bool term(int64_t value, std::string_view, int64_t);
  template <typename E>
  void oneOf(E value, std::optional<E> (*)(std::string_view), std::string_view) {
    token(toString(value));
  }
  template <typename E>
  bool oneOfIf(bool isThere, E value, std::optional<E> (*)(std::string_view)) {
    return clause(toString(value), isThere);
  }

  // ---- lists ----
  void each(const auto &list, char, int64_t, std::string_view, const auto &write) {
    for (const auto &entry : list)
      write(entry);
  }
  void separated(const auto &list, int64_t, std::string_view, const auto &write) {
    for (const auto &entry : list) {
      if (&entry != list.data())
        sign(',');
      write(entry);
    }
  }
  void repeated(const auto &list, std::string_view word, int64_t, std::string_view,
                const auto &write) {
    for (const auto &entry : list) {
      token(word);
      write(entry);
    }
  }
  void inAnyOrder(const auto &write) { write(); }

  // ---- names ----
  void declare(NameKind, const auto &, std::string_view name) { named(name); }
  void declareQuoted(NameKind, const auto &, std::string_view name) { quoted(name); }
  void ref(NameKind, const auto &table, int64_t index) { entry(table, index); }
  void value(const Segment &segment, ValueId id) {
    sign('%');
    entry(segment.values, id);
  }
  static ValueId nameOf(ValueId id) { return id; }
  void resultName(const Segment &segment, ValueId id) { value(segment, id); }
  static const Value &valueOf(const Segment &segment, ValueId id) { return segment.values[id]; }

  // ---- what only a reader does ----
  static constexpr bool failed() { return false; }
  static constexpr size_t next() { return 0; }
  static constexpr size_t last() { return 0; }
  static constexpr char peek() { return 0; }
  static constexpr std::string_view peekWord() { return {}; }
  static constexpr std::string_view found() { return {}; }
  void fail(const auto &...) {}
  void set(const auto &, const auto &) {}
  void setAttr(const Op &, const Attr &) {}
  void push(const auto &, ValueId) {}
  void define(const auto &...) {}
  void checkOnly(const auto &...) {}
  void countNode() {}
  void countRepetitions(const Pred &) {}

  // ---- parts of a plan ----
  /// Writes the first line, with zeros in place of the hash.
  void head(const Plan &plan);
  void job(const Job &job);
  void jobValue(const JobValue &value);
  void groupKinds(const Plan &plan, const Group &group);
  /// Writes quoted pieces of at most `pieceMax` bytes, one per line. A piece ends with each line of
  /// the text.
  void pieces(std::string_view rest, std::string_view, size_t pieceMax);
  void type(const Type &type);
  void shape(const Type &type);
  void opName(const Op &op) { token(opInfo(op).name); }
  void attrName(const Op &, AttrKey key) { token(attrInfo(key).name); }
  void enumerated(const AttrInfo &info, int64_t value);
  void boolean(int64_t value) { token(value != 0 ? "true" : "false"); }

  /// Appends lines as they are.
  void lines(std::string_view text) { out_ += text; }
  /// Writes the hash of everything from `bodyAt` on into the first line. Call it after all else is
  /// written.
  void hash(size_t bodyAt);
  size_t size() const { return out_.size(); }
  void reserve(size_t bytes) { out_.reserve(bytes); }
  /// Moves the text out. The writer cannot be used afterwards.
  std::string take() { return std::move(out_); }

private:
  void space() {
    if (!isGlued_)
      out_ += ' ';
    isGlued_ = false;
  }
  void entry(const auto &table, int64_t index) {
    if (index >= 0 && static_cast<size_t>(index) < table.size()) {
      named(table[static_cast<size_t>(index)].name);
    } else { // an invalid plan can be printed, but not parsed
      token("?");
      glue();
      integer(index);
    }
  }

  std::string out_;
  bool isGlued_ = true;
  size_t hashAt_ = 0; ///< where the first line has its hash
};

} // namespace shardc::plan
