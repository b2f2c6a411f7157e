// The plan parser's one class, spread over three files: tables (ParseTables.cpp), roles and
// programs (Parser.cpp), segments and ops (ParseSegments.cpp). Nothing else includes this.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/plan/Cursor.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Declared names of one kind, with their index and the location of their first mention.
class NameTable {
public:
  /// Adds a name. If it is taken, records an error with a note and returns false.
  bool add(Cursor &in, std::string_view name, uint32_t index, std::string_view what) {
    auto [at, isNew] = map_.try_emplace(name, Entry{index, in.last()});
    if (isNew)
      return true;
    in.fail(in.last(), "plan-name", "{} '{}' is declared twice", what, name);
    in.note(at->second.offset, "first declared here");
    return false;
  }
  std::optional<uint32_t> find(std::string_view name) const {
    auto at = map_.find(name);
    return at == map_.end() ? std::nullopt : std::optional(at->second.index);
  }
  void reserve(size_t count) { map_.reserve(count); }

private:
  struct Entry {
    uint32_t index;
    size_t offset;
  };
  std::unordered_map<std::string_view, Entry> map_;
};

/// Recursive descent: one function per construct. After an error, which the cursor keeps, each
/// returns false.
class Parser {
public:
  Parser(std::string_view text, std::string_view fileName, int64_t linesBefore)
      : in_(text, fileName, linesBefore) {
    streams_.add(in_, kComputeStreamName, kComputeStream, "stream");
    classes_.add(in_, kJobClassName, 0, "class");
  }

  bool run();
  Plan &plan() { return plan_; }
  Status status() const { return in_.status(); }

private:
  // ---- first line and tables ----
  bool head();
  bool hash();
  using Construct = bool (Parser::*)();
  /// The construct that begins with this word at top level; null if there is none.
  static Construct constructOf(std::string_view word);
  bool topLevel();
  bool needs();
  bool job();
  bool jobEntry();
  bool jobValue(JobValue &out);
  bool mesh();
  bool groups();
  bool data();
  bool groupOf(int16_t &out);
  bool part(int64_t &numel, int16_t &group);
  bool group();
  bool groupKinds(std::string_view name);
  bool stream();
  bool channel();
  bool pair(Channel &channel);
  bool unit();
  bool paramClass();
  bool block();
  bool param();
  bool endsHere();
  bool paramParts(Param &param);
  bool split(Param &param);
  bool copies(Param &param);
  bool turns(Param &param);
  bool paramClauses(Param &param);
  bool paramInit(Param &param);
  bool loc();
  bool source();
  bool specification();
  bool pieces(std::string &out, std::string_view what);
  bool type(Type &out);
  bool shape(Type &out, size_t at);
  bool lookUp(const NameTable &table, uint32_t &out, std::string_view what);
  template <typename E>
  bool enumerator(E &out, std::optional<E> (*parseName)(std::string_view), std::string_view what);
  template <typename T> bool room(const std::vector<T> &table, int64_t max, std::string_view what);

  // ---- roles ----
  bool role();
  bool where(Role &role);
  template <typename E, size_t n>
  bool byteTable(std::array<int64_t, n> &out, std::optional<E> (*parseName)(std::string_view),
                 std::string_view row, std::string_view bytes);
  bool arenas(Role &role);
  bool beside(Role &role);
  bool cell(Role &role);
  bool cellKind(const Role &role, Cell &cell);
  bool place(Place &out);
  bool offset(Place &out);
  bool ring(Place &out);
  bool signedTerm(int64_t &out, std::string_view what);
  bool shift(int64_t &out);
  bool program(Role &role, std::vector<ProgramNode> &out, int depth);
  bool programNode(Role &role, ProgramNode &node, int depth);
  bool run(ProgramNode &node);
  bool microbatch(MicrobatchNumber &out);

  // ---- segments and ops ----
  bool segment(Role &role);
  bool phase(Op &op);
  bool statement(Role &role, Segment &segment);
  bool boundaryIn(Role &role, Segment &segment);
  bool boundaryOut(Segment &segment);
  bool op(Segment &segment);
  bool resultNames();
  bool operands(Op &op);
  bool attrs(Op &op);
  bool attr(Op &op);
  bool blocks(Op &op);
  bool listedBlocks(Op &op);
  bool clauses(Op &op);
  bool clause(Op &op, std::string_view word);
  bool predicate(Pred &out);
  bool tie(Op &op, Tie::Kind kind);
  bool waits(const Segment &segment, Op &op);
  bool results(Segment &segment, Op &op);
  bool define(Segment &segment, std::string_view name, size_t at, Value value, ValueId &id);
  bool valueUse(ValueId &out);
  bool countedRows(Value &value);

  struct ResultName {
    std::string_view name;
    size_t at;
  };

  Cursor in_;
  Plan plan_;
  NameTable jobs_, axes_, groups_, streams_, channels_, classes_, units_, blocks_, params_, roles_;
  NameTable cells_, segments_; ///< of the current role
  std::map<std::pair<CellKind, int32_t>, std::pair<uint32_t, size_t>>
      kinds_; ///< first cell of each kind but buffers in the current role, and its location
  std::unordered_map<std::string_view, ValueId> values_; ///< of the current segment
  std::vector<ResultName> resultNames_;                  ///< of the current op
  int64_t nodeCount_ = 0;
  int64_t repetitionCount_ = 0; ///< repetitions of all predicates together
};

template <typename E>
bool Parser::enumerator(E &out, std::optional<E> (*parseName)(std::string_view),
                        std::string_view what) {
  std::string_view word;
  if (!in_.word(word, what))
    return false;
  std::optional<E> value = parseName(word);
  if (!value)
    return in_.fail(in_.last(), "plan-name", "unknown {} '{}'", what, word.substr(0, 64));
  out = *value;
  return true;
}

/// Parses `{ row = bytes ... }`.
template <typename E, size_t n>
bool Parser::byteTable(std::array<int64_t, n> &out, std::optional<E> (*parseName)(std::string_view),
                       std::string_view row, std::string_view bytes) {
  if (!in_.expect('{'))
    return false;
  while (!in_.takeIf('}')) {
    E which{};
    if (!enumerator(which, parseName, row) || !in_.expect('=') ||
        !in_.integer(out[static_cast<size_t>(which)], bytes, 0, limits::kBytesMax))
      return false;
  }
  return true;
}

template <typename T>
bool Parser::room(const std::vector<T> &table, int64_t max, std::string_view what) {
  return static_cast<int64_t>(table.size()) < max ||
         in_.fail(in_.next(), "plan-limit", "more than {} {}", max, what);
}

} // namespace shardc::plan
