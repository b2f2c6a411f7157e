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

/// Recursive descent: one function per construct, whose comment shows the text that it reads. A
/// word before that text, such as `mesh`, is already taken. After an error, which the cursor keeps,
/// each function returns false.
class Parser {
public:
  /// `text` must outlive the parser, whose tables refer to it. `linesBefore` is added to the line
  /// numbers of messages: the lines of the file before this plan.
  Parser(std::string_view text, std::string_view fileName, int64_t linesBefore)
      : in_(text, fileName, linesBefore) {
    streams_.add(in_, kComputeStreamName, kComputeStream, "stream");
    classes_.add(in_, kJobClassName, 0, "class");
  }

  /// Parses the whole text. If it returns false, `status()` has the message and `plan()` is
  /// incomplete.
  bool run();
  Plan &plan() { return plan_; }
  Status status() const { return in_.status(); }

private:
  // ---- first line and tables ----
  /// `shardc.plan 2 placed "name" hash 0a1b2c3d`: version, level, name, hash. Another version is
  /// refused.
  bool head();
  /// `hash 0a1b2c3d`, which is optional, for plans written by hand: the hash of the text below the
  /// first line.
  bool hash();
  using Construct = bool (Parser::*)();
  /// The construct that begins with this word at top level; null if there is none.
  static Construct constructOf(std::string_view word);
  /// One construct with its first word.
  bool topLevel();
  /// `needs { backend = cuda gpu = "H100" ... }`: what a machine must have to run the plan.
  bool needs();
  /// `job { path = value ... }`
  bool job();
  /// `path = value`. Job.def decides which paths exist and which values they take. The message
  /// points at the path or at the value, whichever is wrong.
  bool jobEntry();
  /// The text shows the type: quotes for a text, brackets for a list of texts, `true` or `false`,
  /// digits for an integer, anything else for a real number.
  bool jobValue(JobValue &out);
  /// `mesh { data = 4 tensor = 2 }`. The product of the sizes is at most limits::kWorldSizeMax.
  bool mesh();
  /// `groups { all = [data, tensor] ... }`
  bool groups();
  /// `data NAME`: the group of kind Data, named after all groups.
  bool data();
  /// The name of a group that was declared before.
  bool groupOf(int16_t &out);
  /// `16 over data`: the number of elements of a block's part, and the group whose ranks divide the
  /// block. Without `over`, `group` keeps its value.
  bool part(int64_t &numel, int16_t &group);
  /// `NAME KIND ... = [axis, ...]`
  bool group();
  /// The words between a group's name and its axes: the group's kinds, except Data.
  bool groupKinds(std::string_view name);
  /// `stream NAME KIND`; without a kind, it is Other.
  bool stream();
  /// `channel gather group all via ce multiprocessors 0 stream gather`, or the same with `pair 0 1`
  /// after the group.
  bool channel();
  /// The two members of a channel for sends and receives, as different indices in the group.
  bool pair(Channel &channel);
  /// `unit NAME KIND`; without a kind, it is Other.
  bool unit();
  /// `class base frozen` or `class table by adam`: properties that blocks share.
  bool paramClass();
  /// `block NAME unit U numel N shard PART state PART sum over G as CLASS`. `unit` is optional, as
  /// is all after the shard. Without `state`, the optimizer state is divided like the weights.
  bool block();
  /// `param "name" : TYPE`, then how the parameter is divided, and its other clauses.
  bool param();
  /// Whether the current construct ends here: before the first word of another one, or at the end
  /// of the text.
  bool endsHere();
  /// `stacked row 16 of [8,64,16] split 0 over ep split 1 over etp parts 2 copies [cp]`: this
  /// rank's part of a parameter. Without `of`, the splits are not yet applied.
  bool paramParts(Param &param);
  /// `0 over ep parts 2`, after `split`: the dimension, its group, and how many equal parts it has.
  bool split(Param &param);
  /// `[cp, ...]`, after `copies`: at least one group.
  bool copies(Param &param);
  /// `[64, 16, 16]`, after `turns`: the rows of interleaved matrices.
  bool turns(Param &param);
  /// `block NAME at OFFSET lr X wd X decoupled init ...`. Only `init` is required.
  bool paramClauses(Param &param);
  /// `init zeros`, `init normal 0.02` or `init constant 1`.
  bool paramInit(Param &param);
  /// `loc 3 "file" 12 5`. Indices count from 0 without gaps.
  bool loc();
  /// `source recipe "llama.recipe" { "a line\x0a" "another\x0a" }`: a source text in pieces.
  bool source();
  /// `specification { "eJzt..." "..." }`, once.
  bool specification();
  /// `{ "a line\x0a" "another\x0a" }`: a text in pieces. `what` names it in messages.
  bool pieces(std::string &out, std::string_view what);
  /// `bf16[8,64]`
  bool type(Type &out);
  /// `[8,64]`, into `out.shape`. `out.dtype` is known, and `at` is the place of the message if the
  /// type has too many bytes.
  bool shape(Type &out, size_t at);
  /// Parses a name and finds its index; records an error if the table lacks it.
  bool lookUp(const NameTable &table, uint32_t &out, std::string_view what);
  /// Parses a word of an enumeration with its parse function.
  template <typename E>
  bool enumerator(E &out, std::optional<E> (*parseName)(std::string_view), std::string_view what);
  /// Whether the table may grow: it has fewer than `max` entries. Otherwise records an error.
  template <typename T> bool room(const std::vector<T> &table, int64_t max, std::string_view what);

  // ---- roles ----
  /// `role NAME "why" where { ... } { ... }`. Names of cells and segments belong to their role, so
  /// their tables begin anew.
  bool role();
  /// `where { pp = 0 to 2 }`, both ends included; optional.
  bool where(Role &role);
  /// `{ row = bytes ... }`; rows that the text lacks keep their value.
  template <typename E, size_t n>
  bool byteTable(std::array<int64_t, n> &out, std::optional<E> (*parseName)(std::string_view),
                 std::string_view row, std::string_view bytes);
  /// `arenas { state = 4096 ... }`
  bool arenas(Role &role);
  /// `beside { communicators = 4096 ... }`
  bool beside(Role &role);
  /// `cell @x weight of b slots 2 : f32[8] in work for params at 256 stride 64`. Kind, slots and
  /// place are optional.
  bool cell(Role &role);
  /// `weight of layers.0`, or nothing for a buffer. A role has at most one cell of each kind,
  /// except buffers, for a block or parameter.
  bool cellKind(const Role &role, Cell &cell);
  /// `work 256 + 64*data slots 3 stride 256 mb + 1`: arena, offset, ring.
  bool place(Place &out);
  /// `256`, `256 + 64*data` or `256 - 64*data`: bytes, and bytes for each index in the group.
  bool offset(Place &out);
  /// `slots 3 stride 256 mb + 1`, or nothing: the slots of a ring and the slot's microbatch.
  bool ring(Place &out);
  /// `+ 3`, `- 3`, or nothing, which keeps `out`.
  bool signedTerm(int64_t &out, std::string_view what);
  /// `mb + 1`, or nothing.
  bool shift(int64_t &out);
  /// Nodes up to `}`, which it takes. `depth` counts the braces around them.
  bool program(Role &role, std::vector<ProgramNode> &out, int depth);
  /// `start`, `run`, `steps N { ... }`, `every N { ... }` or `loop N { ... }`.
  bool programNode(Role &role, ProgramNode &node, int depth);
  /// `micro 4`, or `forward mb 2*i + 1`, after `run` or `start`.
  bool run(ProgramNode &node);
  /// `3`, `i`, `i + 3` or `2*i - 1`.
  bool microbatch(MicrobatchNumber &out);

  // ---- segments and ops ----
  /// `segment NAME KIND body before OTHER { ... }`. Kind, `body` and `before` are optional.
  bool segment(Role &role);
  /// The phase of an op, which the text contains only if it differs from that of the segment's
  /// kind, and `recomputed`.
  bool phase(Op &op);
  /// An `in` line, an op or an `out` line. They have this order.
  bool statement(Role &role, Segment &segment);
  /// `in %x = @cell mb - 1 : type purpose at place`. Type and purpose are the cell's if left out.
  bool boundaryIn(Role &role, Segment &segment);
  /// `out @cell = %x mb + 1 droppable`
  bool boundaryOut(Segment &segment);
  /// One op: results, name, operands, attributes, blocks, clauses, waits, types of the results,
  /// phase and location, in this order.
  bool op(Segment &segment);
  /// `%a, %b =` in front of an op; nothing if the op has no results.
  bool resultNames();
  /// `%a, %b`, or nothing.
  bool operands(Op &op);
  /// `{ name = value ... }`, or nothing.
  bool attrs(Op &op);
  /// `name = value`; the row of Attrs.def says of which type the value is.
  bool attr(Op &op);
  /// `of [a, b] copies 2 of [c]`: the blocks of the operands, in order. Without `of`, they are the
  /// first blocks of the plan, one per operand, and `copies N` applies to all.
  bool blocks(Op &op);
  /// `[block, block, ...] copies N`; without `copies`, N is 1.
  bool listedBlocks(Op &op);
  /// The clauses between attributes and waits, in any order. An op without `on` gets its default
  /// stream.
  bool clauses(Op &op);
  /// The rest of a clause, whose first word is `word`. `channel` also sets the op's group.
  bool clause(Op &op, std::string_view word);
  /// `first`, `mb 2 to 5` with both ends included, or `mb 2 to 5 every 8 to 63`.
  bool predicate(Pred &out);
  /// `(RESULT = value if PREDICATE)`, where RESULT is the result's index.
  bool tie(Op &op, Tie::Kind kind);
  /// `after %a, #3`: the op that defines %a, and the op with index 3. Only earlier ops can be
  /// named, so waits have no cycles.
  bool waits(const Segment &segment, Op &op);
  /// `: TYPE PURPOSE at PLACE, ...`, one item per result. Their names were parsed in front of the
  /// op.
  bool results(Segment &segment, Op &op);
  /// Adds a value with a name that the segment does not have yet; `at` is the place of the name.
  bool define(Segment &segment, std::string_view name, size_t at, Value value, ValueId &id);
  /// `%name`, for a value that was defined before in the segment.
  bool valueUse(ValueId &out);
  /// `rows %n`, or nothing if all rows are valid.
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
